"""Estimates of what every run of a study will take: parameters, tokens, FLOPs, memory, hours and disk.

FLOPs are 2 per weight of a linear layer and row, and 4 per pair of positions and dimension of attention, padding
included. The backward pass takes twice as many as the forward pass for linear layers (once, if their weights are not
trained), and 2.5 times as many for attention. Hours, of training alone, are FLOPs / (GPUs x peak x utilisation), where
GPUs count only as far as they have examples to compute (:attr:`RunPlan.occupancy`). The utilisation is an input, since
nothing here can know it. If the host takes longer to launch the layers, hours are that time instead:
:data:`LAUNCH` per layer, for few tokens as for many, whatever the GPU. For memory, see
:mod:`benchmarks.plan.memory`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.budgets import budget_for, curriculum
from benchmarks.checkpoints import KEPT
from benchmarks.console import Progress
from benchmarks.data.corpus import spread_over
from benchmarks.data.store import require_known
from benchmarks.engine.adapters import enable_gradients, size_without_adapters
from benchmarks.paper.numbers import paper_table
from benchmarks.plan.flops import SMALL, Dimensions, full_size_method, small_method, usage_in_stage
from benchmarks.plan.hardware import GPU
from benchmarks.plan.lengths import Lengths, lengths_of, total_length
from benchmarks.plan.memory import BFLOAT16, FLOAT32, ZERO_STAGES, Memory, activation_bytes
from benchmarks.studies.micro_batches import micro_batch_count, rows_per_pass
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import Study
from methods.backbone import CONFIGURATIONS, Backbone, load_backbone
from methods.base import Example, Method, Stage
from methods.errors import InputError
from methods.pretrained import require_folder
from methods.registry import get_method

ROWS = 16  # rows of a batch that is counted
SIZES = 100  # number of lengths that batches are assumed to have
BATCHES = 10  # batches that are counted per phase
# Sizes of checkpoints that are those of no configuration, by hub id; the architecture is the named configuration's
CHECKPOINTS = {
    "HuggingFaceTB/SmolLM2-135M": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "vocab_size": 49152,
    }
}
ADAPTED, FROZEN = 0.10, 0.14  # share of a layer's operations that an adapter adds, and that gradients not taken save
MEMORY_ERROR = 0.2  # at most, relative to what training takes on a CPU; the tests check this
USABLE = 0.92  # share of a GPU's memory: the rest is its context and gaps between tensors
LAUNCH = 0.004  # seconds for a layer, forward and backward: Coconut's and CODI's layers took 4.2 and 5.6 ms on an H200


@dataclass(frozen=True)
class RunPlan:
    run: RunSpec
    parameters: int
    tokens_per_epoch: float
    epochs: float
    flops: float
    layers: float  # that one micro-batch of each step goes through in sequence, summed over all steps
    memory: Memory
    disk: float  # peak bytes while it trains
    left: float  # bytes of the weights that stay
    bytes_per_example: float  # that one of the longest examples takes in a pass
    basis: str  # where the lengths come from
    lengths: Sequence[int]  # a sample of example lengths, in tokens
    even_passes: bool  # see `Method.even_passes`

    @property
    def ranks(self) -> int:
        return self.run.engine.ranks

    @property
    def needed(self) -> float:
        """Bytes on each GPU, with the study's own settings."""
        return self.needed_at(self.run.engine.zero_stage)

    def needed_at(self, zero_stage: int) -> float:
        """Return the bytes on each GPU at a ZeRO stage. From the study's own stage on, what the study offloads is not
        counted; a lower stage may not be able to offload it."""
        engine = self.run.engine
        return self.memory.on(self.ranks, zero_stage, engine.offload if zero_stage >= engine.zero_stage else "none")

    @property
    def micro_batches(self) -> float:
        """Micro-batches of a step, which :meth:`Engine.shard` deals to the ranks: the mean over batches of the sampled
        ``lengths``."""
        return fmean(self._micro_batches)

    @property
    def passes(self) -> float:
        """Micro-batches of a step on the rank that has most of them: the mean over batches of the sampled
        ``lengths``."""
        return fmean(math.ceil(count / self.ranks) for count in self._micro_batches)

    @property
    def _micro_batches(self) -> list[int]:
        """Micro-batches of a step, for a batch of each of the sampled ``lengths``."""
        run = self.run
        return [micro_batch_count(run.training.batch_size, self.ranks, run.engine, length) for length in self.lengths]

    @property
    def occupancy(self) -> float:
        """Share of the ranks' time in which they work. The first rank has most examples of a step, and ranks with fewer
        wait for it."""
        batch = self.run.training.batch_size
        most = fmean(
            sum(math.ceil((batch - first) / count) for first in range(0, count, self.ranks))
            for count in self._micro_batches
        )
        return batch / (most * self.ranks)

    def hours(self, gpu: GPU, utilisation: float) -> float:
        return max(self._computing(gpu, utilisation), self._launching()) / 3600

    def waits_for_host(self, gpu: GPU, utilisation: float) -> bool:
        return self._launching() > self._computing(gpu, utilisation)

    def _computing(self, gpu: GPU, utilisation: float) -> float:
        """Return the seconds that the GPUs take to compute."""
        busy = self.ranks * self.occupancy
        return self.flops / (busy * gpu.peak(self.run.engine.precision) * utilisation)

    def _launching(self) -> float:
        """Return the seconds that the host of the busiest rank takes to launch the layers."""
        return self.layers * self.passes * LAUNCH

    def fits(self, gpu: GPU) -> bool:
        return self.needed <= USABLE * gpu.memory

    def advice(self, gpu: GPU) -> str:
        room = USABLE * gpu.memory
        configured = self.run.engine.zero_stage
        possible = ZERO_STAGES if self.even_passes else ZERO_STAGES[:-1]
        for zero in possible[configured + 1 :]:
            if self.needed_at(zero) <= room:
                return f"DOES NOT FIT: set {self._zero_stage_to(zero)}"
        for zero in dict.fromkeys((configured, possible[-1])):
            room_for = math.floor((room - self.needed_at(zero) + self.memory.activations) / self.bytes_per_example)
            if room_for >= 1:
                more = "" if zero == configured else f"{self._zero_stage_to(zero)} and "
                return f"DOES NOT FIT: set {more}{self._micro_batch_of(room_for)}"
        return "DOES NOT FIT: take more GPUs, or larger ones"

    def _zero_stage_to(self, zero: int) -> str:
        uncompiled = " and compile to false" if self.run.engine.compile and zero == ZERO_STAGES[-1] else ""
        return f"zero_stage to {zero}{uncompiled}"

    def _micro_batch_of(self, rows: int) -> str:
        """Return the advice to set a micro-batch of at most ``rows``. It is the largest that leaves no rank idle, if
        there is one, reduced until all micro-batches of a batch are about equally large."""
        batch = self.run.training.batch_size
        size = next((size for size in range(rows, 0, -1) if math.ceil(batch / size) % self.ranks == 0), rows)
        terms = get_method(self.run.method).batch_terms
        another = f" (another run: {', '.join(terms)} depends on it)" if terms else ""
        return f"micro_batch to {math.ceil(batch / math.ceil(batch / size))}{another}"


