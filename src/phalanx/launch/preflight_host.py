"""Represent one machine during the preflight, and run a step on all of them in parallel.

A step that fails on some machines fails as a whole, with one sentence for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from phalanx.agent.session import AgentInfo, Session
from phalanx.errors import LaunchError, PlanError
from phalanx.launch.code_package import CodePackage
from phalanx.launch.data_lookup import DataLocation
from phalanx.pool.facts import Probe
from phalanx.pool.probe import ProbeOptions, probe_host
from phalanx.spec.machine import MachineSpec

CACHE = "~/.cache/phalanx"
"""Cache directory on every machine: code, environments, received data and decoded data."""
ASK_S = 30.0
_SEND_S = 600.0
_MAX_THREADS = 64

T = TypeVar("T")


class MachinesUnfit(PlanError):
    """Machines cannot take part; `facts["faults"]` maps each name to its reason."""


@dataclass
class PreflightHost:
    """A machine during the preflight, with the facts found so far."""

    session: Session
    info: AgentInfo | None = None
    probe: Probe | None = None
    address: str = ""
    controller: str = ""
    python: str = ""
    code: tuple[str, ...] = ()
    location: DataLocation | None = None

    @property
    def spec(self) -> MachineSpec:
        """Return the machine's declaration in the pool."""
        return self.session.route.machine

    @property
    def name(self) -> str:
        """Return the name for tables and messages."""
        return self.spec.title

    def connect(self) -> Probe:
        """Log in and probe the free resources; all later steps use this session.

        Raises:
            LaunchError: It cannot be reached, or does not answer.
        """
        self.info = self.session.open()
        self.probe = probe_host(self.session, ProbeOptions(quick=True, links=False))
        return self.probe

    def absolute(self, path: str) -> str:
        """Return a path on the machine with `~` expanded."""
        assert self.info is not None
        return self.info.home + path[1:] if path.startswith("~") else path

    def send(self, kind: str, package: CodePackage) -> str:
        """Unpack a package on the machine, sending it unless it is there whole; return its folder.

        Raises:
            LaunchError: The machine is gone, or cannot store it.
        """
        path = self.absolute(f"{CACHE}/{kind}/{package.key}")
        if not self.session.ask({"do": "holds", "path": path}, _SEND_S):
            self.session.ask({"do": "unpack", "path": path}, _SEND_S, package.content)
        return path


def for_each_host(hosts: Sequence[PreflightHost], step: Callable[[PreflightHost], T]) -> list[T]:
    """Run a step on all machines in parallel.

    Raises:
        MachinesUnfit: It failed for one or more.
    """
    faults: dict[str, str] = {}
    found: dict[str, T] = {}

    def attempt(host: PreflightHost) -> None:
        try:
            found[host.name] = step(host)
        except LaunchError as error:
            faults[host.name] = reason_of(error, host)

    with ThreadPoolExecutor(min(_MAX_THREADS, len(hosts))) as threads:
        try:
            list(threads.map(attempt, hosts))
        except BaseException:
            # Ctrl-C: the threads wait for answers that are no longer needed.
            for host in hosts:
                host.session.give_up("interrupted")
            raise
    if faults:
        ordered = {host.name: faults[host.name] for host in hosts if host.name in faults}
        raise unfit(ordered, len(hosts))
    return [found[host.name] for host in hosts]


def close_sessions(hosts: Sequence[PreflightHost]) -> None:
    """Close the sessions of machines that are no longer needed."""
    if hosts:
        with ThreadPoolExecutor(min(_MAX_THREADS, len(hosts))) as threads:
            list(threads.map(lambda host: host.session.close(), hosts))


def unfit(faults: Mapping[str, str], num_machines: int) -> MachinesUnfit:
    """Build the error for machines that cannot take part."""
    text = "; ".join(f"{name}: {reason}" for name, reason in faults.items())
    if len(faults) > 1:
        text = f"{len(faults)} of {num_machines} machines cannot take part: {text}"
    if len(faults) < num_machines:
        options = " ".join(f"--without {name}" for name in faults)
        text += f"; {options} leaves {'them' if len(faults) > 1 else 'it'} out"
    return MachinesUnfit(text, faults=dict(faults))


def reason_of(error: LaunchError, host: PreflightHost) -> str:
    """Return the reason without the leading machine name."""
    return str(error).removeprefix(f"{host.name}: ")
