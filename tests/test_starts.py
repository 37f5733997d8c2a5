"""Which row another row's training starts from."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.studies.runs import row_of
from benchmarks.studies.study import StudyError, load_study, parse_study
from methods.cot_sft import CoTSFT
from methods.registry import get_method
from small import MINIMAL, TWO_BLOCKS


def test_a_warm_start_has_the_same_backbone() -> None:
    rows = [
        {"id": "cot", "method": "cot_sft"},
        {"id": "coconut", "method": "coconut"},
        {"id": "coconut_llama", "method": "coconut", "backbone": {"name": "llama-tiny"}},
    ]
    runs = parse_study({**MINIMAL, "rows": rows}, "place.yaml").runs
    assert runs["equation/coconut/s0"].starts_from == "equation/cot/s0"
    start = runs["equation/coconut_llama/s0"].starts_from
    assert start == "equation/cot_sft/s0" and runs[start].backbone.name == "llama-tiny"
    rows[0]["id"] = "cot_sft"
    with pytest.raises(StudyError, match=r"'coconut_llama' starts from 'cot_sft'.*rename that row"):
        parse_study({**MINIMAL, "rows": rows}, "place.yaml")


def test_a_row_starts_from_the_one_that_it_names() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "long", "method": "cot_sft", "training": {"epochs": 9}},
        {"id": "short", "method": "cot_sft"},
        {"id": "silent", "method": "cot_sft", "options": {"steps": False}},
        {"id": "coconut", "method": "coconut"},
    ]

    def start(named: str | None) -> str | None:
        own = [*rows[:-1], rows[-1] | ({"starts_from": named} if named else {})]
        return parse_study({**MINIMAL, "rows": own}, "place.yaml").runs["equation/coconut/s0"].starts_from

    with pytest.raises(StudyError, match=r"'coconut' could start from long or short: name one in its `starts_from`"):
        start(None)
    assert [start(named) for named in ("long", "silent")] == ["equation/long/s0", "equation/silent/s0"]
    with pytest.raises(StudyError, match=r"from 'none', but from a row of cot_sft .*: long, short, silent"):
        start("none")
    rows[1]["starts_from"] = "long"
    with pytest.raises(StudyError, match=r"'short' starts from fresh weights: leave out `starts_from`"):
        start("long")


def test_a_row_starts_from_the_one_of_its_block() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "cot", "method": "cot_sft", "blocks": ["equation"]},
        {"id": "longer", "method": "cot_sft", "blocks": ["other"], "training": {"epochs": 9}},
        {"id": "coconut", "method": "coconut"},
    ]
    runs = parse_study({**MINIMAL, "blocks": TWO_BLOCKS, "rows": rows}, "place.yaml").runs
    assert [runs[f"{block}/coconut/s0"].starts_from for block in ("equation", "other")] == [
        "equation/cot/s0",
        "other/longer/s0",
    ]


def test_rows_that_start_from_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": "a", "method": "cot_sft"}, {"id": "b", "method": "cot_sft"}]
    monkeypatch.setattr(get_method("cot_sft"), "starts_from", lambda options: "cot_sft")
    with pytest.raises(StudyError, match=r"a -> b -> a: rows start from each other's weights in a circle"):
        parse_study({**MINIMAL, "rows": [rows[0] | {"starts_from": "b"}, rows[1] | {"starts_from": "a"}]}, "place.yaml")
    with pytest.raises(StudyError, match=r"a -> a: rows start"):
        parse_study({**MINIMAL, "rows": rows[:1]}, "place.yaml")


def test_options_that_are_the_default_ones_make_no_other_start() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "cot_sft", "method": "cot_sft", "options": {"steps": True}},
        {"id": "coconut", "method": "coconut"},
    ]
    assert parse_study({**MINIMAL, "rows": rows}, "place.yaml").runs["equation/coconut/s0"].starts_from
    blocks = [{**MINIMAL["blocks"][0], "options": {"cot_sft": {"steps": False}}}]
    with pytest.raises(StudyError, match="'coconut' starts from 'cot_sft' with default options"):
        parse_study({**MINIMAL, "blocks": blocks, "rows": rows}, "place.yaml")


def test_a_row_that_starts_from_a_skipped_one_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoTSFT, "skip", classmethod(lambda *_: "not for this"))
    study = parse_study({**MINIMAL, "rows": [{"id": "coconut", "method": "coconut"}]}, "place.yaml")
    assert not study.runs
    assert study.skipped(study.blocks[0], study.rows[0]) == "it starts from cot_sft, which is left out: not for this"


def test_a_run_that_starts_from_other_weights_is_not_shared() -> None:
    """Its own settings are those of the other study's run, and even its warm start has the same name."""
    content = load_study("stories_seeds").model_dump(mode="json", exclude_unset=True)
    (cot,) = [row for row in content["rows"] if row["id"] == "cot_sft"]
    cot["training"] = {"tokens": 1e5}
    sources = parse_study({**content, "name": "mine", "seeds": [0]}, "mine.yaml").sources
    own = {"cot_sft", "icot_si", "coconut", "colar", "codi"}
    assert {row_of(id) for id, source in sources.items() if source.study == "mine"} == own
    assert {row_of(id) for id, source in sources.items() if source.study == "stories"} >= {"answer_only", "marcos"}
