"""Kernels of a CPU: portable ones give the same weights on every CPU with AVX2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.processes import kernels
from benchmarks.records.provenance import kernels_text
from benchmarks.studies.runs import settings_digest
from benchmarks.studies.study import parse_study
from conftest import ROOT
from methods.errors import InputError
from small import MINIMAL

# Of the weights that `tests/portable.py` prints. Seen on: AMD EPYC (family 25, models 1 and 17) and Intel Xeon (family
# 6, model 85), of which model 1 lacks AVX-512
SEEN = ("AuthenticAMD", "GenuineIntel")
BUILD = "2.13.0+cpu"  # another build of PyTorch has other kernels
WEIGHTS = {
    "cot_sft": "bc958684a5e254596f0a37221fa5095145a0d5242392f2b4ea7f211ac5d26c68",
    "coconut": "d864f0fcca889633385d993492b0311d6a280e135415b175e57f87450bf5345e",
    "codi": "78b4b9c3cd8ed64a99cc39be258ca2b27e329070a0da9a741ebc3bd1c6c76c0b",
    "colar": "678b49e7e32b1095b31796e968b709b449396e8ad5656e80c8ef2d7fb53c17ea",
    "icot_si": "d7fda801c2b71ed8594d353eca0be33f9688d83f2f2658d27ebabce0089daa70",
    "marcos": "71e6f7dbd19a1fda420d0fdc10dc129b27a1c3174d93c8e24448d712975d3a66",
    "marcos_own_draws": "2265647af86070817b51c6fa753f36ef3859af7f25795e6752d320ca8650cc92",
    "sim_cot_coconut": "5cd7747a7f6bd4600744e8b03707eb480a0bf9cc9023930540020930015baadc",
    "sim_cot_codi": "4a635b5c168c12446f1b0b1463d6d7f5ea64e22718b6c9d23fde303d6120d2e2",
}


@pytest.mark.skipif(torch.__version__ != BUILD, reason=f"the digests are those of PyTorch {BUILD}")
@pytest.mark.skipif(not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="this CPU has no AVX2")
def test_weights_are_the_same_on_every_cpu(request: pytest.FixtureRequest) -> None:
    """If the code of training changes, so do the digests: write them anew with `python tests/portable.py`."""
    cpu = Path("/proc/cpuinfo")
    if not (cpu.is_file() and any(make in cpu.read_text(encoding="utf-8") for make in SEEN)):
        request.applymarker(pytest.mark.xfail(reason="nobody has run it on this make of CPU yet", strict=False))
    command = [sys.executable, str(ROOT / "tests/portable.py")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | kernels.PORTABLE, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == WEIGHTS


def _study(**changes: Any) -> Any:
    return parse_study({**MINIMAL, **changes}, "the test's study")


def test_the_setting_counts_and_its_default_leaves_digests_alone() -> None:
    native, portable = (_study(kernels=kind).runs["equation/cot/s0"] for kind in ("native", "portable"))
    recorded = native.model_dump(mode="json")
    assert "kernels" not in recorded
    for task in ("train", "evaluate", "time", "analyse"):
        assert settings_digest(recorded, task) != portable.digest(task)
    assert not portable.same_training_as(native)


def test_compiled_layers_are_not_portable() -> None:
    with pytest.raises(InputError, match="`compile` writes code for this machine's CPU"):
        _ = _study(kernels="portable", engine={"compile": True}).runs


def test_a_process_with_other_kernels_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in kernels.PORTABLE:
        monkeypatch.delenv(name, raising=False)
    kernels.require("native")
    with pytest.raises(kernels.OtherKernels, match="so set MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=avx2 "):
        kernels.require("portable")


def test_a_process_that_has_computed_with_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kernels.PORTABLE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    with pytest.raises(kernels.OtherKernels, match="already chosen other kernels"):
        kernels.require("portable")


def test_kernels_and_cpu_are_described_and_older_records_name_the_cpu() -> None:
    used = {"aten": "AVX2", "mkl": "COMPATIBLE", "onednn": "AVX2"}
    made = {"device": "cpu", "cpu": "AMD EPYC"}
    assert kernels_text(made | {"kernels": used}) == "AVX2 kernels, MKL COMPATIBLE, oneDNN AVX2 on AMD EPYC"
    assert kernels_text(made) == "unknown kernels on AMD EPYC"
    assert kernels_text(made | {"device": "NVIDIA H200"}) is None
