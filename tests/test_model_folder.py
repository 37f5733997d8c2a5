"""What a ``model`` folder gives, wherever it was copied to: answers to questions."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.analysis.responses import TrainedModel
from benchmarks.data import open_test
from benchmarks.evaluation.task import evaluate
from benchmarks.files import write_json
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import Study
from benchmarks.training.loop import train
from commands import output
from conftest import ROOT
from small import MARCOS, fresh, small_study

ROWS = [
    {"id": "cot_sft", "method": "cot_sft"},
    {"id": "codi", "method": "codi", "options": {"num_latents": 2}},
    {"id": "marcos", "method": "marcos", "options": MARCOS},
]
METHODS = [row["id"] for row in ROWS]


def study() -> Study:
    evaluation = {"tests": ["embedded_multistep"], "max_new_tokens": 24, "decodings": {"default": {"seeds": 1}}}
    return small_study(ROWS, training={"epochs": 1}, evaluation=evaluation)


@pytest.fixture(scope="module")
def trained(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with trained and evaluated runs."""
    results = fresh(small_data, tmp_path_factory.mktemp("results"))
    for spec in study().runs.values():
        train(spec, results)
        evaluate(spec, results)
    return results


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """Return a folder with copies of the runs' model folders, by method, and with nothing else of them."""
    for spec in study().runs.values():
        shutil.copytree(Paths(trained, spec).model, tmp_path / "copied" / spec.row)
    return tmp_path / "copied"


def stored(trained: Path, method: str) -> pd.DataFrame:
    """Return the questions of a test set, and what a run answered in the evaluate stage."""
    paths = Paths(trained, study().runs[f"equation/{method}/s0"])
    test = open_test(paths.data, "embedded_multistep")
    rows = pd.read_parquet(paths.predictions("default")).set_index("id")
    return pd.DataFrame({"question": test.texts, "text": rows.loc[test.ids, "text"].tolist()})


@pytest.mark.parametrize("method", METHODS)
def test_a_question_is_answered_as_in_the_evaluate_stage(method: str, trained: Path, copied: Path) -> None:
    different = stored(trained, method).drop_duplicates("text")[:3]
    model = TrainedModel.of_folder(copied / method)
    for question, text in different.to_numpy().tolist():
        assert model.generate([model.tokenize(f" {question}\n")], model.decoding).answers == [text]


def test_a_model_alone_is_explained_as_in_its_study(
    trained: Path, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")  # wide enough for whole answers
    question, answer = stored(trained, "marcos").iloc[0]
    said = output("explain", copied / "marcos", "--text", question, "--output", tmp_path / "latents.npz")
    write_json(trained / "study.yaml", study().model_dump(mode="json"))
    asked = ["--text", question, "--run", "equation/marcos/s0", "--results", trained]
    assert said.splitlines()[:-1] == output("explain", trained / "study.yaml", *asked).splitlines()
    assert answer.split("\n")[-1] in said and "1. " in said and (tmp_path / "latents.npz").is_file()


def test_options_for_a_study_are_refused_for_a_model(copied: Path) -> None:
    model = ["explain", copied / "marcos"]
    said = output(*model, "--text", "How many?", "--run", "equation/marcos/s0", code=2)
    assert "error: --run goes with a study: ask a model folder with --text" in said
    assert "error: --question goes with a study" in output(*model, "--question", 1, code=2)


@pytest.mark.parametrize("part", ["spec.json", "tokenizer", "backbone", "weights.safetensors"])
def test_a_folder_that_lacks_a_part_is_refused(part: str, copied: Path, tmp_path: Path) -> None:
    (copied / "codi" / part).rename(tmp_path / "away")
    said = output("explain", copied / "codi", "--text", "How many?", code=2)
    assert f"codi is no model folder, as it has no {part}: name the folder `model` of" in said


def test_the_example_of_the_page_runs(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    exec(re.sub(r'Path\(".*?"\)', f"Path({str(copied / 'marcos')!r})", code), {})
    assert "{'thoughts': (3, 3, 32), 'R': (3, 32)}" in capsys.readouterr().out
