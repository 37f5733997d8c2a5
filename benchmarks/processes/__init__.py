"""Processes and what they hold: GPUs, a heartbeat that tells how far they are, notice of being told to go."""

import gc


def look_for_garbage_less() -> None:
    """To be called before what takes long to import. It makes 400,000 objects that stay, and Python would look through
    them again and again while they are made: a fifth of the time that it takes."""
    gc.set_threshold(10_000, *gc.get_threshold()[1:])
