"""Measuring what a study costs on a machine before training, with a tiny backbone and the embedded corpus."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.data import DATASETS
from benchmarks.engine import autocast
from benchmarks.evaluation.inference import temporarily_prepared
from benchmarks.files import read_json, write_json
from benchmarks.plan.hardware import gpu_of
from benchmarks.plan.lengths import card_rows
from benchmarks.rehearsal import excerpt
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import DataSpec, EngineSpec
from benchmarks.studies.study import StudyError, load_study
from benchmarks.tables.measured import measured_lines, render_measured
from benchmarks.timing import measuring
from benchmarks.timing.measuring import gold_examples, measure
from benchmarks.timing.speed import options_in
from commands import invoke, output, study_file
from conftest import needs_deepspeed
from methods.codi import CODI
from methods.generation import Decoding
from small import MARCOS, small_study
from tiny import make, questions

ROWS = [
    {"id": "cot_sft", "method": "cot_sft"},
    {"id": "coconut", "method": "coconut"},
    {"id": "marcos", "method": "marcos", "options": MARCOS},
]
EVALUATION = {"tests": ["embedded_in_domain"], "max_new_tokens": 8}
CHANGES: dict[str, Any] = {"paper": "main_0.5b", "timing": {"repeats": 2}, "evaluation": EVALUATION}


def test_measures_untrained_methods_and_writes_the_table(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "embedded_in_domain", excerpt(DATASETS["embedded_in_domain"], {"test": 16}))
    engine = {"micro_batch": 16, "micro_tokens": 90, "precision": "bfloat16"}
    study = small_study(ROWS, **CHANGES, training={"batch_size": 8}, engine=engine)
    study = study.model_copy(update={"name": "timed"})  # with data of its own
    path = study_file(study, tmp_path)
    cut = ["--set", "engine.micro_batch=4", "--set", "engine.micro_tokens=null"]
    options = ["--results", str(results), "--learn", "cot_sft", "--steps", "12", "--timed", "3", *cut]
    run = invoke("measure", path, "--name", "here", *options)
    folder = results / "measured/here"
    lines = {line["row"]: line for line in read_json(folder / "table_timed.json")["lines"]}
    assert list(lines) == ["cot_sft", "coconut", "marcos"]
    for line in lines.values():
        # A CPU has no known peak
        assert line["tokens_per_second"] > 0 and line["peak_memory_gb"] > 0 and line["mfu"] is None
        assert line["paper_gpu_hours"] and line["train_ratio"] == pytest.approx(
            line["paper_gpu_hours"] * 3600 / line["epoch_seconds"]
        )
        assert line["embedded_in_domain_seconds"] > 0
    assert lines["coconut"]["epoch_seconds"] > lines["cot_sft"]["epoch_seconds"]  # its warm start is included
    tokens = read_json(results / "timed/data/equation/done.json")["tokenizer"]["size"]
    assert lines["cot_sft"]["losses"][0] == pytest.approx(np.log(tokens), rel=0.01)  # the weights are untrained
    assert np.mean(lines["cot_sft"]["losses"][-3:]) < lines["cot_sft"]["losses"][0]
    assert lines["marcos"]["losses"] is None
    table = (folder / "table_timed.md").read_text(encoding="utf-8")
    assert "extrapolated" in table and "gold" in table and table in run.output
    assert "Timed in batches of 64, median of 2 passes after a whole pass over the set." in table
    assert "on one process, bfloat16, micro-batches of 4\n" in table  # the words of the footers of other tables
    record = read_json(folder / "runs/timed/equation/marcos.json")
    assert record["train"]["phases"].keys() == {"phase 1", "phase 2"}
    assert record["engine"]["micro_batch"] == 4 and "micro_tokens" not in record["engine"]
    assert not list(results.rglob("*.safetensors"))
    larger = study_file(study.model_copy(update={"name": "larger"}), tmp_path)  # with rows of the same names
    options = ["--results", str(results), "--row", "cot_sft", "--timed", "3", "--part", "steps", *cut]
    invoke("measure", larger, "--name", "here", *options)
    refused = output("measure", path, "--name", "here", *options, code=2)
    assert "has tests, learning of an earlier measurement" in " ".join(refused.split())
    again = {line["row"]: line for line in read_json(folder / "table_timed.json")["lines"]}
    assert list(again) == list(lines) and (folder / "table_larger.md").is_file()
    invoke("measure", path, "--name", "here", "--output", tmp_path / "kept", *options)
    assert (tmp_path / "kept/table_timed.md").is_file() and not (results / "reference").exists()


@needs_deepspeed
def test_the_engine_is_the_study_s(results: Path, tmp_path: Path) -> None:
    """Each row joins a process group of its own."""
    rows = [{"id": name, "method": "cot_sft"} for name in ("once", "again")]
    study = small_study(
        rows, engine={"kind": "deepspeed", "gpus": 8, "zero_stage": 3}, timing={"repeats": 1, "questions": 4}
    )
    records = [record for record in measure(study, results, tmp_path / "here", steps=1, timed=1) if record["train"]]
    assert [record["row"] for record in records] == ["once", "again"]
    assert all(record["train"]["epoch_seconds"] > 0 and record["engine"]["gpus"] == 1 for record in records)
    assert "ZeRO 3" in render_measured(study, tmp_path / "here")[0].read_text(encoding="utf-8")


def test_other_rows_stand_in_for_training_data_that_is_not_here(tmp_path: Path) -> None:
    """DeepSpeed is left out although the study asks for it. An epoch has the study's own number of rows."""
    engine = {"kind": "deepspeed", "gpus": 8, "zero_stage": 2, "offload": "optimizer"}
    study = small_study([{"id": "cot_sft", "method": "cot_sft"}], engine=engine, training={"epochs": 1})
    path = study_file(study, tmp_path)
    content = path.read_text(encoding="utf-8").replace('"train":"embedded"', '"train":"gsm8k_aug"')
    path.write_text(content.replace(',"limit":320', ""), encoding="utf-8")
    alone = [f"--set=engine.{setting}" for setting in ("kind=process", "zero_stage=0", "offload=none")]
    options = [*alone, "--stand-in", "embedded", "--repeats", "1", "--timed", "12", "--results", str(tmp_path)]
    run = invoke("measure", path, "--name", "here", *options)
    record = read_json(tmp_path / "measured/here/runs/small/equation/cot_sft.json")
    assert (record["training_data"], record["training_rows"], record["epoch_rows"]) == ("embedded", 19_968, 385_588)
    assert record["engine"]["kind"] == "process" and record["engine"]["offload"] == "none"
    phase = record["train"]["phases"]["train"]
    assert phase["steps_per_epoch"] == 12_050  # of 32 rows
    assert phase["epoch_seconds"] == pytest.approx(12_050 * phase["step_seconds_median"])
    assert [len(test["seconds"]) for test in record["tests"].values()] == [1, 1] and "64, one pass after" in run.output
    assert "19,968 rows of embedded, which stand in for the 385,588 of an epoch" in run.output.replace("\n", " ")
    assert not (tmp_path / "small").exists()
    assert card_rows(DataSpec(train="gsm8k_aug", limit=1000)) == 1000


