"""Every shipped study can be run, and the JSON schema is that of the models."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.data import get_dataset
from benchmarks.files import BrokenRecord
from benchmarks.paper.numbers import paper_table
from benchmarks.records.results import load_collected
from benchmarks.studies.runs import row_of, run_id
from benchmarks.studies.study import (
    STUDIES,
    Study,
    StudyError,
    load_study,
    parse_study,
    require_something_to_show,
    shipped,
)
from conftest import ROOT
from methods.backbone import CONFIGURATIONS
from methods.registry import get_method
from small import MINIMAL, TWO_BLOCKS


def test_the_default_studies_are_shipped() -> None:
    assert {"quick", "smoke", "gsm8k_small"} <= set(shipped())


@pytest.mark.parametrize("name", shipped())
def test_shipped_study_is_valid_and_names_what_exists(name: str) -> None:
    study = load_study(name)
    assert study.name == name, "a study's results lie under its name"
    assert {*study.shares} <= {*study.shared}
    seen: set[str] = set()
    for id, run in study.runs.items():
        assert run.id == id and run.backbone.name in CONFIGURATIONS and "default" in run.evaluation.decodings
        assert get_method(run.method).Options.model_validate(run.options)
        assert run.starts_from is None or run.starts_from in seen, "in the order of warm starts"
        if run.method == "marcos" and run.data.form == "text" and run.data.train != "ring":  # where nothing is random
            assert run.options["marked"] == 0.5
        seen.add(id)
    assert seen
    for block in study.blocks:
        card = get_dataset(block.data.train).card
        assert "train" in card.counts
        assert block.data.form in card.forms
    for test in study.evaluation.tests:
        assert "test" in get_dataset(test).card.counts


LORA = {"rank": 4, "alpha": 8, "modules": ["q_proj"]}
BENCHMARKS = ("main_0.5b", "main_3b", "pretrained")  # tables of the paper on the three benchmarks
OF_THE_PAPER = [name for name in shipped() if load_study(name).paper in BENCHMARKS]


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_paper_study_has_rows_of_the_paper_and_says_where_it_departs(name: str) -> None:
    study = load_study(name)
    table = paper_table(str(study.paper))
    assert study.deviations
    of_tasks = set(table.blocks) == {"all"}  # the paper has one column per task, and a study one block per task
    columns = {block.id for block in study.blocks} if of_tasks else set(study.evaluation.tests)
    # SVAMP's official test set of 1,000, which others report
    assert columns == set(table.tests) | (set() if of_tasks else {"svamp"})
    for block in study.blocks:
        printed = table.blocks["all" if of_tasks else block.id]
        unprinted = {row.id for row in study.rows if not row.control} - printed.rows.keys()
        assert unprinted == ({"codi"} if name == "paper_3b" else set())  # commented out in the paper's source
    assert {run.training.batch_size for run in study.runs.values()} == {256}


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_the_control_of_a_paper_study_is_trained_for_as_long_as_any_row_with_its_start(name: str) -> None:
    study = load_study(name)
    for block in study.blocks:
        epochs: dict[bool, set[float]] = {True: set(), False: set()}
        for row in study.rows_of(block):
            run = study.runs[run_id(block.id, row.id, 0)]
            start = study.runs[run.starts_from].training.epochs if run.starts_from else 0
            epochs[row.control].add((run.training.epochs or 0) + (start or 0))
        assert epochs[True] == {max(epochs[False])}


def budgets_of(study: Study, block: str) -> dict[str, float]:
    """Return the tokens of each row's training and of its warm start, by row."""
    budgets = {}
    for run in (run for run in study.runs.values() if run.block == block):
        start = study.runs[run.starts_from].training.tokens if run.starts_from else 0
        budgets[run.row] = (run.training.tokens or 0) + (start or 0)
    return budgets


@pytest.mark.parametrize("name", ["stories", "stories_seeds", "small_3b"])
def test_rows_beside_cot_sft_have_one_budget_their_starts_included(name: str) -> None:
    study = load_study(name)
    for block in study.blocks:
        budgets = budgets_of(study, block.id)
        budgets.pop("cot_sft")
        assert len(set(budgets.values())) == 1, budgets


