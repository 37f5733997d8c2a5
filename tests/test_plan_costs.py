"""Plans of studies: hours, lengths, disk space, and what is refused."""

from __future__ import annotations

import functools
import logging
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.data import DataError, open_corpus, sources
from benchmarks.engine import PlaceInPhase, Ranks
from benchmarks.engine.base import ProcessEngine
from benchmarks.files import read_json
from benchmarks.plan import costs, report
from benchmarks.plan.costs import LAUNCH, USABLE, RunPlan, plan, plan_run
from benchmarks.plan.hardware import GPU, GPUS
from benchmarks.plan.lengths import example, expected_lengths, lengths_of, total_length
from benchmarks.plan.memory import Memory
from benchmarks.plan.report import render
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import DataSpec, EngineSpec, TokenizerSpec
from benchmarks.studies.study import Study, load_study
from benchmarks.training.loop import train
from commands import invoke, study_file
from methods.base import Budget
from methods.errors import InputError
from small import PLANNED, OneOf, small_study
from tiny import make

MEASURED = Path(__file__).parents[1] / "results/reference/h200"


@pytest.fixture(scope="module")
def prepared(small_data: Path) -> tuple[Study, Path]:
    return small_study(PLANNED), small_data


@pytest.fixture(scope="module")
def plans(prepared: tuple[Study, Path]) -> list[RunPlan]:
    return plan(*prepared)


def test_what_is_offloaded_counts_at_no_stage_that_could_be_set(prepared: tuple[Study, Path]) -> None:
    """Advice to set a stage then agrees with the stage's column. A lower stage may not support offloading."""
    _, folder = prepared
    engine = {"kind": "deepspeed", "gpus": 8, "zero_stage": 2, "offload": "optimizer"}
    study = small_study(PLANNED[:1], engine=engine)
    (made,) = plan(study, folder)
    made = replace(made, memory=Memory(4e9, 0.0, 4e9, 8e9, 1e9))
    text = render(study, [made], GPUS["H200"], 0.4)
    columns = [cell.strip() for cell in text.splitlines()[2].split("|")]
    assert columns[6:10] == ["17.0", "10.5", "5.5 *", "6.0"]


