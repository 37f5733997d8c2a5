"""The tables of a study, each rendered from its records alone."""

from enum import StrEnum


class Table(StrEnum):
    """A table by its name, written to ``table_NAME.{md,tex,csv,json}``."""

    main = "main"  # accuracy and costs
    decoding = "decoding"  # accuracy by decoding
    controls = "controls"  # do the latents carry anything?
    ablation = "ablation"  # MarCos with other settings, against its own
    nar = "nar"  # speaking without autoregression
    scale = "3b"  # baselines on a larger backbone
    pretrained = "pretrained"  # methods that start from published checkpoints
    synthetic = "synthetic"  # tasks that leave something to chance
    longrange = "longrange"  # copying from an earlier step
    claims = "claims"  # what the paper says of its numbers


COUNTERPARTS = {  # the paper's table (benchmarks/paper/numbers.yaml) that has the same rows
    Table.main: "main_0.5b",
    Table.scale: "main_3b",
    Table.pretrained: "pretrained",
    Table.ablation: "ablation",
    Table.nar: "one_shot",
    Table.synthetic: "synthetic",
    Table.longrange: "long_range",
}
