"""Reading run and study directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx.report.facts import read_material, read_run
from support.records import MIB, Outcome, write_run, write_study

JOB = {"name": "tiny", "model": "mlp", "data": "digits", "workers": 2, "strategy": "allreduce"}


def test_a_run_gives_its_epochs_phases_and_resources(tmp_path: Path) -> None:
    run = write_run(tmp_path, "one", JOB, Outcome(train_s=10.0, epochs=3, num_steps=6))
    found = read_run(run)
    assert found.is_finished
    assert found.seed == 1
    assert [epoch.epoch for epoch in found.epochs] == [0, 1, 2]
    assert [process.name for process in found.processes] == ["worker-0", "worker-1"]
    sums = found.processes[0].sums
    assert sums.steps == 6
    assert sums.forward_s == pytest.approx(2.0)
    assert sums.backward_s == pytest.approx(4.0)
    machine, first, second = found.resources
    assert machine.is_machine
    assert machine.label == "machine hall-9"
    assert machine.figure("received_bytes") == pytest.approx(40 * MIB, rel=1e-6)
    assert first.use.cpu_cores == pytest.approx(1.0)
    assert first.figure("received_bytes") is None
    assert second.use.memory_peak_bytes == 210 * MIB


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    run = write_run(tmp_path, "one", JOB, Outcome(num_steps=5))
    log = run.events_path("worker-0")
    lines = log.read_bytes().splitlines(keepends=True)
    torn = next(index for index, line in enumerate(lines) if b'"kind":"step"' in line)
    lines[torn] = lines[torn][:40] + b"\n"
    log.write_bytes(b"".join(lines) + b'{"kind":"step","forward_s":1')
    assert read_run(run).processes[0].sums.steps == 4


def test_the_last_time_of_a_repeated_epoch_counts(tmp_path: Path) -> None:
    run = write_run(tmp_path, "one", JOB, Outcome(epochs=2))
    log = run.events_path("worker-0")
    again = next(
        line for line in log.read_bytes().splitlines() if line.startswith(b'{"kind":"epoch"')
    )
    later = again.replace(b'"train_loss":1.0', b'"train_loss":7.5').replace(
        b'"wall_s":18', b'"wall_s":19'
    )
    assert later != again
    log.write_bytes(log.read_bytes() + later + b"\n")
    assert [epoch.train_loss for epoch in read_run(run).epochs] == [7.5, 0.5]


def test_a_directory_of_runs_and_one_of_its_runs_count_each_run_once(tmp_path: Path) -> None:
    write_run(tmp_path, "b", JOB)
    one = write_run(tmp_path, "a", JOB)
    material = read_material([tmp_path, one.path])
    assert [run.name for run in material.runs] == ["a", "b"]
    assert material.study is None


def test_a_study_gives_its_plan_and_its_failed_trials(tmp_path: Path) -> None:
    write_study(
        tmp_path / "study",
        {"one": ({"roles": "AR"}, JOB)},
        [
            ("one", 1, Outcome()),
            ("one", 2, Outcome(state="failed", cause="disk full")),
            ("one", 3, Outcome(state="unborn", cause="no data")),
        ],
    )
    material = read_material([tmp_path / "study"])
    assert material.study is not None
    assert [(run.state, run.cause) for run in material.runs] == [
        ("finished", None),
        ("failed", "disk full"),
    ]
    assert [trial.cause for trial in material.stillborn] == ["no data"]


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no runs"):
        read_material([tmp_path])
    write_study(tmp_path / "study", {"one": ({"roles": "AR"}, JOB)}, [])
    with pytest.raises(SpecError, match="nothing has ended"):
        read_material([tmp_path / "study"])
