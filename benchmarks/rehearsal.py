"""A rehearsal of a whole study in minutes: its data, every row and every table, with budgets too small to learn.

It goes through the same functions as the study, in one process, and shows what would stop the study after hours: data
that are missing, a row that fails in its last stage, a decoding, a table. Batches are of two rows, an epoch has so few
that all stages of a run together take some twenty steps, and fifty questions are asked in all. Nothing is timed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
import torch
from tabulate import tabulate

from benchmarks.analysis.task import analyse
from benchmarks.console import Progress
from benchmarks.data import DATASETS, get_dataset, prepare
from benchmarks.data.corpus import spread_over
from benchmarks.data.records import Raw
from benchmarks.data.sources import DataSet, Generated
from benchmarks.data.store import require_known
from benchmarks.engine import pick_device
from benchmarks.evaluation.task import evaluate
from benchmarks.figures.base import NothingToDraw
from benchmarks.figures.render import FIGURE_BUILDERS
from benchmarks.figures.render import render as render_figure
from benchmarks.files import read_json, write_text
from benchmarks.plan import costs
from benchmarks.plan.costs import USABLE, RunPlan
from benchmarks.plan.hardware import GPU
from benchmarks.records import results as records
from benchmarks.report.report import report
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import Study, parse_study
from benchmarks.tables.render import render
from benchmarks.timing.steps import timed
from benchmarks.training import live_tracking
from benchmarks.training.loop import train
from methods.errors import InputError

log = logging.getLogger(__name__)

FOLDER = "rehearsal"  # in a folder of results
BATCH, STEPS, QUESTIONS = 2, 20, 50
ROWS, VALIDATION = 200, 4  # training rows that are read; rows that validate
TOKENS = 16  # of an answer, at most: weights that learned nothing seldom end one
MARK = "REHEARSAL, no result"
HEADER = ["Run", "Params", "GB", "Fits", "Hours, at least", "Hours, at the rehearsal's pace"]
LEGEND = (
    "At least: at the speed of large matrix products. The rehearsal's pace is that of batches of two, which is slower "
    "than that of the study's batches. Memory is that of `marcos-bench plan`; `marcos-bench measure` times real steps."
)
# Settings of training that a rehearsal has its own of
OWN = {"epochs", "tokens", "batch_size", "validations", "warmup_steps", "log_every", "checkpoint_seconds"}


def excerpt(whole: DataSet | Generated, count: Mapping[str, int]) -> Generated:
    """Return a data set with a few rows of another, ``count`` by split: the first for training, others evenly
    spaced."""

    def generate(split: str) -> list[Raw]:
        rows = whole.rows(split)
        return rows[: count[split]] if split == "train" else [rows[at] for at in spread_over(len(rows), count[split])]

    counts = {split: min(rows, count.get(split, rows)) for split, rows in whole.card.counts.items()}
    # Without files, since the rows of a file with a checksum have to be as many as the card says
    changed = {"counts": counts, "records": dict.fromkeys(counts), "files": {}, "version": MARK}
    return Generated(whole.card.model_copy(update=changed), generate)


@dataclass
class Rehearsal:
    """What a rehearsal found: the study as it was rehearsed, its folder, and notes for the reader."""

    study: Study
    folder: Path
    notes: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # of runs, tables and figures
    table: str = ""  # what the real thing takes on this machine
    seconds: float = 0.0

    def text(self) -> str:
        """Return what there is to say, as Markdown."""
        done = len(self.study.runs) - len(self.failed.keys() & self.study.runs.keys())
        parts = [
            f"# {self.study.title}",
            f"{done} of {len(self.study.runs)} runs, {self._made('table_*.md')} of {len(self.study.tables)} tables and "
            f"{self._made('figures/*.png')} of {len(self.study.figures)} figures in {self.seconds / 60:.1f} minutes; "
            f"they are in {self.folder}. No number in them is a result.",
        ]
        if self.failed:
            parts.append("\n".join(["Failed:", "", *(f"- {part}: {why}" for part, why in self.failed.items())]))
        if self.table:
            parts += [
                "Estimated cost of the full study on this machine (training only, one run after another):",
                self.table,
                LEGEND,
            ]
        return "\n\n".join([*parts, *self.notes])

    def _made(self, pattern: str) -> int:
        return len(list(self.folder.glob(pattern)))


def rehearse(study: Study, results: Path, backbone: str | None, stand_in: str) -> Rehearsal:
    """Rehearse a study in the folder ``rehearsal`` of ``results``. ``backbone`` replaces all of its backbones, and
    ``stand_in`` training data that are not at hand. Tests that are not at hand are left out. Raise InputError if
    nothing can be rehearsed."""
    began, place, machine, notes = time.monotonic(), results / FOLDER, this_machine(), list[str]()
    require_known(study)
    get_dataset(stand_in)  # though nothing may need it
    try:
        alone = study.model_dump(mode="json", exclude_unset=True) | {"shares": []}
        plans = costs.plan(parse_study(alone, study.name), results)
    except InputError as error:
        plans = []
        notes.append(f"There is no plan, and no estimate of memory and hours: {error}")
    small = rehearsal_study(study, plans, machine, backbone, stand_in, notes)
    require_known(small)
    os.environ[live_tracking.VARIABLE] = "no"  # the curves of twenty steps tell nothing
    rehearsal = Rehearsal(small, place / small.name, notes=notes)
    with excerpts(small):
        for block in small.blocks:
            prepare(small, block, place)
        _run_all(rehearsal, place)
        records.collect(small, place)
        for table in small.tables:
            with _noted(rehearsal, f"table {table}"):
                render(small, place, table)
        for figure in small.figures:
            with _noted(rehearsal, f"figure {figure}"):
                render_figure(small, place, figure, mark=MARK)
        with _noted(rehearsal, "report"):
            report(place)
    rehearsal.seconds = time.monotonic() - began
    lines = [_line(plan, machine, None if backbone else _pace(small, plan, place)) for plan in plans]
    rehearsal.table = tabulate(lines, HEADER, tablefmt="github", disable_numparse=True) if lines else ""
    write_text(rehearsal.folder / "rehearsal.md", rehearsal.text() + "\n")
    return rehearsal


def rehearsal_study(
    study: Study, plans: Sequence[RunPlan], machine: GPU, backbone: str | None, stand_in: str, notes: list[str]
) -> Study:
    """Return the study that is run in place of another one, and add to ``notes`` what it lacks."""
    content = study.model_dump(mode="json", exclude_unset=True) | {"shares": [], "timing": None}
    content.pop("published", None)  # outputs answer whole test sets
    content["name"] = f"{study.name}.rehearsal"  # the heading of its page of questions
    content["title"] = f"{MARK}: {study.title}"
    content["seeds"] = list(study.seeds[:1])
    content["threads"] = min(study.threads, os.cpu_count() or 1)
    content["analysis"] = content.get("analysis", {}) | {"questions": 4, "samples": 2}
    content["engine"] = _engine(content.get("engine", {}))
    if backbone:
        _replace_backbones(content, backbone)
    tests = [name for name in study.evaluation.tests if _at_hand(name, "test", notes)]
    if not tests:
        raise InputError(f"{study.name} cannot be rehearsed: none of its test sets is at hand ({' '.join(notes)})")
    content["evaluation"] |= {
        "tests": tests,
        "batch_size": min(8, study.evaluation.batch_size),
        "max_new_tokens": min(TOKENS, study.evaluation.max_new_tokens),
    }
    _leave_out_large_rows(content, [] if backbone else plans, machine, notes)
    if not content["rows"]:
        raise InputError(f"no row of {study.name} fits this machine: rehearse it with `--backbone qwen2-tiny`")
    for holder in (content["evaluation"], *content["rows"]):
        for decoding in holder.get("decodings", {}).values():
            decoding["seeds"] = 1
    epochs = {plan.run.row: plan.epochs for plan in plans}
    usual = study.training.epochs or mean(epochs.values() or [STEPS])
    content["training"] = _training(content["training"], usual)
    for row in content["rows"]:
        row["engine"] = _engine(row.get("engine", {}))
        training = row.get("training", {})
        row["training"] = _training(training, epochs.get(row["id"]) or training.get("epochs") or usual)
    for block in content["blocks"]:
        block["training"] = {key: value for key, value in block.get("training", {}).items() if key not in OWN}
        block["tests"] = [name for name in block.get("tests") or tests if name in tests] or tests
        if not _at_hand(block["data"]["train"], "train", notes):
            notes.append(f"Block {block['id']} is trained on {stand_in} instead.")
            block["data"]["train"] = stand_in
        block["data"].pop("validation_set", None)  # few of its questions are among so few rows
        of_block = [plan.epochs for plan in plans if plan.run.block == block["id"]] or [usual]
        steps = max(1, round(STEPS / mean(of_block)))
        block["data"] |= {"validation": VALIDATION, "limit": min(BATCH * steps, ROWS // 2)}
        if backbone:  # its tokenizer has longer questions
            block["data"]["max_question_tokens"] = max(block["data"].get("max_question_tokens", 256), 1024)
    return parse_study(content, f"the rehearsal of {study.name}")


def _leave_out_large_rows(content: dict[str, Any], plans: Sequence[RunPlan], machine: GPU, notes: list[str]) -> None:
    """Remove the rows of a study that do not fit the machine in however small batches."""
    memory = {plan.run.row: plan.memory for plan in plans}
    large = {row for row, one in memory.items() if one.weights + one.gradients + one.moments > machine.memory}
    if large:
        notes.append(
            f"Too large for this machine even in batches of {BATCH}, and left out: {', '.join(sorted(large))}."
        )
        content.pop("comparisons", None)  # they may name these rows
        if "tables" in content:
            content["tables"] = [table for table in content["tables"] if table != "comparisons"]
    content["rows"] = [row for row in content["rows"] if row["id"] not in large]
    blocks = [block["id"] for block in content["blocks"]]
    kept = {id for row in content["rows"] for id in row.get("blocks") or blocks}
    content["blocks"] = [block for block in content["blocks"] if block["id"] in kept]
    methods = {row["method"] for row in content["rows"]}
    for block in content["blocks"]:
        block["options"] = {name: options for name, options in block.get("options", {}).items() if name in methods}
    decodings = content["evaluation"].get("decodings", {})
    for name, decoding in [*decodings.items()]:
        if decoding.get("only"):
            decoding["only"] = [method for method in decoding["only"] if method in methods]
            if not decoding["only"]:
                del decodings[name]


def _replace_backbones(content: dict[str, Any], name: str) -> None:
    """Let all rows be trained from scratch with a backbone of this name, and with a tokenizer that is trained."""
    for holder in (content, *content["blocks"], *content["rows"]):
        holder.pop("backbone", None)
        holder.pop("tokenizer", None)
        holder.get("training", {}).pop("lora", None)  # a backbone from scratch has nothing that could stay as it is
    content |= {"backbone": {"name": name}, "tokenizer": {"trained": 512}}


def _engine(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine of one process that compiles and splits nothing."""
    kept = {"activation_checkpointing", "precision"} if torch.cuda.is_available() else {"activation_checkpointing"}
    return {key: value for key, value in settings.items() if key in kept}


