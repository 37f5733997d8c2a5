"""Write a complete results folder of a small study without training anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.data.sets import DATASETS
from benchmarks.files import read_json, write_json, write_parquet, write_text
from benchmarks.records.results import collect, load_collected
from benchmarks.scoring import SCORERS
from benchmarks.studies.paths import at_stage
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import Table
from benchmarks.studies.study import Study, parse_study
from benchmarks.tables.base import ExternalRows
from benchmarks.tables.render import rendered
from methods.registry import get_method

N = 200  # questions per test set
COUNTS = {"train": 1_000, "validation": 100}  # rows
ENVIRONMENT = {
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "dirty": False,
    "python": "3.11.9",
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "datasets": "5.2.0",
    "device": "cpu",
    "device_count": 0,
    "cpu": "Example CPU",
    "threads": 1,
    "started": "2026-01-02T03:04:05+00:00",
    "finished": "2026-01-02T03:09:05+00:00",
}
WITHOUT_R = {"randomness": False}
TITLES = {"alpha": "Alpha & Co 100%", "beta": "Beta_set", "corpus": "Corpus"}
# Share of right answers by row and test set
ACCURACY = {"cot": (0.3, 0.5), "marcos": (0.8, 0.5), "marcos_wo_r": (0.45, 0.5), "oracle": (1.0, 1.0)}

EARLIER = (0.2, 0.6)  # accuracy after each earlier stage of a curriculum, as a share of the row's final accuracy
LATENTS = 3.0  # per question, unless the one option of a decoding says another number
CARRIED = 0.5  # share of a row's accuracy that is left when its latents are not its own
MADE: dict[str, TemporaryDirectory[str]] = {}


def study(**changes: Any) -> Study:
    """Return a study with two blocks, four rows (one a control), two test sets and three decoding seeds."""
    content: dict[str, Any] = {
        "name": "fake",
        "title": "A fabricated study",
        "description": "Nothing was trained.",
        "tokenizer": {"trained": 512},
        "blocks": [
            {"id": "text", "title": "Training data: text", "data": {"train": "corpus", "form": "text"}},
            {"id": "equation", "title": "Training data: equation", "data": {"train": "corpus"}},
        ],
        "rows": [
            {"id": "cot", "method": "cot_sft"},
            {"id": "marcos", "method": "marcos"},
            {"id": "marcos_wo_r", "method": "marcos", "title": "w/o R", "indent": True, "options": WITHOUT_R},
            {"id": "oracle", "method": "cot_sft", "title": "Gold answers", "control": True},
        ],
        "training": {"epochs": 1},
        "evaluation": {
            "tests": ["alpha", "beta"],
            "decodings": {
                "default": {"seeds": 3},
                "mean_r": {"latents": "mean", "seeds": 1, "only": ["marcos"]},
            },
        },
    }
    if "marcos" not in {row["method"] for row in changes.get("rows", content["rows"])}:
        del content["evaluation"]["decodings"]["mean_r"]
    return parse_study(content | changes, "tests/fabricate.py")


def fabricate(study: Study, results: Path, accuracy: Mapping[str, tuple[float, ...]] = ACCURACY) -> None:
    """Write records, logs and predictions of every run of ``study``. What was made before in this process is copied."""
    runs = [spec.model_dump_json() for spec in study.runs.values()]  # a test may have methods start from others
    key = json.dumps([study.model_dump_json(), runs, sorted(accuracy.items())])
    if key not in MADE:
        MADE[key] = TemporaryDirectory(prefix="fabricated-")
        folder = Path(MADE[key].name)
        for block in study.blocks:
            write_json(folder / "data" / block.id / "done.json", data_record(study, block.id))
        for spec in study.runs.values():
            fabricate_run(spec, folder, accuracy.get(spec.row, (0.2,) * len(spec.evaluation.tests)))
    shutil.copytree(MADE[key].name, results / study.name, dirs_exist_ok=True)


def collected(study: Study, results: Path, accuracy: Mapping[str, tuple[float, ...]] = ACCURACY) -> pd.DataFrame:
    """Fabricate the results of ``study``, collect them, and return the frame."""
    fabricate(study, results, accuracy)
    return collect(study, results)


def contents(
    study: Study, results: Path, table: Table = Table.main, beside: ExternalRows | None = None
) -> dict[str, str]:
    """Return what a table's files hold, by their extension."""
    return rendered(load_collected(study, results), table, beside)


