"""Data, network and loss of the user's own: any number of workers comes to the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phalanx.results.trained_run import open_run
from support.runs import Place

PARTS = """
import torch
from torch import nn
from torch.utils.data import Dataset


class Lines(Dataset):
    def __init__(self, count, seed):
        draw = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 20, (count, 12), generator=draw)
        self.lengths = torch.randint(3, 13, (count,), generator=draw)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids, mask = self.ids[index], torch.arange(12) < self.lengths[index]
        return {"ids": ids, "mask": mask, "labels": torch.where(mask, (ids + 1) % 20, -100)}


def build():
    return {"train": Lines(301, 0), "validation": Lines(50, 1), "test": Lines(40, 2)}


class Next(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids, mask, labels=None):
        logits = self.out(self.table(ids) * mask[..., None])
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), labels)
        return {"logits": logits, "loss": loss}


def network(input_shapes):
    assert input_shapes == {"ids": (12,), "mask": (12,)}
    return Next()


def count_tokens(outputs, targets, *, scale):
    found = nn.functional.cross_entropy(
        outputs["logits"].transpose(1, 2), targets, reduction="sum"
    )
    return scale * found, (targets != -100).sum()


def hit_rate(outputs, targets):
    counted = targets != -100
    return ((outputs.argmax(-1) == targets) & counted).sum(), counted.sum()
"""
BSP = {"name": "parameter_server", "consistency": "bsp", "servers": 1}


@pytest.fixture
def place(place: Place) -> Place:
    (place.folder / "own_parts.py").write_text(PARTS)
    return place


def job(**fields: Any) -> dict[str, Any]:
    return {
        "python_path": ["."],
        "model": "own_parts:network",
        "data": "own_parts:build",
        "batch": {"global": 30},
        "optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9, "ema": 0.9},
        "metrics": ["perplexity", "own_parts:hit_rate"],
        "checkpoint": {"best": "val_hit_rate"},
        "epochs": 2,
        "threads": 1,
        "strategy": "single",
    } | fields


def weights(place: Place) -> np.ndarray[Any, Any]:
    found = open_run("last", runs=place.runs).state_dict(best=False)
    return np.concatenate([one.numpy().ravel() for one in found.values()])


@pytest.mark.parametrize(
    "fields",
    [
        {"strategy": "allreduce", "workers": 2, "batch": {"global": 30, "accumulate": 2}},
        {"strategy": BSP, "workers": 2, "loss": "model"},
        pytest.param({"strategy": "allreduce", "workers": 3}, marks=pytest.mark.full),
        pytest.param({"strategy": BSP, "workers": 3}, marks=pytest.mark.full),
        pytest.param(
            {
                "strategy": "allreduce",
                "workers": 2,
                "loss": {"name": "own_parts:count_tokens", "args": {"scale": 1.0}},
                "batch": {"global": 30, "shares": [3, 1]},
            },
            marks=pytest.mark.full,
        ),
    ],
)
def test_tokens_weigh_the_same_on_any_number_of_workers(
    place: Place, fields: dict[str, Any]
) -> None:
    alone = place.summary(place.write_job(job()))
    expected = weights(place)
    found = place.summary(place.write_job(job(**fields)))
    assert np.abs(weights(place) - expected).max() < 1e-5
    for figure in ("train_loss", "train_accuracy", "val_loss", "test_loss", "test_accuracy"):
        assert found[figure] == pytest.approx(alone[figure], abs=1e-5), figure
    assert found["val_metrics"] == pytest.approx(alone["val_metrics"], abs=1e-4)
    assert found["val_metrics"]["hit_rate"] == pytest.approx(found["val_accuracy"])
    run = open_run("last", runs=place.runs)
    ids = np.arange(24).reshape(2, 12) % 20
    outputs = run.predict({"ids": ids, "mask": np.ones((2, 12), dtype=bool)})
    assert outputs.shape == (2, 12, 20)
    assert run.predict(run.open_data().test).shape == (40, 12, 20)
