rule evaluate:
    """Answer all test questions with one trained run, and score the answers."""
    input:
        data=block_data,
        model=f"{RESULTS}/runs/{{run}}/train.json",
    output:
        f"{RESULTS}/runs/{{run}}/evaluate.json",
    params:
        digest=run_digest("evaluate"),
        code=run_code("benchmarks.evaluation", "benchmarks.scoring"),
    log:
        f"{RESULTS}/logs/evaluate/{{run}}.log",
    threads: STUDY.threads
    resources:
        mem_mb=8000,
        runtime=240,
        gpu=GPU,
    priority: 1
    shell:
        'python -m benchmarks.cli evaluate "$MARCOS_BENCH_STUDY" {wildcards.run} 2>&1 | tee {log}'
