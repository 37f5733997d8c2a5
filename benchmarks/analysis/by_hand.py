"""`marcos-bench explain --set-dims`: sets latents by hand and shows the outputs before and after."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.analysis.console import console
from benchmarks.analysis.reading import steerable_latents
from benchmarks.analysis.saying import Speaker
from benchmarks.analysis.steering import differences, effects, outputs
from benchmarks.evaluation.answering import decoding_of
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.study import StudyError
from methods.errors import InputError
from methods.generation import Intervention


def intervene(
    spec: RunSpec, results: Path, dims: str, value: float, step: int | None, test: str | None, count: int, show: int
) -> None:
    """Answer ``count`` questions without intervention and with ``dims`` (e.g. ``3,7``) set to ``value``. Print both."""
    if steerable_latents(spec) is None:
        raise InputError(f"{spec.id} has no latents that can be set by hand: name a run of another row")
    one = Intervention(parse_dims(dims), value, step)
    speaker = Speaker.load(spec, results)
    asked = speaker.test(known_test(spec, test), count)
    decoding = decoding_of(spec.evaluation.decodings["default"], spec.evaluation, seed=0)
    frame = pd.concat([outputs(speaker, asked, decoding, by_hand) for by_hand in ([], [one])], ignore_index=True)
    out = console()
    out.print(changes(frame, dict(zip(asked.ids, asked.texts, strict=True)), show))
    out.print(effects_table(effects(frame)))


def parse_dims(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{text!r} names no dimensions: give numbers with commas between, as in 3,7") from error


def known_test(spec: RunSpec, test: str | None) -> str:
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
    """Return two texts in which the parts that only one of them has are coloured."""
    texts = Text(), Text()
    for shared, old, new in differences(before, after):
        for text, part, style in zip(texts, (old, new), ("red", "bold green"), strict=True):
            text.append(part, style="" if shared else style)
    return texts


def effects_table(frame: pd.DataFrame) -> Table:
    table = Table("Setting", "n", "Tokens", "Change (%)", "With #### (%)", "Accuracy (%)", title="Effect")
    for line in frame.to_dict("records"):
        shares = (f"{100 * line[name]:.1f}" for name in ("marked", "correct"))
        change = f"{100 * line['longer']:+.1f}"
        table.add_row(line["setting"] or "as it is", str(line["n"]), f"{line['tokens']:.1f}", change, *shares)
    return table
