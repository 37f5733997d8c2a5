# A study, end to end:
#     snakemake --cores all -- results/table_main.md
#     snakemake --cores all --config study=gsm8k_small -- results/table_main.md
#     snakemake --cores all --configfile workflows/config/gsm8k_small.yaml -- results/table_main.md
# The first runs the default study (quick), the second one that is shipped, the third any study file.
include: "workflows/Snakefile"


workflow.default_target = "all"  # Snakemake drops the one that an included file sets