def test_what_cannot_be_measured_is_said_at_once(results: Path) -> None:
    path = study_file(small_study(ROWS[1:2], name="refused"), results)
    call = ["measure", str(path), "--name", "here", "--results", str(results)]
    assert "none is measured: name some with `--learn`" in invoke(*call, "--part", "learning", code=2).output
    said = invoke(*call, "--set", "training.epochs.x=1", code=2).output
    assert "`epochs` is one value (2.0), so it has no `x`" in said.replace("\n", " ")
    said = invoke(*call, "--row", "cot", code=2).output
    assert "has no row cot; its rows are: cot_sft, coconut" in said.replace("\n", " ")


def test_settings_and_parts_are_those_asked_for(results: Path) -> None:
    """The record of a row that learns has what its method observes, and answers with all steps are timed."""
    path = study_file(small_study(ROWS[2:], name="chosen"), results)
    call = ["measure", str(path), "--name", "here", "--results", str(results), "--learn", "marcos", "--steps", "3"]
    call += ["--set", "options.posterior=noisy", "--set", "options.sparsity.weight=1e-6", "--set", "timing.questions=5"]
    call += ["--set", "evaluation.tests=[embedded_in_domain]", "--part", "learning", "--part", "tests"]
    run = invoke(*call, "--part", "profile")
    folder = results / "measured/here/runs/chosen/equation"
    record = read_json(folder / "marcos.json")
    assert record["train"] is None and record["settings"]["options.posterior"] == "noisy"
    assert len(record["learning"]["losses"]) == len(record["learning"]["observed"]["active_share"]) == 3
    assert record["learning"]["observed"]["lambda"][0] < 1e-5
    (test,) = record["tests"].values()
    assert test["n"] == test["all_steps"]["n"] == 5
    assert "addmm" in (folder / "marcos.profile.txt").read_text(encoding="utf-8")
    assert "All steps (ms/question)" in run.output and "options.posterior = noisy" in run.output
    for setting, message in {
        "name=chosen": "no setting is named 'name'",
        "options.K=3": "K",
        "engine": "NAME=VALUE",
    }.items():
        assert message in output(*call[:4], "--results", results, "--set", setting, code=2)


