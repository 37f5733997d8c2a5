"""GSM8K, and GSM8K-Aug: its questions and many alike, with equations or with sentences as steps. The validation split
of GSM8K-Aug stands in GSM8K's training split."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.data.cards import Card, File, Hub
from benchmarks.data.records import DataError, Raw, normalise, number_text
from benchmarks.data.sources import DataSet, Fields, Generated, icot_lines, json_lines

COBBE = """@article{cobbe2021gsm8k, title={Training Verifiers to Solve Math Word Problems},
 author={Cobbe, Karl and Kosaraju, Vineet and Bavarian, Mohammad and Chen, Mark and Jun, Heewoo and Kaiser, Lukasz and
 Plappert, Matthias and Tworek, Jerry and Hilton, Jacob and Nakano, Reiichiro and Hesse, Christopher and Schulman,
 John}, journal={arXiv preprint arXiv:2110.14168}, year={2021}}"""
DENG = """@article{deng2023implicit, title={Implicit Chain of Thought Reasoning via Knowledge Distillation},
 author={Deng, Yuntian and Prasad, Kiran and Fernandez, Roland and Smolensky, Paul and Chaudhary, Vishrav and
 Shieber, Stuart}, journal={arXiv preprint arXiv:2311.01460}, year={2023}}"""
# Of iCoT-SI's authors. GitHub serves the training file, which is in Git LFS, from another host
DENG_FILES = "da03/Internalize_CoT_Step_by_Step/e06a32ee5e4cd117171daeb4755d2a97ece62761/data/gsm8k"

GSM8K = Card(
    name="gsm8k",
    title="GSM8K",
    source="https://github.com/openai/grade-school-math",
    revision="3101c7d",
    licence="MIT",
    citation=COBBE,
    version="2",
    forms=("equation", "text"),
    counts={"train": 7473, "test": 1319},
    records={
        "train": "5fd625d6cc2705f2227bf7ee56996875dd75c8d4296a4097fa13d03f8b0fd068",
        "test": "70c6a97d42f3d768dad605ff7d244f4ca052a88401ad7d9b7d31e532677403d8",
    },
    files={
        "train": (File.of("gsm8k/train.jsonl", "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465"),),
        "test": (File.of("gsm8k/test.jsonl", "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"),),
    },
    hub=Hub(
        name="openai/gsm8k",
        config="main",
        revision="740312add88f781978c0658806c59bc2815b9866",
        splits={"train": ("train",), "test": ("test",)},
    ),
    notes="95 solutions of train and 18 of test carry no calculator mark, so they have no equation steps. Version 2: "
    "as text, abbreviations (Mr., lbs., a.m.) end no step any more, which changes the steps of 114 rows of train and "
    "19 of test. Questions, answers and equations are those of version 1.",
)

GSM8K_AUG = Card(
    name="gsm8k_aug",
    title="GSM8K-Aug",
    source="https://github.com/da03/Internalize_CoT_Step_by_Step",
    revision="c2e3891",
    licence="MIT",
    citation=DENG,
    forms=("equation",),
    counts={"train": 385_620, "validation": 500, "test": 1319},
    records={
        "train": None,
        "validation": "6723b7508426672575c883930b6c572e55d9ab8ee0d7d74836870802e0e8b65d",
        "test": "b11ccc7dfc9bb6e96e49efb8f7f968942f1bb3d0bf3a5095f75edbdc5e91af34",
    },
    files={
        "train": (
            File.of(
                "gsm8k_aug/train.txt",
                "0a3909a9e7d8d2f7ad6b8c7b5608aa744988d835f9bf874d4cf06ca77df6bf8c",
                f"https://media.githubusercontent.com/media/{DENG_FILES}/train.txt",
            ),
        ),
        "validation": (
            File.of(
                "gsm8k_aug/valid.txt",
                "04f9bddfe8ac4846571b1e2b612b289c95770b5012fdb34cc36a597b041afb87",
                f"https://raw.githubusercontent.com/{DENG_FILES}/valid.txt",
            ),
        ),
        "test": (
            File.of(
                "gsm8k_aug/test.txt",
                "e464efa2713fbcf423bdbfb482c543a6a086188c3d97c294b1d19a70c2a515e8",
                f"https://raw.githubusercontent.com/{DENG_FILES}/test.txt",
            ),
        ),
    },
    hub=Hub(
        name="whynlp/gsm8k-aug",
        splits={"train": ("train",), "validation": ("validation",), "test": ("test",)},
    ),
    notes="The test split is GSM8K's. The validation split lies inside GSM8K's train split.",
    ragged=True,
)

GSM8K_AUG_FIRST3000 = GSM8K_AUG.model_copy(
    update={
        "name": "gsm8k_aug_first3000",
        "title": "GSM8K-Aug (first 3,000)",
        "counts": {"train": 3000},
        "records": {"train": "bcc712d35f95d1508b7b65f61f11a9b1d9f79932c30e36d70514e3c523555ff8"},
        "files": {
            "train": (
                File.of(
                    "gsm8k_aug/train_first3000.txt", "61b549ae8a564b377f570a01a20c15c72a594604cd6ce51ce54bbc071430c27f"
                ),
            )
        },
        "hub": None,
        "notes": "The first 3,000 lines of GSM8K-Aug's train split.",
    }
)

GSM8K_AUG_TEXT = Card(
    name="gsm8k_aug_text",
    title="GSM8K-Aug (text)",
    source="https://huggingface.co/datasets/zen-E/GSM8k-Aug-NL",
    revision="not pinned",
    licence="not stated; derived from GSM8K-Aug (MIT)",
    citation=DENG,
    version="2",
    forms=("text",),
    counts={"train": 385_620},
    records={"train": None},
    files={"train": (File.of("gsm8k_aug/train_text.jsonl", None),)},
    hub=Hub(name="zen-E/GSM8k-Aug-NL", splits={"train": ("train",)}),
    notes="The file holds the rows of the hub data set as JSON lines with the fields question, cot and answer. Their "
    "number is taken to be that of GSM8K-Aug: other rows are used as they are, with a warning. Version 2: "
    "abbreviations (Mr., lbs., a.m.) end no step any more.",
    ragged=True,
)

GSM8K_HELD_OUT = Card(
    name="gsm8k_held_out",
    title="GSM8K (held out)",
    source="https://github.com/openai/grade-school-math, by the questions of GSM8K-Aug's validation split",
    revision="3101c7d",
    licence="MIT",
    citation=COBBE,
    forms=("equation", "text"),
    counts={"test": 500},
    records={"test": "6431ac7c4c647d9fed916f6109220595da92836959ab598f87ce7b86c1e2c60f"},
    notes="Read from GSM8K's training split and from gsm8k_aug/valid.txt, in the folder that MARCOS_BENCH_DATA names. "
    "A study that validates on them (`validation_set`) leaves them out of its training data.",
)


def gsm8k(row: Fields) -> Raw:
    solution, mark, answer = row["answer"].rpartition("####")
    if not mark:
        raise DataError("the answer holds no `####`")
    return Raw("", row["question"].strip(), solution.strip(), number_text(answer))


def gsm8k_aug(row: Fields) -> Raw:
    solution = " ".join(row["steps"]) if "steps" in row else row["cot"].strip()
    return Raw("", row["question"].strip(), solution, number_text(row["answer"]))


def aug_line(row: Fields) -> str:
    """Return a row of the hub's copy as a line of a GSM8K-Aug file."""
    return f"{row['question'].strip()}||{gsm8k_aug(row).solution} #### {str(row['answer']).strip()}"


PUBLISHED = DataSet(GSM8K, json_lines, gsm8k)
AUGMENTED = DataSet(GSM8K_AUG, icot_lines, gsm8k_aug, aug_line)


def held_out(split: str) -> Iterator[Raw]:
    """Yield the rows of GSM8K's training split whose questions validate GSM8K-Aug."""
    questions = {normalise(row.question) for row in AUGMENTED.rows("validation")}
    return (row for row in PUBLISHED.rows("train") if normalise(row.question) in questions)


DATASETS = (
    PUBLISHED,
    AUGMENTED,
    DataSet(GSM8K_AUG_FIRST3000, icot_lines, gsm8k_aug),
    DataSet(GSM8K_AUG_TEXT, json_lines, gsm8k_aug),
    Generated(GSM8K_HELD_OUT, held_out, derived=((PUBLISHED, "train"), (AUGMENTED, "validation"))),
)
