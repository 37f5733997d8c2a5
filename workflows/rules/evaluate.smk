rule evaluate:
    """Answer all test questions with one trained run, and score the answers."""
    input:
        data=data_of_run,
        model="results/{study}/runs/{run}/train.json",
        again=again("results/{study}/runs/{run}/evaluate.json", of_other_settings("evaluate")),
    output:
        "results/{study}/runs/{run}/evaluate.json",
    params:
        study=file_of,
        digest=run_digest("evaluate"),
        code=run_code("evaluate"),
    log:
        "results/{study}/logs/evaluate/{run}.log",
    threads: lambda wildcards: run_of(wildcards).threads
    resources:
        mem_mb=memory_alone,
        runtime=240,
        gpu=gpu,
    priority: ANSWERS
    shell:
        'python -m benchmarks.cli evaluate {params.study:q} {wildcards.run} 2>&1 | tee {log}'
