"""Kernels of a CPU: portable ones give the same weights on every CPU with AVX2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from benchmarks.processes import kernels
from benchmarks.studies.runs import settings_digest
from benchmarks.studies.study import parse_study
from conftest import ROOT
from methods.errors import InputError
from small import MINIMAL

# Of the weights that `tests/portable.py` prints. Seen on: AMD EPYC (family 25, model 17, with AVX-512)
BUILD = "2.13.0+cpu"  # another build of PyTorch has other kernels
WEIGHTS = {
    "cot_sft": "bc958684a5e254596f0a37221fa5095145a0d5242392f2b4ea7f211ac5d26c68",
    "coconut": "d54e3689f2c12e6867c2410060da2b7c2dc695a422c9400631e357ad1e5e138c",
    "codi": "1b288e8a5c8a98755ebb3d5c4d11c3a64e975230744b8ac981d14f5374261e3c",
    "colar": "5ed60a4888c0447de1ab552beabd7c79c556122cf5988344e2644c02ead4c9f3",
    "icot_si": "d7fda801c2b71ed8594d353eca0be33f9688d83f2f2658d27ebabce0089daa70",
    "marcos": "2920c1cbc9a77324749eece245e7e07c3d9f2929f78c770e880e6bb517c1f0dd",
    "sim_cot_coconut": "ea80efc01b51195c18fd701d52586bd8462b5d9a925460d78515c12fb863b866",
    "sim_cot_codi": "b1da78e0369f79d5ec154114f8bd24b1b2d3ac4eafc99308b1f9b185e7b7f1e2",
}


@pytest.mark.skipif(torch.__version__ != BUILD, reason=f"the digests are those of PyTorch {BUILD}")
@pytest.mark.skipif(not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="this CPU has no AVX2")
def test_weights_are_the_same_on_every_cpu() -> None:
    """If the code of training changes, so do the digests: write them anew with `python tests/portable.py`."""
    command = [sys.executable, str(ROOT / "tests/portable.py")]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, encoding="utf-8")
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
    assert not portable.trains_as(native)


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
    with pytest.raises(kernels.OtherKernels, match="has computed with others before"):
        kernels.require("portable")


def test_kernels_and_cpu_are_described_and_older_records_name_the_cpu() -> None:
    used = {"aten": "AVX2", "mkl": "COMPATIBLE", "onednn": "AVX2"}
    made = {"device": "cpu", "cpu": "AMD EPYC"}
    assert kernels.described(made | {"kernels": used}) == "AVX2 kernels, MKL COMPATIBLE, oneDNN AVX2 on AMD EPYC"
    assert kernels.described(made) == "unknown kernels on AMD EPYC"
    assert kernels.described(made | {"device": "NVIDIA H200"}) is None
