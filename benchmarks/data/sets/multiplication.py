"""Multiplication of two numbers with equally many digits: the rows of the papers on iCoT, and a seeded generator.

Digits stand least significant first, so that carries run in the order of writing. A step is the partial product of one
digit of the second number, shifted, and behind it in brackets the running sum; the last running sum is the answer. Of
``5632*7434`` (2,365 times 4,347) the steps are ``55561``, ``+006490(551111)``, ``+0059070(5560280)`` and ``+00006490``,
and the answer is ``55608201``. Published rows have blanks between all digits, which are left out here: in the
tokenizers that studies train, and in Qwen2.5's, a digit is a token anyway, and a blank would be another.

A product's hash decides whether it is for training, validation or test (:func:`corpus_of`), whatever the order of its
factors. Every corpus has a question once. No first digit is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice

from benchmarks.data.cards import Card, File
from benchmarks.data.records import Raw
from benchmarks.data.sources import DataSet, Draw, Fields, Generated, icot_lines, part_of

VERSION = "1"
DIGITS = (2, 3, 4, 5)  # numbers of digits of which there is a data set
SIZES = {"train": 100_000, "validation": 300, "test": 500}
PAIRS = {"train": 6_000}  # of two digits there are 8,100 questions only


def size(digits: int, corpus: str) -> int:
    """Return the number of rows of a corpus."""
    return PAIRS.get(corpus, SIZES[corpus]) if digits == DIGITS[0] else SIZES[corpus]


def written(number: int, digits: int) -> str:
    """Return a number in so many digits, least significant first."""
    return str(number).zfill(digits)[::-1]


def multiply(first: int, second: int) -> Raw:
    """Return the row of a product of two numbers with equally many digits."""
    digits, steps, total = len(str(first)), list[str](), 0
    for place, digit in enumerate(written(second, digits)):
        partial = first * int(digit) * 10**place
        total += partial
        step = written(partial, digits + 1 + place)
        if place:
            step = f"+{step}"
        if 0 < place < digits - 1:
            step += f"({written(total, digits + 1 + place)})"
        steps.append(step)
    question = f"{written(first, digits)}*{written(second, digits)}"
    return Raw("", question, "\n".join(steps), written(total, 2 * digits))


def corpus_of(first: int, second: int) -> str:
    """Return the corpus that a product belongs to."""
    return part_of(f"marcos-bench multiplication {sorted((first, second))}")


def products(digits: int, corpus: str) -> Iterator[tuple[int, int]]:
    """Yield distinct questions of a corpus."""
    draw, seen = Draw(f"marcos-bench multiplication {VERSION} {digits} {corpus}"), set[tuple[int, int]]()
    low, high = 10 ** (digits - 1), 10**digits - 1
    while True:
        factors = draw.between(low, high), draw.between(low, high)
        if factors not in seen and corpus_of(*factors) == corpus:
            seen.add(factors)
            yield factors


@cache
def generate(digits: int, corpus: str) -> tuple[Raw, ...]:
    """Return a corpus."""
    return tuple(multiply(*factors) for factors in islice(products(digits, corpus), size(digits, corpus)))


DENG = """@misc{deng2024explicit,
 title={From Explicit {CoT} to Implicit {CoT}: Learning to Internalize {CoT} Step by Step},
 author={Deng, Yuntian and Choi, Yejin and Shieber, Stuart}, year={2024}, eprint={2405.14838}, archivePrefix={arXiv}}"""
COMMIT = "c2e3891d8d577beeaff03fa3b076d1e4db96cfe8"
PLACE = f"da03/Internalize_CoT_Step_by_Step/{COMMIT}/data"
RAW = f"https://raw.githubusercontent.com/{PLACE}"
LFS = f"https://media.githubusercontent.com/media/{PLACE}"  # of files in Git LFS
NOTES = (
    "Digits stand least significant first, without blanks. An answer is right if all of its digits are, so it is "
    "scored as text."
)
CHECKSUMS = {  # of the published files
    4: {
        "train": "9857d1bba98bafb54da6977d98255656c8bddaa96dae69a4fe67a14eafdeb9fe",
        "validation": "27c2ca51e9368367b43b4a99eb6148f8dc904531f7ead074d3a97056f788058c",
        "test": "3d902a2a35b3ad626a37fab5ff0964f874ebf79c39dd07eea846c2ee0c733a51",
    },
    5: {
        "train": "e41642536746292598fb5fa53bf8ebb01358a161a6ba78892d0579ccc1489253",
        "validation": "d3b95bdf0f74863a88bc777fee3fe23854e6ad458b8e7b847b65dac25e59182c",
        "test": "661ab1db2ea0d33fc3e6e398c75920a7a8471f64ebad481bcaf5c8a8ff2b9c4b",
    },
}
PUBLISHED: dict[int, dict[str, str | None]] = {
    4: {
        "train": None,
        "validation": "ef6d3aa97d04106ee9b739d7be60928eabdc55c042adb167401615c7d9a03eda",
        "test": "48369556905f39f1792be33006ce847d9abb3a41a9d4c8fda9fc5ea265398d2f",
    },
    5: {
        "train": None,
        "validation": "1a30bb94125c38f5b73fe30ce6576d76b5727bf7f1d972c66b4601086ca66898",
        "test": "04392c3164e46dad2931a7368e4826393dbe36b070db1ee6ffb3a6a814f5cce1",
    },
}
GENERATED = {
    2: {
        "train": "59321e2535b66930d9932fd6c80353fabd130e5bdf257c1391432a23d76ea61f",
        "validation": "52c125ca733ba7bcc1caa0d2f248adc34bdcb3b934b6bcc4ae3e51e6a301a1ee",
        "test": "d0d8237af7d049bd642db400d4611dd7ae5fd0b1d2cb7d7652f157c76509acbe",
    },
    3: {
        "train": "bcf321335db81f9b197e0132b698fd9242cde9ebd02daf2ec3e4c12380bb2728",
        "validation": "02ace0de29447c4495e21f191434be85d7e0918461935d6096886a4a02d449d7",
        "test": "856953de807a8d0cd5f0c210d2cf80ea323f87c0b17acda2e3650ee33e9cef0c",
    },
    4: {
        "train": "08a83221a04b7fd2e475a21bda275dc4640c98b125d41b7400bd3473e7e92027",
        "validation": "029ab3b19ffd9e27771c1420f87f6c4bb6762ac26f75fe0c07b1f0c8b5188908",
        "test": "8ba4a486dc8b8d9768fca8ba342d3bf415782c6684ef743e36eb06fb84edf672",
    },
    5: {
        "train": "8f3ba159aa409d8f3bc7711150e02accb15e19030e9fe33cc80a70a073042e46",
        "validation": "9e807df836b3696ec8e7f168232a9089af445f6b861a735512a6acc8898f5c63",
        "test": "0d10748196711b91b044ca21afa978d670181d524b5f41e7950e4f8038408a52",
    },
}


def convert(row: Fields) -> Raw:
    steps = row["cot"].replace(" ", "").replace("+", "\n+")
    return Raw("", row["question"].replace(" ", ""), steps, row["answer"].replace(" ", "").strip())


def _published(digits: int) -> DataSet:
    folder = f"{digits}_by_{digits}"
    names = {"train": "train", "validation": "valid", "test": "test_bigbench"}
    card = Card(
        name=f"multiplication_{digits}x{digits}_published",
        title=f"{digits} x {digits} digits (iCoT)",
        source="https://github.com/da03/Internalize_CoT_Step_by_Step",
        revision=COMMIT[:7],
        licence="MIT",
        citation=DENG,
        forms=("lines",),
        counts={"train": 808_000, "validation": 1_000, "test": 1_000},
        records=PUBLISHED[digits],
        files={
            split: (
                File.of(
                    f"multiplication/{folder}_{name}.txt",
                    CHECKSUMS[digits][split],
                    f"{LFS if split == 'train' else RAW}/{folder}_mult/{name}.txt",
                ),
            )
            for split, name in names.items()
        },
        scorer="text",
        notes=f"{NOTES} Training rows are counted by the size of their file, whose checksum Git LFS states.",
    )
    return DataSet(card, icot_lines, convert)


def _generated(digits: int, name: str, title: str, corpora: dict[str, str]) -> Generated:
    """``corpora``: of each split of the data set."""
    card = Card(
        name=name,
        title=title,
        source="benchmarks/data/sets/multiplication.py",
        revision=f"generator {VERSION}",
        licence="Apache-2.0",
        citation=DENG,
        version=VERSION,
        forms=("lines",),
        counts={split: size(digits, corpus) for split, corpus in corpora.items()},
        records={split: GENERATED[digits][corpus] for split, corpus in corpora.items()},
        scorer="text",
        notes=NOTES,
    )
    return Generated(card, lambda split: generate(digits, corpora[split]))


def _datasets(digits: int) -> tuple[Generated, Generated]:
    name, title = f"multiplication_{digits}x{digits}", f"{digits} x {digits} digits"
    return (
        _generated(digits, name, title, {"train": "train", "test": "test"}),
        _generated(digits, f"{name}_validation", f"{title}, validation", {"test": "validation"}),
    )


DATASETS = (*(dataset for digits in DIGITS for dataset in _datasets(digits)), *map(_published, CHECKSUMS))
