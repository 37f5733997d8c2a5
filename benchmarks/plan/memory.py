"""Memory that training takes on one GPU, at each ZeRO stage of DeepSpeed.

It is the sum of float32 weights, gradients and AdamW's two moments; a bfloat16 copy of the weights in mixed precision
(beside adapters, of weights that are not trained, one for each pass of a micro-batch); the activations that the largest
micro-batch keeps for its backward pass, with the gradient of the logits; and what ZeRO adds: a second copy of the
weights that a rank updates, and at stage 3 the weights that are gathered. With the same number of rows, training takes
more memory than validation, and computing the features of a cached stage, which needs no logits, takes less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FLOAT32, BFLOAT16 = 4, 2  # bytes
GATHERED = 10**9  # weights that DeepSpeed holds whole at once at stage 3, at most (stage3_max_live_parameters)
ZERO = (0, 1, 2, 3)
Offload = Literal["none", "optimizer", "weights"]


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU that splits nothing with others. ``activations`` are those of the largest pass."""

    weights: float
    copy: float
    gradients: float
    moments: float
    activations: float

    def on(self, ranks: int, stage: int, offload: Offload = "none") -> float:
        """Return the bytes on each of ``ranks`` GPUs at a ZeRO stage, which splits moments, then gradients too, then
        weights too. The bfloat16 copy is never split, because autocast makes it from whole weights."""
        split = [1 / ranks if stage >= level else 1 for level in (3, 2, 1)]
        weights, gradients, moments = (
            part * share for part, share in zip((self.weights, self.gradients, self.moments), split, strict=True)
        )
        updated = self.gradients / ranks if stage else 0.0  # as many weights as there are gradients
        gathered = min(self.weights, FLOAT32 * GATHERED) if stage == 3 else 0.0
        lasting = {"none": weights + updated + moments, "optimizer": weights, "weights": 0.0}[offload]
        return lasting + gathered + self.copy + gradients + self.activations
