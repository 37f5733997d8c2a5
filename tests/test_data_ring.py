"""Chains in a ring of five: right modulo five, reproducible, and with chains of their own in every test set."""

import re
from itertools import pairwise, product

import pytest

from benchmarks.data import get_dataset
from benchmarks.data.records import digest, equations
from benchmarks.data.sets import ring
from benchmarks.data.sets.ring import HELD_OUT, RING, Chain
from benchmarks.scoring import Reference
from benchmarks.scoring.scorers import scorer_of

TESTS = ("validation", "in_domain", "reworded", "unseen")
CORPORA = {"train": "ring", **{corpus: f"ring_{corpus}" for corpus in TESTS}}
STEP = re.compile(r"<<(\d) (\w+)=(\d)>>")
MOVE_OF = {verb: move for move, verb in ring.VERBS.items()}


def asked(question: str) -> Chain:
    """Return the chain of a question, as its text says it."""
    first = re.search(r"\d(?=\.| in a ring\.)", question)
    assert first
    return Chain(int(first[0]), tuple(MOVE_OF[word] for word in re.findall("[a-z]+", question) if word in MOVE_OF))


def chains(corpus: str) -> list[Chain]:
    return [asked(row.question) for row in ring.generate(corpus)]


@pytest.mark.parametrize("corpus", CORPORA)
def test_every_step_follows_from_the_one_before_modulo_the_ring_and_the_last_gives_the_answer(corpus: str):
    for row in ring.generate(corpus):
        chain = asked(row.question)
        field, steps = chain.start, equations(row.solution)
        assert len(steps) == len(chain.moves)
        for step, (sign, operand) in zip(steps, chain.moves, strict=True):
            match = STEP.fullmatch(step)
            assert match and (int(match[1]), match[2]) == (field, ring.VERBS[sign, operand])
            field = {"+": field + operand, "-": field - operand, "*": field * operand}[sign] % RING
            assert int(match[3]) == field
        assert str(field) == row.answer


def test_no_chain_of_a_test_is_one_of_training_or_of_another_test():
    """Chains are read from the questions, not from the generator."""
    seen = set(chains("train"))
    for corpus in TESTS:
        own = chains(corpus)
        assert len(set(own)) == len(own) and seen.isdisjoint(own)
        seen.update(own)


@pytest.mark.parametrize("corpus", TESTS)
def test_the_scorer_judges_the_answer_alone_and_no_step(corpus: str):
    """A step such as <<3 doubles=1>>, which is false in plain arithmetic, counts neither for nor against an answer."""
    scorer = scorer_of(CORPORA[corpus])
    assert not scorer.reads_steps
    for row in ring.generate(corpus):
        asked = Reference(row.question, row.answer, len(equations(row.solution)))
        assert scorer.score(f"{row.solution}\n#### {row.answer}", asked).strict


def test_training_shows_no_held_out_neighbours_and_the_unseen_test_always_some():
    shown = {
        (first, second)
        for row in ring.generate("train")
        for (first, _), (second, _) in pairwise(asked(row.question).moves)
    }
    assert shown == {*product("+-*", repeat=2)} - HELD_OUT
    assert all(chain.unseen for chain in chains("unseen"))
    assert not any(chain.unseen for chain in chains("in_domain") + chains("reworded"))


def test_the_rows_are_those_of_the_cards():
    for corpus, name in CORPORA.items():
        (expected,) = get_dataset(name).card.records.values()
        assert digest(list(ring.generate(corpus))) == expected
