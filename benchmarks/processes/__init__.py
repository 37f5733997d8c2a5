"""Processes and what they hold: locks on GPUs, a heartbeat that reports progress, and notice of preemption."""

import gc


def collect_garbage_less_often() -> None:
    """Make the garbage collector run less often. Call this before slow imports: they create 400,000 objects that stay,
    and Python would scan these again and again meanwhile, which takes a fifth of the import time."""
    gc.set_threshold(10_000, *gc.get_threshold()[1:])
