"""What every line promises: over a shell, srun of a real Slurm, kubectl, or by a call from there.

No cluster of Kubernetes runs here: a stand-in for `kubectl` shows what is expected of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from phalanx.agent.dialled import CallDesk, SeatRoute, dial_source
from phalanx.agent.kubectl import ExecRoute
from phalanx.agent.line import MachineFault, Route
from phalanx.agent.session import Session
from phalanx.agent.srun import SrunRoute
from phalanx.spec.machine import MachineSpec
from phalanx.spec.worker import LOOPBACK
from support.slurm import missing_programs, running_slurm
from support.there import HereRoute
from support.waiting import wait_until

KUBECTL = """\
#!/bin/sh
# As `kubectl [OPTION...] exec --stdin POD -- COMMAND` does, in the one pod that there is.
until [ "$1" = exec ]; do shift; done
until [ "$1" = -- ]; do pod=$1; shift; done
shift
[ "$pod" = m ] || { echo "Error from server (NotFound): pods \\"$pod\\" not found" >&2; exit 1; }
exec "$@"
"""

RouteTo = Callable[[MachineSpec], Route]


@contextmanager
def over_shell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RouteTo]:
    yield HereRoute


@contextmanager
def over_srun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RouteTo]:
    if missing_programs():
        pytest.skip(f"Slurm is not installed: {', '.join(missing_programs())}")
    with running_slurm(folder, nodes=("m",)) as slurm:
        slurm.run("salloc", "--no-shell", "--nodes=1", "--ntasks=1")
        for name in ("PATH", "SLURM_CONF"):
            monkeypatch.setenv(name, slurm.environment[name])
        yield partial(SrunRoute, job=int(slurm.run("squeue", "-h", "-o", "%i")))


@contextmanager
def over_kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RouteTo]:
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    yield partial(ExecRoute, options=("--context=lab", "--namespace=ml"), container="main")


@contextmanager
def over_a_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RouteTo]:
    """A process that an engine would start; it has the source of `dial` and its ticket alone."""
    callers: list[subprocess.Popen[bytes]] = []

    with CallDesk(LOOPBACK) as desk:

        def route_to(machine: MachineSpec) -> SeatRoute:
            port = desk.open_port(machine.title, [LOOPBACK], machine.python)
            if machine.host == "nobody":
                return SeatRoute(machine, port, call_s=0.2)
            code = "import json, sys; exec(sys.argv[1]); dial(json.loads(sys.stdin.read()), {})"
            caller = subprocess.Popen(
                [sys.executable, "-c", code, dial_source()],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert caller.stdin is not None
            with caller.stdin as pipe:
                pipe.write(json.dumps(port.ticket).encode())
            callers.append(caller)
            return SeatRoute(machine, port, call_s=30.0)

        yield route_to
    for caller in callers:
        caller.wait(30.0)


@pytest.fixture(
    scope="module",
    params=[over_shell, over_srun, over_kubectl, over_a_call],
    ids=["shell", "srun", "kubectl", "call"],
)
def route_to(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RouteTo]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("line")
        with request.param(folder, monkeypatch) as route_to:
            yield route_to


@pytest.fixture
def session(route_to: RouteTo) -> Iterator[Session]:
    with closing(Session(route_to(MachineSpec(host="m", python=sys.executable)))) as session:
        yield session


def await_end(pid: int) -> None:
    wait_until(lambda: not psutil.pid_exists(pid), "the agent to end")


def fault_of(session: Session) -> str:
    wait_until(lambda: session.fault is not None, "the session to notice")
    assert session.fault is not None
    return session.fault.reason


def test_orders_go_there_and_answers_come_back(session: Session, tmp_path: Path) -> None:
    info = session.open()
    assert info.executable == sys.executable
    assert len(session.ask({"do": "ports", "address": "127.0.0.1", "count": 2}, 10.0)) == 2
    # Larger than all buffers on the way.
    large = os.urandom(4 << 20)
    answer = session.tell({"do": "unpack", "path": str(tmp_path / "x")}, large)
    with pytest.raises(Exception, match="m: "):
        session.wait(answer, 30.0)
    many = [session.tell({"do": "clock"}) for _ in range(200)]
    assert all(session.wait(one, 30.0) > 0 for one in many)


def test_the_agent_ends_when_its_input_does(session: Session) -> None:
    info = session.open()
    session.close()
    await_end(info.pid)


def test_the_agent_ends_when_the_line_is_cut(session: Session) -> None:
    info = session.open()
    session.give_up("cut by the test")
    await_end(info.pid)
    with pytest.raises(MachineFault, match="m: cut by the test"):
        session.ask({"do": "clock"}, 10.0)


def test_a_line_says_that_its_other_end_is_gone(session: Session) -> None:
    info = session.open()
    os.kill(info.pid, signal.SIGKILL)
    assert "the connection to it broke off" in fault_of(session)


def test_an_interpreter_that_is_not_there_is_named(route_to: RouteTo) -> None:
    route = route_to(MachineSpec(host="m", python="/nowhere/python"))
    with closing(Session(route)) as session, pytest.raises(MachineFault) as caught:
        session.open()
    assert caught.value.fault.kind in ("python", "broken")
    assert "/nowhere/python" in str(caught.value)
    assert "python" in caught.value.fault.reason.partition(";")[2], "what to change"


def test_a_machine_that_is_not_there_is_named(route_to: RouteTo) -> None:
    route = route_to(MachineSpec(host="nobody", python=sys.executable))
    if isinstance(route, HereRoute):
        return  # a shell of this machine is always there
    with closing(Session(route)) as session, pytest.raises(MachineFault, match=r"^nobody: "):
        session.open()
