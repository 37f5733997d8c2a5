# The studies of this workflow, and the functions by which rules query them.
from benchmarks.processes import collect_garbage_less_often

collect_garbage_less_often()  # before the imports below, which take most of the time of a call that has nothing to do

import errno
import functools
import hashlib
import os
import sys
from pathlib import Path

import torch
import yaml
from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.utils import validate

from benchmarks.task_dependencies import CODE, task_modules
from benchmarks.data import get_dataset
from benchmarks.data.store import is_prepared, prepared_files, require_known, source_of, unpinned_files
from benchmarks.processes.locks import announce_parent, clear_stale_locks, workflow_lock
from benchmarks.files import describe_os_error, read_json_if_intact, sha256
from benchmarks.paper.numbers import paper_table
from benchmarks.scoring.scorers import require_scorers
from benchmarks.studies.paths import Paths
from benchmarks.studies.specs import Figure, Table
from benchmarks.studies.study import WORKFLOWS, StudyError, load_study, require_run, study_path
from benchmarks.studies.validation_errors import study_content
from benchmarks.tracking import store as tracking
from methods.errors import InputError
from methods.registry import code_digest, get_method
from methods.code_digest import source_digest


for folder in (Path("results"), Path(".snakemake")):
    place = folder if folder.exists() else Path()
    if not os.access(place, os.W_OK | os.X_OK):
        denied = describe_os_error(PermissionError(errno.EACCES, "", str(place.absolute())))
        raise WorkflowError(denied)


def path_of(name):
    try:
        return study_path(name)
    except StudyError as error:
        raise WorkflowError(str(error)) from None


def study_file():
    """Return the study file that the command line names: `--config study=NAME_OR_PATH` or `--configfile FILE`."""
    files = workflow.overwrite_configfiles
    if not files:
        if unknown := set(config) - {"study"}:
            raise WorkflowError(f"unknown keys {sorted(unknown)}: use --config study=NAME, or --configfile STUDY.yaml")
        return path_of(str(config.get("study", "quick")))
    if len(files) > 1 or config != yaml.safe_load(Path(files[0]).read_text(encoding="utf-8")):
        raise WorkflowError("a study is one file: give one --configfile and no --config; to change it, edit a copy")
    return Path(files[0])


SCHEMA = WORKFLOWS / "schemas/study.schema.json"


def read_study(path):
    """Load and validate a study. Snakemake also checks it against a JSON schema, which is made from the same models."""
    try:
        study = load_study(str(path))
        require_known(study)
        require_scorers(study)
        study.published_files()  # raises an error now, and not after all runs, if one is missing
        if study.paper:
            paper_table(study.paper)
    except InputError as error:
        raise WorkflowError(str(error)) from None
    try:
        validate(study_content(path), str(SCHEMA), set_default=False)
    except WorkflowError:  # the models accept it, so the schema is outdated
        raise WorkflowError(f"{SCHEMA} does not know all of {path}: write it anew with `make schema`") from None
    return study


STUDY_FILE = study_file()
STUDY = read_study(STUDY_FILE)
GPUS = torch.cuda.device_count()  # on this machine
if "gpu" not in workflow.global_resources:  # a cluster's profile sets it: its GPUs cannot be counted here
    workflow.register_resource("gpu", max(GPUS, 1))
# The study that a table is taken from if no study is named
HOMES = dict.fromkeys(("main", "decoding", "controls", "nats", "claims"), "quick")
HOMES |= {"ablation": "ablation", "nar": "one_shot", "synthetic": "synthetic", "longrange": "long_range"}
HOMES |= {"3b": "small_3b"}


@functools.cache
def study(name):
    """Return a study by its name: the one that the command line names, one that it shares runs with, or a shipped
    one."""
    if name == STUDY.name:
        return STUDY
    return read_study(path_of(STUDY.family[name].cli_name if name in STUDY.family else name))


def file_of(wildcards):
    """Return a study's name or path for its commands. It is the same however the command line names the study."""
    called = study(wildcards.study).cli_name
    return called if called == wildcards.study else os.path.relpath(called)


