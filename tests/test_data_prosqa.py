"""ProsQA: generated graphs with one answer each, in the published format, and the published rows as symbols."""

import re
from collections import Counter
from itertools import pairwise
from statistics import mean

import pytest

from benchmarks.data import get_dataset
from benchmarks.data.records import Raw, digest
from benchmarks.data.sets import prosqa
from benchmarks.data.sets.prosqa import CORPORA, SYMBOLS, Corpus, Edge, Problem, paths
from benchmarks.data.sources import Draw
from benchmarks.scoring import Reference
from benchmarks.scoring.scorers import scorer_of
from test_data_sources import real

SYMBOLIC = [corpus for corpus in CORPORA if corpus.form == "lines"]


def asked(row: Raw) -> tuple[list[Edge], tuple[int, int], int]:
    """Return the edges, the choices and the root of a question in symbols."""
    match = re.fullmatch(r"((?:\| \S \S )+)\? (\S) (\S) : (\S)", row.question)
    assert match
    numbers = [SYMBOLS.index(symbol) for symbol in re.findall(r"[^| ]", match[1])]
    first, second, root = (SYMBOLS.index(match[group]) for group in (2, 3, 4))
    return list(zip(numbers[::2], numbers[1::2], strict=True)), (first, second), root


def steps(row: Raw) -> list[Edge]:
    return [(SYMBOLS.index(line[0]), SYMBOLS.index(line[2])) for line in row.solution.splitlines()]


@pytest.mark.parametrize("corpus", SYMBOLIC, ids=lambda corpus: corpus.name)
def test_one_choice_lies_below_the_root_and_the_steps_are_a_shortest_path_to_it(corpus: Corpus):
    low, high = corpus.shape.steps
    for row in corpus.generate("validation"):
        edges, choices, root = asked(row)
        below, others = paths(edges, root), paths(edges, 1 - root)
        target = SYMBOLS.index(row.answer)
        (decoy,) = {*choices} - {target}
        assert target in below and decoy not in below and decoy in others and target not in others
        assert not {target, decoy} & {parent for parent, _ in edges}
        path = [root, *(node for _, node in steps(row))]
        assert steps(row) == [*pairwise(path)] and {*steps(row)} <= {*edges} and path[-1] == target
        assert len(path) == len(below[target]) and low <= len(path) - 1 <= high
        assert len(set(edges)) == len(edges) and all(parent < node for parent, node in edges)
        if corpus.shape.level:
            assert len(others[decoy]) == len(path)


def test_sentences_say_the_same_as_symbols():
    problem = Problem(edges=((2, 4), (0, 2), (1, 3), (5, 3)), choices=(3, 4), path=(0, 2, 4))
    assert prosqa.symbols(problem) == Raw("", "| c e | a c | b d | f d ? d e : a", "a c\nc e", "e")
    told = prosqa.text(problem, Draw("test"))
    names = re.findall(r"(?:Every )?(\w+) is a (\w+)\.", told.question)
    pairs = [named for edge, pair in zip(problem.edges, names, strict=True) for named in zip(pair, edge, strict=True)]
    index = dict(pairs)
    assert len(index) == len({*pairs})  # a name for each node
    row = {"question": told.question, "steps": told.solution.splitlines(), "answer": told.answer}
    assert prosqa.published_text(row) == told
    row["idx_to_symbol"] = sorted(index, key=lambda name: index[name])
    assert prosqa.published_symbols(row) == prosqa.symbols(problem)
    assert all(name in prosqa.PERSONS for name, node in index.items() if node in (0, 1, 5))  # 5 has none above it


@real
@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_published_rows_as_symbols_ask_what_their_files_do(split: str):
    rows = get_dataset("prosqa_symbols").rows(split)
    assert Counter(len(steps(row)) for row in rows).keys() == {3, 4}
    for row in rows:
        edges, choices, root = asked(row)
        target = SYMBOLS.index(row.answer)
        assert target in choices and target in paths(edges, root) and {*steps(row)} <= {*edges}


@real
def test_generated_graphs_have_about_the_published_statistics():
    """Tolerances are those within which the generator was fitted; its docstring claims no more."""

    def statistics(sentences: list[Raw]) -> tuple[float, float, float]:
        edges = mean(row.question.count(" is a ") for row in sentences)
        nodes = mean(len({*re.findall(r"\w*pus\b|\b[A-Z]\w+(?= is a)", row.question)}) for row in sentences)
        return edges, nodes, mean(row.solution.count("\n") + 1 for row in sentences)

    (corpus,) = (corpus for corpus in CORPORA if corpus.name == "prosqa_generated")
    own, published = statistics(list(corpus.generate("test"))), statistics(get_dataset("prosqa").rows("test"))
    assert own == pytest.approx(published, rel=0.06)


@pytest.mark.parametrize(("name", "answer"), [("prosqa_small", "e"), ("prosqa", "Bob is a lempus.")])
def test_the_answer_alone_is_scored(name: str, answer: str):
    scorer, question = scorer_of(name), Reference("?", answer, 3)
    assert not scorer.reads_steps
    assert scorer.score(f"a b\nb c\n#### {answer}", question).strict and scorer.score(answer, question).correct
    assert not scorer.score("#### f", question).correct


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: corpus.name)
def test_the_rows_are_those_of_the_cards(corpus: Corpus):
    card, validation = (get_dataset(name).card for name in (corpus.name, f"{corpus.name}_validation"))
    assert digest(corpus.generate("test")) == card.records["test"]
    assert digest(corpus.generate("validation")) == validation.records["test"]
    assert card.records["train"] and "chance is 50 %" in card.notes
