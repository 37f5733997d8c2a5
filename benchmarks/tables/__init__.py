"""The tables of a study, each rendered from its records alone."""

from enum import StrEnum

CODE = (  # what tables are rendered with: an edit of any of it renders them anew
    *(f"benchmarks.{part}" for part in ("tables", "summary", "claims", "paper", "markup", "provenance", "paths")),
    *(f"benchmarks.{part}" for part in ("results", "records", "statistics", "scoring", "diversity", "hardware")),
    *(f"benchmarks.{part}" for part in ("study", "specs", "files", "analysis")),
)


class Table(StrEnum):
    """A table by its name, written to ``table_NAME.{md,tex,csv,json}``."""

    main = "main"  # accuracy and costs
    decoding = "decoding"  # accuracy by decoding
    controls = "controls"  # do the latents carry anything?
    ablation = "ablation"  # MarCos with other settings, against its own
    nar = "nar"  # steps said at once
    scale = "3b"  # baselines on a larger backbone
    pretrained = "pretrained"  # from published checkpoints
    synthetic = "synthetic"  # tasks that leave something to chance
    longrange = "longrange"  # copying from an earlier step
    claims = "claims"  # what the paper says of its numbers
