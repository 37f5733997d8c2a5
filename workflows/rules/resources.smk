# What the jobs of a run ask for: GPUs, cores, memory and nodes, and which job comes first.

# Of the jobs that are ready, those of the highest priority are started. Data come first, as all else waits for them,
# and then trainings; evaluations and analyses fill the cores that trainings leave. A timing needs the whole machine:
# if one could start earlier, cores would be idle until all that runs has ended. So timings follow one another in one
# quiet period, before all that is made of the records of a whole study (0)
TIMING, ANSWERS, TRAINING, DATA = 1, 2, 3, 1000  # a training has TRAINING or more, by its row


def gpu(wildcards):
    """Return the GPUs of a job: one, or none. If jobs are sent elsewhere, this machine need not have any."""
    return int(GPUS > 0 or not workflow.local_exec)


def gpus(wildcards):
    """Return the number of GPUs of a run, over all its nodes."""
    return gpu(wildcards) * run_of(wildcards).engine.ranks


def threads_alone(wildcards):
    """Return all cores of the machine, so that nothing runs beside the job. On a cluster the job has its nodes to
    itself, and asks for the cores that it uses."""
    run = run_of(wildcards)
    return workflow.cores if workflow.local_exec else run.timing_threads * run.engine.gpus


def across_nodes(value):
    """Return a resource that only runs on several nodes have. Their job has one task per rank, which SLURM's plugin
    calls MPI: it then runs beside the ranks, not in a step of one task that would hold the resources they need."""
    return lambda wildcards: value(run_of(wildcards)) if run_of(wildcards).engine.nodes > 1 else None


ACROSS_NODES = {
    "mpi": across_nodes(lambda run: "srun"),
    # The plugin refuses a single task per node, so nodes of one GPU are requested by the number of all tasks
    "tasks_per_node": across_nodes(lambda run: run.engine.gpus if run.engine.gpus > 1 else None),
    "tasks": across_nodes(lambda run: run.engine.nodes if run.engine.gpus == 1 else None),
    "tasks_per_gpu": across_nodes(lambda run: 1 if run.engine.gpus == 1 else None),
}


def memory_alone(wildcards):
    """Return the MB of one process. It holds the whole model while that is built: 12 GB in float32 at 3B, 9 GB for
    MarCos at 0.5B. There, a process without other ranks also copies AdamW's 19 GB of moments into a checkpoint."""
    backbone = run_of(wildcards).backbone
    return 8000 if backbone.pretrained is None and backbone.name.endswith("-tiny") else 40000


def memory(wildcards):
    """Return the MB of the ranks of one node: each builds the whole model before it is split."""
    return memory_alone(wildcards) * run_of(wildcards).engine.gpus


def later_rows_first(wildcards):
    """Return a priority: first the runs that others start from, then the table from the bottom up, as the cheap
    baselines are at its top."""
    runs = study(wildcards.study).runs
    awaited = any(run.starts_from == wildcards.run for run in runs.values())
    return TRAINING + list(runs).index(wildcards.run) + awaited * len(runs)
