"""The paper's synthetic tasks as seeded generators, so that a study needs no download (paper, section 4.1, appendix A).

Every number and every sign is a word, words stand between blanks, and each reasoning step is a line. What a task leaves
to chance is drawn uniformly, and nothing in the question gives it away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from benchmarks.data.draw import Draw
from benchmarks.data.records import Raw
from benchmarks.data.synthetic import long_range, parallel24, random_pairing, random_summation
from benchmarks.data.synthetic.problem import Problem

VERSION = "1"
TEST_SHARE = 10  # one question in so many belongs to the tests
SMALL, LARGE = {"train": 50_000, "test": 500}, {"train": 200_000, "test": 1_000}
LONG = {"train": 100_000, "test": 1_000}


@dataclass(frozen=True)
class Corpus:
    """A task with its parameters, and its rows per split. The paper does not give its sizes."""

    name: str
    draw: Callable[[Draw], Problem]
    sizes: dict[str, int]

    def rows(self, split: str) -> Iterator[Raw]:
        """All rows of a split, numbered from 0. Training may ask a question again and draw otherwise; the test asks
        each question once, and none of training."""
        for i, row in enumerate(islice(self._problems(split), self.sizes[split])):
            yield Raw(str(i), row.question, "\n".join(row.steps), row.answer)

    def _problems(self, split: str) -> Iterator[Problem]:
        draw, seen = Draw(f"marcos-bench {self.name} {VERSION} {split}"), set[str]()
        while True:
            found = self.draw(draw)
            tested = _hash(found.family) % TEST_SHARE == 0
            if tested != (split == "test") or (tested and found.question in seen):
                continue
            seen.add(found.question)
            yield found


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _paired(short: str, problem: Callable[..., Problem], pairs: int, sizes: dict[str, int]) -> Corpus:
    return Corpus(f"{short}_n{pairs}_k3", partial(problem, pairs=pairs, steps=3), sizes)


def _copy(steps: int, sizes: dict[str, int]) -> Corpus:
    return Corpus(f"copy_k{steps}", partial(long_range.problem, steps=steps), sizes)


CORPORA = {
    corpus.name: corpus
    for corpus in (
        _paired("rs", random_summation.problem, 2, SMALL),
        _paired("rs", random_summation.problem, 5, LARGE),
        _paired("rp", random_pairing.problem, 2, SMALL),
        _paired("rp", random_pairing.problem, 5, LARGE),
        Corpus("p24_k3", partial(parallel24.problem, steps=3), LARGE),
        *(_copy(steps, SMALL) for steps in (4, 8)),
        *(_copy(steps, LONG) for steps in (16, 32, 64)),
    )
}
