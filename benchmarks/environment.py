"""What a record says about where it was made."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from methods.registry import code_digest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("methods", "benchmarks")  # where a file that git does not know of is a change too, such as a new method


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment(method: str | None = None) -> dict[str, Any]:
    """Commit and versions of this process, and the digest of a method's code. To be asked when work begins, since the
    code of a process is that of its beginning; what :func:`ended` makes of it belongs in a record."""
    return {
        **({"code": code_digest(method)} if method else {}),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no") or _git("status", "--porcelain", *CODE)),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "transformers", "datasets", "tokenizers", "deepspeed")},
        "started": now(),
    }


def ended(environment: dict[str, Any]) -> dict[str, Any]:
    """In addition the hardware and threads of this process, which may not take a GPU before its work does."""
    return environment | {
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "device_count": torch.cuda.device_count(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "finished": now(),
    }


def _git(*arguments: str) -> str | None:
    """Output of a git command in the source tree; None where the suite runs from no checkout."""
    try:
        result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
