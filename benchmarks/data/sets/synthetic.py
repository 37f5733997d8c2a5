"""The paper's synthetic tasks as seeded generators, so that a study needs no download (paper, section 4.1, appendix A).

Every number and every sign is a word, words stand between blanks, and each reasoning step is a line. What a task leaves
to chance is drawn uniformly, and nothing in the question gives it away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations, islice

from benchmarks.data.cards import Card
from benchmarks.data.records import Raw
from benchmarks.data.sources import Draw, Generated
from methods.errors import InputError

VERSION = "1"
TEST_SHARE = 10  # one question in so many belongs to the tests
SMALL, LARGE = {"train": 50_000, "test": 500}, {"train": 200_000, "test": 1_000}
LONG = {"train": 100_000, "test": 1_000}
OPERANDS, LARGEST, GOAL = 4, 13, 24  # of Parallel 24
COPIED = 5  # numbers in a step of long-range copy

Path = tuple[str, ...]  # equations of Parallel 24, one per operation


@dataclass(frozen=True)
class Problem:
    """A question and one solution. Questions of one ``family`` are the same problem put in other ways (the same four
    numbers in another order), and so are all in training or all in the test."""

    question: str
    steps: tuple[str, ...]
    answer: str
    family: str


def words(numbers: Iterable[int]) -> str:
    """Numbers as a line of words."""
    return " ".join(map(str, numbers))


def digits(draw: Draw, count: int) -> list[int]:
    """Independent uniform one-digit integers."""
    return [draw.below(10) for _ in range(count)]


def addition(numbers: list[int]) -> str:
    """The sum of the first two numbers as an equation."""
    a, b = numbers[:2]
    return f"{a} + {b} = {a + b}"


def random_summation(draw: Draw, pairs: int, steps: int) -> Problem:
    """Random Summation (paper, level 1): every step adds one drawn digit to all numbers, and does not show which.

    ``2 pairs`` digits, ``steps - 1`` sequences, then the sum of the first two numbers.
    """
    numbers = digits(draw, 2 * pairs)
    question, lines = words(numbers), []
    for _ in range(steps - 1):
        addend = draw.below(10)
        numbers = [number + addend for number in numbers]
        lines.append(words(numbers))
    return Problem(question, tuple(lines), addition(numbers), family=question)


def random_pairing(draw: Draw, pairs: int, steps: int) -> Problem:
    """Random Pairing (paper, level 2): every step partitions the positions into ordered pairs, and puts the sum of a
    pair at its first position and the difference at its second.

    ``2 pairs`` digits, ``steps - 1`` sequences, then the sum of the first two numbers.
    """
    numbers = digits(draw, 2 * pairs)
    question, lines = words(numbers), []
    for _ in range(steps - 1):
        numbers = paired(numbers, shuffled(draw, 2 * pairs))
        lines.append(words(numbers))
    return Problem(question, tuple(lines), addition(numbers), family=question)


def shuffled(draw: Draw, count: int) -> list[int]:
    """A uniform permutation of positions (Fisher and Yates)."""
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = draw.below(last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def paired(numbers: list[int], order: list[int]) -> list[int]:
    """The numbers after a step whose pairs are neighbours in ``order``."""
    after = list(numbers)
    for first, second in zip(order[::2], order[1::2], strict=True):
        after[first] = numbers[first] + numbers[second]
        after[second] = numbers[first] - numbers[second]
    return after


def parallel24(draw: Draw, steps: int) -> Problem:
    """Parallel 24 (paper, level 3): the game of 24, in which each step may start over from the four numbers.

    Every step is a path, one operation longer than the step before it; the last, of three operations, uses all four
    numbers and gives 24. The paper has ``steps`` 3; with 1, only the last path is written. The paper's own paths are
    not published: here the operations of those before the last are drawn one by one, dead ends included, as in its
    example, and the last path is drawn from all solutions. All numbers are natural; the larger operand comes first.
    The question is four numbers that admit 24, in any order.
    """
    if not 1 <= steps < OPERANDS:
        raise InputError(f"{OPERANDS} numbers are used up by {OPERANDS - 1} operations, so not in {steps} steps")
    while True:
        numbers = [1 + draw.below(LARGEST) for _ in range(OPERANDS)]
        hand = tuple(sorted(numbers))
        if solved := solutions(hand):
            lines = tuple(written(attempt(draw, hand, length)) for length in range(OPERANDS - steps, OPERANDS - 1))
            return Problem(words(numbers), lines, written(draw.of(solved)), family=words(hand))


def attempt(draw: Draw, hand: tuple[int, ...], length: int) -> Path:
    """A path of so many operations, each drawn from those that there are."""
    path: Path = ()
    for _ in range(length):
        equation, hand = draw.of(operations(hand))
        path = (*path, equation)
    return path


def written(path: Path) -> str:
    """The equations of a path as a line."""
    return " . ".join(path)


@cache
def solutions(hand: tuple[int, ...]) -> tuple[Path, ...]:
    """All paths that use up the sorted numbers and end in 24."""
    if len(hand) == 1:
        return ((),) if hand == (GOAL,) else ()
    return tuple((equation, *path) for equation, left in operations(hand) for path in solutions(left))


@cache
def operations(hand: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """All distinct operations on two of the sorted numbers: the equation, and the sorted numbers after it."""
    found: dict[str, tuple[int, ...]] = {}
    for low, high in combinations(range(len(hand)), 2):
        a, b = hand[high], hand[low]  # a >= b
        rest = [n for i, n in enumerate(hand) if i not in (low, high)]
        for sign, value in results(a, b).items():
            found[f"{a} {sign} {b} = {value}"] = tuple(sorted([*rest, value]))
    return tuple(found.items())


def results(a: int, b: int) -> dict[str, int]:
    """What the signs make of a and b, where that is a natural number."""
    values = {"+": a + b, "-": a - b, "*": a * b}
    return values | {"/": a // b} if b and a % b == 0 else values


def long_range_copy(draw: Draw, steps: int) -> Problem:
    """Long-range copy (paper, appendix A): all steps but the last are five random numbers, the last repeats those of
    one earlier step.

    The paper's question is not published. Here it is five digits that reveal nothing about the steps: they make
    questions differ, and so what a model draws for them.
    """
    question = words(digits(draw, COPIED))
    lines = tuple(words(digits(draw, COPIED)) for _ in range(steps - 1))
    return Problem(question, lines, draw.of(lines), family=question)


@dataclass(frozen=True)
class Corpus:
    """A task with its parameters, and its rows per split. The paper does not give its sizes."""

    name: str
    draw: Callable[[Draw], Problem]
    sizes: dict[str, int]

    def rows(self, split: str) -> Iterator[Raw]:
        """All rows of a split. Training may ask a question again and draw otherwise; the test asks
        each question once, and none of training."""
        for row in islice(self._problems(split), self.sizes[split]):
            yield Raw("", row.question, "\n".join(row.steps), row.answer)

    def _problems(self, split: str) -> Iterator[Problem]:
        draw, seen = Draw(f"marcos-bench {self.name} {VERSION} {split}"), set[str]()
        while True:
            found = self.draw(draw)
            hashed = int.from_bytes(hashlib.sha256(found.family.encode()).digest()[:8], "big")
            tested = hashed % TEST_SHARE == 0
            if tested != (split == "test") or (tested and found.question in seen):
                continue
            seen.add(found.question)
            yield found


def _paired(short: str, problem: Callable[..., Problem], pairs: int, steps: int, sizes: dict[str, int]) -> Corpus:
    return Corpus(f"{short}_n{pairs}_k{steps}", partial(problem, pairs=pairs, steps=steps), sizes)


def _copy(steps: int, sizes: dict[str, int]) -> Corpus:
    return Corpus(f"copy_k{steps}", partial(long_range_copy, steps=steps), sizes)


CORPORA = {
    corpus.name: corpus
    for corpus in (
        _paired("rs", random_summation, 2, 2, SMALL),
        _paired("rs", random_summation, 2, 3, SMALL),
        _paired("rs", random_summation, 5, 3, LARGE),
        _paired("rp", random_pairing, 2, 2, SMALL),
        _paired("rp", random_pairing, 2, 3, SMALL),
        _paired("rp", random_pairing, 5, 3, LARGE),
        *(Corpus(f"p24_k{steps}", partial(parallel24, steps=steps), LARGE) for steps in (1, 3)),
        *(_copy(steps, SMALL) for steps in (4, 8)),
        *(_copy(steps, LONG) for steps in (16, 32, 64)),
    )
}


def _dataset(name: str, title: str, scorer: str, train: str, test: str, stepless: bool = False) -> Generated:
    card = Card(
        name=name,
        title=title,
        source="benchmarks/data/sets/synthetic.py",
        revision=f"generator {VERSION}",
        licence="Apache-2.0",
        citation="",
        version=VERSION,
        forms=("lines",),
        counts=CORPORA[name].sizes,
        records={"train": train, "test": test},
        stepless=stepless,
        scorer=scorer,
    )
    return Generated(card, CORPORA[name].rows)


DATASETS = (
    _dataset(
        "rs_n2_k2",
        "RS (N=2, K=2)",
        "summation",
        "018cff79c48df495f19dedc0e93d97fe7795b5df177195adfb3efa80bd52e47a",
        "e26685a1f33d07bc7f4fcbe17549ec7d035345bb2daaea15aebeb4f413f4e752",
    ),
    _dataset(
        "rs_n2_k3",
        "RS (N=2, K=3)",
        "summation",
        "af737c238d298bf2cd6f07cdba4e923533f4479c3e59abca246e8a77724f3a65",
        "235f8ce04087e0725276fbd3face1a2449ad3135673717ce0af6ba6f641f86d4",
    ),
    _dataset(
        "rs_n5_k3",
        "RS (N=5, K=3)",
        "summation",
        "b61cfd323070763dc9b99cca0f43854a244faf8c83030256ae4e1019eef699c8",
        "3053bad6b81ee4211701910d2178c0e5c62b1ab5dc5cca90bc6898fe7e1ca693",
    ),
    _dataset(
        "rp_n2_k2",
        "RP (N=2, K=2)",
        "pairing",
        "ee8df6ffe8bae7d25563d3442a396aa7fb794658b2dfbe3aebd24149d2568abe",
        "86a414d7d2ba31a8706f0dce953279aea8144ef67416e80e463e8890c15304ec",
    ),
    _dataset(
        "rp_n2_k3",
        "RP (N=2, K=3)",
        "pairing",
        "74c99c3d41a029107e82c2a4af12e46d43e7aaa3f2657101ea9f0c2c3029da45",
        "4cf3fa3d3be3b686cf6d9d776039565017eec1802628c82367e7b02e70190b2f",
    ),
    _dataset(
        "rp_n5_k3",
        "RP (N=5, K=3)",
        "pairing",
        "5d6b0807ceab38bbeb783d8c573d2a1aeb36187fad0dd596dbda69472c97ec8d",
        "aaed9a1d3641133ae77d27e9c3bea05cf0a452c09cdbff5eec1fd0508bbfaf81",
    ),
    _dataset(
        "p24_k1",
        "P24 (K=1)",
        "last_path",
        "e8069187e59fdb92dd2620514a73e21b152fe10065f0022e5ff8166f8effd564",
        "deef5591fe195e77573eaf2060d08e0df12873a87c7c144edc69d5d3bbeb2b1b",
        stepless=True,
    ),
    _dataset(
        "p24_k3",
        "P24 (K=3)",
        "parallel24",
        "37d46bf213e573bc0c9e5818ae1da2421ab3dfa0f9c08c1afea2251912c531e8",
        "1e8b8331ee753f0a300f88ba4549f81df8b02b6c06816b295621ff623d7e1e7d",
    ),
    _dataset(
        "copy_k4",
        "Copy (K=4)",
        "copy",
        "0fd230e367b5b3afc5df7d21ad7e960f8ab1bb87c778f9222da25c332430d38a",
        "a78fd06d7862df808c36622e18b4f931d343ecea8d56144e60657319ef6c106a",
    ),
    _dataset(
        "copy_k8",
        "Copy (K=8)",
        "copy",
        "99fbe5ffcdf392b0cf91009ae878e4d163c4c97ccb61119f78115254172588af",
        "e9fbc3497aa4bc0ea3aa86e0416bd3601c7654e01daa36eb999a098cd457ec0a",
    ),
    _dataset(
        "copy_k16",
        "Copy (K=16)",
        "copy",
        "b569ce737d4e88ce0316292120c849fb0fd56ceacce70dcd19f7afb5dc9ae797",
        "508d090b8fa3319883a4982434594aeaea2dce2f10422eec978d4d3b0f49a329",
    ),
    _dataset(
        "copy_k32",
        "Copy (K=32)",
        "copy",
        "f5f3a13efe4b93f9b3e721bb022eb3d216dc7788c8ff420c4702cc6cb302ad08",
        "ffbe0ff7c430eddef1c67d6bc4d9dcc10207ab462608981de8473fabac6da07a",
    ),
    _dataset(
        "copy_k64",
        "Copy (K=64)",
        "copy",
        "3772a1037b8c8696245704f4922c656c132adf06070b94e471e4522d112b7f15",
        "faa15e23d4ab995a6cad3a8d0ee29c5cd48c696f9bebcdad644068bbd8078ac8",
    ),
)
