"""GPUs that a plan can be made for, as their data sheets give them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from methods.errors import InputError


@dataclass(frozen=True)
class GPU:
    """``memory`` in bytes; ``bfloat16`` and ``float32`` in FLOP/s at most: dense, with sums in float32, no TF32."""

    name: str
    memory: float
    bfloat16: float
    float32: float

    def peak(self, precision: str) -> float:
        return self.bfloat16 if precision == "bfloat16" else self.float32


GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("H200", 141e9, 989e12, 67e12),
        GPU("H100", 80e9, 989e12, 67e12),
        GPU("A100-80", 80e9, 312e12, 19.5e12),
        GPU("A100-40", 40e9, 312e12, 19.5e12),
        GPU("RTX-4090", 24e9, 165e12, 82.6e12),
    )
}


# Words in the name of a device that is less than the GPU: a part of one, or another model with a lower peak
LESSER = ({"MIG"}, {"Laptop"}, {"NVL"}, {"4090", "D"}, {"H100", "PCIe"})


def get_gpu(name: str) -> GPU:
    """A GPU by its name, or an error that lists them."""
    if name not in GPUS:
        raise InputError(f"no GPU is named {name!r}; known: {', '.join(GPUS)}")
    return GPUS[name]


def gpu_of(device: str) -> GPU | None:
    """The GPU by the name that PyTorch has for it ("NVIDIA A100-SXM4-80GB" is A100-80); None if its peak is unknown."""
    words = set(re.split(r"[\s-]+", device))
    if any(lesser <= words for lesser in LESSER):
        return None
    for gpu in GPUS.values():
        if all({part, f"{part}GB"} & words for part in gpu.name.split("-")):
            return gpu
    return None
