# The studies of this workflow, and what the rules ask about them.
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

from benchmarks.code import CODE
from benchmarks.data import get_dataset
from benchmarks.data.store import require_known
from benchmarks.locks import announce_parent, clear_stale_locks, workflow_lock
from benchmarks.paper.numbers import require_reference
from benchmarks.studies.paths import Paths
from benchmarks.studies.rendered import Figure, Table
from benchmarks.studies.study import STUDIES, StudyError, load_study, study_content, study_path
from methods.errors import InputError
from methods.registry import code_digest, get_method
from methods.sources import source_digest


def path_of(name):
    try:
        return study_path(name)
    except StudyError as error:
        raise WorkflowError(str(error)) from None


def study_file():
    """The study file that the command line names: `--config study=NAME_OR_PATH` or `--configfile FILE`."""
    files = workflow.overwrite_configfiles
    if not files:
        if unknown := set(config) - {"study"}:
            raise WorkflowError(f"unknown keys {sorted(unknown)}: use --config study=NAME, or --configfile STUDY.yaml")
        return path_of(str(config.get("study", "quick")))
    if len(files) > 1 or config != yaml.safe_load(Path(files[0]).read_text()):
        raise WorkflowError("a study is one file: give one --configfile and no --config; to change it, edit a copy")
    return Path(files[0])


SCHEMA = Path(workflow.basedir) / "workflows/schemas/study.schema.json"


def read_study(path):
    """The validated study. The JSON schema that Snakemake checks it against too is made from the same models."""
    try:
        study = load_study(str(path))
        require_known(study)
        require_reference(study)
    except InputError as error:
        raise WorkflowError(str(error)) from None
    try:
        validate(study_content(path), str(SCHEMA), set_default=False)
    except WorkflowError:  # the models, which have taken it, are younger
        raise WorkflowError(f"{SCHEMA} does not know all of {path}: write it anew with `make schema`") from None
    return study


STUDY_FILE = study_file()
STUDY = read_study(STUDY_FILE)
GPUS = torch.cuda.device_count()  # on this machine
if "gpu" not in workflow.global_resources:  # a cluster's profile sets it: its GPUs cannot be counted here
    workflow.register_resource("gpu", max(GPUS, 1))
# Where a table is taken from when no study is named
HOMES = dict.fromkeys(("main", "decoding", "controls", "claims"), "quick")
HOMES |= {"ablation": "ablation", "nar": "one_shot", "synthetic": "synthetic", "longrange": "long_range"}
HOMES |= {"3b": "small_3b"}


@functools.cache
def study(name):
    """A study by its name: the one that the command line names, or a shipped one."""
    return STUDY if name == STUDY.name else read_study(path_of(name))


def file_of(wildcards):
    """A study as its commands are told it: the same, however the command line names it."""
    name = wildcards.study
    return name if name != STUDY.name or STUDY_FILE.resolve().parent == STUDIES else os.path.relpath(STUDY_FILE)


def home(table):
    """The study whose table is meant where a path names none."""
    if table in STUDY.tables:
        return STUDY.name
    if config or table not in HOMES:  # a study that was named is the one that is meant
        own = ", ".join(f"table_{own}" for own in STUDY.tables) or "none"
        raise WorkflowError(
            f"study {STUDY.name} does not render table_{table} (its tables: {own}): ask for one of them, or name "
            "a study that does (--config study=…)"
        )
    return HOMES[table]


def everything(wildcards):
    """All tables and figures of the study that the command line names, or of all that are at home somewhere."""
    tables = STUDY.tables if config else HOMES
    studies = [STUDY] if config else [study(name) for name in dict.fromkeys([*HOMES.values(), "sweeps"])]
    drawn = [f"results/{one.name}/figures/{figure}.png" for one in studies for figure in one.figures]
    return [f"results/table_{table}.md" for table in tables] + drawn


def beside(wildcards):
    """What the table of claims reads besides a study's records: those of other studies, and the analyses of all."""
    if wildcards.table != "claims":
        return []
    own = study(wildcards.study)
    asked = [own, *map(study, own.beside)]
    analyses = {file for one in asked for figure in one.figures for file in needs_of(figure, one)}
    return [f"results/{name}/collect.json" for name in own.beside] + sorted(map(str, analyses))


def files_of_figure(wildcards):
    """What a figure is drawn from besides the records."""
    return needs_of(wildcards.figure, study(wildcards.study))


def needs_of(figure, study):
    from benchmarks.figures.render import DRAWINGS  # matplotlib takes its time

    return DRAWINGS[figure].needs(study, Path("results"))


def tries(wildcards):
    """The number of the next try to import into MLflow; while that is pending, it is another one each time."""
    from benchmarks.tracking.importer import tries  # pandas takes its time

    return tries(Path(f"results/{wildcards.study}/track.json"))


def run_of(wildcards):
    return study(wildcards.study).runs[wildcards.run]


def block_of(wildcards):
    return study(wildcards.study).block(wildcards.block)


def records_of(stage):
    """A function from a study to the records of one stage, of all runs that go through it."""
    return lambda wildcards: [
        f"{Paths(Path('results'), source).run}/{stage}.json"
        for source in study(wildcards.study).sources.values()
        if stage in source.stages
    ]


