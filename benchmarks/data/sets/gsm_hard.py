"""GSM-Hard: the questions of GSM8K's test split with large numbers in place of theirs, for tests alone."""

from __future__ import annotations

from benchmarks.data.cards import Card, File, Hub
from benchmarks.data.records import Raw, number_text
from benchmarks.data.sources import DataSet, Fields, json_lines

GAO = """@inproceedings{gao2023pal, title={{PAL}: Program-aided Language Models}, author={Gao, Luyu and Madaan, Aman and
 Zhou, Shuyan and Alon, Uri and Liu, Pengfei and Yang, Yiming and Callan, Jamie and Neubig, Graham}, booktitle={ICML},
 year={2023}}"""

GSM_HARD = Card(
    name="gsm_hard",
    title="GSM-Hard",
    source="https://huggingface.co/datasets/reasoning-machines/gsm-hard",
    revision="not pinned",
    licence="MIT",
    citation=GAO,
    forms=("equation", "text"),
    counts={"test": 1319},
    records={"test": "8d256867bd6996df994b0f9cb62a273c9d9fa913f2ef38afc3721bb375581cea"},
    files={"test": (File.of("gsm_hard/gsmhardv2.jsonl", None),)},
    hub=Hub(name="reasoning-machines/gsm-hard", splits={"test": ("train",)}),
    notes="The file holds JSON lines with the fields input, code and target. Its own checksum is not known; its rows "
    "are checked. Answers are those of programs: 146 are negative, and 302 are no whole numbers.",
)


def gsm_hard(row: Fields) -> Raw:
    return Raw("", row["input"].strip(), "", number_text(str(row["target"])))


DATASETS = (DataSet(GSM_HARD, json_lines, gsm_hard),)
