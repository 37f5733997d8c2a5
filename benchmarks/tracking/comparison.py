"""Compare two tracked runs, or all trainings of two rows.

A comparison has metrics, a paired test for each test set, and the questions on which the two differ.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pandas as pd
from tabulate import tabulate

from benchmarks.records.statistics import FEWEST_TRAININGS, accuracy, correctness, family
from benchmarks.studies.study import load_study
from benchmarks.tracking.entries import KINDS
from benchmarks.tracking.store import Outage, advice, find_experiments, find_runs, require_store, session
from methods.errors import InputError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


SHARES = ("accuracy", "strict", "no_answer", "deduplicated")  # metrics that are shares of 1, shown as percentages
NO_RUN = "it has no run at all: `marcos-bench track STUDY` brings those of a study"
SHARED = ("method.", "options.", "backbone.", "tokenizer.", "data.", "training.", "engine.precision.")  # parameters
FIRST = ["training_seed", "seed"]  # columns of predictions: the lowest of both are those of the texts that are shown
QUESTION_WIDTHS = [16, 10, None, None, 40, 40]  # id, gold, correctness of a and b, texts of a and b


@dataclass(frozen=True)
class Comparison:
    """A comparison of the runs ``a`` and ``b``, or of all trainings of two rows.

    * ``metrics``: metric, a, b (means over trainings), difference.
    * ``trainings``: the accuracy of each training of ``a`` and ``b`` on each test set, if there are several.
    * ``tests``: a paired test for each test set.
    * ``questions``: those that one answers right more often than the other, with both texts (of the first training and
      decoding seed).
    """

    a: str
    b: str
    decoding: str
    metrics: pd.DataFrame
    trainings: pd.DataFrame
    tests: pd.DataFrame
    questions: pd.DataFrame


def compare(a: str, b: str, results: Path, test: str | None, decoding: str) -> Comparison:
    """Compare two runs on one test set, or on all that both have if ``test`` is None.

    Each run is given as an MLflow run id, a run name (such as equation/marcos/s0) or STUDY:RUN; STUDY:BLOCK/ROW stands
    for all trainings of a row. Raise :class:`InputError` if the runs cannot be found or compared.
    """
    try:
        require_store(results)
        with session(results) as client:
            if not (experiments := find_experiments(client)):
                raise InputError(f"MLflow has no run {a!r}; {NO_RUN}")
            runs = [_trainings(client, experiments, name) for name in (a, b)]
            found = [_answers(client, own, decoding) for own in runs]
    except Outage as outage:
        cause = str(outage).partition("\n")[0]
        raise InputError(f"MLflow cannot be asked ({cause}): {advice(results, outage)}") from outage
    shared = [name for name in found[0] if name in found[1]]
    chosen = [name for name in shared if test in (None, name)]
    if not chosen:
        raise InputError(_not_shared(test, shared))
    pairs = {name: (found[0][name], found[1][name]) for name in chosen}
    return Comparison(
        a=_label(a, runs[0]),
        b=_label(b, runs[1]),
        decoding=decoding,
        metrics=_metric_differences(*runs),
        trainings=_each_training(pairs),
        tests=_paired_tests(pairs),
        questions=pd.concat([_differing(name, *pair) for name, pair in pairs.items()], ignore_index=True),
    )


def _not_shared(test: str | None, shared: Sequence[str]) -> str:
    """Return the message on why there is nothing to compare."""
    if not shared:
        return "the runs share no test set: name two that were evaluated on the same one"
    return f"not both runs were evaluated on {test}; they share: {', '.join(shared)}"


def render(comparison: Comparison, limit: int = 10) -> str:
    """Render a comparison as plain text, with the number of differing questions per test set and ``limit`` of them."""
    parts = [f"a: {comparison.a}\nb: {comparison.b}\ndecoding: {comparison.decoding}"]
    several = not comparison.trainings.empty
    heading = "Metrics (means over trainings)" if several else "Metrics"
    parts += [heading, _table(_with_units(comparison.metrics), ("", ".6g", ".6g", "+.6g"))]
    if several:
        parts += ["Accuracy (%) of each training", _table(comparison.trainings, ("", "", ""))]
    parts += ["Paired tests over the same questions (p_holm: corrected for the number of test sets)"]
    if "untested" in set(comparison.tests["kind"]):
        parts[-1] += f". Untested: a test takes one training of each, or at least {FEWEST_TRAININGS} of each"
    tests = comparison.tests.assign(**{name: 100 * comparison.tests[name] for name in ("a", "b", "a - b")})
    tests = tests.rename(columns={"a": "a (%)", "b": "b (%)", "a - b": "a - b (points)"})
    parts += [_table(tests, ("", "", ".2f", ".2f", "+.2f", ".4g", ".4g", ""))]
    for test in tests["test"]:
        found = comparison.questions.loc[comparison.questions["test"] == test]
        if found.empty:
            parts.append(f"{test}: both answer the same questions right, equally often")
            continue
        texts = "; texts of the first training and decoding seed" if several else ""
        shown = min(limit, len(found))
        parts.append(f"{test}: the two differ on {len(found)} questions; {shown} of them, the clearest first{texts}")
        parts.append(_table(found.drop(columns="test").head(limit), ("", "", ".2f", ".2f", "", ""), QUESTION_WIDTHS))
    return "\n\n".join(parts)


def _with_units(metrics: pd.DataFrame) -> pd.DataFrame:
    """Convert shares to percentages, as in the tables, and memory to MB."""
    shares, memory = metrics["metric"].str.startswith(SHARES), metrics["metric"].str.startswith("peak_memory")
    shown = metrics.copy()
    for chosen, factor, unit in ((shares, 100, "%"), (memory, 1e-6, "MB")):
        shown.loc[chosen, ["a", "b", "a - b"]] *= factor
        shown.loc[chosen, "metric"] += f" ({unit})"
    return shown


def _table(frame: pd.DataFrame, formats: Sequence[str], wraps: list[int | None] | None = None) -> str:
    texts = [place for place, form in enumerate(formats) if not form]  # a text such as 2.50 stays as it is
    return tabulate(
        frame, headers="keys", showindex=False, floatfmt=formats, maxcolwidths=wraps, disable_numparse=texts
    )


def _label(name: str, runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return f"{name} ({len(runs)} trainings: {', '.join(run.info.run_id for run in runs)})"
    return f"{runs[0].data.tags.get('study')}:{runs[0].info.run_name} ({runs[0].info.run_id})"


def _trainings(client: MlflowClient, experiments: list[str], name: str) -> list[Run]:
    """Return the run with an id or a name; for STUDY:BLOCK/ROW, those of all trainings of a row, in the order of their
    seeds. Raise :class:`InputError` if these differ in more than the seed."""
    study, _, place = name.rpartition(":")
    if place.count("/") != 1:
        return [_find(client, experiments, name)]
    if not study:
        raise InputError(f"{name!r} is a row: say STUDY:{name}, or name one of its runs, such as {name}/s0")
    loaded = load_study(study)
    if not (own := loaded.trainings(*place.split("/"))):
        known = dict.fromkeys(f"{run.block}/{run.row}" for run in loaded.runs.values())
        raise InputError(f"study {study} has no row {place!r}; it has {', '.join(known)}")
    runs = [_find(client, experiments, f"{run.study}:{run.id}") for run in own]
    for run in runs[1:]:
        if apart := sorted(dict(_settings(runs[0]) ^ _settings(run))):
            both = f"{runs[0].info.run_name} and {run.info.run_name}"
            raise InputError(
                f"{name}: the tracked {both} are no trainings of one row: they differ in {', '.join(apart)}. Train "
                f"what is old again, and `marcos-bench track {study}`"
            )
    return runs


def _settings(run: Run) -> set[tuple[str, str]]:
    """Return the settings that trainings of one row share: what is trained, on what, and how."""
    return {(name, value) for name, value in run.data.params.items() if f"{name}.".startswith(SHARED)}


def _find(client: MlflowClient, experiments: list[str], name: str) -> Run:
    """Return the run with an id, or the newest run with a name. Raise :class:`InputError` if it is not unique."""
    if re.fullmatch(r"[0-9a-f]{32}", name):
        return _by_id(client, name)
    study, _, run = name.rpartition(":")
    wanted = {"kind": "run", "run": run} | ({"study": study} if study else {})
    if any("'" in value for value in wanted.values()):
        raise InputError(f"{name!r} is no run: names have no quotation marks")
    found = _imported(client, experiments, wanted)
    studies = {run.data.tags["study"] for run in found}
    if not found:
        raise InputError(f"MLflow has no run {name!r}; {_known(client, experiments, study)}")
    if len(studies) > 1:
        raise InputError(f"{name!r} is a run of several studies, {sorted(studies)}: say STUDY:{run}")
    return found[0]


def _imported(client: MlflowClient, experiments: list[str], tags: dict[str, str]) -> list[Run]:
    """Return the completely imported runs with these tags, newest first."""
    found = find_runs(client, experiments, " and ".join(f"tags.{key} = '{value}'" for key, value in tags.items()))
    return [run for run in found if "record_digest" in run.data.tags]


def _known(client: MlflowClient, experiments: list[str], study: str) -> str:
    """Say which runs are tracked, those of the study if it has any, and how others are imported."""
    names = [(run.data.tags["study"], run.data.tags["run"]) for run in _imported(client, experiments, {"kind": "run"})]
    own = [pair for pair in names if pair[0] == study] or names
    if not own:
        return NO_RUN
    known = ", ".join(f"{of}:{run}" for of, run in sorted(set(own)))
    return f"it has {known}. Those of another study come with `marcos-bench track STUDY`"


def _by_id(client: MlflowClient, id: str) -> Run:
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(id)
    except MlflowException as error:
        raise InputError(f"MLflow has no run {id!r}: {error}") from error
    if run.info.lifecycle_stage == "deleted":
        raise InputError(f"run {id} was deleted in MLflow: bring it back with `mlflow runs restore --run-id {id}`")
    return run


def _answers(client: MlflowClient, runs: Sequence[Run], decoding: str) -> dict[str, pd.DataFrame]:
    """Return the predictions of runs that differ in the training seed alone, by test set that all of them have."""
    found = [_predictions(client, run, decoding) for run in runs]
    tests = [test for test in found[0] if all(test in own for own in found)]
    told_apart = {test: [own[test].assign(training_seed=number) for number, own in enumerate(found)] for test in tests}
    return {test: pd.concat(frames) for test, frames in told_apart.items()}


def _predictions(client: MlflowClient, run: Run, decoding: str) -> dict[str, pd.DataFrame]:
    """Download a run's predictions, by test set."""
    known = [Path(file.path).stem for file in client.list_artifacts(run.info.run_id, "predictions")]
    if not known:
        study = run.data.tags.get("study", "STUDY")
        raise InputError(
            f"MLflow has no predictions of {run.info.run_name}. If it was evaluated, their files were removed: "
            f"`marcos-bench track {study}` brings them again. Otherwise, evaluate, collect and track it"
        )
    if decoding not in known:
        raise InputError(f"{run.info.run_name} has no predictions of decoding {decoding!r}; it has: {known}")
    with tempfile.TemporaryDirectory() as folder:
        path = client.download_artifacts(run.info.run_id, f"predictions/{decoding}.parquet", folder)
        return {str(test): frame for test, frame in pd.read_parquet(path).groupby("test", sort=False)}


