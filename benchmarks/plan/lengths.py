"""How long a block's training examples are: from its prepared data, from published rows, or by assumption."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from benchmarks.data import get_dataset, load_records, load_tokenizer, make_tokenizer, open_corpus, store
from benchmarks.data.loading import dataset_with, split_validation, to_records
from benchmarks.data.records import DataError, Record
from benchmarks.data.sources import Generated
from benchmarks.data.tokenizers import PUBLISHED, encode_questions, encode_texts
from benchmarks.files import read_json
from benchmarks.plan.counting import TokenCounter, example, usual_length
from benchmarks.sampling import spread_over
from benchmarks.studies.paths import DONE, data_folder
from benchmarks.studies.specs import Block, DataSpec, TokenizerSpec
from benchmarks.studies.study import Study
from methods.base import Example

log = logging.getLogger(__name__)

SAMPLE = 2_000  # examples whose lengths are used
STAND_IN = TokenizerSpec(trained=2048)  # its digits are single tokens, as in the published tokenizers
LONGEST = 32  # number of examples that memory is planned for


class Assumed(NamedTuple):
    """Lengths in tokens of Qwen2.5: means and standard deviations of questions and of chains with their line ends, the
    correlation of the two, the mean number of steps, and the length of the answer."""

    question: float
    question_deviation: float
    chain: float
    chain_deviation: float
    correlation: float
    steps: float
    answer: int


# From GSM8K-Aug's first 3,000 rows (equation), and GSM8K's training split, whose questions are assumed to be as short
ASSUMED = {
    "equation": Assumed(46.2, 13.9, 30.6, 16.2, correlation=0.52, steps=2.6, answer=3),
    "text": Assumed(46.2, 13.9, 88.1, 41.7, correlation=0.52, steps=3.6, answer=3),
}
STEPS_SPREAD = 2.5  # the mean number of steps in standard deviations
SHORTEST = {"question": 10, "step": 4}
# The longest rows of GSM8K's training split: tokens of the question, of each step, and of the answer
ASSUMED_LONGEST: dict[str, tuple[int, list[int], int]] = {
    "equation": (194, [22] * 5, 2),
    "text": (129, [31] * 10, 1),
}


@dataclass(frozen=True)
class Lengths:
    """The lengths of a block's training examples.

    ``examples`` sample the whole range of the ``rows``' lengths; ``longest`` are as long as the longest rows.
    ``tokens`` counts question, steps and answer over all rows. ``basis`` says where the lengths come from.
    ``vocabulary`` is the number of tokens in the vocabulary; ``count_tokens`` counts those of a text.
    """

    examples: list[Example]
    longest: list[Example]
    rows: int
    tokens: float
    vocabulary: int
    basis: str
    count_tokens: TokenCounter = usual_length

    @cached_property
    def by_length(self) -> list[Example]:
        """The examples, shortest first."""
        return sorted(self.examples, key=total_length)

    @property
    def chains(self) -> list[int]:
        """The tokens of each example's steps, line ends included."""
        return [sum(len(step) + 1 for step in example.steps) for example in self.examples]


def lengths_of(study: Study, block: Block, results: Path) -> Lengths:
    """Return lengths from the best source that is available. Nothing is downloaded."""
    folder = data_folder(results, study.name, block.id)
    if store.is_prepared(study, block, results):  # not from earlier settings of the study
        return _prepared(folder)
    return expected_lengths(block.data, study.tokenizer_of(block))


def expected_lengths(data: DataSpec, tokenizer: TokenizerSpec) -> Lengths:
    """Return lengths of data that are not prepared yet: from published rows if they are in reach, otherwise by
    assumption."""
    dataset = dataset_with(data.train, data.form, "train")
    if isinstance(dataset, Generated) or dataset.in_folder("train"):
        try:
            return _published(data, tokenizer)
        except DataError as error:  # files in the folder that cannot be used
            if isinstance(dataset, Generated):
                raise
            log.warning("lengths are assumed, because the published rows cannot be read: %s", error)
    return _assumed(data, tokenizer)


def _prepared(folder: Path) -> Lengths:
    corpus = open_corpus(folder, "train")
    size = read_json(folder / DONE)["tokenizer"]["size"]
    places = (spread_over(len(corpus), SAMPLE), np.argsort(-corpus.lengths)[:LONGEST])
    examples, longest = (
        [_like(e.question, e.steps, e.answer, i) for i, e in enumerate(corpus.examples(place))] for place in places
    )
    counted = _counted(load_tokenizer(folder))
    return Lengths(examples, longest, len(corpus), float(corpus.lengths.sum()), size, "the prepared data", counted)


def _counted(tokenizer: PreTrainedTokenizerBase) -> TokenCounter:
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def _at_hand(tokenizer: TokenizerSpec) -> bool:
    if tokenizer.pretrained is None:
        return True
    known = PUBLISHED.get(tokenizer.pretrained)
    return known.folder in os.environ if known and known.folder else Path(tokenizer.pretrained).is_dir()


