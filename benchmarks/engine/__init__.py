"""What runs an optimizer step: one process, or the ranks of DeepSpeed. Training asks an :class:`Engine`, and need not
know which kind it is.

One update is the same whatever runs it. A global batch is cut into micro-batches by the specification and the lengths
of its examples; they are dealt to the ranks; each loss term is divided by its denominator over the *global* batch;
gradients are summed. So the number of ranks changes nothing, nor does accumulation, except for terms that a method
declares to be statistics of a micro-batch (:attr:`Method.batch_terms`). Where every rank takes its share of a batch in
one pass, those are taken over all ranks; else they are the same for the same ``micro_batch`` (or, where only
``micro_tokens`` is set, for the same ``micro_tokens`` and number of ranks).
"""

from __future__ import annotations

from benchmarks.engine.base import Engine, Phase
from benchmarks.engine.device import autocast, deterministic, peak_memory, pick_device, synchronize
from benchmarks.engine.process import ProcessEngine
from benchmarks.engine.ranks import Ranks
from benchmarks.studies.specs import EngineSpec, TrainingSpec
from methods.base import Method, Stage

__all__ = [
    "Engine",
    "Phase",
    "Ranks",
    "autocast",
    "build_engine",
    "deterministic",
    "peak_memory",
    "pick_device",
    "synchronize",
]


def build_engine(
    method: Method, stage: Stage, training: TrainingSpec, spec: EngineSpec, phase: Phase, ranks: Ranks
) -> Engine:
    """The engine of one stage. A single process imports neither deepspeed nor torch.distributed."""
    if spec.kind == "process":
        return ProcessEngine(method, stage, training, spec, phase, ranks)
    from benchmarks.engine.sharded import DeepSpeedEngine

    return DeepSpeedEngine(method, stage, training, spec, phase, ranks)
