"""The synthetic tasks in all stages, the scoring of answers with steps, and tables from fabricated records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from benchmarks.data import TestSet, prepare
from benchmarks.data.records import DataError
from benchmarks.evaluation import task as evaluation
from benchmarks.files import read_json, write_json, write_parquet
from benchmarks.records import results
from benchmarks.scoring import SCORERS
from benchmarks.scoring.diversity import draw_statistics, entropy
from benchmarks.scoring.scorers import score_answers, scorers_of
from benchmarks.scoring.synthetic import repeats
from benchmarks.studies.paths import Paths
from benchmarks.studies.study import Study, StudyError, load_study, parse_study, study_path
from benchmarks.tables.markup import DASH
from benchmarks.training.loop import train
from fabricate import contents, fabricate, let_r_die

RS = "rs_n2_k3"
TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def small(name: str, blocks: tuple[str, ...]) -> Study:
    """Return some blocks and the first two rows of a shipped study, with few examples and a tiny backbone."""
    content = yaml.safe_load(study_path(name).read_text(encoding="utf-8"))
    content["backbone"]["overrides"] = TINY | {"num_key_value_heads": 1, "head_dim": 8}
    content["blocks"] = [block for block in content["blocks"] if block["id"] in blocks]
    for block in content["blocks"]:
        block["data"] |= {"validation": 8, "limit": 64}
        block.get("options", {}).pop("marcos_own_draws", None)
    content["rows"] = [{key: value for key, value in row.items() if key != "blocks"} for row in content["rows"][:2]]
    kept = {row["method"] for row in content["rows"]}
    for decoding in content["evaluation"]["decodings"].values():
        if "only" in decoding:
            decoding["only"] = [method for method in decoding["only"] if method in kept]
    for place in (content, *content["rows"], *content["blocks"]):
        if "training" in place:
            place["training"].pop("epochs", None)
    content["training"] |= {"epochs": 1, "batch_size": 32, "validations": 1}
    content["evaluation"]["tests"] = [test for block in content["blocks"] for test in block["tests"]]
    content["evaluation"] |= {"max_new_tokens": 8, "batch_size": 500}
    for decoding in content["evaluation"]["decodings"].values():
        decoding["seeds"] = min(2, decoding.get("seeds", 2))
    return parse_study(content, name)


def test_a_study_goes_through_all_stages(tmp_path: Path) -> None:
    """Random Summation does in `tests/test_paper_studies.py`."""
    study, steps = small("long_range", ("k4",)), 4
    for block in study.blocks:
        prepare(study, block, tmp_path)
    for spec in study.runs.values():
        train(spec, tmp_path)
        evaluation.evaluate(spec, tmp_path)
        frame = pd.read_parquet(Paths(tmp_path, spec).run / "predictions" / "default.parquet")
        assert len(frame["draws"].iloc[0]) == len(frame["choices"].iloc[0]) > 0
        if spec.method == "marcos":
            assert spec.options["steps"] == steps, "the block's own"
            assert (frame["text"].str.count("\n") >= steps - 1).all(), "a line for each step"
    frame = results.collect(study, tmp_path)
    assert set(frame.status) == {"done"}
    table = contents(study, tmp_path, study.tables[0])
    assert "not run" not in table["md"] and study.blocks[0].title in table["md"]


# ---- scoring


def asked(**changes: Any) -> TestSet:
    fields: dict[str, Any] = {"ids": ["a", "b"], "texts": ["1 2", "3 4"], "questions": [[1], [2]]}
    fields |= {"answers": ["2 + 3 = 5", "5 + 6 = 11"], "n_steps": [1, 1], "overlap": [False, False]}
    return TestSet(RS, **(fields | changes))


def answered(*by_seed: tuple[str, str]) -> pd.DataFrame:
    """Return answers to the two questions of :func:`asked`, by decoding seed."""
    rows = [(RS, id, seed, said) for seed, texts in enumerate(by_seed) for id, said in zip("ab", texts, strict=True)]
    return pd.DataFrame(rows, columns=["test", "id", "seed", "text"]).assign(tokens=1, forward_passes=2, latent_steps=0)


def test_predictions_hold_what_was_drawn_and_records_how_varied_it_is() -> None:
    said = answered(
        ("2 3\n#### 2 + 3 = 5", "5 6\n#### 5 + 6 = 11"),
        ("2 3\n#### 2 + 3 = 6", "4 5\n#### 4 + 5 = 9"),
        ("2 4\n#### 2 + 4 = 6", "4 5\n#### 4 + 5 = 9"),
    )
    frame = score_answers(said, {RS: asked()})
    assert [list(draws) for draws in frame["draws"]] == [["1"], ["2"], ["1"], ["1"], [None], ["1"]]
    found = evaluation.summary(frame)
    assert found["accuracy"] == [1.0, 0.5, 0.5]
    (draws,) = found["draws"]
    assert draws["counts"] == {"1": 4, "2": 1} and draws["n"] == 5 and draws["choices"] == 10
    assert draws["share"] == pytest.approx(5 / 6)
    assert draws["entropy"] == pytest.approx(0.8 * math.log2(5 / 4) + 0.2 * math.log2(5))
    assert draws["maximum"] == pytest.approx(math.log2(5)), "five draws cannot be more than five different ones"
    assert draws["agreement"] is None, "four pairs of draws say nothing"
    (draws,) = draw_statistics(pd.concat([frame.assign(id=frame["id"] + str(copy)) for copy in range(8)]))
    assert draws["agreement"] == pytest.approx(2 / 4), "one pair of the first question, and one of three of the second"


def test_nothing_drawn_has_no_statistics() -> None:
    frame = pd.DataFrame({"id": ["a"], "seed": [0], "draws": [[]], "choices": [[]]})
    assert draw_statistics(frame) == []
    frame = pd.DataFrame({"id": ["a"], "seed": [0], "draws": [[None]], "choices": [[10]]})
    (draws,) = draw_statistics(frame)
    assert (draws["n"], draws["entropy"], draws["maximum"], draws["agreement"]) == (0, 0.0, 0.0, None)


def test_entropy_is_that_of_the_distribution() -> None:
    assert entropy([5] * 8) == pytest.approx(3.0)
    assert entropy([7]) == entropy([]) == 0.0


def test_tests_of_both_kinds_need_blocks_of_their_own() -> None:
    assert scorers_of(["gsm8k"])["gsm8k"] is SCORERS["number"]
    with pytest.raises(DataError, match="a block of its own"):
        scorers_of([RS, "gsm8k"])


# ---- studies


def test_blocks_have_their_own_tests_and_options() -> None:
    study = load_study("long_range")
    for block, steps in (("k4", 4), ("k8", 8), ("k16", 16)):
        run = study.runs[f"{block}/marcos/s0"]
        assert run.options["steps"] == steps and run.evaluation.tests == (f"copy_k{steps}",)


def test_a_row_decodes_in_its_own_way() -> None:
    """Both models sample by default: the transformer its tokens, MarCos its R, after which it decodes greedily."""
    for name in ("synthetic", "long_range", "paper_synthetic", "paper_long_range"):
        study = load_study(name)
        decodings = {run.row: run.evaluation.decodings for run in study.runs.values()}
        assert decodings["cot_sft"]["default"].tokens == "sample" and decodings["cot_sft"]["default"].seeds == 5
        assert decodings["marcos"]["default"].tokens == "greedy" and decodings["cot_sft"]["greedy"].tokens == "greedy"


def test_a_row_that_changes_an_unknown_decoding_is_refused() -> None:
    content = yaml.safe_load(study_path("synthetic").read_text(encoding="utf-8"))
    content["rows"][0]["decodings"] = {"smapled": {"seeds": 5}}
    with pytest.raises(StudyError, match=r"row 'cot_sft' changes decodings \['smapled'\]: name them in `evaluation`"):
        parse_study(content, "place.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tests": ["gsm8k"]}, r"names \['gsm8k'\]: name them in `evaluation.tests`"),
        ({"options": {"codi": {}}}, r"options of \['codi'\], which no row names"),
        ({"options": {"marcos": {"stpes": 3}}}, "stpes"),
    ],
)
def test_blocks_that_name_what_is_not_there_are_refused(change: dict[str, Any], message: str) -> None:
    content = yaml.safe_load(study_path("synthetic").read_text(encoding="utf-8"))
    content["blocks"][0] |= change
    with pytest.raises(StudyError, match=message):
        parse_study(content, "place.yaml")


# ---- tables


def with_draws(study: Study, folder: Path, counts: dict[str, int]) -> None:
    """Fabricate the records of a study whose answers drew the given ``counts``."""
    fabricate(study, folder, {"cot_sft": (0.5,), "marcos": (0.9,)})
    draws = {"n": 100, "share": 0.75, "choices": len(counts), "entropy": 1.25, "maximum": 2.0, "agreement": 0.25}
    for spec in study.runs.values():
        path = Paths(folder, spec).run / "evaluate.json"
        record = read_json(path)
        for decoding in record["decodings"].values():
            for scores in decoding["tests"].values():
                scores["draws"] = [draws | {"counts": counts}]
        write_json(path, record)
    results.collect(study, folder)


def repeating(study: Study, folder: Path, run: str) -> None:
    """Let a run that :func:`with_draws` fabricated repeat the same step all the time."""
    path = Paths(folder, study.runs[run]).run / "evaluate.json"
    predictions = path.parent / "predictions/default.parquet"
    digest = write_parquet(predictions, pd.read_parquet(predictions).assign(text="1 2\n" * 4 + "#### 1 2"))
    record = read_json(path)
    write_json(path, record | {"predictions": record["predictions"] | {"default": digest}})
    results.collect(study, folder)


def lines(text: str) -> dict[str, list[str]]:
    """Return the cells of a Markdown table by title, of the first line with this title."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            title, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(title.replace("&nbsp;", ""), cells)
    return found


