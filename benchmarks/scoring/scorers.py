"""The scorer of each test set, which its card names, and the scores of answers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain

import pandas as pd

from benchmarks.data import DATASETS, DataError, TestSet, get_dataset
from benchmarks.scoring import MODULES, SCORERS, Reference, Score, Scorer
from benchmarks.studies.study import Study
from methods.code_digest import builds_on
from methods.errors import suggestion

KNOWN = ["question", "gold", "n_steps"]  # the facts about a question that a scorer may use
SCORES = ["extracted", "correct", "strict", "draws", "choices"]


def scorer_of(test: str) -> Scorer:
    """Return the scorer of a test set, or raise :class:`DataError` if its card names one that does not exist."""
    name = get_dataset(test).card.scorer
    if name not in SCORERS:
        known = ", ".join(SCORERS)
        raise DataError(f"the card of {test!r} names no scorer: {name!r}{suggestion(name, SCORERS)} (known: {known})")
    return SCORERS[name]


def scorer_of_recorded(test: str) -> Scorer:
    """Return the scorer of a test set that records name. A data set that is gone is taken for word problems."""
    return scorer_of(test) if test in DATASETS else SCORERS["number"]


def scorers_of(tests: Iterable[str]) -> dict[str, Scorer]:
    """Return the scorers of test sets that are answered together.
    Raise :class:`DataError` if only some of them read steps."""
    scorers = {name: scorer_of(name) for name in tests}
    if len({scorer.reads_steps for scorer in scorers.values()}) > 1:
        raise DataError(
            f"of the tests {', '.join(scorers)} some are scored by their steps and some are not: give each kind a "
            "block of its own (`tests` of the block)"
        )
    return scorers


def versions(tests: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the name and the version of each test set's scorer, as records name them."""
    return {test: {"name": scorer.name, "version": scorer.version} for test, scorer in scorers_of(tests).items()}


def require_scorers(study: Study) -> None:
    """Raise :class:`DataError` if answers to the test sets of a block, or to the held-out questions of a run, could not
    be scored: before a run is trained."""
    for block in study.blocks:
        scorers_of(study.tests_of(block))
    for run in study.runs.values():
        if run.training.validation_questions:
            scorer_of(run.data.held_out)


def scoring_modules(tests: Iterable[str]) -> set[str]:
    """Return the modules of the scorers of test sets, and what they import of the suite: all that decides the scores,
    besides what is the same for all test sets."""
    return {*chain.from_iterable(builds_on(MODULES[scorer.name]) for scorer in scorers_of(tests).values())}


def reads_steps(tests: Iterable[str]) -> bool:
    """Return whether answers must include their steps so that test sets that are answered together can be scored."""
    return any(scorer.reads_steps for scorer in scorers_of(tests).values())


def score_texts(test: TestSet, texts: Sequence[str]) -> list[Score]:
    """Return the scores of one text per question of a test set: its answer, or all lines if the scorer reads steps."""
    scorer = scorer_of(test.name)
    asked = (Reference(*of) for of in zip(test.texts, test.answers, test.n_steps, strict=True))
    return [scorer.score(text, one) for text, one in zip(texts, asked, strict=True)]


def score_answers(rows: pd.DataFrame, tests: Mapping[str, TestSet]) -> pd.DataFrame:
    """Return answers (columns test, id, text and any others) together with the facts about
    their questions and their scores."""
    known = pd.concat([_known(test) for test in tests.values()], ignore_index=True)
    frame = rows.merge(known, on=["test", "id"], how="left", validate="many_to_one")
    return pd.concat([frame.drop(columns="question"), score_frame(frame)], axis="columns")


def _known(test: TestSet) -> pd.DataFrame:
    """Return the facts about the questions of a test set, one row each."""
    columns = {"test": test.name, "id": test.ids, "question": test.texts, "gold": test.answers}
    columns |= {"overlap": test.overlap, "same_as": test.same_as, "n_steps": pd.array(test.n_steps, dtype="Int64")}
    return pd.DataFrame(columns)


def score_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of answers (columns test, text, question, gold, n_steps), one row each, with the same index.
    ``follows``: whether an answer with the latents of another question (``latents_of``) is the same as that question is
    answered with them (``with_own``)."""
    scores = _score_frame(frame)
    if "latents_of" in frame:
        asked = frame.drop_duplicates("id").set_index("id")[["test", *KNOWN]].loc[frame["latents_of"]]
        said, own = (_votes(asked.set_axis(frame.index).assign(text=frame[name])) for name in ("text", "with_own"))
        scores["follows"] = [one is not None and one == other for one, other in zip(said, own, strict=True)]
    return scores


def _votes(frame: pd.DataFrame) -> list[Hashable | None]:
    """Return what the extracted answers count as in a vote, so that equivalent ones are equal; None without one."""
    found = zip(frame["test"], _score_frame(frame)["extracted"], strict=True)
    return [None if pd.isna(extracted) else scorer_of(test).vote(extracted) for test, extracted in found]


def _score_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Equal answers to a question, as decoding seeds and votes give, are scored once."""
    read = ["test", "text", *KNOWN]
    distinct = frame[read].drop_duplicates()
    scorers = {test: scorer_of(test) for test in set(distinct["test"])}
    rows = []
    for test, text, question, gold, steps in zip(*(distinct[name].tolist() for name in read), strict=True):
        asked = Reference(question, gold, None if pd.isna(steps) else int(steps))
        result = scorers[test].score(text, asked)
        choices = list(scorers[test].choices(asked))
        rows.append((result.extracted, result.correct, result.strict, list(result.draws), choices))
    scores = pd.DataFrame(rows, columns=SCORES)
    # Groups are numbered in the order of `distinct`
    return scores.iloc[frame.groupby(read, sort=False, dropna=False).ngroup()].set_axis(frame.index)
