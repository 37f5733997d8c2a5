"""What training and answering cost: seconds, FLOPs and memory, measured while nothing else runs on the machine."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """What ``measure`` measures of a row."""

    tests = "tests"  # the seconds of answers
    learning = "learning"  # the losses of rows that learn
    steps = "steps"  # the seconds, memory and FLOPs of training steps
    profile = "profile"  # what a few steps spend their time on; only if asked for


USUAL = (Part.tests, Part.learning, Part.steps)
