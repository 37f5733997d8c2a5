rule train:
    """Train one run; it goes on from its last checkpoint when it was interrupted."""
    input:
        data=ancient(block_data),  # only for order: `version` says when other data ask for new training
        start=warm_start,
    output:
        f"{RESULTS}/runs/{{run}}/train.json",
    params:
        digest=run_digest("train"),
        version=training_data,
        code=run_code(*TRAINING),
    log:
        f"{RESULTS}/logs/train/{{run}}.log",
    threads: STUDY.threads
    resources:
        mem_mb=8000,
        runtime=24 * 60,
        gpu=GPU,
    priority: later_rows_first
    retries: 1
    shell:
        'python -m benchmarks.cli train "$MARCOS_BENCH_STUDY" {wildcards.run} 2>&1 | tee {log}'
