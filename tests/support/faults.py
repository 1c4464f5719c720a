"""Make faults happen at named moments of a run: `plan.fail_at("worker-0", "Pushing", kill())`.

Both halves are here. A test holds a `FaultPlan`, which writes the faults into the folder that a run
is started in. Every process of that run, forked or cold, calls `make_listener` when it starts
(`PHALANX_MOMENTS` names it), compares each moment that it reaches with the plan, and does to itself
what the plan says, in the thread that reached the moment: `support.harm` holds the deeds. Each
fault happens once, however many processes reach its moment; a file tells that it has.

Moments are the states of the transition tables, by the name of their class, and the phrases that
`phalanx.wire.moments.reach` is called with.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal

from phalanx.consistency import policy
from phalanx.wire.moments import MomentListener
from support import harm

PLAN, FIRED, SEEN = Path("faults.json"), Path("faults-fired"), Path("faults-seen")
LISTENER = "support.faults:make_listener"
Kind = Literal[
    "kill", "freeze", "cut", "delay", "duplicate", "disk_full", "disk_slow", "clock_jump"
]
_SOURCE = Path(policy.__file__).parents[1]
_TABLES = (
    "control/parameter_server/states.py",
    "control/switch/states.py",
    "worker/parameter_server/states.py",
    "paramserver/client_state.py",
)
_POLL_S = 0.02


@dataclass(frozen=True)
class Deed:
    """What happens to a process.

    Attributes:
        kind: Which fault.
        seconds: How long it lasts, or by how much the clock jumps; 0 and frozen: for ever.
        connection: Which connections are cut, or carry a message twice.
        victims: Processes that are killed or frozen; empty: the one that reaches the moment.
    """

    kind: Kind
    seconds: float = 0.0
    connection: harm.Connection = "control"
    victims: tuple[str, ...] = ()


def kill(*victims: str) -> Deed:
    """End by SIGKILL; several victims at once, and `controller`, if they are named."""
    return Deed("kill", victims=victims)


def freeze(seconds: float = 0.0, *victims: str) -> Deed:
    """Stop by SIGSTOP, and let go on after some seconds; without a number: never."""
    return Deed("freeze", seconds, victims=victims)


def cut(connection: harm.Connection) -> Deed:
    """Shut down the process's connections, which it may make again."""
    return Deed("cut", connection=connection)


def delay(seconds: float) -> Deed:
    """Hold up the thread that reached the moment; heartbeats go on."""
    return Deed("delay", seconds)


def duplicate(connection: harm.Connection) -> Deed:
    """Send the next message twice."""
    return Deed("duplicate", connection=connection)


def disk_full(seconds: float) -> Deed:
    """Let the process write nothing for some time."""
    return Deed("disk_full", seconds)


def disk_slow(seconds: float) -> Deed:
    """Make each flush to the disk, and each opening for writing, take this long from now on."""
    return Deed("disk_slow", seconds)


def clock_jump(seconds: float) -> Deed:
    """Set the wall clock of the process forward, or back."""
    return Deed("clock_jump", seconds)


@dataclass(frozen=True)
class Fault:
    """One fault of a plan: it happens when the process has come to the moment so often.

    A moment is counted from the fault's arrival in the process, or from its start.
    """

    number: int
    process: str
    moment: str
    deed: Deed
    occurrence: int = 1


@dataclass(frozen=True)
class Fired:
    """A fault that has happened, to which processes, and when on the monotonic clock."""

    fault: Fault
    pids: dict[str, int]
    mono_s: float


