"""How questions are batched, in what precision they are answered, and which answers are reused."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import checkpoints
from benchmarks.checkpoints import read_weights
from benchmarks.data import TestSet, decode, load_records, load_tokenizer
from benchmarks.evaluation import inference
from benchmarks.evaluation import task as evaluation
from benchmarks.evaluation.inference import batches_by_length, generate_batches, load_for_inference, output_ids
from benchmarks.files import BrokenRecord, read_json, read_parquet
from benchmarks.scoring import SCORERS, Reference, Score
from benchmarks.scoring.numeric import Number
from benchmarks.scoring.scorers import score_answers
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import DecodingSpec, EngineSpec, EvaluationSpec
from benchmarks.studies.study import StudyError
from benchmarks.training.loop import train
from benchmarks.verification.rescoring import wrong_answers
from fabricate import update_record
from methods.base import Example, Method
from methods.errors import InputError
from methods.generation import Cost, Decoding, Generation, Nats
from small import MARCOS, small_study
from tiny import make


@pytest.mark.parametrize(
    ("count", "size", "expected"), [(7, 3, [3, 4]), (8, 3, [3, 3, 2]), (1, 3, [1]), (3, 1, [1, 1, 1]), (6, 3, [3, 3])]
)
def test_no_question_is_left_alone_behind_full_batches(count: int, size: int, expected: list[int]) -> None:
    """A control gives a question the latents of another question of its batch."""
    questions = [[0] * (i % 4 + 1) for i in range(count)]
    batches = list(batches_by_length(questions, size))
    assert [len(batch) for batch in batches] == expected
    together = np.concatenate(batches)
    assert sorted(together.tolist()) == list(range(count))
    lengths = [len(questions[i]) for i in together]
    assert lengths == sorted(lengths, reverse=True)


def test_answers_with_latents_of_another_question_are_compared_with_its_own() -> None:
    test = TestSet("gsm8k", ["a", "b"], ["3 and 4?", "5 and 4?"], [[1], [2]], ["7", "9"], [1, 1], [False] * 2)
    said = pd.DataFrame({"test": "gsm8k", "id": ["a", "b"], "latents_of": ["b", "a"]})
    for texts, own, correct, follows in (
        (["7", "7.0"], ["9", "7"], [True, False], [False, True]),
        (["8", "no"], ["8.0", "no"], [False, False], [True, False]),  # wrong for both, and no answer
    ):
        frame = score_answers(said.assign(text=texts, with_own=own), {"gsm8k": test})
        assert (frame["correct"].tolist(), frame["follows"].tolist()) == (correct, follows)


def test_controls_need_more_than_one_question_at_a_time() -> None:
    decodings = {"default": {}, "exchanged": {"thoughts": "exchanged"}}
    settings = {"tests": ["embedded_in_domain"], "decodings": decodings}
    assert EvaluationSpec.model_validate(settings | {"batch_size": 2})
    with pytest.raises(ValueError, match="`exchanged` takes the latents of other questions of a batch"):
        EvaluationSpec.model_validate(settings | {"batch_size": 1})
    assert EvaluationSpec.model_validate({"tests": ["embedded_in_domain"], "batch_size": 1})


class Noting(nn.Module):
    """A stand-in for a method that answers with a question's first token and records the precision of its weights."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.seen: list[torch.dtype] = []

    def generate(self, questions: list[list[int]], decoding: Decoding) -> Generation:
        self.seen.append(self.layer.weight.dtype)
        return Generation(torch.tensor([[question[0], 0] for question in questions]), Cost())


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_all_questions_are_answered_with_weights_in_the_runs_precision(
    precision: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are cast once, because a CUDA graph needs them to stay in place."""
    engine = EngineSpec.model_validate({"precision": precision})
    settings = SimpleNamespace(id="run", engine=engine, evaluation=SimpleNamespace(batch_size=2))
    monkeypatch.setattr(inference, "trained_method", lambda *_: Noting())
    method = load_for_inference(cast(RunSpec, settings), Path())
    assert isinstance(method, Noting)
    weight = method.layer.weight
    questions = [[3], [4, 0, 0], [5, 0], [6, 0, 0, 0]]
    answered = {}
    for indices, generation in generate_batches(method, questions, Decoding(), cast(RunSpec, settings)):
        answered |= dict(zip(indices.tolist(), output_ids(generation).tolist(), strict=True))
    assert answered == {i: [[question[0], 0]] for i, question in enumerate(questions)}
    assert method.seen == [dtype] * 2 and method.layer.weight is weight


@pytest.mark.parametrize("answer", [torch.zeros(1, 4, dtype=torch.long), torch.zeros(2, 4), torch.zeros(2).long()])
def test_answers_that_are_no_rows_of_ids_are_named(answer: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make("cot_sft")
    monkeypatch.setattr(method, "generate", lambda *_: Generation(answer, Cost()))
    with pytest.raises(InputError, match=r"cot_sft: `generate` answers 2 questions by .* return ids \(2, L\)"):
        inference.generate(method, [[3], [4]], Decoding(), "float32")


@pytest.mark.parametrize(
    ("cost", "allowed", "said"),
    [
        (Cost(), 3, "`generate` answers with 4 tokens, and the decoding's `max_new_tokens` is 3"),
        (
            Cost(tokens=cast(int, torch.tensor(8))),
            4,
            "`generate` gives 'tokens' of its cost as Tensor: return a number",
        ),
    ],
)
def test_answers_that_are_too_long_or_cost_no_number_are_named(
    cost: Cost, allowed: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make("cot_sft")
    monkeypatch.setattr(method, "generate", lambda *_: Generation(torch.zeros(2, 4, dtype=torch.long), cost))
    with pytest.raises(InputError, match=f"cot_sft: {said}"):
        inference.generate(method, [[3], [4]], Decoding(max_new_tokens=allowed), "float32")


def test_nats_of_another_shape_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    method, examples = make("cot_sft"), [Example("a", [3], [], [4]), Example("b", [5], [], [6])]
    settings = SimpleNamespace(engine=EngineSpec(), evaluation=SimpleNamespace(batch_size=2))
    monkeypatch.setattr(method, "nats", lambda _: Nats(answer=torch.zeros(2, 1)))
    with pytest.raises(InputError, match=r"cot_sft: `nats` gives 'answer' of shape \(2, 1\) for 2 examples: .* \(2,\)"):
        inference.nats_of(method, examples, cast(RunSpec, settings))


class Lenient(Number):
    """An edited scorer, which accepts every answer."""

    def score(self, text: str, asked: Reference) -> Score:
        return replace(super().score(text, asked), correct=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the decodings for which a method is asked."""
    names: list[str] = []
    answer_tests = evaluation.answer_tests

    def noted(*arguments: Any) -> pd.DataFrame:
        names.append(arguments[5])
        return answer_tests(*arguments)

    monkeypatch.setattr(evaluation, "answer_tests", noted)
    return names


def ready(decodings: dict[str, Any], results: Path) -> RunSpec:
    """Return a trained run of the small study. It is trained once."""
    return trained({"id": "cot_sft", "method": "cot_sft"}, decodings, results)


def trained(row: dict[str, Any], decodings: dict[str, Any], results: Path) -> RunSpec:
    tests = {"tests": ["embedded_in_domain"], "max_new_tokens": 4}
    study = small_study([row], evaluation=tests | {"decodings": decodings})
    (spec,) = study.runs.values()
    train(spec, results)
    return spec


def test_what_was_answered_is_scored_again_and_not_asked_again(
    asked: list[str], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = ready({"default": {}}, results)
    first = evaluation.evaluate(greedy, results)
    monkeypatch.setitem(SCORERS, "number", Lenient())
    again = evaluation.evaluate(greedy, results)
    assert asked == ["default"] and first["answered"] == {}
    made = {"finished": again["answered"]["default"]["finished"]}  # when all was answered, before scoring
    assert again["answered"] == {"default": first["environment"] | made}, "where the answers are from is not forgotten"
    for test, old in first["decodings"]["default"]["tests"].items():
        new = again["decodings"]["default"]["tests"][test]
        assert new["accuracy"] == [1.0] > old["accuracy"]
        assert {key for key in new if new[key] != old[key]} == {"accuracy", "deduplicated"}
    assert first["decodings"]["default"].keys() == again["decodings"]["default"].keys()
    both = ready({"default": {}, "sampled": {"tokens": "sample", "seeds": 2}}, results)
    record = evaluation.evaluate(both, results)
    assert asked == ["default", "sampled"], "one decoding more is all that is left to ask"
    assert record["decodings"]["sampled"]["seeds"] == [0, 1] and record["answered"].keys() == {"default"}
    again = evaluation.evaluate(both, results)
    assert again["predictions"] == record["predictions"] and again["decodings"] == record["decodings"]


def test_one_trained_model_answers_with_several_options(
    asked: list[str], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is in memory at a time, and is kept as long as the next decoding has the same options."""
    loaded, kept = list[str](), list[weakref.ref[Method]]()

    def load(spec: RunSpec, results: Path, stage: int | None, decoding: str) -> Method:
        loaded.append(decoding)
        gc.collect()
        assert not any(method() for method in kept)
        method = load_for_inference(spec, results, stage, decoding)
        kept.append(weakref.ref(method))
        return method

    monkeypatch.setattr(evaluation, "load_for_inference", load)
    row = {"id": "codi", "method": "codi", "options": {"num_latents": 3}}
    decodings = {
        "default": {},
        "sampled": {"tokens": "sample", "seeds": 1},
        "none": {"options": {"num_latents": 0}, "only": ["codi"]},
        "one": {"options": {"num_latents": 1}, "only": ["codi"]},
    }
    record = evaluation.evaluate(trained(row, decodings, results), results)
    latents = {name: one["tests"]["embedded_in_domain"]["latent_steps"] for name, one in record["decodings"].items()}
    assert latents == {"default": 3, "sampled": 3, "none": 0, "one": 1}
    assert asked == [*decodings] and loaded == ["default", "none", "one"]
    assert record["decodings"]["one"]["decoding"]["options"] == {"num_latents": 1}


def test_a_decoding_changes_one_part_of_a_nested_option() -> None:
    row = {"id": "sim", "method": "sim_cot_codi", "options": {"base": {"num_latents": 3, "prj_dim": 8}}}
    decodings = {"default": {}, "one": {"options": {"base.num_latents": 1}}}
    study = small_study([row], evaluation={"tests": ["embedded_in_domain"], "decodings": decodings})
    (run,) = study.runs.values()
    trained, told = (run.with_decoding_options(name).options["base"] for name in decodings)
    assert told == trained | {"num_latents": 1} and trained["num_latents"] == 3 and told["prj_dim"] == 8


@pytest.mark.parametrize(
    ("decodings", "said"),
    [
        ({"x": {"options": {"prj_dim": 9}, "only": ["codi"]}}, "codi cannot change `prj_dim` .it can: num_latents."),
        ({"x": {"options": {"num_latents": 1}}}, r"cot_sft cannot change `num_latents` \(it can: none\); `only`"),
        ({"x": {"options": {"num_latents": "a"}, "only": ["codi"]}}, r"decoding 'x', options, num_latents: must be"),
        ({"default": {"options": {"num_latents": 1}}}, "`default` answers by the run's own options"),
        ({"x": {"thoughts": "mean", "options": {"num_latents": 1}}}, "it may differ in `thoughts` and `seeds` only"),
    ],
)
def test_a_decoding_changes_what_a_trained_method_can_change(decodings: dict[str, Any], said: str) -> None:
    rows = [{"id": name, "method": name} for name in ("cot_sft", "codi")]
    asked = {"tests": ["embedded_in_domain"], "decodings": {"default": {}} | decodings}
    with pytest.raises(StudyError, match=said):
        small_study(rows, evaluation=asked)


def test_kept_stages_are_asked_by_their_own_weights(asked: list[str], results: Path) -> None:
    """Each stage answers as it was trained to, and is recorded with the stage's name and end."""
    row = {"id": "coconut", "method": "coconut", "options": {"warm_start": "none"}, "training": {"keep_stages": True}}
    spec = trained(row, {"default": {}, "sampled": {"tokens": "sample", "seeds": 1}}, results)
    paths, record = Paths(results, spec), evaluation.evaluate(spec, results)
    assert asked == ["default", "sampled", *(f"default, stage {number}" for number in (1, 2, 3))]
    assert list(record["decodings"]) == ["default", "sampled", "default@0", "default@1", "default@2"]
    stages = read_json(paths.record("train"))["stages"]
    assert record["decodings"]["default"]["stage"]["name"] == "final stage"
    assert record["decodings"]["default@1"]["stage"] == {
        "name": "stage 2",
        "steps": stages[0]["steps"] + stages[1]["steps"],
        "epochs": stages[0]["epochs"] + stages[1]["epochs"],
    }
    latents = [record["decodings"][name]["tests"]["embedded_in_domain"]["latent_steps"] for name in record["decodings"]]
    assert latents == [6, 6, 2, 4, 6]
    held, own = load_for_inference(spec, results, 0).state_dict(), read_weights(paths.stage_weights(0))
    assert len(own) and all(torch.equal(held[name], tensor) for name, tensor in own.items())
    assert not list(wrong_answers(record, paths, "equation"))
    evaluation.evaluate(spec, results)
    assert len(asked) == 5
    path = paths.stage_weights(1)
    path.write_bytes(path.read_bytes()[:-1])
    paths.predictions("default@1").unlink()
    with pytest.raises(BrokenRecord, match=r"001\.safetensors is damaged"):
        evaluation.evaluate(spec, results)


def test_answers_of_others_are_not_kept(asked: list[str], results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from a damaged file, other weights, other code, or another decoding of the same name."""
    spec = ready({"default": {}}, results)
    paths = Paths(results, spec)
    whole = evaluation.evaluate(spec, results)["predictions"]
    path = paths.predictions("default")
    path.write_bytes(path.read_bytes()[:-1])
    assert evaluation.evaluate(spec, results)["predictions"] == whole and len(asked) == 2
    weights = {name: tensor * 1.01 for name, tensor in read_weights(paths.weights).items()}
    digest = checkpoints.save_weights(paths.weights, weights)
    update_record(paths.record("train"), weights_sha256=digest)
    evaluation.evaluate(spec, results)
    assert len(asked) == 3
    monkeypatch.setattr(evaluation, "code_digest", lambda *_: "edited")
    evaluation.evaluate(spec, results)
    assert len(asked) == 4
    evaluation.evaluate(spec, results)
    assert len(asked) == 4
    other = spec.evaluation.model_copy(update={"decodings": {"default": DecodingSpec(tokens="sample", seeds=1)}})
    evaluation.evaluate(spec.model_copy(update={"evaluation": other}), results)
    assert len(asked) == 5


def test_encoded_latents_are_those_of_the_tests_own_solutions(
    asked: list[str], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is drawn, so there is one answer to a question, whatever the number of seeds."""
    read, encode = dict[str, Example](), inference.encode_steps

    def noted(method: Method, examples: list[Example], precision: str) -> Tensor:
        read.update({example.id: example for example in examples})
        return encode(method, examples, precision)

    monkeypatch.setattr(inference, "encode_steps", noted)
    row = {"id": "marcos", "method": "marcos", "options": MARCOS}
    spec = trained(row, {"default": {"seeds": 1}, "encoded": {"latents": "encoded", "seeds": 3}}, results)
    spec = spec.model_copy(update={"evaluation": spec.evaluation.model_copy(update={"nats": 7})})
    record = evaluation.evaluate(spec, results)
    assert asked == ["default", "encoded"]
    nats = read_parquet(Paths(results, spec).nats, record["nats"], "`evaluate`")
    assert len(nats) == 7 and {len(values) for name in ("text", "latents") for values in nats[name]} == {3}
    assert nats["answer"].gt(0).to_numpy().all() and not list(wrong_answers(record, Paths(results, spec), "equation"))
    assert record["decodings"]["encoded"]["seeds"] == [0] and not record["decodings"]["encoded"]["stochastic"]
    tokenizer = load_tokenizer(Paths(results, spec).data)
    for test in spec.evaluation.tests:
        for record in load_records(test, "equation", "test"):
            example = read[record.id]
            assert [decode(tokenizer, step) for step in example.steps] == [*record.steps]
            assert decode(tokenizer, example.answer) == record.answer


def test_encoded_latents_need_an_encoder_and_steps(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decodings = {"default": {}, "encoded": {"latents": "encoded"}}
    rows = [{"id": "cot_sft", "method": "cot_sft"}, {"id": "marcos", "method": "marcos", "options": MARCOS}]
    rows.append({"id": "no_r", "method": "marcos", "options": {**MARCOS, "randomness": False}})
    study = small_study(rows, evaluation={"tests": ["embedded_in_domain"], "decodings": decodings})
    found = {run.row: [*run.evaluation.decodings] for run in study.runs.values()}
    assert found == {"cot_sft": ["default"], "marcos": ["default", "encoded"], "no_r": ["default"]}
    with pytest.raises(StudyError, match="`default` answers without the gold steps"):
        small_study(rows, evaluation={"tests": ["embedded_in_domain"], "decodings": {"default": decodings["encoded"]}})
    with pytest.raises(StudyError, match="`default` answers with a question's own latents"):
        small_study(rows, evaluation={"decodings": {"default": {"thoughts": "exchanged"}}})
    spec, made = study.runs["equation/marcos/s0"], dict[str, Any]()
    monkeypatch.setattr(evaluation, "trained_weights", lambda *_: "")
    monkeypatch.setattr(evaluation, "open_solutions", lambda *_: [Example("a", [1], [], [2])])
    with pytest.raises(InputError, match="embedded_in_domain has no written steps as equation"):
        evaluation.Evaluation(spec, results, made).solutions()


def test_a_question_that_is_longer_than_the_model_is_refused_with_both_numbers() -> None:
    """Before anything is computed: a table of positions would be read behind its end."""
    fields = {"vocab_size": 8, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 400}
    method: Any = nn.ModuleDict({"lm": AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **fields))})
    spec: Any = SimpleNamespace(id="equation/cot_sft/s0", evaluation=SimpleNamespace(batch_size=2))
    said = (
        r"s0 takes sequences of 400 tokens \(it has a table of 400 positions\), and a question \(800 tokens\) with its "
    )
    with pytest.raises(InputError, match=said + r"answer \(up to 24\) has 824, .* may add 128: ask a shorter question"):
        next(generate_batches(method, [[1] * 800, [1]], Decoding(max_new_tokens=24), spec))