def update_record(path: Path, **changes: Any) -> None:
    """Change fields of a record."""
    write_json(path, read_json(path) | changes)


def let_r_die(run: Path) -> None:
    """Let the training in the folder of a run end with a dead R."""
    stage = {"phase": "train", "epochs": 2.5, "warnings": ["R is dead: no dimension is active"], "dead_latents": True}
    update_record(run / "train.json", stages=[stage])


def fabricate_run(spec: RunSpec, folder: Path, accuracy: tuple[float, ...]) -> None:
    run = folder / "runs" / spec.id
    digests, decodings = {}, {}
    default = spec.evaluation.decodings["default"]
    stages = {at_stage(number): default for number in range(len(EARLIER)) if spec.training.keep_stages}
    for name, decoding in (spec.evaluation.decodings | stages).items():
        draws = decoding.latents in ("default", "sample")
        randomness = spec.method == "marcos" and spec.options["randomness"] and draws
        drawn = randomness or decoding.tokens == "sample"
        number = [*stages].index(name) if name in stages else len(EARLIER)
        shares = tuple(share * (1 if decoding.thoughts == "own" else CARRIED) for share in accuracy)
        shares = tuple(share * (*EARLIER, 1.0)[number] for share in shares)
        frame = predictions(spec, shares, decoding.seeds if drawn else 1)
        latents = LATENTS if get_method(spec.method).has_latents else 0.0
        frame["latent_steps"] = float(next(iter(decoding.options.values()), latents))
        if decoding.thoughts == "exchanged":  # half of the wrong answers are those of the question before
            frame["latents_of"] = np.roll(frame["id"], 1)
            frame["with_own"] = "1"
            frame["follows"] = ~frame["correct"] & (np.arange(len(frame)) % 2 > 0)
        path = run / "predictions" / f"{name}.parquet"
        digests[name] = write_parquet(path, frame)
        tests = {str(test): scores(part) for test, part in frame.groupby("test")}
        stage = {"name": f"stage {number + 1}", "steps": 100 * (number + 1), "epochs": 0.5 * (number + 1)}
        decodings[name] = {
            "stage": stage,
            "stochastic": drawn,
            "seeds": sorted(set(frame["seed"].tolist())),
            "tests": tests,
        }
    write_json(run / "spec.json", spec.model_dump(mode="json"))
    write_json(run / "train.json", train_record(spec))
    number = {"name": "number", "version": SCORERS["number"].version}
    scored = {"scorers": dict.fromkeys(spec.evaluation.tests, number), "decodings": decodings, "predictions": digests}
    if spec.evaluation.nats:
        scored["nats"] = write_parquet(run / "nats.parquet", nats(spec))
    write_json(run / "evaluate.json", _record(spec, "evaluate") | {"weights_sha256": "abc"} | scored)
    write_json(run / "time.json", time_record(spec))
    write_text(run / "log.jsonl", "".join(json.dumps(line) + "\n" for line in log_lines()))


