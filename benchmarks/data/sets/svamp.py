"""SVAMP: the official 1,000 questions, and the 4,138 that the paper tests on."""

from __future__ import annotations

import re

from benchmarks.data.cards import Card, File, Hub
from benchmarks.data.records import Raw, number_text
from benchmarks.data.sources import DataSet, Fields, csv_rows, json_array

PATEL = """@inproceedings{patel2021svamp, title={Are {NLP} Models really able to Solve Simple Math Word Problems?},
 author={Patel, Arkil and Bhattamishra, Satwik and Goyal, Navin}, booktitle={NAACL}, year={2021}}"""

COMMIT = "689d7ccac74b9983a2ac7cc3b264f441b99e7c53"
MAWPS = f"https://raw.githubusercontent.com/arkilpatel/SVAMP/{COMMIT}/data/mawps-asdiv-a_svamp"

SVAMP = Card(
    name="svamp",
    title="SVAMP",
    source="https://github.com/arkilpatel/SVAMP",
    revision="689d7cc",
    licence="MIT",
    citation=PATEL,
    forms=("equation", "text"),
    counts={"test": 1000},
    records={"test": "5afffcb7a42e3206c6c36c93606780f97e77a0894a8b49197db029f4bbb611fc"},
    files={"test": (File.of("svamp/SVAMP.json", "5be77703a6d891ae476d7c082787ad361392aa02453b132516cdd5f4e7934e3e"),)},
    hub=Hub(
        name="ChilleD/SVAMP",
        revision="5e0bf1e5e7c0e9c4bc39180d224f41f3f801b7ef",
        splits={"test": ("train", "test")},
    ),
    notes="A body without a final mark is joined to the question by a comma behind an if-clause, else by a period.",
)

SVAMP_4138 = Card(
    name="svamp_paper4138",
    title="SVAMP (4,138)",
    source="https://github.com/arkilpatel/SVAMP, data/mawps-asdiv-a_svamp: train and dev",
    revision="689d7cc",
    licence="MIT",
    citation=PATEL,
    forms=("equation", "text"),
    counts={"test": 4138},
    records={"test": "b4125687f61e5371f3639cc1e3685068afc0c3760856d1bc24f73a54146d1957"},
    files={
        "test": (
            File.of(
                "svamp/mawps-asdiv-a_svamp.train.csv",
                "c761cdc6390a67a285c6c346a2931f61bc8f47430eceaeb123cc3d0263efa821",
                f"{MAWPS}/train.csv",
            ),
            File.of(
                "svamp/mawps-asdiv-a_svamp.dev.csv",
                "978425fa0820a147a20d3cb305a571d77b8ba0d1ccec4a96dd1470bf0079c338",
                f"{MAWPS}/dev.csv",
            ),
        )
    },
    hub=Hub(name="cq01/mawps-asdiv-a_svamp", splits={"test": ("train", "validation")}),
    notes="MAWPS and ASDiv-A (3,138 rows) and SVAMP (1,000): all 580 distinct MultiArith questions are among them.",
)


def svamp(row: Fields) -> Raw:
    body, question = row["Body"].strip(), row["Question"].strip()
    if body[-1] not in ".?!,":
        condition = re.split(r"[.?!]\s+", body)[-1].lower().startswith("if ")
        body += "," if condition else "."
        question = question[0].lower() + question[1:] if condition else question
    return Raw(row["ID"].removeprefix("chal-").zfill(4), f"{body} {question}", "", number_text(str(row["Answer"])))


def svamp_masked(row: Fields) -> Raw:
    values = row["Numbers"].split()
    question = re.sub(r"\bnumber(\d+)", lambda match: number_text(values[int(match[1])]), row["Question"])
    return Raw("", question.strip(), "", number_text(str(row["Answer"])))


DATASETS = (DataSet(SVAMP, json_array, svamp), DataSet(SVAMP_4138, csv_rows, svamp_masked))
