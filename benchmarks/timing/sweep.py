"""How time and memory of a training step and of an answer grow with the batch, the question, the number of thoughts
and the width of the model, for every registered method.

One size at a time departs from :data:`BASE`. Weights and texts are drawn, so answers are forced to the lengths of the
gold ones. What does not fit into memory is left out and named.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.console import Progress
from benchmarks.data import load_tokenizer, prepare, vocabulary
from benchmarks.engine import ALONE, PlaceInPhase, build_engine, deterministic, pick_device
from benchmarks.engine.base import MOMENTS
from benchmarks.engine.device import OutOfMemory
from benchmarks.environment import environment, with_hardware
from benchmarks.evaluation.inference import generate, temporarily_prepared
from benchmarks.studies.runs import set_path
from benchmarks.studies.specs import BackboneSpec, EngineSpec, TrainingSpec
from benchmarks.studies.study import Study
from benchmarks.timing.speed import fullest_block, median_seconds, options_in
from methods.backbone import Backbone, load_backbone
from methods.base import Budget, Context, Example, Method, Setup
from methods.errors import InputError
from methods.generation import Decoding
from methods.registry import available, build


class Size(NamedTuple):
    """What a method is measured at: examples at a time, tokens of their questions, thoughts as the method's
    `thoughts_option` counts them (None: as many as the study's), and a multiple of the study's width."""

    batch: int = 32
    question: int = 64
    thoughts: int | None = None
    width: int = 1


AXES: dict[str, tuple[int, ...]] = {
    "batch": (8, 32, 128),
    "question": (16, 64, 256),
    "thoughts": (1, 2, 4, 8),
    "width": (1, 2, 4),
}
BASE = Size()
STEPS, STEP_TOKENS, ANSWER_TOKENS = 3, 8, 4  # of every example
COSTS = ("step_seconds", "step_bytes", "answer_seconds", "answer_bytes")

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would print two lines each time it is used


def sweep(study: Study, results: Path, repeats: int) -> Iterator[dict[str, Any]]:
    """Measure all registered methods with the study's backbone, tokenizer, training and precision, on one device and in
    one process, and with the options of its block with the most runs. Yield the record after each method."""
    torch.set_num_threads(study.timing_threads)
    gc.freeze()  # what is imported stays: garbage collection between points skips it
    made, block = environment(), fullest_block(study)
    words = vocabulary(load_tokenizer(prepare(study, block, results)))
    engine = EngineSpec(precision=study.engine.precision)
    backbones = {width: scaled(block.backbone or study.backbone, words.size, width) for width in AXES["width"]}
    record: dict[str, Any] = {
        "study": study.name,
        "block": block.id,
        "base": BASE._asdict(),
        "layers": backbones[1].config.num_hidden_layers,
        "widths": {str(width): backbone.hidden_size for width, backbone in backbones.items()},
        "example": {"steps": STEPS, "step_tokens": STEP_TOKENS, "answer_tokens": ANSWER_TOKENS},
        "precision": engine.precision,
        "repeats": repeats,
        "points": [],
        "left_out": [],
    }
    sizes = {name: sizes_of(method.thoughts_option) for name, method in available().items()}
    with Progress("sweep", sum(map(len, sizes.values()))) as progress:
        for name, method in available().items():
            for size in sizes[name]:
                options = options_in(study, block, name)
                if method.thoughts_option and size.thoughts:
                    options = set_path(options, method.thoughts_option, size.thoughts)
                setup = Setup(backbones[size.width], words)
                examples = random_examples(size.batch, size.question, words.size)
                costs = _costs(name, options, setup, examples, study.training, engine, repeats)
                record["points"].append({"method": name, **size._asdict(), **costs})
                missing = " and ".join(part for part in ("step", "answer") if costs[f"{part}_seconds"] is None)
                if missing:
                    other = size._asdict().items() - BASE._asdict().items()
                    departs = [f"{axis} {value}" for axis, value in other]
                    record["left_out"].append(f"{method.title}: {missing}, {', '.join(departs) or 'at the base'}")
                progress.advance(note=name)
            yield record | {"environment": with_hardware(made)}


def sizes_of(thoughts_option: str | None) -> list[Size]:
    """Return the sizes that a method is measured at: the base, and each axis's sizes with all else at the base."""
    axes = {axis: sizes for axis, sizes in AXES.items() if axis != "thoughts" or thoughts_option}
    return list(dict.fromkeys([BASE, *(BASE._replace(**{axis: at}) for axis, sizes in axes.items() for at in sizes)]))


def scaled(spec: BackboneSpec, tokens: int, width: int) -> Backbone:
    """Return the backbone with weights that are drawn, so many times as wide. A checkpoint's configuration is not
    looked at: the one that the study names stands in for it."""
    if spec.pretrained and "name" not in spec.model_fields_set:
        raise InputError("a checkpoint has one width: beside `pretrained`, name a configuration of its size in `name`")
    own = load_backbone(spec.name, tokens, overrides=spec.overrides).config
    sizes = {name: getattr(own, name, None) for name in ("hidden_size", "intermediate_size")}
    return load_backbone(
        spec.name, tokens, overrides=spec.overrides | {name: width * size for name, size in sizes.items() if size}
    )


def random_examples(count: int, question: int, tokens: int) -> list[Example]:
    """Return examples of equal lengths, of any tokens. With equal texts, statistics of a batch would be degenerate."""
    draw = partial(np.random.default_rng(0).integers, tokens)

    def text(length: int) -> list[int]:
        return draw(size=length).tolist()

    return [
        Example(f"row-{i}", text(question), [text(STEP_TOKENS) for _ in range(STEPS)], text(ANSWER_TOKENS))
        for i in range(count)
    ]


def _costs(
    name: str,
    options: dict[str, Any],
    setup: Setup,
    examples: Sequence[Example],
    training: TrainingSpec,
    engine: EngineSpec,
    repeats: int,
) -> dict[str, float | None]:
    """Return the :data:`COSTS` of one method at one size; None for what does not fit."""
    device = pick_device()
    found: dict[str, float | None] = dict.fromkeys(COSTS)
    for part, measured in (("answer", _answer), ("step", partial(_step, training=training))):
        try:
            with device:
                method = build(name, options, setup, seed=0)
            seconds, held = measured(method, examples, engine, repeats)
            found |= {f"{part}_seconds": seconds, f"{part}_bytes": held}
        except (OutOfMemory, RuntimeError) as error:  # on a CPU, PyTorch has no error of its own for this
            if not isinstance(error, (OutOfMemory, torch.OutOfMemoryError)) and "allocate memory" not in str(error):
                raise
        method = None  # its memory is free once the error and its traceback are
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return found


def _answer(method: Method, examples: Sequence[Example], engine: EngineSpec, repeats: int) -> tuple[float, float]:
    """Return the seconds of the answers to a batch, and the bytes at the peak."""
    decoding = Decoding(lengths=tuple(method.length(example) for example in examples))
    answer = partial(generate, method, [example.question for example in examples], decoding, engine.precision)
    with temporarily_prepared(method.eval(), engine):
        held = peak_bytes(method.device, answer, [*method.parameters()])  # also a warm-up
        return median_seconds(method.device, answer, repeats), held


@deterministic()  # as in training
def _step(
    method: Method, examples: Sequence[Example], engine: EngineSpec, repeats: int, training: TrainingSpec
) -> tuple[float, float]:
    """Return the seconds of an optimizer step on a collated batch, and the bytes at the peak. The stage is the last one
    that reads examples: curricula end with what they are for."""
    stage = [stage for stage in method.stages(Budget(1.0, 100)) if not stage.cached][-1]
    context = Context(stage, epoch=0, step=0, seed=0)
    batch = method.collate(examples, context).to(method.device)
    made = build_engine(method.train(), stage, training, engine, PlaceInPhase(before=0, steps=1), ALONE)

    def step() -> None:
        losses = made.forward(batch, context).losses
        parts = [value / max(batch.denominators[name], 1.0) for name, value in losses.items()]
        made.backward(torch.stack(parts).sum(), last=True)
        made.step(0)

    step()  # warm-up, which also makes the optimizer's states
    seconds = median_seconds(method.device, step, repeats)
    states = [made.optimizer.state[weight][moment] for weight in made.trainable.values() for moment in MOMENTS]
    return seconds, peak_bytes(method.device, step, [*method.parameters(), *states])


def peak_bytes(device: torch.device, work: Callable[[], Any], held: Sequence[torch.Tensor]) -> float:
    """Return the bytes of all tensors at the peak of some work: on a GPU by its allocator; on a CPU those that are
    ``held`` from before, and the largest sum of what the work has allocated and not yet freed, by PyTorch's
    profiler."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler and profiler.profiler.kineto_results
    # Names that PyTorch adds to no stub
    events: list[Any] = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    grown = accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return sum(tensor.nbytes for tensor in held) + max(grown, default=0)
