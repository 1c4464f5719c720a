"""Machines on their way through the preflight, and asking all of them at the same time.

A step that fails for some machines fails as a whole, with one sentence for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from phalanx.errors import LaunchError, PlanError
from phalanx.launch.look_for_data import Place
from phalanx.launch.parcel import Parcel
from phalanx.launch.session import Hello, Session
from phalanx.pool.facts import Probe
from phalanx.spec.machine import MachineSpec

CACHE = "~/.cache/phalanx"
"""On every machine: code, environments and data that were sent, and decoded data."""
ASK_S = 30.0
_SEND_S = 600.0
_MAX_THREADS = 64

T = TypeVar("T")


class MachinesUnfit(PlanError):
    """Machines that cannot take part; `facts["faults"]` has the reason of each by name."""


@dataclass
class Candidate:
    """A machine during the preflight, with what has been found out so far."""

    spec: MachineSpec
    session: Session
    probe: Probe
    hello: Hello | None = None
    address: str = ""
    controller: str = ""
    python: str = ""
    code: tuple[str, ...] = ()
    place: Place | None = None

    @property
    def name(self) -> str:
        """What tables and messages call it."""
        return self.spec.title

    def absolute(self, path: str) -> str:
        """A path there without `~`."""
        assert self.hello is not None
        return self.hello.home + path[1:] if path.startswith("~") else path

    def send(self, kind: str, parcel: Parcel) -> str:
        """Where a parcel is unpacked there; sent only if it is not yet.

        Raises:
            LaunchError: The machine is gone, or cannot keep it.
        """
        path = self.absolute(f"{CACHE}/{kind}/{parcel.key}")
        if not self.session.ask({"do": "exists", "path": path}, ASK_S):
            self.session.ask({"do": "unpack", "path": path}, _SEND_S, parcel.content)
        return path


def ask_each(machines: Sequence[Candidate], step: Callable[[Candidate], T]) -> list[T]:
    """Do a step for all machines at the same time.

    Raises:
        MachinesUnfit: It failed for one or more.
    """
    faults: dict[str, str] = {}
    found: dict[str, T] = {}

    def attempt(one: Candidate) -> None:
        try:
            found[one.name] = step(one)
        except LaunchError as error:
            faults[one.name] = reason_of(error, one)

    with ThreadPoolExecutor(min(_MAX_THREADS, len(machines))) as threads:
        try:
            list(threads.map(attempt, machines))
        except BaseException:
            # Ctrl-C: the threads are waiting for answers that nobody wants any more.
            for one in machines:
                one.session.give_up("interrupted")
            raise
    if faults:
        ordered = {one.name: faults[one.name] for one in machines if one.name in faults}
        raise unfit(ordered, len(machines))
    return [found[one.name] for one in machines]


def unfit(faults: Mapping[str, str], num_machines: int) -> MachinesUnfit:
    """The error for machines that cannot take part."""
    text = "; ".join(f"{name}: {reason}" for name, reason in faults.items())
    if len(faults) > 1:
        text = f"{len(faults)} of {num_machines} machines cannot take part: {text}"
    if len(faults) < num_machines:
        options = " ".join(f"--without {name}" for name in faults)
        text += f"; {options} leaves {'them' if len(faults) > 1 else 'it'} out"
    return MachinesUnfit(text, faults=dict(faults))


def reason_of(error: LaunchError, one: Candidate) -> str:
    """What went wrong, without the machine's name before it."""
    return str(error).removeprefix(f"{one.name}: ")
