rule data:
    """Prepare the data of one block: read, check, split, train the tokenizer, tokenise."""
    output:
        f"{RESULTS}/data/{{block}}/done.json",
    params:
        settings=block_settings,
        cards=block_cards,
        code=source_digest("benchmarks.data"),
    log:
        f"{RESULTS}/logs/data/{{block}}.log",
    threads: 1
    resources:
        mem_mb=8000,
        runtime=120,
    priority: 1000
    shell:
        'python -m benchmarks.cli data "$MARCOS_BENCH_STUDY" --block {wildcards.block} 2>&1 | tee {log}'