@pytest.mark.parametrize("name", ["quick", "quick_seeds"])
def test_no_row_of_the_default_study_has_more_tokens_than_the_control(name: str) -> None:
    """Coconut and MarCos have twice the tokens of the others, which are equal: see docs/tried.md.

    SIM-CoT (Coconut) has as many as the others, after a trained Coconut.
    """
    budgets = budgets_of(load_study(name), "equation")
    explained = budgets.pop("sim_cot_coconut") - (budgets["coconut"] - budgets["cot_sft"])
    longest = {row for row in budgets if budgets[row] == max(budgets.values())}
    assert longest == {"answer_only", "coconut", "marcos", "marcos_wo_r"} & budgets.keys()
    others = {budgets[row] for row in budgets.keys() - longest - {"cot_sft"}}
    assert others == {explained + budgets["cot_sft"]}


def test_paper_studies_cover_the_paper() -> None:
    for table in BENCHMARKS:
        studies = [study for name in shipped() if (study := load_study(name)).paper == table]
        trained = {(table, run.block, run.row) for study in studies for run in study.runs.values()}
        blocks = paper_table(table).blocks
        assert {(table, id, row) for id, block in blocks.items() for row in block.rows} <= trained


def test_marcos_beside_3b_is_the_run_of_the_05b_study() -> None:
    for name, block in (("paper_3b", "equation"), ("paper_3b_text", "text")):
        study = load_study(name)
        source = study.sources[f"{block}/marcos/s0"]
        assert ([source.study], source.backbone.name) == ([*study.shares], "qwen2.5-0.5b")
        assert study.sources[f"{block}/cot_sft/s0"].study == name


def test_a_backbone_is_the_rows_else_the_blocks_else_the_studys() -> None:
    tiny = {"name": "llama-tiny"}
    block = {**MINIMAL["blocks"][0], "id": "other", "backbone": tiny, "tokenizer": {"trained": 300}}
    rows = [*MINIMAL["rows"], {"id": "wide", "method": "cot_sft", "backbone": {"name": "qwen2.5-0.5b"}}]
    study = parse_study({**MINIMAL, "blocks": [*MINIMAL["blocks"], block], "rows": rows}, "place.yaml")
    assert {id: (run.backbone.name, run.tokenizer.trained) for id, run in study.runs.items()} == {
        "equation/cot/s0": ("qwen2-tiny", 512),
        "equation/wide/s0": ("qwen2.5-0.5b", 512),
        "other/cot/s0": ("llama-tiny", 300),
        "other/wide/s0": ("qwen2.5-0.5b", 300),
    }


def test_a_block_has_runs_of_the_rows_that_are_for_it() -> None:
    blocks = [{**MINIMAL["blocks"][0], "id": id} for id in ("equation", "other")]
    rows = [*MINIMAL["rows"], {"id": "more", "method": "cot_sft", "blocks": ["other"]}]
    study = parse_study({**MINIMAL, "blocks": blocks, "rows": rows, "seeds": [0, 7]}, "place.yaml")
    found = {block.id: [row.id for row in study.rows_of(block)] for block in study.blocks}
    assert found == {"equation": ["cot"], "other": ["cot", "more"]}
    ids = [run_id(block, row, seed) for block, own in found.items() for row in own for seed in (0, 7)]
    assert list(study.runs) == ids and ids[-1] == "other/more/s7"
    assert [row_of(id) for id in ids] == [run.row for run in study.runs.values()]
    assert [run.id for run in study.trainings("other", "more")] == ["other/more/s0", "other/more/s7"]
    assert study.trainings("equation", "more") == []