def plan(study: Study, results: Path) -> list[RunPlan]:
    """Return a plan of every run that the study trains itself."""
    require_known(study)
    if study.paper:
        paper_table(study.paper)  # an unknown one is an error
    trained = [run for id, run in study.runs.items() if study.sources[id] is run]
    with Progress(f"{study.name} plan", len(study.blocks) + len(trained)) as progress:
        lengths = {}
        for block in study.blocks:
            lengths[block.id] = lengths_of(study, block, results)
            progress.advance()
        plans = []
        for run in trained:
            try:
                plans.append(plan_run(run, lengths[run.block]))
            except InputError as error:
                raise InputError(f"{run.id}: {error}") from error
            progress.advance()
    return plans


def plan_run(run: RunSpec, lengths: Lengths) -> RunPlan:
    backbone = real_backbone(run, lengths.vocabulary)
    dimensions, whole = Dimensions.of(backbone.config), full_size_method(run, backbone, lengths.count_tokens)
    budget = budget_for(run.training, lengths.rows, lengths.tokens, lengths.chains)
    stages = curriculum(whole, budget)
    flops, layers, features = _costs(run, stages, budget.steps_per_epoch, lengths, whole, dimensions)
    trained = max(_trained(whole, stage) for stage in stages)
    parameters, final = sum(parameter.numel() for parameter in whole.parameters()), size_without_adapters(whole)
    passes = _largest_passes(run, lengths)
    kept = [
        max(_activations(run, stage, lengths, whole, dimensions, rows, longest) for stage in _extremes(stages))
        for rows, longest in passes
    ]
    copy = BFLOAT16 * parameters if run.engine.precision == "bfloat16" else 0
    if run.training.lora:  # autocast makes one copy of a weight that is trained, and one for each pass of the others
        saved = [activation_bytes(run, at, passes[0][1], dimensions, lengths.count_tokens) for at in _extremes(stages)]
        copy = max(*(one.copies for one in saved), min(copy, BFLOAT16 * trained))
    weights, gradients = FLOAT32 * parameters, FLOAT32 * trained
    memory = Memory(weights, copy, gradients, 2 * gradients, max(kept))
    # The final weights, and weights that stages end with and that are kept
    left = FLOAT32 * final * (1 + sum(stage.answers for stage in stages[:-1]) * run.training.keep_stages)
    # Also the kept checkpoints and the one being written, each of which may need selected weights of its own
    selected = min(KEPT + 1, run.training.validations) if any(stage.select_on for stage in stages) else 0
    disk = left + (KEPT + 1) * (memory.weights + memory.moments) + selected * memory.weights
    disk += FLOAT32 * features * lengths.rows
    sizes = [total_length(lengths.by_length[place]) for place in spread_over(len(lengths.examples), SIZES)]
    return RunPlan(
        run=run,
        parameters=final,
        tokens_per_epoch=lengths.tokens,
        epochs=sum(stage.epochs for stage in stages),
        flops=flops,
        layers=layers,
        memory=memory,
        disk=disk,
        left=left,
        bytes_per_example=kept[0] / passes[0][0],
        basis=lengths.basis,
        lengths=sizes,
        even_passes=whole.even_passes,
    )


