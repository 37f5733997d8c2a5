"""Every study that is shipped can be run, and its schema is the one that the models give."""

from __future__ import annotations

import json
import runpy

import pytest

from benchmarks.data import get_dataset
from benchmarks.paper import paper_table
from benchmarks.study import StudyError, load_study, parse_study, shipped
from conftest import ROOT
from methods.backbone import CONFIGURATIONS
from methods.registry import get_method

MINIMAL = {
    "name": "minimal",
    "title": "Minimal",
    "tokenizer": {"trained": 512},
    "blocks": [{"id": "equation", "title": "Equation", "data": {"train": "embedded"}}],
    "rows": [{"id": "cot", "method": "cot_sft"}],
    "training": {"epochs": 1},
    "evaluation": {"tests": ["embedded_in_domain"]},
}


def test_the_default_studies_are_shipped() -> None:
    assert {"quick", "smoke", "gsm8k_small"} <= set(shipped())


@pytest.mark.parametrize("name", shipped())
def test_shipped_study_is_valid_and_names_what_exists(name: str) -> None:
    study = load_study(name)
    assert study.name == name, "a study's results lie under its name"
    assert study.runs
    assert study.backbone.name in CONFIGURATIONS
    if study.paper:
        assert paper_table(study.paper)
    for block in study.blocks:
        card = get_dataset(block.data.train).card
        assert "train" in card.counts
        assert block.data.form in card.forms
    for test in study.evaluation.tests:
        assert "test" in get_dataset(test).card.counts


@pytest.mark.parametrize("name", shipped())
def test_runs_resolve_in_order_of_warm_starts(name: str) -> None:
    seen: set[str] = set()
    for id, run in load_study(name).runs.items():
        assert run.id == id
        assert get_method(run.method).Options.model_validate(run.options)
        assert run.starts_from is None or run.starts_from in seen
        assert "default" in run.evaluation.decodings
        seen.add(id)


def test_schema_is_up_to_date() -> None:
    generated = runpy.run_path(str(ROOT / "workflows/schemas/generate.py"))
    committed = json.loads(generated["TARGET"].read_text())
    assert committed == json.loads(json.dumps(generated["study_schema"]())), "run `make schema`"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": [0]}, "place.yaml is no valid study.*seed: Extra inputs"),
        ({"rows": [{"id": "cot", "method": "cot_stf"}]}, "did you mean 'cot_sft'"),
        ({"rows": [{"id": "cot", "method": "cot_sft", "options": {"stpes": True}}]}, "stpes: Extra inputs"),
        ({"rows": [MINIMAL["rows"][0], MINIMAL["rows"][0]]}, "two rows have the same id"),
        ({"rows": [{"id": "cot", "method": "cot_sft", "blocks": ["text"]}]}, r"unknown blocks \['text'\]"),
        ({"tokenizer": {}}, "exactly one tokenizer"),
        ({"training": {"epochs": 1, "tokens": 10}}, "exactly one budget"),
    ],
)
def test_invalid_study_is_refused_with_the_reason(change: dict[str, object], message: str) -> None:
    with pytest.raises(StudyError, match=f"(?s){message}"):
        parse_study({**MINIMAL, **change}, "place.yaml")


def test_unknown_study_lists_the_known_ones() -> None:
    with pytest.raises(StudyError, match="quick"):
        load_study("quik")