def test_a_budget_takes_the_place_of_an_earlier_one() -> None:
    """The study's budget yields to the row's, and that to the block's. Other settings stay."""
    blocks = [MINIMAL["blocks"][0], {**MINIMAL["blocks"][0], "id": "other", "training": {"epochs": 3}}]
    rows = [{**MINIMAL["rows"][0], "training": {"tokens": 1e6, "batch_size": 8}}]
    runs = parse_study({**MINIMAL, "blocks": blocks, "rows": rows}, "place.yaml").runs
    budgets = {id: (run.training.epochs, run.training.tokens, run.training.batch_size) for id, run in runs.items()}
    assert budgets == {"equation/cot/s0": (None, 1e6, 8), "other/cot/s0": (3, None, 8)}


def test_options_of_a_block_must_not_replace_those_that_tell_rows_apart() -> None:
    rows = [{"id": f"tau_{tau}", "method": "marcos", "options": {"tau": tau}} for tau in (1, 2)]
    study = {**MINIMAL, "rows": rows, "blocks": TWO_BLOCKS}
    assert parse_study(study, "place.yaml")
    study["blocks"] = [TWO_BLOCKS[0], TWO_BLOCKS[1] | {"options": {"marcos": {"tau": 4}}}]
    with pytest.raises(
        StudyError, match=r"'other': its `options` of marcos replace what tells row 'tau_2' from 'tau_1'"
    ):
        parse_study(study, "place.yaml")
    rows[1]["training"] = {"epochs": 9}
    assert parse_study(study, "place.yaml")


def test_commands_that_are_advised_name_the_study_and_its_results_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "my own.yaml"
    path.write_text(yaml.safe_dump(MINIMAL), encoding="utf-8")
    study = load_study(str(path))
    assert study.command("collect", Path("results")) == f"marcos-bench collect '{path}'"
    with pytest.raises(BrokenRecord, match=f"run `marcos-bench collect '{path}' --results {tmp_path}`"):
        load_collected(study, tmp_path)
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump({**MINIMAL, "name": "other", "shares": str(path)}), encoding="utf-8")
    sharing = load_study(str(other))
    (run,) = sharing.sources.values()
    assert sharing.home(run).cli_name == str(path) and sharing.home(study.runs[run.id]).name == study.name
    assert load_study("quick").command("data", tmp_path, "--block", "text") == (
        f"marcos-bench data quick --block text --results {tmp_path}"
    )


def test_rows_of_one_method_have_titles_that_differ() -> None:
    rows = [{"id": id, "method": "cot_sft"} for id in ("long", "short")]
    study = parse_study({**MINIMAL, "rows": [*rows, {**rows[0], "id": "own", "title": "Ours"}]}, "place.yaml")
    assert [study.row_titles[row.id] for row in study.rows] == ["CoT-SFT (long)", "CoT-SFT (short)", "Ours"]
    study = parse_study({**MINIMAL, "rows": [rows[0], {**rows[1], "title": "CoT-SFT"}]}, "place.yaml")
    assert [study.row_titles[row.id] for row in study.rows] == ["CoT-SFT (long)", "CoT-SFT"]


def test_a_default_option_that_is_named_tells_no_rows_apart() -> None:
    rows = [{"id": "a", "method": "cot_sft"}, {"id": "b", "method": "cot_sft", "options": {"steps": True}}]
    with pytest.raises(StudyError, match="rows 'a' and 'b' have the same settings, because one of them spells out the"):
        parse_study({**MINIMAL, "rows": rows}, "place.yaml")


def test_a_row_s_own_decoding_that_its_method_cannot_have_is_left_out() -> None:
    encoded = {"latents": "encoded", "seeds": 1}
    row = {"id": "a", "method": "cot_sft", "decodings": {"encoded": encoded}}
    evaluation = {**MINIMAL["evaluation"], "decodings": {"default": {}, "encoded": encoded}}
    study = parse_study({**MINIMAL, "rows": [row], "evaluation": evaluation}, "place.yaml")
    assert [list(run.evaluation.decodings) for run in study.runs.values()] == [["default"]]


