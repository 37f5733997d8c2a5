"""How far a run has come: everything that a checkpoint holds besides weights and optimizer states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from methods.base import Stage


@dataclass
class Position:
    """Counters of the run and of its current stage, and what is known about the weights so far."""

    stage: int = 0
    stage_step: int = 0
    step: int = 0
    updates: int = 0  # of the optimizer since its states were zero
    examples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: list[float] | None = None  # what the weights selected so far were selected by
    best_step: int | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    validation: dict[str, float] = field(default_factory=dict)  # loss terms of the weights selected so far in the stage
    standing: list[str] = field(default_factory=list)  # warnings about these weights
    dead_latents: bool = False  # of these weights
    terms: dict[str, float] = field(default_factory=dict)  # loss terms of the last step

    def end_stage(self, stage: Stage, trainable: int, kept: str | None) -> dict[str, Any]:
        """Append the record of the current stage to ``stages``, and return it. ``trainable`` is the number of trainable
        parameters; ``kept`` is the digest of the stage's weights, if they are kept."""
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
            "dead_latents": self.dead_latents,
            "weights_sha256": kept,
        }
        self.stages.append(record)
        return record

    def begin_next_stage(self) -> None:
        self.stage, self.stage_step = self.stage + 1, 0
        self.best, self.best_step, self.validation, self.standing = None, None, {}, []
        self.dead_latents = False
