"""Non-autoregressive speaking, and the passes that refine it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from methods.collate import IGNORE, label_indices
from methods.generation import Decoding, Length
from methods.marcos import variants
from methods.marcos.losses import reconstruction_loss
from methods.marcos.options import MarCosOptions
from methods.marcos.targets import step_targets
from methods.marcos.variants import decode_at_once, mask_predict_split, predict_targets_at_once, speak_at_once
from methods.random_keys import question_keys
from test_marcos import CONTEXT, EXAMPLES, VOCABULARY, make
from tiny import passes

EOS = VOCABULARY.eos
QUESTIONS = [example.question for example in EXAMPLES]


def thoughts(rows: int = 3) -> Tensor:
    return torch.randn(rows, 3, 32, generator=torch.Generator().manual_seed(0))


def blank(rows: int, length: int) -> tuple[Tensor, Tensor]:
    ids = torch.full((rows, length), EOS)
    return ids, torch.zeros_like(ids, dtype=torch.bool)


@torch.no_grad()
def test_blank_places_do_not_see_each_other() -> None:
    """The paper's 128 places and the number that a batch's targets need therefore give the same results."""
    lm = make(speaking="one_shot").speaking
    long = speak_at_once(lm, thoughts(), *blank(3, 9))
    torch.testing.assert_close(long[:, :4], speak_at_once(lm, thoughts(), *blank(3, 4)))
    assert not torch.allclose(long[:, 0], long[:, 1], atol=1e-4)  # they differ by their position


@torch.no_grad()
def test_known_tokens_are_seen_from_both_sides_and_hidden_ones_by_none() -> None:
    lm = make(speaking="one_shot").speaking
    ids, known = blank(1, 5)
    known[0, 2] = True
    ids[0, 2] = 40
    before = speak_at_once(lm, thoughts(1), ids, known)
    ids[0, 2] = 41
    seen = (speak_at_once(lm, thoughts(1), ids, known) - before).abs().amax(-1)[0] > 1e-5
    assert seen.all()
    known[0, 2] = False
    ids[0, 0] = 7  # hidden by the mask: only its own place reads its token
    changed = (speak_at_once(lm, thoughts(1), ids, known) - speak_at_once(lm, thoughts(1), *blank(1, 5))).abs()
    assert changed.amax(-1)[0, 1].item() < 1e-5


def test_training_hides_one_to_all_targets_of_each_row() -> None:
    labels = torch.full((400, 8), IGNORE)
    labels[:, :5] = 9
    keys = question_keys([[i] for i in range(200)], 0, "rows")
    known, weights = mask_predict_split(labels, keys, steps=2, step=3)
    assert not known[:, 5:].any()
    hidden = 5 - known.sum(1)
    assert sorted(set(hidden.tolist())) == [1, 2, 3, 4, 5]
    assert all(40 < int((hidden == n).sum()) < 120 for n in range(1, 6))
    torch.testing.assert_close(weights[:, 0], 5.0 / hidden)
    assert (known[:200] != known[200:]).any()  # the steps of an example draw independently
    assert (mask_predict_split(labels, keys, steps=2, step=4)[0] != known).any()


def test_what_is_hidden_does_not_depend_on_the_rest_of_the_batch() -> None:
    labels = torch.full((3, 6), IGNORE)
    labels[:, :4] = 9
    keys = question_keys(QUESTIONS, 0, "rows")
    known, _ = mask_predict_split(labels, keys, steps=1, step=0)
    alone, _ = mask_predict_split(labels[1:2, :5], keys[1:2], steps=1, step=0)
    assert torch.equal(known[1:2, :5], alone)


def test_loss_of_a_row_keeps_its_size_whatever_is_hidden() -> None:
    """If the visible tokens carry no information, the mean loss is the same as without them."""
    lm = make(speaking="one_shot").speaking
    torch.nn.init.zeros_(lm.get_input_embeddings().weight)  # all logits are equal
    labels = torch.tensor([[5, 6, 7, EOS, IGNORE]])
    whole = reconstruction_loss(
        lm, predict_targets_at_once(lm, thoughts(1), labels, EOS), labels, label_indices(labels)
    )
    for step in range(5):
        known, weights = mask_predict_split(labels, torch.tensor([11]), steps=1, step=step)
        hidden = label_indices(labels.masked_fill(known, IGNORE))
        states = predict_targets_at_once(lm, thoughts(1), labels, EOS, known)
        torch.testing.assert_close(reconstruction_loss(lm, states, labels, hidden, weights), whole)


class Scripted:
    """A speaker whose logits are given for each pass. It records which tokens it was shown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *scripts: list[list[tuple[int, float]]]) -> None:
        self.scripts, self.shown = iter(scripts), []
        monkeypatch.setattr("methods.marcos.variants.speak_at_once", self.speak)

    def speak(self, lm: Any, shallow: Tensor, ids: Tensor, known: Tensor) -> Tensor:
        self.shown.append(ids.masked_fill(~known, -1).tolist())
        logits = torch.zeros(*ids.shape, 10)
        for row, places in enumerate(next(self.scripts)):
            for place, (token, size) in enumerate(places):
                logits[row, place, token] = size
        return logits

    def get_output_embeddings(self) -> Any:
        return lambda hidden: hidden


