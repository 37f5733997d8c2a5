"""The tables of a study, each rendered from its records alone."""

from benchmarks.studies.specs import Table

COUNTERPARTS = {  # the table of the paper (in benchmarks/paper/numbers.yaml) with the same rows
    Table.main: "main_0.5b",
    Table.scale: "main_3b",
    Table.pretrained: "pretrained",
    Table.ablation: "ablation",
    Table.nar: "one_shot",
    Table.synthetic: "synthetic",
    Table.longrange: "long_range",
}
