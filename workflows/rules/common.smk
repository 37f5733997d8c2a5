# The study of this workflow, and what the rules ask about it.
import hashlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
import yaml
from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.utils import validate

from benchmarks.data import get_dataset
from benchmarks.locks import announce_parent, clear_stale_locks, workflow_lock
from benchmarks.study import load_study, study_path
from benchmarks.tables import Table
from benchmarks.training import CODE as TRAINING_CODE
from methods.registry import code_digest


def study_file():
    """The study file that the command line names: `--config study=NAME_OR_PATH` or `--configfile FILE`."""
    files = workflow.overwrite_configfiles
    if not files:
        if unknown := set(config) - {"study"}:
            raise WorkflowError(f"unknown keys {sorted(unknown)}: use --config study=NAME, or --configfile STUDY.yaml")
        return study_path(str(config.get("study", "quick")))
    if len(files) > 1 or config != yaml.safe_load(Path(files[0]).read_text()):
        raise WorkflowError("a study is one file: give one --configfile and no --config; to change it, edit a copy")
    return Path(files[0])


def read_study(path):
    """The validated study; its JSON schema is generated from the same models."""
    study = load_study(str(path))
    validate(yaml.safe_load(path.read_text()), "../schemas/study.schema.json", set_default=False)
    return study


STUDY_FILE = study_file()
STUDY = read_study(STUDY_FILE)
RESULTS = f"results/{STUDY.name}"
RUNS = STUDY.runs
GPU = int(torch.cuda.is_available())
# Source that decides the weights. Modules that list data sets are not among it: see `training_data`
TRAINING = [*TRAINING_CODE, *(f"benchmarks.data.{part}" for part in ("records", "loading", "tokenizers"))]
RECORDS = ["benchmarks.results", "benchmarks.records"]
RENDERING = RECORDS + [
    f"benchmarks.{part}" for part in ("tables", "summary", "markup", "paper", "provenance", "statistics")
]


def per_run(name):
    """The files of one kind, of all runs."""
    return [f"{RESULTS}/runs/{run}/{name}" for run in RUNS]


def block_data(wildcards):
    return f"{RESULTS}/data/{RUNS[wildcards.run].block}/done.json"


def warm_start(wildcards):
    """The run whose weights a run starts from, if any."""
    start = RUNS[wildcards.run].starts_from
    return [f"{RESULTS}/runs/{start}/train.json"] if start else []


def later_rows_first(wildcards):
    """What others start from, then from the bottom of the table up: the cheap baselines stand at its top."""
    awaited = any(run.starts_from == wildcards.run for run in RUNS.values())
    return 1 + list(RUNS).index(wildcards.run) + awaited * len(RUNS)


def run_digest(stage):
    """A function from a run to the digest of the settings that this stage's result depends on."""
    return lambda wildcards: RUNS[wildcards.run].digest(stage)


def run_code(*modules):
    """A function from a run to the digest of its method's source and of the stage's own modules."""
    return lambda wildcards: code_digest(RUNS[wildcards.run].method, *modules)


def digest(*parts):
    """A digest of byte strings and texts, short enough to be read in a reason."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part if isinstance(part, bytes) else part.encode())
    return whole.hexdigest()[:16]


def source_digest(*modules):
    """A digest of the source of modules (with a data file of the same name) and packages, which are not imported."""
    files = []
    for module in modules:
        origin = Path(find_spec(module).origin)
        files += sorted(origin.parent.glob("*.py" if origin.stem == "__init__" else f"{origin.stem}.*"))
    return digest(*(part for path in files for part in (path.name, path.read_bytes())))


def cards_digest(*names):
    """A digest of what data sets say that they are: source, version, checksums."""
    return digest(*(get_dataset(name).card.model_dump_json() for name in names))


def training_data(wildcards):
    """The version of a run's training data: other data ask for new training, and one test set more does not."""
    return cards_digest(RUNS[wildcards.run].data.train)


def block_settings(wildcards):
    """What the data of a block are made from."""
    settings = STUDY.block(wildcards.block).data, STUDY.tokenizer
    return " ".join(part.model_dump_json() for part in settings)


def block_cards(wildcards):
    return cards_digest(STUDY.block(wildcards.block).data.train, *STUDY.evaluation.tests)


wildcard_constraints:
    block="|".join(block.id for block in STUDY.blocks),
    run="|".join(RUNS),
    table="|".join(Table),


# Commands are those of the environment that runs Snakemake, whatever the shell's PATH says, and print at once
os.environ.update(
    PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
    PYTHONUNBUFFERED="1",
    MARCOS_BENCH_STUDY=str(STUDY_FILE),
)
announce_parent()
LOCK = workflow_lock()
if workflow.is_main_process and (rival := clear_stale_locks()):
    logger.warning(f"This directory's workflow is being run by {rival}.")


onstart:
    LOCK.acquire()  # held until this process ends, by whatever cause