def test_the_first_pass_alone_takes_the_likeliest_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    speaker = Scripted(monkeypatch, [[(5, 9.0), (6, 9.0), (EOS, 9.0), (7, 9.0)]])
    tokens, cost = decode_at_once(speaker, thoughts(1), EOS, length=4, refinements=0)
    assert tokens.tolist() == [[5, 6, EOS, EOS]] and (cost.forward_passes, cost.tokens) == (1, 3)


def test_refinement_says_the_least_certain_tokens_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four tokens (the end counts), two are predicted again in the second of two passes."""
    first = [(5, 9.0), (6, 1.0), (7, 2.0), (EOS, 9.0), (8, 0.5)]
    second = [(2, 9.0), (3, 5.0), (4, 5.0), (9, 9.0), (9, 9.0)]
    speaker = Scripted(monkeypatch, [first], [second])
    tokens, cost = decode_at_once(speaker, thoughts(1), EOS, length=5, refinements=1)
    assert speaker.shown == [[[-1] * 5], [[5, -1, -1, EOS, -1]]]
    assert tokens.tolist() == [[5, 3, 4, EOS, EOS]] and (cost.forward_passes, cost.tokens) == (2, 4)


def test_refinement_stays_within_the_length_of_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [(5, 9.0), (EOS, 1.0), (8, 0.5)]
    second = [(9, 9.0), (6, 9.0), (9, 9.0)]
    tokens, _ = decode_at_once(Scripted(monkeypatch, [first], [second]), thoughts(1), EOS, 3, refinements=1)
    assert tokens.tolist() == [[5, 6, EOS]]


@torch.no_grad()
def test_refined_answers_cost_what_they_say_and_do_not_depend_on_the_batch() -> None:
    method = make(speaking="one_shot", max_step_tokens=6, refinements=2)
    read, together = passes(method), method.generate(QUESTIONS, Decoding(answer_only=False))
    assert len(read) == together.cost.forward_passes
    assert together.answer.shape == (3, 6) and together.steps is not None and together.steps.shape == (3, 3, 6)
    for row, question in enumerate(QUESTIONS):
        assert torch.equal(method.generate([question], Decoding()).answer[0], together.answer[row])


@pytest.mark.parametrize("refinements", [0, 2])
def test_what_is_said_at_once_can_have_its_lengths_forced(refinements: int) -> None:
    method = make(speaking="one_shot", max_step_tokens=6, refinements=refinements)
    generation = method.generate(QUESTIONS, Decoding(lengths=(Length(2), Length(6), Length(9))))
    assert [row.index(EOS) + 1 for row in generation.answer.tolist()] == [2, 6, 6]  # there is room for six tokens
    assert generation.cost.tokens == 14


@torch.no_grad()
def test_what_is_said_at_once_ends_at_the_limit_and_takes_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(speaking="one_shot")
    whole = method.generate(QUESTIONS, Decoding()).answer
    monkeypatch.setattr(variants, "ROWS_AT_ONCE", 2)
    assert torch.equal(method.generate(QUESTIONS, Decoding()).answer, whole)
    short = method.generate(QUESTIONS, Decoding(max_new_tokens=2)).answer
    assert torch.equal(short, whole[:, :2]) and whole.shape[1] > 2


def test_speaking_starts_from_one_token_where_a_newline_has_two() -> None:
    two = replace(VOCABULARY, encode=lambda text: [3, 4] if text == "\n" else VOCABULARY.encode(text))
    for example in EXAMPLES:
        assert [row[1:] for row in step_targets(example, 3, two, limit=128)] == [
            row[len(VOCABULARY.newline) :] for row in step_targets(example, 3, VOCABULARY, limit=128)
        ]
        assert all(row[0] == 4 for row in step_targets(example, 3, two, limit=128))


def test_what_is_said_at_once_is_never_drawn() -> None:
    """Every place has its likeliest token: only R is drawn."""
    drawn = Decoding(tokens="sample", latents="mean")
    answers = [make(speaking="one_shot").generate(QUESTIONS, replace(drawn, seed=seed)).answer for seed in (0, 1)]
    assert torch.equal(*answers) and not make(speaking="one_shot").stochastic(drawn)
    assert make(speaking="one_shot").stochastic(Decoding(latents="sample")) and make().stochastic(drawn)


def test_validation_asks_for_what_the_first_pass_says() -> None:
    method = make(speaking="one_shot", refinements=2)
    other, validation = make(speaking="one_shot"), replace(CONTEXT, training=False)
    plain = other(other.collate(EXAMPLES, CONTEXT), CONTEXT).losses["reconstruction"]
    unseen = method(method.collate(EXAMPLES, validation), validation).losses["reconstruction"]
    torch.testing.assert_close(unseen, plain)
    assert not torch.allclose(method(method.collate(EXAMPLES, CONTEXT), CONTEXT).losses["reconstruction"], plain)


def test_refinements_need_one_shot() -> None:
    with pytest.raises(ValidationError, match="set `speaking: one_shot`"):
        MarCosOptions(refinements=1)
