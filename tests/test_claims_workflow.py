"""What the workflow makes for the table of claims, which shows records of the paper's studies too."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import ROOT
from copies import copy_suite, snakemake, stand_in
from test_workflow import STAND_IN, planned


def records_of(study: str, folder: Path, content: str) -> None:
    path = folder / f"results/{study}/collect.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def test_all_of_a_study_that_is_named_trains_no_other(tmp_path: Path) -> None:
    folder = copy_suite(tmp_path)
    records_of("paper_3b", folder, "{}")
    output = snakemake(folder, "--dry-run", "--config", "study=paper_0.5b", "--", "all")
    assert "results/paper_0.5b/table_claims.md" in output
    assert set(re.findall(r"wildcards: study=(\S+), run=", output)) == {"paper_0.5b"}


def test_records_of_the_papers_studies_render_the_table_anew(tmp_path: Path) -> None:
    folder = copy_suite(tmp_path)
    stand_in(folder, STAND_IN)
    smoke = (ROOT / "workflows/config/smoke.yaml").read_text(encoding="utf-8")
    text = smoke.replace("name: smoke", "name: mine")
    (folder / "mine.yaml").write_text(f"{text}\ntables: [claims]\n", encoding="utf-8")
    asked = ("--configfile", "mine.yaml", "--", "results/mine/table_claims.md")
    assert planned(snakemake(folder, *asked))["table"] == 1
    records_of("quick", folder, "{}")
    for content in ("{}", "{ }"):
        assert "Nothing to be done" in snakemake(folder, *asked)
        records_of("paper_3b", folder, content)
        assert planned(snakemake(folder, *asked)) == {"table": 1}
