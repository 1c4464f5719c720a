"""Data that lie on the workers: every strategy ends its epochs, and the deal is on record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.records.events import Evaluation, Step
from phalanx.records.log import read_logs
from phalanx.records.rundir import RunDir
from support.runs import Place

NUM_TRAIN = 1294
JOB = """\
name: dealt
model: {{name: mlp, hidden: [16]}}
data: {{name: digits, distribution: {distribution}}}
batch: {{global: 48}}
epochs: 2
workers: 3
threads: 1
strategy: {strategy}
checkpoint: {{every_epochs: null, best: null}}
"""
LAND = """\
name: land
python_path: [RECIPE]
model: {name: phalanx_land_cover:NETWORK, args: {width: 0.1}}
data:
  name: phalanx_land_cover:SCENES
  args: {per_class: 8, size: 96, bands: 8, patch: 5, visible: 16, test_stride: 6}
  distribution: by_modality
batch: {global: 24}
epochs: 1
workers: 2
threads: 1
strategy: allreduce
""".replace("RECIPE", str(Path(__file__).parents[2] / "recipes" / "model-split"))


def train(place: Place, text: str) -> tuple[dict[str, object], RunDir]:
    (place.folder / "job.yaml").write_text(text)
    summary = place.summary("job.yaml")
    return summary, RunDir(place.folder / str(summary["run_dir"]))


@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce",
        pytest.param("{name: local_sgd, every: 1000}", marks=pytest.mark.full),
        "{name: parameter_server, consistency: async}",
        pytest.param("{name: parameter_server, consistency: bsp}", marks=pytest.mark.full),
    ],
)
def test_unequal_parts_end_together_and_every_sample_counts_once(
    place: Place, strategy: str
) -> None:
    text = JOB.format(distribution="{name: dirichlet, alpha: 0.1}", strategy=strategy)
    summary, run = train(place, text)
    assert summary["samples"] == 2 * NUM_TRAIN
    dealt = run.read_distribution()
    assert dealt is not None
    assert dealt.size_ratio > 1.5
    assert dealt.samples_per_epoch == NUM_TRAIN
    assert len({row for one in dealt.workers for row in one.rows}) == NUM_TRAIN
    steps = [one for log in read_logs(run.path / "events", Step).values() for one in log]
    assert sum(one.num_samples for one in steps if isinstance(one, Step)) == 2 * NUM_TRAIN


def test_replicas_see_everything_once_each_in_an_epoch(place: Place) -> None:
    text = JOB.format(
        distribution="replicated", strategy="{name: parameter_server, consistency: async}"
    )
    summary, _ = train(place, text)
    assert summary["samples"] == 2 * 3 * NUM_TRAIN


def test_dropping_ends_the_epoch_with_the_shortest(place: Place) -> None:
    text = JOB.format(
        distribution="{name: by_capacity, capacity: [4, 1, 1], at_end: drop}", strategy="allreduce"
    )
    summary, run = train(place, text)
    dealt = run.read_distribution()
    assert dealt is not None
    shortest = min(one.num_samples for one in dealt.workers)
    assert summary["updates"] == 2 * -(-shortest // 16)
    assert summary["samples"] == 2 * dealt.samples_per_epoch < 2 * NUM_TRAIN


def test_land_cover_is_judged_by_its_field_and_leaves_a_map(place: Place) -> None:
    summary, run = train(place, LAND)
    metrics = summary["test_metrics"]
    assert isinstance(metrics, dict)
    assert set(metrics) == {"accuracy", "mean_class_accuracy", "kappa"}
    assert metrics["accuracy"] == pytest.approx(summary["test_accuracy"])
    verdicts = run.read_predictions()
    assert verdicts is not None
    assert verdicts.grid is not None
    assert len(verdicts.predicted) == verdicts.grid[0] * verdicts.grid[1]
    right = sum(a == b for a, b in zip(verdicts.actual, verdicts.predicted, strict=True))
    assert right / len(verdicts.actual) == pytest.approx(summary["test_accuracy"])
    said = [one for log in read_logs(run.path / "events", Evaluation).values() for one in log]
    judged = [one for one in said if isinstance(one, Evaluation) and "kappa" in one.metrics]
    assert [one.part for one in judged] == ["validation", "test"]
    dealt = json.loads((run.path / "distribution.json").read_text())
    assert [one["modalities"] for one in dealt["workers"]] == [
        ["hyperspectral", "sar"],
        ["lidar", "visible"],
    ]
