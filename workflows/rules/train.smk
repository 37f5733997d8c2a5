rule train:
    """Train one run, or resume it from its last checkpoint if it was interrupted."""
    input:
        # Not ancient(), although only `version` requires new training: with it, Snakemake would ignore other reasons to
        # train while data are prepared again. A run that is trained already ends at once
        data=data_of_run,
        start=warm_start,
        again=again("results/{study}/runs/{run}/train.json", of_other_settings("train")),
    output:
        "results/{study}/runs/{run}/train.json",
    params:
        study=file_of,
        digest=run_digest("train"),
        version=training_data,
        code=run_code("train"),
        script=os.path.relpath(WORKFLOWS / "scripts/train.sh"),
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
    retries: 3  # of runs that are told to stop, hang or are killed: the script says which
    shell:  # a scheduler signals all processes of a job: this shell, too, must wait for the one that saves
        "trap : TERM INT; {params.script:q} {resources.attempt} {log} {params.study:q} {wildcards.run}"
