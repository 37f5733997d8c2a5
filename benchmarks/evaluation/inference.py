"""Load a trained run and answer questions with it: every question once under each decoding and seed.

A question that is in several test sets is answered once. Questions are answered in order of length. This must make no
difference to a method, which the conformance tests check; in controls of latents it decides whose latents are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.console import Progress
from benchmarks.data import TestSet, decode
from benchmarks.engine import autocast, pick_device
from benchmarks.engine.device import report_out_of_memory
from benchmarks.engine.layers import compile_layers, linear_layers, uncompile_layers
from benchmarks.models import trained_method
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import DecodingSpec, EngineSpec, EvaluationSpec
from methods._static_cache import free_buffers
from methods.base import Example, Method, Stage
from methods.context_length import require_context
from methods.errors import InputError
from methods.generation import Decoding, Generation, Nats


def decoding_of(
    spec: DecodingSpec, evaluation: EvaluationSpec, seed: int, answer_only: bool = True, stage: Stage | None = None
) -> Decoding:
    """Return the decoding that a study names. Encoded latents are those of a batch's examples, which are not known yet:
    :func:`generate_batches` adds them."""
    return Decoding(
        tokens=spec.tokens,
        latents="mean" if spec.latents == "encoded" else spec.latents,  # nothing is drawn
        thoughts=spec.thoughts,
        temperature=spec.temperature,
        top_p=spec.top_p,
        seed=seed,
        max_new_tokens=evaluation.max_new_tokens,
        answer_only=answer_only,
        stage=stage,
    )


def batches_by_length(questions: Sequence[Sequence[int]], batch_size: int) -> Iterator[np.ndarray]:
    """Yield the indices of batches of about equal length, longest first, so that memory runs out at once if it does.

    No batch of a single question is left over (unless ``batch_size`` is 1), because the control `exchanged` needs
    another question's latents.
    """
    order = np.argsort([-len(question) for question in questions], kind="stable")
    starts = [*range(0, len(order), batch_size)]
    if batch_size > 1 and len(starts) > 1 and len(order) - starts[-1] == 1:
        del starts[-1]  # the last question joins the batch before it
    for start, end in pairwise([*starts, len(order)]):
        yield order[start:end]


def load_for_inference(spec: RunSpec, results: Path, stage: int | None = None, decoding: str = "default") -> Method:
    """Return a trained run's method, or the method as one stage left it, on the device that answers under a decoding.
    It is prepared for answering only: its weights are cast once and keep their addresses, so that CUDA graphs remain
    valid."""
    method = trained_method(spec, results, stage, decoding).to(pick_device())
    prepare_for_inference(method, spec.engine)
    return method


@torch.no_grad()
def generate(method: Method, questions: Sequence[Sequence[int]], decoding: Decoding, precision: str) -> Generation:
    """Answer questions at once. In a control of latents, the cost is that of answering them with their own, too."""
    if decoding.thoughts != "own":
        return _with_others_latents(method, questions, decoding, precision)
    return _generate(method, questions, decoding, precision)


def _with_others_latents(
    method: Method, questions: Sequence[Sequence[int]], decoding: Decoding, precision: str
) -> Generation:
    """Ask each question twice, as :func:`methods.decoding.swap_latents` has it, and return the second answers."""
    count, encoded, lengths = len(questions), decoding.encoded, decoding.lengths
    twice = replace(
        decoding, encoded=None if encoded is None else torch.cat([encoded, encoded]), lengths=lengths and lengths * 2
    )
    both = _generate(method, [*questions, *questions], twice, precision)
    own, others = (
        Generation(
            both.answer[rows],
            both.cost,
            None if both.steps is None else both.steps[rows],
            {name: latents[rows] for name, latents in both.trace.items()},
        )
        for rows in (slice(count), slice(count, None))
    )
    return replace(others, own=own)


def _generate(method: Method, questions: Sequence[Sequence[int]], decoding: Decoding, precision: str) -> Generation:
    if decoding.interventions and method.steerable_latents(method.options) is None:
        raise InputError(f"{method.title} (options: {method.options}) has no latents that can be set by hand")
    memory = report_out_of_memory(
        f"answering {len(questions)} questions at once, the longest of {max(map(len, questions))} tokens",
        "Lower `batch_size`: `evaluation` has one, and `timing` its own",
    )
    with memory, autocast(method.device, precision):
        generation = method.generate(questions, decoding)
    if not isinstance(generation, Generation) or not isinstance(generation.answer, Tensor):
        kind = type(generation.answer if isinstance(generation, Generation) else generation).__name__
        raise InputError(f"{method.name}: `generate` returns a {kind}: return a Generation, whose `answer` is a tensor")
    if generation.steps is not None and generation.steps.shape[::2] != generation.answer.shape:
        raise InputError(
            f"{method.name}: `generate` returns `steps` of shape {tuple(generation.steps.shape)} for an answer of "
            f"{tuple(generation.answer.shape)}: return ids (B, K, L), the answer last"
        )
    if (ids := generation.answer).dtype != torch.long or ids.shape[:-1] != (len(questions),):
        raise InputError(
            f"{method.name}: `generate` answers {len(questions)} questions by a tensor of shape {tuple(ids.shape)} "
            f"and type {ids.dtype}: return ids ({len(questions)}, L), torch.int64, a row for each question"
        )
    if decoding.lengths is None and ids.shape[1] > decoding.max_new_tokens:
        raise InputError(
            f"{method.name}: `generate` answers with {ids.shape[1]} tokens, and the decoding's `max_new_tokens` is "
            f"{decoding.max_new_tokens}"
        )
    for name, number in vars(generation.cost).items():
        if not isinstance(number, int | float):
            raise InputError(
                f"{method.name}: `generate` gives {name!r} of its cost as {type(number).__name__}: return a number"
            )
    return generation


@torch.no_grad()
def encode_steps(method: Method, examples: Sequence[Example], precision: str) -> Tensor:
    """Return the latents (B, steps, dims) into which training encodes the examples' own steps and answers."""
    with autocast(method.device, precision):
        return method.encode_steps(examples)


