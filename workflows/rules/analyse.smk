rule analyse:
    """Analyse what the latents of a trained run carry; several figures are drawn from the result."""
    input:
        data=data_of_run,
        model="results/{study}/runs/{run}/train.json",
        again=again("results/{study}/runs/{run}/analysis/analysis.json", of_other_settings("analyse")),
    output:
        "results/{study}/runs/{run}/analysis/analysis.json",
    params:
        study=file_of,
        digest=run_digest("analyse"),
        code=run_code("analyse"),
    log:
        "results/{study}/logs/analyse/{run}.log",
    threads: lambda wildcards: run_of(wildcards).threads
    resources:
        mem_mb=memory_alone,
        runtime=120,
        gpu=gpu,
    priority: ANSWERS
    shell:
        "python -m benchmarks.cli analyse {params.study:q} {wildcards.run} 2>&1 | tee {log}"
