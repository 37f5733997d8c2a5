"""The content of the page of a study's questions: what each row answered to each of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.data import get_dataset, open_test
from benchmarks.data.records import digest
from benchmarks.data.sets import DATASETS
from benchmarks.data.sources import Generated
from benchmarks.files import BrokenRecord, read_parquet
from benchmarks.records.results import MADE_BY, Collected
from benchmarks.records.schema import read_model
from benchmarks.studies.paths import COLLECTED, DONE, data_folder
from methods.errors import InputError

FRAME = "frame.csv"
NAMES = ["block", "row", "title", "run"]  # columns of the frame that are text, whatever it looks like
COLUMNS = ("test", "id", "seed", "text", "gold", "correct", "n_steps")


def questions(results: Path, study: str) -> list[dict[str, Any]]:
    """Return the blocks of a collected study with the answers of their rows: those of the first training and decoding
    seed that are at hand, under the default decoding. Rows without any are left out, and so are blocks.

    A block has its ``name``, the titles of its ``rows``, and a ``line`` for each question of each test set: the titles
    of the ``test``, the number of ``steps`` (None: unknown), the question's ``text`` (empty if it is not at hand), the
    ``gold`` answer, and by row its ``answers`` and whether that is ``right``.
    """
    path = results / study / FRAME
    if not path.is_file():
        return []
    again = "run `marcos-bench collect` again"
    held = read_model(results / study / COLLECTED, Collected, again, again)
    try:
        frame = pd.read_csv(path, dtype=dict.fromkeys(NAMES, str), keep_default_na=False, usecols=[*NAMES, "shown"])
        shown = frame.loc[frame["shown"] & (frame["run"] != "")]
    except (ValueError, KeyError) as error:  # ValueError: from pandas
        raise BrokenRecord(f"{path} is no frame of results ({error}): {again}") from error
    blocks = []
    for block, members in shown.groupby("block", sort=False):
        found: dict[str, tuple[str, pd.DataFrame]] = {}  # of each row, its first training that answered
        for row, title, run in members[NAMES[1:]].drop_duplicates().to_numpy():
            if row not in found and (answers := _answers(results, held, run)) is not None:
                found[row] = title.removeprefix("- "), answers
        if found:
            titles, frames = zip(*found.values(), strict=True)
            lines = _lines(frames, held.data.get(block, {}), data_folder(results, study, block))
            blocks.append({"name": block, "rows": [*titles], "lines": lines})
    return blocks


def _answers(results: Path, held: Collected, run: str) -> pd.DataFrame | None:
    """Return a run's answers, by test set and question, or None if there are none in this folder."""
    records = held.runs[run]
    if not records.train or not records.evaluate:
        return None
    spec = records.train.spec  # of the study that made the run, which may be another one
    path = results / spec["study"] / "runs" / spec["id"] / "predictions" / "default.parquet"
    if not path.is_file():
        return None
    frame = read_parquet(path, records.evaluate.predictions["default"], MADE_BY, COLUMNS)
    return frame.loc[frame["seed"] == frame["seed"].min()].set_index(["test", "id"])


def _lines(answers_of_rows: Sequence[pd.DataFrame], data: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return a block's lines, given the answers of its rows, its data record and the folder of its prepared data."""
    every = pd.concat(answers_of_rows)
    asked = every[~every.index.duplicated()]
    tests = asked.index.get_level_values("test").unique()
    titles = {test: data.get("cards", {}).get(test, {}).get("title", test) for test in tests}
    texts = {test: _texts(test, data, folder) for test in tests}
    aligned = [frame.reindex(asked.index) for frame in answers_of_rows]
    answers = zip(*(frame["text"].fillna("") for frame in aligned), strict=True)
    rights = zip(*(frame["correct"].eq(True) for frame in aligned), strict=True)
    steps = asked["n_steps"].astype("Int64")
    return [
        {
            "test": titles[test],
            "steps": None if pd.isna(count) else int(count),
            "text": texts[test].get(id, ""),
            "gold": gold,
            "answers": answer,
            "right": right,
        }
        for (test, id), count, gold, answer, right in zip(
            asked.index, steps, asked["gold"], answers, rights, strict=True
        )
    ]


def _texts(test: str, data: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the questions of a test set by id: from prepared data, or generated again if they come out the same."""
    if (folder / DONE).is_file() and (folder / "tests" / test).is_dir():
        prepared = open_test(folder, test)
        return dict(zip(prepared.ids, prepared.texts, strict=True))
    if isinstance(DATASETS.get(test), Generated):
        with suppress(InputError):  # it is derived from a published set that is not at hand
            rows = get_dataset(test).rows("test")
            if digest(rows) == data.get("digests", {}).get(f"{test}/test"):
                return {f"{test}-test-{row.key}": row.question for row in rows}
    return {}
