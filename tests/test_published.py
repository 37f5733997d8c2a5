"""Published weights in miniature: the answers of their authors' inference code, token by token."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.data import decode
from benchmarks.files import read_json
from benchmarks.outputs import questions_of_test, score
from benchmarks.published import PUBLISHED, evaluate, get_published, load, read_tensors
from benchmarks.scoring import SCORERS, Reference
from commands import invoke
from methods import decoding
from methods.errors import InputError

FOLDER = Path(os.environ.get("MARCOS_BENCH_CHECKPOINTS", "."))
needs_checkpoints = pytest.mark.skipif(
    "MARCOS_BENCH_CHECKPOINTS" not in os.environ, reason="MARCOS_BENCH_CHECKPOINTS names no folder"
)
CASES = {  # golden folder: the published model in this format, and the latents of its golden runs
    ("codi_gpt2", "single"): ("codi_gpt2", None),
    ("codi_gpt2", "single_latents3"): ("codi_gpt2", 3),
    ("codi_llama", "single"): ("codi_llama_1b", None),
    ("codi_llama", "single_latents3"): ("codi_llama_1b", 3),
    ("simcot_codi_gpt2", "single"): ("simcot_codi_gpt2", None),
    ("simcot_codi_llama", "single"): ("simcot_codi_llama_1b", None),
    ("coconut_gpt2", "single"): ("coconut_gpt2", None),
    ("simcot_coconut_gpt2", "single"): ("simcot_coconut_gpt2", None),
    ("simcot_coconut_gpt2", "shipped_yaml"): ("simcot_coconut_gpt2", 2),
    ("icot_si_gpt2", "single"): ("icot_si_gpt2", None),
    ("colar_llama", "speed5"): ("colar_llama_1b", None),
    ("colar_llama", "speed2"): ("colar_llama_1b", None),
}
# Not reproduced: batches that attend to padding, numbers of another precision, other random draws
LEFT_OUT = {"batch6", "bfloat16_batch6", "sampled", "single_latents0"}


def until(end: int, ids: list[int]) -> list[int]:
    """Return ids up to the first end-of-text and with it; all if there is none."""
    return ids[: ids.index(end) + 1] if end in ids else ids


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The logits (B, V) that chose each token of an answer, in order."""
    seen: list[Tensor] = []
    choose = decoding.choose_tokens

    def recorded(logits: Tensor, *others: Any) -> Tensor:
        seen.append(logits)
        return choose(logits, *others)

    monkeypatch.setattr(decoding, "choose_tokens", recorded)
    yield seen


@needs_checkpoints
@pytest.mark.parametrize(("folder", "run"), CASES, ids=str)
def test_answers_are_those_of_the_authors_code(folder: str, run: str, logits: list[Tensor]) -> None:
    name, latents = CASES[folder, run]
    golden = read_json(FOLDER / folder / "golden.json")
    tensors = load_file(FOLDER / folder / "golden.safetensors")
    model = load(name, FOLDER / folder, latents)
    greedy = replace(model.format.decoding, tokens="greedy", top_p=1.0, trace=True)
    if folder == "colar_llama":
        speed = f"Question: {{}} Let's think step by step:(Thinking speed: {run[-1]})".format
        model = replace(model, format=replace(model.format, text=speed))
        model.method.options = model.method.options.model_copy(update={"max_latents": 16})
    for number, item in enumerate(golden["runs"][run]["items"]):
        logits.clear()
        with torch.no_grad():
            said = model.method.generate(model.encode([golden["questions"][number]]), greedy)
        wanted = tensors[f"{run}.{number}.logits"]
        found = torch.cat(logits)[: len(wanted), : wanted.shape[1]]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)
        eos = model.tokenizer.eos_token_id
        parts = said.answer[:, None] if said.steps is None else said.steps  # iCoT-SI: the chain, then the answer
        ids = [token for part in parts[0].tolist() for token in until(eos, part)]
        assert ids == item["output_ids"] + [eos] * ("stopped_by_eos" in item)
        text = "\n".join(decode(model.tokenizer, part) for part in parts[0].tolist())
        score = SCORERS["number"].score(text, Reference(golden["questions"][number], golden["gold_answers"][number]))
        assert score.correct == item["correct"]
        for thoughts in said.trace.values():
            known = tensors[f"{run}.{number}.latents"]
            torch.testing.assert_close(thoughts[0], known[: thoughts.shape[1]], rtol=0, atol=1e-3)
            assert len(known) - thoughts.shape[1] == ("codi" in folder)  # the last one is not fed