def _metric_differences(a: Sequence[Run], b: Sequence[Run]) -> pd.DataFrame:
    """Return the results that all runs have, as means over trainings, without the metrics logged during training. With
    several trainings, deviations within each of them are left out."""
    metrics = [[run.data.metrics for run in runs] for runs in (a, b)]
    names = set.intersection(*(set(own) for runs in metrics for own in runs))
    within = "accuracy_std" if max(map(len, metrics)) > 1 else None
    lines = []
    for name in sorted(name for name in names if name.split("/")[0] not in {*KINDS.values(), within}):
        x, y = (fmean(own[name] for own in runs) for runs in metrics)
        lines.append((name, x, y, x - y))
    return pd.DataFrame(lines, columns=["metric", "a", "b", "a - b"])


def _each_training(pairs: dict[str, tuple[pd.DataFrame, pd.DataFrame]]) -> pd.DataFrame:
    """Return the accuracies of the trainings of both sides, as text, by test set; nothing if there is one of each."""
    lines = []
    for name, pair in pairs.items():
        shares = [correctness(frame).mean() for frame in pair]
        lines.append((name, *(", ".join(f"{100 * share:.2f}" for share in own) for own in shares)))
    several = any(frame["training_seed"].nunique() > 1 for pair in pairs.values() for frame in pair)
    return pd.DataFrame(lines if several else [], columns=["test", "a", "b"])