@pytest.fixture
def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all published files unavailable."""
    for variable in ("MARCOS_BENCH_DATA", "MARCOS_BENCH_TOKENIZER"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("batch", "micro", "ranks", "occupancy"),
    [(256, 14, 8, 32 / 41), (10, None, 8, 5 / 8), (32, 4, 8, 1)],
)
def test_hours_know_of_ranks_that_wait(
    prepared: tuple[Study, Path], batch: int, micro: int | None, ranks: int, occupancy: float
) -> None:
    """Ranks wait for the one with the most examples."""
    _, folder = prepared
    engine = {"kind": "deepspeed", "gpus": ranks, "micro_batch": micro}
    study = small_study(PLANNED[:1], engine=engine, training={"batch_size": batch})
    (made,) = plan(study, folder)
    method = make("cot_sft")
    (stage,) = method.stages(Budget(1.0, 1, (9,)))
    of_ranks = [
        ProcessEngine(method, stage, made.run.training, made.run.engine, PlaceInPhase(0, 1), OneOf(rank, ranks))
        for rank in range(ranks)
    ]
    shares = [engine.shard(engine.split_microbatches(np.arange(batch), longest=1)) for engine in of_ranks]
    assert sum(counts for share in shares for _, counts in share) == made.micro_batches
    most = max(sum(len(rows) for rows, counts in share if counts) for share in shares)
    assert batch / (ranks * most) == made.occupancy == occupancy
    gpu = GPU("made up", 100e9, 1e6, 1e6)  # so slow that no host is waited for
    assert made.hours(gpu, 0.5) == pytest.approx(made.flops / (ranks * occupancy * 0.5e6) / 3600)
    text = render(study, [made], gpu, 0.5)
    assert ("WARNING: ranks are idle" in text) == (occupancy < 1)
    assert f"idle for {1 - occupancy:.0%} " in text or occupancy == 1


@pytest.mark.parametrize("row", ["cot_sft", "marcos"])
def test_long_rows_are_cut_into_more_parts(row: str, prepared: tuple[Study, Path]) -> None:
    """A plan's memory is then that of the largest pass.

    This may be a pass of few long rows or, if a row has a large fixed cost, of all rows of a batch. Hours are for the
    passes that batches of all lengths take.
    """
    _, folder = prepared
    rows = [one for one in PLANNED if one["id"] == row]
    whole, cut = (plan(small_study(rows, engine={"micro_tokens": tokens}), folder)[0] for tokens in (None, 32 * 30))
    assert cut.flops == whole.flops and cut.layers == whole.layers
    assert whole.micro_batches == 1 < cut.micro_batches < 32
    fast = GPU("made up", 100e9, 1e15, 1e15)
    assert cut.hours(fast, 0.5) / whole.hours(fast, 0.5) == pytest.approx(cut.passes)
    lengths = lengths_of(small_study(rows), small_study(rows).blocks[0], folder)
    method = make(row)
    stage = method.stages(Budget(1.0, 1, (9,)))[0]
    engine = ProcessEngine(method, stage, cut.run.training, cut.run.engine, PlaceInPhase(0, 1), Ranks())
    passes = []
    least, most = (choose(map(total_length, lengths.longest + lengths.examples)) for choose in (min, max))
    for length in {*range(least, most, 15), 30, most}:  # of which 30 is the longest that is not cut
        if found := [one for one in (*lengths.examples, *lengths.longest) if total_length(one) == length]:
            count = max(map(len, engine.split_microbatches(np.arange(32), length)))
            only = replace(lengths, examples=found, longest=found)
            passes.append(plan_run(whole.run, only).bytes_per_example * count)
    assert cut.memory.activations == pytest.approx(max(passes), rel=0.05)
    assert cut.memory.activations < whole.memory.activations
    made = replace(cut, memory=replace(cut.memory, activations=32e9), bytes_per_example=1e9)
    left = GPU("made up", (made.needed - 32e9 + 8e9) / USABLE, 1.0, 1.0)
    assert made.advice(left) == "DOES NOT FIT: set micro_batch to 8"


@pytest.mark.parametrize(
    ("name", "rows"),
    [("paper_0.5b_text", ["cot_sft", "marcos"]), ("paper_3b", ["codi"]), ("authors_gpt2", ["codi"])],
)
def test_the_largest_of_the_paper_s_runs_fit_the_gpu_that_they_are_for(
    name: str, rows: list[str], without_files: None
) -> None:
    assert [row for row in rows if not _plan(name, row).fits(GPUS["H200"])] == []


@pytest.mark.parametrize(
    ("row", "again", "depth"),
    [("cot_sft", False, 1), ("cot_sft", True, 4 / 3), ("codi", False, 9)],
)
def test_hours_are_the_host_s_where_the_gpu_is_faster(
    prepared: tuple[Study, Path], row: str, again: bool, depth: float
) -> None:
    """For CODI, the teacher, the question, six latents and the answer are computed one after the other."""
    _, folder = prepared
    engine = {"kind": "deepspeed", "gpus": 2, "micro_batch": 4, "activation_checkpointing": again}
    study = small_study([one for one in PLANNED if one["id"] == row], engine=engine)
    (made,) = plan(study, folder)
    steps, layers = 2 * 10, 2
    assert made.layers == pytest.approx(steps * layers * depth)
    fast, slow = (GPU("made up", 100e9, peak, peak) for peak in (1e15, 1e6))
    assert made.passes == 4
    assert made.hours(fast, 0.5) == pytest.approx(made.layers * 4 * LAUNCH / 3600)
    assert made.hours(slow, 0.5) > 10 * made.hours(fast, 0.5)
    note = "the time that the host takes to launch"
    assert [note in render(study, [made], gpu, 0.5) for gpu in (fast, slow)] == [True, False]


def test_both_ways_to_fill_a_machine_are_compared(prepared: tuple[Study, Path]) -> None:
    """Side by side, a run waits for the one that it starts from; on all GPUs, each waits for the one before. Where the
    GPU is slow, all GPUs take an eighth of the hours; where hosts launch layers, they take as many."""
    _, folder = prepared
    study = small_study(PLANNED[:1] + [one for one in PLANNED if one["id"] in ("coconut", "codi")])
    plans = plan(study, folder)
    slow, fast = (GPU("made up", 100e9, peak, peak) for peak in (1e6, 1e15))
    hours = {made.run.row: made.hours(slow, 0.5) for made in plans}
    longest = max(hours["cot_sft"] + hours["coconut"], hours["codi"])
    assert report.makespan(plans, 8, slow, 0.5) == pytest.approx(longest)
    assert report.makespan(plans, 1, slow, 0.5) == pytest.approx(sum(hours.values()))
    text = render(study, plans, slow, 0.5)
    (line,) = [line for line in text.splitlines() if line.startswith("All runs on 8 x made up")]
    assert f"as the study has them, {longest:,.2f} hours on the clock and {sum(hours.values()):,.2f} GPU-hours" in line
    assert f"(MARCOS_BENCH_GPUS=8), {sum(hours.values()) / 8:,.2f} hours on the clock" in line
    launched = sum(made.hours(fast, 0.5) for made in plans)
    text = render(study, plans, fast, 0.5)
    assert f"(MARCOS_BENCH_GPUS=8), {launched:,.2f} hours on the clock and {8 * launched:,.2f} GPU-hours" in text


def test_runs_that_keep_their_engine_are_not_said_to_take_all_gpus(prepared: tuple[Study, Path]) -> None:
    _, folder = prepared
    asked = {"training": {"validation_questions": 8}}
    plans = plan(small_study([PLANNED[0] | asked, PLANNED[1]]), folder)
    gpu = GPU("made up", 100e9, 1e15, 1e15)
    assert f"{plans[0].run.id} keep their engine, as they answer" in render(small_study(PLANNED[:2]), plans, gpu, 0.5)
    text = render(small_study(PLANNED[:1]), plans[:1], gpu, 0.5)
    assert "MARCOS_BENCH_GPUS changes none of them" in text and "one after the other" not in text


def test_hours_are_near_those_that_a_gpu_took(without_files: None) -> None:
    """This is checked at 0.5B on an H200, whether the time is the GPU's or the host's.

    By FLOPs alone, two of the five estimates would be a fifth of the measured time.
    """
    records = {file.stem: read_json(file) for file in sorted(MEASURED.glob("runs/paper_0.5b/equation/*.json"))}
    del records["marcos"]  # measured without compilation, which the plan takes for granted
    shares = {}
    for row in records:
        made = _plan("paper_0.5b", row)
        run = made.run.model_copy(update={"engine": EngineSpec(**records[row]["engine"])})
        hours = replace(made, run=run).hours(GPUS["H200"], 0.4)
        shares[row] = records[row]["train"]["epoch_seconds"] / (3600 * hours / made.epochs)
    assert len(shares) == 5 and all(1.0 < share < 1.5 for share in shares.values()), shares


# -- the command


def test_memory_is_for_the_longest_rows_of_all(prepared: tuple[Study, Path], tmp_path: Path) -> None:
    """They are those of prepared data, or else of all rows that would be prepared. The sample may not contain them."""
    study, results = prepared
    (block,) = study.blocks
    lengths, corpus = lengths_of(study, block, results), open_corpus(results / "small/data/equation", "train")
    assert sorted(map(total_length, lengths.longest)) == sorted(corpus.lengths)[-len(lengths.longest) :]
    assert len(lengths.longest) < len(corpus)
    found = lengths_of(study, block, tmp_path)
    assert max(map(total_length, found.longest)) >= max(map(total_length, found.examples))
    run = study.runs["equation/cot_sft/s0"]
    other = replace(lengths, longest=[example(0, 200, [20] * 5, 4)] * len(lengths.longest))
    usual, large = plan_run(run, lengths), plan_run(run, other)
    assert large.memory.activations > 1.5 * usual.memory.activations and large.flops == usual.flops


def test_data_that_were_prepared_for_other_settings_are_not_planned_with(prepared: tuple[Study, Path]) -> None:
    study, results = prepared
    (block,) = study.blocks
    fewer = small_study(PLANNED, blocks=[{**block.model_dump(), "data": {**block.data.model_dump(), "limit": 40}}])
    assert lengths_of(study, block, results).basis == "the prepared data"
    found = lengths_of(fewer, fewer.blocks[0], results)
    assert found.rows == 40 and found.basis == "40 of 40 rows"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"train": "embedded", "validation": 32_000},
            "32,000 validation rows cannot be split off the 20,000 rows of emb",
        ),
        ({"train": "gsm8k", "validation": 7_473}, "7,473 validation rows cannot be split off the 7,473 rows of gsm8k"),
        ({"train": "embedded", "max_question_tokens": 3}, "has 3 tokens or fewer; raise `max_question_tokens`"),
    ],
)
def test_data_of_which_nothing_is_left_to_train_on_have_no_plan(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        expected_lengths(DataSpec(**data), TokenizerSpec(trained=512))


def test_a_run_that_cannot_be_planned_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its method is built on a backbone of one layer, and may refuse that."""

    def refuse(*_: object) -> RunPlan:
        raise InputError("too few layers")

    monkeypatch.setattr(costs, "plan_run", refuse)
    with pytest.raises(InputError, match=r"^equation/cot_sft/s0: too few layers$"):
        plan(small_study(PLANNED[:1]), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": {"pretrained": "Qwen/Qwen2.5-0.5B"}}, r"cannot tell the size of Qwen/Qwen2\.5-0\.5B: beside"),
        ({"tokenizer": {"pretrained": "some/tokenizer"}}, r"the size of its vocabulary is not known .* data small"),
    ],
)
def test_no_size_is_made_up(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        plan(small_study(PLANNED[:1], **changes), tmp_path)


def test_a_table_of_the_paper_that_there_is_none_of_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"numbers\.yaml has no table 'main_1b': .* is one of main_0\.5b"):
        plan(small_study(PLANNED, paper="main_1b"), tmp_path)


