"""Chains in a ring of five: right modulo five, reproducible, and with chains of their own in every test set."""

import re
from collections import Counter
from itertools import islice, pairwise, product

import pytest

from benchmarks.data import get_dataset, load_records, ring
from benchmarks.data.records import digest, equations
from benchmarks.data.ring import HELD_OUT, MOVES, RING, TESTED, Chain
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


def test_tests_have_their_lengths_in_equal_parts_and_training_has_all():
    for corpus in TESTS:
        counts = Counter(len(chain.moves) for chain in chains(corpus))
        assert {*counts} == {*TESTED} and len({*counts.values()}) == 1
    assert {len(chain.moves) for chain in chains("train")} == {*ring.LENGTHS}


def test_facts_are_few_and_chains_are_many():
    """The counts are those that the generator's docstring and the page on studies name."""
    assert RING * len(MOVES) == 25
    chains = {
        n: [Chain(field, moves) for field in range(RING) for moves in product(MOVES, repeat=n)] for n in (1, *TESTED)
    }
    counts = {n: Counter(map(ring.corpus_of, chains[n])) for n in chains}
    assert [counts[n]["train"] for n in counts] == [25, 768, 3243]
    for corpus in TESTS:
        assert all(counts[n][corpus] >= ring.SIZES[corpus] / len(TESTED) for n in TESTED)


@pytest.mark.parametrize("corpus", TESTS)
def test_no_answer_is_frequent(corpus: str):
    rows = ring.generate(corpus)
    assert max(Counter(row.answer for row in rows).values()) < 0.3 * len(rows)


@pytest.mark.parametrize("corpus", CORPORA)
def test_every_story_is_of_a_ring_and_every_card_says_that_arithmetic_is_modular(corpus: str):
    assert all("in a ring" in row.question.lower() for row in ring.generate(corpus))
    assert f"modulo {RING}" in get_dataset(CORPORA[corpus]).card.notes


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


def test_sentences_of_a_kind_have_equal_lengths():
    assert all(len(verb.split()) == 1 for verb in MOVE_OF)
    for kind in ("start", "move", "ask"):
        assert len({len(template.split()) for template in getattr(ring.REWORDED, kind)}) == 1


def test_the_reworded_test_uses_training_words():
    known = {word for row in ring.generate("train") for word in re.findall("[A-Za-z]+", row.question)}
    words = {word for row in ring.generate("reworded") for word in re.findall("[A-Za-z]+", row.question)}
    assert words - known == {"In"}  # at the beginning of a sentence, where training has `in`


def test_both_forms_have_the_same_questions_and_as_many_steps():
    equation, text = (load_records("ring_in_domain", form, "test") for form in ("equation", "text"))
    assert [row.question for row in equation] == [row.question for row in text]
    assert [len(row.steps) for row in equation] == [len(row.steps) for row in text]
    assert all("<<" not in step and step.endswith(".") for row in text for step in row.steps)


def test_generation_repeats_itself():
    first = [row.question for row in ring.generate("train")[:50]]
    again = [ring.tell(chain, ring.TRAINING, f"train {i}") for i, chain in enumerate(islice(ring.chains("train"), 50))]
    assert [row.question for row in again] == first


def test_the_rows_are_those_of_the_cards():
    for corpus, name in CORPORA.items():
        (expected,) = get_dataset(name).card.records.values()
        assert digest(list(ring.generate(corpus))) == expected
