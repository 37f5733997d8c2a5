rule train:
    """Train one run; it goes on from its last checkpoint when it was interrupted."""
    input:
        # Not ancient, though only `version` asks for new training: Snakemake would look at no other reason to train while
        # data are prepared again. What is trained already ends at once
        data=data_of_run,
        start=warm_start,
    output:
        "results/{study}/runs/{run}/train.json",
    params:
        study=file_of,
        digest=run_digest("train"),
        version=training_data,
        code=run_code("train"),
        script=os.path.relpath(Path(workflow.basedir) / "workflows/scripts/train.sh"),
    log:
        "results/{study}/logs/train/{run}.log",
    threads: lambda wildcards: run_of(wildcards).threads * run_of(wildcards).engine.gpus
    resources:
        mem_mb=memory,
        runtime=24 * 60,
        nodes=lambda wildcards: run_of(wildcards).engine.nodes,
        gpu=gpus,
        **ACROSS_NODES,
        cpus_per_task=across_nodes(lambda run: run.threads),
        attempt=lambda wildcards, attempt: attempt,
    priority: later_rows_first
    retries: 3  # a run that is told to go (SIGTERM, Ctrl-C) saves itself and ends with code 75; the next try goes on
    shell:  # a scheduler tells all processes of a job to go: this shell, too, waits for the one that saves
        "trap : TERM INT; {params.script:q} {resources.attempt} {log} {params.study:q} {wildcards.run}"
