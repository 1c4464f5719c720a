"""Whole numbers reach an embedding as they are stored, under every strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.runs import Place

NETWORK = """
import torch
from torch import nn


class Bag(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.out = nn.Linear(8, num_classes)

    def forward(self, ids):
        return self.out(self.embedding(ids).mean(dim=1))


def bag(num_classes):
    return Bag(num_classes)
"""


@pytest.fixture
def place(place: Place) -> Place:
    """With an embedding, and sequences of 12 tokens of 50; the class is the most frequent third."""
    (place.folder / "nets.py").write_text(NETWORK)
    random = np.random.default_rng(1)
    classes = random.integers(0, 3, size=400)
    tokens = np.where(
        random.random((400, 12)) < 0.6,
        classes[:, None] + 3 * random.integers(0, 16, size=(400, 12)),
        random.integers(0, 50, size=(400, 12)),
    )
    np.savez(place.folder / "tokens.npz", x=tokens.astype(np.int32), y=classes)
    return place


def job(strategy: Any, **fields: Any) -> dict[str, Any]:
    return {
        "model": "nets:bag",
        "data": "tokens.npz",
        "batch": {"global": 32},
        "optimizer": {"name": "adam", "lr": 0.05},
        "epochs": 4,
        "threads": 1,
        "strategy": strategy,
    } | fields


@pytest.mark.parametrize(
    "fields",
    [
        {"strategy": "single"},
        {"strategy": "allreduce", "workers": 2},
        {"strategy": {"name": "parameter_server", "consistency": "async"}, "workers": 2},
        {"strategy": "split", "workers": 2},
        pytest.param({"strategy": "local_sgd", "workers": 2}, marks=pytest.mark.full),
        pytest.param(
            {"strategy": "allreduce", "workers": 2, "backend": "ddp"}, marks=pytest.mark.full
        ),
    ],
    ids=lambda fields: str(fields.get("backend", fields["strategy"])),
)
def test_token_ids_reach_an_embedding(place: Place, fields: dict[str, Any]) -> None:
    place.write_job(job(**fields))
    summary = place.summary("job.yaml")
    # Of one third by chance: the ids mean what they meant when they were stored.
    assert summary["test_accuracy"] > 0.7