def test_a_plan_downloads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """This includes a data set that the folder of published files lacks, which would otherwise be read from the hub."""
    monkeypatch.setenv(sources.DATA_VARIABLE, str(tmp_path))
    monkeypatch.setattr(sources, "load_dataset", lambda *_, **__: pytest.fail("asked the hub"))
    found = expected_lengths(DataSpec(train="gsm8k"), TokenizerSpec(trained=512))
    assert found.basis.startswith("the card's count and assumed lengths")
    with pytest.raises(DataError, match="'multiarith' has no train split; it has: test"):
        expected_lengths(DataSpec(train="multiarith"), TokenizerSpec(trained=512))
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/train.jsonl").write_text("cut", encoding="utf-8")  # a file that cannot be used counts as missing
    assert expected_lengths(DataSpec(train="gsm8k"), TokenizerSpec(trained=512)).basis == found.basis
    assert "lengths are assumed, because the published rows cannot be read: " in caplog.text


def test_parameters_are_those_of_the_paper(without_files: None) -> None:
    """Ours lack two parts of the paper's parameters.

    These are the token table of the thinking layer, 136,134,656 parameters that are never used, and the rows of the
    neuron matrix in the place of R, 16 x 896.
    """
    found = {row: _plan("paper_0.5b", row) for row in ("cot_sft", "marcos", "marcos_wo_r")}
    assert found["cot_sft"].parameters == 494_032_768
    assert found["marcos"].parameters == 2_426_696_320 - 136_134_656 - 16 * 896
    assert found["marcos_wo_r"].parameters == 1_482_196_864 - 136_134_656
    assert found["marcos"].epochs == 20 and found["marcos_wo_r"].epochs == 10
    assert found["cot_sft"].basis.startswith("the card's count and assumed lengths")