def real_backbone(run: RunSpec, vocabulary: int) -> Backbone:
    """Return the backbone from its configuration alone. A checkpoint that is not in a local folder is not downloaded:
    the configuration that the study names stands in for it. Raise InputError if it names none, or if nobody knows the
    size of the vocabulary."""
    spec = run.backbone
    require_folder(spec.pretrained or "")
    folder = spec.pretrained if spec.pretrained and Path(spec.pretrained).is_dir() else None
    if spec.pretrained and not folder and "name" not in spec.model_fields_set:
        raise InputError(
            f"{run.id}: a plan downloads nothing, so it cannot tell the size of {spec.pretrained}: beside "
            f"`pretrained`, name a configuration of that size ({', '.join(CONFIGURATIONS)}), or give a folder "
            "with the checkpoint"
        )
    known = {} if folder else CHECKPOINTS.get(spec.pretrained or "", {})
    backbone = load_backbone(spec.name, vocabulary, folder, None, {**spec.overrides, **known})
    if not backbone.config.vocab_size:
        raise InputError(
            f"{run.id}: the size of its vocabulary is not known before its data are prepared: run `marcos-bench data "
            f"{run.study}` first"
        )
    return backbone


def _trained(method: Method, stage: Stage) -> int:
    return sum(parameter.numel() for parameter in enable_gradients(method, stage).values())


