"""Studies of the paper's size end to end, with stand-ins of a few thousand parameters for their backbones and data."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForCausalLM

from benchmarks.analysis.records import analysed
from benchmarks.analysis.task import analyse
from benchmarks.data import load_records, prepare
from benchmarks.data.tokenizers import texts, train_bpe
from benchmarks.evaluation import task as evaluation
from benchmarks.figures.base import NothingToDraw
from benchmarks.figures.render import render as render_figure
from benchmarks.records import results
from benchmarks.rehearsal import excerpts
from benchmarks.studies.specs import Table
from benchmarks.studies.study import Study, parse_study, study_path
from benchmarks.tables.render import render
from benchmarks.timing import task as timing
from benchmarks.training.loop import train
from methods.backbone import fields_of, load_backbone

# All methods, backbones and kinds of data. The others repeat these in another form or size, or with variants of MarCos,
# which `tests/test_marcos.py` trains
STUDIES = ("paper_0.5b", "paper_pretrained", "paper_ablation", "paper_synthetic", "authors_gpt2")
REPEATED = ("marcos_wo_deep", "marcos_lambda_5e-4", "marcos_lambda_1e-3", "coconut_no_thoughts")  # rows
SIZES = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Save a checkpoint and tokenizer of each pretrained backbone's architecture, and return their folders."""
    records = load_records("embedded_in_domain", "equation", "test")
    made = {}
    for name, size in (("qwen2.5-0.5b", 400), ("llama-3.2-1b", 420), ("gpt2", 410)):
        folder = tmp_path_factory.mktemp(name)
        tokenizer = train_bpe(texts(records), size)
        tokenizer.save_pretrained(folder)
        sizes = {field: SIZES[field] for field in SIZES.keys() & fields_of(name)}
        config = load_backbone(name, 0, overrides={**sizes, "vocab_size": size}).config
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        made[name] = {"pretrained": str(folder)}
    return made


def shrunk(name: str, checkpoints: dict[str, dict[str, str]]) -> Study:
    """Return a study's last block with tiny backbones and 8 examples. Options, curricula and epochs are kept."""
    content = yaml.safe_load(study_path(name).read_text(encoding="utf-8"))
    content["rows"] = [row for row in content["rows"] if row["id"] not in REPEATED]
    for place in (content, *content["blocks"], *content["rows"]):
        if backbone := place.get("backbone"):
            if "pretrained" in backbone:
                place["tokenizer"] = checkpoints[backbone["name"]]
                place["backbone"] = {"name": backbone["name"], **checkpoints[backbone["name"]]}
            else:
                place["backbone"] = {**backbone, "overrides": {**SIZES, "vocab_size": 0}}
    if "pretrained" not in content["backbone"]:
        content["tokenizer"] = {"trained": 400}
    (block,) = content["blocks"] = content["blocks"][-1:]
    train, test = ("rs_n2_k3", "rs_n2_k3") if name == "paper_synthetic" else ("embedded", "embedded_in_domain")
    block["data"] |= {"train": train, "validation": 4, "limit": 8}
    block["tests"] = [test]
    content["training"] |= {"batch_size": 8, "validations": 1}
    content["engine"] = {"micro_batch": 4}
    content.pop("published", None)  # outputs for test sets that are no longer asked
    for row in content["rows"]:
        row.pop("engine", None)
    content["evaluation"] |= {"tests": [test], "max_new_tokens": 2, "batch_size": 250}
    content["evaluation"]["decodings"] = {"default": {"seeds": 1}}
    content["analysis"] = {"questions": 8, "samples": 4}
    content["timing"] = {"repeats": 1, "questions": 2, "train_steps": 3} if name == "paper_0.5b" else None
    return parse_study(content | {"threads": 1, "timing_threads": 1}, name)


@pytest.mark.parametrize("name", STUDIES)
def test_study_runs_end_to_end(name: str, checkpoints: dict[str, dict[str, str]], tmp_path: Path) -> None:
    study = shrunk(name, checkpoints)
    with excerpts(study):
        _run_and_render(study, tmp_path)


def _run_and_render(study: Study, tmp_path: Path) -> None:
    prepare(study, study.blocks[0], tmp_path)
    for spec in study.runs.values():
        record: dict[str, Any] = train(spec, tmp_path)
        assert record["steps"] == pytest.approx(_epochs(spec), abs=1)
        evaluation.evaluate(spec, tmp_path)
        if study.timing:
            timing.time_run(spec, tmp_path)
    frame = results.collect(study, tmp_path)
    assert set(frame.status) == {"done"}
    for table in study.tables:
        text = next(path for path in render(study, tmp_path, table) if path.suffix == ".md").read_text(encoding="utf-8")
        assert all(deviation in text for deviation in study.deviations)
        assert table == Table.claims or "not run" not in text  # the table of claims looks at other studies too
    for _, _, spec in analysed(study, every_row=True) if study.figures else ():
        analyse(spec, tmp_path)
    drawn = {}
    for figure in study.figures:
        with suppress(NothingToDraw):
            drawn[figure] = {path.suffix: path.stat().st_size for path in render_figure(study, tmp_path, figure)}
    assert all(sizes[".png"] > 5_000 for sizes in drawn.values())
    assert drawn.keys() >= set(study.figures)


def _epochs(spec: Any) -> float:
    """Return a run's epochs, each of one step. MarCos without R has no second phase."""
    share = spec.options.get("first_phase", 1.0) if spec.options.get("randomness") is False else 1.0
    return spec.training.epochs * share
