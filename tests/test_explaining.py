"""What runs make of one question: shown, with latents beside token embeddings, and written to a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rich.text import Text

from benchmarks.analysis.explaining import Explanation, TokenEmbeddings, show, token_embeddings
from benchmarks.analysis.responses import TrainedModel
from methods.errors import InputError
from test_analysis_task import RUN, command, results, study

__all__ = ["results"]  # the fixture: runs with untrained weights, and one without
CODI, COT = "equation/codi/s0", "equation/cot_sft/s0"
TEXT = "Ann has 3 pens and buys 4. How many pens has Ann?"


def test_all_runs_with_weights_are_shown(results: Path) -> None:
    text = command(results, "explain", "--question", "2", "--test", "embedded_multistep")
    assert "embedded_multistep" in text and "Gold answer" in text
    assert "Without weights here: equation/wo_r/s0" in text
    assert text.count("equation/") == 4  # each run once
    assert "has no question 9999" in command(results, "explain", "--question", "9999", code=2)


def test_named_runs_are_shown_in_that_order(results: Path) -> None:
    text = command(results, "explain", "--question", "1", "--run", RUN, "--run", COT, "--run", RUN)
    assert text.count("equation/") == 2 and text.index(RUN) < text.index(COT)
    assert "has no run 'equation/mine/s0'; its runs are: " + COT in command(
        results, "explain", "--question", "1", "--run", "equation/mine/s0", code=2
    )
    untrained = command(results, "explain", "--question", "1", "--run", "equation/wo_r/s0", code=2)
    assert "none of these runs" in untrained
    assert f"`marcos-bench train {results / 'study.yaml'} equation/wo_r/s0 --results {results}`" in untrained


def test_a_text_of_ones_own_has_no_verdict(
    results: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "1000")
    green_or_red = ("\x1b[32m", "\x1b[31m")
    assert any(colour in command(results, "explain", "--question", "1", "--run", CODI) for colour in green_or_red)
    own = command(results, "explain", "--text", TEXT, "--run", CODI)
    assert TEXT in own and "Gold" not in own and not any(colour in own for colour in green_or_red)
    assert not caplog.messages


def test_each_question_stands_above_its_own_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks may have test sets of their own."""
    cells = tuple(Text(name) for name in ("1 of 1", "#### 4", "", ""))
    found = {"a/cot/s0": "one", "b/cot/s0": "two", "a/codi/s0": "one"}
    show({id: Explanation(heading, cells, {}) for id, heading in found.items()}, [], None)
    first, second = capsys.readouterr().out.split("two\n")
    assert first.startswith("one\n") and "a/cot/s0" in first and "a/codi/s0" in first and "b/cot/s0" not in first
    assert "b/cot/s0" in second and "a/cot/s0" not in second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "ask one question: --question with its number in the test set, or --text with one of your own"),
        (["--question", "1", "--text", TEXT], "ask one question"),
        (["--text", TEXT, "--test", "embedded_multistep"], "--test goes with --question"),
        (["--text", " \n", "--run", COT], "the question is empty"),
    ],
)
def test_what_is_no_question_is_refused(arguments: list[str], message: str, results: Path) -> None:
    assert f"error: {message}" in command(results, "explain", *arguments, code=2)


def test_latents_are_written_by_run_and_name(results: Path, tmp_path: Path) -> None:
    """They are those that decoding traces. MarCos thinks in three steps of three neurons, each with an R of its own."""
    file = tmp_path / "new" / "latents.npz"
    assert f"Latents: {file}" in command(results, "explain", "--question", "1", "--output", str(file))
    with np.load(file) as archive:  # by default, no pickle is executed
        arrays = dict(archive)
    shapes = {name: values.shape for name, values in arrays.items()}
    assert shapes == {
        f"{CODI}/latents": (6, 32),
        f"{CODI}/median_token_norm": (),
        f"{RUN}/thoughts": (3, 3, 32),
        f"{RUN}/R": (3, 32),
        f"{RUN}/median_token_norm": (),
    }
    assert {values.dtype for values in arrays.values()} == {np.dtype("float32")}
    model = TrainedModel.load(study().runs[CODI], results)
    asked = model.test("embedded_in_domain").questions[:1]
    np.testing.assert_array_equal(
        arrays[f"{CODI}/latents"], model.generate(asked, model.decoding, trace=True).trace["latents"][0]
    )
    median = np.median(token_embeddings(model.method).norm(dim=-1).numpy())
    assert arrays[f"{CODI}/median_token_norm"] == pytest.approx(median)


def test_no_file_is_replaced_and_none_is_left_empty(results: Path, tmp_path: Path) -> None:
    (file := tmp_path / "latents.npz").write_text("mine", encoding="utf-8")
    assert f"{file} already exists" in command(results, "explain", "--text", TEXT, "--output", str(file), code=2)
    assert file.read_text(encoding="utf-8") == "mine"
    other = tmp_path / "other.npz"
    text = command(results, "explain", "--text", TEXT, "--output", str(other), "--run", COT, code=2)
    assert f"none of these runs thinks in latents ({COT})" in text and not other.exists()


class Letters:
    def decode(self, ids: list[int]) -> str:
        return "abc\n"[ids[0]]


def test_latents_are_described_by_nearest_token_and_relative_norm() -> None:
    vectors = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-9.0, 0.0], [3.0, -4.0]])  # norms 2, 2, 9, 5: the median is 3.5
    words = TokenEmbeddings(vectors, Letters())  # type: ignore[arg-type]
    latents = np.array([[0.7, 0.0], [0.0, 0.0], [1.0, 350.0], [3.0, -4.0]], dtype=np.float32)
    assert words.median_norm == 3.5
    assert words.described(latents) == [r"a (0.2) b (100) \n (1.43)"], "zeros are padding"
    assert words.described(np.stack([latents[:1], latents[2:3]])) == ["1. a (0.2)", "2. b (100)"]
    assert words.described(np.repeat(latents[:1], 9, axis=0)) == [" ".join(["a (0.2)"] * 8) + " ..."]
    assert words.described(latents[:0]) == [""]


def test_a_word_that_a_tokenizer_does_not_know_is_named(caplog: pytest.LogCaptureFixture) -> None:
    from benchmarks.data.tokenizers import word_level

    tokenizer = word_level(["1 2 3"])
    model = TrainedModel(study().runs[COT], None, tokenizer, Path())  # type: ignore[arg-type]
    assert model.tokenize(" 1 3\n") == tokenizer.encode("1 3") and not caplog.messages
    model.tokenize("1 seven 3")
    assert caplog.messages == [f"{COT}: its tokenizer does not know 'seven'"]
    with pytest.raises(InputError, match="the question is empty"):
        model.tokenize("\n")
