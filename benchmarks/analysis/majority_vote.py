"""Many draws of one answer: the majority, and whether its share of the votes tells how likely it is correct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import pandas as pd

from benchmarks.scoring.scorers import scorer_of_recorded

MEAN = -1  # the seed of answers that take the mean instead of a draw
BINS = (0.2, 0.4, 0.6, 0.8, 1.0)  # upper ends of bins of vote shares


def majority(answers: Sequence[str | None], vote: Callable[[str], Hashable]) -> tuple[int, float]:
    """Return the index of the first answer with the most votes, and its share of all answers. Answers for which
    ``vote`` returns the same count as one. A missing answer is no vote."""
    cast = [None if answer is None else vote(answer) for answer in answers]
    counts = Counter(one for one in cast if one is not None)
    if not counts:
        return 0, 0.0
    winner, votes = counts.most_common(1)[0]
    return cast.index(winner), votes / len(answers)


def votes(samples: pd.DataFrame, size: int) -> pd.DataFrame:
    """Return the majority of every ``size`` draws of each question, with columns test, id, group, share, correct."""
    drawn = samples.loc[samples["seed"] != MEAN]
    lines = []
    for (test, id, group), draws in drawn.groupby(["test", "id", drawn["seed"] // size], sort=False):  # type: ignore[misc]
        if len(draws) == size:
            answers = [None if pd.isna(answer) else answer for answer in draws["extracted"]]
            winner, share = majority(answers, scorer_of_recorded(str(test)).vote)
            correct = bool(draws["correct"].iloc[winner])
            lines.append({"test": test, "id": id, "group": group, "share": share, "correct": correct})
    return pd.DataFrame(lines, columns=["test", "id", "group", "share", "correct"])


def protocols(samples: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return a frame (columns test, id, correct) for each way of answering: from the mean, from one draw, and by
    majorities of several draws."""
    count = max(samples["seed"].tolist()) + 1
    found = {"mean": samples.loc[samples["seed"] == MEAN], "1 sample": samples.loc[samples["seed"] != MEAN]}
    found |= {f"majority of {size}": votes(samples, size) for size in sorted({min(5, count), count}) if size > 1}
    return found


def reliability(samples: pd.DataFrame) -> pd.DataFrame:
    """Return mean share, accuracy and number of questions, in bins of the majority's share of all draws."""
    voted = votes(samples, max(samples["seed"].tolist()) + 1)
    bins = pd.cut(voted["share"], [-0.001, *BINS])
    grouped = voted.groupby(bins, observed=True)
    found = grouped.agg(share=("share", "mean"), accuracy=("correct", "mean"), n=("correct", "size"))
    return found.reset_index(drop=True)


def calibration_error(bins: pd.DataFrame) -> float:
    """Return the expected calibration error: the mean distance between share and accuracy, weighted by questions."""
    return float(np.average((bins["share"] - bins["accuracy"]).abs(), weights=bins["n"]))
