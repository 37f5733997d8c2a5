"""The metadata card of every data set: its source, its licence, and the checksums that identify it."""

from __future__ import annotations

from benchmarks.data import embedded
from benchmarks.studies.specs import Strict


class File(Strict):
    """A file as published. ``sha256`` is None if nobody has published one; the file is then used as it is."""

    path: str
    sha256: str | None


class Hub(Strict):
    """A data set on the Hugging Face hub. It is loaded from there only if its ``revision`` is pinned."""

    name: str
    config: str | None = None
    revision: str | None = None
    splits: dict[str, tuple[str, ...]]  # for each of our splits, the hub's splits that it consists of


class Card(Strict):
    """The metadata card of a data set.

    ``counts``: rows per split as published; if they are not :meth:`counted`, they are assumed. ``records``: SHA-256 of
    each split's rows as read, from whatever source (:func:`benchmarks.data.records.digest`); None if the rows were not
    at hand to compute it.
    """

    name: str
    title: str  # as a table prints it
    source: str
    revision: str
    licence: str
    citation: str
    version: str = "1"
    forms: tuple[str, ...]
    counts: dict[str, int]
    records: dict[str, str | None]
    files: dict[str, tuple[File, ...]] = {}
    hub: Hub | None = None
    notes: str = ""
    ragged: bool = False  # some published training answers are not numbers (e.g. 2/5): their rows are left out
    scorer: str = "number"  # the name of a scorer in benchmarks.scoring

    def counted(self, split: str) -> bool:
        """Return whether the number of a split's rows is certain, because a checksum of the
        rows or of their files is known."""
        return self.records[split] is not None or any(file.sha256 for file in self.files.get(split, ()))

    @property
    def numeric(self) -> bool:
        """Whether answers must be numbers. Training rows with any other answer teach nothing."""
        return self.scorer == "number"


def _file(path: str, sha256: str | None) -> File:
    return File(path=path, sha256=sha256)


COBBE = """@article{cobbe2021gsm8k, title={Training Verifiers to Solve Math Word Problems},
 author={Cobbe, Karl and Kosaraju, Vineet and Bavarian, Mohammad and Chen, Mark and Jun, Heewoo and Kaiser, Lukasz and
 Plappert, Matthias and Tworek, Jerry and Hilton, Jacob and Nakano, Reiichiro and Hesse, Christopher and Schulman,
 John}, journal={arXiv preprint arXiv:2110.14168}, year={2021}}"""
DENG = """@article{deng2023implicit, title={Implicit Chain of Thought Reasoning via Knowledge Distillation},
 author={Deng, Yuntian and Prasad, Kiran and Fernandez, Roland and Smolensky, Paul and Chaudhary, Vishrav and
 Shieber, Stuart}, journal={arXiv preprint arXiv:2311.01460}, year={2023}}"""
PATEL = """@inproceedings{patel2021svamp, title={Are {NLP} Models really able to Solve Simple Math Word Problems?},
 author={Patel, Arkil and Bhattamishra, Satwik and Goyal, Navin}, booktitle={NAACL}, year={2021}}"""
ROY = """@inproceedings{roy2015solving, title={Solving General Arithmetic Word Problems},
 author={Roy, Subhro and Roth, Dan}, booktitle={EMNLP}, year={2015}}"""