def collected(wildcards):
    """A study's gathered records."""
    return [f"results/{wildcards.study}/{name}" for name in ("collect.json", "frame.csv")]


def table_at_home(wildcards):
    return [f"results/{home(wildcards.table)}/table_{wildcards.table}.md"]


def table_named_first(wildcards):
    return [f"results/table_{STUDY.tables[0]}.md"]


def gone(*inputs):
    """The files of input functions that are not there. As a parameter it has Snakemake make them anew though what was
    made from them is there. It is kept as it was at first, so the call after that gathers and renders once more."""
    return lambda wildcards: [str(file) for files in inputs for file in files(wildcards) if not Path(file).exists()]


def data_of_study(wildcards):
    """The prepared data of all blocks that a study's runs come from."""
    folders = {Paths(Path("results"), source).data for source in study(wildcards.study).sources.values()}
    return [f"{folder}/done.json" for folder in sorted(folders)]


def data_of_run(wildcards):
    return f"results/{wildcards.study}/data/{run_of(wildcards).block}/done.json"


def warm_start(wildcards):
    """The run whose weights a run starts from, if any."""
    start = run_of(wildcards).starts_at
    return [f"results/{start}/train.json"] if start else []


def gpu(wildcards):
    """Of a job. Where jobs are sent elsewhere, this machine need not have any."""
    return int(GPUS > 0 or not workflow.local_exec)


def gpus(wildcards):
    """How many a run trains on, over all its nodes."""
    return gpu(wildcards) * run_of(wildcards).engine.ranks


def threads_alone(wildcards):
    """All cores of the machine, so that nothing runs beside it. On a cluster the job has its nodes to itself, and asks
    for the cores that it uses."""
    run = run_of(wildcards)
    return workflow.cores if workflow.local_exec else run.timing_threads * run.engine.gpus


def across_nodes(value):
    """A resource of runs on several nodes only. Their job has a task for every rank, which SLURM's plugin calls MPI: it
    then runs beside the ranks, and not in a step of one task that would hold all that they need."""
    return lambda wildcards: value(run_of(wildcards)) if run_of(wildcards).engine.nodes > 1 else None


ACROSS_NODES = {
    "mpi": across_nodes(lambda run: "srun"),
    # The plugin refuses a single task per node: nodes of one GPU are asked for by the number of all tasks
    "tasks_per_node": across_nodes(lambda run: run.engine.gpus if run.engine.gpus > 1 else None),
    "tasks": across_nodes(lambda run: run.engine.nodes if run.engine.gpus == 1 else None),
    "tasks_per_gpu": across_nodes(lambda run: 1 if run.engine.gpus == 1 else None),
}


def memory_alone(wildcards):
    """MB of one process, which holds the whole model while it is built: 12 GB of float32 at 3B, and 9 GB of MarCos at
    0.5B, of which one process alone also copies AdamW's 19 GB of moments into a checkpoint."""
    backbone = run_of(wildcards).backbone
    return 8000 if backbone.pretrained is None and backbone.name.endswith("-tiny") else 40000


def memory(wildcards):
    """MB of the ranks of one node: each builds the whole model before it is split."""
    return memory_alone(wildcards) * run_of(wildcards).engine.gpus


def later_rows_first(wildcards):
    """First what others start from, then from the bottom of the table up: the cheap baselines stand at its top."""
    runs = study(wildcards.study).runs
    awaited = any(run.starts_from == wildcards.run for run in runs.values())
    return 1 + list(runs).index(wildcards.run) + awaited * len(runs)


def run_digest(stage):
    """A function from a run to the digest of the settings that this stage's result depends on."""
    return lambda wildcards: run_of(wildcards).digest(stage)


def run_code(stage):
    """A function from a run to the digest of its method's source and of the modules that decide this stage's result."""
    return lambda wildcards: code_digest(run_of(wildcards).method, *CODE[stage])


def stage_code(stage):
    """The digest of the modules that decide the result of a stage that is not a run's."""
    return source_digest(*CODE[stage])


def study_settings(wildcards):
    """What a study asks for, and how its tables name the methods, whose titles are no code."""
    asked = study(wildcards.study)
    return digest(asked.model_dump_json(), *(get_method(row.method).title for row in asked.rows))


def digest(*texts):
    """A digest that is short enough to be read where Snakemake gives a reason."""
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def cards_digest(*names):
    """A digest of what data sets are by their cards: source, version, checksums."""
    return digest(*(get_dataset(name).card.model_dump_json() for name in names))


def training_data(wildcards):
    """The version of a run's training data: other data mean another training, and a further test set does not."""
    return cards_digest(run_of(wildcards).data.train)


def block_settings(wildcards):
    """What the data of a block are made from."""
    block = block_of(wildcards)
    settings = block.data, study(wildcards.study).tokenizer_of(block)
    return " ".join(part.model_dump_json() for part in settings)


def block_cards(wildcards):
    block = block_of(wildcards)
    return cards_digest(block.data.train, *study(wildcards.study).tests_of(block))


wildcard_constraints:
    study="[^/]+",
    block="[^/]+",
    run=r"[^/]+/[^/]+/s\d+",
    table="|".join(Table),
    figure="|".join(Figure),


# Commands are those of the environment that runs Snakemake, whatever the shell's PATH says, and print at once
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
    LOCK.acquire()  # held until this process ends, by whatever cause
