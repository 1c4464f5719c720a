"""Compute orders of samples and sizes of shares, on which sharding builds. Pure.

Random orders are sorted keys of the Philox generator, whose raw output numpy promises to keep; its
own `permutation` may change between versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def random_order(num_samples: int, key: Sequence[int]) -> Indices:
    """Return a permutation of 0..num_samples-1 that depends on nothing but the key."""
    words = np.random.Philox(np.random.SeedSequence(list(key))).random_raw(num_samples)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


@dataclass(frozen=True)
class EpochOrder:
    """Order of the samples in an epoch: a function of seed and epoch alone."""

    num_samples: int
    seed: int
    shuffle: bool

    def permutation(self, epoch: int) -> Indices:
        """Return the order that all workers share."""
        if not self.shuffle:
            return np.arange(self.num_samples, dtype=np.int64)
        return random_order(self.num_samples, (self.seed, epoch))

    def permutation_of(self, epoch: int, rank: int) -> Indices:
        """Return the order of one worker, for the shard policy `off`."""
        if not self.shuffle:
            return np.arange(self.num_samples, dtype=np.int64)
        return random_order(self.num_samples, (self.seed, epoch, 1 + rank))


def share_sizes(
    count: int, num_workers: int, shares: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Divide `count` samples by the method of largest remainders; without shares, equally.

    Equal remainders go to the first ranks.
    """
    if shares is None:
        base, rest = divmod(count, num_workers)
        return tuple(base + (rank < rest) for rank in range(num_workers))
    if len(shares) != num_workers:
        raise ValueError(f"{len(shares)} shares for {num_workers} workers; give one each")
    # Fractions, because every worker must come to the same sizes whatever its floating point.
    total = sum(Fraction(share) for share in shares)
    quotas = [count * Fraction(share) / total for share in shares]
    sizes = [int(quota) for quota in quotas]
    by_remainder = sorted(range(num_workers), key=lambda rank: sizes[rank] - quotas[rank])
    for rank in by_remainder[: count - sum(sizes)]:
        sizes[rank] += 1
    return tuple(sizes)
