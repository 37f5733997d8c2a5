rule collect:
    """Gather the records of all runs in one data frame."""
    input:
        data=data_of_study,
        train=records_of("train"),
        evaluate=records_of("evaluate"),
        time=records_of("time"),
        outputs=published_files,
        again=again("results/{study}/collect.json", lacks(records_of("train"), records_of("evaluate"), records_of("time"))),
        version=again("results/{study}/collect.json", of_another_version),
    output:
        "results/{study}/collect.json",
        "results/{study}/frame.csv",
    params:
        study=file_of,
        settings=study_settings,
        code=task_code("collect"),
    log:
        "results/{study}/logs/collect.log",
    localrule: True
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        'python -m benchmarks.cli collect {params.study:q} 2>&1 | tee {log}'


rule track:
    """Complete in MLflow what trainings wrote there as they ran, each beside the others, and import what is missing."""
    input:
        "results/{study}/collect.json",
    output:
        update("results/{study}/track.json"),  # not removed before the rule runs: each attempt counts on
    params:
        study=file_of,
        code=task_code("track"),
        server=digest(os.environ.get("MLFLOW_TRACKING_URI", "")),  # the address may hold a password
        tries=tries,
    log:
        "results/{study}/logs/track.log",
    localrule: True
    resources:
        mem_mb=2000,
        runtime=30,
    shell:
        'python -m benchmarks.cli track {params.study:q} 2>&1 | tee {log}'


rule table:
    """Render a table in four formats. The command also prints the Markdown, so the log keeps only its notes."""
    input:
        collected,
        "results/{study}/track.json",  # so that a study whose table is there is in MLflow, too
        again=again("results/{study}/table_{table}.md", lacks(collected)),
    output:
        multiext("results/{study}/table_{table}", ".md", ".tex", ".csv", ".json"),
    params:
        study=file_of,
        code=task_code("table"),
        papers=papers_records,
    log:
        "results/{study}/logs/table_{table}.log",
    localrule: True
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        'python -m benchmarks.cli table {params.study:q} --table {wildcards.table} 2>&1 >/dev/null | tee {log}'


rule latest_table:
    """Copy a table of the study at hand, or of its home study. Studies never overwrite each other's tables."""
    input:
        table_at_home,
        again=again("results/table_{table}.md", no_copy_of(table_at_home)),
    output:
        "results/table_{table}.md",
    log:
        "results/logs/latest_table_{table}.log",
    localrule: True
    resources:
        mem_mb=100,
        runtime=1,
    shell:
        "cp {input} {output} 2>&1 | tee {log}"


use rule latest_table as first_table with:
    # Of the table that the study names first, which `make table` prints
    input:
        table_named_first,
        again=again("results/table.md", no_copy_of(table_named_first)),
    output:
        "results/table.md",
    log:
        "results/logs/first_table.log",
    localrule: True # Snakemake does not inherit it
