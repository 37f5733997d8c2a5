"""A trained run that answers questions: all steps of its responses as text, and its latents."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from benchmarks.data import TestSet, decode, load_tokenizer, open_test
from benchmarks.data.tokenizers import encode_questions
from benchmarks.engine import pick_device
from benchmarks.evaluation.inference import (
    batches_by_length,
    decoding_of,
    encode_steps,
    generate_batches,
    load_for_inference,
    output_ids,
    prepare_for_inference,
)
from benchmarks.files import read_json
from benchmarks.models import CONFIG, SPEC, TOKENIZER, exported_method
from benchmarks.scoring import Score
from benchmarks.scoring.scorers import reads_steps, score_texts
from benchmarks.studies.paths import WEIGHTS, Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.validation_errors import validate_settings
from methods.base import Example, Method
from methods.errors import InputError
from methods.generation import Decoding

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Responses:
    """The answers to N questions."""

    steps: list[list[str]]  # as text, the answer last; only the answer if the method writes nothing else
    tokens: np.ndarray  # (N,) of all steps, without end-of-text
    trace: dict[str, np.ndarray]  # latents (N, ...) by name

    @property
    def answers(self) -> list[str]:
        return [steps[-1] for steps in self.steps]

    def scores(self, test: TestSet) -> list[Score]:
        """Return the scores of the answers, or of all steps if the test set's scorer reads them."""
        whole = ["\n".join(steps) for steps in self.steps]
        return score_texts(test, whole if reads_steps([test.name]) else self.answers)


@dataclass(frozen=True)
class TrainedModel:
    """The method of a trained run, ready to answer questions."""

    spec: RunSpec
    method: Method
    tokenizer: PreTrainedTokenizerBase
    data: Path

    @classmethod
    def load(cls, spec: RunSpec, results: Path) -> TrainedModel:
        torch.set_num_threads(spec.threads)
        paths = Paths(results, spec)
        return cls(spec, load_for_inference(spec, results), load_tokenizer(paths.data), paths.data)

    @classmethod
    def of_folder(cls, folder: Path) -> TrainedModel:
        """Load the ``model`` folder of a run, wherever it was copied to. Its layers are not compiled, as that takes
        longer than a few answers. Raise :class:`InputError` if a part is missing: transformers would look for it on the
        hub."""
        if missing := [part for part in (SPEC, TOKENIZER, CONFIG, WEIGHTS) if not (folder / part).exists()]:
            raise InputError(
                f"{folder} is no model folder, as it has no {missing[0]}: name the folder `model` of a trained run, or "
                "copy all of it again"
            )
        spec = validate_settings(RunSpec, read_json(folder / SPEC), str(folder / SPEC))
        torch.set_num_threads(spec.threads)
        method = exported_method(folder).to(pick_device())
        prepare_for_inference(method, spec.engine.model_copy(update={"compile": False}))
        return cls(spec, method, load_tokenizer(folder), folder)

    @property
    def decoding(self) -> Decoding:
        """The study's default decoding, with the first seed."""
        return decoding_of(self.spec.evaluation.decodings["default"], self.spec.evaluation, seed=0)

    def test(self, name: str, count: int | None = None) -> TestSet:
        """Return a test set, or ``count`` of its questions, spread evenly over it."""
        test = open_test(self.data, name)
        if count is None or count >= len(test):
            return test
        return test.select(evenly(len(test), count))

    def tokenize(self, question: str) -> list[int]:
        """Return the ids of a question that is in no test set, without the blanks around it. Warn of words that the
        tokenizer does not know; raise :class:`InputError` if there is nothing to read."""
        encode, unknown = partial(self.tokenizer.encode, add_special_tokens=False), self.tokenizer.unk_token_id
        if not question.strip():
            raise InputError("the question is empty")
        if unknown is not None and (words := [word for word in question.split() if unknown in encode(word)]):
            log.warning("%s: its tokenizer does not know %s", self.spec.id, ", ".join(map(repr, words)))
        return encode_questions(self.tokenizer, [question.strip()])[0]

    def encode(self, examples: Sequence[Example]) -> np.ndarray | None:
        """Return the latents (N, K, D) in which training encodes the examples' own steps, or None; see
        :meth:`Method.encode_steps`."""
        if not self.method.encodes_steps(self.method.options):
            return None
        rows: dict[int, Tensor] = {}
        for indices in batches_by_length([example.question for example in examples], self.spec.evaluation.batch_size):
            latents = encode_steps(self.method, [examples[i] for i in indices], self.spec.engine.precision)
            rows.update(zip(indices.tolist(), latents.float().cpu(), strict=True))
        return _stacked(rows)

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding, trace: bool = False) -> Responses:
        """Answer all questions. The results are in the order of the questions."""
        decoding = replace(decoding, answer_only=False, trace=trace)
        steps, tokens = [[""]] * len(questions), np.zeros(len(questions), dtype=np.int64)
        traces: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
        for indices, generation in generate_batches(self.method, questions, decoding, self.spec):
            ids = output_ids(generation)
            for index, parts in zip(indices, ids.tolist(), strict=True):
                steps[index] = [decode(self.tokenizer, part) for part in parts]
            tokens[indices] = (ids != self.method.vocabulary.eos).sum((1, 2)).numpy()
            for name, tensor in generation.trace.items():
                traces[name].update(zip(indices.tolist(), tensor.float().cpu(), strict=True))
        return Responses(steps, tokens, {name: _stacked(rows) for name, rows in traces.items()})


def evenly(length: int, count: int) -> list[int]:
    """Return ``count`` of ``length`` indices, spread evenly from the first to the last."""
    return np.linspace(0, length - 1, count).round().astype(int).tolist()


def _stacked(rows: Mapping[int, Tensor]) -> np.ndarray:
    """Return rows in the order of their numbers, (N, ...); shorter ones end in zeros."""
    return pad_sequence([rows[number] for number in sorted(rows)], batch_first=True).numpy()
