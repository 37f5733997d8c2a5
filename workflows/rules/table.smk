rule collect:
    """Gather the records of all runs in one data frame."""
    input:
        data=data_of_study,
        train=records_of("train"),
        evaluate=records_of("evaluate"),
        time=records_of("time"),
    output:
        "results/{study}/collect.json",
        "results/{study}/frame.csv",
    params:
        study=file_of,
        settings=lambda wildcards: digest(study(wildcards.study).model_dump_json()),
        code=source_digest(*RECORDS, "benchmarks.statistics"),
    log:
        "results/{study}/logs/collect.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        'python -m benchmarks.cli collect {params.study:q} 2>&1 | tee {log}'


rule track:
    """Import the records into MLflow. One writer, so parallel jobs never meet in its database."""
    input:
        "results/{study}/collect.json",
    output:
        update("results/{study}/track.json"),  # left where it is: a try counts on from the one before
    params:
        study=file_of,
        code=source_digest(*RECORDS, "benchmarks.tracking", "benchmarks.mlflow_store", "benchmarks.provenance"),
        server=os.environ.get("MLFLOW_TRACKING_URI", ""),
        tries=tries,
    log:
        "results/{study}/logs/track.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    shell:
        'python -m benchmarks.cli track {params.study:q} 2>&1 | tee {log}'


rule table:
    """Render a table in four formats. The Markdown that the command prints is among them, so only notes are kept."""
    input:
        "results/{study}/collect.json",
        "results/{study}/frame.csv",
        ancient("results/{study}/track.json"),  # only for order: tables that are there are tracked with what is late
        beside=beside,
    output:
        multiext("results/{study}/table_{table}", ".md", ".tex", ".csv", ".json"),
    params:
        study=file_of,
        code=source_digest(*RENDERING),
    log:
        "results/{study}/logs/table_{table}.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        'python -m benchmarks.cli table {params.study:q} --table {wildcards.table} 2>&1 >/dev/null | tee {log}'


rule latest_table:
    """A table of the study at hand or of its home; the studies' own tables never overwrite each other."""
    input:
        lambda wildcards: f"results/{home(wildcards.table)}/table_{wildcards.table}.md",
    output:
        "results/table_{table}.md",
    params:
        study=lambda wildcards: home(wildcards.table),
    log:
        "results/logs/latest_table_{table}.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=100,
        runtime=1,
    shell:
        "cp {input} {output} 2>&1 | tee {log}"


rule first_table:
    """What `make table` prints of a study that it is told: the table that the study names first."""
    input:
        lambda wildcards: f"results/table_{STUDY.tables[0]}.md",
    output:
        "results/table.md",
    log:
        "results/logs/first_table.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=100,
        runtime=1,
    shell:
        "cp {input} {output} 2>&1 | tee {log}"
