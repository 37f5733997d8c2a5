"""Tests that every method must pass, whoever wrote it. They run for all methods in the registry."""

from __future__ import annotations

import inspect
import pickle
import random
import shutil
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from benchmarks.budgets import curriculum
from benchmarks.data import prepare
from benchmarks.engine.layers import checkpoint_activations
from benchmarks.evaluation.inference import generate
from benchmarks.models import _WithoutDraws
from benchmarks.plan.memory import shapes_only
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import set_path
from benchmarks.studies.study import Study
from benchmarks.training.loop import train
from conforming import (
    BACKBONES,
    BUDGET,
    EOS,
    WORDS,
    collated,
    contexts,
    examples,
    make,
    perturbed,
    questions,
    say,
    setup,
)
from conftest import bibtex_fields
from methods.backbone import load_backbone
from methods.base import Batch, Context, Example, Method, Stage
from methods.cot_sft import CoTSFT
from methods.generation import Decoding, Latents, Tokens
from methods.registry import available, build, get_method
from small import small_study, stopped_after
from tiny import passes


@pytest.fixture(params=available())
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def method(name: str) -> Method:
    return perturbed(make(name))


@pytest.fixture(params=BACKBONES)
def placed(name: str, request: pytest.FixtureRequest) -> Method:
    """Return a method on a backbone with rotary positions, and on one with a table of them: rotary ones hide it if all
    positions of a row are off by the same number."""
    return perturbed(make(name, request.param))


def test_describes_itself(name: str) -> None:
    cls = get_method(name)
    assert cls.name == name and cls.title and cls.__doc__ and inspect.getmodule(cls).__doc__
    assert {"title", "author", "year"} <= bibtex_fields(cls.citation)
    assert "question" not in inspect.signature(cls.__init__).parameters


def test_options_round_trip_and_unknown_ones_are_refused(name: str) -> None:
    options = get_method(name).Options.model_validate(get_method(name).tested_options)
    assert type(options).model_validate_json(options.model_dump_json()) == options
    with pytest.raises(ValidationError, match="no_such_option"):
        type(options).model_validate({"no_such_option": 1})
    if option := get_method(name).thoughts_option:
        type(options).model_validate(set_path(get_method(name).tested_options, option, 2))  # it has this option


@torch.no_grad()
def test_a_trained_model_answers_with_other_counts_of_what_it_can_change(name: str) -> None:
    trained = make(name).state_dict()
    for option, count in product(get_method(name).answering_options, (1, 4)):
        other = build(name, set_path(get_method(name).tested_options, option, count), setup(), seed=0)
        other.load_state_dict(trained)
        answer = other.generate(questions(), Decoding(max_new_tokens=2)).answer
        assert len(answer) == len(questions())


def test_what_a_constructor_draws_is_a_weight(name: str) -> None:
    """A trained model is built without drawing anything: what is drawn must be a parameter or a buffer that is saved
    (`register_buffer`), since attributes and other buffers would differ from those of the training."""
    assert not unsaved_draws(get_method(name))


def test_numbers_that_are_drawn_and_not_saved_are_found() -> None:
    class Forgetful(CoTSFT):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.projection, self.size = torch.randn(4), 4
            self.register_buffer("scale", torch.rand(1), persistent=False)
            self.register_buffer("kept", torch.rand(1))

    assert unsaved_draws(Forgetful) == ["projection", "scale"]


def unsaved_draws(cls: type[Method]) -> list[str]:
    """Return the names of numbers that differ between a method as it is trained and as it is built to load weights."""
    held = []
    for mode in (nullcontext(), _WithoutDraws()):
        with torch.random.fork_rng(devices=[]), mode:
            torch.manual_seed(0)
            held.append(beside_weights(cls(cls.Options.model_validate(cls.tested_options), setup())))
    drawn, blank = held
    assert drawn.keys() == blank.keys()
    return sorted(key for key, value in drawn.items() if not torch.equal(value, blank[key]))


def beside_weights(method: Method) -> dict[str, Tensor]:
    """Return the numbers that a method holds besides its weights: plain attributes, and buffers that are not saved."""
    held = {key: buffer for key, buffer in method.named_buffers() if key not in method.state_dict()}
    for place, module in method.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, (Tensor, np.ndarray, float, int)):
                held[f"{place}.{key}".lstrip(".")] = torch.as_tensor(value)
    return held