@cache
def known_moments() -> frozenset[str]:
    """The states of all tables, and all phrases in the source."""
    states = {
        name
        for table in _TABLES
        for name in re.findall(r"^class (\w+):", (_SOURCE / table).read_text(), re.MULTILINE)
    }
    phrases = {
        node.args[0].value
        for path in _SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "reach"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    return frozenset(states | phrases)


class FaultPlan:
    """The faults of the runs in a folder; as a context manager it also ends freezes in time.

    Args:
        folder: The directory that the runs are started in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._faults: list[Fault] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._thaw_until_closed, name="fault-plan")

    def __enter__(self) -> FaultPlan:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()

    @property
    def settings(self) -> dict[str, str]:
        """Variables of the environment that make a run follow the plan."""
        return {"PHALANX_MOMENTS": LISTENER, "PYTHONPATH": str(Path(__file__).parents[1])}

    def fail_at(self, process: str, moment: str, deed: Deed, *, occurrence: int = 1) -> Fault:
        """Plan a fault, before the run starts or while it goes on.

        Raises:
            ValueError: There is no such moment.
        """
        if moment not in known_moments():
            raise ValueError(f"no process comes to '{moment}'; known: {sorted(known_moments())}")
        fault = Fault(len(self._faults) + 1, process, moment, deed, occurrence)
        self._faults.append(fault)
        self._write()
        return fault

    def withdraw(self, fault: Fault) -> bool:
        """Take a fault back; False: it has happened already."""
        # The claim stays: a process that has read the plan before finds it.
        return _claim(self._folder / FIRED, fault.number)

    def fired(self) -> list[Fired]:
        """The faults that have happened so far, in their order."""
        found = []
        for path in (self._folder / FIRED).glob("*.json"):
            told = json.loads(path.read_text())
            found.append(Fired(_fault_of(told["fault"]), told["pids"], told["mono_s"]))
        return sorted(found, key=lambda one: one.mono_s)

    def has_fired(self, fault: Fault) -> bool:
        """Whether a fault has happened."""
        return (self._folder / FIRED / f"{fault.number}.json").exists()

    def seen(self, process: str) -> dict[int, set[str]]:
        """The moments that each process of this name has come to, by process id."""
        found: dict[int, set[str]] = {}
        with suppress(FileNotFoundError):
            for line in (self._folder / f"{SEEN}-{process}").read_text().splitlines():
                pid, _, moment = line.partition(" ")
                found.setdefault(int(pid), set()).add(moment)
        return found

    def _write(self) -> None:
        (self._folder / FIRED).mkdir(exist_ok=True)
        temporary = self._folder / f".{PLAN}"
        temporary.write_text(json.dumps([asdict(fault) for fault in self._faults]))
        temporary.replace(self._folder / PLAN)

    def _thaw_until_closed(self) -> None:
        frozen: dict[int, tuple[float, list[int]]] = {}
        thawed: set[int] = set()
        over = False
        while not over:
            over = self._closing.wait(_POLL_S)
            for one in self.fired():
                if one.fault.deed.kind == "freeze" and one.fault.deed.seconds > 0:
                    until_s = one.mono_s + one.fault.deed.seconds
                    frozen.setdefault(one.fault.number, (until_s, list(one.pids.values())))
            for number, (until_s, pids) in frozen.items():
                if number not in thawed and (over or time.monotonic() >= until_s):
                    thawed.add(number)
                    for pid in pids:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGCONT)


def _fault_of(told: dict[str, object]) -> Fault:
    deed = told.pop("deed")
    assert isinstance(deed, dict)
    deed["victims"] = tuple(deed["victims"])
    return Fault(deed=Deed(**deed), **told)  # type: ignore[arg-type]


def _claim(folder: Path, number: int) -> bool:
    """Whether nobody else has this fault."""
    try:
        (folder / str(number)).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass
class _Listener:
    """The plan as one process sees it; looked up again when its file has changed."""

    process: str
    control_address: str
    folder: Path
    stamp: tuple[int, int] = (0, 0)
    faults: dict[int, Fault] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, moment: str) -> None:
        with self.lock:
            self._note(moment)
            self._read()
            due = list(self._due(moment))
        for fault in due:
            self._strike(fault)

    def _note(self, moment: str) -> None:
        if moment not in self.seen:
            self.seen.add(moment)
            with (self.folder / f"{SEEN}-{self.process}").open("a") as file:
                file.write(f"{os.getpid()} {moment}\n")

    def _read(self) -> None:
        try:
            found = (self.folder / PLAN).stat()
        except FileNotFoundError:
            return
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self.stamp:
            self.stamp = stamp
            told = json.loads((self.folder / PLAN).read_text())
            mine = [fault for fault in map(_fault_of, told) if fault.process == self.process]
            self.faults = {fault.number: fault for fault in mine}

    def _due(self, moment: str) -> Iterator[Fault]:
        for number, fault in list(self.faults.items()):
            if fault.moment != moment:
                continue
            self.counts[number] += 1
            if self.counts[number] == fault.occurrence and _claim(self.folder / FIRED, number):
                del self.faults[number]
                yield fault

    def _strike(self, fault: Fault) -> None:
        deed = fault.deed
        victims = deed.victims or (self.process,)
        pids = {name: self._pid_of(name) for name in victims}
        found = {name: pid for name, pid in pids.items() if pid is not None}
        told = Fired(fault, found, time.monotonic())
        temporary = self.folder / FIRED / f".{fault.number}"
        temporary.write_text(json.dumps(asdict(told)))
        temporary.replace(self.folder / FIRED / f"{fault.number}.json")
        match deed.kind:
            case "kill" | "freeze":
                number = signal.SIGKILL if deed.kind == "kill" else signal.SIGSTOP
                harm.signal_all(list(found.values()), number)
            case "cut":
                harm.cut_connections(deed.connection, self.control_address)
            case "delay":
                threading.Event().wait(deed.seconds)
            case "duplicate":
                harm.send_next_twice(deed.connection)
            case "disk_full":
                harm.fill_disk(deed.seconds)
            case "disk_slow":
                harm.slow_disk_down(deed.seconds)
            case "clock_jump":
                harm.set_clock(deed.seconds)

    def _pid_of(self, name: str) -> int | None:
        if name == self.process:
            return os.getpid()
        if name == "controller":
            # Not the parent, which may be a fork server that others need.
            runs = [path for path in self.folder.glob("runs/*/status.json") if path.exists()]
            newest = max(runs, key=lambda path: path.stat().st_mtime)
            return int(json.loads(newest.read_text())["pid"])
        return harm.find_process(name, self.folder)


def make_listener(process: str, control_address: str) -> MomentListener:
    """Follow the plan of the present directory; called in every process of a run."""
    return _Listener(process, control_address, Path.cwd())
