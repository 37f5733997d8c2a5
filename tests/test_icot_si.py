"""iCoT-SI: which tokens are removed when, how many are added at random, and the loss on the rest."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from golden import close
from methods.base import Budget, Context, Example
from methods.collate import IGNORE
from methods.cot_sft import CoTSFT
from methods.generation import Decoding
from methods.icot_si import PUBLISHED_CUTOFF, ICoTSI, ICoTSIOptions
from tiny import EOS, context, examples, ids, make, passes, questions, text

BARE = {"smoothing": None}  # without random offsets: exactly the stage's count


def icot(options: dict[str, Any] | None = None) -> ICoTSI:
    method = make("icot_si", options)
    assert isinstance(method, ICoTSI)
    return method


def read_and_predicted(method: ICoTSI, place: Context) -> list[tuple[str, str]]:
    """Return each row's text, and the part of it that is predicted."""
    batch = method.collate(examples(), place)
    rows = []
    for row, labels in zip(batch["ids"], batch["labels"], strict=True):
        end = int((labels != IGNORE).nonzero().max()) + 1
        rows.append((text([*row[:end].tolist(), EOS]), text(labels[labels != IGNORE].tolist())))
        assert (row[end:] == EOS).all()
    return rows


# -- removal


def test_worked_examples_of_removal() -> None:
    asked = ["Ann has 3 + 4\n", "9 of 12 go, then 2 more\n", "2 + 2, twice, less 1, halved\n", "5\n"]
    chains = ["<<3+4=7>>\n", "<<12-9=3>>\n<<3-2=1>>\n", "<<2+2=4>>\n<<4*2=8>>\n<<8-1=7>>\n<<7/2=3.5>>\n", ""]
    answers = ["#### 7$", "#### 1$", "#### 3.5$", "#### 5$"]
    for removed in (0, 1, 8, 13, math.inf):
        counts = [int(min(removed, len(chain))) for chain in chains]
        left = [chain[count:] for chain, count in zip(chains, counts, strict=True)]
        wanted = [(q + c + a, c + a) for q, c, a in zip(asked, left, answers, strict=True)]
        assert read_and_predicted(icot(BARE), context(removed=removed)) == wanted


def test_nothing_removed_is_cot_sft_and_all_removed_its_answer_only_control() -> None:
    method = icot(BARE)
    for removed, steps in ((0, True), (math.inf, False)):
        ours = method.collate(examples(), context(removed=removed))
        theirs = make("cot_sft", {"steps": steps}).collate(examples(), context())
        assert torch.equal(ours["ids"], theirs["ids"])
        assert torch.equal(ours["labels"], theirs["labels"])
        assert ours.denominators == theirs.denominators
        assert ours.tokens == theirs.tokens


@pytest.mark.parametrize("smoothing", [4.0, 0.5])
def test_offsets_fall_exponentially(smoothing: float) -> None:
    method, count = icot({"smoothing": smoothing}), 20_000
    rows = [Example(str(i), ids("1"), [ids("2" * 200)], ids("3")) for i in range(count)]
    removed = method._removed(rows, context(removed=7))
    assert torch.equal(removed, method._removed(rows, context(removed=7)))
    shares = torch.bincount(removed - 7)[:4] / count
    expected = [(1 - math.exp(-smoothing)) * math.exp(-smoothing * o) for o in range(len(shares))]
    torch.testing.assert_close(shares, torch.tensor(expected), atol=0.01, rtol=0)


def test_offsets_differ_between_epochs_and_are_the_same_in_any_batch() -> None:
    method, rows = icot({"smoothing": 0.1}), examples()[:3]
    place = context(removed=1)
    alone = torch.cat([method._removed([row], place) for row in rows])
    assert torch.equal(method._removed(rows, place), alone)
    later = Context(place.stage, epoch=1, step=0, seed=0)
    assert not torch.equal(method._removed(rows, later), alone)
    unseen = [method._removed(rows, replace(one, training=False)) for one in (place, later)]
    assert torch.equal(*unseen)  # validation draws the same in every epoch


# -- curriculum