def _costs(
    run: RunSpec, stages: Sequence[Stage], per_epoch: int, lengths: Lengths, whole: Method, dimensions: Dimensions
) -> tuple[float, float, float]:
    """Return the FLOPs of all stages, the ``layers`` of :class:`RunPlan`, and the largest number of feature values per
    example that a stage stores. Recomputing a layer's forward pass counts as a third of a layer, and adapters as
    :data:`ADAPTED` for each kind of module that has one, less :data:`FROZEN` (operations, counted and not timed)."""
    small = small_method(run, lengths.count_tokens)
    flops = layers = most = 0.0
    again, lora = run.engine.activation_checkpointing, run.training.lora
    more = again / 3 + (ADAPTED * len(lora.modules) - FROZEN if lora else 0.0)
    for stage in stages:
        count = max(2, BATCHES // sum(other.phase == stage.phase for other in stages))
        steps, features, size = usage_in_stage(small, stage, _batches(run, lengths.by_length, count))
        enable_gradients(whole, stage)  # which of them decides on the backward pass
        flops += stage.epochs * lengths.rows * steps.flops(whole, dimensions, backward=True, again=again)
        layers += stage.epochs * per_epoch * steps.depth * dimensions.num_hidden_layers * (1 + more)
        if stage.cached:
            flops += lengths.rows * features.flops(whole, dimensions, backward=False)
            most = max(most, size * dimensions.hidden_size / SMALL.hidden_size)
    return flops, layers, most


def _batches(run: RunSpec, by_length: Sequence[Example], count: int) -> list[Sequence[Example]]:
    """Return ``count`` batches as training has them: of neighbours in length, from short to long, or of any rows."""
    if run.training.group_by_length:
        return [by_length[start : start + ROWS] for start in spread_over(max(1, len(by_length) - ROWS), count)]
    rows = rows_per_pass(run.training.batch_size, run.engine.ranks, run.engine.micro_batch)
    draw = np.random.default_rng(0)
    picked = (draw.choice(len(by_length), min(rows, len(by_length)), replace=False) for _ in range(count))
    return [[by_length[place] for place in places] for places in picked]


def _largest_passes(run: RunSpec, lengths: Lengths) -> list[tuple[int, list[Example]]]:
    """Return the candidates for the pass that takes the most memory: the number of rows of each, and examples like
    those rows. The first has the longest examples. If ``micro_tokens`` allows fewer rows of these, the second has the
    longest examples that fit in full number."""
    engine, batch = run.engine, run.training.batch_size
    most = rows_per_pass(batch, engine.ranks, engine.micro_batch)
    longest = sorted(lengths.longest, key=total_length)[-min(most, ROWS) :]
    rows = rows_per_pass(batch, engine.ranks, most, engine.micro_tokens, total_length(longest[-1]))
    passes = [(rows, longest)]
    if rows < most and engine.micro_tokens:
        fitting = [one for one in lengths.by_length if total_length(one) <= engine.micro_tokens // most]
        passes += [(most, fitting[-min(most, ROWS) :])] if fitting else []
    return passes


def _activations(
    run: RunSpec,
    stage: Stage,
    lengths: Lengths,
    whole: Method,
    dimensions: Dimensions,
    rows: int,
    examples: Sequence[Example],
) -> float:
    """Return the bytes of a training pass over ``rows`` such examples: activations that are kept, and twice the widest
    output in float32. That output is the logits; the second copy is either their gradient, which exists while they
    still do, or their log-softmax."""
    # All rows, since logits are only kept up to a number of rows; none of their values is computed
    every = list(islice(cycle(examples), rows))
    kept = activation_bytes(run, stage, every, dimensions, lengths.count_tokens).activations
    passed, *_ = usage_in_stage(small_method(run, lengths.count_tokens), stage, [examples])
    return kept + 2 * FLOAT32 * passed.widest(whole, rows / len(examples))


def _extremes(stages: Sequence[Stage]) -> list[Stage]:
    """Return the first and the last stage that read examples: curricula go from one extreme to the other."""
    reading = [stage for stage in stages if not stage.cached]
    return list({stage.name: stage for stage in (reading[0], reading[-1])}.values())
