"""Batches of similar length, so that little of a batch is padding."""

from __future__ import annotations

import numpy as np

CHUNK = 50  # batches that are sorted by length together: longer chunks pad less, shorter ones shuffle better


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the indices of each batch of an epoch. They depend on no other randomness than ``seed`` and ``epoch``, and
    every index occurs once.

    Rows are shuffled, sorted by length within chunks of :data:`CHUNK` batches and cut into batches, which are then
    shuffled. If the cut leaves a smaller batch over, it is kept. It is an update like any other, with losses divided by
    its own counts, so each of its examples weighs more in that update than an example of a full batch does.
    """
    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = generator.permutation(len(lengths))
    chunk = np.arange(len(order)) // (CHUNK * batch_size)
    order = order[np.lexsort((lengths[order], chunk))]
    batches = np.split(order, np.arange(batch_size, len(order), batch_size))
    return [batches[i] for i in generator.permutation(len(batches))]
