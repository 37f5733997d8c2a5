"""Messages on wrong settings, in the words of a study file (where, what, and the fix), and on missing input."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from pydantic import BaseModel
from rich.text import Text

from benchmarks.analysis import explaining
from benchmarks.analysis.responses import Responses
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import EngineSpec, TrainingSpec
from benchmarks.studies.study import Study, load_study, study_path
from benchmarks.studies.validation_errors import StudyLoader, validate_settings
from commands import invoke
from methods.backbone import load_backbone
from methods.errors import InputError
from methods.registry import get_method

STUDY = """
name: minimal
title: Minimal
tokenizer: {trained: 512}
blocks: [{id: equation, title: Equation, data: {train: embedded}}]
rows: [{id: cot, method: cot_sft}]
training: {epochs: 1}
evaluation: {tests: [embedded_in_domain]}
"""


def content(changes: str) -> dict[str, Any]:
    return yaml.safe_load(STUDY) | yaml.load(changes, StudyLoader)


def refusal(model: type[BaseModel], content: Any, place: str = "") -> list[str]:
    with pytest.raises(InputError) as refused:
        validate_settings(model, content, place)
    return str(refused.value).splitlines()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("seed: [0]", "no key `seed`; did you mean `seeds`?"),
        ("rows: [{id: cot, methd: cot_sft, method: cot_sft}]", "row 'cot': no key `methd`; did you mean `method`?"),
        ("rows: [{method: cot_sft}]", "rows, entry 1: `id` is missing"),
        ("rows: [{id: cot}]", "row 'cot': `method` is missing"),
        (
            "rows: [{id: a b, method: cot_sft}]",
            "row 'a b', id: String should match pattern '^[A-Za-z0-9][A-Za-z0-9_.-]*$'",
        ),
        ("rows: [{id: cot, method: x, backbone: {nam: y}}]", "row 'cot', backbone: no key `nam`; did you mean `name`?"),
        ("seeds: [0, a]", "seeds, entry 2: must be a whole number, not 'a'"),
        ("evaluation: {tests: gsm8k}", "evaluation.tests: must be a list, not 'gsm8k'"),
        ("evaluation: {tests: []}", "evaluation.tests: Tuple should have at least 1 item after validation, not 0"),
        (
            "evaluation: {tests: [a], decodings: {default: {top: 1}}}",
            "evaluation.decodings.default: no key `top`; did you mean `top_p`?",
        ),
        ("title: 5", "title: must be text, not 5"),
        ("seeds: 2024-01-01", "seeds: must be a list, not '2024-01-01'"),
        ("training: {epochs: 1, tokens: 2}", "training: give exactly one budget: `epochs` or `tokens`"),
        ("training: {epochs: 1, learning_rate: '1e-3'}", "training.learning_rate: must be a number, not '1e-3'"),
        ("training: {epochs: 1, batch_size: 1e2}", "training.batch_size: must be a whole number, not 100.0"),
        (
            "training: {epochs: 1, betas: [0.9, 0.9, 0.9]}",
            "training.betas: Tuple should have at most 2 items after validation, not 3",
        ),
        ("training: {epochs: 1, betas: [0.9]}", "training.betas: entry 2 is missing"),
        ("training:", "training: must be keys with values (`key: value`), not null"),
        ("tokenizer: {trained: 100}", "tokenizer.trained: must be greater than or equal to 300 or 'words', not 100"),
        (
            "blocks: [{id: a, title: T, data: {train: x, form: txt}}]",
            "block 'a', data.form: must be 'equation', 'text' or 'lines', not 'txt'",
        ),
        ("threads: true", "threads: must be a whole number, not true"),
    ],
)
def test_a_study_is_refused_in_its_own_words(changes: str, message: str) -> None:
    assert refusal(Study, content(changes)) == [message]


@pytest.mark.parametrize("written", ["1e-3", "1.0e-3", "1E-3", "+1e-3", ".1e-2", "1.e-3"])
def test_a_power_of_ten_is_a_number_however_it_is_written(written: str) -> None:
    assert (
        validate_settings(
            TrainingSpec, yaml.load(f"{{epochs: 1, learning_rate: {written}}}", StudyLoader)
        ).learning_rate
        == 1e-3
    )
    for text in ("e3", "1e", "1e3x", "e-commerce"):
        assert yaml.load(text, StudyLoader) == text


def test_every_reason_has_a_line_and_begins_with_the_place() -> None:
    assert refusal(TrainingSpec, {"epochz": 1, "betas": 3}, "equation/cot, training") == [
        "equation/cot, training, betas: must be a list, not 3",
        "equation/cot, training: no key `epochz`; did you mean `epochs`?",
    ]
    assert refusal(EngineSpec, {"gpu": 2}, "a/b, engine") == ["a/b, engine: no key `gpu`; did you mean `gpus`?"]
    (line,) = refusal(EngineSpec, {"x": 2})
    assert line.startswith("no key `x`; known: kind, gpus, nodes, ")


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("coconut", {"max_stages": 2}, "no option `max_stages`; did you mean `max_stage`?"),
        (
            "coconut",
            {"control": "pase"},
            "control: must be 'none', 'no_cot', 'no_curriculum', 'no_thoughts', 'pause' or 'explicit', not 'pase'",
        ),
        ("marcos", {"sparsity": {"wieght": 1}}, "sparsity: no option `wieght`; did you mean `weight`?"),
        ("marcos", {"sparsity": {"weight": "1e-4"}}, "sparsity.weight: must be a number, not '1e-4'"),
    ],
)
def test_options_are_refused_alike(method: str, options: dict[str, Any], message: str) -> None:
    assert refusal(get_method(method).Options, options) == [message]


def test_a_file_that_holds_no_study_is_refused() -> None:
    assert refusal(Study, None) == ["the file is empty"]
    assert refusal(Study, ["x"]) == ['must be keys with values (`key: value`), not ["x"]']
    assert refusal(Study, {})[:2] == ["`name` is missing", "`title` is missing"]
    assert refusal(Study, {("a", "b"): 1}) == ["keys must be str, int, float, bool or None, not tuple"]


@pytest.mark.parametrize(
    "changes",
    [
        *("training: {epochs: e3}", "training: {epochs: '1'}", "training: {epochs: true}", "threads: true"),
        *("seeds: ['1']", "title: 1", "rows: [{id: a, method: b, indent: 'true'}]", "tables: [mian]"),
    ],
)
def test_the_schema_refuses_the_same(changes: str) -> None:
    schema = jsonschema.Draft202012Validator(Study.model_json_schema())
    assert refusal(Study, content(changes)) and not schema.is_valid(content(changes))
    taken = content("training: {epochs: 1, learning_rate: .5e-3, tokens: null}")
    assert validate_settings(Study, taken) and schema.is_valid(taken)


def test_a_shipped_study_is_taken_as_it_is_written() -> None:
    content = yaml.safe_load(study_path("paper_pretrained").read_text(encoding="utf-8"))
    assert validate_settings(Study, content) == Study.model_validate(content)


# -- commands that find nothing to read


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["table", "smoke"], "smoke/collect.json does not exist: run `marcos-bench collect smoke --results there`"),
        (
            ["figure", "smoke", "--figure", "dimensions"],
            "smoke/collect.json does not exist: run `marcos-bench collect smoke --results there`",
        ),
        (
            ["explain", "smoke", "--question", "1"],
            ": train one first, e.g. `marcos-bench train smoke text/cot_sft/s0 --results there`",
        ),
        (["collect", "smoke"], ": run the study first, or name the folder that holds its results (--results)"),
    ],
)
def test_a_command_names_the_one_to_run_before_it(
    arguments: list[str], fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also names the full path of the empty folder, which may not be the one that was meant."""
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments, "--results", "there", code=2)
    assert fix in done.output and str(tmp_path / "there") in done.output
    assert not list(tmp_path.iterdir())


