"""The data behind all renderings of a table: one line per block, row, decoding and test set, over training seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, combinations
from statistics import fmean
from typing import Any, NamedTuple, cast

import pandas as pd

from benchmarks.records import statistics
from benchmarks.records.results import COLUMNS, StudyRecords, to_frame, with_starts
from benchmarks.studies.study import Study


class Key(NamedTuple):
    """What a line of a summary is about."""

    block: str
    row: str
    decoding: str
    test: str


KEYS = list(Key._fields)
# The columns whose means over training seeds a summary has
MEANS = [name for name, kind in COLUMNS.items() if kind == "Float64" and not name.startswith("accuracy")]
COUNTS = ["n", "n_distinct", "n_deduplicated", "timed_n", "parameters"]
OWN = {  # columns that this frame adds
    "title": "string",
    "control": "boolean",
    "status": "string",
    "reason": "string",
    "warning": "string",
    "dead_trainings": "Int64",  # number of seeds whose latents were dead at the end of training
    "training_seeds": "Int64",  # number of seeds that have an accuracy
    "accuracy": "Float64",
    "spread": "Float64",
    "stochastic": "boolean",  # whether anything is drawn
    "decoding_spread": "Float64",  # over decoding seeds, averaged over training seeds
    "spread_over": "string",  # what the spread covers: N training seeds, N decoding seeds, nothing drawn, one seed
    "low": "Float64",  # 95 % interval (`statistics.interval`)
    "high": "Float64",
    "mark": "string",  # best or tie, by paired tests within the block
}
LINES = dict.fromkeys(KEYS, "string") | OWN | dict.fromkeys(COUNTS, "Int64") | dict.fromkeys(MEANS, "Float64")

RESULT = {"n": "Int64", "difference": "Float64", "p_value": "Float64", "p_holm": "Float64", "kind": "string"}
# A row with its own latents against the same row with other latents; differences of accuracy are own minus other
TESTED = dict.fromkeys(KEYS, "string") | RESULT
# A row against a control row of its block; differences are the row minus the control
AGAINST = dict.fromkeys(["block", "row", "control", "test"], "string") | RESULT
# A row against another of its block, in a study that plans comparisons; differences are a minus b
COMPARED = dict.fromkeys(["block", "test", "a", "b"], "string") | {"planned": "boolean", "low": "Float64"}
COMPARED |= {"high": "Float64"} | RESULT


@dataclass(frozen=True)
class Summary:
    """The numbers of a study, and paired tests."""

    lines: pd.DataFrame  # one per block, row, decoding and test set
    pairs: pd.DataFrame  # the tests that the marks are based on
    swaps: pd.DataFrame  # each row with its own latents against the same row with latents that are not its own
    against_controls: pd.DataFrame  # each row against each control row of its block, on every test set
    # If the study plans any, all pairs of rows, with the interval of the difference. The planned ones come first, and
    # are corrected for each other alone; all others for all pairs of their block and test set. Pairs have the same
    # corrected p-values in `pairs` and `against_controls`
    comparisons: pd.DataFrame

    @cached_property
    def tested(self) -> pd.DataFrame:
        """The lines, with paired tests for those whose latents are not the row's own."""
        return self.lines.merge(self.swaps.drop(columns="n"), how="left", on=KEYS)

    @cached_property
    def _by_key(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        return index_by(self.tested, *KEYS)

    def line(self, block: str, row: str, decoding: str, test: str) -> dict[str, Any] | None:
        """Return the line of these keys, or None if the decoding does not apply to the row."""
        return self._by_key.get((block, row, decoding, test))


@lru_cache(maxsize=4)
def summarise(records: StudyRecords, *decodings: str) -> Summary:
    """Aggregate the run records of some decodings, and test each block's rows against each other on every test set.
    What one decoding has is kept, as most tables and figures of a study show the same ones."""
    tests = _default_tests(records)
    found = {decoding: _of_decoding(records, decoding) for decoding in decodings}
    keys = [key for key in _shown(records) if key.decoding in found]
    about = {key: {"control": key.row in _controls(records.study), "mark": tests.marks.get(key, "")} for key in keys}
    lines = [found[key.decoding].lines[key] | about[key] for key in keys]
    correct = {key: answers for key in keys if (answers := found[key.decoding].correct.get(key)) is not None}
    # Not all options of a method that can think have it think, and without latents nothing is swapped
    thinking = {key for key, line in zip(keys, lines, strict=True) if (line["latent_steps"] or 0) > 0}
    swapping = {name for name, spec in records.study.evaluation.decodings.items() if spec.thoughts != "own"}
    swapped = {key: answers for key, answers in correct.items() if key.decoding in swapping and key in thinking}
    swaps = _against_own(swapped, correct)
    return Summary(_frame(lines, LINES), tests.pairs, swaps, tests.against_controls, tests.comparisons)


class _OfDecoding(NamedTuple):
    """What the runs of a study have under one decoding: lines without marks, and which answers are correct (one line
    per question, one column per training seed)."""

    lines: dict[Key, dict[str, Any]]
    correct: dict[Key, pd.DataFrame]


class _Tests(NamedTuple):
    """The paired tests of the default decoding, as a :class:`Summary` has them, and the rows' marks by them."""

    marks: dict[Key, str]
    pairs: pd.DataFrame
    against_controls: pd.DataFrame
    comparisons: pd.DataFrame


@lru_cache(maxsize=2)
def _shown(records: StudyRecords) -> dict[Key, list[dict[str, Any]]]:
    """Return the lines of the runs that tables show, one list for all training seeds, in the study's order."""
    frame, shown = to_frame(records), dict[Key, list[dict[str, Any]]]()
    for line in frame.loc[frame["shown"]].astype(object).to_dict("records"):
        shown.setdefault(Key(*(line[name] for name in KEYS)), []).append(line)
    return shown


@lru_cache(maxsize=16)
def _of_decoding(records: StudyRecords, decoding: str) -> _OfDecoding:
    """Aggregate the runs of each row over its training seeds, and read which of their answers are correct."""
    shown = {key: lines for key, lines in _shown(records).items() if key.decoding == decoding}
    rows = dict.fromkeys((key.block, key.row) for key in shown)
    answers = {row: records.correctness(*row, decoding) for row in rows}
    correct = {key: by_test[key.test] for key in shown if key.test in (by_test := answers[key.block, key.row])}
    lines = {key: key._asdict() | _aggregate(lines, correct.get(key)) for key, lines in shown.items()}
    return _OfDecoding(lines, correct)


@lru_cache(maxsize=2)
def _default_tests(records: StudyRecords) -> _Tests:
    """Test rows against each other and against controls. A family of tests is the rows of a block on one test set,
    unless the study plans comparisons: then pairs have the p-values of these everywhere."""
    study, controls = records.study, _controls(records.study)
    families: dict[tuple[str, str], dict[str, pd.DataFrame]] = {}
    for key, answers in _of_decoding(records, "default").correct.items():
        families.setdefault((key.block, key.test), {})[key.row] = answers
    comparisons, marks, pairs, against_controls = [], {}, [], []
    for (block, test), rows in families.items():
        place = {"block": block, "test": test}
        compared = _comparisons(study, block, rows, controls)
        corrected = {frozenset((line["a"], line["b"])): line["p_holm"] for line in compared}
        comparisons += [place | line for line in compared]
        ranked = {row: answers for row, answers in rows.items() if row not in controls}
        tests = statistics.compare_rows(ranked)
        if corrected:
            tests["p_holm"] = [corrected[frozenset(pair)] for pair in zip(tests["a"], tests["b"], strict=True)]
        marks |= {Key(block, row, "default", test): mark for row, mark in statistics.marks(ranked, tests).items()}
        pairs += tests.assign(**place).to_dict("records")
        versus = [(row, control) for control in rows if control in controls for row in ranked]
        results = statistics.family([(rows[row], rows[control]) for row, control in versus])
        for (row, control), result in zip(versus, results, strict=True):
            p_holm = corrected.get(frozenset((row, control)), result["p_holm"])
            against_controls.append(place | {"row": row, "control": control} | result | {"p_holm": p_holm})
    all_pairs = pd.DataFrame(pairs, columns=[*statistics.PAIR, "block", "test"])
    return _Tests(marks, all_pairs, _frame(against_controls, AGAINST), _frame(comparisons, COMPARED))


def _controls(study: Study) -> set[str]:
    return {row.id for row in study.rows if row.control}


def _frame(lines: list[dict[str, Any]], types: dict[str, str]) -> pd.DataFrame:
    """Return lines as a frame that has the columns of ``types``, even without any line."""
    return pd.DataFrame(lines, columns=list(types)).astype(types)


def index_by(frame: pd.DataFrame, *columns: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return a frame's lines by what they have in these columns."""
    return {tuple(line[column] for column in columns): line for line in frame.to_dict("records")}


def groups(frame: pd.DataFrame, keys: list[str]) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Yield the lines of a frame that have the same ``keys``, with these."""
    for key, group in frame.groupby(keys, sort=False):
        yield cast("tuple[str, ...]", key), cast("pd.DataFrame", group)


def _aggregate(runs: list[dict[str, Any]], correct: pd.DataFrame | None) -> dict[str, Any]:
    statuses = {run["status"] for run in runs}
    line = {"title": runs[0]["title"], "status": statuses.pop() if len(statuses) == 1 else "partial"}
    line |= {column: _by_run(runs, column) for column in ("reason", "warning")}
    line["dead_trainings"] = sum(run["dead_latents"] is True for run in runs)
    line |= {name: _mean(runs, name) for name in MEANS}
    line |= {name: max(_known(runs, name), default=None) for name in COUNTS}
    done = [run for run in runs if pd.notna(run["accuracy_mean"])]
    line["training_seeds"] = len(done)
    if correct is not None:
        line["stochastic"] = any(run["stochastic"] for run in done)
        line |= {"decoding_spread": _mean(done, "accuracy_std"), "accuracy": _mean(done, "accuracy_mean")}
        line |= _spread(done)
        line["low"], line["high"] = statistics.interval(correct)
    return line


def _known(runs: list[dict[str, Any]], column: str) -> list[Any]:
    return [run[column] for run in runs if pd.notna(run[column])]


def _mean(runs: list[dict[str, Any]], column: str) -> float | None:
    known = _known(runs, column)
    return sum(known) / len(known) if known else None


def _by_run(runs: list[dict[str, Any]], column: str) -> str | None:
    """Join the texts that runs have in a column."""
    texts = [f"{run['run']}: {run[column]}" for run in runs if pd.notna(run[column])]
    return "; ".join(dict.fromkeys(texts)) or None


def _spread(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the spread over training seeds if there are several, else over decoding seeds if anything is drawn."""
    if len(done) > 1:
        values = [run["accuracy_mean"] for run in done]
        return {"spread": statistics.sample_std(values), "spread_over": f"{len(done)} training seeds"}
    (only,) = done
    if not only["stochastic"]:
        return {"spread_over": "nothing drawn"}
    over = f"{only['n_seeds']} decoding seeds" if only["n_seeds"] > 1 else "one seed"
    return {"spread": only["accuracy_std"], "spread_over": over}


def _comparisons(
    study: Study, block: str, rows: Mapping[str, pd.DataFrame], controls: set[str]
) -> list[dict[str, Any]]:
    """Test all pairs of rows of a block on one test set, the planned ones first, if the study plans any. A pair that
    nobody planned is corrected for all pairs, the planned ones included: planning others does not make it cheaper."""
    if study.comparisons is None:
        return []
    planned = [pair for pair in study.planned(study.block(block)) if rows.keys() >= {*pair}]
    controls_last = sorted(rows, key=lambda row: row in controls)
    others = [pair for pair in combinations(controls_last, 2) if pair not in planned and pair[::-1] not in planned]
    tests = statistics.family([(rows[a], rows[b]) for a, b in (*planned, *others)])
    among_planned = statistics.holm([result["p_value"] for result in tests[: len(planned)]])
    lines = []
    for number, ((a, b), result) in enumerate(zip((*planned, *others), tests, strict=True)):
        line = {"a": a, "b": b, "planned": number < len(planned)} | result
        line["low"], line["high"] = statistics.difference_interval(rows[a], rows[b])
        if line["planned"]:
            line["p_holm"] = among_planned[number]
        lines.append(line)
    return lines


def _against_own(swapped: Mapping[Key, pd.DataFrame], correct: Mapping[Key, pd.DataFrame]) -> pd.DataFrame:
    """Test each row's default decoding against those with other latents, corrected within each block and test set."""
    lines = []
    for block, test in dict.fromkeys((key.block, key.test) for key in swapped):
        others = {key: other for key, other in swapped.items() if (key.block, key.test) == (block, test)}
        defaults = [correct[key._replace(decoding="default")] for key in others]
        tests = statistics.family([*zip(defaults, others.values(), strict=True)])
        lines += [key._asdict() | result for key, result in zip(others, tests, strict=True)]
    return _frame(lines, TESTED)


# ---- GPU time of training: seconds times the ranks that took them, summed over a run and its warm starts, which may
# have had other numbers of ranks


def gpu_seconds_as_trained(records: StudyRecords, block: str, row: str) -> float | None:
    """Return the GPU seconds of a row's training as it ran, or None if they are unknown or it ran on a CPU. The ranks
    are those in the record of each run: the study may say another number by now."""

    def parts(run: str) -> list[float]:
        record = records.runs[run].train
        if record is None or record.environment["device"] == "cpu":
            return []
        return [record.ranks * record.wall_seconds]

    return _mean_over_seeds(records.study, block, row, parts)


def gpu_seconds_of_an_epoch(records: StudyRecords, block: str, row: str) -> float | None:
    """Return the seconds of one epoch of each training phase, times ranks, or None if they were not measured. The ranks
    are the study's: a time that was measured on another number is not used."""

    def parts(run: str) -> list[float]:
        record, ranks = records.runs[run].time, records.study.runs[run].engine.ranks
        return [ranks * phase.epoch_seconds for phase in record.train.phases.values()] if record else []

    return _mean_over_seeds(records.study, block, row, parts)


def _mean_over_seeds(study: Study, block: str, row: str, parts: Callable[[str], list[float]]) -> float | None:
    """Return the mean over training seeds of the sum of all runs' parts. A sum that lacks a run's is left out."""
    sums = []
    for spec in study.trainings(block, row):
        runs = [parts(run) for run in with_starts(study, spec)]
        if all(runs):
            sums.append(sum(chain.from_iterable(runs)))
    return fmean(sums) if sums else None