def test_stages_spend_the_budget(method: Method) -> None:
    stages = curriculum(method, BUDGET)  # refuses stages that spend more than it, cached ones aside
    spent = sum(stage.epochs for stage in stages)
    assert spent > 0.99 * BUDGET.epochs, f"`stages` spends {spent:g} of {BUDGET.epochs:g} epochs"
    names = [name for name, _ in method.named_parameters()]
    assert all(any(stage.trains(n) for n in names) for stage in stages)


def test_what_is_learned_by_heart_is_said(name: str) -> None:
    """The loss of a single example falls in every stage, until the model says the example's answer and ends its text:
    labels stand where decoding looks for them, and the end of the text is learned."""
    method, example = make(name), examples()[1]
    for stage in method.stages(BUDGET):
        context = Context(stage, epoch=0, step=3, seed=0)
        for parameter_name, parameter in method.named_parameters():
            parameter.requires_grad_(stage.trains(parameter_name))
        optimizer = torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=3e-3)
        batch, history = collated(method, context, [example]), []
        while len(history) < (300 if stage.answers else 80):
            output = method(batch, context)
            assert output.losses.keys() <= batch.denominators.keys()
            loss = torch.stack([v / batch.denominators[k] for k, v in output.losses.items()]).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
            if stage.answers and len(history) % 10 == 0 and ends_with_answer(method, example, stage):
                break
        assert history[-1] < history[0]
    assert ends_with_answer(method, example), "is each label the token after, and the end of the text the last?"
    with _WithoutDraws():  # as a trained model is built
        loaded = build(name, get_method(name).tested_options, setup(), seed=0)
    loaded.load_state_dict(method.state_dict())
    why = "what training has changed, or a constructor has drawn, is neither a parameter nor a saved buffer"
    assert say(loaded, questions(), **DRAWN) == say(method, questions(), **DRAWN), why


@torch.no_grad()
def ends_with_answer(method: Method, example: Example, stage: Stage | None = None) -> bool:
    """Return whether the text that a model says ends, and ends with the example's answer."""
    decoding = Decoding(max_new_tokens=24, latents="mean", stage=stage)
    said = method.generate([example.question], decoding).answer[0].tolist()
    return EOS in said and said[: said.index(EOS)][-len(example.answer) :] == list(example.answer)


def test_losses_and_statistics_are_summed_in_float32(method: Method) -> None:
    for context in contexts(method):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            output = method(collated(method, context), context)
        assert {tensor.dtype for tensor in (*output.losses.values(), *output.statistics.values())} == {torch.float32}


def step_without_numbers(method: Method, batch: Batch, context: Context) -> None:
    """Run the forward and backward pass of a micro-batch, including the features of a cached stage.

    On a GPU, reading a value waits until all earlier work is done, and then the device waits for new work. Here it is
    an error of PyTorch that names the operation.
    """
    mode = FakeTensorMode()
    own = {**dict(method.named_buffers()), **method.state_dict(keep_vars=True)}
    weights: dict[str, Tensor] = {name: mode.from_tensor(tensor) for name, tensor in own.items()}
    with mode:
        unknown = shapes_only(batch, mode)
        if context.stage.cached:
            inside = {f"method.{name}": tensor for name, tensor in weights.items()}
            with torch.no_grad():
                unknown = method.collate_features(functional_call(_Features(method), inside, (unknown, context)))
        output = functional_call(method, weights, (unknown, context))
        torch.stack([*output.losses.values()]).sum().backward()


class _Features(nn.Module):
    """Call :meth:`Method.features` as a module's forward pass."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, batch: Batch, context: Context) -> dict[str, Tensor]:
        return self.method.features(batch, context)


def test_training_asks_for_no_numbers(method: Method) -> None:
    """This keeps a GPU supplied with work. Code that fails here belongs in ``collate``, on the host."""
    for context in contexts(method):
        step_without_numbers(method, method.collate(examples(), context), context)


def test_what_goes_to_a_gpu_is_pinned_whole(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor that goes to a GPU is contiguous.

    Pinned memory keeps the strides of a view. An expanded view cannot be pinned, and a slice is copied from memory that
    is not pinned, which the host waits for.
    """
    pinned = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    monkeypatch.setattr(Tensor, "to", lambda tensor, *args, **kwargs: tensor)
    for context in contexts(method):
        batch = method.collate(examples(), context).to(torch.device("cuda"))
        assert len(pinned) >= len(batch.tensors) and all(tensor.is_contiguous() for tensor in pinned)


DRAWN: dict[str, Any] = {"tokens": "sample", "latents": "sample", "seed": 3}


