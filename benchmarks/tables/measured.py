"""The table of measured costs, beside the paper's Train and Test columns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from benchmarks.files import read_json, write_texts
from benchmarks.paper.numbers import PaperRow, paper_table
from benchmarks.plan.hardware import gpu_of
from benchmarks.records.provenance import by_adapters, measured_on, on_engine
from benchmarks.studies.specs import EngineSpec, LoraSpec
from benchmarks.studies.study import Study
from benchmarks.tables.base import cell, count, seconds
from benchmarks.tables.markup import Cell, Column, Document, Grid, Line, markdown

PAPER_GPUS = 8
TRAINING = (
    "Weights are untrained. Step, tokens/s and model FLOPs utilisation (MFU) are measured in the training phase that "
    "takes most of an epoch; MFU counts the FLOPs of the matrix products as computed, padding included, against the "
    "GPU's dense peak; what the backward pass computes again counts too. Peak: memory of the phase that takes most or, "
    "on a CPU, of the process so far, rows before it included.",
    "Epoch and GPU-h are extrapolated: the median step time multiplied by the steps of an epoch, summed over all "
    "phases, warm starts included. The paper's GPU-h are its hours times its 8 GPUs (H200).",
)
# Milliseconds per question of a part of a test set; and of answers with all their steps, by methods that can skip them
FURTHER = {"_question_ms": "ms/question", "_steps_question_ms": "All steps (ms/question)"}
TESTS = (
    "Test: seconds for the whole test set, in the default decoding; answers are forced to the lengths of the gold "
    "ones, since untrained weights do not stop by themselves. Where a test set has no written steps, the chain is as "
    "long as that of a training example with a question of about the same length."
)


def render_measured(study: Study, folder: Path) -> list[Path]:
    """Write the table of a study's records in ``folder`` as Markdown, CSV and JSON."""
    runs = [read_json(path) for path in sorted((folder / "runs").glob("*/*/*.json"))]
    runs = [run for run in runs if run["study"] == study.name]
    records = {(run["block"], run["row"]): run for run in runs}
    lines = measured_lines(study, records)
    document = _document(study, lines, runs)
    numbers = {"study": study.name, "lines": lines, "legend": document.legend, "notes": document.notes}
    texts = {
        f"table_{study.name}.md": markdown(document),
        f"table_{study.name}.csv": pd.DataFrame(lines).to_csv(index=False),
        f"table_{study.name}.json": json.dumps(numbers, indent=1) + "\n",
    }
    return write_texts(folder, texts)