def test_a_row_that_is_not_there_is_named(tmp_path: Path) -> None:
    run = invoke("measure", study_file(small_study(ROWS), tmp_path), "--name", "here", "--row", "codi", code=2)
    assert "no row codi" in run.output


@pytest.mark.parametrize(
    ("rows", "learn", "measured"),
    [
        ([], [], {"cot_sft": 0, "coconut": 0, "marcos": 0}),
        ([], ["coconut"], {"cot_sft": 0, "coconut": 12, "marcos": 0}),
        (["marcos"], ["coconut"], {"coconut": 12, "marcos": 0}),
        (["marcos"], ["marcos"], {"marcos": 12}),
    ],
)
def test_a_row_whose_loss_is_asked_for_is_measured(
    rows: list[str], learn: list[str], measured: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "prepare", lambda *_: None)
    monkeypatch.setattr(measuring, "_measure_run", lambda spec, *rest: [{"row": spec.row, "train": rest[-2]}])
    records = measure(small_study(ROWS), tmp_path, tmp_path / "here", 12, 3, rows, learn)
    assert {record["row"]: record["train"] for record in records} == measured


def test_what_a_row_starts_from_is_measured_though_another_study_trains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is part of the row's epoch. Shared runs that no row starts from are left out."""
    first = small_study(ROWS)
    monkeypatch.setattr("benchmarks.studies.study.load_study", lambda name: first)
    monkeypatch.setattr(measuring, "prepare", lambda *_: None)
    monkeypatch.setattr(measuring, "_measure_run", lambda spec, *_: [{"row": spec.row, "train": True}])
    own = {"id": "pause", "method": "coconut", "options": {"control": "pause"}}
    second = small_study([*ROWS, own], name="second", shares=first.name)
    records = measure(second, tmp_path, tmp_path / "here", 12, 3)
    assert [record["row"] for record in records] == ["cot_sft", "pause"]
    with pytest.raises(StudyError, match="trains none of these rows itself: measure them in small"):
        list(measure(second, tmp_path, tmp_path / "here", 12, 3, rows=["marcos"]))


def test_gold_lengths_are_those_of_the_test_set(small_data: Path) -> None:
    study = small_study(ROWS)
    (spec, *_) = study.runs.values()
    method = make("cot_sft")
    examples = gold_examples(Paths(small_data, spec), "embedded_in_domain")
    assert all(example.steps and example.question and example.answer for example in examples)
    assert len({method.length(example).tokens for example in examples}) > 3


def test_an_epoch_includes_warm_starts_that_were_measured() -> None:
    study = small_study(ROWS)
    phase = {"step_seconds_median": 0.5, "tokens_per_step": 10, "flops_per_step": 989e12 / 10, "epoch_seconds": 7200}
    train = {"phases": {"train": phase | {"peak_memory_bytes": 2e9}}, "epoch_seconds": 7200}

    def record(row: str, start: str | None) -> dict[str, Any]:
        shared = {"block": "equation", "parameters": 1, "precision": "bfloat16", "learning": None, "tests": {}}
        made = {"environment": {"device": "NVIDIA H200"}, "train": train}
        return {"row": row, "starts_from": start, **shared, **made}

    alone = measured_lines(study, {("equation", "coconut"): record("coconut", "cot_sft")})
    assert alone[0]["gpu_hours"] is None
    both = {("equation", "cot_sft"): record("cot_sft", None), ("equation", "coconut"): record("coconut", "cot_sft")}
    assert [line["gpu_hours"] for line in measured_lines(study, both)] == [2.0, 4.0]
    assert [line["mfu"] for line in measured_lines(study, both)] == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize("name", ["paper_synthetic", "paper_long_range"])
