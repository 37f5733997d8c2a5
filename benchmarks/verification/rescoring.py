"""Recompute recorded scores from the predictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.data import load_records
from benchmarks.evaluation.stage import means
from benchmarks.files import BrokenRecord, read_parquet
from benchmarks.scoring.by_test import SCORES, scorer_of, scores
from benchmarks.scoring.diversity import draw_statistics
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import Form
from benchmarks.verification.differences import CLOSE, changed_value


def wrong_answers(record: dict[str, Any], paths: Paths, form: Form) -> Iterator[str]:
    """Yield what is wrong with the predictions' digests, the score of each answer, and the mean scores.

    ``record`` is the record of the evaluate stage.
    """
    for name, digest in record["predictions"].items():
        path = paths.predictions(name)
        if name not in record["decodings"]:
            yield f"no scores of {path.name} are recorded"
            continue
        try:
            frame = read_parquet(path, digest, "`evaluate`")
        except BrokenRecord as error:
            yield str(error)
        else:
            yield from _scores(name, frame, form)
            for test, recorded in record["decodings"][name]["tests"].items():
                yield from _means(f"{name}, {test}", frame.loc[frame["test"] == test], recorded)


def _scores(name: str, frame: pd.DataFrame, form: Form) -> Iterator[str]:
    again = scores(frame.assign(question=_questions(frame, form)))
    for column in (name for name in SCORES if name in frame):  # older predictions lack `draws` and `choices`
        old, values = (_plain(one, column) for one in (frame, again))
        wrong = frame.loc[(old != values) & ~(old.isna() & values.isna())]
        if len(wrong):
            first = wrong.iloc[0]
            yield (
                f"{name}: `{column}` of {len(wrong)} answers is not what the scorer says, first {first['test']} "
                f"{first['id']}, seed {first['seed']}"
            )


def _plain(frame: pd.DataFrame, column: str) -> pd.Series:
    """Return a column with comparable values: lists, which are arrays when they are read back, become tuples."""
    values = [tuple(value) if isinstance(value, list | np.ndarray) else value for value in frame[column]]
    return pd.Series(values, index=frame.index, dtype="object")


def _questions(frame: pd.DataFrame, form: Form) -> list[str]:
    """Return the question of each answer. Only questions whose scorer reads steps are loaded; others are empty."""
    stepwise = [test for test in frame["test"].unique() if scorer_of(test).reads_steps]
    texts = {(test, row.id): row.question for test in stepwise for row in load_records(test, form, "test")}
    return [texts.get(key, "") for key in zip(frame["test"], frame["id"], strict=True)]


def _means(place: str, frame: pd.DataFrame, recorded: dict[str, Any]) -> Iterator[str]:
    for key, found in means(frame).items():
        old, values = _listed(recorded[key]), _listed(found)
        if len(old) != len(values) or any(abs(a - b) > CLOSE for a, b in zip(old, values, strict=True)):
            yield f"{place}: `{key}` is recorded as {old} and comes out as {values}"
    drawn = draw_statistics(frame) if "draws" in frame else []
    if changed := changed_value(recorded.get("draws") or [], drawn):
        yield f"{place}: `draws`: {changed}"


def _listed(value: list[float] | float | None) -> list[float]:
    """Return a score as a list: one number per decoding seed, a single number, or none."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
