"""Batches grouped by length."""

import numpy as np

from benchmarks.data import epoch_batches

LENGTHS = np.random.Generator(np.random.PCG64(3)).integers(5, 300, size=4_010)


def test_little_is_padding():
    batches = epoch_batches(LENGTHS, 16, seed=0, epoch=0)
    padded = sum(LENGTHS[batch].max() * len(batch) for batch in batches)
    assert padded < 1.1 * LENGTHS.sum()


def test_batches_of_random_rows():
    batches = epoch_batches(LENGTHS, 16, seed=0, epoch=0, group_by_length=False)
    assert sorted(np.concatenate(batches)) == list(range(4_010))
    assert np.median([LENGTHS[batch].std() for batch in batches]) > 0.9 * LENGTHS.std()
