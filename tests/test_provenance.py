"""The provenance in a table's footer."""

from __future__ import annotations

from pathlib import Path

from benchmarks.files import read_json, write_json
from benchmarks.records import results
from benchmarks.records.provenance import provenance
from benchmarks.records.results import StudyRecords, load_collected
from fabricate import collected, contents, fabricate
from test_tables import study


def test_the_foot_says_what_each_row_was_trained_for(tmp_path: Path) -> None:
    rows = [{"id": "cot", "method": "cot_sft", "training": {"batch_size": 8}}, {"id": "coconut", "method": "coconut"}]
    made = study(rows=rows)
    collected(made, tmp_path)
    records = load_collected(made, tmp_path)
    assert set(provenance(records)["Training, text"].split("; ")) == {
        "cot: 2.5 epochs in batches of 8, learning rate 0.0001",
        "coconut: 2.5 epochs in batches of 256, learning rate 0.0001 after cot",
    }


def test_the_foot_says_that_adapters_were_trained_and_what_selected_weights(tmp_path: Path) -> None:
    lora = {"rank": 8, "alpha": 16, "modules": ["q_proj", "v_proj"], "dropout": 0.1}
    training = {"lora": lora, "dropout": 0.2, "validation_questions": 50, "select_by": "accuracy"}
    rows = [{"id": "cot", "method": "cot_sft", "training": training}]
    made = study(rows=rows, backbone={"pretrained": "some/model"})
    collected(made, tmp_path)
    assert provenance(load_collected(made, tmp_path))["Training, text"] == (
        "2.5 epochs in batches of 256, learning rate 0.0001, LoRA of rank 8 (alpha 16, q_proj, v_proj, "
        "dropout 0.1), dropout 0.2, weights selected by accuracy on 50 held-out questions"
    )


def test_the_foot_names_runs_whose_method_was_edited_between_their_tasks(tmp_path: Path) -> None:
    fabricate(study(), tmp_path)
    paths = [tmp_path / f"fake/runs/text/{row}/s0" for row in ("cot", "marcos")]
    for path, codes in zip(paths, (("old", "new", None), ("old", "old", None)), strict=True):
        for stage, code in zip(("train", "evaluate", "time"), codes, strict=True):
            record = read_json(path / f"{stage}.json")
            record["environment"] |= {"code": code} if code else {}
            write_json(path / f"{stage}.json", record)
    results.collect(study(), tmp_path)
    assert (
        "* **Edited between tasks:** the method of text/cot/s0: run them again\n" in contents(study(), tmp_path)["md"]
    )


def test_the_foot_says_what_steps_were_computed_on(tmp_path: Path) -> None:
    engine = {"kind": "deepspeed", "gpus": 4, "zero_stage": 2, "precision": "bfloat16", "micro_batch": 8}
    engine |= {"offload": "optimizer"}
    cut = {"micro_tokens": 2000, "activation_checkpointing": True, "compile": True}
    rows = [{"id": "cot", "method": "cot_sft", "engine": engine}, {"id": "marcos", "method": "marcos", "engine": cut}]
    assert provenance(StudyRecords(study(), Path(), {}, {}))["Engine"] == "one process, float32"
    assert provenance(StudyRecords(study(rows=rows), Path(), {}, {}))["Engine"] == (
        "cot: 4 ranks of DeepSpeed, ZeRO 2, bfloat16, micro-batches of 8, optimizer states in CPU memory; "
        "marcos: one process, float32, cut to 2,000 tokens by the longest row, activations computed again, compiled"
    )
