"""What a study says of measurements on trained runs: times, and the analysis of latents."""

from __future__ import annotations

from pydantic import Field

from benchmarks.studies.specs import Strict


class TimingSpec(Strict):
    """Settings of the timing stage, which runs alone on the machine."""

    batch_size: int = Field(default=64, ge=1, description="questions that are answered together")
    repeats: int = Field(default=5, ge=1, description="timed passes over each test set")
    questions: int | None = Field(
        default=None, ge=1, description="time only this many questions, spread evenly over their lengths; default: all"
    )
    train_steps: int = Field(
        default=20, ge=3, description="timed optimizer steps per phase, over batches of all lengths"
    )


class AnalysisSpec(Strict):
    """How latents that can be set by hand are analysed. The defaults are the paper's where it states them."""

    questions: int = Field(
        default=200, ge=1, description="questions of each test set that are asked, spread evenly over it"
    )
    active_above: float = Field(default=0.1, description="a dimension is active above this value")
    frequent_share: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description="share of all dimensions that count as frequent, the most often active ones",
    )
    frequent_at_least: int = Field(
        default=12, ge=1, description="the fewest dimensions that count as frequent, where that share gives fewer"
    )
    correlated_above: float = Field(
        default=0.9, description="two dimensions are joined by an edge above this Pearson correlation"
    )
    values: tuple[float, ...] = Field(
        default=(0.0, 0.1, 0.5), min_length=1, description="values that a clique is set to"
    )
    samples: int = Field(default=20, ge=1, description="drawn answers per question, for calibration")