@functools.cache
def _plan(name: str, row: str) -> RunPlan:
    """Return the plan of a row, by assumed lengths."""
    study = load_study(name)
    block = study.blocks[0]
    return plan_run(study.runs[f"{block.id}/{row}/s0"], expected_lengths(block.data, study.tokenizer_of(block)))


def test_a_study_of_the_paper_has_a_plan_and_what_does_not_fit_the_fix(without_files: None, tmp_path: Path) -> None:
    output = invoke("plan", "paper_3b_text", "--gpu", "RTX-4090", "--results", tmp_path, code=1).output
    assert "DOES NOT FIT: " in output
    assert "cot_sft" in output.rpartition("DOES NOT FIT into the memory of RTX-4090: ")[2]
    study = load_study("paper_3b_text")
    for id, source in study.sources.items():
        assert (f"| {id} " in output) == (source.study == study.name), "planned here, or named as another study's"
    assert "GPU-hours" in output and "Lengths: " in output
    assert "within 20% of what training takes on a CPU" in output and "On an H200 five methods" in output
    small = study_file(small_study(PLANNED[:1]), tmp_path)
    assert "small on 1 x H200" in invoke("plan", small, "--gpu", "h200", "--results", tmp_path).output
    output = invoke("plan", "smoke", "--gpu", "H300", "--results", tmp_path, code=2).output
    assert all(name in output for name in GPUS)


