rule data:
    """Prepare the data of one block: read, check, split, train the tokenizer, tokenise."""
    input:
        again=again("results/{study}/data/{block}/done.json", of_other_data),
    output:
        "results/{study}/data/{block}/done.json",
    params:
        study=file_of,
        settings=block_settings,
        sets=block_sets,
        code=task_code("data"),
    log:
        "results/{study}/logs/data/{block}.log",
    resources:
        mem_mb=8000,
        runtime=120,
    priority: DATA
    shell:
        'python -m benchmarks.cli data {params.study:q} --block {wildcards.block} 2>&1 | tee {log}'
