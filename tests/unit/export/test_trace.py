from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from phalanx.errors import StoreError
from phalanx.export.trace import write_trace
from phalanx.records.events import (
    Checkpoint,
    Clock,
    Decision,
    Evaluation,
    Failure,
    HostSample,
    ProcessSample,
    Served,
    Stall,
)
from phalanx.records.rundir import RunDir
from phalanx.wire.server_stats import ServerStats, StalenessStats
from support.written import started, step, write_run

FAR_S = 5000.0
"""How far the clock of rank 1's machine is ahead of the controller's."""
PHASES = {"input_s": 0.1, "forward_s": 0.2, "backward_s": 0.3, "apply_s": 0.1}


def trace_of(run: RunDir, name: str = "trace.json") -> dict[str, Any]:
    path = run.path / name
    write_trace(run, path)
    raw = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)
    return found


def processes(trace: dict[str, Any]) -> dict[str, int]:
    return {
        event["args"]["name"]: event["pid"]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }


def spans(trace: dict[str, Any], process: str) -> list[tuple[str, float, float]]:
    pid = processes(trace)[process]
    return [
        (event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["pid"] == pid
    ]


def lockstep_run(root: Path) -> RunDir:
    clock = Clock(offset_s=-FAR_S, error_s=0.001, mono_s=FAR_S + 10.0)
    return write_run(
        root,
        {
            "worker-0": [
                started(0, 10.0),
                step(1, 11.0, exchange_s=0.3, **PHASES),
                step(2, 12.0, exchange_s=0.1, overlapped_s=0.2, **PHASES),
                Evaluation(part="validation", epoch=0, num_samples=9, loss=1.0, accuracy=0.5,
                           duration_s=0.5, mono_s=13.0),
                Checkpoint(path="x", epoch=1, samples=4, size_bytes=9, duration_s=0.25,
                           mono_s=13.5),
            ],
            "worker-1": [
                clock,
                started(1, FAR_S + 10.0, startup_s=0.5),
                step(1, FAR_S + 11.0, exchange_s=0.1, **PHASES),
                step(2, FAR_S + 12.0, exchange_s=0.4, **PHASES),
            ],
            "controller": [
                Decision(what="replace worker-1", reason="lost", rank=1, mono_s=12.5),
                Failure(rank=1, cause="worker-1 was killed", mono_s=12.5),
            ],
        },
    )  # fmt: skip


def test_all_processes_are_on_the_controllers_clock(tmp_path: Path) -> None:
    trace = trace_of(lockstep_run(tmp_path))
    first, second = spans(trace, "worker-0"), spans(trace, "worker-1")
    # The run begins when rank 0 starts to start, at 9 s of the controller's clock.
    assert first[0] == ("start-up", pytest.approx(0.0), pytest.approx(1.0))
    assert second[0] == ("start-up", pytest.approx(0.5), pytest.approx(1.0))
    for rank in (first, second):
        ends = {name: end for name, _, end in rank if name.startswith("step")}
        assert ends == {"step 1": pytest.approx(2.0), "step 2": pytest.approx(3.0)}


def test_phases_lie_inside_their_step_and_waiting_is_told_by_comparison(tmp_path: Path) -> None:
    trace = trace_of(lockstep_run(tmp_path))
    first = [one for one in spans(trace, "worker-0") if one[0] in ("waiting", "exchange", "step 1")]
    assert first[:3] == [
        ("step 1", pytest.approx(1.0), pytest.approx(2.0)),
        ("waiting", pytest.approx(1.6), pytest.approx(1.8)),
        ("exchange", pytest.approx(1.8), pytest.approx(1.9)),
    ]
    # Rank 1 came last in step 1: it waited for nobody.
    early = [one for one in spans(trace, "worker-1") if one[1] < 1.99]
    assert "waiting" not in {name for name, *_ in early}


def test_spans_of_a_lane_never_cross(tmp_path: Path) -> None:
    trace = trace_of(lockstep_run(tmp_path))
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] > 0
            lane = lanes.setdefault((event["pid"], event["tid"]), [])
            lane.append((event["ts"], event["ts"] + event["dur"]))
    for lane in lanes.values():
        open_ends: list[float] = []
        for begin, end in sorted(lane, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= begin + 1e-3:
                open_ends.pop()
            assert all(end <= other + 1e-3 for other in open_ends)
            open_ends.append(end)


def test_evaluations_checkpoints_and_hidden_exchange_have_lanes_of_their_own(
    tmp_path: Path,
) -> None:
    trace = trace_of(lockstep_run(tmp_path), "trace.json.gz")
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    found = {
        event["name"]: names[event["pid"], event["tid"]]
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    }
    assert found["overlapped exchange"] == "overlapped communication"
    assert found["measure validation"] == "evaluation"
    assert found["checkpoint"] == "checkpoints"
    assert found["step 1"] == found["forward"] == "work"


def test_decisions_and_failures_are_drawn_across_everything(tmp_path: Path) -> None:
    trace = trace_of(lockstep_run(tmp_path))
    instants = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "i"}
    decision = instants["decision: replace worker-1"]
    assert (decision["s"], decision["args"]["reason"]) == ("g", "lost")
    assert decision["ts"] == pytest.approx(3.5e6)
    assert "failure: worker-1 was killed" in instants


