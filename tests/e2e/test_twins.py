"""Keras twins in real runs: what several workers know of statistics becomes one."""

from __future__ import annotations

import pytest

from support.runs import Place

pytest.importorskip("tensorflow", reason="the extra 'tensorflow' is not installed")


@pytest.mark.full
def test_a_network_with_statistics_trains_on_two_mirrored_workers(place: Place) -> None:
    place.write_job(
        {
            "backend": "tensorflow",
            "model": {"name": "resnet", "n": 1},
            "data": "digits",
            "batch": {"global": 64},
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
            "epochs": 4,
            "workers": 2,
        }
    )
    summary = place.summary("job.yaml")
    assert summary["backend"] == "tensorflow"
    # Evaluated with statistics that were averaged: those of one worker, or none, would not do.
    assert summary["test_accuracy"] > 0.9