def home(table):
    """Return the study whose table is meant if a path names no study."""
    if table in STUDY.tables:
        return STUDY.name
    if config or table not in HOMES:  # a study named on the command line is the one that is meant
        own = ", ".join(f"table_{own}" for own in STUDY.tables) or "none"
        raise WorkflowError(
            f"study {STUDY.name} does not render table_{table} (its tables: {own}): ask for one of them, or name "
            "a study that does (--config study=…)"
        )
    return HOMES[table]


def everything(wildcards):
    """Return all tables and figures of the study that the command line names. If it names none: all tables of HOMES,
    and the figures of their studies and of `sweeps`."""
    tables = STUDY.tables if config else HOMES
    studies = [STUDY] if config else [study(name) for name in dict.fromkeys([*HOMES.values(), "sweeps"])]
    drawn = [f"results/{one.name}/figures/{figure}.png" for one in studies for figure in one.figures]
    return [f"results/table_{table}.md" for table in tables] + drawn


def papers_records(wildcards):
    """Return a digest of other records of the paper's studies that the table of claims shows: it makes none of them."""
    if wildcards.table != "claims":
        return ""
    patterns = ("paper_*/collect.json", "*/table_paper_*.json", "measured/*/table_paper_*.json")
    files = sorted(file for pattern in patterns for file in Path("results").glob(pattern))
    others = [file for file in files if file.parent.name != wildcards.study]
    return digest(*(f"{file} {sha256(file)}" for file in others))


def files_of_figure(wildcards):
    """Return the files that a figure is drawn from besides the records."""
    from benchmarks.figures.render import FIGURE_BUILDERS  # matplotlib is slow to import

    return FIGURE_BUILDERS[wildcards.figure].needs(study(wildcards.study), Path("results"))


def tries(wildcards):
    """Return the number of the next attempt to import into MLflow. While an import is pending, it changes each time."""
    return tracking.tries(Path(f"results/{wildcards.study}/track.json"))


def run_of(wildcards):
    own = study(wildcards.study)
    require_run(own, own.name, wildcards.run)
    return own.runs[wildcards.run]


def block_of(wildcards):
    return study(wildcards.study).block(wildcards.block)


def records_of(task):
    """Return a function from a study to the records of one task, for all runs that go through it."""
    return lambda wildcards: [
        str(Paths(Path("results"), source).record(task))
        for source in study(wildcards.study).sources.values()
        if task in source.tasks
    ]


def published_files(wildcards):
    """Return the outputs of others' models that a study names, as far as they are at hand."""
    return [str(path) for _, _, path in study(wildcards.study).published_files()]


def collected(wildcards):
    """Return the files of a study's gathered records."""
    return [f"results/{wildcards.study}/{name}" for name in ("collect.json", "frame.csv")]


def table_at_home(wildcards):
    return [f"results/{home(wildcards.table)}/table_{wildcards.table}.md"]


def table_named_first(wildcards):
    if not STUDY.tables:
        raise WorkflowError(
            f"study {STUDY.name} renders no table (`tables: []`), so there is no results/table.md: name one in its "
            "`tables`, or name no target, for its figures alone"
        )
    return [f"results/table_{STUDY.tables[0]}.md"]


def again(output, wrong):
    """Return an input function that adds no file. If the output is there, but is ``wrong`` for what is asked now, it
    makes Snakemake write it again. Parameters do not: Snakemake compares them with its notes in `.snakemake`, which
    results that were copied, or are reached from another folder, do not have."""

    def no_files(wildcards):
        path = Path(output.format(**wildcards))
        if path.exists() and (why := wrong(wildcards, path)):
            if workflow.is_main_process:
                logger.info(f"{path} is written again: {why}.")
            workflow.dag.forcefiles.add(str(path))
        return []

    return no_files


def lacks(*inputs):
    """For :func:`again`: files of input functions are missing, which Snakemake leaves at that if the output exists."""

    def missing(wildcards, path):
        files = [file for files in inputs for file in files(wildcards) if not Path(file).exists()]
        return files and f"{files[0]} is gone"

    return missing


