"""Derive what a script draws from its seed: batches from seed and epoch, dropout from the step."""

from __future__ import annotations

import torch

from phalanx.engine.rng import draw_seed


def session_seed() -> int:
    """Return the seed of the script: the one that it gave torch last."""
    return torch.initial_seed() % 2**32


def seed_batch(seed: int, rank: int, step: int, index: int) -> None:
    """Seed torch for the computation of one batch, so that a resumed run draws the same again."""
    torch.default_generator.manual_seed(draw_seed(draw_seed(seed, rank, step), index, 0) >> 1)