GSM8K = Card(
    name="gsm8k",
    title="GSM8K",
    source="https://github.com/openai/grade-school-math",
    revision="3101c7d",
    licence="MIT",
    citation=COBBE,
    forms=("equation", "text"),
    counts={"train": 7473, "test": 1319},
    records={
        "train": "5fd625d6cc2705f2227bf7ee56996875dd75c8d4296a4097fa13d03f8b0fd068",
        "test": "70c6a97d42f3d768dad605ff7d244f4ca052a88401ad7d9b7d31e532677403d8",
    },
    files={
        "train": (_file("gsm8k/train.jsonl", "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465"),),
        "test": (_file("gsm8k/test.jsonl", "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"),),
    },
    hub=Hub(
        name="openai/gsm8k",
        config="main",
        revision="740312add88f781978c0658806c59bc2815b9866",
        splits={"train": ("train",), "test": ("test",)},
    ),
    notes="95 solutions of train and 18 of test carry no calculator mark, so they have no equation steps.",
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
        "train": (_file("gsm8k_aug/train.txt", "0a3909a9e7d8d2f7ad6b8c7b5608aa744988d835f9bf874d4cf06ca77df6bf8c"),),
        "validation": (
            _file("gsm8k_aug/valid.txt", "04f9bddfe8ac4846571b1e2b612b289c95770b5012fdb34cc36a597b041afb87"),
        ),
        "test": (_file("gsm8k_aug/test.txt", "e464efa2713fbcf423bdbfb482c543a6a086188c3d97c294b1d19a70c2a515e8"),),
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
                _file(
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
    forms=("text",),
    counts={"train": 385_620},
    records={"train": None},
    files={"train": (_file("gsm8k_aug/train_text.jsonl", None),)},
    hub=Hub(name="zen-E/GSM8k-Aug-NL", splits={"train": ("train",)}),
    notes="The file holds the rows of the hub data set as JSON lines with the fields question, cot and answer. Their "
    "number is taken to be that of GSM8K-Aug: other rows are used as they are, with a warning.",
    ragged=True,
)

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
    files={"test": (_file("svamp/SVAMP.json", "5be77703a6d891ae476d7c082787ad361392aa02453b132516cdd5f4e7934e3e"),)},
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
            _file(
                "svamp/mawps-asdiv-a_svamp.train.csv",
                "c761cdc6390a67a285c6c346a2931f61bc8f47430eceaeb123cc3d0263efa821",
            ),
            _file(
                "svamp/mawps-asdiv-a_svamp.dev.csv", "978425fa0820a147a20d3cb305a571d77b8ba0d1ccec4a96dd1470bf0079c338"
            ),
        )
    },
    hub=Hub(name="cq01/mawps-asdiv-a_svamp", splits={"test": ("train", "validation")}),
    notes="MAWPS and ASDiv-A (3,138 rows) and SVAMP (1,000): all 580 distinct MultiArith questions are among them.",
)

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
            _file("multiarith/MultiArith.json", "dc9db1b6cc68b1ecc2dec830d15aaf8c9a0932aa31d5ffce88ef3628179d36f4"),
        )
    },
    hub=Hub(
        name="ChilleD/MultiArith",
        revision="144d44c3fb87c0b9097ac9593c789e716a282e3e",
        splits={"test": ("train", "test")},
    ),
    notes="580 of the 600 questions are distinct. Rows stand in the order of their questions' hashes.",
)


def _embedded(name: str, title: str, shape: str, records: str) -> Card:
    split = "train" if shape == "train" else "test"
    return Card(
        name=name,
        title=title,
        source=f"benchmarks/data/embedded.py, shape {shape}",
        revision=f"generator {embedded.VERSION}",
        licence="Apache-2.0",
        citation="",
        version=embedded.VERSION,
        forms=("equation", "text"),
        counts={split: embedded.SIZES[shape]},
        records={split: records},
    )


TRAIN_SHA = "4e87b2df55fd9c57e7789176638c9bf150e1c259f9c5e7bb5f34f0a313378fbc"
IN_DOMAIN_SHA = "c5c67bf9876fdf79441d1fb52210eb88cb5aa82ce78f175c820a89926fa9c8c7"
REWORDED_SHA = "ca96862706f515a8d26af2389cf577a7b2f4565bdf92edc321315f9a042cfb81"
MULTISTEP_SHA = "e4f92d6ac1f80e1faf16c8a80194af9407309687ca0493206049a4694d5642ff"

EMBEDDED = {
    "train": _embedded("embedded", "Embedded", "train", TRAIN_SHA),
    "in_domain": _embedded("embedded_in_domain", "In-domain", "in_domain", IN_DOMAIN_SHA),
    "reworded": _embedded("embedded_reworded", "Reworded", "reworded", REWORDED_SHA),
    "multistep": _embedded("embedded_multistep", "Multi-step", "multistep", MULTISTEP_SHA),
}