def host_sample(mono_s: float, busy_s: float, network: int) -> HostSample:
    return HostSample(
        host="here", cpu_user_s=busy_s, cpu_system_s=0.0, cpu_idle_s=0.0,
        core_busy_s=[busy_s, 0.0], load_1min=0.0, memory_used_bytes=2**21,
        memory_total_bytes=2**30, received_bytes={"eth0": network}, sent_bytes={"eth0": 0},
        mono_s=mono_s,
    )  # fmt: skip


def test_samples_become_counters(tmp_path: Path) -> None:
    def used(mono_s: float, cpu_s: float) -> ProcessSample:
        return ProcessSample(
            pid=1, cpu_user_s=cpu_s, cpu_system_s=0.0, memory_bytes=2**20,
            memory_peak_bytes=2**20, threads=1, mono_s=mono_s,
        )  # fmt: skip

    def served(mono_s: float, version: int, stale: dict[int, int]) -> Served:
        facts = ServerStats(
            server=0, version=version, samples=0, pushes=0, applied=0, dropped=0, lost=0,
            gathered=0, repeated=0, refused=0, staleness={0: StalenessStats(stale)}, held_s={},
            sent_bytes={}, received_bytes={}, running_s=mono_s, busy_s=mono_s / 4, queue_mean=1.5,
            queue_max=3,
        )  # fmt: skip
        return Served(facts=facts, mono_s=mono_s)

    run = write_run(
        tmp_path,
        {
            "worker-0": [started(0, 1.0), used(1.0, 0.0), used(3.0, 1.0), step(1, 3.0)],
            "server-0": [served(1.0, 10, {0: 10}), served(2.0, 30, {0: 10, 3: 20})],
            "controller": [host_sample(1.0, 0.0, 0), host_sample(2.0, 1.0, 2**20)],
        },
    )
    trace = trace_of(run)
    found = {
        (event["pid"], event["name"]): event["args"]
        for event in trace["traceEvents"]
        if event["ph"] == "C"
    }
    pids = processes(trace)
    worker, server, machine = pids["worker-0"], pids["server-0"], pids["machine here"]
    assert found[worker, "CPU (%)"] == {"user": 50.0, "system": 0.0}
    assert found[worker, "memory (MiB)"] == {"resident": 1.0}
    assert found[worker, "training loss"] == {"loss": 1.5}
    assert found[worker, "learning rate"] == {"lr": 0.1}
    # One of two cores was busy for the whole second.
    assert found[machine, "CPU (%)"] == {"user": 50.0, "system": 0.0}
    assert found[machine, "network received (MiB/s)"] == {"eth0": 1.0}
    assert found[server, "staleness (updates)"] == {"mean": 3.0}
    assert found[server, "updates per second"] == {"updates": 20.0}
    assert found[server, "queue (messages)"] == {"mean": 1.5}
    assert found[server, "busy (%)"] == {"server": 25.0}


