"""Memory that training takes on one GPU, at each stage of DeepSpeed's ZeRO.

Memory is float32 weights, gradients and AdamW's two moments, a bfloat16 copy of the weights in mixed precision, what
the largest micro-batch keeps for its backward pass, with the logits' gradient, and what ZeRO adds to its split: the
weights that a rank updates a second time, and at stage 3 those that are gathered. With the same number of rows,
training takes more than validation, and the features of a cached stage, which need no logits, take less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FLOAT32, BFLOAT16 = 4, 2  # bytes
GATHERED = 10**9  # weights that DeepSpeed holds whole at a time at stage 3, at most (stage3_max_live_parameters)
ZERO = (0, 1, 2, 3)
Offload = Literal["none", "optimizer", "weights"]


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU that shares nothing with others. ``activations``: of its largest pass."""

    weights: float
    copy: float
    gradients: float
    moments: float
    activations: float

    def on(self, ranks: int, stage: int, offload: Offload = "none") -> float:
        """On each of some GPUs at a stage of ZeRO, which splits moments, then gradients, then weights too. The copy is
        never split: autocast makes it of weights that are whole."""
        split = [1 / ranks if stage >= level else 1 for level in (3, 2, 1)]
        weights, gradients, moments = (
            part * share for part, share in zip((self.weights, self.gradients, self.moments), split, strict=True)
        )
        updated = self.gradients / ranks if stage else 0.0  # as many weights as there are gradients
        gathered = min(self.weights, FLOAT32 * GATHERED) if stage == 3 else 0.0
        lasting = {"none": weights + updated + moments, "optimizer": weights, "weights": 0.0}[offload]
        return lasting + gathered + self.copy + gradients + self.activations
