"""Engines run the optimizer steps: one process, or the ranks of DeepSpeed. Training code uses an :class:`Engine`
without knowing which kind it is.

An update is the same on every engine. A global batch is cut into micro-batches according to the specification and the
lengths of its examples; the micro-batches are dealt to the ranks; each loss term is divided by its denominator over the
*global* batch; gradients are summed. So neither the number of ranks nor gradient accumulation changes the result,
except for loss terms that a method declares to be statistics of a micro-batch (:attr:`Method.batch_terms`). If every
rank computes its share of a batch in one pass, these are taken over all ranks. Otherwise they are the same for the same
``micro_batch`` (or, if only ``micro_tokens`` is set, for the same ``micro_tokens`` and number of ranks).
"""

from __future__ import annotations

from benchmarks.engine.base import Engine, PlaceInPhase, ProcessEngine
from benchmarks.engine.device import autocast, deterministic, peak_memory, pick_device, synchronize
from benchmarks.engine.ranks import ALONE, Ranks
from benchmarks.studies.specs import EngineSpec, TrainingSpec
from methods.base import Method, Stage

__all__ = [
    "ALONE",
    "Engine",
    "PlaceInPhase",
    "Ranks",
    "autocast",
    "build_engine",
    "deterministic",
    "peak_memory",
    "pick_device",
    "synchronize",
]


def build_engine(
    method: Method, stage: Stage, training: TrainingSpec, spec: EngineSpec, phase: PlaceInPhase, ranks: Ranks
) -> Engine:
    """Build the engine of one stage. A single process imports neither deepspeed nor torch.distributed."""
    if spec.kind == "process":
        return ProcessEngine(method, stage, training, spec, phase, ranks)
    from benchmarks.engine.sharded import DeepSpeedEngine

    return DeepSpeedEngine(method, stage, training, spec, phase, ranks)