def test_the_table_has_both_accuracies_the_entropy_and_the_papers_numbers(tmp_path: Path) -> None:
    study = load_study("paper_synthetic")
    with_draws(study, tmp_path, {str(digit): 10 for digit in range(10)})
    text = contents(study, tmp_path, study.tables[0])["md"]
    found = lines(text)
    assert found["Model"][:3] == ["RS Sampled (%)", "RS Greedy (%)", "RS Entropy (bits)"]
    sampled, greedy, drawn = found["Transformer"][:3]
    assert "±" in sampled and "±" not in greedy and drawn == "1.25 of 2.00"
    assert found["paper"] == ["99.90", DASH, DASH, "58.90", DASH, DASH, "17.00", DASH, DASH]
    assert "25.00" in found["MarCos (sampled: default)"] and "75.00" in found["MarCos (sampled: default)"]
    assert "RS: Transformer 43.60 points below MarCos (p = 0.0003); RS: Transformer" in text  # of three tests per task
    assert "above MarCos, noise on R (p = 0.0003); RP:" in text
    assert "MarCos (greedy: mean R)" in found and "Transformer (sampled: default)" in found
    strict = next(line for line in text.splitlines() if line.startswith("* Strict: "))
    assert "before the answer and nowhere else (" in strict and "and with k equations in step k (" in strict


