"""MultiArith: word problems of two operations, for tests alone."""

from __future__ import annotations

from benchmarks.data.cards import Card, File, Hub
from benchmarks.data.records import Raw, number_text, question_hash
from benchmarks.data.sources import DataSet, Fields, json_array

ROY = """@inproceedings{roy2015solving, title={Solving General Arithmetic Word Problems},
 author={Roy, Subhro and Roth, Dan}, booktitle={EMNLP}, year={2015}}"""

MULTIARITH = Card(
    name="multiarith",
    title="MultiArith",
    source="https://github.com/AGI-Edgerunners/LLM-Adapters, dataset/MultiArith",
    revision="8166572",
    licence="Apache-2.0 (the repository)",
    citation=ROY,
    forms=("equation", "text"),
    counts={"test": 600},
    records={"test": "f1cfb0317302e666092edc7401328156a20df78571f867d8c6d770ecef2383a9"},
    files={
        "test": (
            File.of("multiarith/MultiArith.json", "dc9db1b6cc68b1ecc2dec830d15aaf8c9a0932aa31d5ffce88ef3628179d36f4"),
        )
    },
    hub=Hub(
        name="ChilleD/MultiArith",
        revision="144d44c3fb87c0b9097ac9593c789e716a282e3e",
        splits={"test": ("train", "test")},
    ),
    notes="580 of the 600 questions are distinct. Rows stand in the order of their questions' hashes.",
)


def multiarith(row: Fields) -> Raw:
    """Convert a row of MultiArith. The hub has other field names and another order, so rows
    are sorted by the hashes of their questions."""
    question = (row["sQuestion"] if "sQuestion" in row else row["question"]).strip()
    answer = number_text(str(row["lSolutions"][0] if "lSolutions" in row else row["final_ans"]))
    return Raw(f"{question_hash(question)} {question} {answer}", question, "", answer)


DATASETS = (DataSet(MULTIARITH, json_array, multiarith),)