def test_a_plan_says_nothing_that_is_not_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers would warn of the way in which checkpointing is enabled, and of a trunk without a token table."""
    study = small_study(PLANNED[-1:], engine={"activation_checkpointing": True})
    logged: list[str] = []
    monkeypatch.setattr(logging.getLogger("transformers"), "handle", lambda record: logged.append(record.getMessage()))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        invoke("plan", study_file(study, tmp_path), "--results", tmp_path)
    assert logged == [] and not [one for one in warned if issubclass(one.category, FutureWarning)]


def test_disk_is_what_a_run_takes_while_it_trains(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate is a close upper bound: checkpoints, selected weights of both phases, and features of all rows."""
    study = small_study([PLANNED[-1]])
    run = study.runs["equation/marcos/s0"]
    folder, sizes, features = Paths(results, run).run, [0], [0]
    replaced = os.replace

    def measured(source: Path, target: Path) -> None:
        files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".jsonl"]
        sizes.append(sum(path.stat().st_size for path in files))
        features.append(sum(path.stat().st_size for path in files if "features-train" in path.parent.name))
        replaced(source, target)

    monkeypatch.setattr(os, "replace", measured)
    train(run, results)
    lengths = lengths_of(study, study.blocks[0], results)
    made, twice = (plan_run(run, replace(lengths, rows=count * lengths.rows)) for count in (1, 2))
    assert max(sizes) < made.disk < 1.3 * max(sizes)
    assert twice.disk - made.disk == max(features) > 0


def test_kept_stages_stay_on_the_disk(plans: list[RunPlan], prepared: tuple[Study, Path]) -> None:
    stages = {"cot_sft": 1, "coconut": 4, "marcos": 1}  # the first of MarCos's phases cannot answer
    rows = [row | {"training": {"keep_stages": True}} for row in PLANNED if row["id"] in stages]
    own, kept = ({one.run.row: one for one in made} for made in (plans, plan(small_study(rows), prepared[1])))
    for row, count in stages.items():
        assert own[row].left == own[row].memory.weights and kept[row].left == count * own[row].left
        assert kept[row].disk - own[row].disk == kept[row].left - own[row].left


def test_a_variable_that_is_empty_names_no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as not set, as where data are prepared: a plan downloads nothing."""
    monkeypatch.setenv("MARCOS_BENCH_TOKENIZER", "")
    found = expected_lengths(DataSpec(train="embedded"), TokenizerSpec(pretrained="qwen2.5"))
    assert found.basis.endswith("qwen2.5")
