"""The synthetic tasks: correct, evenly drawn, reproducible, and with tests apart from training."""

from __future__ import annotations

import pytest

from benchmarks.data import get_dataset, load_records
from benchmarks.data.sets.synthetic import CORPORA, parallel24
from benchmarks.data.sources import Draw
from benchmarks.scoring import SCORERS, Reference

SMALL = ("rs_n2_k3", "rp_n2_k2", "p24_k3", "copy_k4")  # of each task


def test_every_corpus_has_a_card_with_its_scorer_and_checksums():
    for name in CORPORA:
        card = get_dataset(name).card
        assert card.scorer in SCORERS and not card.numeric
        assert all(card.records.values()) and card.records.keys() == card.counts.keys() == CORPORA[name].sizes.keys()


@pytest.mark.parametrize("name", ["rp_n5_k3", "copy_k64"])
def test_large_tests_are_those_of_their_cards_and_solved(name: str):
    """Reading a test set verifies its checksum."""
    for row in load_records(name, "lines", "test")[:50]:
        text = "\n".join([*row.steps, f"#### {row.answer}"])
        scorer = SCORERS[get_dataset(name).card.scorer]
        assert scorer.score(text, Reference(row.question, row.answer, len(row.steps))).strict


@pytest.mark.parametrize("name", SMALL)
def test_no_test_question_is_trained_on_or_asked_twice(name: str):
    test, train = (load_records(name, "lines", split) for split in ("test", "train"))
    assert len({row.question for row in test}) == len(test)
    order = sorted if name.startswith("p24") else list  # the same four numbers in another order are the same problem
    known = {tuple(order(row.question.split())) for row in train}
    assert known.isdisjoint(tuple(order(row.question.split())) for row in test)


def test_four_numbers_take_no_more_than_three_steps():
    with pytest.raises(ValueError, match="3 operations, so not in 4 steps"):
        parallel24(Draw("test"), steps=4)