def test_a_study_with_other_blocks_than_the_papers_table_has_a_table(tmp_path: Path, name: str) -> None:
    """The paper's table has one block for all of them, and each block is measured on its own test set."""
    study = load_study(name)
    phase = {"step_seconds_median": 0.5, "tokens_per_step": 10, "flops_per_step": 1e12, "epoch_seconds": 7200}
    engine = EngineSpec().model_dump()
    versions = dict.fromkeys(("cpu", "threads", "torch", "transformers", "commit"), "one")
    for block in study.blocks:
        tests = {test: {"seconds": [1.0, 3.0, 2.0], "n": 5, "n_total": 5} for test in study.tests_of(block)}
        record = {"study": name, "block": block.id, "row": "marcos", "starts_from": None, "parameters": 1}
        record |= {"precision": "float32", "batch_size": 8, "engine": engine, "learning": None, "tests": tests}
        record |= {"train": {"phases": {"train": phase | {"peak_memory_bytes": 2e9}}, "epoch_seconds": 7200}}
        record |= {"environment": {"device": "cpu", **versions}}
        record |= {"test_batch_size": 64, "repeats": 3, "test_warm_up": "a pass"}
        record |= {"training_data": block.data.train, "training_rows": 5, "epoch_rows": 5}
        write_json(tmp_path / f"runs/{name}/{block.id}/marcos.json", record)
    text = render_measured(study, tmp_path)[0].read_text(encoding="utf-8")
    shown = [line for line in text.splitlines() if line.startswith("| MarCos")]
    # GPU-hours and the block's own test set
    assert len(shown) == len(study.blocks) and all(line.count("2.00") == 2 for line in shown)


def test_the_committed_table_is_that_of_its_records(tmp_path: Path) -> None:
    """The study has gained a test set since. The table has those that were measured."""
    committed = Path(__file__).parents[1] / "results/reference/h200"
    shutil.copytree(committed / "runs", tmp_path / "runs")
    for name in ("paper_0.5b", "paper_0.5b_text", "paper_3b_text"):
        for path in render_measured(load_study(name), tmp_path):
            assert path.read_text(encoding="utf-8") == (committed / path.name).read_text(encoding="utf-8"), path.name


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),  # these have less memory than the GPU they are named after
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("NVIDIA GH200 480GB", None),
        ("cpu", None),
    ],
)
def test_a_gpu_is_known_by_the_name_that_pytorch_has_for_it(device: str, name: str | None) -> None:
    found = gpu_of(device)
    assert (found and found.name) == name


@torch.no_grad()
def test_linear_layers_in_bfloat16_change_no_number() -> None:
    method = make("codi", hidden_size=48).eval()
    assert isinstance(method, CODI)
    decoding = Decoding(max_new_tokens=8, trace=True)
    with autocast(method.device, "bfloat16"):
        plain = method.generate(questions(), decoding)
        with temporarily_prepared(method, EngineSpec(precision="bfloat16")):
            cast = method.generate(questions(), decoding)
            assert method.lm.lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(plain.answer, cast.answer)
    assert torch.equal(plain.trace["latents"], cast.trace["latents"])
    assert method.lm.lm_head.weight is method.lm.model.embed_tokens.weight
    assert {parameter.dtype for parameter in method.parameters()} == {torch.float32}


def test_a_method_is_measured_with_the_options_of_its_first_row_in_the_block_that_is_no_control() -> None:
    data = {"train": "embedded"}
    wide = {"id": "wide", "title": "Wide", "data": data, "options": {"coconut": {"thoughts_per_step": 3}}}
    rows = [
        {"id": "answer_only", "method": "cot_sft", "control": True, "options": {"steps": False}},
        {"id": "elsewhere", "method": "coconut", "blocks": ["other"], "options": {"max_stage": 1}},
        {"id": "coconut", "method": "coconut", "options": {"max_stage": 2}},
        {"id": "cot", "method": "cot_sft"},
    ]
    study = small_study(rows, blocks=[wide, {"id": "other", "title": "Other", "data": data}])
    assert options_in(study, study.block("wide"), "cot_sft") == {"steps": True}
    found = options_in(study, study.block("wide"), "coconut")
    assert (found["max_stage"], found["thoughts_per_step"]) == (2, 3)
    assert options_in(study, study.block("wide"), "codi") == {}
