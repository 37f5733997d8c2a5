"""Which modules decide what a stage leaves behind: an edit of any of them makes it anew.

Names are dotted; that of a package stands for all modules in it. What a run's own stages depend on besides is the code
of its method (:func:`methods.registry.code_digest`). Modules that only read, write, lock, log or show are left out,
and so are prepared data, settings of a run and data cards, which have digests and versions of their own.
"""

from __future__ import annotations


def _modules(*names: str) -> tuple[str, ...]:
    return tuple(f"benchmarks.{name}" for name in names)


ANSWERS = _modules("answering", "casting", "models", "engine.device", "engine.layers", "data.tokenizers")
TABLES = (
    *_modules("tables", "summary", "claims", "paper", "markup", "provenance", "paths", "results", "records"),
    *_modules(
        "statistics",
        "scoring",
        "diversity",
        "hardware",
        "other_load",
        "pace",
        "study",
        "runs",
        "specs",
        "files",
        "analysis",
    ),
)
RECORDS = _modules("results", "records")

CODE: dict[str, tuple[str, ...]] = {
    "data": _modules("data"),
    # What the weights of a run depend on. All engines are listed, because any of them may resume another's checkpoint;
    # data cards are not, because they carry versions
    "train": (
        *_modules("train_stage", "training", "steps", "micro_batches", "features", "models", "engine"),
        *_modules("data.records", "data.loading", "data.tokenizers", "data.batching"),
    ),
    "answer": ANSWERS,  # of the evaluate stage: an edit of the rest scores again what was answered
    "evaluate": (*ANSWERS, *_modules("evaluation", "scoring", "diversity")),
    "analyse": (*ANSWERS, *_modules("scoring", "analysis")),
    "time": (
        *ANSWERS,
        *_modules("timing", "step_timing", "other_load", "pace", "flops", "sampling"),
        *_modules("steps", "micro_batches", "features", "engine", "data.batching"),
    ),
    "collect": (*RECORDS, *_modules("statistics")),
    "track": (*RECORDS, *_modules("tracking", "mlflow_store", "provenance")),
    "table": TABLES,
    "figure": (*TABLES, *_modules("figures")),
    "report": _modules("report", "markup"),
}
