"""ProsQA: which of two concepts a person is, by a graph of "is a" relations. The rows of its paper (Coconut), the same
as symbols, and a seeded generator of both.

A graph grows node by node. Nodes 0 and 1 are the two persons asked about; every later node hangs below earlier ones, or
below none, and is then one more person. The *root* is one of the two persons. The *target* lies below the root, the
*decoy* below the other person only; nothing hangs below either. The question gives all relations in random order, then
asks which of the two the root is. The steps are a shortest path from root to target.

Steps as symbols are those of *Reasoning by Superposition* in so far as edges stand for sentences, and a node is one
token (:data:`SYMBOLS`) whose number is that of its growth: ``| a c | b d | c e ? e d : a`` has the steps ``a c`` and
``c e`` and the answer ``e``. There a step is trained as any node within reach instead; edges and the order of the two
concepts are drawn anew in each epoch.

The authors' repository has no generator. Numbers of nodes and edges, the share of each number of parents and the
depths here are fitted to the published test file (:data:`PUBLISHED`); ``tests/test_data_prosqa.py`` compares them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from benchmarks.data.cards import Card, File
from benchmarks.data.records import Raw
from benchmarks.data.sources import DataSet, Draw, Fields, Generated, json_array, part_of


def _words(text: str) -> list[str]:
    return text.split()


VERSION = "1"
COCONUT = "https://raw.githubusercontent.com/facebookresearch/coconut/27273cb8cca4bb763c041a63b036d0c3b7cbbb48/data"
SUPERPOSITION = (
    "https://raw.githubusercontent.com/Ber666/reasoning-by-superposition/8bfe3b702a4e06bca3d4d489a95a54f88c74fd88/data"
)
PERSONS = _words("Alex Bob Carol Davis Eva Fae Gabriel Jack Max Oliver Polly Rex Sally Sam Stella Tom Wren")
CONCEPTS = _words(
    "bompus boompus brimpus chorpus dumpus felpus fompus gerpus gorpus grimpus gwompus hilpus impus jelpus jompus "
    "kerpus lempus lorpus numpus quimpus rempus rompus rorpus scrompus shumpus sterpus storpus terpus timpus tumpus "
    "vumpus worpus wumpus yerpus yimpus yumpus zhorpus zumpus"
)
SYMBOLS = "abcdefghijklmnopqrstuvwxyzàèìòù"  # small letters all, since scores ignore the case
# The share of nodes that may not hang below the second person's family; as many may not below the first's
OWN = 0.38
BIAS = 2  # a node at depth d is chosen as a parent 1 + BIAS d times as often as a root
SENTENCE = re.compile(r"(?:Every )?(\w+) is a (\w+)\.")
QUESTION = re.compile(r"Is (\w+) a (\w+) or (\w+)\?$")

Edge = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """What graphs a corpus has. ``parents``: how many nodes of 1,000 hang below 0, 1, 2 … others. ``level``: whether
    the decoy is as deep below its person as the target is below the root."""

    nodes: tuple[int, int]
    steps: tuple[int, int]
    parents: tuple[int, ...]
    level: bool


PUBLISHED = Shape(nodes=(20, 26), steps=(3, 6), parents=(27, 420, 330, 150, 55, 18), level=False)
THREE_OR_FOUR = replace(PUBLISHED, steps=(3, 4))
SMALL = Shape(nodes=(12, 12), steps=(3, 3), parents=(0, 700, 300), level=True)


@dataclass(frozen=True)
class Problem:
    """A graph and what is asked about it. ``edges``: in the order of the question, as are the two ``choices``, which
    are target and decoy. ``path``: nodes from root to target."""

    edges: tuple[Edge, ...]
    choices: tuple[int, int]
    path: tuple[int, ...]


def grow(draw: Draw, shape: Shape) -> list[Edge]:
    """Return the edges of a graph, each from a parent to a node below it."""
    edges, depths = list[Edge](), [0, 0]
    families = [{0}, {1}]  # of each person: those below this one
    for node in range(2, draw.between(*shape.nodes)):
        own = draw.uniform()
        barred = families[1] if own < OWN else families[0] if own < 2 * OWN else set()
        allowed = [other for other in range(node) if other not in barred]
        wanted, parents = weighted(draw, range(len(shape.parents)), shape.parents), list[int]()
        while allowed and len(parents) < wanted:
            parents.append(weighted(draw, allowed, [1 + BIAS * depths[other] for other in allowed]))
            allowed.remove(parents[-1])
        for family in families:
            if family.intersection(parents):
                family.add(node)
        depths.append(1 + min((depths[parent] for parent in parents), default=-1))
        edges += [(parent, node) for parent in sorted(parents)]
    return edges


def weighted(draw: Draw, items: Sequence[int], weights: Sequence[float]) -> int:
    """Return an item, drawn with the given weights."""
    left = draw.uniform() * sum(weights)
    for item, weight in zip(items, weights, strict=True):
        left -= weight
        if left < 0:
            return item
    return items[-1]


def paths(edges: Sequence[Edge], root: int) -> dict[int, tuple[int, ...]]:
    """Return a shortest path from the root to each node below it."""
    below = defaultdict(list)
    for parent, node in edges:
        below[parent].append(node)
    found: dict[int, tuple[int, ...]] = {root: (root,)}
    queue = [root]
    for parent in queue:
        for node in below[parent]:
            if node not in found:
                found[node] = (*found[parent], node)
                queue.append(node)
    return found


def pose(draw: Draw, edges: list[Edge], shape: Shape) -> Problem | None:
    """Return a question about a graph, or None if it admits none of the shape. The target is one of the deepest nodes
    that hang below the root alone and have nothing below them."""
    root = draw.below(2)
    order = shuffled(draw, edges)
    mine, others = paths(order, root), paths(order, 1 - root)
    inner = {parent for parent, _ in edges}
    targets = [node for node in mine if node not in others and node not in inner]
    deepest = max((len(mine[node]) for node in targets), default=0)
    low, high = shape.steps
    if not low <= deepest - 1 <= high:
        return None
    decoys = [node for node in others if node not in mine and node not in inner and node > 1]
    if shape.level:
        decoys = [node for node in decoys if len(others[node]) == deepest]
    if not decoys:
        return None
    target, decoy = draw.of([node for node in targets if len(mine[node]) == deepest]), draw.of(decoys)
    return Problem(tuple(order), (target, decoy) if draw.below(2) else (decoy, target), mine[target])


def shuffled(draw: Draw, items: Sequence[T]) -> list[T]:
    """Return items in a drawn order."""
    return sorted(items, key=lambda _: draw.uniform())


def text(problem: Problem, draw: Draw) -> Raw:
    """Return a problem as sentences about persons and concepts, which are drawn."""
    below = {node for _, node in problem.edges}
    persons, concepts = iter(shuffled(draw, PERSONS)), iter(shuffled(draw, CONCEPTS))
    nodes = sorted({node for edge in problem.edges for node in edge})
    names = {node: next(concepts if node in below else persons) for node in nodes}

    def sentence(edge: Edge) -> str:
        subject = f"Every {names[edge[0]]}" if edge[0] in below else names[edge[0]]
        return f"{subject} is a {names[edge[1]]}."

    first, second = (names[node] for node in problem.choices)
    asked = f"Is {names[problem.path[0]]} a {first} or {second}?"
    answer = f"{names[problem.path[0]]} is a {names[problem.path[-1]]}."
    return Raw(
        "", " ".join([*map(sentence, problem.edges), asked]), "\n".join(map(sentence, pairwise(problem.path))), answer
    )


def symbols(problem: Problem, _: Draw | None = None) -> Raw:
    """Return a problem with one symbol for each node. Nothing is drawn: the second argument is that of :func:`text`."""

    def pair(edge: Edge) -> str:
        return f"{SYMBOLS[edge[0]]} {SYMBOLS[edge[1]]}"

    relations = " ".join(f"| {pair(edge)}" for edge in problem.edges)
    question = f"{relations} ? {pair(problem.choices)} : {SYMBOLS[problem.path[0]]}"
    return Raw("", question, "\n".join(map(pair, pairwise(problem.path))), SYMBOLS[problem.path[-1]])


def published_text(row: Fields) -> Raw:
    return Raw("", row["question"], "\n".join(row["steps"]), row["answer"])


def published_symbols(row: Fields) -> Raw:
    """Convert a published row, with relations and choices in the order of its question."""
    number = {name: node for node, name in enumerate(row["idx_to_symbol"])}
    asked = QUESTION.search(row["question"])
    if asked is None:
        raise ValueError("no question at its end")

    def edges(sentences: str) -> list[Edge]:
        return [(number[parent], number[node]) for parent, node in SENTENCE.findall(sentences)]

    path = [number[asked[1]], *(node for _, node in edges(" ".join(row["steps"])))]
    choices = number[asked[2]], number[asked[3]]
    return symbols(Problem(tuple(edges(row["question"])), choices, tuple(path)))


@dataclass(frozen=True)
class Corpus:
    """A generated data set: how its graphs are drawn and told, and its rows of training. Every graph is asked about
    once, and its hash decides whether in training, validation or test."""

    name: str
    title: str
    shape: Shape
    tell: Callable[[Problem, Draw], Raw]
    rows: int
    form: str

    def size(self, part: str) -> int:
        return {"train": self.rows, "validation": 300, "test": 500}[part]

    def generate(self, part: str) -> Iterator[Raw]:
        """Yield the rows of a part."""
        draw, seen = Draw(f"marcos-bench {self.name} {VERSION} {part}"), set[tuple[Edge, ...]]()
        while len(seen) < self.size(part):
            edges = grow(draw, self.shape)
            key = tuple(edges)
            if key in seen or part_of(f"marcos-bench prosqa {key}") != part:
                continue
            if problem := pose(draw, edges, self.shape):
                yield self.tell(problem, draw)
                seen.add(key)


HAO = """@inproceedings{hao2025coconut, title={Training Large Language Models to Reason in a Continuous Latent Space},
 author={Hao, Shibo and Sukhbaatar, Sainbayar and Su, DiJia and Li, Xian and others}, booktitle={COLM}, year={2025}}"""
ZHU = """@misc{zhu2025superposition, title={Reasoning by Superposition: A Theoretical Perspective on Chain of Continuous
 Thought}, author={Zhu, Hanlin and Hao, Shibo and Hu, Zhiting and Jiao, Jiantao and Russell, Stuart and Tian, Yuandong},
 year={2025}, eprint={2505.12514}, archivePrefix={arXiv}}"""
CHANCE = "Each question names the two possible answers, so chance is 50 %."

PROSQA = Card(
    name="prosqa",
    title="ProsQA",
    source="https://github.com/facebookresearch/coconut, data",
    revision="27273cb",
    licence="MIT",
    citation=HAO,
    forms=("text",),
    counts={"train": 17_886, "validation": 300, "test": 500},
    records={
        "train": None,
        "validation": "19b6b569132b423e21bbd2719ea404f6912c608ad94def855a2264c05aebe01b",
        "test": "69c89a08fa95e7e7ef443e464ebc979d822c01b3c18708061f87aa2a54b0912c",
    },
    files={
        "train": (File.of("prosqa/prosqa_train.json", None),),
        "validation": (
            File.of(
                "prosqa/prosqa_valid.json",
                "c74e0de24f1e90ec48b1a993e6458a7be4caeef3928f5104e3c2e45d689a5249",
                f"{COCONUT}/prosqa_valid.json",
            ),
        ),
        "test": (
            File.of(
                "prosqa/prosqa_test.json",
                "82ddc0afe6ee30eb31bb16fa208e293e55278a20fa987098d48519cae7e12680",
                f"{COCONUT}/prosqa_test.json",
            ),
        ),
    },
    scorer="text",
    notes=f"{CHANCE} No checksum of the training file is known here: its number of rows is that of the paper.",
)
PROSQA_SYMBOLS = Card(
    name="prosqa_symbols",
    title="ProsQA (symbols)",
    source="https://github.com/Ber666/reasoning-by-superposition, data",
    revision="8bfe3b7",
    licence="MIT",
    citation=ZHU,
    forms=("lines",),
    counts={"train": 14_785, "validation": 257, "test": 419},
    records={
        "train": None,
        "validation": "e51622800801e827b30836fe14f4858a5dac9710777866f6c68060473a4e4106",
        "test": "ddbd142af235a4b396d5a8de96a39726b74493da741e6b63563f0d86e19c6146",
    },
    files={
        "train": (File.of("prosqa/graph_4/prosqa_train_graph_4_coconut.json", None),),
        "validation": (
            File.of(
                "prosqa/graph_4/prosqa_valid_graph_4_coconut.json",
                "f444aa99112907b5b989188a8b44be7609fdfe30fd5caac4e2840234a82bad65",
                f"{SUPERPOSITION}/prosqa_valid_graph_4_coconut.json",
            ),
        ),
        "test": (
            File.of(
                "prosqa/graph_4/prosqa_test_graph_4_coconut.json",
                "584083aebf7ee583308d56a909d7e62bd560ad9acd0bf0a1dec514bff9143267",
                f"{SUPERPOSITION}/prosqa_test_graph_4_coconut.json",
            ),
        ),
    },
    scorer="text",
    notes=f"{CHANCE} ProsQA's questions of three or four steps, converted to symbols. No checksum of the training file "
    "is known here, and its number of rows, rounded in the paper (14.8 thousand), is assumed.",
)

CORPORA = (
    Corpus("prosqa_generated", "ProsQA (generated)", PUBLISHED, text, 20_000, "text"),
    Corpus("prosqa_generated_symbols", "ProsQA (generated symbols)", THREE_OR_FOUR, symbols, 14_785, "lines"),
    Corpus("prosqa_small", "ProsQA (small)", SMALL, symbols, 50_000, "lines"),
)
RECORDS = {
    "prosqa_generated": {
        "train": "31eaeb8d9bb07cb39366bf5ad6e35c3ef5cc70d572758d4dc3fce4d7e84de7c6",
        "validation": "df365b4b223471a4f305da8fbe3886f3fa1e9ef130afca84d8be62200688ebc6",
        "test": "a00e5e30bdd14a8b8c2bb7a3049447fe0c47f9b7c126955b5d12e71dc77228aa",
    },
    "prosqa_generated_symbols": {
        "train": "5aee84c24159b4d9bd37cd7de9e9c4794c1b12802b7bb720fd3816d9efcbad8f",
        "validation": "673377d33b363bed7f9bdf876c290e879b74725aa6427580ff50a147700440e8",
        "test": "6371d9c1057e824b0711a9cf7abe924f5918b0e936d61749325fb3a4b9197745",
    },
    "prosqa_small": {
        "train": "0ef9d61a73fbdde64e200bc45cc05b7546613456cec3064c2853d3ee7ae79559",
        "validation": "94ee8f01a58ea54a1963fcbc3d97e26791f39e32a244745a047d4b657f4a81fe",
        "test": "3268ee8f5616f919e4159b7df0127ad858bddac9588dace8024bb1d76cd0696b",
    },
}


def _generated(corpus: Corpus, name: str, title: str, parts: dict[str, str]) -> Generated:
    """``parts``: of each split of the data set."""
    card = Card(
        name=name,
        title=title,
        source="benchmarks/data/sets/prosqa.py",
        revision=f"generator {VERSION}",
        licence="Apache-2.0",
        citation=HAO,
        version=VERSION,
        forms=(corpus.form,),
        counts={split: corpus.size(part) for split, part in parts.items()},
        records={split: RECORDS[corpus.name][part] for split, part in parts.items()},
        scorer="text",
        notes=CHANCE,
    )
    return Generated(card, lambda split: corpus.generate(parts[split]))


def _datasets(corpus: Corpus) -> tuple[Generated, Generated]:
    return (
        _generated(corpus, corpus.name, corpus.title, {"train": "train", "test": "test"}),
        _generated(corpus, f"{corpus.name}_validation", f"{corpus.title}, validation", {"test": "validation"}),
    )


DATASETS = (
    DataSet(PROSQA, json_array, published_text),
    DataSet(PROSQA_SYMBOLS, json_array, published_symbols),
    *(dataset for corpus in CORPORA for dataset in _datasets(corpus)),
)
