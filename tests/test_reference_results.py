"""The committed results are what their records, and the studies of today, make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.archive import ARCHIVE, unpacked
from benchmarks.files import read_json
from benchmarks.studies.study import load_study
from benchmarks.verification.checks import report, verify
from conftest import ROOT

COMMITTED = sorted(path.parent for path in (ROOT / "results/reference").glob(f"*/{ARCHIVE}"))


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_reference_results_hold(folder: Path) -> None:
    """All records and scores hold, and so do tables unless the study has changed since.

    The table of claims, which shows the paper's studies, is part of the results of `stories`.
    """
    found = verify(load_study(folder.name), folder)
    expected = "table_claims.md" if folder.name == "stories" else "table_"
    assert any(finding.place.startswith(expected) for finding in found)
    differs = [finding for finding in found if finding.kind == "differs"]
    changed = any(finding.kind == "drift" and finding.place.endswith("spec.json") for finding in found)
    assert not [finding for finding in differs if "/" in finding.place or not changed]
    assert ("have other settings in today's study" in report(found)) is changed


@pytest.mark.parametrize("name", ["stories", "gsm8k_small"])
def test_what_was_recorded_is_what_the_study_asks_for_today(name: str) -> None:
    """Settings that were added later are left out of digests if they have their defaults."""
    with unpacked(ROOT / "results/reference", [name]) as results:
        for id, run in load_study(name).runs.items():
            for task in ("train", "evaluate", "time"):
                record = read_json(results / f"{name}/runs/{id}/{task}.json")
                assert record["digest"] == run.digest(task), f"{id} {task}"
