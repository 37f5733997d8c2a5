rule time:
    """Time training steps and answers of one trained run, alone on the machine: hence all cores, and last."""
    input:
        data=block_data,
        model=f"{RESULTS}/runs/{{run}}/train.json",
    output:
        f"{RESULTS}/runs/{{run}}/time.json",
    params:
        digest=run_digest("time"),
        code=run_code("benchmarks.timing"),
    log:
        f"{RESULTS}/logs/time/{{run}}.log",
    threads: workflow.cores
    resources:
        mem_mb=8000,
        runtime=120,
        gpu=GPU,
    shell:
        'python -m benchmarks.cli time "$MARCOS_BENCH_STUDY" {wildcards.run} 2>&1 | tee {log}'
