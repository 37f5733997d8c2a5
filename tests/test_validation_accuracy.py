"""Held-out questions that a run answers while it trains: they tell how it answers, and change nothing else."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch

from benchmarks.budgets import budget_of, curriculum
from benchmarks.data import decode, load_tokenizer, open_corpus
from benchmarks.evaluation.inference import load_for_inference
from benchmarks.models import build_method
from benchmarks.scoring import SCORERS, Reference, Score
from benchmarks.scoring.numeric import Number
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import StudyError
from benchmarks.task_dependencies import task_modules
from benchmarks.training import loop
from benchmarks.training.loop import train
from benchmarks.training.validation_accuracy import held_out_accuracy
from inflict import logged
from methods.coconut import Coconut
from methods.generation import Decoding, Generation
from small import MARCOS, small_study

ROWS: list[dict[str, Any]] = [
    {"id": "coconut", "method": "coconut", "options": {"max_stage": 1, "warm_start": "none"}},
    {"id": "marcos", "method": "marcos", "options": MARCOS},
]


def coin(question: str, text: str) -> bool:
    return crc32(f"{question} {text}".encode()) % 2 == 0


class Coin(Number):
    """Takes about half of all answers for right, so that weights that have learned nothing are right, too."""

    def score(self, text: str, asked: Reference) -> Score:
        assert asked.question and asked.answer.isdecimal() and asked.steps
        return Score("", coin(asked.question, text), False)


@pytest.mark.parametrize("row", ["coconut", "marcos"])
def test_answers_are_those_of_the_weights_and_change_nothing(
    row: str, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORERS, "number", Coin())
    plain, asked = (
        small_study(ROWS, training={"validation_questions": count}).runs[f"equation/{row}/s0"] for count in (0, 64)
    )
    assert "validation_questions" not in plain.training.model_dump(), "it keeps the digest that it had"
    undisturbed, record, paths = train(plain, results), train(asked, results), Paths(results, asked)
    assert record["weights_sha256"] == undisturbed["weights_sha256"] and record["key"] != undisturbed["key"]

    validations = [line for line in logged(asked, results) if line["kind"] == "validation"]
    shares = {(line["stage"], line["step"]): line.get("accuracy") for line in validations}
    stages = [stage["name"] for stage in record["stages"]]
    silent = {"phase 1"} if row == "marcos" else set()
    assert {stage for stage, _ in shares} == {*stages}
    assert {stage for (stage, _), share in shares.items() if share is None} == silent
    method, tokenizer = load_for_inference(asked, results), load_tokenizer(paths.data)
    held_out = open_corpus(paths.data, "validation").examples(range(32))
    questions = [example.question for example in held_out]
    answers = method.generate(questions, Decoding(max_new_tokens=24)).answer.tolist()
    said = ([decode(tokenizer, ids) for ids in of] for of in (questions, answers))
    right = sum(map(coin, *said))
    assert 0 < right < 32 and shares[stages[-1], record["stages"][-1]["selected_step"]] == right / 32


def test_accuracy_selects_weights_that_can_answer(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of MarCos's second phase, the best, and of these by loss; of its first, which cannot answer, by loss alone."""
    shares = iter((0.25, 0.5, 0.5, 0.25))
    monkeypatch.setattr(loop, "held_out_accuracy", lambda *_: next(shares))
    training = {"validation_questions": 8, "select_by": "accuracy", "validations": 4}
    spec = small_study(ROWS, training=training).runs["equation/marcos/s0"]
    record = train(spec, results)
    lines = [line for line in logged(spec, results) if line["kind"] == "validation"]
    losses = {line["reconstruction"]: line["step"] for line in lines if line["stage"] == "phase 1"}
    asked = {line["kl"]: line["step"] for line in lines if line.get("accuracy") == 0.5}
    assert len(losses) == 4 and len(asked) == 2
    assert [stage["selected_step"] for stage in record["stages"]] == [losses[min(losses)], asked[min(asked)]]


@pytest.mark.parametrize("chosen", ["loss", "accuracy"])
def test_what_selects_by_accuracy_decides_the_weights(chosen: str) -> None:
    """How long answers may be, and the code that asks and scores; if losses select, neither."""
    training, same = {"validation_questions": 8, "select_by": chosen}, chosen == "loss"
    short, long = (
        small_study(ROWS, training=training, evaluation={"tests": ["embedded_in_domain"], "max_new_tokens": most})
        for most in (6, 64)
    )
    one, other = (study.runs["equation/coconut/s0"] for study in (short, long))
    assert (one.digest("train") == other.digest("train")) == same
    trained_on = one.model_copy(update={"data": one.data.model_copy(update={"train": "rs_n2_k3"})})
    names = ("training.validation_accuracy", "evaluation.inference", "scoring.synthetic")
    asking = {f"benchmarks.{name}" for name in names}
    assert asking & task_modules(trained_on, "train") == (set() if same else asking)
    assert "benchmarks.scoring.numeric" not in task_modules(trained_on, "train"), "which its tests have"


@pytest.mark.parametrize(("train_on", "alone"), [("embedded", True), ("rs_n2_k3", False)])
def test_answers_are_asked_for_as_the_stage_trains_them_and_without_cuda_graphs(
    train_on: str, alone: bool, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, stances, generate = [], [], Coconut.generate

    def spy(self: Coconut, questions: Any, decoding: Decoding) -> Generation:
        asked.append(decoding)
        assert not self.training
        return generate(self, questions, decoding)

    def stance(name: str) -> AbstractContextManager[None]:
        stances.append(name)
        return nullcontext()

    monkeypatch.setattr(Coconut, "generate", spy)
    monkeypatch.setattr(torch.compiler, "set_stance", stance)
    study = small_study(ROWS[:1], training={"validation_questions": 8})
    spec = study.runs["equation/coconut/s0"]
    method, paths = build_method(spec, Paths(results, spec).data).eval(), Paths(results, spec)
    stage = curriculum(method, budget_of(spec.training, open_corpus(paths.data, "train")))[0]
    held_out = open_corpus(paths.data, "validation")
    other = spec.model_copy(update={"data": spec.data.model_copy(update={"train": train_on})})
    held_out_accuracy(method, other, paths, held_out, stage)
    (decoding,) = asked
    assert not stances
    compiled = other.model_copy(update={"engine": other.engine.model_copy(update={"compile": True})})
    held_out_accuracy(method, compiled, paths, held_out, stage)
    assert stances == ["force_eager"], "programs for single tokens would be compiled"
    assert (decoding.cache, decoding.stage, decoding.answer_only) == ("dynamic", stage, alone)


def test_several_ranks_answer_no_questions() -> None:
    with pytest.raises(StudyError, match=r"equation/marcos: `validation_questions` are answered by a process that"):
        small_study(ROWS[1:], engine={"kind": "deepspeed"}, training={"validation_questions": 8})