def test_explain_shows_whole_ids_in_a_narrow_terminal_and_whole_lines_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    smoke, run = load_study("smoke"), "equation/marcos_wo_deep/s0"
    weights = Paths(tmp_path, smoke.runs[run]).weights
    weights.parent.mkdir(parents=True)
    weights.touch()
    found = explaining.Explanation("How many?", (Text("many words " * 9),) * 4, {})
    monkeypatch.setattr(explaining.TrainedModel, "load", lambda *_: None)
    monkeypatch.setattr(explaining, "explain_run", lambda *_: found)

    def lines(columns: str) -> list[list[str]]:
        monkeypatch.setenv("COLUMNS", columns) if columns else monkeypatch.delenv("COLUMNS", raising=False)
        explaining.explain(smoke, tmp_path, explaining.Question(number=1))
        shown = capsys.readouterr().out.splitlines()
        return [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown if line.startswith("│")]

    assert lines("80")[0][0] == run
    assert lines("") == [[run, *[("many words " * 9).strip()] * 4]], "a file has no width that lines must fit in"


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        (["2+5=7", "#### 7"], ("1. 2+5=7", "#### 7")),
        (["2+5=7\n1+1=2\n#### 7"], ("1. 2+5=7\n2. 1+1=2", "#### 7")),  # everything in one text
        (["#### 7"], ("", "#### 7")),
        (["\n\n"], ("", r"(no answer) '\n\n'")),  # an untrained model
        (["2+5", "<<<"], ("1. 2+5", "(no answer) '<<<'")),
    ],
)
def test_explain_says_where_there_is_no_answer(steps: list[str], shown: tuple[str, str]) -> None:
    asked = SimpleNamespace(name="embedded_in_domain", texts=["How many?"], answers=["7"], n_steps=[1])
    responses = Responses([steps], np.zeros(1), {})
    spec, words = load_study("smoke").runs["equation/cot_sft/s0"], None  # it has no latents to be put into words
    cells = explaining.row(spec, words, responses, responses.scores(asked)[0])  # type: ignore[arg-type]
    assert tuple(cell.plain for cell in cells[:2]) == shown


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("num_attention_heads: 0", "`num_attention_heads` of backbone qwen2-tiny is 0: it must be a positive"),
        ("hidden_size: 1.5", "`hidden_size` of backbone qwen2-tiny is 1.5: it must be a positive whole number"),
        (
            "hiden_size: 32",
            "the configuration of backbone qwen2-tiny has no field `hiden_size`; did you mean `hidden_size`?",
        ),
        ("num_layers: 2", "has no field `num_layers`"),
        ("num_attention_heads: 1", "backbone qwen2-tiny has 1 attention heads and 2 key-value heads: override"),
        (
            "attention_dropout: 0.1",
            "`attention_dropout` of backbone qwen2-tiny is 0.1: set it to 0, and give `training` a",
        ),
        ("initializer_range: 1", "`overrides` of backbone qwen2-tiny: Validation error for field 'initializer_range'"),
    ],
)
def test_fields_of_no_model_are_refused(field: str, message: str, tmp_path: Path) -> None:
    """A field that no configuration has would be stored, and another model trained than intended."""
    (path := tmp_path / "minimal.yaml").write_text(f"{STUDY}backbone: {{overrides: {{{field}}}}}\n", encoding="utf-8")
    done = invoke("plan", path, "--results", tmp_path, code=2)
    assert message in " ".join(done.output.split())


def test_fields_of_gpt2_have_usual_names_and_its_own() -> None:
    """Two names of one field would have it twice, and the first would win."""
    for name in ("n_embd", "hidden_size"):
        assert load_backbone("gpt2", 100, overrides={name: 24, "n_head": 2}).config.hidden_size == 24
        with pytest.raises(InputError, match=f"`{name}` of backbone gpt2 is -1: it must be a positive"):
            load_backbone("gpt2", 100, overrides={name: -1})
    with pytest.raises(InputError, match="of backbone gpt2 has no field `rope_theta`"):
        load_backbone("gpt2", 100, overrides={"rope_theta": 1.0})
