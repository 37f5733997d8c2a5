"""What a ``model`` folder gives, wherever it was copied to: answers to questions, and a checkpoint for transformers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from benchmarks.cli import app
from benchmarks.data import load_tokenizer, open_test
from benchmarks.evaluation.task import evaluate
from benchmarks.exports import only_model
from benchmarks.files import write_json
from benchmarks.models import exported_method
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import Study
from benchmarks.training.loop import train
from conftest import ROOT
from methods.errors import InputError
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


def output(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == (2 if "error:" in done.output else 0), done.output
    return done.output


def stored(trained: Path, method: str) -> pd.DataFrame:
    """Return the questions of a test set, and what a run answered in the evaluate stage."""
    paths = Paths(trained, study().runs[f"equation/{method}/s0"])
    test = open_test(paths.data, "embedded_multistep")
    rows = pd.read_parquet(paths.predictions("default")).set_index("id")
    return pd.DataFrame({"question": test.texts, "text": rows.loc[test.ids, "text"].tolist()})


def in_transformers(folder: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("method", METHODS)
def test_a_question_is_answered_as_in_the_evaluate_stage(method: str, trained: Path, copied: Path) -> None:
    different = stored(trained, method).drop_duplicates("text")[:3]
    for question, text in different.to_numpy().tolist():
        assert output("explain", copied / method, "--text", f" {question}\n", "--answer-only") == f"{text}\n"


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
    assert "error: --run goes with a study: ask a model folder with --text" in output(
        *model, "--text", "How many?", "--run", "equation/marcos/s0"
    )
    assert "error: --question goes with a study" in output(*model, "--question", 1)
    assert "error: --answer-only goes with a model folder" in output(
        "explain", "smoke", "--text", "How many?", "--answer-only"
    )


@pytest.mark.parametrize("method", ["cot_sft", "codi"])
def test_the_language_model_is_written_for_transformers(method: str, copied: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "model"
    target.mkdir(parents=True)  # an empty one is in nobody's way
    said = output("export", copied / method, target)
    assert f"{target}: the language model of" in said and ("not in it: project." in said) == (method == "codi")
    own: Any = exported_method(copied / method)
    lm, tokenizer = in_transformers(target)
    ids = torch.arange(own.lm.config.vocab_size)[None]  # markers, which the tokenizer does not know, included
    with torch.no_grad():
        assert torch.equal(lm(ids).logits, own.lm(ids).logits)
    text = "Ann has 3 pens.\n#### 12"
    assert tokenizer.encode(text) == load_tokenizer(copied / method).encode(text)
    assert lm.generation_config.eos_token_id == tokenizer.eos_token_id == own.vocabulary.eos
    assert [*target.parent.iterdir()] == [target], "nothing is left beside it"
    assert {path.stat().st_mode & 0o777 for path in target.iterdir()} == {0o644}, "others may read it, too"


def test_written_chains_continue_in_transformers_as_in_the_suite(trained: Path, copied: Path, tmp_path: Path) -> None:
    output("export", copied / "cot_sft", tmp_path / "lm")
    lm, tokenizer = in_transformers(tmp_path / "lm")
    question, answer = stored(trained, "cot_sft").iloc[0]
    prompt = tokenizer(f"{question}\n", return_tensors="pt", return_token_type_ids=False)
    ids = lm.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(ids, skip_special_tokens=True) == answer


def test_what_is_there_is_not_replaced(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for target in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt", tmp_path / "here"):
        assert f"error: {target} is there already" in output("export", copied / "cot_sft", target)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_several_models_are_not_written_as_one(copied: Path, tmp_path: Path) -> None:
    said = output("export", copied / "marcos", tmp_path / "lm")
    assert "error: MarCos is not one language model, but has these: understanding, thinking, speaking, post" in said
    assert not (tmp_path / "lm").exists()
    method: Any = exported_method(copied / "marcos")
    del method.thinking, method.speaking, method.posterior
    with pytest.raises(InputError, match="MarCos is not one language model, but has these: understanding"):
        only_model(method)  # it has no head


@pytest.mark.parametrize("part", ["spec.json", "tokenizer", "backbone", "weights.safetensors"])
def test_a_folder_that_lacks_a_part_is_refused(part: str, copied: Path, tmp_path: Path) -> None:
    (copied / "codi" / part).rename(tmp_path / "away")
    for command in (["explain", copied / "codi", "--text", "How many?"], ["export", copied / "codi", tmp_path / "lm"]):
        assert f"codi is no model folder, as it has no {part}: name the folder `model` of" in output(*command)


def test_the_example_of_the_page_runs(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    exec(re.sub(r'Path\(".*?"\)', f"Path({str(copied / 'marcos')!r})", code), {})
    assert "{'thoughts': (3, 3, 32), 'R': (3, 32)}" in capsys.readouterr().out