def _paired_tests(pairs: dict[str, tuple[pd.DataFrame, pd.DataFrame]]) -> pd.DataFrame:
    correct = {name: (correctness(a), correctness(b)) for name, (a, b) in pairs.items()}
    lines = []
    for (name, (a, b)), found in zip(correct.items(), family([*correct.values()]), strict=True):
        values = {"test": name, "n": found["n"], "a": accuracy(a), "b": accuracy(b), "a - b": found["difference"]}
        lines.append(values | {"p": found["p_value"], "p_holm": found["p_holm"], "kind": found["kind"]})
    return pd.DataFrame(lines)


def _differing(test: str, a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Return the questions whose correctness differs, largest difference first."""
    shown = [frame.loc[(frame[FIRST] == frame[FIRST].min()).all(axis="columns")].set_index("id") for frame in (a, b)]
    right = [correctness(frame, "id").mean(axis=1) for frame in (a, b)]
    both = pd.DataFrame(dict(zip(("correct_a", "correct_b"), right, strict=True))).dropna()
    both["apart"] = (both["correct_a"] - both["correct_b"]).abs()
    both = both.loc[both["apart"] > 0].sort_values(by=["apart"], ascending=False, kind="stable")
    texts = {"gold": shown[0]["gold"], "text_a": shown[0]["text"], "text_b": shown[1]["text"]}
    both = both.assign(test=test, **{name: column.reindex(both.index) for name, column in texts.items()})
    columns = ["test", "id", "gold", "correct_a", "correct_b", "text_a", "text_b"]
    return pd.DataFrame(both.rename_axis("id").reset_index(), columns=columns)
