"""How outputs change when dimensions of R are set by hand, and `marcos-bench explain --set-dims`, which shows it."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.console import console
from benchmarks.data import TestSet
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import StudyError
from methods.base import ANSWER_MARKER
from methods.errors import InputError
from methods.generation import Intervention

if TYPE_CHECKING:
    from benchmarks.analysis.records import Analysis
    from benchmarks.analysis.responses import Responses, TrainedModel


def intervene(
    spec: RunSpec, results: Path, dims: str, value: float, step: int | None, test: str | None, count: int, show: int
) -> None:
    """Answer ``count`` questions without intervention and with ``dims`` (e.g. ``3,7``) set to ``value``. Print both."""
    from benchmarks.analysis.responses import TrainedModel  # slow to import, and figures need only the effects

    if spec.steerable_latents is None:
        raise InputError(f"{spec.id} has no latents that can be set by hand: name a run of another row")
    one = Intervention(parse_dims(dims), value, step)
    model = TrainedModel.load(spec, results)
    asked = model.test(require_test(spec, test), count)
    frame = pd.concat([outputs(model, asked, by_hand) for by_hand in (None, one)], ignore_index=True)
    out = console()
    out.print(changes(frame, dict(zip(asked.ids, asked.texts, strict=True)), show))
    out.print(effects_table(effects(frame)))


def parse_dims(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{text!r} names no dimensions: give numbers with commas between, as in 3,7") from error


def require_test(spec: RunSpec, test: str | None) -> str:
    """Return the name of a test set of the run, which is the first one if ``test`` is None."""
    tests = spec.evaluation.tests
    if test is not None and test not in tests:
        raise StudyError(f"{spec.id} is not evaluated on {test!r}; its test sets are: {', '.join(tests)}")
    return test or tests[0]


def changes(frame: pd.DataFrame, questions: dict[str, str], show: int) -> RenderableType:
    """Return a table of the first ``show`` outputs that change, with differences in colour; or, if there is none to
    show, a text that says how many change."""
    before, after = (frame.loc[frame["setting"] == setting].set_index("id") for setting in frame["setting"].unique())
    changed = [id for id in before.index if before.loc[id, "steps"] != after.loc[id, "steps"]]
    title = f"{len(changed)} of {len(before)} outputs change"
    if not changed[:show]:
        return Text(f"{title}." if changed else f"None of {len(before)} outputs changes.")
    title += f"; the first {min(show, len(changed))} of them"
    table = Table("Question", "Before", f"After ({after['setting'].iloc[0]})", title=title, show_lines=True)
    for id in changed[:show]:
        old, new = str(before.loc[id, "steps"]), str(after.loc[id, "steps"])
        table.add_row(Text(questions[id]), *marked_changes(old, new))
    return table


def marked_changes(before: str, after: str) -> tuple[Text, Text]:
    """Return two texts in which the words, blanks and signs that only one of them has are coloured."""
    old, new = (re.findall(r"\s+|\d+|\w+|.", text, re.DOTALL) for text in (before, after))
    texts = Text(), Text()
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        styles = ("", "") if tag == "equal" else ("red", "bold green")
        for text, part, style in zip(texts, (old[a:b], new[c:d]), styles, strict=True):
            text.append("".join(part), style=style)
    return texts


def effects_table(frame: pd.DataFrame) -> Table:
    table = Table("Setting", "n", "Tokens", "Change (%)", "With #### (%)", "Accuracy (%)", title="Effect")
    for line in frame.to_dict("records"):
        shares = (f"{100 * line[name]:.1f}" for name in ("marked", "correct"))
        change = f"{100 * line['longer']:+.1f}"
        table.add_row(line["setting"] or "as it is", str(line["n"]), f"{line['tokens']:.1f}", change, *shares)
    return table


def outputs(model: TrainedModel, test: TestSet, by_hand: Intervention | None) -> pd.DataFrame:
    """Return one row per question: the generated steps and answer, their length in tokens, whether the answer is
    marked, and whether it is correct."""
    responses = model.generate(test.questions, replace(model.decoding, interventions=(by_hand,) if by_hand else ()))
    return output_frame(test, responses).assign(setting=setting(by_hand) if by_hand else "")


def output_frame(test: TestSet, responses: Responses) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "test": test.name,
            "id": test.ids,
            "question": test.texts,
            "steps": ["\n".join(steps) for steps in responses.steps],
            "answer": responses.answers,
            "tokens": responses.tokens,
            "marked": [ANSWER_MARKER in answer for answer in responses.answers],
            "correct": [score.correct for score in responses.scores(test)],
        }
    )


def setting(by_hand: Intervention) -> str:
    where = "" if by_hand.step is None else f" in step {by_hand.step}"
    return f"{', '.join(map(str, by_hand.dims))} = {by_hand.value:g}{where}"


def effects(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting, in the order of the frame: the mean length and its relative change, and the shares of
    marked and correct answers."""
    means = frame.groupby("setting", sort=False)[["tokens", "marked", "correct"]].agg("mean")
    usual = means.loc["", "tokens"] or math.nan  # a model may say nothing
    sizes = frame["setting"].value_counts()
    return means.assign(n=sizes, longer=means["tokens"] / usual - 1).reset_index()


def clique_effects(analysis: Analysis) -> pd.DataFrame:
    """Return the :func:`effects` of the clique, with the ``value`` that it is set to (NaN: no intervention)."""
    frame = analysis.frame("interventions")
    clique = ",".join(map(str, analysis.record.clique))
    rows = frame.loc[(frame["setting"] == "") | (frame["dims"] == clique)]
    values = dict(zip(rows["setting"], rows["value"], strict=True))
    found = effects(rows)
    return found.assign(value=[float(values[setting]) for setting in found["setting"]])
