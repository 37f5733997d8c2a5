"""Compare two tracked runs: their metrics, a paired test per test set, and the questions on which they differ."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from tabulate import tabulate

from benchmarks.records.statistics import accuracy, correctness, family
from benchmarks.tracking.importer import KINDS
from benchmarks.tracking.store import Outage, advice, find_experiment, find_runs, require_store, session
from methods.errors import InputError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


SHARES = ("accuracy", "strict", "no_answer", "deduplicated")  # metrics that are shares of 1, shown as percentages
NO_RUN = "it has no run at all: `marcos-bench track STUDY` brings those of a study"
QUESTION_WIDTHS = [16, 10, None, None, 40, 40]  # id, gold, correctness of a and b, texts of a and b


@dataclass(frozen=True)
class Comparison:
    """A comparison of the runs ``a`` and ``b``.

    * ``metrics``: metric, a, b, difference.
    * ``tests``: a paired test for each test set.
    * ``questions``: those that one run answers right more often than the other, with both texts (of the first decoding
      seed).
    """

    a: str
    b: str
    decoding: str
    metrics: pd.DataFrame
    tests: pd.DataFrame
    questions: pd.DataFrame


def compare(a: str, b: str, results: Path, test: str | None, decoding: str) -> Comparison:
    """Compare two runs on one test set, or on all that both have if ``test`` is None.

    Each run is given as an MLflow run id, a run name (such as equation/marcos/s0) or STUDY:RUN. Raise
    :class:`InputError` if the runs cannot be found or compared.
    """
    try:
        require_store(results)
        with session(results) as client:
            if (experiment := find_experiment(client)) is None:
                raise InputError(f"MLflow has no run {a!r}; {NO_RUN}")
            runs = [_find(client, experiment, name) for name in (a, b)]
            found = [_predictions(client, run, decoding) for run in runs]
    except Outage as outage:
        cause = str(outage).partition("\n")[0]
        raise InputError(f"MLflow cannot be asked ({cause}): {advice(results)}") from outage
    shared = [name for name in found[0] if name in found[1]]
    chosen = [name for name in shared if test in (None, name)]
    if not chosen:
        raise InputError(_not_shared(test, shared))
    pairs = {name: (found[0][name], found[1][name]) for name in chosen}
    return Comparison(
        a=_label(runs[0]),
        b=_label(runs[1]),
        decoding=decoding,
        metrics=_metric_differences(*runs),
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
    parts += ["Metrics", _table(_with_units(comparison.metrics), ("", ".6g", ".6g", "+.6g"))]
    parts += ["Paired tests over the same questions (p_holm: corrected for the number of test sets)"]
    tests = comparison.tests.assign(**{name: 100 * comparison.tests[name] for name in ("a", "b", "a - b")})
    tests = tests.rename(columns={"a": "a (%)", "b": "b (%)", "a - b": "a - b (points)"})
    parts += [_table(tests, ("", "", ".2f", ".2f", "+.2f", ".4g", ".4g", ""))]
    for test in tests["test"]:
        found = comparison.questions.loc[comparison.questions["test"] == test]
        if found.empty:
            parts.append(f"{test}: both runs answer the same questions right, equally often")
            continue
        shown = min(limit, len(found))
        parts.append(f"{test}: the runs differ on {len(found)} questions; {shown} of them, the clearest first")
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
    return tabulate(frame, headers="keys", showindex=False, floatfmt=formats, maxcolwidths=wraps)


def _label(run: Run) -> str:
    return f"{run.data.tags.get('study')}:{run.info.run_name} ({run.info.run_id})"


def _find(client: MlflowClient, experiment: str, name: str) -> Run:
    """Return the run with an id, or the newest run with a name. Raise :class:`InputError` if it is not unique."""
    if re.fullmatch(r"[0-9a-f]{32}", name):
        return _by_id(client, name)
    study, _, run = name.rpartition(":")
    wanted = {"kind": "run", "run": run} | ({"study": study} if study else {})
    if any("'" in value for value in wanted.values()):
        raise InputError(f"{name!r} is no run: names have no quotation marks")
    found = _imported(client, experiment, wanted)
    studies = {run.data.tags["study"] for run in found}
    if not found:
        raise InputError(f"MLflow has no run {name!r}; {_known(client, experiment, study)}")
    if len(studies) > 1:
        raise InputError(f"{name!r} is a run of several studies, {sorted(studies)}: say STUDY:{run}")
    return found[0]


def _imported(client: MlflowClient, experiment: str, tags: dict[str, str]) -> list[Run]:
    """Return the completely imported runs with these tags, newest first."""
    found = find_runs(client, experiment, " and ".join(f"tags.{key} = '{value}'" for key, value in tags.items()))
    return [run for run in found if "record_digest" in run.data.tags]


def _known(client: MlflowClient, experiment: str, study: str) -> str:
    """Say which runs are tracked, those of the study if it has any, and how others are imported."""
    names = [(run.data.tags["study"], run.data.tags["run"]) for run in _imported(client, experiment, {"kind": "run"})]
    own = [pair for pair in names if pair[0] == study] or names
    if not own:
        return NO_RUN
    known = ", ".join(f"{of}:{run}" for of, run in sorted(set(own)))
    return f"it has {known}. Those of another study come with `marcos-bench track STUDY`"


def _by_id(client: MlflowClient, id: str) -> Run:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(id)
    except MlflowException as error:
        raise InputError(f"MLflow has no run {id!r}: {error}") from error


def _predictions(client: MlflowClient, run: Run, decoding: str) -> dict[str, pd.DataFrame]:
    """Download a run's predictions, by test set."""
    known = [Path(file.path).stem for file in client.list_artifacts(run.info.run_id, "predictions")]
    if decoding not in known:
        raise InputError(f"{run.info.run_name} has no predictions of decoding {decoding!r}; it has: {known}")
    with tempfile.TemporaryDirectory() as folder:
        path = client.download_artifacts(run.info.run_id, f"predictions/{decoding}.parquet", folder)
        return {str(test): frame for test, frame in pd.read_parquet(path).groupby("test", sort=False)}