@needs_checkpoints
def test_every_golden_run_is_reproduced_or_left_out() -> None:
    for folder in {folder for folder, _ in CASES}:
        runs = read_json(FOLDER / folder / "golden.json")["runs"]
        assert {run for run in runs if (folder, run) not in CASES} <= LEFT_OUT | {"single_latents3"}


@needs_checkpoints
def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    whole, _ = read_tensors(FOLDER / "simcot_codi_llama")
    shards, _ = read_tensors(FOLDER / "simcot_codi_llama_sharded")
    assert whole.keys() == shards.keys() and all(torch.equal(whole[name], shards[name]) for name in whole)
    shutil.copytree(FOLDER / "simcot_codi_llama_sharded", tmp_path / "partial")
    (tmp_path / "partial/model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match="download all shards"):
        read_tensors(tmp_path / "partial")


@needs_checkpoints
def test_missing_and_unknown_weights_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "codi"
    shutil.copytree(FOLDER / "codi_gpt2", folder)
    tensors, _ = read_tensors(folder)
    for changed, message in (
        ({name: tensor for name, tensor in tensors.items() if name != "prj.1.bias"}, "lacks 1 weights of CODI"),
        (tensors | {"codi.base_model.model.transformer.h.7.ln_1.weight": torch.ones(32)}, "has unknown 1 weights"),
        (tensors | {"prj.3.bias": torch.ones(31)}, "project.2.bias has shape"),
    ):
        torch.save(changed, folder / "pytorch_model.bin")
        with pytest.raises(InputError, match=message):
            load("codi_gpt2", folder)


def test_offline_message_says_what_to_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"hf download zen-E/CODI-gpt2 --revision fd641b3\w+ --local-dir FOLDER"):
        evaluate("codi_gpt2", "embedded_in_domain")
    with pytest.raises(InputError, match="not on the hub"):
        evaluate("icot_si_gpt2", "embedded_in_domain")


@needs_checkpoints
def test_command_answers_a_test_set_and_score_reads_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, few = FOLDER / "codi_gpt2", replace(questions_of_test("embedded_in_domain"))
    few = replace(few, by_index=dict(enumerate(few.records[:6])))
    monkeypatch.setattr("benchmarks.published.questions_of_test", lambda test: few)
    arguments = ["published", "codi_gpt2", "--test", "embedded_in_domain", "--folder", str(folder)]
    run = invoke(*arguments, "--output", tmp_path / "answers.jsonl")
    assert (
        "% of 6 (95 % interval" in run.output and "reported by the authors on embedded_in_domain: nothing" in run.output
    )
    found = score([str(tmp_path / "answers.jsonl")], "embedded_in_domain", None, tmp_path)
    assert found.lines.iloc[0]["n"] == 6


def test_answers_that_could_not_be_written_are_refused_before_decoding(tmp_path: Path) -> None:
    for place in (tmp_path, Path(__file__) / "answers.jsonl"):
        run = invoke("published", "codi_gpt2", "--test", "embedded_in_domain", "--output", place, code=2)
        assert "is a folder: name the file" in run.output or "test_published.py" in run.output


def test_pickles_of_more_than_tensors_are_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "hyper_parameters": Path("anything")}, tmp_path / "last.ckpt")
    with pytest.raises(InputError, match="keep its tensors alone"):
        read_tensors(tmp_path)
    torch.save({"state_dict": {}}, tmp_path / "last.ckpt")
    with pytest.raises(InputError, match="no state dict of tensors"):
        read_tensors(tmp_path)
    (tmp_path / "last.ckpt").write_bytes(b".")
    with pytest.raises(InputError, match="is damaged, or a pickle of more"):
        read_tensors(tmp_path)
    (tmp_path / "checkpoint_1").write_bytes(b"")
    with pytest.raises(InputError, match=r"it has checkpoint_1, last\.ckpt"):
        read_tensors(tmp_path)


def test_names() -> None:
    with pytest.raises(InputError, match="did you mean `codi_gpt2`"):
        get_published("codi_gtp2")
    assert all(entry.source for entry in PUBLISHED.values() if entry.reported)
