"""What every fault of `support.faults` promises, in processes that do nothing but reach moments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import psutil
import pytest
import zmq

from phalanx.control.parameter_server import states as run_states
from phalanx.control.state_machine import StateMachine
from phalanx.wire.control import ControlServer
from phalanx.wire.control_client import ControlClient
from phalanx.wire.messages import Heartbeat, Progress
from phalanx.wire.moments import enter_state, plant, reach, uproot
from support.faults import (
    LISTENER,
    Deed,
    FaultPlan,
    clock_jump,
    cut,
    delay,
    disk_full,
    disk_slow,
    duplicate,
    freeze,
    kill,
    known_moments,
    make_listener,
)
from support.waiting import wait_until

# Reaches the moment `flushing` as often as its second argument says, and tells what it saw.
PROCESS = f"""
import os, sys, threading, time
from phalanx.wire.moments import plant, reach
plant("{LISTENER}", process=sys.argv[1])
for number in range(int(sys.argv[2])):
    before = time.monotonic()
    reach("flushing")
    print(number, "took" if time.monotonic() - before >= 0.2 else "went on", flush=True)
try:
    before = time.monotonic()
    with open("written", "w") as file:
        file.write("x")
        file.flush()
        os.fsync(file.fileno())
    print("wrote", "slowly" if time.monotonic() - before >= 0.4 else "at once")
except OSError as error:
    print("refused", error.errno)
