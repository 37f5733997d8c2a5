rule time:
    """Time training steps and answers of one trained run, alone on the machine, and last."""
    input:
        data=data_of_run,
        model="results/{study}/runs/{run}/train.json",
        again=again("results/{study}/runs/{run}/time.json", of_other_settings("time")),
    output:
        "results/{study}/runs/{run}/time.json",
    params:
        study=file_of,
        digest=run_digest("time"),
        code=run_code("time"),
    log:
        "results/{study}/logs/time/{run}.log",
    threads: threads_alone
    resources:
        mem_mb=memory,
        runtime=120,
        nodes=lambda wildcards: run_of(wildcards).engine.nodes,
        gpu=gpus,
        **ACROSS_NODES,
        cpus_per_task=across_nodes(lambda run: run.timing_threads),
        slurm_extra=lambda wildcards: None if workflow.local_exec else "--exclusive", # whole nodes
    priority: TIMING
    shell:
        'python -m benchmarks.cli time {params.study:q} {wildcards.run} 2>&1 | tee {log}'