def _published(data: DataSpec, spec: TokenizerSpec) -> Lengths:
    dataset = get_dataset(data.train)
    if isinstance(dataset, Generated):  # its first rows are like any others
        count = rows_by_card(data)
        rows = [replace(row, key=str(i)) for i, row in enumerate(islice(dataset.generate("train"), SAMPLE))]
        records = to_records(data.train, data.form, "train", rows)
    else:
        records, _ = split_validation(load_records(data.train, data.form, "train"), data.validation)
        count = min(len(records), data.limit or len(records))
    records = records[:count]
    sample = [records[i] for i in spread_over(len(records), SAMPLE)]
    large = sorted(records, key=_characters, reverse=True)[: 4 * LONGEST]
    tokenizer = make_tokenizer(spec if _at_hand(spec) else STAND_IN, records)

    def examples_of(some: Sequence[Record]) -> list[Example]:
        asked = encode_questions(tokenizer, [record.question for record in some])
        answers = encode_texts(tokenizer, [record.answer for record in some])
        steps = [encode_texts(tokenizer, record.steps) for record in some]
        made = [_like(*parts, i) for i, parts in enumerate(zip(asked, steps, answers, strict=True))]
        return [e for e in made if len(e.question) <= data.max_question_tokens]

    examples, longest = examples_of(sample), sorted(examples_of(large), key=total_length)[-LONGEST:]
    if not examples:
        raise DataError(
            f"no question of {len(sample):,} has {data.max_question_tokens} tokens or fewer; raise "
            "`max_question_tokens`"
        )
    used = round(count * len(examples) / len(sample))
    basis = f"{len(sample):,} of {count:,} rows"
    if _at_hand(spec):
        return Lengths(examples, longest, used, used * _mean(examples), len(tokenizer), basis, _counted(tokenizer))
    basis += f", with a trained tokenizer of {STAND_IN.trained} in the place of {spec.pretrained}"
    return Lengths(examples, longest, used, used * _mean(examples), _size(spec), basis)


def _characters(record: Record) -> int:
    return len(record.question) + sum(map(len, record.steps)) + len(record.answer)


def _like(question: Sequence[int], steps: Sequence[Sequence[int]], answer: Sequence[int], number: int) -> Example:
    return example(number, len(question), [len(step) for step in steps], len(answer))


def _assumed(data: DataSpec, tokenizer: TokenizerSpec) -> Lengths:
    mean = ASSUMED.get(data.form, ASSUMED["text"])
    draws = np.random.Generator(np.random.PCG64(0)).standard_normal((SAMPLE, 3))
    other = mean.correlation * draws[:, 0] + (1 - mean.correlation**2) ** 0.5 * draws[:, 1]
    count = np.maximum(1, np.round(mean.steps + draws[:, 2] * mean.steps / STEPS_SPREAD)).astype(int)
    asked = np.maximum(SHORTEST["question"], np.round(mean.question + mean.question_deviation * draws[:, 0]))
    asked = asked.astype(int)
    written = np.maximum(SHORTEST["step"] * count, np.round(mean.chain + mean.chain_deviation * other)).astype(int)
    parts = [np.diff(np.linspace(0, w - c, c + 1).astype(int)) for w, c in zip(written, count, strict=True)]
    examples = [example(i, int(asked[i]), parts[i].tolist(), mean.answer) for i in range(SAMPLE)]
    rows = rows_by_card(data)
    basis = f"the card's count and assumed lengths (question {mean.question:g}, chain {mean.chain:g} tokens on average)"
    question, written_steps, last = ASSUMED_LONGEST.get(data.form, ASSUMED_LONGEST["text"])
    longest = [example(i, question, written_steps, last) for i in range(LONGEST)]
    return Lengths(examples, longest, rows, rows * _mean(examples), _size(tokenizer), basis)


def rows_by_card(data: DataSpec) -> int:
    """Return how many rows a block trains on, according to its data set's card."""
    published = get_dataset(data.train).card.counts["train"]
    if data.validation >= published:
        raise DataError(
            f"{data.validation:,} validation rows cannot be split off the {published:,} rows of {data.train}; ask fewer"
        )
    return min(published - data.validation, data.limit or published)


def _size(spec: TokenizerSpec) -> int:
    """Return a tokenizer's size if it is known without loading it, otherwise 0, for which a backbone keeps its own
    vocabulary size."""
    if isinstance(spec.trained, int):
        return spec.trained
    return PUBLISHED[spec.pretrained].size if spec.pretrained in PUBLISHED else 0


def _mean(examples: Sequence[Example]) -> float:
    return float(np.mean([total_length(e) for e in examples]))


def total_length(example: Example) -> int:
    """Return the tokens of question, steps and answer."""
    return len(example.question) + sum(map(len, example.steps)) + len(example.answer)
