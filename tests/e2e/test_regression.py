"""Values instead of classes, from the job to the report: nothing is called an accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.records.events import Epoch
from phalanx.records.position import read_position
from phalanx.records.rundir import RunDir
from support.runs import Place, events_of


@pytest.fixture
def place(place: Place) -> Place:
    """With values that are nearly a line through eight features."""
    random = np.random.default_rng(1)
    inputs = random.normal(size=(600, 8)).astype(np.float32)
    values = inputs @ random.normal(size=8) + 0.1 * random.normal(size=600)
    np.savez(place.folder / "made.npz", x=inputs, y=values.astype(np.float32))
    return place


def job(strategy: Any, **fields: Any) -> dict[str, Any]:
    return {
        "model": {"name": "mlp", "hidden": [16]},
        "data": "made.npz",
        "loss": "mse",
        "batch": {"global": 32},
        "optimizer": {"name": "adam", "lr": 0.01},
        "epochs": 6,
        "threads": 1,
        "strategy": strategy,
    } | fields


STRATEGIES = [
    {"strategy": "single"},
    {"strategy": "allreduce", "workers": 2},
    {"strategy": {"name": "parameter_server", "consistency": "async"}, "workers": 2},
    pytest.param({"strategy": "split", "workers": 2}, marks=pytest.mark.full),
    pytest.param({"strategy": "local_sgd", "workers": 2}, marks=pytest.mark.full),
    pytest.param({"strategy": "allreduce", "workers": 2, "backend": "ddp"}, marks=pytest.mark.full),
]


@pytest.mark.parametrize(
    "fields", STRATEGIES, ids=lambda fields: str(fields.get("backend", fields["strategy"]))
)
def test_a_job_with_values_has_errors_and_no_accuracy(place: Place, fields: dict[str, Any]) -> None:
    place.write_job(job(**fields))
    summary = place.summary("job.yaml")
    for key in ("train_accuracy", "val_accuracy", "test_accuracy"):
        assert summary[key] is None, key
    metrics = summary["test_metrics"]
    assert metrics["r2"] > 0.8
    assert metrics["rmse"] ** 2 == pytest.approx(summary["test_loss"], rel=1e-4)
    assert 0 < metrics["mae"] < metrics["rmse"]
    assert summary["val_metrics"].keys() == metrics.keys()
    run = RunDir(Path(summary["run_dir"]))
    process = "controller" if "name" in fields["strategy"] else "worker-0"
    epochs = [event for event in events_of(run, process) if isinstance(event, Epoch)]
    assert [event.train_accuracy for event in epochs] == [None] * 6
    best = min(epochs, key=lambda event: event.val_loss or 0.0)
    assert read_position(run.path / "checkpoints" / "best.safetensors").epoch == best.epoch + 1


def test_no_word_on_screen_or_in_a_report_is_about_accuracy(place: Place) -> None:
    place.write_job(job("single", early_stop={"patience": 1, "min_delta": 1e9}))
    shown = place.run("train", "job.yaml")
    assert shown.returncode == 0, shown.stderr
    assert "stopped early" in shown.stdout, "by the loss, which is the default"
    assert "r2 0." in shown.stdout
    said = shown.stdout + shown.stderr
    run = next(place.runs.glob("job-*"))
    for command in (("runs", "show", run.name), ("report", run.name, "--markdown", "report.md")):
        done = place.run(*command)
        assert done.returncode == 0, done.stderr
        said += done.stdout
    said += (place.folder / "report.md").read_text()
    assert "test loss" in said
    assert "accura" not in said.lower()