def _training(settings: Mapping[str, Any], epochs: float) -> dict[str, Any]:
    rest = {key: value for key, value in settings.items() if key not in OWN}
    if rest.get("validation_questions"):
        rest["validation_questions"] = BATCH
    return rest | {"epochs": epochs, "batch_size": BATCH, "validations": 1, "log_every": 1}


def _at_hand(name: str, split: str, notes: list[str]) -> bool:
    """Return whether a data set can be read, and note why not."""
    dataset = get_dataset(name)
    try:
        dataset.rows(split)
    except InputError as error:
        notes.append(f"{dataset.card.title} ({split}) is not at hand: {error}.")
        return False
    return True


@contextmanager
def excerpts(study: Study) -> Iterator[None]:
    """Let data sets have few rows inside the block."""
    tests = {name: max(1, QUESTIONS // len(study.evaluation.tests)) for name in study.evaluation.tests}
    names = {*tests, *(block.data.train for block in study.blocks)}
    whole = {name: get_dataset(name) for name in names}
    try:
        for name, dataset in whole.items():
            DATASETS[name] = excerpt(dataset, {"train": ROWS, "test": tests.get(name, 1)})
        yield
    finally:
        DATASETS.update(whole)


def _run_all(rehearsal: Rehearsal, place: Path) -> None:
    """Train and evaluate all runs, and analyse those that a figure is drawn from."""
    study = rehearsal.study
    needed = {path for figure in study.figures for path in FIGURE_BUILDERS[figure].needs(study, place)}
    with Progress(f"{study.name} rehearsal", len(study.runs)) as progress:
        for spec in study.runs.values():
            with _noted(rehearsal, spec.id):
                train(spec, place)
                evaluate(spec, place)
                if any(path.is_relative_to(Paths(place, spec).run) for path in needed):
                    analyse(spec, place)
            progress.advance()


@contextmanager
def _noted(rehearsal: Rehearsal, part: str) -> Iterator[None]:
    """Note why a part failed, and go on with the others."""
    try:
        yield
    except NothingToDraw as error:
        rehearsal.notes.append(f"{part.capitalize()}: {error}")
    except InputError as error:
        rehearsal.failed[part] = str(error)
    except Exception as error:  # a new method may raise anything
        log.warning("%s failed", part, exc_info=True)
        rehearsal.failed[part] = f"{type(error).__name__}: {error}"


# -- the real thing on this machine


def this_machine() -> GPU:
    """Return the device that runs would be on, with its memory and, as peak, the speed of large matrix products."""
    if torch.cuda.is_available():
        memory, size, name = torch.cuda.get_device_properties(0).total_memory, 8192, torch.cuda.get_device_name(0)
    else:
        memory, size, name = psutil.virtual_memory().total, 512, f"this CPU ({torch.get_num_threads()} threads)"
    return GPU(name, memory, _speed(size, torch.bfloat16), _speed(size, torch.float32))


def _speed(size: int, dtype: torch.dtype) -> float:
    """Return the FLOP/s of products of two square matrices."""
    device = pick_device()
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    return 2.0 * size**3 / min(timed(device, lambda: matrix @ matrix)[1] for _ in range(4))


def _pace(small: Study, plan: RunPlan, place: Path) -> float | None:
    """Return the hours of the real run at the rehearsal's tokens per second; None if it was not trained."""
    spec = small.runs.get(plan.run.id)
    path = spec and Paths(place, spec).record("train")
    if not path or not path.is_file():
        return None
    return plan.tokens_per_epoch * plan.epochs / read_json(path)["tokens_per_second"] / 3600


def _line(plan: RunPlan, machine: GPU, pace: float | None) -> list[str]:
    needed = plan.memory.on(1, 0)
    hours = [plan.flops / machine.peak(plan.run.engine.precision) / 3600, pace]
    return [
        plan.run.id,
        f"{plan.parameters / 1e6:,.1f}M",
        f"{needed / 1e9:,.2f}",
        "yes" if needed <= USABLE * machine.memory else "no",
        *("" if one is None else f"{one:,.2f}" if one >= 0.01 else "< 0.01" for one in hours),
    ]