def test_batch_size_changes_no_draw(placed: Method) -> None:
    """Greedy answers are those of `test_answers_need_no_cache`."""
    assert say(placed, questions(), **DRAWN) == [say(placed, [question], **DRAWN)[0] for question in questions()]


def test_every_stage_of_a_curriculum_can_be_asked(method: Method) -> None:
    """Batch mates do not change an answer. Without a stage, a model answers as in its last stage."""
    *earlier, last = method.stages(BUDGET)
    assert last.answers and say(method, questions(), stage=last) == say(method, questions())
    for stage in [stage for stage in earlier if stage.answers][:1]:
        together = say(method, questions(), stage=stage)
        assert together == [say(method, [question], stage=stage)[0] for question in questions()]


def test_answers_need_no_cache(placed: Method) -> None:
    """Without a cache and one question at a time, everything is read again for every token, as published codes do."""
    alone = [say(placed, [question], cache="none")[0] for question in questions()]
    assert say(placed, questions()) == alone


def test_fixed_buffers_change_no_answer(placed: Method) -> None:
    """These are the buffers on which graphs are captured on a GPU. Batches of different sizes share them in turn."""
    grown = say(placed, questions(), **DRAWN)
    assert say(placed, questions()[:3], cache="static", **DRAWN) == grown[:3]
    assert say(placed, questions(), cache="static", **DRAWN) == grown


def test_lengths_can_be_forced(method: Method) -> None:
    """The lengths are those of the gold answers, so that the measured work does not depend on weights."""
    lengths = tuple(method.length(example) for example in examples())
    answers = []
    for cache in ("dynamic", "none"):
        with torch.no_grad():
            generation = method.generate(questions(), Decoding(max_new_tokens=1, lengths=lengths, cache=cache))
        answers.append(generation.answer)
        assert [row.index(EOS) + 1 for row in generation.answer.tolist()] == [length.tokens for length in lengths]
        assert generation.cost.tokens == sum(length.tokens for length in lengths)
    assert torch.equal(*answers)
    with pytest.raises(ValueError, match="lengths are given"):
        method.generate(questions()[1:], Decoding(lengths=lengths))


def test_dropout_is_for_training_alone(name: str) -> None:
    method = make(name)
    backbone = load_backbone("qwen2-tiny", WORDS, overrides=BACKBONES["qwen2-tiny"], dropout=0.5)
    other = build(name, get_method(name).tested_options, replace(setup(), backbone=backbone), seed=0)
    other.load_state_dict(method.state_dict())
    assert say(other.eval(), questions(), **DRAWN) == say(method.eval(), questions(), **DRAWN)


def test_the_likeliest_tokens_are_those_of_no_temperature_and_of_a_small_nucleus(method: Method) -> None:
    greedy = say(method, questions(), latents="mean")
    for narrow in ({"temperature": 1e-9}, {"top_p": 1e-12}):
        why = f"`generate` draws tokens as if `{narrow}` were not set: hand its `decoding` on"
        assert say(method, questions(), tokens="sample", latents="mean", **narrow) == greedy, why


def test_a_question_asked_twice_gets_one_answer(method: Method) -> None:
    first = questions()[3]
    answers = say(method, [first, questions()[7], first], tokens="sample", latents="sample")
    assert answers[0] == answers[2]


@torch.no_grad()
def test_draws_depend_on_the_seed_only_if_declared(method: Method) -> None:
    """Latents are looked at too: those of an untrained model may differ without any effect on its answers."""
    for tokens, latents in product(get_args(Tokens), get_args(Latents)):
        decodings = [Decoding(tokens, latents, max_new_tokens=12, trace=True, seed=seed) for seed in range(2)]
        said = [method.generate(questions(), decoding) for decoding in decodings]
        first, other = ([one.answer, *one.trace.values()] for one in said)
        equal = all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
        stochastic = method.stochastic(decodings[0])
        assert equal or stochastic, f"`stochastic` denies that seeds matter ({tokens} tokens, {latents} latents)"
        if tokens == "sample":
            assert equal is not stochastic


