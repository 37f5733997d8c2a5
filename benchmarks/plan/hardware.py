"""GPUs that a plan can be made for, with the numbers of their data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from methods.errors import InputError


@dataclass(frozen=True)
class GPU:
    """A GPU. ``memory`` is in bytes. ``bfloat16`` and ``float32`` are peak FLOP/s: dense, with float32 accumulation,
    and without TF32."""

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


# Words in the name of a device that is less than the full GPU: a part of one, or another model with a lower peak
LESSER = ({"MIG"}, {"Laptop"}, {"NVL"}, {"4090", "D"}, {"H100", "PCIe"})


def get_gpu(name: str) -> GPU:
    """Return a GPU by its name. Raise InputError, which lists the known names, if there is none."""
    if name not in GPUS:
        raise InputError(f"no GPU is named {name!r}; known: {', '.join(GPUS)}")
    return GPUS[name]


def gpu_of(device: str) -> GPU | None:
    """Return the GPU for the name that PyTorch gives a device ("NVIDIA A100-SXM4-80GB" is A100-80), or None if its peak
    is unknown."""
    words = set(re.split(r"[\s-]+", device))
    if any(lesser <= words for lesser in LESSER):
        return None
    for gpu in GPUS.values():
        if all({part, f"{part}GB"} & words for part in gpu.name.split("-")):
            return gpu
    return None