def measured_lines(study: Study, records: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line per measured row, in the study's order, with the paper's numbers if its table has the row."""
    lines = []
    for block in study.blocks:
        printed = paper_table(study.paper).rows(block.id) if study.paper else {}
        for row in study.rows:
            if record := records.get((block.id, row.id)):
                line = {"block": block.id, "row": row.id, "title": study.row_titles[row.id]}
                line |= {"parameters": record["parameters"], **_training(record, records)}
                line |= {"losses": record["learning"] and record["learning"]["losses"]}
                lines.append(line | _beside(printed.get(row.id), line) | _tests(record, printed.get(row.id)))
    return lines


def _training(record: dict[str, Any], records: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    """Return the costs of training, as far as they were measured."""
    if not record["train"]:
        return {}
    phase = max(record["train"]["phases"].values(), key=lambda phase: phase["epoch_seconds"])
    step = phase["step_seconds_median"]
    gpu = gpu_of(record["environment"]["device"])
    epoch = _epoch_seconds(record, records)
    return {
        "step_seconds": step,
        "tokens_per_second": phase["tokens_per_step"] / step,
        "mfu": phase["flops_per_step"] / step / gpu.peak(record["precision"]) if gpu else None,
        "peak_memory_gb": max(p["peak_memory_bytes"] for p in record["train"]["phases"].values()) / 1e9,
        "epoch_seconds": epoch,
        "gpu_hours": None if epoch is None else epoch / 3600,
    }


def _epoch_seconds(record: dict[str, Any], records: dict[tuple[str, str], dict[str, Any]]) -> float | None:
    """Return the seconds of one epoch of a row and of all that it starts from, or None if one of them was not timed."""
    chain: dict[str, Any] | None = record
    total = 0
    while chain and chain["train"]:
        total += chain["train"]["epoch_seconds"]
        if not chain["starts_from"]:
            return total
        chain = records.get((chain["block"], chain["starts_from"]))
    return None


def _beside(paper: PaperRow | None, line: dict[str, Any]) -> dict[str, Any]:
    hours = paper.train_hours.mean * PAPER_GPUS if paper and paper.train_hours else None
    note = paper.in_paper if paper else None
    return {"paper_gpu_hours": hours, "train_ratio": _ratio(hours, line.get("gpu_hours")), "paper_note": note}


def _tests(record: dict[str, Any], paper: PaperRow | None) -> dict[str, Any]:
    """Return the costs of answers. What :data:`FURTHER` names is left out where it was not measured."""
    costs: dict[str, Any] = {}
    for name, test in record["tests"].items():
        score = paper.tests.get(name) if paper else None
        theirs = score.seconds.mean if score and score.seconds else None
        ours = median(test["seconds"]) if test["n"] == test["n_total"] else None
        costs |= {f"{name}_seconds": ours, f"{name}_paper": theirs, f"{name}_ratio": _ratio(theirs, ours)}
        if ours is None:
            costs[f"{name}_question_ms"] = _question_ms(test)
        if all_steps := test.get("all_steps"):
            costs[f"{name}_steps_question_ms"] = _question_ms(all_steps)
    return costs


def _question_ms(times: dict[str, Any]) -> float:
    return 1000 * median(times["seconds"]) / times["n"]


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs and ours else None


def _document(study: Study, lines: list[dict[str, Any]], records: list[dict[str, Any]]) -> Document:
    tests = [name for name in study.evaluation.tests if any(name in record["tests"] for record in records)]
    costs = ("Params", "Step (s)", "Tokens/s", "MFU (%)", "Peak (GB)", "Epoch (s)", "GPU-h", "Paper's GPU-h", "Ratio")
    columns = [*map(Column, costs)]
    further = [key for key in FURTHER if any(test + key in line for test in tests for line in lines)]
    names = ("Test (s)", "Paper's (s)", "Ratio", *(FURTHER[key] for key in further))
    columns += [Column(name, test) for test in tests for name in names]
    # How some of the paper's numbers were obtained
    notes = list(dict.fromkeys(line["paper_note"] for line in lines if line["paper_note"]))
    sections = [
        (block.title, [_line(line, tests, further, notes) for line in lines if line["block"] == block.id])
        for block in study.blocks
    ]
    grid = Grid("", columns, sections)
    return Document(f"{study.title}: measured costs", [grid], _legend(records), notes, _made(records))


def _legend(records: list[dict[str, Any]]) -> list[str]:
    ways = {(run["test_batch_size"], run["repeats"], run["test_warm_up"]) for run in records}
    passes = "; ".join(
        f"in batches of {batch}, {f'median of {repeats} passes' if repeats > 1 else 'one pass'} after {warm_up}"
        for batch, repeats, warm_up in sorted(ways)
    )
    return [*TRAINING, f"{TESTS} Timed {passes}.", "Ratio: the paper's number divided by ours."]


def _line(line: dict[str, Any], tests: Iterable[str], further: Iterable[str], notes: list[str]) -> Line:
    def shown(name: str, form: str = ",.2f") -> Cell:
        return cell(line.get(name), lambda value: format(value, form))  # not every line has all parts and tests

    cells = [cell(line["parameters"], count), cell(line.get("step_seconds"), seconds)]
    cells += [shown("tokens_per_second", ",.0f"), cell(line.get("mfu"), lambda share: f"{100 * share:.1f}")]
    cells += [shown("peak_memory_gb", ",.1f")]
    cells += [shown("epoch_seconds", ",.0f"), shown("gpu_hours"), shown("paper_gpu_hours"), shown("train_ratio", ".1f")]
    for test in tests:
        cells += [shown(f"{test}_seconds"), shown(f"{test}_paper"), shown(f"{test}_ratio", ".1f")]
        cells += [shown(f"{test}{key}", ",.3g") for key in further]
    note = line["paper_note"]
    return Line(Cell(line["title"], mark=str(notes.index(note) + 1) if note else ""), cells)


def _made(records: list[dict[str, Any]]) -> dict[str, str]:
    sizes = sorted({(r["batch_size"], _computed_on(r)) for r in records})
    batches = "; ".join(f"{size} on {engine}" for size, engine in sizes)
    learned = "; ".join(f"{r['block']}/{r['row']}: {_learned(r['learning'])}" for r in records if r["learning"])
    data = ", ".join(sorted({_data(record) for record in records}))
    made = measured_on(record["environment"] for record in records)
    changes = sorted({f"{name} = {value}" for record in records for name, value in record.get("settings", {}).items()})
    made |= {"settings changed": ", ".join(changes)} if changes else {}
    return {**made, "data": data, "batch": batches, "loss": learned or "not followed"}


def _learned(learning: dict[str, Any]) -> str:
    """Return how the losses went, and what else a method observed (older records lack that)."""
    curves = {"": learning["losses"]} | learning.get("observed", {})
    went = ", ".join(f"{name} {values[0]:.3g} to {values[-1]:.3g}".strip() for name, values in curves.items())
    return f"{went} in {learning['steps']} steps"


def _computed_on(record: dict[str, Any]) -> str:
    lora = record.get("lora")  # older records lack it
    engine = on_engine(EngineSpec.model_validate(record["engine"]))
    return engine + by_adapters(lora and LoraSpec.model_validate(lora))


def _data(record: dict[str, Any]) -> str:
    corpus = f"{record['training_rows']:,} rows of {record['training_data']}"
    more = record["epoch_rows"] != record["training_rows"]
    return f"{corpus}, which stand in for the {record['epoch_rows']:,} of an epoch" if more else corpus