def test_a_resumed_run_follows_its_first_attempt_even_after_a_reboot(tmp_path: Path) -> None:
    # An hour later by the time of day, but the monotonic clock began anew.
    again = started(0, 4.0, attempt=2, wall_s=1e9 + 3610.0)
    run = write_run(
        tmp_path,
        {"worker-0": [started(0, 10.0), step(1, 11.0, **PHASES), again, step(1, 5.0, **PHASES)]},
    )
    ends = [round(end, 6) for name, _, end in spans(trace_of(run), "worker-0") if "step" in name]
    assert ends == [2.0, 3602.0]


def test_steps_with_servers_show_how_long_they_were_held(tmp_path: Path) -> None:
    job = {"strategy": "parameter_server"}
    held = step(1, 11.0, exchange_s=0.4, wait_s=0.3, **PHASES)
    pause = Stall(epoch=0, what="work", duration_s=0.5, wait_s=0.5, mono_s=11.6)
    trace = trace_of(write_run(tmp_path, {"worker-0": [started(0, 10.0), held, pause]}, job=job))
    found = {name: (begin, end) for name, begin, end in spans(trace, "worker-0")}
    assert found["waiting"] == (pytest.approx(1.5), pytest.approx(1.8))
    assert found["waiting for work"] == (pytest.approx(2.1), pytest.approx(2.6))


def test_overlapped_pushes_are_laid_out_one_by_one(tmp_path: Path) -> None:
    job = {"strategy": {"name": "parameter_server", "overlap": True}}
    compute = {"forward_s": 0.25, "backward_s": 0.25}
    steps = [
        step(1, 12.0, input_s=0.5, exchange_s=0.5, wait_s=0.0, **compute),
        step(3, 13.0, input_s=0.0, exchange_s=1.0, wait_s=0.0, **compute),
        Stall(epoch=0, what="work", duration_s=0.5, wait_s=0.5, mono_s=13.5),
        step(5, 15.0, input_s=0.0, exchange_s=0.25, wait_s=0.0, **compute),
    ]
    trace = trace_of(write_run(tmp_path, {"worker-0": [started(0, 10.0), *steps]}, job=job))
    forwards = [one[1:] for one in spans(trace, "worker-0") if one[0] == "forward"]
    # Step 3 was computed before the answer to step 1 was awaited, at 11.5 s.
    assert forwards == [
        (pytest.approx(1.0), pytest.approx(1.25)),
        (pytest.approx(2.0), pytest.approx(2.25)),
        (pytest.approx(5.25), pytest.approx(5.5)),
    ]
    # Nothing on the lane pushes another aside, in whatever order it was recorded.
    names = [name for name, *_ in spans(trace, "worker-0")]
    assert names[0] == "start-up"
    assert (names.count("exchange"), names.count("waiting for work")) == (3, 1)


def test_a_run_that_never_began_still_gives_a_trace(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"controller": [Failure(rank=None, cause="no", mono_s=7.0)]})
    (failure,) = [e for e in trace_of(run)["traceEvents"] if e["ph"] == "i"]
    assert failure["ts"] == 0.0


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"worker-0": [started(0, 10.0)]})
    with pytest.raises(StoreError, match="nowhere"):
        write_trace(run, tmp_path / "nowhere" / "trace.json")


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    def peak(num_steps: int) -> int:
        run = write_run(tmp_path, {f"worker-{rank}": [started(rank, 0.0)] for rank in (0, 1)})
        for rank in (0, 1):
            with run.events_path(f"worker-{rank}").open("ab") as file:
                for number in range(num_steps):
                    one = step(number, 1.0 + number, exchange_s=0.1, **PHASES)
                    file.write(msgspec.json.encode(one) + b"\n")
        tracemalloc.start()
        write_trace(run, tmp_path / "trace.json.gz")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(4000) < peak(400) + 200_000