def test_no_draw_is_from_a_global_generator(method: Method) -> None:
    """Otherwise a run could not be resumed, and an answer would depend on the batches before it."""

    def states() -> list[Any]:
        return [torch.get_rng_state().tolist(), random.getstate(), pickle.dumps(np.random.get_state())]

    before = states()
    for context in contexts(method)[:: max(1, len(contexts(method)) // 3)]:
        with torch.no_grad():
            method(collated(method, context), context)
    say(method, questions(), tokens="sample", latents="sample")
    assert states() == before, "draw from `methods.random_keys`"


def test_tokens_are_counted_right(method: Method) -> None:
    """An example has at most the tokens that backbones read for it, without padding. A batch has the sum of these."""
    calls, some = passes(method), [example for example in examples() if example.steps]
    for context in contexts(method)[:: max(1, len(contexts(method)) // 3)]:
        if context.stage.cached:
            continue
        alone = [method.collate([example], context) for example in some]
        for example, batch in zip(some, alone, strict=True):
            calls.clear()
            with torch.no_grad():
                method(batch, context)
            if calls:  # else the stage trains other modules than backbones
                read = len(example.question) + len(example.answer), sum(shape.numel() for shape in calls)
                assert read[0] <= batch.tokens <= read[1], "`Batch.tokens` counts what backbones read, without padding"
        assert method.collate(some, context).tokens == sum(batch.tokens for batch in alone)


def test_activations_computed_again_change_no_gradient(method: Method) -> None:
    """A method whose training reads a cache is refused instead."""
    context = contexts(method)[0]
    gradients = []
    for again in (False, True):
        if again and method.caches_in_training:
            with pytest.raises(ValueError, match="reads a cache while it trains"):
                checkpoint_activations(method)
            return
        if again:
            checkpoint_activations(method.train())
        output = method(method.collate(examples(), context), context)
        torch.stack(list(output.losses.values())).sum().backward()
        gradients.append({name: p.grad for name, p in method.named_parameters() if p.grad is not None})
        method.zero_grad()
    torch.testing.assert_close(gradients[1], gradients[0])


def test_padding_and_batch_mates_change_no_loss(placed: Method) -> None:
    """A batch's loss sums are the sums of its rows' losses alone."""
    for context in contexts(placed)[:: max(1, len(contexts(placed)) // 3)]:
        if context.stage.cached:
            continue
        with torch.no_grad():
            together = placed(placed.collate(examples(), context), context).losses
            alone = [placed(placed.collate([example], context), context).losses for example in examples()]
        whole = placed.collate(examples(), context).denominators
        parts_of = [placed.collate([example], context).denominators for example in examples()]
        for term, value in whole.items():
            parts = sum(part[term] for part in parts_of)
            assert value == pytest.approx(parts), f"the denominator of {term!r} is no sum over rows: leave out padding"
        for term, value in together.items():
            if term in placed.batch_terms:
                continue
            parts = torch.stack([row[term] for row in alone]).sum()
            why = f"{term!r} is no sum over rows: return a sum, not a mean; mask padding; or see `batch_terms`"
            torch.testing.assert_close(value, parts, rtol=1e-4, atol=1e-4, msg=f"{why}: {value} and {parts}")


def test_forward_passes_are_counted_right(method: Method) -> None:
    calls = passes(method)
    for answer_only in (True, False):
        calls.clear()
        with torch.no_grad():
            cost = method.generate(questions(), Decoding(max_new_tokens=6, answer_only=answer_only)).cost
        assert cost.forward_passes == len(calls) > 0
        assert cost.tokens > 0
        assert (cost.latent_steps > 0) is method.has_latents, "`Cost.latent_steps` counts latents, if there are any"
    decoding = Decoding(max_new_tokens=6)
    with torch.no_grad():
        steps = [method.generate([question], decoding).cost.latent_steps for question in questions()]
        together = method.generate(questions(), decoding).cost.latent_steps
    assert together == pytest.approx(sum(steps) / len(steps)), "`Cost.latent_steps` is the mean over questions"


def test_latents_are_traced_and_controlled(method: Method) -> None:
    if not method.has_latents:
        pytest.skip(f"{method.title} has no latents")
    with torch.no_grad():
        trace = method.generate(questions(), Decoding(trace=True, max_new_tokens=4)).trace
    assert trace, "`generate` returns its latents as `trace` if the decoding asks for it"
    assert all(len(tensor) == len(questions()) for tensor in trace.values()), "one row of each trace per question"
    for thoughts in ("exchanged", "mean"):
        control = Decoding(trace=True, max_new_tokens=4, thoughts=thoughts)
        generation = generate(method, questions(), control, "float32")
        other, own = generation.trace, generation.own
        assert own, "a control also has the answers with the questions' own latents"
        for name, latents in trace.items():  # those of another question may go on for longer
            torch.testing.assert_close(own.trace[name][:, : latents.shape[1]], latents, atol=1e-4, rtol=1e-4)
        why = f"`thoughts: {thoughts}` changes nothing: see methods.decoding.swap_latents"
        assert any(not torch.allclose(trace[name], other[name], atol=1e-4) for name in trace), why
        said, swapped = (say(method, questions(), tokens="sample", thoughts=kind) for kind in ("own", thoughts))
        assert said != swapped, why
    some = questions()[:3]
    single = [say(method, [question], thoughts=thoughts) for question in some for thoughts in ("own", "mean")]
    assert single[::2] == single[1::2]  # alone, the mean of a question's latents is its own


@torch.no_grad()
def test_encoded_steps_take_the_place_of_own_latents(method: Method) -> None:
    if not method.encodes_steps(method.options):
        return
    latents, name = method.encode_steps(examples()), method.steerable_latents(method.options)
    assert name is not None
    decoding = Decoding(encoded=latents, trace=True, max_new_tokens=4)
    assert torch.equal(method.generate(questions(), decoding).trace[name], latents)
    assert not method.stochastic(decoding)
    assert not torch.equal(method.generate(questions(), replace(decoding, encoded=None)).trace[name], latents)


@torch.no_grad()
def test_nats_are_those_of_each_example_alone(placed: Method) -> None:
    together, alone = placed.nats(examples()), [placed.nats([example]) for example in examples()]
    if together is None:
        return
    assert together.text is not None or together.answer is not None, "what does the trained model write?"
    for part, found in vars(together).items():
        if found is None:
            continue
        assert found.dtype == torch.float32 and len(found) == len(examples()) and (found >= 0).all()
        torch.testing.assert_close(found, torch.cat([getattr(one, part) for one in alone]), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_one_more_token_costs_its_natural_logarithm(method: Method) -> None:
    """Where all weights are 0, that is the logarithm of the vocabulary's size, to which a method may have added some
    tokens. Nats that are means, or in bits, are found by it."""
    for parameter in method.parameters():
        parameter.zero_()
    longer = [replace(example, answer=[*example.answer, example.answer[0]]) for example in examples()]
    found, more = method.nats(examples()), method.nats(longer)
    if found is None or more is None:
        return
    pairs = [(found.answer, more.answer), (found.text, more.text)]
    costs = [after - before for before, after in pairs if before is not None and after is not None]
    added = torch.stack([cost if cost.dim() == 1 else cost.sum(1) for cost in costs]).exp().cpu()
    size = method.vocabulary.size
    assert torch.allclose(added, added.mean().round(), rtol=1e-3) and size - 0.5 < added.mean() < size + 16


def test_generate_takes_questions_alone() -> None:
    """Gold answers cannot leak: the only inputs are token ids of questions, and settings without text."""
    for cls in available().values():
        assert list(inspect.signature(cls.generate).parameters) == ["self", "questions", "decoding"]


# ---- training


def study_of(name: str) -> Study:
    """Return a study of one method, and of the method that it starts from, if any."""
    cls = get_method(name)
    rows: list[dict[str, Any]] = [{"id": f"tested_{name}", "method": name, "options": dict(cls.tested_options)}]
    if start := cls.starts_from(cls.Options.model_validate(cls.tested_options)):
        rows[0]["starts_from"] = "start"
        rows.append({"id": "start", "method": start, "options": dict(get_method(start).tested_options)})
    return small_study(
        rows,
        blocks=[{"id": "equation", "title": "E", "data": {"train": "embedded", "validation": 8, "limit": 48}}],
        training={"batch_size": 16, "validations": 1},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with the data of these studies."""
    study, folder = study_of("cot_sft"), tmp_path_factory.mktemp("trained")
    prepare(study, study.blocks[0], folder)
    return folder


def train_after(run: str, study: Study, folder: Path) -> dict[str, Any]:
    """Train a run, after the run that it starts from."""
    if parent := study.runs[run].starts_from:
        train_after(parent, study, folder)
    return train(study.runs[run], folder)


def test_resume_is_bit_exact(name: str, folder: Path) -> None:
    """The run is stopped in the middle of its steps, with a checkpoint after every one, and started again."""
    study = study_of(name)
    spec = study.runs[f"equation/tested_{name}/s0"]
    undisturbed = train_after(spec.id, study, folder)
    shutil.rmtree(Paths(folder, spec).run)
    with stopped_after(undisturbed["steps"] // 2):
        train(spec, folder)
    resumed = train(spec, folder)
    assert (resumed["steps"], resumed["tokens"]) == (undisturbed["steps"], undisturbed["tokens"])
    assert resumed["weights_sha256"] == undisturbed["weights_sha256"]
