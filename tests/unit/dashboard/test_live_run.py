"""What a live run shows is what its records, read whole, say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from phalanx.dashboard.live_run import LiveRun
from phalanx.dashboard.machine_sections import machine_section, map_section
from phalanx.dashboard.run_sections import (
    event_section,
    fault_section,
    learning_section,
    progress_section,
    speed_section,
    switch_section,
)
from phalanx.dashboard.series import MAX_SAMPLES
from phalanx.records.events import Clock, Event, Failure, HostSample, Started, Step, Switched
from phalanx.records.log import read_logs
from phalanx.records.rundir import RunDir
from phalanx.records.step_phases import Comparison
from phalanx.report.document import Figure, Section, Table
from support.records import MIB, Outcome, write_run

JOB = {"name": "made-up", "model": "mlp", "data": "digits", "workers": 3, "strategy": "allreduce"}


def text_of(section: Section | None) -> str:
    assert section is not None
    return str(msgspec.json.encode(section), "utf-8")


def append(run: RunDir, process: str, *events: Event) -> None:
    with run.events_path(process).open("ab") as file:
        for event in events:
            file.write(msgspec.json.encode(event) + b"\n")


def test_phases_are_those_of_the_whole_logs(tmp_path: Path) -> None:
    run = write_run(tmp_path, "one", JOB, Outcome(num_steps=40))
    live = LiveRun(run)
    live.poll()
    logs = read_logs(run.path / "events")
    compared = Comparison([event for events in logs.values() for event in events])
    for worker, events in logs.items():
        phases = [compared.phases(event) for event in events if isinstance(event, Step)]
        sums = live.state.steps.totals[worker]
        assert sums.wait_s == pytest.approx(sum(one.wait_s for one in phases))
        assert sums.communication_s == pytest.approx(sum(one.communication_s for one in phases))
        assert sums.input_s == pytest.approx(sum(one.input_s for one in phases))


def test_pieces_give_the_state_of_the_whole(tmp_path: Path) -> None:
    whole = write_run(tmp_path, "whole", JOB, Outcome(num_steps=40, warning="late"))
    grown = write_run(tmp_path, "grown", JOB, Outcome(num_steps=40, warning="late"))
    contents = {path: path.read_bytes() for path in (grown.path / "events").glob("*")}
    for path in contents:
        path.write_bytes(b"")
    live = LiveRun(grown)
    for cut in range(0, max(map(len, contents.values())) + 500, 500):
        for path, content in contents.items():
            path.write_bytes(content[:cut])
        live.poll()
    at_once = LiveRun(whole)
    at_once.poll()
    for section in (progress_section, learning_section, speed_section, machine_section):
        assert text_of(section(live)) == text_of(section(at_once))


def test_a_fault_and_a_switch_are_told_with_their_reasons(tmp_path: Path) -> None:
    run = write_run(tmp_path, "one", JOB)
    live = LiveRun(run)
    live.poll()
    assert fault_section(live) is None
    assert switch_section(live) is None
    append(
        run,
        "controller",
        Failure(rank=1, cause="worker-1 was killed by signal 9", wall_s=1_800_000_003.0),
        Switched(
            phase=1,
            before="allreduce",
            after="parameter_server",
            cause="the gradients are quiet",
            epoch=1,
            samples=512,
            pause_s=0.04,
            carried=[],
        ),
    )
    assert live.poll()
    assert "killed by signal 9" in text_of(fault_section(live))
    assert "the gradients are quiet" in text_of(switch_section(live))
    assert "the gradients are quiet" in text_of(event_section(live))
    assert not live.poll()


def test_a_replaced_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    run = write_run(tmp_path, "one", JOB, Outcome(num_steps=40))
    live = LiveRun(run)
    live.poll()
    before = live.state.steps.totals["worker-0"].samples
    content = run.events_path("worker-0").read_bytes()
    run.events_path("worker-0").write_bytes(content[: len(content) * 3 // 4])
    assert live.poll()
    live.poll()
    assert 0 < live.state.steps.totals["worker-0"].samples < before


def _host_sample(host: str, second: float) -> HostSample:
    return HostSample(
        host=host,
        cpu_user_s=second,
        cpu_system_s=0.0,
        cpu_idle_s=second,
        core_busy_s=[second / 2] * 2,
        load_1min=1.0,
        memory_used_bytes=MIB,
        memory_total_bytes=4 * MIB,
        received_bytes={"eth0": int(MIB * second)},
        sent_bytes={"eth0": int(2 * MIB * second)},
        wall_s=1_800_000_000.0 + second,
        mono_s=100.0 + second,
    )


def _machines(tmp_path: Path, num_machines: int, num_samples: int) -> RunDir:
    run = write_run(tmp_path, "many", JOB, Outcome(sampled=False))
    for number in range(num_machines):
        samples = [_host_sample(f"pc{number}", 5.0 * tick) for tick in range(num_samples)]
        started = Started(
            rank=number,
            role="worker",
            pid=1,
            host=f"pc{number}",
            attempt=1,
            threads=1,
            cpus=[0],
            precision="fp32",
            precision_reason="",
            startup_s=0.0,
            wall_s=1_800_000_000.0,
            mono_s=100.0,
        )
        append(run, f"worker-{number}", started, *samples)
    return run


def test_machines_of_a_long_run_are_thinned_on_the_server(tmp_path: Path) -> None:
    live = LiveRun(_machines(tmp_path, 10, 3000))
    while live.poll() or live.num_bytes_left:
        pass
    assert all(len(points) <= MAX_SAMPLES + 1 for points in live.state.hosts.values())
    section = machine_section(live)
    assert section is not None
    figure = next(block for block in section.blocks if isinstance(block, Figure))
    processor = figure.panels[0].spec["data"]["values"]
    assert len(processor) <= 150
    # Totals: however few samples are kept, the rate is right.
    assert {row["value"] for row in processor} == {50.0}
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert len(table.rows) == 10
    assert "worker-9" in text_of(map_section(live))


def test_what_the_page_gets_does_not_grow_with_the_length_of_a_run(tmp_path: Path) -> None:
    sizes = []
    for number, num_samples in enumerate((300, 3000)):
        live = LiveRun(_machines(tmp_path / str(number), 50, num_samples))
        while live.poll() or live.num_bytes_left:
            pass
        found = [machine_section(live), map_section(live)]
        sizes.append(len(msgspec.json.encode(found)))
    assert sizes[1] < 1.3 * sizes[0]


def test_clocks_of_machines_are_not_believed(tmp_path: Path) -> None:
    run = write_run(tmp_path, "one", {**JOB, "workers": 1}, Outcome(sampled=False, num_steps=1))
    run.events_path("worker-0").write_bytes(b"")
    append(run, "controller", Failure(rank=None, cause="a", wall_s=1_000_000.0, mono_s=10.0))
    append(
        run,
        "worker-0",
        Clock(offset_s=-500.0, error_s=0.001, wall_s=999.0, mono_s=511.0),
        Failure(rank=0, cause="b", wall_s=999.0, mono_s=515.0),
    )
    live = LiveRun(run)
    live.poll()
    assert [(line.text, line.time_s) for line in live.state.faults] == [("a", 0.0), ("b", 5.0)]
