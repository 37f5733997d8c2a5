"""The studies of a small pretrained model: their data, the checkpoint that they start from, and their plans."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.data.loading import DataError, exclude_questions, load_records, questions
from benchmarks.data.sources import DATA_VARIABLE
from benchmarks.plan.costs import plan_run
from benchmarks.plan.lengths import lengths_of
from benchmarks.studies.specs import BackboneSpec, Form
from benchmarks.studies.study import load_study

DATA = os.environ.get(DATA_VARIABLE)
real = pytest.mark.skipif(not DATA, reason=f"{DATA_VARIABLE} names no folder with the published files")
VARIABLE = "MARCOS_BENCH_SMOLLM2"
UNIFORM = Path(DATA or "") / "gsm_hard" / "gsm_hard.uniform.jsonl"


@pytest.mark.skipif(not UNIFORM.is_file(), reason="no copy of GSM-Hard's rows")
def test_gsm_hard_is_read_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows have a checksum; the file here is made from a copy of them, with numbers as JSON has them."""
    rows = [json.loads(line) for line in UNIFORM.read_text(encoding="utf-8").splitlines()]
    place = tmp_path / "gsm_hard" / "gsmhardv2.jsonl"
    place.parent.mkdir()
    lines = [
        json.dumps({"input": r["question"], "code": "def solution():", "target": float(r["answer"])}) for r in rows
    ]
    place.write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    records = load_records("gsm_hard", "equation", "test")
    assert [(r.question, r.answer) for r in records] == [(r["question"], r["answer"]) for r in rows]
    answers = [record.answer for record in records]
    assert sum(answer.startswith("-") for answer in answers) == 146
    assert sum("." in answer for answer in answers) == 302
    place.write_text("\n".join([*lines[:-1], lines[0]]), encoding="utf-8")
    with pytest.raises(DataError, match="gsm_hard"):
        load_records("gsm_hard", "equation", "test")


@real
@pytest.mark.parametrize("form", ["equation", "text"])
def test_rows_that_validate_gsm8k_aug_are_no_training_rows(form: Form) -> None:
    usable, held_out = load_records("gsm8k", form, "train"), load_records("gsm8k_held_out", form, "test")
    assert len(held_out) == 500
    train = exclude_questions(usable, held_out)
    assert len(usable) - 500 <= len(train) <= len(usable) - 480, "some have no equation"
    augmented = questions(load_records("gsm8k_aug", "equation", "validation"))
    assert questions(held_out) == augmented and not questions(train) & augmented
    for name in ("smollm2", "smollm2_full"):
        assert {block.data.validation_set for block in load_study(name).blocks} == {"gsm8k_held_out"}


@real
@pytest.mark.parametrize("name", ["gsm8k", "svamp", "multiarith"])
def test_an_excerpt_has_rows_of_the_whole_set(name: str) -> None:
    whole = [(r.question, r.answer) for r in load_records(name, "equation", "test")]
    rows = [(r.question, r.answer) for r in load_records(f"{name}_200", "equation", "test")]
    assert len(rows) == 200 and set(rows) <= set(whole) and set(rows[:100]) <= set(whole[: len(whole) // 2])


def test_a_variable_may_name_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert load_study("smollm2").backbone.pretrained == "HuggingFaceTB/SmolLM2-135M"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    study = load_study("smollm2")
    assert study.backbone.pretrained == study.tokenizer.pretrained == str(tmp_path)
    assert study.backbone.revision is study.tokenizer.revision is None, "the folder is not of the hub's revision"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ValueError, match=f"{VARIABLE} names .*none, which is no folder: unset it"):
        BackboneSpec.model_validate({"pretrained": f"${{{VARIABLE}:-some/id}}"})


def test_the_plan_knows_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    study = load_study("smollm2")
    made = plan_run(study.runs["text/cot_sft/s0"], lengths_of(study, study.block("text"), tmp_path))
    assert made.parameters == 134_515_008 and made.tokens_per_epoch > 500_000
