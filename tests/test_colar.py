"""CoLaR's compression, its losses against a naive row-by-row reference, and its generation."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.distributions import Normal
from torch.nn import functional as F

import tiny
from benchmarks.evaluation.inference import generate
from methods.base import Batch, Budget, Context, Example, Setup, Stage, Vocabulary
from methods.colar import CoLaR, CoLaROptions, draw_labels, merge
from methods.collate import IGNORE
from methods.cot_sft import CoTSFT, CoTSFTOptions
from methods.generation import Decoding, Length
from methods.random_keys import key
from methods.registry import build
from tiny import passes

CONTEXT = Context(Stage("compression", 1.0), epoch=0, step=0, seed=0)
VALIDATION = replace(CONTEXT, training=False)
ROWS = [("2+3?", ["2+3=5"], "5"), ("1+1+1=", ["1+1=2", "2+1=3"], "3"), ("7-", [], "-12"), ("4*5", ["4*5=20"], "20")]


@pytest.fixture
def setup() -> Setup:
    return tiny.setup(intermediate_size=64, initializer_range=0.2)  # large, so that the inputs matter


def make(setup: Setup, **options: object) -> CoLaR:
    model = build("colar", options, setup, seed=1)
    assert isinstance(model, CoLaR)
    return model


def examples(vocabulary: Vocabulary) -> list[Example]:
    encode = vocabulary.encode
    return [Example(q, encode(q), [encode(step) for step in steps], encode(a)) for q, steps, a in ROWS]


def questions(setup: Setup) -> list[list[int]]:
    return [list(example.question) for example in examples(setup.vocabulary)]


def test_places_of_merged_tokens() -> None:
    """One row has two tokens, five that are merged in pairs and one more; the other has one, none and two."""
    real = torch.tensor([[True] * 8, [True] * 3 + [False] * 5])
    place, counts = merge(torch.tensor([[2], [1]]), torch.tensor([[5], [0]]), real, factor=2)
    assert place[0].tolist() == [0, 1, 2, 2, 3, 3, 4, 5]
    assert place[1, :3].tolist() == [0, 1, 2]
    assert counts.tolist() == [[1, 1, 2, 2, 1, 1], [1, 1, 1, 0, 0, 0]]


def test_labels_are_tokens_of_their_block_with_equal_chance() -> None:
    ids = torch.tensor([[7, 11, 12, 13, 14, 8]]).expand(3000, -1)
    place = torch.tensor([[0, 1, 1, 1, 2, 3]]).expand(3000, -1).contiguous()
    labels = draw_labels(ids, place, torch.tensor([[1, 3, 1, 1]]).expand(3000, -1), torch.arange(3000))
    assert {(row[0], *row[2:]) for row in labels.tolist()} == {(7, 14, 8)}
    drawn = Counter(labels[:, 1].tolist())
    assert drawn.keys() == {11, 12, 13} and min(drawn.values()) > 900


def test_layout(setup: Setup) -> None:
    model = make(setup, max_compression=4)
    batch = model.collate(examples(setup.vocabulary)[:2], VALIDATION)  # validation uses the highest speed
    row = "".join(chr(i) if i < 128 else "|" for i in batch["ids"][0].tolist()).rstrip("\0")
    assert row == "2+3? (Thinking speed: 4)\n|2+3=5\n|#### 5"
    start = row.index("|") + 1
    assert batch["place"][0, start - 2 : start + 9].tolist() == [start + i for i in (-2, -1, 0, 0, 0, 0, 1, 1, 2, 3, 4)]
    labels = [i for i in batch["labels"][0].tolist() if i != IGNORE]
    assert [labels[0], labels[3]] == [model.separator] * 2
    assert chr(labels[1]) in "2+3=" and chr(labels[2]) in "5\n"
    assert bytes(labels[4:]) == b"#### 5\0"
    assert batch["thinks"][0].tolist() == [0] * (1 + 2) + [1] * (1 + 3)
    assert batch["thinks"][1, :3].tolist() == [start - 1, start, start + 1]
    assert batch.denominators == {"cross_entropy": 2 * 9 + 2 + 3, "latent": 3 + 4}


def test_compression_keeps_the_deviation_of_random_embeddings(setup: Setup) -> None:
    for sqrt_mean, expected in ((True, 1.0), (False, 4**-0.5)):
        model = make(setup, max_compression=4, sqrt_mean=sqrt_mean)
        long = Example("long", [40], [[33 + i % 90 for i in range(799)]], [50])
        batch = model.collate([long], VALIDATION)
        rows, columns = batch["thinks"]
        vectors = model._compress(batch)[rows, columns + 1][:-1].detach()
        assert len(vectors) == 200
        assert float(vectors.std() / model.embedding_deviation) == pytest.approx(expected, rel=0.15)


def naive(model: CoLaR, batch: Batch, row: int) -> dict[str, Tensor]:
    """Return one row's losses from its own tokens, block by block, with the labels and noise that were drawn."""
    size = int((batch["share"][row] > 0).sum())
    ids, factor = batch["ids"][row, :size], model.speed
    opening, closing = (ids == model.separator).nonzero().squeeze(1).tolist()
    embedded = model.lm.get_input_embeddings()(ids)
    chain = [e.sum(0) / (len(e) ** 0.5 + 1e-5) for e in embedded[opening + 1 : closing].split(factor) if len(e)]
    alone = embedded[opening] / (1 + 1e-5)
    vectors = torch.stack([*embedded[:opening], alone, *chain, *embedded[closing:]])
    hidden = model.lm.base_model(inputs_embeds=vectors[None]).last_hidden_state[0]
    labels = batch["labels"][row][batch["labels"][row] != IGNORE]
    logits = model.lm.get_output_embeddings()(hidden[opening - 1 : -1])
    mean, log_deviation = model.latent_head(hidden[opening : opening + len(chain) + 1])
    wanted = vectors[opening + 1 : opening + len(chain) + 2].detach() / model.embedding_deviation
    if log_deviation is None:
        latent = (mean - wanted).square().mean(1).sum()
    else:
        latent = -Normal(mean, log_deviation.exp()).log_prob(wanted).mean(1).sum()
    return {"cross_entropy": F.cross_entropy(logits.float(), labels, reduction="sum"), "latent": latent}