def predictions(spec: RunSpec, accuracy: tuple[float, ...], seeds: int) -> pd.DataFrame:
    """Return right and wrong answers at the given rates. A row's answers depend only on its id."""
    draw = np.random.default_rng(list(spec.id.encode()))
    frames = []
    for test, share in zip(spec.evaluation.tests, accuracy, strict=True):
        for seed in range(seeds):
            correct = draw.random(N) < share
            frames.append(
                pd.DataFrame(
                    {
                        "test": test,
                        "id": [f"{test}-{i}" for i in range(N)],
                        "seed": seed,
                        "text": np.where(correct, "#### 7", f"#### 3 by {spec.row}"),
                        "extracted": np.where(correct, "7", "3"),
                        "gold": "7",
                        "correct": correct,
                        "strict": correct,
                        "overlap": np.arange(N) % 10 == 0,
                        "draws": [()] * N,
                        "choices": [()] * N,
                        "tokens": 4,
                        "n_steps": 2,
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def nats(spec: RunSpec) -> pd.DataFrame:
    """Return what methods say of gold texts: MarCos three steps (the second empty), with R a KL of 2 each; CoT-SFT a
    chain of 4 nats and an answer of 1; others an answer of 3. All nats rise with the question and the seed."""
    rise = np.linspace(-1, 1, spec.evaluation.nats) + spec.seed
    text = {"marcos": [0.5, 0.0, 1.0], "cot_sft": [4.0, 1.0]}.get(spec.method)
    latents = [2.0] * 3 if spec.method == "marcos" and spec.options["randomness"] else None
    answer = None if spec.method == "cot_sft" else 3.0
    parts = {"text": text, "latents": latents, "answer": answer}
    lines = [
        {"id": f"corpus-{i}"} | {k: v and (np.array(v) + at).tolist() for k, v in parts.items()}
        for i, at in enumerate(rise)
    ]
    return pd.DataFrame(lines)


def scores(frame: pd.DataFrame) -> dict[str, Any]:
    by_seed = [float(np.mean(part["correct"])) for _, part in frame.groupby("seed")]
    clean = frame[~frame["overlap"]]
    return {
        "n": N,
        "n_distinct": N,
        "n_deduplicated": len(set(clean["id"])),
        "accuracy": by_seed,
        "strict": by_seed,
        "no_answer": [0.0] * len(by_seed),
        "deduplicated": [float(np.mean(part["correct"])) for _, part in clean.groupby("seed")],
        **({"follows": [float(np.mean(frame["follows"]))]} if "follows" in frame else {}),
        "forward_passes_per_question": 0.25,
        "tokens_per_question": 4.0,
        "latent_steps": float(np.mean(frame["latent_steps"])),
        "draws": [],
    }


def train_record(spec: RunSpec) -> dict[str, Any]:
    numbers = {"parameters": 240_000, "wall_seconds": 60.0, "tokens_per_second": 5_000.0}
    stages = [{"phase": "train", "epochs": 2.5, "warnings": []}]
    made = {"key": spec.digest("train"), "spec": spec.model_dump(mode="json"), "data": {"counts": COUNTS}}
    return _record(spec, "train") | numbers | made | {"stages": stages, "weights_sha256": "abc"}


def time_record(spec: RunSpec) -> dict[str, Any]:
    measured = {"seconds": [1.9, 2.0, 2.1], "n": N, "n_total": N}
    measured |= {"tokens_per_second": 400.0, "peak_memory_bytes": 100 * 2**20}
    modes = {"answer_only": measured}
    if spec.method == "marcos":
        modes["all_steps"] = measured | {"seconds": [3.0, 4.0, 5.0]}
    phases = {"phase 1": {"epoch_seconds": 10.0}, "phase 2": {"epoch_seconds": 2.5}}
    train = {"phases": phases, "epoch_seconds": 12.5, "training_flops": 3e12}
    quiet = {"weights_sha256": "abc", "other_load": 0.0, "pace_seconds": 0.1}
    return _record(spec, "time") | quiet | {"tests": dict.fromkeys(spec.evaluation.tests, modes), "train": train}


def log_lines() -> list[dict[str, Any]]:
    steps = [
        {"kind": "step", "step": i, "stage": "main", "epoch": i / 20, "loss": 2 / i, "kl": 0.1 * i, "seconds": 0.5 * i}
        for i in range(1, 21)
    ]
    validation = {"kind": "validation", "step": 20, "stage": "main", "epoch": 1.0, "answer": 0.5, "selected_step": 20}
    return [*steps, validation, {"kind": "warning", "step": 20, "stage": "main", "epoch": 1.0, "message": "R is dead"}]


def card(name: str) -> dict[str, Any]:
    version = DATASETS[name].card.version if name in DATASETS else "1"
    return {"title": TITLES.get(name, name), "source": "made up", "revision": "1", "version": version}


def data_record(study: Study, block: str) -> dict[str, Any]:
    cards = {name: card(name) for name in ("corpus", *study.evaluation.tests)}
    places = ["corpus/train", *(f"{test}/test" for test in study.evaluation.tests)]
    overlaps = {test: {"questions": N, "shared_with_train": 20, "distinct": N} for test in study.evaluation.tests}
    digests = {place: f"{i:x}" * 64 for i, place in enumerate(places, 10)}
    tokenizer = {"trained": 512, "size": 1_402}
    return {"block": block, "cards": cards, "digests": digests, "overlaps": overlaps, "tokenizer": tokenizer}


def fabricate_analysis(spec: RunSpec, results: Path) -> None:
    """Write the files of `analyse`: R of 40 questions in 2 steps, with 3 of 30 dimensions active together."""
    folder, draw = results / spec.study / "runs" / spec.id / "analysis", np.random.default_rng(0)
    questions = [(test, f"{test}-{i}") for test in spec.evaluation.tests for i in range(20)]
    common = draw.random(2 * len(questions))
    values = np.where(draw.random((2 * len(questions), 30)) < 0.05, 0.4, 0.0)
    values[:, [4, 9, 17]] = common[:, None] + 0.01 * draw.random((2 * len(questions), 3))
    samples = [(*question, step) for question in questions for step in (1, 2)]
    latents = pd.DataFrame(samples, columns=["test", "id", "step"]).assign(values=list(values))
    frames = {"latents": latents, "interventions": _outputs(questions), "samples": _samples(questions)}
    steering = [
        ("alpha", i, 1, digit, by, i >= missed, True)
        for by, missed in (("dimension", 1), ("code", 2))
        for i in range(20)
        for digit in range(10)
    ]
    frames["steering"] = pd.DataFrame(steering, columns=["test", "id", "step", "digit", "by", "obeyed", "followed"])
    means = [(digit, dim, float(dim == digit + 3)) for digit in range(10) for dim in range(30)]
    frames["encoding"] = pd.DataFrame(means, columns=["digit", "dim", "mean"])
    shares = [(1, "draw", 0.75), (1, "question", 0.25), (2, "draw", 0.5)]
    frames["explained"] = pd.DataFrame(shares, columns=["step", "cause", "share"])
    frames["transplanted"] = pd.DataFrame({"step": [1, 1, 2, 2], "own": True, "donor": [True, False, False, False]})
    frames["reread"] = pd.DataFrame({"step": 1, "same": [True] * 4 + [False], "later": [False] + [True] * 4})
    folder.mkdir(parents=True)
    record = _record(spec, "analyse") | {"name": "R", "dimensions": 30, "active": 30, "frequent": [9, 4, 17, 0, 1]}
    encoding = {"test": "alpha", "dims": list(range(3, 13)), "values": [1.0] * 10, "agreement": [1.0] * 10}
    encoding |= {"explained": {"digit": [0.5, 0.25], "level": [0.75, None]}}
    files = {name: write_parquet(folder / f"{name}.parquet", frame) for name, frame in frames.items()}
    write_json(folder / "analysis.json", record | {"clique": [4, 9, 17], "encoding": encoding, "files": files})


def _outputs(questions: list[tuple[str, str]]) -> pd.DataFrame:
    """Return the outputs with and without dimensions set by hand.

    As it is, every other answer has the marker. With the clique at three values, all answers have it, except at 0.5:
    there none has it, and outputs are one word longer. Another dimension has no effect.
    """
    lines = []
    for dims, value in (("", None), ("4,9,17", 0.0), ("4,9,17", 0.1), ("4,9,17", 0.5), ("0", 0.5)):
        strong, setting = dims != "0" and value == 0.5, f"{dims.replace(',', ', ')} = {value:g}" if dims else ""
        for i, (test, id) in enumerate(questions):
            marked = not strong if dims == "4,9,17" else i % 2 == 0
            answer = "#### 7" if marked else "7"
            said = {"question": "3 pens and 4", "steps": f"3 + 4{' pens' * strong} = 7\n{answer}", "answer": answer}
            said |= {"tokens": 8 + strong, "marked": marked, "correct": True, "dims": dims or None, "value": value}
            lines.append({"test": test, "id": id, "setting": setting} | said)
    return pd.DataFrame(lines)


def _samples(questions: list[tuple[str, str]]) -> pd.DataFrame:
    """Return ten draws of each question and the mean. Of every five draws of a question, three are right."""
    right = {seed: seed % 5 < 3 for seed in range(10)} | {-1: True}
    lines = [(*question, seed, "7" if ok else str(seed), ok) for seed, ok in right.items() for question in questions]
    return pd.DataFrame(lines, columns=["test", "id", "seed", "extracted", "correct"])


def _record(spec: RunSpec, stage: Any) -> dict[str, Any]:
    return {"run": spec.id, "digest": spec.digest(stage), "environment": ENVIRONMENT}
