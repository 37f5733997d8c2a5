# A study, end to end:
#     snakemake --cores all -- results/table_main.md
#     snakemake --cores all --config study=gsm8k_small -- results/table_main.md
#     snakemake --cores all --configfile workflows/config/gsm8k_small.yaml -- results/table_main.md
# The first runs the default study (quick), the second one that is shipped, the third any study file.
from snakemake.utils import min_version

min_version("9.27")  # as in pyproject.toml


container: "docker://python:3.11"  # for `snakemake --lint`. It lacks the packages, so do not use `--sdm apptainer`


include: "workflows/rules/common.smk"
include: "workflows/rules/resources.smk"
include: "workflows/rules/data.smk"
include: "workflows/rules/train.smk"
include: "workflows/rules/evaluate.smk"
include: "workflows/rules/time.smk"
include: "workflows/rules/analyse.smk"
include: "workflows/rules/table.smk"
include: "workflows/rules/figure.smk"


rule all:
    default_target: True
    input:
        everything,
        "results/report.html",
