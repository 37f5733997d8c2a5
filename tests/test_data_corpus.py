"""Batches grouped by length."""

import numpy as np

from benchmarks.data import epoch_batches

LENGTHS = np.random.Generator(np.random.PCG64(3)).integers(5, 300, size=4_010)


def test_every_index_once_in_batches_of_the_size_asked():
    batches = epoch_batches(LENGTHS, 16, seed=0, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(4_010))
    assert sorted({len(batch) for batch in batches}) == [10, 16]


def test_a_function_of_seed_and_epoch():
    def flat(seed: int, epoch: int) -> list[int]:
        return np.concatenate(epoch_batches(LENGTHS, 16, seed, epoch)).tolist()

    assert flat(0, 1) == flat(0, 1)
    assert flat(0, 1) != flat(0, 2)
    assert flat(0, 1) != flat(1, 1)


def test_little_is_padding():
    batches = epoch_batches(LENGTHS, 16, seed=0, epoch=0)
    padded = sum(LENGTHS[batch].max() * len(batch) for batch in batches)
    assert padded < 1.1 * LENGTHS.sum()


def test_fewer_rows_than_a_batch():
    (batch,) = epoch_batches(np.array([3, 1, 2]), 8, seed=0, epoch=0)
    assert sorted(batch) == [0, 1, 2]


def test_batches_of_random_rows():
    batches = epoch_batches(LENGTHS, 16, seed=0, epoch=0, group_by_length=False)
    assert sorted(np.concatenate(batches)) == list(range(4_010))
    assert np.median([LENGTHS[batch].std() for batch in batches]) > 0.9 * LENGTHS.std()
