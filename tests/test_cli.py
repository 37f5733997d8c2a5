"""The command line: what its commands print and write beyond the functions that they call."""

from __future__ import annotations

import inspect
import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from benchmarks.cli import PANELS, app
from benchmarks.cli.catalogue import describe_options
from benchmarks.data import DATASETS
from benchmarks.records import results
from benchmarks.studies.study import STUDIES, study_path
from commands import invoke, output, study_file
from conftest import bibtex_fields
from fabricate import collected, study
from methods.registry import available, get_method


def test_the_help_groups_all_commands() -> None:
    lines = [line.strip("│ ") for line in output("--help").splitlines()]
    places = [next(i for i, line in enumerate(lines) if line.startswith(f"╭─ {panel}")) for panel in PANELS]
    assert places == sorted(places) and "╭─ Commands" not in "\n".join(lines)
    names = {line.split()[0] for line in lines[places[0] :] if line[:1].isalpha()}
    assert {"train", "table", "pack", "measure", "new-method"} < names
    assert len(names) == len(app.registered_commands), "each in one panel, with its description in one line"


def test_the_version_is_that_of_the_package() -> None:
    assert output("--version") == f"marcos-bench {version('marcos-bench')}\n"


@pytest.mark.parametrize(
    ("asked", "passed"),
    [
        ([], ["--cores", "all"]),
        (["-c1", "-n", "--", "results/table.md"], ["--cores", "all", "-c1", "-n", "--", "results/table.md"]),
        (["--workflow-profile=slurm"], ["--workflow-profile=slurm"]),
    ],
)
def test_what_follows_a_study_goes_to_snakemake(
    asked: list[str], passed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words[1:]))
    output("run", "smoke", *asked)
    files = ["--configfile", str(STUDIES / "smoke.yaml"), "--snakefile", str(STUDIES.parent / "Snakefile")]
    assert started == [["-m", "snakemake", *files, *passed]]
    done = invoke("run", "smok", code=2)
    assert "did you mean `smoke`?" in done.output and len(started) == 1


def test_bad_input_ends_in_a_message_and_a_bug_in_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    done = invoke("train", "no_such_study", "equation/cot_sft/s0", code=2)
    assert done.output.startswith("error: no study at")
    monkeypatch.setattr("benchmarks.cli.common.load_study", lambda name: list(zip([1], [1, 2], strict=True)))
    done = invoke("train", "smoke", "equation/cot_sft/s0", code=1)
    assert isinstance(done.exception, ValueError) and "error:" not in done.output


def test_methods_are_described_by_whole_sentences() -> None:
    text = output("list", "methods")
    assert len(text.splitlines()) == len(available()) + 1 and "marcos-bench list methods NAME" in text.splitlines()[-1]
    for cls in available().values():
        about = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
        assert about.endswith(".") and about in text, cls


@pytest.mark.parametrize("name", available())
def test_every_option_is_described(name: str) -> None:
    assert [option for option, _, about in describe_options(get_method(name).Options()) if not about] == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("coconut", "uniform_prob: float, default 0\n    fraction of examples trained at a random stage\n"),
        ("colar", "speed: int | null, default null\n    compression factor at test time; null: max_compression\n"),
        (
            "marcos",
            "thinking_init: normal | xavier, default normal\n    initialisation of the thinking layer's matrices: the",
        ),
        ("marcos", "L1 term on R and its weight lambda\nsparsity.weight: float, default 0.0001\n    lambda, or"),
    ],
)
def test_options_are_shown_with_default_and_description(name: str, shown: str) -> None:
    assert shown in output("list", "methods", name)


def test_data_sets_are_listed_and_their_cards_shown() -> None:
    listed = output("list", "datasets").splitlines()
    assert [line.split()[0] for line in listed[:-1]] == list(DATASETS)
    (gsm8k,) = (line for line in listed if line.startswith("gsm8k "))
    assert "GSM8K  " in gsm8k and gsm8k.endswith("7,473 train, 1,319 test (equation, text)")
    card = output("list", "datasets", "multiarith")
    fields = yaml.safe_load(card.split("@")[0])
    assert fields["licence"].startswith("Apache-2.0") and fields["counts"] == {"test": 600}
    assert fields["files"]["test"][0]["path"] == "multiarith/MultiArith.json" and "@inproceedings{roy2015" in card
    assert "\nhub: 'cq01/mawps-asdiv-a_svamp (not pinned: never" in output("list", "datasets", "svamp_paper4138")
    assert "did you mean `multiarith`?" in output("list", "datasets", "multiarit", code=2)


@pytest.mark.parametrize(
    ("name", "cited"),
    [
        ("gsm8k_small", ["wei", "liu", "deng", "hao", "tan", "shen", "cobbe", "patel", "roy"]),
        ("variants", ["wei", "hao"]),  # its data are generated
    ],
)
def test_what_a_study_compares_is_cited_once(name: str, cited: list[str]) -> None:
    entries = output("cite", name).strip().split("\n\n")
    assert re.findall(r"^@\w+{([a-z]+)", "\n".join(entries), re.M) == cited
    assert all({"title", "author", "year"} <= bibtex_fields(entry) for entry in entries)