def test_rows_that_the_paper_does_not_print_have_no_line_of_it(tmp_path: Path) -> None:
    """The paper's source has one that is commented out."""
    content = yaml.safe_load(study_path("paper_synthetic").read_text(encoding="utf-8"))
    content["rows"].append(content["rows"][0] | {"id": "cot_sft_3b", "title": "CoT (3B)"})
    study = parse_study(content, "place.yaml")
    with_draws(study, tmp_path, {"0": 1})
    text = contents(study, tmp_path, study.tables[0])["md"]
    assert "CoT (3B)" in lines(text) and text.count("&nbsp;paper ") == 2


def test_a_task_with_a_dead_r_is_named_with_the_row(tmp_path: Path) -> None:
    study = load_study("synthetic")
    with_draws(study, tmp_path, {"0": 1})
    let_r_die(Paths(tmp_path, study.runs["rp/marcos/s0"]).run)
    results.collect(study, tmp_path)
    found = lines(contents(study, tmp_path, study.tables[0])["md"])
    assert "MarCos (R dead: RP)" in found and "MarCos (R dead) (sampled: default)" in found
    assert "MarCos (sampled: default)" in found


def test_without_the_papers_setting_its_numbers_are_not_shown(tmp_path: Path) -> None:
    study = load_study("synthetic")
    with_draws(study, tmp_path, {"0": 1})
    text = contents(study, tmp_path, study.tables[0])["md"]
    assert "paper" not in lines(text) and "not the paper's" in text


def test_a_run_that_is_not_there_says_so(tmp_path: Path) -> None:
    study = load_study("long_range")
    with_draws(study, tmp_path, {"1": 9, "2": 3, "3": 0})
    (Paths(tmp_path, study.runs["k4/marcos/s0"]).run / "evaluate.json").unlink()
    results.collect(study, tmp_path)
    found = lines(contents(study, tmp_path, study.tables[0])["md"])
    assert found["Model"][:6] == [
        f"K = 4 {name} (%)"
        for name in ("Sampled", "Greedy", "Sampled strict", "Greedy strict", "Sampled repeats", "Greedy repeats")
    ]
    assert found["MarCos"][0].startswith("not run") and "±" in found["MarCos"][6]
    assert DASH not in found["CoT"][2:6] and found["MarCos"][2:6] == [DASH] * 4  # MarCos has no answers


def test_steps_that_the_answers_repeat_have_a_column(tmp_path: Path) -> None:
    study = load_study("long_range")
    with_draws(study, tmp_path, {"1": 3, "2": 1, "3": 0})
    repeating(study, tmp_path, "k8/marcos/s0")
    assert lines(contents(study, tmp_path, study.tables[0])["md"])["MarCos"][10] == "75.00"


def test_steps_that_repeat_one_another_are_counted() -> None:
    """A model that always says the same repeats an earlier step in the last one without remembering anything."""
    assert repeats("1 2\n3 4\n5 6\n#### 3 4") == 0.0
    assert repeats("1 2\n1 2\n1 2\n#### 1 2") == pytest.approx(2 / 3)
    assert repeats("#### 1 2") == repeats("") == 0.0