def test_pretrained_schedule() -> None:
    stages = icot({"tokens_per_epoch": 8, "cutoff": 39}).stages(Budget(20, 800))
    assert [stage.settings["removed"] for stage in stages] == [*range(39), math.inf]
    assert [stage.epochs for stage in stages] == pytest.approx([1 / 8] * 39 + [20 - 39 / 8])
    assert not any(stage.keep_optimizer for stage in stages)
    assert [bool(stage.select_on) for stage in stages] == [False] * 39 + [True]
    assert {stage.phase for stage in stages} == {"train"}


@pytest.mark.parametrize(("epochs", "steps"), [(20, 800), (5.43, 79), (3, 5), (1, 1), (0.5, 10)])
def test_stages_spend_any_budget_in_whole_steps(epochs: float, steps: int) -> None:
    stages = icot({"removal_share": 0.5}).stages(Budget(epochs, steps))
    assert sum(stage.epochs for stage in stages) == pytest.approx(epochs)
    removing = [stage.epochs * steps for stage in stages[:-1]]
    assert removing == pytest.approx([round(count) for count in removing])
    assert sum(removing) <= epochs * steps / 2 < sum(removing) + 1
    counts = [stage.settings["removed"] for stage in stages]
    assert counts == sorted(set(counts)) and counts[-1] == math.inf


def test_optimizer_may_be_kept() -> None:
    assert all(stage.keep_optimizer for stage in icot({"optimizer_restart": False}).stages(Budget(20, 100)))


def test_cutoff_from_the_lengths_of_chains() -> None:
    lengths = list(range(100, 0, -1))
    assert icot().cutoff(Budget(20, 100, lengths)) == 90
    assert icot({"cutoff_quantile": 1.0}).cutoff(Budget(20, 100, lengths)) == 100
    assert icot({"cutoff": 12}).cutoff(Budget(20, 100, lengths)) == 12
    assert icot().cutoff(Budget(20, 100)) == PUBLISHED_CUTOFF


def test_a_budget_that_ends_before_all_is_removed_is_refused() -> None:
    with pytest.raises(ValueError, match="raise tokens_per_epoch"):
        icot({"tokens_per_epoch": 8, "cutoff": 39}).stages(Budget(4, 100))


def test_starts_from() -> None:
    assert ICoTSI.starts_from(ICoTSIOptions()) is None
    assert ICoTSI.starts_from(ICoTSIOptions(warm_start="cot_sft")) == "cot_sft"
    method, parent = icot({"warm_start": "cot_sft"}), make("cot_sft")
    weights = {name: tensor + 1 for name, tensor in parent.state_dict().items() if name != "lm.lm_head.weight"}
    method.warm_start(weights)  # as in checkpoints, which leave out a tied head
    state = method.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())


# -- the same numbers as computed directly


@pytest.mark.parametrize("removed", [0, 5, math.inf])
def test_loss_equals_the_one_of_each_shortened_text(removed: float) -> None:
    method = icot().double()
    place = context(removed=removed)
    batch = method.collate(examples(), place)
    expected = torch.zeros((), dtype=torch.float64)
    for whole, predicted in read_and_predicted(method, place):
        tokens = torch.tensor([EOS if letter == "$" else ord(letter) for letter in whole])
        logits = method.lm(input_ids=tokens[None, :-1]).logits[0]
        count = len(predicted)
        expected += F.cross_entropy(logits[-count:], tokens[-count:], reduction="sum")
    close(method(batch, place).losses["cross_entropy"], expected)
    assert batch.denominators["cross_entropy"] == sum(len(p) for _, p in read_and_predicted(method, place))


@torch.no_grad()
def test_answers_as_cot_sft_does() -> None:
    method = icot()
    assert isinstance(method, CoTSFT)
    read, generation = passes(method), method.generate(questions(), Decoding(max_new_tokens=5))
    assert generation.cost.forward_passes == len(read) == generation.answer.shape[1]
    for question, answer in zip(questions(), generation.answer, strict=True):
        alone = method.generate([question], Decoding(max_new_tokens=5)).answer[0]
        assert answer[: len(alone)].tolist() == alone.tolist()
