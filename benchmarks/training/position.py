"""Where a run stands: all that a checkpoint holds besides weights and optimizer states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from methods.base import Stage


@dataclass
class Position:
    """Counters of the run and of its stage, and what is known of the weights so far."""

    stage: int = 0
    stage_step: int = 0
    step: int = 0
    updates: int = 0  # since the optimizer's states were zero
    examples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    validation: dict[str, float] = field(default_factory=dict)  # of the weights that the stage ends with, so far
    standing: list[str] = field(default_factory=list)  # warnings, of these weights
    terms: dict[str, float] = field(default_factory=dict)  # of the last step's loss

    def end_stage(self, stage: Stage, trainable: int, kept: str | None) -> dict[str, Any]:
        """The record of the stage at hand, which is the last of ``stages`` from now on. ``trainable``: parameters;
        ``kept``: the digest of its weights, if these are kept."""
        earlier = self.stages[-1] if self.stages else {"end_seconds": 0.0, "end_tokens": 0}
        record = {
            "name": stage.name,
            "phase": stage.phase,
            "epochs": stage.epochs,
            "steps": self.stage_step,
            "trainable_parameters": trainable,
            "seconds": self.seconds - earlier["end_seconds"],
            "tokens": self.tokens - earlier["end_tokens"],
            "end_seconds": self.seconds,
            "end_tokens": self.tokens,
            "selected_step": self.best_step,
            "validation": self.validation,
            "warnings": self.standing,
            "weights_sha256": kept,
        }
        self.stages.append(record)
        return record

    def begin_next_stage(self) -> None:
        self.stage, self.stage_step = self.stage + 1, 0
        self.best, self.best_step, self.validation, self.standing = None, None, {}, []
