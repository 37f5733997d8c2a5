"""The facts that a record stores about where it was made."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.processes import kernels
from methods.registry import code_digest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_FOLDERS = ("methods", "benchmarks")  # where an untracked file counts as a change too, such as a new method
PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "deepspeed")  # the last of them on Linux alone


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment(method: str | None = None) -> dict[str, Any]:
    """Return the commit and package versions of this process, and the digest of a method's code. Call this when work
    begins, since a process keeps running the code that it started with; records store :func:`with_hardware` of it."""
    return {
        **({"code": code_digest(method)} if method else {}),
        "commit": commit(),
        "dirty": bool(
            _git("status", "--porcelain", "--untracked-files=no") or _git("status", "--porcelain", *SOURCE_FOLDERS)
        ),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES if find_spec(package)},
        "started": now(),
    }


def with_hardware(environment: dict[str, Any]) -> dict[str, Any]:
    """Add the hardware, kernels and threads of this process.
    Call this when work ends, since a process must not occupy a GPU before its work does."""
    return environment | {
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "device_count": torch.cuda.device_count(),
        "cpu": _cpu(),
        "kernels": kernels.in_use(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "finished": now(),
    }


def commit() -> str | None:
    """Return the commit of the source tree, or None outside a checkout."""
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str | None:
    """Return the output of a git command in the source tree, or None if it fails, as outside a checkout. A repository
    that merely has the environment in it where the suite is installed does not count."""
    known = _output("git", "ls-files", "--", *SOURCE_FOLDERS)
    return _output("git", *arguments) if known else None


def _output(*command: str) -> str | None:
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", errors="replace", check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