def test_a_study_is_shown_with_its_blocks_rows_and_tests() -> None:
    shown = output("list", "studies", "stories_seeds").splitlines()
    assert shown[0] == "Arithmetic stories, three trainings of each row"
    assert "  equation  Equation: embedded, as equation" in shown
    assert "  answer_only     Answer only (cot_sft, control)" in shown
    assert "tests: embedded_in_domain, embedded_reworded, embedded_multistep" in shown
    assert any(line.startswith("shared with stories: equation/answer_only/s0, ") for line in shown)
    assert "  icot_si         iCoT-SI (icot_si, only in equation)" in output("list", "studies", "stories")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("measure smoke --batching --row marcos", "--row does not go with --batching"),
        ("measure smoke --name here --questions 3", "--questions goes with --batching"),
        ("measure smoke", "name this machine, as in `--name h200`, or measure `--batching`"),
        ("measure smoke --name ../h200", "use only letters, digits"),
        ("data quick --block equatoin", "study quick has no block 'equatoin'; its blocks are: text, equation"),
        ("table smoke --table ablation", "smoke does not list the table ablation; its tables are: main, decoding, con"),
        # Otherwise, the run of the other study would be trained a second time
        ("train stories_seeds equation/cot_sft/s0", "ask for `stories equation/cot_sft/s0`"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(words: str, message: str, tmp_path: Path) -> None:
    assert message in output(*words.split(), "--results", tmp_path, code=2)
    assert not [*tmp_path.iterdir()]


def test_options_of_no_method_are_a_clear_error() -> None:
    assert "no method is named 'coconat'; did you mean `coconut`?" in output("list", "methods", "coconat", code=2)


def test_a_plan_of_tests_that_there_are_none_of_is_refused(tmp_path: Path) -> None:
    text = study_path("smoke").read_text(encoding="utf-8").replace("name: smoke", "name: mine")
    (path := tmp_path / "mine.yaml").write_text(text.replace("tests: [", "tests: [svmp, "), encoding="utf-8")
    assert "no data set is named 'svmp'; did you mean `svamp`?" in output("plan", path, "--results", tmp_path, code=2)


def test_a_broken_study_is_named_and_the_others_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = study_path("smoke").read_text(encoding="utf-8")
    for name in ("first", "a_name_of_more_than_16_letters", "last"):
        (tmp_path / f"{name}.yaml").write_text(text.replace("name: smoke", f"name: {name}"), encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("name: [broken", encoding="utf-8")
    monkeypatch.setattr("benchmarks.studies.study.STUDIES", tmp_path)
    lines = output("list", "studies", code=2).splitlines()
    assert f"error: {tmp_path}/broken.yaml: not valid YAML" in lines[3]
    assert [line.split()[0] for line in lines[:3]] == ["a_name_of_more_than_16_letters", "first", "last"]
    assert {line.index("Smoke test") for line in lines[:3]} == {32}


def test_a_study_is_shown_by_its_first_table(tmp_path: Path) -> None:
    made = study(tables=["decoding", "main"])
    collected(made, tmp_path)
    table = ("table", study_file(made, tmp_path), "--results", tmp_path)
    assert "A fabricated study: decodings" in output(*table)
    assert {file.name for file in (tmp_path / "fake").glob("table_*.md")} == {"table_decoding.md"}
    assert "Training FLOPs" in output(*table, "--table", "main")


def test_a_study_without_tables_says_so(tmp_path: Path) -> None:
    table = ("table", study_file(study(tables=[]), tmp_path), "--results", tmp_path)
    for asked, message in (([], "lists no table (`tables: []`)"), (["--table", "main"], "its tables are: none (and")):
        assert message in output(*table, *asked, code=2)


def test_a_table_without_any_result_says_so(tmp_path: Path) -> None:
    made = study()
    table = ("table", study_file(made, tmp_path), "--results", tmp_path)
    results.collect(made, tmp_path)
    done = invoke(*table)
    assert "warning: no run of fake has a record" in done.stderr and "not run" in done.stdout
    collected(made, tmp_path)
    assert invoke(*table).stderr == ""


def test_the_median_of_an_even_number_of_times_is_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"tests": {"alpha": {"answer_only": {"seconds": [3.0, 1.0, 2.0, 8.0], "n": 7}}}}
    for name in ("processes.devices.pin_for", "data.store.require_prepared"):
        monkeypatch.setattr(f"benchmarks.{name}", lambda *_: None)
    monkeypatch.setattr("benchmarks.timing.task.time_run", lambda *_: times)
    assert "alpha (answer_only): 2.50 s for 7 questions" in output("time", "smoke", "equation/marcos/s0")