@pytest.mark.parametrize("options", [{"latent_loss": "nll"}, {"deterministic": True}], ids=str)
def test_losses_and_gradients_equal_a_naive_reference(setup: Setup, options: dict[str, object]) -> None:
    """Rows of unequal length, one of them without steps, have the same losses as alone."""
    model = make(setup, max_compression=3, **options).double()
    batch = model.collate(examples(setup.vocabulary), VALIDATION)
    parameters = list(model.parameters())
    fast = model(batch, VALIDATION).losses
    slow = [naive(model, batch, row) for row in range(len(ROWS))]
    for name, value in fast.items():
        torch.testing.assert_close(value, torch.stack([row[name] for row in slow]).sum())
    fast_gradients = torch.autograd.grad(torch.stack(list(fast.values())).sum(), parameters)
    slow_gradients = torch.autograd.grad(torch.stack([v for row in slow for v in row.values()]).sum(), parameters)
    for ours, theirs in zip(fast_gradients, slow_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("step", range(4))
def test_a_row_has_the_losses_it_has_alone(setup: Setup, step: int) -> None:
    """Labels and latent noise are those of training, with any compression factor that a step may draw."""
    model, context = make(setup).double(), replace(CONTEXT, step=step)
    rows = examples(setup.vocabulary)
    together = model(model.collate(rows, context), context).losses
    alone = [model(model.collate([row], context), context).losses for row in rows]
    for name, value in together.items():
        torch.testing.assert_close(value, torch.stack([losses[name] for losses in alone]).sum())


def test_factor_is_drawn_by_step_and_seed(setup: Setup) -> None:
    model = make(setup, max_compression=5, speed=2)
    drawn = [model._draw_factor(replace(CONTEXT, step=step)) for step in range(500)]
    assert Counter(drawn).keys() == {1, 2, 3, 4, 5} and min(Counter(drawn).values()) > 70
    assert drawn == [model._draw_factor(replace(CONTEXT, step=step, epoch=9)) for step in range(500)]
    assert drawn != [model._draw_factor(replace(CONTEXT, step=step, seed=1)) for step in range(500)]
    assert model._draw_factor(VALIDATION) == 2


def test_validation_draws_the_same_labels_and_noise_at_any_step(setup: Setup) -> None:
    model, rows = make(setup), examples(setup.vocabulary)
    early, late = (model.collate(rows, replace(VALIDATION, epoch=step, step=step)) for step in (1, 9))
    assert early.keys is not None and late.keys is not None
    assert early.keys.tolist() == late.keys.tolist() == [key(0, None, row.id) for row in rows]
    assert torch.equal(early["labels"], late["labels"])
    trained = model.collate(rows, replace(CONTEXT, epoch=1, step=9)).keys
    assert trained is not None and trained.tolist() == [key(0, 9, row.id) for row in rows]


def test_factor_one_is_the_written_chain(setup: Setup) -> None:
    model = make(setup, max_compression=1)
    batch = model.collate(examples(setup.vocabulary), VALIDATION)
    real = batch["share"] > 0
    assert torch.equal(model._compress(batch)[real], model.lm.get_input_embeddings()(batch["ids"])[real])


def test_entropy_of_the_latent_head_is_logged(setup: Setup) -> None:
    model = make(setup)
    statistics = model(model.collate(examples(setup.vocabulary), CONTEXT), CONTEXT).statistics
    logged = model.metrics({name: float(value) for name, value in statistics.items()})
    assert logged["latent_entropy"] == pytest.approx(1.42, abs=0.5)  # the deviation is near one at the start
    assert make(setup, deterministic=True).metrics({}) == {}


def end_chains_after(model: CoLaR, lengths: Sequence[int]) -> None:
    """Make each row's chain end after the given number of vectors, by replacing the model's head."""
    head = model.lm.get_output_embeddings()
    step = itertools.count(1)

    def forward(hidden: Tensor) -> Tensor:
        logits = F.linear(hidden, head.weight)
        logits[:, model.separator] = -1e9
        if (now := next(step)) <= max(lengths):
            logits[[length <= now for length in lengths], model.separator] = 1e9
        return logits

    head.forward = forward


@pytest.mark.parametrize("sampled", [False, True])
def test_answers_are_the_same_at_any_batch_size(setup: Setup, sampled: bool) -> None:
    """Chains end at different steps here: rows that have ended are still fed, which must not change their results."""
    asked = questions(setup)
    decoding = Decoding(tokens="sample" if sampled else "greedy", max_new_tokens=6, trace=True, seed=2)
    lengths = [1, 4, 2, 3]
    model = make(setup, max_latents=5).eval()
    end_chains_after(model, lengths)
    with torch.no_grad():
        together = model.generate(asked, decoding)
    assert together.cost.latent_steps == sum(lengths) / 4
    assert (together.trace["latents"] != 0).any(-1).sum(1).tolist() == lengths
    for row, (question, length) in enumerate(zip(asked, lengths, strict=True)):
        model = make(setup, max_latents=5).eval()
        end_chains_after(model, [length])
        with torch.no_grad():
            alone = model.generate([question], decoding)
        width = alone.answer.shape[1]
        assert torch.equal(together.answer[row, :width], alone.answer[0])
        torch.testing.assert_close(together.trace["latents"][row, :length], alone.trace["latents"][0, :length])


def test_latents_of_another_question_end_where_they_end_for_it(setup: Setup) -> None:
    lengths = [1, 4, 2, 3]
    model = make(setup, max_latents=5).eval()
    end_chains_after(model, lengths * 2)  # a control has each question twice
    decoding = Decoding(max_new_tokens=1, trace=True, thoughts="exchanged")
    generation = generate(model, questions(setup), decoding, "float32")
    assert generation.own
    own, others = (answers.trace["latents"] for answers in (generation.own, generation))
    assert (own != 0).any(-1).sum(1).tolist() == lengths
    torch.testing.assert_close(others, own.roll(1, 0))


def test_a_chain_that_has_ended_is_not_read_again(setup: Setup) -> None:
    """No prompt is padded here, and without a cache everything is read again for every vector."""
    model, asked = make(setup), [list(b"2+3?"), list(b"7-1=")]
    lengths = (Length(3, latents=1), Length(3, latents=4))
    answers = [
        model.generate(asked, Decoding(max_new_tokens=3, lengths=lengths, cache=cache, trace=True))
        for cache in ("dynamic", "none")
    ]
    torch.testing.assert_close(answers[0].trace["latents"], answers[1].trace["latents"])
    assert torch.equal(answers[0].answer, answers[1].answer)


def test_generation_equals_a_naive_reference(setup: Setup) -> None:
    """The reference uses mean latents and greedy tokens, and reads the whole sequence again for each."""
    model = make(setup, max_latents=3).eval()
    embed, head = model.lm.get_input_embeddings(), model.lm.get_output_embeddings()
    with torch.no_grad():
        generation = model.generate(questions(setup), Decoding(max_new_tokens=5, trace=True))
        for row, question in enumerate(questions(setup)):
            text = setup.vocabulary.encode(" (Thinking speed: 5)\n")
            vectors = embed(torch.tensor([*question, *text, model.separator]))
            hidden = model.lm.base_model(inputs_embeds=vectors[None]).last_hidden_state[0]
            for _ in range(3):
                latent = model.latent_head(hidden[-1:])[0] * model.embedding_deviation
                vectors = torch.cat([vectors, latent])
                hidden = model.lm.base_model(inputs_embeds=vectors[None]).last_hidden_state[0]
                if head(hidden[-1]).argmax() == model.separator:
                    break
            latents = vectors[-(len(vectors) - len(question) - len(text) - 1) :]
            torch.testing.assert_close(generation.trace["latents"][row, : len(latents)], latents, rtol=1e-4, atol=1e-5)
            said = [model.separator]
            for _ in range(5):
                vectors = torch.cat([vectors, embed(torch.tensor(said[-1:]))])
                said.append(int(head(model.lm.base_model(inputs_embeds=vectors[None])[0][0, -1]).argmax()))
                if said[-1] == 0:
                    break
            assert generation.answer[row, : len(said) - 1].tolist() == said[1:]


def test_forward_passes_are_counted(setup: Setup) -> None:
    model = make(setup, max_latents=7).eval()
    calls = passes(model)
    end_chains_after(model, [3, 1])
    with torch.no_grad():
        generation = model.generate(questions(setup)[:2], Decoding(max_new_tokens=5))
    assert generation.cost.forward_passes == len(calls) == 1 + 3 + 1 + generation.answer.shape[1] - 1
    calls.clear()
    model(model.collate(examples(setup.vocabulary), CONTEXT), CONTEXT)
    assert len(calls) == 1


def test_draws_follow_decoding(setup: Setup) -> None:
    model, point = make(setup, max_latents=2), make(setup, deterministic=True)
    assert not model.stochastic(Decoding())
    assert model.stochastic(Decoding(latents="sample"))
    assert model.stochastic(Decoding(tokens="sample", latents="mean"))
    assert not point.stochastic(Decoding(latents="sample"))
    drawn: list[tuple[Literal["mean", "sample"], int]]
    drawn = [("mean", 0), ("mean", 1), ("sample", 0), ("sample", 0), ("sample", 1)]
    with torch.no_grad():
        traces = [
            model.generate(questions(setup), Decoding(latents=latents, seed=seed, trace=True)).trace["latents"][:, 0]
            for latents, seed in drawn
        ]
    assert torch.equal(traces[0], traces[1]) and torch.equal(traces[2], traces[3])
    assert not torch.equal(traces[0], traces[2]) and not torch.equal(traces[3], traces[4])


def test_warm_start_sets_separator_and_measures_embeddings(setup: Setup) -> None:
    assert CoLaR.starts_from(CoLaROptions()) == "cot_sft"
    assert CoLaR.starts_from(CoLaROptions(warm_start="none")) is None
    parent, model = CoTSFT(CoTSFTOptions(), setup), make(setup)
    assert model.embedding_deviation == pytest.approx(0.2, rel=0.05)
    with torch.no_grad():
        parent.lm.get_input_embeddings().weight.mul_(3)
    model.warm_start(parent.state_dict())
    table = model.lm.get_input_embeddings().weight
    assert torch.equal(table[:128], parent.lm.get_input_embeddings().weight)
    torch.testing.assert_close(table[model.separator], table[ord("#")])
    assert model.embedding_deviation == pytest.approx(0.6, rel=0.05)
    assert "embedding_deviation" in model.state_dict()


def test_a_deterministic_head_has_no_likelihood() -> None:
    with pytest.raises(ValidationError, match="no likelihood"):
        CoLaROptions(deterministic=True, latent_loss="nll")


def test_one_stage_spends_the_budget(setup: Setup) -> None:
    (stage,) = make(setup).stages(Budget(epochs=2.5, steps_per_epoch=7))
    assert (stage.epochs, stage.select_on) == (2.5, ("cross_entropy", "latent"))
