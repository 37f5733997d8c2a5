rule collect:
    """Gather the records of all runs in one data frame."""
    input:
        data=[f"{RESULTS}/data/{block.id}/done.json" for block in STUDY.blocks],
        train=per_run("train.json"),
        evaluate=per_run("evaluate.json"),
        time=per_run("time.json"),
    output:
        f"{RESULTS}/collect.json",
        f"{RESULTS}/frame.csv",
    params:
        study=digest(STUDY.model_dump_json()),
        code=source_digest(*RECORDS, "benchmarks.statistics"),
    log:
        f"{RESULTS}/logs/collect.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        'python -m benchmarks.cli collect "$MARCOS_BENCH_STUDY" 2>&1 | tee {log}'


rule track:
    """Import the records into MLflow. One writer, so parallel jobs never meet in its database."""
    input:
        f"{RESULTS}/collect.json",
    output:
        f"{RESULTS}/track.json",
    params:
        code=source_digest(*RECORDS, "benchmarks.tracking", "benchmarks.mlflow_store", "benchmarks.provenance"),
        server=os.environ.get("MLFLOW_TRACKING_URI", ""),
    log:
        f"{RESULTS}/logs/track.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    shell:
        'python -m benchmarks.cli track "$MARCOS_BENCH_STUDY" 2>&1 | tee {log}'


rule table:
    """Render a table in four formats. The Markdown that the command prints is among them, so only notes are kept."""
    input:
        f"{RESULTS}/collect.json",
        f"{RESULTS}/frame.csv",
        f"{RESULTS}/track.json",
    output:
        multiext(f"{RESULTS}/table_{{table}}", ".md", ".tex", ".csv", ".json"),
    params:
        code=source_digest(*RENDERING),
    log:
        f"{RESULTS}/logs/table_{{table}}.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        'python -m benchmarks.cli table "$MARCOS_BENCH_STUDY" --table {wildcards.table} 2>&1 >/dev/null | tee {log}'


rule latest_table:
    """A table of the study at hand; the studies' own tables never overwrite each other."""
    input:
        f"{RESULTS}/table_{{table}}.md",
    output:
        "results/table_{table}.md",
    params:
        study=STUDY.name,
    log:
        f"{RESULTS}/logs/latest_table_{{table}}.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=100,
        runtime=1,
    shell:
        "cp {input} {output} 2>&1 | tee {log}"