def test_default_rows_of_further_studies_are_runs_of_the_main_ones() -> None:
    shared = {name: [id for id, run in load_study(name).sources.items() if run.study != name] for name in shipped()}
    for name in ("ablation", "sweeps", "small_3b", "paper_ablation", "paper_one_shot", "paper_sweeps"):
        assert "equation/marcos/s0" in shared[name], name
    assert "equation/deep_0/s0" in shared["sweeps"]  # w/o Neu_deep
    assert "equation/marcos_wo_r/s0" in shared["one_shot"]
    for name in ("small_3b", "paper_one_shot_text", "paper_sweeps_text"):
        assert "text/marcos/s0" in shared[name], name


def _row(**changes: Any) -> dict[str, Any]:
    return {"rows": [{"id": "cot", "method": "cot_sft", **changes}]}


def _decodings(**decodings: dict[str, Any]) -> dict[str, Any]:
    return {"evaluation": {**MINIMAL["evaluation"], "decodings": decodings}}


def _compared(**comparisons: Any) -> dict[str, Any]:
    """Return two blocks with a row each, a row in both, and planned comparisons."""
    rows = [{"id": id, "method": "cot_sft", "options": {"steps": id == "a"}} for id in ("a", "b")]
    rows = [row | {"blocks": [block["id"]]} for row, block in zip(rows, TWO_BLOCKS, strict=True)]
    return {"blocks": TWO_BLOCKS, "rows": [*MINIMAL["rows"], *rows], "comparisons": comparisons}


def test_schema_is_up_to_date() -> None:
    generated = runpy.run_path(str(ROOT / "workflows/schemas/generate.py"))
    committed = json.loads(generated["TARGET"].read_text(encoding="utf-8"))
    assert committed == json.loads(json.dumps(generated["study_schema"]())), "run `make schema`"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [{"id": "cot", "method": "cot_stf"}]}, "did you mean `cot_sft`"),
        ({"rows": [MINIMAL["rows"][0], MINIMAL["rows"][0]]}, "two rows are the same: cot"),
        ({"seeds": [0, 1, 0]}, "two training seeds are the same: 0"),
        ({"seeds": [0, -1]}, "seeds, entry 2: must be greater than or equal to 0, not -1"),
        (_row(blocks=[]), "row 'cot', blocks: Tuple should have at least 1 item"),
        (
            {"evaluation": {"tests": ["embedded_in_domain", "embedded_in_domain"]}},
            "two tests are the same: embedded_in",
        ),
        ({"rows": [{"id": "cot", "method": "cot_sft", "blocks": ["text"]}]}, r"unknown blocks \['text'\]"),
        ({"tokenizer": {}}, "exactly one tokenizer"),
        ({"shares": "smok"}, "`shares`: no study at .*; did you mean `smoke`"),
        ({"shares": ["smoke", "quik"]}, "`shares`: no study at .*; did you mean `quick`"),
        ({"shares": ["smoke", 1]}, "shares, entry 2: must be text"),
        (_row(training={"lora": {**LORA, "modules": ["q_proj", "q_proj"]}}), "q_proj is named twice"),
        (_row(training={"lora": {**LORA, "alpha": float("inf")}}), "alpha: must be a finite number"),
        (
            {"training": {"epochs": 1, "select_by": "accuracy"}},
            "needs answers: give a number of `validation_questions`",
        ),
        ({"training": {"epochs": float("inf")}}, "training.epochs: must be a finite number"),
        ({"training": {"epochs": 1, "betas": [0.9, 1.5]}}, "training.betas, entry 2: must be less than 1, not 1.5"),
        ({"seeds": [2**64]}, "seeds"),
        (_row(blocks=["other"]) | {"blocks": TWO_BLOCKS}, "no row is in block 'equation': name it in the `blocks`"),
        (_row(training={"epochz": 1}), "equation/cot, training: no key `epochz`; did you mean `epochs`"),
        (_row(training={"lr": 1e-3}), "no key `lr`; did you mean `learning_rate`"),
        (_row(engine={"gpu": 2}), "equation/cot, engine: no key `gpu`; did you mean `gpus`"),
        (
            _decodings(default={}, mean={"only": ["colr"]}),
            r"decoding 'mean' is only for \['colr'\]: name methods",
        ),
        (_decodings(default={"only": ["cot_sft"]}), "`default` is for all methods"),
        (_decodings(default={"top_p": 0.9}), "`top_p` is for tokens that are drawn: set `tokens: sample`"),
        (_row(title="_cot"), "title"),
        ({"backbone": {"pretrained": "some/model", "overrides": {"hidden_size": 8}}}, "leave out `overrides`"),
        ({"backbone": {"revision": "1234567"}}, "`revision` is a checkpoint's"),
        ({"tokenizer": {"trained": 400, "revision": "1234567"}}, "`revision` is a published tokenizer's"),
        (_compared(pairs=[["cot", "co"]]), "name a row 'co', which the study does not have; did you mean `cot`"),
        (_compared(pairs=[["cot", "cot"]]), "comparisons: row 'cot' is compared with itself"),
        (_compared(pairs=[["cot"]]), "comparisons.pairs, entry 1: entry 2 is missing"),
        (_compared(against={"cot": ["a"]}, ranking=["cot", "a"]), "rows 'cot' and 'a' are compared twice"),
        (_compared(ranking=["cot", "a", "cot"]), "row 'cot' is twice in `ranking`"),
        (_compared(ranking=["cot"]), "no two rows are compared: name them"),
        (_compared(ranking=["a", "b"]), "name 'a' and 'b', of which no block has both"),
        ({"tables": ["comparisons"]}, "is of planned ones: name pairs of rows in `comparisons`"),
    ],
)
def test_invalid_study_is_refused_with_the_reason(change: dict[str, object], message: str) -> None:
    with pytest.raises(StudyError, match=f"(?s){message}"):
        parse_study({**MINIMAL, **change}, "place.yaml")


