"""Split networks as a user runs them: real processes, checkpoints, faults."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.records.events import Failure, Placed, Step, Warned
from phalanx.records.position import newest_position
from phalanx.records.rundir import RunDir
from support.runs import Place, events_of, is_running

# The product's promise, from the fault to its being noticed.
NOTICED_S = 10.0
NETWORK = """
from torch import nn

from phalanx.model.parts import Columns, PartedNetwork


def branched(num_classes, dropout=0.3):
    return PartedNetwork(
        {
            "image.conv1": nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
            ),
            "image.conv2": nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True)),
            "image.dense": nn.Sequential(nn.Flatten(), nn.Linear(128, 16), nn.Dropout(dropout)),
            "vector": nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Dropout(dropout)),
            "trunk": nn.Linear(32, num_classes),
        },
        reads={
            "image.conv1": ["image"],
            "image.conv2": ["image.conv1"],
            "image.dense": ["image.conv2"],
            "vector": ["vector_in"],
            "trunk": ["image.dense", "vector"],
        },
        inputs={"image": Columns(0, 48, (3, 4, 4)), "vector_in": Columns(48, 68)},
    )
"""


@pytest.fixture
def place(place: Place) -> Place:
    """With a network of two branches and samples for it."""
    (place.folder / "nets.py").write_text(NETWORK)
    random = np.random.default_rng(1)
    inputs = random.normal(size=(600, 68)).astype(np.float32)
    rule = random.normal(size=(68, 4))
    np.savez(place.folder / "made.npz", x=inputs, y=(inputs @ rule).argmax(1))
    return place


def job(**fields: Any) -> dict[str, Any]:
    strategy = {"name": "split"} | fields.pop("strategy", {})
    return {
        "model": "nets:branched",
        "data": "made.npz",
        "batch": {"global": 40},
        "optimizer": {"name": "adam", "lr": 0.003},
        "epochs": 2,
        "workers": 3,
        "threads": 1,
        "strategy": strategy,
    } | fields


def step_losses(run: str) -> list[float]:
    """Loss of each step, added up over the workers."""
    found: dict[int, float] = {}
    for path in sorted((Path(run) / "events").glob("worker-*.jsonl")):
        for event in events_of(RunDir(Path(run)), path.stem):
            if isinstance(event, Step):
                found[event.step] = found.get(event.step, 0.0) + event.loss_sum
    return [found[step] for step in sorted(found)]


@pytest.mark.parametrize(
    "strategy",
    [
        {},
        pytest.param({"placement": "round_robin"}, marks=pytest.mark.full),
        pytest.param(
            {"placement": {"image.*": 1, "vector": 2, "trunk": 0}}, marks=pytest.mark.full
        ),
    ],
    ids=["planned", "round_robin", "given"],
)
def test_a_split_run_equals_a_single_one(place: Place, strategy: dict[str, Any]) -> None:
    place.write_job(job(strategy=strategy))
    place.write_job(job() | {"strategy": "single", "workers": 1}, "single.yaml")
    split, single = place.summary("job.yaml"), place.summary("single.yaml")
    assert step_losses(split["run_dir"]) == pytest.approx(step_losses(single["run_dir"]), rel=1e-5)
    for key in ("train_loss", "val_loss", "val_accuracy", "test_loss", "test_accuracy"):
        assert split[key] == pytest.approx(single[key], rel=1e-5), key
    for key in ("samples", "updates", "epochs", "parameters"):
        assert split[key] == single[key]


def test_what_was_sent_is_what_was_predicted_and_what_the_sockets_carried(place: Place) -> None:
    place.write_job(job(strategy={"placement": {"image.*": 1, "vector": 2, "trunk": 0}}))
    summary = place.summary("job.yaml")
    split = summary["split"]
    assert split["bytes_per_step"] == pytest.approx(split["predicted_bytes_per_step"], rel=0.05)
    assert split["predicted_bytes_per_step"] == 2 * 40 * (16 + 16) * 4
    by_link = {(one["source"], one["target"], one["kind"]) for one in split["links"]}
    assert {(1, 0, "activations"), (0, 1, "gradients"), (2, 0, "activations")} <= by_link
    # Measuring the links, checkpoints and meetings come on top; framing is small.
    assert summary["bytes_sent"] == pytest.approx(split["socket_bytes"], rel=0.05)
    assert split["workers"][0]["parts"] == ["trunk"]
    assert all(one["cpu_s"] > 0 for one in split["workers"])
    placed = [one for one in controller_events(summary) if isinstance(one, Placed)]
    assert [one.placement for one in placed[0].others] == [
        "round_robin",
        "by_layers",
        "by_parameters",
        "data_parallel",
    ]


def controller_events(summary: dict[str, Any]) -> list[Any]:
    return events_of(RunDir(Path(summary["run_dir"])), "controller")


def test_the_forecast_is_printed_before_and_the_measures_after(place: Place) -> None:
    place.write_job(job(epochs=1))
    done = place.run("train", "job.yaml")
    assert done.returncode == 0, done.stderr
    assert "placement planned" in done.stdout + done.stderr
    assert "round_robin would be: step" in done.stdout + done.stderr
    assert "(predicted" in done.stdout


def test_micro_batches_replicas_and_bf16_work_together(place: Place) -> None:
    strategy = {
        "micro_batches": 4,
        "schedule": "gpipe",
        "wire": "bf16",
        "replicate": {"image.*": [0, 1]},
        "placement": {"*": 2},
    }
    place.write_job(job(strategy=strategy, epochs=4))
    summary = place.summary("job.yaml")
    assert summary["train_accuracy"] > 0.5
    kinds = summary["split"]["bytes_by_kind"]
    assert set(kinds) == {"activations", "gradients", "parameters", "evaluation"}
    split = summary["split"]
    assert split["bytes_per_step"] == pytest.approx(split["predicted_bytes_per_step"], rel=0.05)
    warned = [
        one.message
        for one in events_of(RunDir(Path(summary["run_dir"])), "worker-0")
        if isinstance(one, Warned)
    ]
    assert any("batch norm sees one of 4 micro-batches" in text for text in warned)


def test_a_killed_machine_is_named_and_the_run_resumes_with_another_placement(
    place: Place,
) -> None:
    place.write_job(job(epochs=1_000_000, strategy={"placement": "by_layers"}))
    with place.start("job.yaml", "--quiet") as training:
        pids = training.worker_pids(3)
        training.wait_for_checkpoint()
        struck = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        code, errors = training.end()
        run = training.run
    assert code == 4
    assert "worker-1 was killed by SIGKILL" in errors
    failures = [one for one in events_of(run, "controller") if isinstance(one, Failure)]
    assert 0 < failures[0].mono_s - struck < NOTICED_S
    assert not any(map(is_running, pids))
    position = newest_position(run.checkpoints)
    assert position is not None
    settings = (f"epochs={position.epoch + 1}", "workers=2", "strategy.placement=round_robin")
    resumed = place.summary("--resume", str(run.path), *_set(*settings))
    assert resumed["attempts"] == 2
    assert resumed["epochs"] == position.epoch + 1
    assert resumed["split"]["placement"] == "round_robin"


def _set(*settings: str) -> list[str]:
    return [word for one in settings for word in ("--set", one)]


def test_a_split_run_goes_on_in_one_process_as_if_it_had_never_been_split(place: Place) -> None:
    """Checkpoints of all strategies have one form."""
    place.write_job(job(epochs=1, schedule={"name": "constant"}))
    split = place.summary("job.yaml")
    settings = ("epochs=2", "workers=1", "strategy={name: single}")
    resumed = place.summary("--resume", split["run_dir"], *_set(*settings))
    place.write_job(job(epochs=2) | {"strategy": "single", "workers": 1}, "single.yaml")
    single = place.summary("single.yaml")
    for key in ("train_loss", "val_loss", "test_loss", "samples"):
        assert resumed[key] == pytest.approx(single[key], rel=1e-5), key


def test_a_trained_network_answers_split_and_copied(place: Place) -> None:
    place.write_job(job(epochs=1))
    place.summary("job.yaml")
    found = {}
    for layout in ("split", "data"):
        done = place.run(
            "bench-inference",
            "last",
            "--layout",
            layout,
            "--workers",
            "2",
            "--requests",
            "8",
            "--json",
        )
        assert done.returncode == 0, done.stderr
        found[layout] = json.loads(done.stdout)
    assert [found[layout]["layout"] for layout in found] == ["split", "data_parallel"]
    assert [found[layout]["requests"] for layout in found] == [8, 16]
    for facts in found.values():
        assert 0 < facts["latency_p50_s"] <= facts["latency_p95_s"]
        assert facts["samples_per_s"] > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strategy": {"placement": {"image": 7}}}, "puts part 'image' on worker 7"),
        ({"strategy": {"placement": {"nothing": 0, "*": 1}}}, "names part 'nothing'"),
        ({"strategy": {"memory": ["1MiB"]}}, "takes one entry per worker (3), not 1"),
        ({"strategy": {"memory": [1000, 1000, 1000]}}, "memory"),
        ({"precision": "auto"}, "split does not measure precisions"),
        ({"strategy": {"replicate": {"trunk": [1, 1]}}}, "takes different workers"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    place: Place, fields: dict[str, Any], message: str
) -> None:
    place.write_job(job(**fields))
    done = place.run("train", "job.yaml", "--quiet")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
