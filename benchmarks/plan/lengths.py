"""The lengths of a study's examples: from prepared data, from published rows, or from assumptions."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from benchmarks.data import get_dataset, load_records, load_tokenizer, make_tokenizer, open_corpus, store
from benchmarks.data.corpus import spread_over
from benchmarks.data.loading import dataset_with, exclude_questions, split_validation, to_records
from benchmarks.data.records import DataError, Record
from benchmarks.data.sources import Generated
from benchmarks.data.tokenizers import PUBLISHED, encode_questions, encode_texts
from benchmarks.files import read_json
from benchmarks.studies.paths import DONE, data_folder
from benchmarks.studies.specs import Block, DataSpec, TokenizerSpec
from benchmarks.studies.study import Study
from methods.base import Example
from methods.errors import InputError

log = logging.getLogger(__name__)
SAMPLE = 2_000  # examples whose lengths are used
STAND_IN = TokenizerSpec(trained=2048)  # its digits are single tokens, as in the published tokenizers
LONGEST = 32  # number of examples that memory is planned for
TOKEN = 1  # any id: only lengths matter
TokenCounter = Callable[[str], int]  # returns the number of tokens of a text


class Assumed(NamedTuple):
    """Lengths in tokens of Qwen2.5: means and standard deviations of questions and of chains with their line ends, the
    correlation of the two, the mean number of steps, and the length of the answer; of the longest rows, the question,
    each step, and the answer."""

    question: float
    question_deviation: float
    chain: float
    chain_deviation: float
    correlation: float
    steps: float
    answer: int
    longest: tuple[int, list[int], int]


# From GSM8K-Aug's first 3,000 rows (equation), and GSM8K's training split, whose questions are assumed to be as short.
# The longest rows are those of GSM8K's training split
ASSUMED = {
    "equation": Assumed(46.2, 13.9, 30.6, 16.2, correlation=0.52, steps=2.6, answer=3, longest=(194, [22] * 5, 2)),
    "text": Assumed(46.2, 13.9, 88.1, 41.7, correlation=0.52, steps=3.6, answer=3, longest=(129, [31] * 10, 1)),
}
STEPS_SPREAD = 2.5  # the mean number of steps in standard deviations
SHORTEST = {"question": 10, "step": 4}


def estimated_tokens(text: str) -> int:
    """Estimate the number of tokens of a text in published tokenizers."""
    return 1 + len(text) // 4


@dataclass(frozen=True)
class Lengths:
    examples: list[Example]  # a sample of the whole range of the rows' lengths
    longest: list[Example]  # as long as the longest rows
    rows: int
    tokens: float  # of question, steps and answer, over all rows
    vocabulary: int  # number of its tokens
    basis: str  # where the lengths come from
    count_tokens: TokenCounter = estimated_tokens

    @cached_property
    def by_length(self) -> list[Example]:
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
        except InputError as error:  # files in the folder that cannot be used
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


def _is_local(tokenizer: TokenizerSpec) -> bool:
    if tokenizer.pretrained is None:
        return True
    known = PUBLISHED.get(tokenizer.pretrained)
    return bool(known.folder and os.environ.get(known.folder)) if known else Path(tokenizer.pretrained).is_dir()


def _published(data: DataSpec, spec: TokenizerSpec) -> Lengths:
    dataset = get_dataset(data.train)
    if isinstance(dataset, Generated):  # its first rows are like any others
        count = card_rows(data)
        rows = [replace(row, key=str(i)) for i, row in enumerate(islice(dataset.generate("train"), SAMPLE))]
        records = to_records(data.train, data.form, "train", rows)
    else:
        records = load_records(data.train, data.form, "train")
        if data.validation_set:
            records = exclude_questions(records, load_records(data.validation_set, data.form, "test"))
        else:
            records, _ = split_validation(records, data.validation)
        count = min(len(records), data.limit or len(records))
    records = records[:count]
    sample = [records[i] for i in spread_over(len(records), SAMPLE)]
    large = sorted(records, key=lambda r: sum(map(len, (r.question, *r.steps, r.answer))), reverse=True)[: 4 * LONGEST]
    tokenizer = make_tokenizer(spec if _is_local(spec) else STAND_IN, records)

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
    if _is_local(spec):
        return Lengths(examples, longest, used, used * _mean(examples), len(tokenizer), basis, _counted(tokenizer))
    basis += f", with a trained tokenizer of {STAND_IN.trained} in the place of {spec.pretrained}"
    return Lengths(examples, longest, used, used * _mean(examples), _size(spec), basis)


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
    rows = card_rows(data)
    basis = f"the card's count and assumed lengths (question {mean.question:g}, chain {mean.chain:g} tokens on average)"
    longest = [example(i, *mean.longest) for i in range(LONGEST)]
    return Lengths(examples, longest, rows, rows * _mean(examples), _size(tokenizer), basis)


def card_rows(data: DataSpec) -> int:
    """Return how many rows a block trains on, according to its data set's card."""
    published = get_dataset(data.train).card.counts["train"]
    if data.validation_set:
        return min(published, data.limit or published)
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


def example(number: int, question: int, steps: Sequence[int], answer: int) -> Example:
    return Example(str(number), [TOKEN] * question, [[TOKEN] * step for step in steps], [TOKEN] * answer)