def _metric_differences(a: Run, b: Run) -> pd.DataFrame:
    """Return the results that both runs have, without the metrics that were logged during training."""
    names = [name for name in a.data.metrics if name in b.data.metrics and name.split("/")[0] not in KINDS.values()]
    values = [(name, a.data.metrics[name], b.data.metrics[name]) for name in sorted(names)]
    return pd.DataFrame([(name, x, y, x - y) for name, x, y in values], columns=["metric", "a", "b", "a - b"])


def _paired_tests(pairs: dict[str, tuple[pd.DataFrame, pd.DataFrame]]) -> pd.DataFrame:
    correct = {name: (correctness(a), correctness(b)) for name, (a, b) in pairs.items()}
    lines = []
    for (name, (a, b)), found in zip(correct.items(), family([*correct.values()]), strict=True):
        values = {"test": name, "n": found["n"], "a": accuracy(a), "b": accuracy(b), "a - b": found["difference"]}
        lines.append(values | {"p": found["p_value"], "p_holm": found["p_holm"], "kind": found["kind"]})
    return pd.DataFrame(lines)


def _differing(test: str, a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Return the questions whose correctness differs, largest difference first."""
    shown = [frame.loc[frame["seed"] == frame["seed"].min()].set_index("id") for frame in (a, b)]
    both = pd.DataFrame({"correct_a": correctness(a, "id")[0], "correct_b": correctness(b, "id")[0]}).dropna()
    both["apart"] = (both["correct_a"] - both["correct_b"]).abs()
    both = both.loc[both["apart"] > 0].sort_values(by=["apart"], ascending=False, kind="stable")
    texts = {"gold": shown[0]["gold"], "text_a": shown[0]["text"], "text_b": shown[1]["text"]}
    both = both.assign(test=test, **{name: column.reindex(both.index) for name, column in texts.items()})
    columns = ["test", "id", "gold", "correct_a", "correct_b", "text_a", "text_b"]
    return pd.DataFrame(both.rename_axis("id").reset_index(), columns=columns)
