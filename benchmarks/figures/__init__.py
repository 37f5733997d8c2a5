"""The figures of a study, each drawn from files alone."""

from enum import StrEnum


class Figure(StrEnum):
    """A figure by its name, written to ``figures/NAME.{png,pdf,csv,md}``."""

    pareto = "pareto"  # accuracy against test time and training compute
    steps = "steps"  # accuracy by number of steps
