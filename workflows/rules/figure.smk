rule figure:
    """Draw a figure from records: a picture for the screen, one for print, their numbers, and a caption."""
    input:
        collected,
        needs=files_of_figure,
        again=again("results/{study}/figures/{figure}.png", lacks(collected, files_of_figure)),
    output:
        multiext("results/{study}/figures/{figure}", ".png", ".pdf", ".csv", ".md"),
    params:
        study=file_of,
        code=task_code("figure"),
    log:
        "results/{study}/logs/figure_{figure}.log",
    localrule: True
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        "python -m benchmarks.cli figure {params.study:q} --figure {wildcards.figure} 2>&1 | tee {log}"


rule report:
    """Write all tables and figures into one page that opens offline."""
    input:
        everything,
    output:
        "results/report.html",
    params:
        code=task_code("report"),
    log:
        "results/logs/report.log",
    localrule: True
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        "python -m benchmarks.cli report results 2>&1 | tee {log}"
