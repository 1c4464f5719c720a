"""Probe the machines of a pool: describe and measure each machine and every link between two.

Machines are probed in parallel, each over one session; a failed machine is reported and the others
continue. Links are measured in rounds, so that no machine takes part in two measurements at once.
Called by `phalanx pool check` and `probe`, and by the launcher, which continues with the same
session; the caller caches the result.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from phalanx.agent.line import Fault, MachineFault, Route
from phalanx.agent.remote.measure import TOKEN_LENGTH
from phalanx.agent.session import Session
from phalanx.agent.ssh import LocalRoute
from phalanx.errors import LaunchError
from phalanx.pool.facts import ClockOffset, HostFacts, HostLink, HostSpeed, Probe
from phalanx.pool.inventory import identity
from phalanx.pool.scheduler import open_routes
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec

_CLOCK_S = 30.0
_DESCRIBE_S = 90.0
_SPEED_S = 120.0
_LINK_S = 40.0
_NUM_CLOCK_QUESTIONS = 8
_MAX_THREADS = 32
MAX_LINK_ROUNDS = 15
"""Measures every pair of up to 16 machines; of more, each machine measures 15 links."""


@dataclass(frozen=True)
class ProbeOptions:
    """Extent of a probe.

    Attributes:
        quick: Describe only: no speed, no disk, no links.
        links: Whether to measure links between machines.
        speed_s: Seconds per kernel.
        link_s: Seconds per direction of each link.
    """

    quick: bool = False
    links: bool = True
    speed_s: float = 0.4
    link_s: float = 1.0


EVERYTHING = ProbeOptions()

T = TypeVar("T")


@dataclass
class PoolProbe:
    """Result of a probe: a probe or a fault for every machine, by identity."""

    probes: dict[str, Probe] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)


def probe_host(
    session: Session,
    options: ProbeOptions = EVERYTHING,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Probe:
    """Describe and measure one machine over an open session, without its links.

    Raises:
        MachineFault: The machine is gone, or did not answer in time.
        LaunchError: It could not carry out the order, or its answer is malformed.
    """
    clock = _measure_clock(session)
    order = {"do": "describe", "workdir": session.route.machine.workdir, "quick": options.quick}
    looks = _convert(session, session.ask(order, _DESCRIBE_S), HostFacts)
    speed = None
    if not options.quick:
        on_progress(f"{session.machine}: measuring speed")
        found = session.ask({"do": "speed", "seconds": options.speed_s}, _SPEED_S)
        speed = None if found is None else _convert(session, found, HostSpeed)
    return Probe(measured_at=_now(), looks=looks, clock=clock, speed=speed)


def measure_this_machine() -> HostSpeed | None:
    """Measure the speed of this machine as a probe does; None: torch is not installed.

    Runs in another process, because the control plane imports no torch.
    """
    session = Session(LocalRoute(MachineSpec(host="here", python=sys.executable)))
    with contextlib.closing(session):
        session.open()
        found = session.ask({"do": "speed", "seconds": EVERYTHING.speed_s}, _SPEED_S)
    return None if found is None else _convert(session, found, HostSpeed)


def probe_pool(
    pool: PoolSpec,
    options: ProbeOptions = EVERYTHING,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PoolProbe:
    """Probe all machines of a pool; a failed machine becomes a fault, never an exception.

    Args:
        pool: The machines.
        options: Extent of the probe.
        on_progress: Called with a short text at each stage, from several threads.
    """
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(min(_MAX_THREADS, len(pool.machines))))
        route = stack.enter_context(open_routes(pool))
        keys = [identity(one, pool.reached_by) for one in pool.machines]
        pairs = zip(keys, pool.machines, strict=True)
        hosts = [_ProbedHost(key, route(one), options) for key, one in pairs]
        for host in hosts:
            stack.callback(host.session.close)
        list(threads.map(lambda host: host.probe(on_progress), hosts))
        answering = [host for host in hosts if host.fault is None]
        if options.links and not options.quick and len(answering) > 1:
            _measure_links(answering, threads, on_progress)
    found = PoolProbe()
    for host in hosts:
        if host.fault is not None:
            found.faults[host.key] = host.fault
        else:
            found.probes[host.key] = host.result()
    return found


class _ProbedHost:
    """One machine during a probe; used by one thread at a time."""

    def __init__(self, key: str, route: Route, options: ProbeOptions) -> None:
        self.session = Session(route)
        self.key = key
        self.fault: Fault | None = None
        self.links: dict[str, HostLink] = {}
        self.link_faults: dict[str, str] = {}
        self._options = options
        self._found: Probe | None = None
        self._port: int | str = 0

    def probe(self, on_progress: Callable[[str], None]) -> None:
        """Log in and measure this machine without its links."""
        name = self.session.machine
        try:
            self.session.open()
            self._found = probe_host(self.session, self._options, on_progress)
            on_progress(f"{name}: done")
        except MachineFault as error:
            self.fault = error.fault
        except (LaunchError, OSError) as error:
            self.fault = Fault(machine=name, kind="broken", reason=str(error))
        if self.fault is not None:
            on_progress(f"{name}: {self.fault.reason}")

    def listen(self, token: str) -> None:
        """Listen for link measurements by other machines, if that is possible."""
        try:
            self._port = int(self.session.ask({"do": "listen", "token": token}, _LINK_S))
        except LaunchError as error:
            self._port = str(error)

    def contact(self, other: _ProbedHost, token: str) -> None:
        """Measure the link to another machine, which listens."""
        port = other._port
        if isinstance(port, str):
            self.link_faults[other.key] = f"it cannot listen: {port}"
            return
        order = {"do": "contact", "hosts": other.addresses, "port": port, "token": token}
        try:
            link = self.session.ask({**order, "seconds": self._options.link_s}, _LINK_S)
            facts = {**link, "measured_at": _now()}
            self.links[other.key] = _convert(self.session, facts, HostLink)
        except LaunchError as error:
            self.link_faults[other.key] = str(error).removeprefix(f"{self.session.machine}: ")

    @property
    def addresses(self) -> list[str]:
        """Return the addresses at which others may reach this machine, the most likely first."""
        machine = self.session.route.machine
        if machine.address is not None:
            return [machine.address]
        assert self._found is not None
        return list(dict.fromkeys([*self._found.looks.addresses, machine.host]))

    def result(self) -> Probe:
        """Return the probe; valid only without a fault."""
        assert self._found is not None
        return msgspec.structs.replace(self._found, links=self.links, link_faults=self.link_faults)


def _measure_links(
    hosts: Sequence[_ProbedHost],
    threads: ThreadPoolExecutor,
    on_progress: Callable[[str], None],
) -> None:
    token = secrets.token_hex(TOKEN_LENGTH // 2)
    list(threads.map(lambda host: host.listen(token), hosts))
    rounds = pair_rounds(len(hosts), MAX_LINK_ROUNDS)
    for number, pairs in enumerate(rounds, start=1):
        on_progress(f"links: round {number} of {len(rounds)}")
        for turn in (pairs, [(b, a) for a, b in pairs]):
            list(threads.map(lambda pair: hosts[pair[0]].contact(hosts[pair[1]], token), turn))


def pair_rounds(num_machines: int, max_rounds: int | None = None) -> list[list[tuple[int, int]]]:
    """Schedule the pairs of machines that measure their link at the same time; pure.

    The circle method of tournaments: each machine is in at most one pair per round, and every pair
    meets exactly once. So no measurement shares a machine with another.

    Args:
        num_machines: Number of machines.
        max_rounds: Limit on the rounds; n machines have n or n - 1.
    """
    places = list(range(num_machines + num_machines % 2))
    half = len(places) // 2
    rounds = []
    for _ in range(len(places) - 1):
        met = zip(places[:half], reversed(places[half:]), strict=True)
        # With an odd number one place is empty, and the machine paired with it pauses.
        rounds.append([(a, b) for a, b in met if max(a, b) < num_machines])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds[:max_rounds]


def _measure_clock(session: Session) -> ClockOffset:
    """Estimate the clock offset as NTP does; the exchange with the shortest round trip counts."""
    readings = []
    for _ in range(_NUM_CLOCK_QUESTIONS):
        asked = time.time()
        theirs = session.ask({"do": "clock"}, _CLOCK_S)
        now = time.time()
        offset_s, error_s = theirs - (asked + now) / 2, (now - asked) / 2
        readings.append(ClockOffset(offset_s=offset_s, error_s=error_s))
    return min(readings, key=lambda one: one.error_s)


def _convert(session: Session, answer: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise LaunchError(f"{session.machine}: its answer makes no sense: {error}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