def test_unknown_study_lists_the_known_ones() -> None:
    with pytest.raises(StudyError, match=r"quik\.yaml; did you mean `quick`\? \(give the path .*: ablation, "):
        load_study("quik")


def test_studies_that_share_runs_in_a_circle_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.studies.study.STUDIES", tmp_path)
    for name, shares in {"apart": "first", "first": "second", "second": "third", "third": "first"}.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(MINIMAL | {"name": name, "shares": shares}), encoding="utf-8")
    for name in ("first", "apart"):
        with pytest.raises(StudyError, match="first -> second -> third -> first: they share runs in a circle"):
            load_study(name)
    (tmp_path / "third.yaml").write_text(json.dumps(MINIMAL | {"name": "third"}), encoding="utf-8")
    assert load_study("apart").sources["equation/cot/s0"].study == "third"
    assert load_study("first").shared == {"third": ["equation/cot/s0"]}


def test_files_that_share_runs_are_beside_each_other(tmp_path: Path) -> None:
    for name, change in {"base": {}, "twin": {"name": "base"}, "mine": {"shares": "base.yaml"}}.items():
        text = json.dumps(MINIMAL | {"name": name} | change)
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    mine = load_study(str(tmp_path / "mine.yaml"))
    assert mine.shared == {"base": ["equation/cot/s0"]} and mine.family.keys() == {"base", "mine"}
    text = json.dumps(MINIMAL | {"name": "base", "shares": "twin.yaml"})
    (tmp_path / "base.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(StudyError, match=r"`shares`: .*twin.yaml has `name: base`, as this study has: give one of"):
        load_study(str(tmp_path / "base.yaml"))


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """The message has the line. A key that a merge brings along does not count as a second one."""
    text = (STUDIES / "smoke.yaml").read_text(encoding="utf-8").replace("name: smoke", "name: mine")
    (path := tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    assert load_study(str(path)).name == "mine"
    path.write_text(f"{text}\ntitle: Another\n", encoding="utf-8")
    with pytest.raises(StudyError, match=rf"key .title. is there twice\n.*line {text.count(chr(10)) + 2}"):
        load_study(str(path))


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("studies", r"mine\.yaml has `name: quick`: write `name: mine`, or name the file quick\.yaml"),
        ("elsewhere", r"mine\.yaml has `name: quick`, which is a study in .*: give it a name of its own"),
    ],
)
def test_a_copy_that_keeps_its_name_is_refused(
    folder: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run with the settings of the file that has this name, or write to its results."""
    original = STUDIES / "quick.yaml"
    monkeypatch.setattr("benchmarks.studies.study.STUDIES", tmp_path / "studies")
    for name in ("studies", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "studies/quick.yaml").write_text(original.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / folder / "mine.yaml").write_text(original.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(StudyError, match=message):
        load_study(str(tmp_path / folder / "mine.yaml"))
    assert load_study("quick").name == "quick"


# -- which row another row's training starts from


def test_a_warm_start_has_the_same_backbone() -> None:
    rows = [
        {"id": "cot", "method": "cot_sft"},
        {"id": "coconut", "method": "coconut"},
        {"id": "coconut_llama", "method": "coconut", "backbone": {"name": "llama-tiny"}},
    ]
    runs = parse_study({**MINIMAL, "rows": rows}, "place.yaml").runs
    assert runs["equation/coconut/s0"].starts_from == "equation/cot/s0"
    start = runs["equation/coconut_llama/s0"].starts_from
    assert start == "equation/cot_sft/s0" and runs[start].backbone.name == "llama-tiny"
    rows[0]["id"] = "cot_sft"
    with pytest.raises(StudyError, match=r"'coconut_llama' starts from 'cot_sft'.*rename that row"):
        parse_study({**MINIMAL, "rows": rows}, "place.yaml")


def test_a_row_starts_from_the_one_that_it_names() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "long", "method": "cot_sft", "training": {"epochs": 9}},
        {"id": "short", "method": "cot_sft"},
        {"id": "silent", "method": "cot_sft", "options": {"steps": False}},
        {"id": "coconut", "method": "coconut"},
    ]

    def start(named: str | None) -> str | None:
        own = [*rows[:-1], rows[-1] | ({"starts_from": named} if named else {})]
        return parse_study({**MINIMAL, "rows": own}, "place.yaml").runs["equation/coconut/s0"].starts_from

    with pytest.raises(StudyError, match=r"'coconut' could start from long or short: name one in its `starts_from`"):
        start(None)
    assert [start(named) for named in ("long", "silent")] == ["equation/long/s0", "equation/silent/s0"]
    with pytest.raises(StudyError, match=r"from 'none', but from a row of cot_sft .*: long, short, silent"):
        start("none")
    rows[1]["starts_from"] = "long"
    with pytest.raises(StudyError, match=r"'short' starts from fresh weights: leave out `starts_from`"):
        start("long")


def test_a_row_starts_from_the_one_of_its_block() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "cot", "method": "cot_sft", "blocks": ["equation"]},
        {"id": "longer", "method": "cot_sft", "blocks": ["other"], "training": {"epochs": 9}},
        {"id": "coconut", "method": "coconut"},
    ]
    runs = parse_study({**MINIMAL, "blocks": TWO_BLOCKS, "rows": rows}, "place.yaml").runs
    assert [runs[f"{block}/coconut/s0"].starts_from for block in ("equation", "other")] == [
        "equation/cot/s0",
        "other/longer/s0",
    ]


def test_rows_that_start_from_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": "a", "method": "cot_sft"}, {"id": "b", "method": "cot_sft"}]
    monkeypatch.setattr(get_method("cot_sft"), "starts_from", lambda options: "cot_sft")
    with pytest.raises(StudyError, match=r"a -> b -> a: rows start from each other's weights in a circle"):
        parse_study({**MINIMAL, "rows": [rows[0] | {"starts_from": "b"}, rows[1] | {"starts_from": "a"}]}, "place.yaml")
    with pytest.raises(StudyError, match=r"a -> a: rows start"):
        parse_study({**MINIMAL, "rows": rows[:1]}, "place.yaml")


def test_options_that_are_the_default_ones_make_no_other_start() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "cot_sft", "method": "cot_sft", "options": {"steps": True}},
        {"id": "coconut", "method": "coconut"},
    ]
    assert parse_study({**MINIMAL, "rows": rows}, "place.yaml").runs["equation/coconut/s0"].starts_from
    blocks = [{**MINIMAL["blocks"][0], "options": {"cot_sft": {"steps": False}}}]
    with pytest.raises(StudyError, match="'coconut' starts from 'cot_sft' with default options"):
        parse_study({**MINIMAL, "blocks": blocks, "rows": rows}, "place.yaml")


def test_a_run_that_starts_from_other_weights_is_not_shared() -> None:
    """Its own settings are those of the other study's run, and even its warm start has the same name."""
    content = load_study("stories_seeds").model_dump(mode="json", exclude_unset=True)
    (cot,) = [row for row in content["rows"] if row["id"] == "cot_sft"]
    cot["training"] = {"tokens": 1e5}
    sources = parse_study({**content, "name": "mine", "seeds": [0]}, "mine.yaml").sources
    own = {"cot_sft", "icot_si", "coconut", "colar", "codi"}
    assert {row_of(id) for id, source in sources.items() if source.study == "mine"} == own
    assert {row_of(id) for id, source in sources.items() if source.study == "stories"} >= {"answer_only", "marcos"}


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        ("curves", "no run answers questions then: set `validation_questions` in `training`"),
        ("dimensions", "no row has any: add one of MarCos with R"),
        ("latents_curve", "there are none: add decodings"),
        ("sweeps", "there is none: add such rows"),
    ],
)
def test_figures_of_what_no_row_has_are_refused_before_training(figure: str, said: str) -> None:
    study = parse_study(MINIMAL | {"figures": [figure]}, "a rehearsal")
    with pytest.raises(StudyError, match=f"figure `{figure}` shows .* {said}"):
        require_something_to_show(study)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("nats", "none is scored: set `nats` in `evaluation`"),
        ("stages", "no row keeps its weights: set `keep_stages"),
    ],
)
def test_tables_of_what_no_row_has_are_refused_before_training(table: str, said: str) -> None:
    study = parse_study(MINIMAL | {"tables": [table]}, "a rehearsal")
    with pytest.raises(StudyError, match=f"table `{table}` shows .*, and {said}"):
        require_something_to_show(study)


