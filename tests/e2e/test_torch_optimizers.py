"""Optimisers of torch.optim in real runs: their state passes between strategies to the bit."""

from __future__ import annotations

from typing import Any

import pytest

from support.runs import Place

SERVED = "strategy={name: parameter_server, consistency: bsp, servers: 2, min_shard_bytes: 1024}"
JOB: dict[str, Any] = {
    "model": {"name": "cnn", "filters": 4, "dense": 16},
    "data": {"name": "digits", "limit": 640},
    "batch": {"global": 64},
    # One worker: its gradients are the same, whoever applies them.
    "workers": 1,
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    # Factored moments, which belong to whole tensors.
    "factored": {"name": "torch.optim:Adafactor", "lr": 0.02},
    # Two groups, cut inside tensors.
    "groups": {
        "name": "torch.optim:NAdam",
        "args": {"weight_decay": 0.01},
        "groups": [{"match": ["*bias"], "args": {"weight_decay": 0.0, "lr": 0.01}}],
    },
}


@pytest.mark.parametrize("name", ["factored", pytest.param("groups", marks=pytest.mark.full)])
def test_a_run_resumed_on_servers_and_off_them_ends_as_one_alone(place: Place, name: str) -> None:
    place.write_job(JOB | {"optimizer": OPTIMIZERS[name], "strategy": "single"})
    alone = place.summary("job.yaml", "--set", "name=alone", "--epochs", "3")
    place.summary("job.yaml", "--set", "name=moved", "--set", SERVED, "--epochs", "1")
    place.summary("--resume", "moved", "--epochs", "2", "--set", "strategy=single")
    moved = place.summary("--resume", "moved", "--epochs", "3", "--set", SERVED)
    assert (moved["attempts"], moved["samples"]) == (3, alone["samples"])
    assert moved["parameters_sha256"] == alone["parameters_sha256"]
    assert moved["test_loss"] == pytest.approx(alone["test_loss"], abs=1e-6)


def test_an_optimiser_that_needs_a_closure_is_refused_before_anything_starts(place: Place) -> None:
    place.write_job(JOB | {"optimizer": "torch.optim:LBFGS"})
    done = place.run("train", "job.yaml")
    assert done.returncode == 2
    assert "'torch.optim:LBFGS' cannot be used: it computes the loss several times" in done.stderr
    place.write_job(JOB | {"optimizer": "torch.optim:Muon"})
    done = place.run("train", "job.yaml")
    assert done.returncode == 2
    assert "Muon only supports 2D parameters" in done.stderr
