"""The table of nats, and the accuracy with encoded latents below it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.records import results
from benchmarks.studies.specs import Table
from benchmarks.studies.study import Study
from benchmarks.tables.markup import DASH
from fabricate import collected, contents, fabricate, study
from test_tables import cells

EQUATION, ALPHA = "Training data: equation", "Training data: equation · Alpha & Co 100%"
ROWS: list[dict[str, Any]] = [
    {"id": "cot", "method": "cot_sft"},
    {"id": "marcos", "method": "marcos"},
    {"id": "marcos_wo_r", "method": "marcos", "title": "w/o R", "options": {"randomness": False}},
    {"id": "codi", "method": "codi"},
]
DECODINGS = {"default": {"seeds": 3}, "gold_r": {"latents": "encoded", "seeds": 1}}


def made(nats: int = 40, decodings: Any = DECODINGS, **changes: Any) -> Study:
    evaluation = {"tests": ["alpha", "beta"], "decodings": decodings, "nats": nats}
    return study(rows=ROWS, evaluation=evaluation, **changes)


def rendered(ours: Study, folder: Path) -> dict[str, str]:
    results.collect(ours, folder)
    return contents(ours, folder, Table.nats)


def test_the_bound_stands_beside_exact_likelihoods(tmp_path: Path) -> None:
    fabricate(made(), tmp_path)
    files = rendered(made(), tmp_path)
    whole = {title: cells(files["md"], title, EQUATION) for title in ("CoT-SFT", "MarCos", "w/o R", "CODI")}
    assert whole["CoT-SFT"][:5] == ["5.00", DASH, "5.00", "1.00", DASH]
    assert whole["MarCos"][:5] == ["1.50", "6.00", "7.50", "1.00", "3.00"]
    assert whole["w/o R"][:5] == ["1.50", DASH, "1.50", "1.00", "3.00"]
    assert whole["CODI"][:5] == [DASH, DASH, DASH, DASH, "3.00"]
    assert {line[-1] for line in whole.values()} == {"40"} and whole["CODI"][5] == DASH
    low, high = map(float, whole["MarCos"][5].split(" to "))
    assert 5 < low < 7.5 < high < 10, "not held to shares of 1"
    steps = files["md"].split("## By step")[1]
    assert cells(steps, "CoT-SFT: text") == ["4.00", DASH, "1.00"], "its chain, and the answer"
    assert cells(steps, "MarCos: text") == ["0.50", "0.00", "1.00"]
    assert cells(steps, "MarCos: KL") == ["2.00"] * 3
    frame = pd.read_csv(io.StringIO(files["csv"]))
    assert frame.loc[frame["row"] == "codi", "quantity"].tolist() == ["answer"] * 2, "in either block"
    assert {line["part"] for line in json.loads(files["json"])["lines"]} == {0, 1, 2, 3}


def test_details_of_the_main_table_have_the_same_nats(tmp_path: Path) -> None:
    fabricate(made(), tmp_path)
    rendered(made(), tmp_path)
    files = contents(made(), tmp_path)
    assert cells(files["md"], "MarCos", ALPHA)[-5:] == ["1.50", "6.00", "7.50", "1.00", "3.00"]
    assert cells(files["md"], "CODI", ALPHA)[-5:] == [DASH] * 4 + ["3.00"]
    assert "gold texts of 40 validation rows" in files["md"] and json.loads(files["json"])["nats"]
    collected(made(0), tmp_path / "none")
    assert "Nats" not in contents(made(0), tmp_path / "none")["md"]


def test_encoded_latents_are_beside_drawn_ones(tmp_path: Path) -> None:
    fabricate(made(), tmp_path)
    accuracy = rendered(made(), tmp_path)["md"].split("## Accuracy with encoded latents")[1]
    drawn, encoded = cells(accuracy, "MarCos", ALPHA)
    assert "±" in drawn and encoded.endswith("(det.)") and cells(accuracy, "w/o R", ALPHA)[1] == DASH
    assert "Gold R (%)" in accuracy
    alone = made(decodings={"default": {"seeds": 3}})
    fabricate(alone, tmp_path)
    assert "## Accuracy" not in rendered(alone, tmp_path)["md"]


def test_several_trainings_have_a_spread_and_missing_ones_a_note(tmp_path: Path) -> None:
    ours = made(seeds=[0, 1, 2])
    fabricate(ours, tmp_path)
    for run in ("equation/marcos/s2", "text/cot/s0", "text/cot/s1", "text/cot/s2"):
        (tmp_path / f"fake/runs/{run}/evaluate.json").unlink()
    files = rendered(ours, tmp_path)
    assert cells(files["md"], "CODI", EQUATION)[4] == "4.00 ± 1.00"
    marcos = cells(files["md"], "MarCos", EQUATION)
    assert marcos[0] == "3.00 ± 2.12" and marcos[-1].startswith("40<sup>")
    assert cells(files["md"], "CoT-SFT")[-1].startswith("not run<sup>")
    assert "± is the standard deviation over training seeds" in files["md"]


def test_a_study_without_nats_says_how_to_ask_for_them(tmp_path: Path) -> None:
    fabricate(made(0), tmp_path)
    text = rendered(made(0), tmp_path)["md"]
    assert "set `nats: 200` in its `evaluation`" in text and cells(text, "MarCos")[:5] == [DASH] * 5
