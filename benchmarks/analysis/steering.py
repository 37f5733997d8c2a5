"""How answers change when dimensions of R are set by hand."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from benchmarks.data import TestSet
from methods.base import ANSWER_MARKER
from methods.generation import Decoding, Intervention

if TYPE_CHECKING:
    from benchmarks.analysis.reading import Analysis
    from benchmarks.analysis.saying import Said, Speaker


def outputs(speaker: Speaker, test: TestSet, decoding: Decoding, interventions: Sequence[Intervention]) -> pd.DataFrame:
    """Return one row per question: what is said, its length in tokens, whether it is
    marked, and whether it is correct."""
    said = speaker.say(test.questions, replace(decoding, interventions=tuple(interventions)))
    return described(test, said).assign(setting=setting(interventions))


def described(test: TestSet, said: Said) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "test": test.name,
            "id": test.ids,
            "question": test.texts,
            "steps": ["\n".join(steps) for steps in said.steps],
            "answer": said.answers,
            "tokens": said.tokens,
            "marked": [ANSWER_MARKER in answer for answer in said.answers],
            "correct": [score.correct for score in said.scores(test)],
        }
    )


def setting(interventions: Sequence[Intervention]) -> str:
    """Describe interventions in words. The text is empty if there are none."""
    texts = []
    for one in interventions:
        dims = ", ".join(map(str, one.dims))
        where = "" if one.step is None else f" in step {one.step}"
        texts.append(f"{dims} = {one.value:g}{where}")
    return "; ".join(texts)


def effects(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting, that without interventions first: the mean length and its relative change, and the
    shares of marked and correct answers."""
    lines = []
    usual = float(frame.loc[frame["setting"] == "", "tokens"].mean())
    for name in dict.fromkeys(["", *frame["setting"]]):
        group = frame.loc[frame["setting"] == name]
        tokens = float(group["tokens"].mean())
        longer = tokens / usual - 1 if usual else math.nan  # a model may say nothing
        line = {"setting": name, "n": len(group), "tokens": tokens, "longer": longer}
        lines.append(line | {share: float(group[share].mean()) for share in ("marked", "correct")})
    return pd.DataFrame(lines)


def clique_effects(analysis: Analysis) -> pd.DataFrame:
    """Return the :func:`effects` of the clique, with the ``value`` that it is set to (NaN
    in the row without interventions)."""
    frame = analysis.frame("interventions")
    clique = ",".join(map(str, analysis.record.clique))
    own = frame.loc[(frame["setting"] == "") | (frame["dims"] == clique)]
    values = dict(zip(own["setting"], own["value"], strict=True))
    found = effects(own)
    return found.assign(value=[float(values[setting]) for setting in found["setting"]])


def differences(before: str, after: str) -> list[tuple[bool, str, str]]:
    """Compare two texts, cut into words, blanks and signs.
    Return parts: (whether shared, text in the first, text in the second)."""
    old, new = (re.findall(r"\s+|\d+|\w+|.", text, re.DOTALL) for text in (before, after))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [(tag == "equal", "".join(old[a:b]), "".join(new[c:d])) for tag, a, b, c, d in matcher.get_opcodes()]
