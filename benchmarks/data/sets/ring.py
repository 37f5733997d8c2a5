"""Chains in a ring of five: a seeded generator of short stories whose steps depend on each other.

Somebody moves about in a ring of five fields, 0 to 4. A move is one verb: who hops goes one field on, who doubles goes
to the field with twice the number. So arithmetic is modulo five, and the step ``<<3 doubles=1>>`` is right. Each move
needs the result of the one before, there are few facts to learn (five fields times five moves), and sentences of a kind
have equally many words. So a question is hard by the length of its chain.

A *chain* here is a start and its moves. There are five corpora:

* ``train``: one to five moves;
* ``validation``: four or five moves, in equal parts, by which settings and weights are chosen;
* ``in_domain``: the same again, with other chains;
* ``reworded``: about half of the sentences are worded differently, in equally many words, which training uses, too
  (but for "In" at the beginning of a sentence);
* ``unseen``: at least two neighbouring moves are in an order that training never shows (:data:`HELD_OUT`).

A chain's hash decides which corpus it may be in (:func:`corpus_of`), so no chain of a test or of validation is ever one
of training. Tests have a chain once; training draws chains and words anew for each row, so short chains come again and
again: there are 25 of one move that training may show, 768 of four, and 3,243 of five.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, islice, pairwise

from benchmarks.data.cards import Card
from benchmarks.data.records import Raw
from benchmarks.data.sets.embedded import NAMES
from benchmarks.data.sources import Draw, Generated

VERSION = "4"
SEED = f"marcos-bench ring {VERSION}v"  # of all draws; v: steps name the verb of a move
SIZES = {"train": 100_000, "validation": 300, "in_domain": 300, "reworded": 300, "unseen": 300}

RING = 5  # fields, numbered from 0: results are taken modulo this
VERBS = {  # of each move, a sign and an operand
    ("+", 1): "hops",
    ("+", 2): "jumps",
    ("-", 1): "slips",
    ("*", 2): "doubles",
    ("*", 3): "triples",
}
MOVES = list(VERBS)
HELD_OUT = {("*", "-"), ("-", "+")}  # signs of neighbours that only the corpus ``unseen`` shows
LENGTHS = (1, 2, 3, 4, 5)  # numbers of moves in training, drawn uniformly
TESTED = (4, 5)  # in tests, in equal parts
PARTS = ("validation", "in_domain", "reworded")  # have a fifth of the chains of tested lengths each, training the rest


@dataclass(frozen=True)
class Chain:
    """A start and the moves from it, each a sign and an operand."""

    start: int
    moves: tuple[tuple[str, int], ...]

    @property
    def unseen(self) -> bool:
        """Whether two neighbours are in an order that training never shows."""
        return any((first, second) in HELD_OUT for (first, _), (second, _) in pairwise(self.moves))

    def __str__(self) -> str:
        return str(self.start) + "".join(f"{sign}{operand}" for sign, operand in self.moves)


@dataclass(frozen=True)
class Wording:
    """Sentence templates. {n}: first field, {moves}: a verb, {who}: the player, {he}/{He}: a pronoun."""

    start: Sequence[str]
    move: Sequence[str]
    ask: Sequence[str]


TRAINING = Wording(
    start=("{who} is on {n} in a ring.", "{who} is at {n} in a ring."),
    move=("{He} {moves}.",),
    ask=("Where is {who} now?", "Where is {he} then?", "Then where is {he}?", "Now where is {who}?"),
)
REWORDED = Wording(  # each sentence is worded as in training about half of the time
    start=(*TRAINING.start, "In a ring {who} is on {n}.", "In a ring {who} is at {n}."),
    move=(*TRAINING.move, "{who} {moves}."),
    ask=(*TRAINING.ask, "{who} is where now?", "Where then is {who}?", "Now {he} is where?", "Then {who} is where?"),
)
KNOWN = frozenset((*TRAINING.start, *TRAINING.move, *TRAINING.ask))


def apply(field: int, sign: str, operand: int) -> int:
    """Return the field that a move leads to."""
    return {"+": field + operand, "-": field - operand, "*": field * operand}[sign] % RING


def corpus_of(chain: Chain) -> str:
    """Return the corpus that a chain belongs to."""
    if chain.unseen:
        return "unseen"
    place = int(hashlib.sha256(f"marcos-bench chain {chain}".encode()).hexdigest(), 16) % 5
    return PARTS[place] if place < len(PARTS) and len(chain.moves) in TESTED else "train"


def tell(chain: Chain, wording: Wording, key: str) -> Raw:
    """Return the problem of a chain, with names and words that ``key`` draws. In any wording but that of training, at
    least one sentence has a template that training does not use."""
    for attempt in count():
        draw = Draw(f"{SEED} {chain} {key} {attempt}")
        templates = [draw.of(wording.start), *[draw.of(wording.move) for _ in chain.moves], draw.of(wording.ask)]
        if wording is TRAINING or not KNOWN.issuperset(templates):
            break
    who = draw.of(list(NAMES))
    words = {"who": who, "He": NAMES[who], "he": NAMES[who].lower()}
    text, solution, field = [templates[0].format(n=chain.start, **words)], [], chain.start
    for template, move in zip(templates[1:-1], chain.moves, strict=True):
        reached, verb = apply(field, *move), VERBS[move]
        text.append(template.format(moves=verb, **words))
        solution.append(f"{words['He']} {verb} from {field} to <<{field} {verb}={reached}>>{reached}.")
        field = reached
    text.append(templates[-1].format(**words))
    return Raw("", " ".join(text), "\n".join(solution), str(field))


def chains(corpus: str) -> Iterator[Chain]:
    """Yield chains of a corpus without end. Those of tests are distinct, with each tested length in turn."""
    draw, seen = Draw(f"{SEED} {corpus}"), set[Chain]()
    for number in count():
        length = draw.of(LENGTHS) if corpus == "train" else TESTED[number % len(TESTED)]
        while True:
            chain = Chain(draw.below(RING), tuple(draw.of(MOVES) for _ in range(length)))
            if corpus_of(chain) == corpus and chain not in seen:
                break
        if corpus != "train":
            seen.add(chain)
        yield chain


@cache
def generate(corpus: str) -> tuple[Raw, ...]:
    """Return a corpus."""
    wording = REWORDED if corpus == "reworded" else TRAINING
    numbered = enumerate(islice(chains(corpus), SIZES[corpus]))
    return tuple(tell(chain, wording, f"{corpus} {i}") for i, chain in numbered)


NOTES = (
    f"Arithmetic is modulo {RING}, as stories are about a ring of {RING} fields: the step <<3 doubles=1>> is "
    f"right. Only the answer is scored, a number from 0 to {RING - 1}."
)
RECORDS = {
    "train": "a414ba526f4cba1125e0bafbdaacdd9020724f634423b045bb17618e0a101075",
    "validation": "2542f763c6887cc0ddac3ed348842e2c2d8b60e38c0739ce3f4ecd1f986ac7bf",
    "in_domain": "efaa4dd69e4ab2cc1e5976728b0f0a16fcf59975ccfcec1a085807aa1ce0bcbe",
    "reworded": "ed579fa9b48d65a8b26ebba29567b64f67c981bce31123e18d7ef47f80fbb1c5",
    "unseen": "8d855a9aeb0fc98bf7b15bfb8747460ab8a0ab797c61a0928c372c396c6aa4ad",
}


def _dataset(corpus: str, title: str) -> Generated:
    split = "train" if corpus == "train" else "test"
    card = Card(
        name="ring" if corpus == "train" else f"ring_{corpus}",
        title=title,
        source=f"benchmarks/data/sets/ring.py, corpus {corpus}",
        revision=f"generator {VERSION}",
        licence="Apache-2.0",
        citation="",
        version=VERSION,
        forms=("equation", "text"),
        counts={split: SIZES[corpus]},
        records={split: RECORDS[corpus]},
        notes=NOTES,
    )
    return Generated(card, lambda _: generate(corpus))  # each corpus is a data set with a single split


DATASETS = (
    _dataset("train", "Ring"),
    _dataset("validation", "Validation"),
    _dataset("in_domain", "In-domain"),
    _dataset("reworded", "Reworded"),
    _dataset("unseen", "Unseen neighbours"),
)
