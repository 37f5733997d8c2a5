"""Which kernels a CPU computes with: the fastest that it has, or those that are the same on every CPU with AVX2.

PyTorch, MKL and oneDNN choose kernels by the make of a CPU and its instructions. They add numbers in different orders,
so trainings of the same settings end in different weights on different CPUs. Variables of the environment hold all
three to one choice; they are read when the first of their kernels runs, which importing a package may do.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from benchmarks.studies.specs import Kernels
from methods.errors import InputError

log = logging.getLogger(__name__)
# MKL's AVX2 kernels are faster than its compatible ones, but MKL has them on Intel's CPUs alone
PORTABLE = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


class OtherKernels(InputError):
    """This process cannot compute with the kernels that a study asks for; one that starts with :data:`PORTABLE` in its
    environment can."""


def require(kernels: Kernels) -> None:
    """Raise :class:`OtherKernels` unless this process computes with these kernels. A CPU without AVX2 has no portable
    ones: there, warn that results are not those of other machines. GPUs are not restricted."""
    if kernels == "native":
        return
    if any(os.environ.get(name) != value for name, value in PORTABLE.items()):
        variables = " ".join(f"{name}={value}" for name, value in PORTABLE.items())
        raise OtherKernels(f"the study asks for `kernels: portable`, so set {variables} before Python starts")
    if (found := in_use()["aten"]) == "AVX2":
        return
    if found.startswith("AVX512"):
        raise OtherKernels(
            "the study asks for `kernels: portable`, but PyTorch has already chosen other kernels in this process: "
            "start a new one"
        )
    log.warning(
        "this CPU has no AVX2, so `kernels: portable` has no effect: results may differ from those of other machines"
    )


def in_use() -> dict[str, Any]:
    """Return the kernels that PyTorch, MKL and oneDNN are restricted to in this process, for records; None: not
    restricted."""
    import torch

    held = {"mkl": "MKL_CBWR", "onednn": "ONEDNN_MAX_CPU_ISA"}
    return {
        "aten": torch.backends.cpu.get_cpu_capability(),
        **{library: os.environ.get(name) for library, name in held.items()},
    }
