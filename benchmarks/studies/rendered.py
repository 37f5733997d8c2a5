"""The names of the tables and figures that can be rendered from a study."""

from enum import StrEnum


class Table(StrEnum):
    """A table by its name, written to ``table_NAME.{md,tex,csv,json}``."""

    main = "main"  # accuracy and costs
    decoding = "decoding"  # accuracy by decoding
    controls = "controls"  # do the latents carry anything?
    stages = "stages"  # accuracy lost and won at each stage of a curriculum
    ablation = "ablation"  # MarCos with other settings, against its own
    nar = "nar"  # speaking without autoregression
    scale = "3b"  # baselines on a larger backbone
    pretrained = "pretrained"  # methods that start from published checkpoints
    synthetic = "synthetic"  # tasks that leave something to chance
    longrange = "longrange"  # copying from an earlier step
    claims = "claims"  # what the paper claims about its numbers


class Figure(StrEnum):
    """A figure by its name, written to ``figures/NAME.{png,pdf,csv,md}``."""

    pareto = "pareto"  # accuracy against test time and training compute
    steps = "steps"  # accuracy by number of steps
    dimensions = "dimensions"  # R of three cases in the first step that uses any; how often each dimension is active
    intervention = "intervention"  # correlated dimensions, and what setting a clique of them does
    cases = "cases"  # outputs before and after dimensions are set
    encoding = "encoding"  # the drawn digit of Random Summation in R, and the steering test
    copied = "copied"  # which step the answers to the long-range copy repeat
    calibration = "calibration"  # the mean of R against one sample and majorities of more
    curves = "curves"  # accuracy on held-out questions while runs trained
    sweeps = "sweeps"  # accuracy against one numeric option at a time
