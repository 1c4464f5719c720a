"""The recipes of published studies: every cell is a job, and the figures beside them fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.records.study import StudyManifest
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.model import UserModelSpec
from phalanx.spec.optimize import SgdSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.schedule import MilestonesSpec
from phalanx.spec.split import SplitSpec
from phalanx.spec.study_file import load_study
from phalanx.spec.switch import SwitchSpec
from phalanx.study.plan import plan_study
from phalanx_published.figures import PublishedSpec, load_published
from phalanx_redshift.settings import SpectraSpec

RECIPES = Path(__file__).parents[2] / "recipes"


def plan(name: str) -> StudyManifest:
    return plan_study(load_study(RECIPES / name), data_root=Path(), cache_root=Path())


def figures(name: str) -> PublishedSpec:
    return load_published(RECIPES / name / "published.yaml")


@pytest.mark.parametrize(
    ("name", "num_cells"),
    [
        ("ps-vs-mirrored/full.yaml", 12),
        ("ps-vs-mirrored/small.yaml", 12),
        ("ps-vs-mirrored/full-tensorflow.yaml", 12),
        ("ps-vs-mirrored/small-tensorflow.yaml", 4),
        ("ps-vs-mirrored/five-machines.yaml", 4),
        ("ps-vs-mirrored/shards.yaml", 4),
        ("batch-sweep/full.yaml", 9),
        ("batch-sweep/small.yaml", 9),
        ("strategy-switch/full-resnet.yaml", 5),
        ("strategy-switch/full-densenet.yaml", 5),
        ("strategy-switch/small.yaml", 6),
        ("strategy-switch/five-machines.yaml", 5),
        ("strategy-switch/full-resnet-tensorflow.yaml", 5),
        ("strategy-switch/full-densenet-tensorflow.yaml", 5),
        ("strategy-switch/small-tensorflow.yaml", 6),
        ("data-distribution/full.yaml", 136),
        ("data-distribution/small.yaml", 19),
        ("model-split/full.yaml", 7),
        ("model-split/small.yaml", 7),
        ("model-split/fusion.yaml", 5),
        ("peers/sync.yaml", 6),
        ("peers/async.yaml", 4),
        ("peers/operators.yaml", 6),
    ],
)
def test_every_cell_is_a_job(name: str, num_cells: int) -> None:
    assert len(plan(name).cells) == num_cells


def test_the_cases_keep_their_networks_and_machines() -> None:
    redshift = plan("data-distribution/full.yaml")
    assert {job_from_mapping(cell.job).workers for cell in redshift.cells} == {1, 2, 3, 4, 5}
    spectra = job_from_mapping(redshift.cells[0].job).data.settings
    assert isinstance(spectra, SpectraSpec)
    assert (spectra.bins, spectra.classes) == (1780, 800)
    for name in ("full", "small"):
        split = plan(f"model-split/{name}.yaml")
        jobs = [job_from_mapping(cell.job) for cell in split.cells]
        assert all(job.model == UserModelSpec(name="phalanx_land_cover:NETWORK") for job in jobs)
        placements = [job.strategy.placement for job in jobs if isinstance(job.strategy, SplitSpec)]
        assert placements == ["round_robin", "by_layers", "by_parameters", "planned"]
    for manifest in (plan("data-distribution/small.yaml"), plan("model-split/small.yaml")):
        assert len(manifest.seeds) >= 3


@pytest.mark.parametrize("name", ["peers/sync.yaml", "peers/async.yaml"])
def test_peers_differ_in_the_backend_alone(name: str) -> None:
    manifest = plan(name)
    by_network: dict[str, list[dict[str, object]]] = {}
    for cell in manifest.cells:
        job = {key: value for key, value in cell.job.items() if key != "backend"}
        by_network.setdefault(cell.settings["network"], []).append(job)
    for jobs in by_network.values():
        assert all(job == jobs[0] for job in jobs)
    assert manifest.gate is not None
    assert (manifest.gate.axis, manifest.gate.baseline) == ("backend", "native")


def test_roles_are_as_published() -> None:
    jobs = {cell.settings["roles"]: cell.job for cell in plan("ps-vs-mirrored/full.yaml").cells}
    assert (jobs["PS"]["workers"], jobs["PS"]["strategy"]["servers"]) == (6, 2)
    assert (jobs["MW"]["workers"], jobs["MW"]["strategy"]["name"]) == (9, "allreduce")
    assert {job["epochs"] for job in jobs.values()} == {25}


@pytest.mark.parametrize("name", ["ps-vs-mirrored", "batch-sweep"])
def test_published_figures_are_of_cells_of_the_full_study(name: str) -> None:
    manifest = plan(f"{name}/full.yaml")
    published = figures(name)
    settings = [row.settings for table in published.tables for row in table.rows]
    settings += [curve.settings for curve in published.curves]
    for wanted in settings:
        assert any(wanted.items() <= cell.settings.items() for cell in manifest.cells), wanted
    covered = published.tables[0].rows
    assert all(
        any(row.settings.items() <= cell.settings.items() for row in covered)
        for cell in manifest.cells
    )


def test_the_impossible_accuracy_is_marked() -> None:
    (slip,) = figures("ps-vs-mirrored").corrections
    assert (slip.value, slip.printed) == (None, 1.0015)
    assert slip.note


def test_corrected_ratios_follow_from_the_printed_times() -> None:
    published = figures("batch-sweep")
    by_title = {table.title: table for table in published.tables}
    tensorflow = by_title["Operator times of one epoch, TensorFlow"].rows
    spark = by_title["Operator times of one epoch, Spark with Horovod"].rows
    for row, tf, other in zip(
        by_title["All-reduce in the operator tables"].rows, tensorflow, spark, strict=True
    ):
        assert row.settings == tf.settings == other.settings
        ours, theirs = other.values["spark_AllReduce"].value, tf.values["tf_AllReduce"].value
        assert ours is not None
        assert theirs is not None
        ratio = row.values["ratio_allreduce"]
        assert ratio.value == pytest.approx(ours / theirs, abs=0.005)
        if isinstance(ratio.printed, float):
            assert ratio.printed == pytest.approx(theirs / ours, abs=0.01), "it was turned round"


def switch_jobs(name: str) -> dict[str, JobSpec]:
    cells = plan(f"strategy-switch/{name}.yaml").cells
    return {cell.settings["strategy"]: job_from_mapping(cell.job) for cell in cells}


@pytest.mark.parametrize(
    ("name", "epochs", "drops", "switches"),
    [
        ("full-resnet", 180, (80, 130), (45, 90, 135)),
        ("full-densenet", 40, (20, 30), (10, 20, 30)),
        ("small", 18, (8, 13), (4.5, 9, 13.5)),
    ],
)
def test_switches_and_decays_are_as_published(
    name: str, epochs: int, drops: tuple[int, ...], switches: tuple[float, ...]
) -> None:
    jobs = switch_jobs(name)
    for job in jobs.values():
        assert isinstance(job.optimizer, SgdSpec)
        assert isinstance(job.schedule, MilestonesSpec)
        assert (job.optimizer.lr, job.optimizer.momentum, job.global_batch) == (0.1, 0.9, 128)
        assert (job.epochs, job.schedule.at_epochs, job.schedule.factor) == (epochs, drops, 0.1)
        assert job.data.augment == (() if name == "full-densenet" else ("flip", "pad-crop"))
    servers = jobs["PS"].strategy
    assert isinstance(servers, ParameterServerSpec)
    assert (servers.consistency, servers.lr_scaling) == ("async", "by_workers")
    for label, epoch in zip(("SS25", "SS50", "SS75"), switches, strict=True):
        strategy = jobs[label].strategy
        assert isinstance(strategy, SwitchSpec)
        first, second = strategy.resolved
        assert (first.strategy, second.strategy) == (jobs["MW"].strategy, servers)
        assert isinstance(second.at, float)
        assert second.at * epochs == epoch


def test_figures_of_both_networks_stand_beside_their_cells() -> None:
    tables = figures("strategy-switch").tables
    for table, name in zip(tables, ("full-resnet", "full-densenet"), strict=False):
        cells = [cell.settings for cell in plan(f"strategy-switch/{name}.yaml").cells]
        assert [row.settings for row in table.rows] == cells
    shown = [cell.settings for cell in plan("strategy-switch/small.yaml").cells]
    assert all(row.settings in shown for row in tables[0].rows)


def test_the_slip_in_the_text_is_marked() -> None:
    (slip,) = figures("strategy-switch").corrections
    assert (slip.value, slip.printed) == (0.9229, "0.9429 in the text")
