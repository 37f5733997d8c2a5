"""Processes and what they hold: locks on GPUs, a heartbeat that reports progress, and notice of preemption."""

import atexit
import gc
from importlib.util import find_spec

from methods.errors import InputError


def collect_garbage_less_often() -> None:
    """Make the garbage collector run less often, and not at the end of the process. Call this before slow imports: they
    create 400,000 objects that stay. Python would scan these again and again meanwhile, which takes a fifth of the
    import time, and once more when it ends, which takes most of a second."""
    gc.set_threshold(10_000, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)


def require_deepspeed() -> None:
    """Raise InputError if DeepSpeed is not installed, as on macOS, where it cannot be."""
    if not find_spec("deepspeed"):
        raise InputError(
            "the engine asks for DeepSpeed, which is not installed (it is for Linux alone): set `kind: process` in the "
            "study's engine"
        )