print("clock", round(time.time() - os.stat(".").st_mtime, -3))
sys.stdin.read()
"""


@contextmanager
def process(
    folder: Path, name: str = "worker-0", *, times: int = 1, log: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    with (
        (log or Path(os.devnull)).open("w") as file,
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, name, str(times)],
            cwd=folder,
            env={"PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=file if log else subprocess.PIPE,
            text=True,
        ) as found,
    ):
        try:
            yield found
        finally:
            found.kill()


def said_by(folder: Path, name: str = "worker-0", *, times: int = 1) -> tuple[int, str]:
    """Exit code and words of a process that ends."""
    with process(folder, name, times=times) as found:
        output, _ = found.communicate("", timeout=60)
        return found.returncode, output


def test_an_unknown_moment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no process comes to 'Pushhing'"):
        FaultPlan(tmp_path).fail_at("worker-0", "Pushhing", kill())


def test_every_state_and_every_phrase_of_the_source_is_a_moment() -> None:
    states = {state.__name__ for state, _ in run_states.TRANSITIONS}
    assert states <= known_moments()
    assert {"Pushing", "Computing", "Committed"} <= known_moments()
    assert {"flushing", "writing snapshot", "handing over", "donation received"} <= known_moments()


def test_a_moment_without_a_listener_costs_nothing_and_does_nothing() -> None:
    reach("flushing")
    enter_state(run_states.Starting())


def test_a_table_of_transitions_tells_of_each_state() -> None:
    class Event(StrEnum):
        GO = "go"

    machine = StateMachine[object](
        run_states.Starting(), {(run_states.Starting, Event.GO): run_states.Closing}
    )
    plant(f"{__name__}:make_recorder", process="controller")
    try:
        machine.advance(Event.GO, run_states.Closing())
    finally:
        uproot()
    assert RECORDED == ["Closing"]


RECORDED: list[str] = []


def make_recorder(process: str, control_address: str) -> object:
    RECORDED.clear()
    return RECORDED.append


def test_kill_strikes_once_and_at_the_right_time(tmp_path: Path) -> None:
    plan = FaultPlan(tmp_path)
    fault = plan.fail_at("worker-0", "flushing", kill(), occurrence=3)
    other = said_by(tmp_path, "worker-1", times=4)
    assert (other[0], plan.has_fired(fault)) == (0, False)

    code, words = said_by(tmp_path, times=4)
    assert (code, words.splitlines()) == (-signal.SIGKILL, ["0 went on", "1 went on"])
    [fired] = plan.fired()
    assert fired.fault == fault
    assert fired.pids.keys() == {"worker-0"}

    # Its successor comes to the same moment and lives.
    assert said_by(tmp_path, times=4)[0] == 0
    seen = plan.seen("worker-0")
    assert len(seen) == 2
    assert set(map(frozenset, seen.values())) == {frozenset({"flushing"})}


def test_a_fault_may_be_planned_meanwhile_and_taken_back(tmp_path: Path) -> None:
    plan = FaultPlan(tmp_path)
    early = plan.fail_at("worker-0", "flushing", kill())
    assert plan.withdraw(early)
    assert said_by(tmp_path)[0] == 0
    late = plan.fail_at("worker-0", "flushing", kill())
    assert said_by(tmp_path)[0] == -signal.SIGKILL
    assert not plan.withdraw(late)
    assert (plan.has_fired(early), plan.has_fired(late)) == (False, True)


def test_kill_takes_several_at_once(tmp_path: Path) -> None:
    plan = FaultPlan(tmp_path)
    with process(tmp_path, "server-1", log=tmp_path / "server-1.log") as other:
        wait_until(lambda: "0 went on" in (tmp_path / "server-1.log").read_text(), "its start")
        plan.fail_at("server-0", "flushing", kill("server-0", "server-1"))
        assert said_by(tmp_path, "server-0")[0] == -signal.SIGKILL
        assert other.wait(timeout=60) == -signal.SIGKILL
    [fired] = plan.fired()
    assert fired.pids.keys() == {"server-0", "server-1"}


def test_freeze_ends_in_time(tmp_path: Path) -> None:
    with FaultPlan(tmp_path) as plan, process(tmp_path) as found:
        fault = plan.fail_at("worker-0", "flushing", freeze(1.0))
        wait_until(lambda: plan.has_fired(fault), "the moment")
        stopped = psutil.Process(found.pid)
        wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "the freeze")
        output, _ = found.communicate("", timeout=60)
        assert (found.returncode, output.splitlines()[0]) == (0, "0 took")


def test_freeze_may_last(tmp_path: Path) -> None:
    with process(tmp_path) as found:
        with FaultPlan(tmp_path) as plan:
            fault = plan.fail_at("worker-0", "flushing", freeze())
            wait_until(lambda: plan.has_fired(fault), "the moment")
        stopped = psutil.Process(found.pid)
        wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "the freeze")


@pytest.mark.parametrize(
    ("deed", "line"),
    [
        (delay(0.3), "0 took"),
        (disk_full(60.0), "refused 27"),
        (disk_slow(0.4), "wrote slowly"),
        (clock_jump(7000.0), "clock 7000.0"),
    ],
    ids=lambda value: value.kind if isinstance(value, Deed) else "",
)
def test_a_process_that_goes_on_feels_it(tmp_path: Path, deed: Deed, line: str) -> None:
    plan = FaultPlan(tmp_path)
    undisturbed = said_by(tmp_path)
    fault = plan.fail_at("worker-0", "flushing", deed)
    disturbed = said_by(tmp_path)
    assert plan.has_fired(fault)
    assert (undisturbed[0], disturbed[0]) == (0, 0)
    assert line in disturbed[1].splitlines()
    assert line not in undisturbed[1].splitlines()


def test_a_full_disk_is_free_again(tmp_path: Path) -> None:
    FaultPlan(tmp_path).fail_at("worker-0", "flushing", disk_full(0.0))
    code, words = said_by(tmp_path)
    assert code == 0
    # The limit is lifted by a thread, which may come after the write.
    assert "wrote at once" in words or "refused" in words


def test_cut_ends_the_control_connection_which_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    FaultPlan(tmp_path).fail_at("worker-0", "flushing", cut("control"))
    with ControlServer() as server:
        client = ControlClient(
            server.address,
            server_key=server.public_key,
            keys=server.admit("worker-0"),
            progress=Progress,
            on_stop=lambda reason: None,
        )
        with client:
            assert isinstance(next_message(server), Heartbeat)
            before = _connections_to(server.address)
            assert len(before) == 1
            make_listener("worker-0", server.address)("flushing")
            wait_until(lambda: _connections_to(server.address) - before, "another connection")
            assert isinstance(next_message(server), Heartbeat)


def next_message(server: ControlServer) -> object:
    found = server.receive(60.0)
    assert found is not None
    return found[1]


def _connections_to(address: str) -> set[int]:
    """Ports at this end of the connections to an address."""
    port = int(address.rpartition(":")[2])
    return {
        one.laddr.port
        for one in psutil.Process().net_connections("tcp")
        if one.raddr and one.raddr.port == port and one.status == psutil.CONN_ESTABLISHED
    }


@pytest.mark.parametrize("whole", [[b"one"], [b"header", b"payload"]])
def test_duplicate_sends_one_whole_message_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = FaultPlan(tmp_path)
    plan.fail_at("worker-0", "flushing", duplicate("bulk"))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as there:
        there.bind("inproc://there")
        with context.socket(zmq.DEALER) as here:
            here.connect("inproc://there")
            make_listener("worker-0", "")("flushing")
            for message in (whole, [b"last"]):
                here.send_multipart(message)
            received = [there.recv_multipart()[1:] for _ in range(3)]
            assert received == [whole, whole, [b"last"]]
            assert not there.poll(0)


def test_a_moment_may_be_reached_by_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = FaultPlan(tmp_path)
    plan.fail_at("worker-0", "flushing", delay(0.05), occurrence=2)
    listener = make_listener("worker-0", "")
    threads = [threading.Thread(target=listener, args=("flushing",)) for _ in range(8)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [fired] = plan.fired()
    assert fired.mono_s >= begin
