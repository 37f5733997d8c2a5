"""The modules that decide what each task writes: if the code of any of them changes, the task runs again.

Names are dotted; a package stands for all modules in it. The tasks of a run also depend on the code of its method
(:func:`methods.registry.code_digest`). Modules that only read, write, lock, log or display are left out. So are
prepared data, the settings of a run and data cards, which have digests and versions of their own.
"""

from __future__ import annotations

from benchmarks.scoring.scorers import scoring_modules
from benchmarks.studies.runs import RunSpec


def _modules(*names: str) -> tuple[str, ...]:
    return tuple(f"benchmarks.{name}" for name in names)


MODELS = ("methods.registry", *_modules("models", "data.tokenizers"))
ANSWERS = (*MODELS, *_modules("evaluation.inference", "engine.device", "engine.layers"))
SCORES = _modules("scoring.base", "scoring.scorers", "scoring.diversity")
RECORDS = _modules("records.results", "records.schema")
TABLES = _modules("tables", "records", "paper", "studies", "scoring", "files")
TABLES += _modules("plan.hardware", "timing.machine")
STEPS = _modules("training.batches", "training.loop", "budgets", "studies.micro_batches", "engine", "data.corpus")

DATA = _modules("number_grammar", "data.cards", "data.corpus", "data.loading", "data.records", "data.sources")
DATA += _modules("data.store", "data.tokenizers")

CODE: dict[str, tuple[str, ...]] = {
    # Not the data sets: each has a digest of its own, of the module in `benchmarks.data.sets.MODULES`
    "data": DATA,
    # The code that the weights of a run depend on. All engines are listed, because any of them may resume another's
    # checkpoint; data cards are not, because they carry versions
    "train": (*MODELS, *STEPS),
    # Besides, if accuracy selects weights; the scorer of the training data counts too
    "select": (*ANSWERS, *_modules("training.validation_accuracy", "data.corpus"), *SCORES),
    # Of scorers, those that a run's test sets name count besides (`task_modules`)
    "answer": ANSWERS,  # part of evaluate: if only the rest of it changes, recorded answers are scored again
    "evaluate": (*ANSWERS, *_modules("evaluation.task", "budgets"), *SCORES),
    "analyse": (*ANSWERS, *SCORES, *_modules("scoring.synthetic", "analysis", "number_grammar")),
    "time": (*ANSWERS, *STEPS, *_modules("timing.task", "timing.steps", "timing.machine")),
    "collect": (*RECORDS, *_modules("records.statistics", "outputs", "scoring")),
    "track": (
        *RECORDS,
        *_modules("tracking.importer", "tracking.entries", "tracking.store", "records.provenance"),
    ),
    "table": TABLES,
    "figure": (*TABLES, *_modules("figures", "analysis")),
    "report": _modules("report", "tables.markup"),
}


def task_modules(spec: RunSpec, task: str) -> set[str]:
    """Return the modules that decide what a task of a run writes, besides its method's: scorers of the run's test sets
    if it scores answers, and that of its training data if accuracy selects weights."""
    if task == "train" and spec.training.select_by == "accuracy":
        return {*CODE["train"], *CODE["select"], *scoring_modules([spec.data.held_out])}
    scores = task in ("evaluate", "analyse")
    return {*CODE[task], *(scoring_modules(spec.evaluation.tests) if scores else ())}