def no_copy_of(files):
    """For :func:`again`: the output is no copy of the only file of an input function."""

    def differs(wildcards, path):
        (source,) = map(Path, files(wildcards))
        as_there = source.exists() and source.read_bytes() == path.read_bytes()
        return not as_there and f"it is no copy of {source}"

    return differs


def of_other_settings(task):
    """For :func:`again`: the record of a run's task was made from other settings."""

    def differs(wildcards, path):
        made = read_json_if_intact(path).get("digest")
        return made and made != run_of(wildcards).digest(task) and "it was made from other settings"

    return differs


def of_other_data(wildcards, path):
    """For :func:`again`: the data of a block were prepared from other settings, data sets or files."""
    as_asked = is_prepared(study(wildcards.study), block_of(wildcards), Path("results"))
    return read_json_if_intact(path) and not as_asked and "it was prepared from other settings, data sets or files"


def of_another_version(wildcards, path):
    """For :func:`again`: records were gathered for another version of the study."""
    from benchmarks.records.results import load_collected

    if read_json_if_intact(path):
        try:
            load_collected(study(wildcards.study), Path("results"))
        except InputError:
            return "it was gathered for another version of the study"


def data_of_study(wildcards):
    """Return the prepared data of all blocks that a study's runs come from."""
    folders = {Paths(Path("results"), source).data for source in study(wildcards.study).sources.values()}
    return [f"{folder}/done.json" for folder in sorted(folders)]


def data_of_run(wildcards):
    return f"results/{wildcards.study}/data/{run_of(wildcards).block}/done.json"


def warm_start(wildcards):
    """Return the training record of the run that a run starts from, if any."""
    start = run_of(wildcards).starts_at
    return [f"results/{start}/train.json"] if start else []


def run_digest(task):
    """Return a function from a run to the digest of the settings that this task's result depends on."""
    return lambda wildcards: run_of(wildcards).digest(task)


def run_code(task):
    """Return a function from a run to the digest of its method's source and of the modules that decide the result."""

    def code(wildcards):
        run = run_of(wildcards)
        return code_digest(run.method, *task_modules(run, task))

    return code


def task_code(task):
    """Return the digest of the modules that decide the result of a task that does not belong to a run."""
    return source_digest(*CODE[task])


def study_settings(wildcards):
    """Return a digest of a study's settings and its methods' titles: tables show these, code digests omit them."""
    asked = study(wildcards.study)
    return digest(asked.model_dump_json(), *(get_method(row.method).title for row in asked.rows))


def digest(*texts):
    """Return a digest that is short enough to read in the reasons that Snakemake gives."""
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def training_data(wildcards):
    """Return the version of a run's training data. A new one requires new training; another test set does not."""
    return digest(get_dataset(run_of(wildcards).data.train).card.model_dump_json())


def block_settings(wildcards):
    """Return the settings that the data of a block are made from."""
    block = block_of(wildcards)
    settings = block.data, study(wildcards.study).tokenizer_of(block)
    return " ".join(part.model_dump_json() for part in settings)


def block_sets(wildcards):
    """Return a digest of the data sets of a block: their code and cards, and files that the cards have no checksum of.
    What is not at hand counts as it was when the data were prepared."""
    block, own = block_of(wildcards), study(wildcards.study)
    known = prepared_files(own, block, Path("results")) | unpinned_files(own, block)
    return digest(source_of(own, block), *(text for item in sorted(known.items()) for text in item))


wildcard_constraints:
    study="[^/]+",
    block="[^/]+",
    run=r"[^/]+/[^/]+/s\d+",
    table="|".join(Table),
    figure="|".join(Figure),


# Commands come from the environment that runs Snakemake, whatever the shell's PATH says, and print without buffering
os.environ.update(
    PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
    PYTHONUNBUFFERED="1",
)
announce_parent()
LOCK = workflow_lock()
if workflow.is_main_process and (rival := clear_stale_locks()):
    logger.warning(
        f"This directory's workflow is being run by {rival}. Let it end, or end it, before you start another; "
        "--unlock is not for this."
    )


onstart:
    LOCK.acquire()  # held until this process ends, for whatever reason