def require_room(method: Method, name: str, questions: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Raise :class:`InputError` if a question and its answer are longer than a method, called ``name``, can read."""
    longest = max(map(len, questions), default=0)
    what = f"a question ({longest:,} tokens) with its answer (up to {max_new_tokens:,})"
    for model in (module for module in method.modules() if isinstance(module, PreTrainedModel)):
        fix = "ask a shorter question, or lower `max_new_tokens`"
        require_context(model.config, name, longest + max_new_tokens, what, fix)


def generate_batches(
    method: Method,
    questions: Sequence[Sequence[int]],
    decoding: Decoding,
    spec: RunSpec,
    gold: Sequence[Example] | None = None,
) -> Iterator[tuple[np.ndarray, Generation]]:
    """Yield the answers to all questions batch by batch, each batch with the indices of its questions. If ``gold`` has
    the questions' solutions, latents are those that encode them. Raise :class:`InputError` before the first batch if a
    question and its answer are longer than the model can read."""
    require_room(method, spec.id, questions, decoding.max_new_tokens)
    for indices in batches_by_length(questions, spec.evaluation.batch_size):
        if gold is not None:
            latents = encode_steps(method, [gold[i] for i in indices], spec.engine.precision)
            decoding = replace(decoding, encoded=latents)
        yield indices, generate(method, [questions[i] for i in indices], decoding, spec.engine.precision)


def output_ids(generation: Generation) -> Tensor:
    """Return (B, K, L) ids of everything that is generated, the answer last, on the CPU.
    K is 1 if only the answer is generated."""
    return (generation.answer[:, None] if generation.steps is None else generation.steps).cpu()


def texts_of(generation: Generation, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the text of each answer, with one line for each step that is generated."""
    return ["\n".join(decode(tokenizer, part) for part in parts) for parts in output_ids(generation).tolist()]


def answer(
    method: Method,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[list[int]],
    decoding: Decoding,
    spec: RunSpec,
    progress: Progress,
    gold: Sequence[Example] | None = None,
) -> pd.DataFrame:
    """Answer all questions, from the latents that encode their ``gold`` solutions if these are given. Return a row for
    each question, in their order: the text (one line for each step that is generated), the number of tokens
    (end-of-text included), the backbone passes and mean latent steps of its batch and, with ``exchanged`` latents, the
    index of the question that they are of (``latents_of``) and the text that this question is answered with them
    (``with_own``)."""
    batches = []
    for indices, generation in generate_batches(method, questions, decoding, spec, gold):
        ids = output_ids(generation)
        written = (ids != method.vocabulary.eos).sum(2)
        columns = {
            "text": texts_of(generation, tokenizer),
            "tokens": (written + (written < ids.shape[2])).sum(1).numpy(),  # end-of-text, if any, counts too
            "forward_passes": generation.cost.forward_passes,
            "latent_steps": float(generation.cost.latent_steps),
        }
        if decoding.thoughts == "exchanged":
            assert generation.own is not None
            columns["latents_of"] = np.roll(indices, 1)
            columns["with_own"] = np.roll(np.array(texts_of(generation.own, tokenizer), dtype=object), 1)
        batches.append(pd.DataFrame(columns, index=indices))
        progress.advance(len(indices))
    return pd.concat(batches).sort_index()


@torch.no_grad()
def nats_of(method: Method, examples: Sequence[Example], spec: RunSpec) -> pd.DataFrame:
    """Return a row for each example with its id and the fields of :class:`methods.generation.Nats`: lists, and a number
    for the answer; None where the method does not say them."""
    frames = []
    for indices in batches_by_length([example.question for example in examples], spec.evaluation.batch_size):
        with autocast(method.device, spec.engine.precision):
            nats = method.nats([examples[i] for i in indices]) or Nats()
        for name, part in vars(nats).items():
            if part is not None and (len(part) != len(indices) or part.dim() != (1 if name == "answer" else 2)):
                raise InputError(
                    f"{method.name}: `nats` gives {name!r} of shape {tuple(part.shape)} for {len(indices)} examples: "
                    f"return {f'({len(indices)},)' if name == 'answer' else f'({len(indices)}, n)'}"
                )
        columns = {name: [None] * len(indices) if part is None else part.tolist() for name, part in vars(nats).items()}
        frames.append(pd.DataFrame({"id": [examples[i].id for i in indices], **columns}, index=indices))
    return pd.concat(frames).sort_index()


def answer_tests(
    method: Method,
    tokenizer: PreTrainedTokenizerBase,
    tests: Mapping[str, TestSet],
    decodings: Sequence[Decoding],
    spec: RunSpec,
    note: str,
    solutions: Mapping[str, Sequence[Example]] | None = None,
) -> pd.DataFrame:
    """Answer all tests under each of several decodings, which differ only in their seed. Return one row per seed, test
    and question (columns test, id, seed, text, tokens, forward_passes, latent_steps and, with ``exchanged`` latents,
    with_own and latents_of, here the question's id). ``note`` labels the progress.
    With the tests' ``solutions``, latents are those that encode them; of a question that has several, the last one."""
    place, questions = distinct_questions(tests)
    gold = None if solutions is None else _by_question(place, solutions, len(questions))
    ids = {at: id for name, test in tests.items() for at, id in zip(place[name].tolist(), test.ids, strict=True)}
    frames = []
    with Progress(f"{spec.id} answers ({note})", len(decodings) * len(questions)) as progress:
        for decoding in decodings:
            answers = answer(method, tokenizer, questions, decoding, spec, progress, gold)
            if "latents_of" in answers:
                answers["latents_of"] = [ids[at] for at in answers["latents_of"]]
            for name, test in tests.items():
                rows = pd.DataFrame({"test": test.name, "id": test.ids, "seed": decoding.seed})
                frames.append(rows.join(answers.iloc[place[name]].reset_index(drop=True)))
    return pd.concat(frames, ignore_index=True)


def distinct_questions(tests: Mapping[str, TestSet]) -> tuple[dict[str, np.ndarray], list[list[int]]]:
    """Return, for each test set, the index of each of its questions among all distinct
    questions; and these questions."""
    known: dict[str, int] = {}
    questions: list[list[int]] = []
    place = {}
    for name, test in tests.items():
        for text, ids in zip(test.texts, test.questions, strict=True):
            if known.setdefault(text, len(questions)) == len(questions):
                questions.append(ids)
        place[name] = np.array([known[text] for text in test.texts])
    return place, questions


def _by_question(
    place: Mapping[str, np.ndarray], solutions: Mapping[str, Sequence[Example]], count: int
) -> list[Example]:
    """Return the solutions of distinct questions, of which each test has some at these places."""
    found = {at: example for name, places in place.items() for at, example in zip(places, solutions[name], strict=True)}
    return [found[at] for at in range(count)]


@contextmanager
def temporarily_prepared(method: Method, engine: EngineSpec) -> Iterator[None]:
    """Keep linear layers in bfloat16 inside the block, if the engine computes in bfloat16, and restore them afterwards.

    Autocast would cast their float32 weights for every batch, and in a CUDA graph for every token. The results are the
    same. Layers that the engine compiles are compiled here too.
    """
    kept = [(layer, dict(layer.named_parameters(recurse=False))) for layer in _cast_layers(method, engine)]
    try:
        prepare_for_inference(method, engine)
        yield
    finally:
        free_buffers(method)  # training may follow, and be timed
        uncompile_layers(method)
        for layer, parameters in kept:
            for name, parameter in parameters.items():
                setattr(layer, name, parameter)


def prepare_for_inference(method: Method, engine: EngineSpec) -> None:
    """Do the same as :func:`temporarily_prepared`, but for good: the float32 weights are lost."""
    for layer in _cast_layers(method, engine):
        for name, parameter in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False))
    if engine.compile:
        compile_layers(method, caches=True)


def _cast_layers(method: Method, engine: EngineSpec) -> list[nn.Module]:
    """Return the linear layers that are cast: all if the engine computes in bfloat16, else none."""
    return [layer for _, layer in linear_layers(method)] if engine.precision == "bfloat16" else []