@pytest.mark.parametrize("figure", ["pareto", "overview"])
def test_figures_of_times_that_nothing_has_are_refused_before_training(figure: str) -> None:
    study = parse_study(MINIMAL | {"figures": [figure], "timing": None}, "a rehearsal")
    with pytest.raises(StudyError, match=f"figure `{figure}` shows accuracy against time, and no run is timed: set"):
        require_something_to_show(study)


def test_a_sweep_is_of_the_rows_of_a_block() -> None:
    few = {"id": "few", "method": "marcos", "options": {"shallow": 16}, "blocks": ["other"]}
    rows = [{"id": "marcos", "method": "marcos"}, few]
    study = parse_study({**MINIMAL, "blocks": TWO_BLOCKS, "rows": rows}, "a study")
    assert [[row.id for *_, row in study.swept(block)] for block in study.blocks] == [[], ["few", "marcos"]]


def test_a_sweep_of_an_option_whose_default_is_not_written() -> None:
    thoughts = [{}, {"thoughts": 2}, {"thoughts": 4}, {"thoughts_per_step": 1}, {"thoughts": 2, "thoughts_per_step": 1}]
    rows = [{"id": f"row_{at}", "method": "coconut", "options": options} for at, options in enumerate(thoughts)]
    study = parse_study({**MINIMAL, "rows": rows}, "a study")
    default = dict(get_method("coconut").Options())["thoughts_per_step"]
    points = {(option, value, row.id) for option, value, row in study.swept(study.blocks[0])}
    assert points == {("thoughts_per_step", 1, "row_3"), ("thoughts_per_step", default, "row_0")}, "None is no number"
    rows[0]["options"] = {"thoughts": 3}
    rows[3]["options"] = {"thoughts_per_step": 1}
    study = parse_study({**MINIMAL, "rows": rows}, "a study")
    points = {(option, value, row.id) for option, value, row in study.swept(study.blocks[0])}
    assert points == {("thoughts", 3, "row_0"), ("thoughts", 2, "row_1"), ("thoughts", 4, "row_2")}, "row_3 has two"
