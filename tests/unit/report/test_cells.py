"""Which runs belong together, and what they are called."""

from __future__ import annotations

from pathlib import Path

from phalanx.records.manifest import read_manifest, write_manifest
from phalanx.report.cells import axis_roles, differences, group_runs
from phalanx.report.facts import read_material
from support.records import Outcome, write_run, write_study

JOB = {"name": "tiny", "model": "mlp", "data": "digits", "workers": 2, "strategy": "allreduce"}
RATE = {"optimizer": {"name": "sgd", "lr": 0.05}}


def test_runs_that_differ_in_seed_and_name_only_make_a_cell(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {**JOB, "seed": 2})
    write_run(tmp_path, "b", {**JOB, "seed": 1, "name": "other"})
    write_run(tmp_path, "c", {**JOB, "batch": {"global": 32}})
    write_run(tmp_path, "d", {**JOB, "strategy": "single", "workers": 1})
    cells = group_runs(read_material([tmp_path]))
    assert [(cell.label, [run.seed for run in cell.runs]) for cell in cells] == [
        ("single (1 worker) · 128", [1]),
        ("allreduce (2 workers) · 32", [1]),
        ("allreduce (2 workers) · 128", [1, 2]),
    ]
    assert {cell.task for cell in cells} == {"mlp on digits"}


def test_runs_on_other_machines_of_a_pool_are_no_repeats(tmp_path: Path) -> None:
    for name, machines in (("a", ["pc1", "pc2"]), ("b", ["pc2", "pc1"]), ("c", ["pc3", "pc4"])):
        run = write_run(tmp_path, name, JOB)
        manifest = read_manifest(run)
        manifest.pool, manifest.machines = "pool.yaml", machines
        write_manifest(run, manifest)
    cells = group_runs(read_material([tmp_path]))
    assert [(cell.method, [run.name for run in cell.runs]) for cell in cells] == [
        ("allreduce (machines [pc1, pc2])", ["a", "b"]),
        ("allreduce (machines [pc3, pc4])", ["c"]),
    ]


def test_a_setting_without_a_name_of_its_own_is_named_in_the_label(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {**JOB, "strategy": {"name": "local_sgd", "every": 4}, **RATE})
    write_run(tmp_path, "b", {**JOB, "strategy": {"name": "local_sgd", "every": 16}, **RATE})
    write_run(tmp_path, "c", {**JOB, "optimizer": {"name": "sgd", "lr": 0.5}})
    labels = [cell.method for cell in group_runs(read_material([tmp_path]))]
    assert labels == [
        "allreduce (optimizer.lr 0.5)",
        "local_sgd (optimizer.lr 0.05, every 4)",
        "local_sgd (optimizer.lr 0.05, every 16)",
    ]


def test_a_switch_is_called_by_its_phases(tmp_path: Path) -> None:
    phases = [{"strategy": "allreduce"}, {"strategy": "local_sgd", "at": 0.25}]
    write_run(tmp_path, "a", {**JOB, "strategy": {"name": "switch", "phases": phases}})
    (cell,) = group_runs(read_material([tmp_path]))
    assert cell.method == "switch from allreduce at 0.25 to local_sgd"


def test_parts_of_one_kind_are_no_difference_beside_the_name() -> None:
    same, differing = differences(
        [
            {"strategy": {"name": "local_sgd", "every": 8}, "epochs": 3, "seed": 1},
            {"strategy": {"name": "single"}, "epochs": 3, "seed": 2},
        ]
    )
    assert differing == ["strategy.name"]
    _, nested = differences(
        [{"strategy": {"name": "switch", "auto": {"gain": 1}}}, {"strategy": {"name": "single"}}]
    )
    assert nested == ["strategy.name"]
    assert same == {"epochs": 3}


def test_models_and_data_are_tasks(tmp_path: Path) -> None:
    write_run(tmp_path, "a", JOB)
    write_run(tmp_path, "b", {**JOB, "model": "cnn"})
    tasks = [cell.task for cell in group_runs(read_material([tmp_path]))]
    assert tasks == ["cnn on digits", "mlp on digits"]


def test_which_sensors_a_network_reads_is_a_method(tmp_path: Path) -> None:
    for name, sensors in (("a", ["lidar"]), ("b", ["lidar", "sar"])):
        model = {"name": "phalanx_land_cover:NETWORK", "args": {"modalities": sensors}}
        write_run(tmp_path, name, {**JOB, "model": model, "data": "phalanx_land_cover:SCENES"})
    cells = group_runs(read_material([tmp_path]))
    assert {cell.method for cell in cells} == {
        "allreduce (model.args.modalities [lidar])",
        "allreduce (model.args.modalities [lidar, sar])",
    }
    assert {cell.task for cell in cells} == {
        "phalanx_land_cover:NETWORK on phalanx_land_cover:SCENES"
    }


def test_axes_of_a_study_give_the_labels(tmp_path: Path) -> None:
    cells = {
        f"{network}-{roles}-{batch}": (
            {"network": network, "roles": roles, "batch": batch},
            {
                "model": model,
                "data": "digits",
                "workers": workers,
                "strategy": strategy,
                "batch": {"per_worker": int(batch)},
            },
        )
        for network, model in (("small", "mlp"), ("large", "cnn"))
        for roles, workers, strategy in (("PS", 2, "parameter_server"), ("MW", 3, "allreduce"))
        for batch in ("32", "64")
    }
    study = write_study(tmp_path / "s", cells, [("small-MW-64", 1, Outcome())])
    assert axis_roles(study.manifest()) == {"network": "task", "roles": "method", "batch": "batch"}
    (cell,) = group_runs(read_material([tmp_path / "s"]))
    assert (cell.task, cell.label, cell.global_batch) == ("small", "MW · 64", 192)
