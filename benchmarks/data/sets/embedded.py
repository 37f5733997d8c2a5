"""The embedded corpora: a seeded generator of short arithmetic word problems, so that a study needs no download.

A story is a chain of one to three operations on a quantity. There are four corpora:

* ``train`` and ``in_domain``: the same templates with other draws;
* ``reworded``: about half of the sentences are worded differently, in words that training uses, and some stories have a
  number that does not matter;
* ``multistep``: two or three operations, of which at least two neighbours are in an order that training never shows
  (:data:`HELD_OUT`).

The hash of a question decides whether it may be trained on, so no test question is ever a training question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise, product

from benchmarks.data.cards import Card
from benchmarks.data.records import Raw, question_hash
from benchmarks.data.sources import Draw, Generated

VERSION = "1"
SIZES = {"train": 20_000, "in_domain": 500, "reworded": 500, "multistep": 500}

ADD, SUBTRACT, GROUPS, TIMES = "+", "-", "groups", "times"
HELD_OUT = {(SUBTRACT, ADD), (TIMES, SUBTRACT), (GROUPS, TIMES)}
LENGTHS = (1, 1, 1, 1, 2, 2, 2, 2, 3, 3)  # numbers of steps of training questions, drawn uniformly from this list
LARGEST = 30  # no intermediate result is larger, and none is smaller than 2
TEST_SHARE = 10  # one question in this many belongs to the tests

NAMES = {"Tom": "He", "Ben": "He", "Sam": "He", "Max": "He", "Amy": "She", "Eva": "She", "Mia": "She", "Zoe": "She"}
OBJECTS = ("apples", "pears", "nuts", "eggs", "books", "coins", "cards", "balls")


@dataclass(frozen=True)
class Wording:
    """Sentence templates. {n}: starting quantity, {k}: operand, {who}: holder, {he}/{He}: the holder's pronoun, {o}:
    object, {other}: another person, {x}: another object (in asides only)."""

    start: Sequence[str]
    groups: Sequence[str]
    add: Sequence[str]
    subtract: Sequence[str]
    times: Sequence[str]
    ask: Sequence[str]
    aside: Sequence[str] = ()  # sentences with a number that does not matter
    aside_share: float = 0.0


TRAINING = Wording(
    start=("{who} has {n} {o}.", "{who} finds {n} {o}.", "There are {n} {o} in the bag of {who}."),
    groups=("{who} has {n} bags with {k} {o} each.", "{who} finds {n} boxes of {k} {o} each."),
    add=(
        "{He} buys {k} more.",
        "{He} finds {k} more {o}.",
        "Then {he} gets {k} {o} from {other}.",
        "{other} then gives {who} {k} more.",
        "Then there are {k} more.",
    ),
    subtract=(
        "{He} sells {k}.",
        "{He} loses {k} of the {o}.",
        "Then {he} gives {k} {o} to {other}.",
        "{other} then takes {k} of them.",
    ),
    times=("{other} has {k} times as many.", "{other} gets {k} times as many {o}."),
    ask=("How many {o} does {who} have?", "How many {o} does {who} have now?", "Then how many {o} does {who} have?"),
)

KNOWN = frozenset(
    template for kind in ("start", "groups", "add", "subtract", "times", "ask") for template in getattr(TRAINING, kind)
)
REWORDED = Wording(  # each sentence is worded as in training about half of the time
    start=(*TRAINING.start, "{who} buys {n} {o}.", "{n} {o} are in the bag of {who}.", "There are {n} {o} of {who}."),
    groups=(*TRAINING.groups, "{who} buys {n} boxes with {k} {o} in each.", "There are {n} bags with {k} {o} each."),
    add=(
        *TRAINING.add,
        "Then {he} has {k} more from {other}.",
        "{He} then gets {k} more {o}.",
        "{who} buys {k} {o} more.",
        "Then {other} gives {who} {k} {o}.",
    ),
    subtract=(
        *TRAINING.subtract,
        "Then {other} takes {k} {o}.",
        "Then {he} sells {k} of them.",
        "{who} gives {k} of the {o} to {other}.",
    ),
    times=(*TRAINING.times, "Then {other} gets {k} times as many.", "{other} finds {k} times as many {o}."),
    ask=(*TRAINING.ask, "{who} has how many {o} now?", "How many of the {o} does {who} have?"),
    aside=("{other} has {k} {x}.", "There are {k} {x} in the bag of {other}."),
    aside_share=0.15,
)


def chains(length: int) -> list[tuple[str, ...]]:
    """Return all operation sequences of a length. GROUPS can only come first, and TIMES occurs at most once."""
    middle = (ADD, SUBTRACT, TIMES)
    found = product((*middle, GROUPS), *[middle] * (length - 1))
    return [chain for chain in found if chain.count(TIMES) < 2]


def unseen(chain: tuple[str, ...]) -> bool:
    """Return whether the chain has a pair of neighbours that training never shows."""
    return any(pair in HELD_OUT for pair in pairwise(chain))


SEEN = {length: [chain for chain in chains(length) if not unseen(chain)] for length in set(LENGTHS)}
UNSEEN = [[chain for chain in chains(length) if unseen(chain)] for length in (2, 3)]


class Story:
    """A question under construction: who holds how many of what, and the sentences and equations so far."""

    def __init__(self, draw: Draw, wording: Wording) -> None:
        self.draw, self.wording = draw, wording
        self.who = draw.of(list(NAMES))
        self.object = draw.of(OBJECTS)
        self.value = 0
        self.text: list[str] = []
        self.solution: list[str] = []
        self.reworded = False  # whether any sentence has a template that training does not use

    def add_sentence(self, templates: Sequence[str], **values: object) -> str:
        """Add one sentence. Return the other person, whom it may mention."""
        other = self.draw.of([name for name in NAMES if name != self.who])
        pronoun = NAMES[self.who]
        words = {"who": self.who, "He": pronoun, "he": pronoun.lower(), "o": self.object, "other": other}
        template = self.draw.of(templates)
        self.reworded |= template not in KNOWN
        self.text.append(template.format(**words, **values))
        return other

    def compute(self, left: int, sign: str, right: int, result: int) -> None:
        self.value = result
        mark = f"<<{left}{sign}{right}={result}>>"
        self.solution.append(f"{self.who} has {left} {sign} {right} = {mark}{result} {self.object}.")

    def add_start(self, chain: Sequence[str]) -> Sequence[str]:
        """Add the first sentence. Return the operations that are still to come."""
        if chain[0] == GROUPS:
            n, k = self.draw.between(2, 5), self.draw.between(2, 6)
            self.add_sentence(self.wording.groups, n=n, k=k)
            self.compute(n, "*", k, n * k)
            return chain[1:]
        self.value = self.draw.between(2, 9)
        self.add_sentence(self.wording.start, n=self.value)
        return chain

    def add_operation(self, operation: str) -> bool:
        """Add one more operation. Return False if no operand keeps the result in range."""
        value = self.value
        highest = {ADD: LARGEST - value, SUBTRACT: value - 2, TIMES: min(3, LARGEST // value)}[operation]
        if highest < 2:
            return False
        k = self.draw.between(2, min(9, highest))
        if operation == ADD:
            self.add_sentence(self.wording.add, k=k)
            self.compute(value, "+", k, value + k)
        elif operation == SUBTRACT:
            self.add_sentence(self.wording.subtract, k=k)
            self.compute(value, "-", k, value - k)
        else:
            self.who = self.add_sentence(self.wording.times, k=k)
            self.compute(value, "*", k, value * k)
        return True

    def add_aside(self) -> None:
        """Add a sentence that does not matter, with probability ``aside_share``, before or after the first sentence."""
        if self.draw.uniform() < self.wording.aside_share:
            thing = self.draw.of([name for name in OBJECTS if name != self.object])
            self.add_sentence(self.wording.aside, k=self.draw.between(2, 9), x=thing)
            if self.draw.below(2):
                self.text.reverse()


def tell(draw: Draw, wording: Wording, chain: Sequence[str]) -> Raw | None:
    """Return one problem of the chain, or None if the numbers or templates drawn do not make one of the shape."""
    story = Story(draw, wording)
    rest = story.add_start(chain)
    story.add_aside()
    if not all(story.add_operation(operation) for operation in rest):
        return None
    story.add_sentence(wording.ask)
    if story.reworded is (wording is TRAINING):
        return None
    return Raw("", " ".join(story.text), "\n".join(story.solution), str(story.value))


def problems(shape: str) -> Iterator[Raw]:
    """Yield distinct problems of a shape without end, all on the shape's side of the split
    into training and test questions."""
    wording = REWORDED if shape == "reworded" else TRAINING
    draw, seen = Draw(f"marcos-bench embedded {VERSION} {shape}"), set[str]()
    while True:
        chain = draw.of(draw.of(UNSEEN) if shape == "multistep" else SEEN[draw.of(LENGTHS)])
        row = tell(draw, wording, chain)
        if row is None or row.question in seen:
            continue
        seen.add(row.question)
        if (int(question_hash(row.question), 16) % TEST_SHARE == 0) == (shape != "train"):
            yield row


@cache
def generate(shape: str) -> tuple[Raw, ...]:
    """Return the corpus of a shape."""
    return tuple(islice(problems(shape), SIZES[shape]))


def _dataset(name: str, title: str, shape: str, records: str) -> Generated:
    split = "train" if shape == "train" else "test"
    card = Card(
        name=name,
        title=title,
        source=f"benchmarks/data/sets/embedded.py, shape {shape}",
        revision=f"generator {VERSION}",
        licence="Apache-2.0",
        citation="",
        version=VERSION,
        forms=("equation", "text"),
        counts={split: SIZES[shape]},
        records={split: records},
    )
    return Generated(card, lambda _: generate(shape))  # each shape is a data set with a single split


DATASETS = (
    _dataset("embedded", "Embedded", "train", "4e87b2df55fd9c57e7789176638c9bf150e1c259f9c5e7bb5f34f0a313378fbc"),
    _dataset(
        "embedded_in_domain",
        "In-domain",
        "in_domain",
        "c5c67bf9876fdf79441d1fb52210eb88cb5aa82ce78f175c820a89926fa9c8c7",
    ),
    _dataset(
        "embedded_reworded", "Reworded", "reworded", "ca96862706f515a8d26af2389cf577a7b2f4565bdf92edc321315f9a042cfb81"
    ),
    _dataset(
        "embedded_multistep",
        "Multi-step",
        "multistep",
        "e4f92d6ac1f80e1faf16c8a80194af9407309687ca0493206049a4694d5642ff",
    ),
)
