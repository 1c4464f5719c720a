"""Probing a pool: every machine looked at and measured, and every link between two of them.

Machines are asked at the same time, each over one ssh session; a machine that fails is named and
the others go on. Links are measured in rounds, so that no machine serves two measurements at once.
Called by `phalanx pool check` and `probe`; what was found is kept by the caller.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from phalanx.errors import LaunchError
from phalanx.pool.agent import Agent, MachineFault
from phalanx.pool.facts import Clock, Fault, Link, Looks, Probe, Speed
from phalanx.pool.identity import identity
from phalanx.pool.remote import TOKEN_LENGTH
from phalanx.pool.rounds import pair_rounds
from phalanx.pool.ssh import SshRoute, shared_connections
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec

_LOOK_S = 90.0
_SPEED_S = 120.0
_LINK_S = 40.0
_MAX_THREADS = 32
MAX_LINK_ROUNDS = 15
"""Every pair of 16 machines; of more, each machine measures 15 links."""


@dataclass(frozen=True)
class ProbeOptions:
    """How much is measured.

    Attributes:
        quick: Only look: no speed, no disk, no links.
        links: Whether to measure between machines.
        speed_s: Seconds for each kernel.
        link_s: Seconds for each direction of each link.
    """

    quick: bool = False
    links: bool = True
    speed_s: float = 0.4
    link_s: float = 1.0


EVERYTHING = ProbeOptions()


@dataclass
class PoolProbe:
    """What was found: a probe or a fault for every machine, by the machine's identity."""

    probes: dict[str, Probe] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)


def probe_pool(
    pool: PoolSpec,
    options: ProbeOptions = EVERYTHING,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PoolProbe:
    """Probe all machines of a pool; a machine that fails becomes a fault, never an exception.

    Args:
        pool: The machines.
        options: How much is measured.
        on_progress: Told in a few words what goes on; called from several threads.
    """
    with contextlib.ExitStack() as stack:
        control_dir = stack.enter_context(shared_connections())
        threads = stack.enter_context(ThreadPoolExecutor(min(_MAX_THREADS, len(pool.machines))))
        routes = [SshRoute(one, pool.ssh_config, control_dir) for one in pool.machines]
        callers = [_Caller(route, options, on_progress) for route in routes]
        for caller in callers:
            stack.callback(caller.close)
        list(threads.map(_Caller.look, callers))
        answering = [caller for caller in callers if caller.fault is None]
        if options.links and not options.quick and len(answering) > 1:
            _measure_links(answering, threads, on_progress)
    found = PoolProbe()
    for caller in callers:
        key = identity(caller.machine, pool.ssh_config)
        if caller.fault is not None:
            found.faults[key] = caller.fault
        else:
            found.probes[key] = caller.probe()
    return found


class _Caller:
    """One machine during a probe; only one thread at a time talks to it."""

    def __init__(
        self, route: SshRoute, options: ProbeOptions, on_progress: Callable[[str], None]
    ) -> None:
        self.machine: MachineSpec = route.machine
        self.key = identity(route.machine, route.config)
        self.fault: Fault | None = None
        self.links: dict[str, Link] = {}
        self.link_faults: dict[str, str] = {}
        self._options = options
        self._on_progress = on_progress
        self._stack = contextlib.ExitStack()
        self._agent = Agent(route)
        self._clock = Clock(offset_s=0.0, error_s=0.0)
        self._looks: Looks | None = None
        self._speed: Speed | None = None

    def look(self) -> None:
        """Connect, look around and measure this machine alone."""
        try:
            self._stack.enter_context(self._agent)
            self._clock = self._agent.measure_clock()
            question = {"workdir": self.machine.workdir, "quick": self._options.quick}
            looks = self._agent.ask({"do": "describe", **question}, _LOOK_S)
            self._looks = msgspec.convert(looks, Looks)
            if not self._options.quick:
                self._on_progress(f"{self.machine.title}: measuring speed")
                speed = self._agent.ask({"do": "speed", "seconds": self._options.speed_s}, _SPEED_S)
                self._speed = msgspec.convert(speed, Speed | None)
            self._on_progress(f"{self.machine.title}: done")
        except MachineFault as error:
            self._give_up(error.fault)
        except (LaunchError, OSError, msgspec.ValidationError) as error:
            self._give_up(Fault(machine=self.machine.title, kind="broken", reason=str(error)))

    def listen(self, token: str) -> int:
        """Let others measure the way here; returns the port."""
        return int(self._agent.ask({"do": "listen", "token": token}, _LINK_S)["port"])

    def contact(self, other: _Caller, port: int, token: str) -> None:
        """Measure the way to another machine that listens."""
        question = {"do": "contact", "hosts": other.addresses, "port": port, "token": token}
        try:
            link = self._agent.ask({**question, "seconds": self._options.link_s}, _LINK_S)
            self.links[other.key] = msgspec.convert({**link, "measured_at": _now()}, Link)
        except (LaunchError, msgspec.ValidationError) as error:
            reason = str(error).removeprefix(f"{self.machine.title}: ")
            self.link_faults[other.key] = reason

    @property
    def addresses(self) -> list[str]:
        """Where others may reach this machine, the most likely first."""
        if self.machine.address is not None:
            return [self.machine.address]
        assert self._looks is not None
        return list(dict.fromkeys([*self._looks.addresses, self.machine.host]))

    def probe(self) -> Probe:
        """What was found; only if there is no fault."""
        assert self._looks is not None
        return Probe(
            measured_at=_now(),
            looks=self._looks,
            clock=self._clock,
            speed=self._speed,
            links=self.links,
            link_faults=self.link_faults,
        )

    def close(self) -> None:
        self._stack.close()

    def _give_up(self, fault: Fault) -> None:
        self.fault = fault
        self._on_progress(f"{self.machine.title}: {fault.reason}")


def _measure_links(
    callers: Sequence[_Caller],
    threads: ThreadPoolExecutor,
    on_progress: Callable[[str], None],
) -> None:
    token = secrets.token_hex(TOKEN_LENGTH // 2)
    answers = threads.map(_listening(token), callers)
    ports = dict(zip([one.key for one in callers], answers, strict=True))
    rounds = pair_rounds(len(callers), MAX_LINK_ROUNDS)
    for number, pairs in enumerate(rounds, start=1):
        on_progress(f"links: round {number} of {len(rounds)}")
        for turn in (pairs, [(b, a) for a, b in pairs]):
            list(
                threads.map(
                    lambda pair: _one_way(callers[pair[0]], callers[pair[1]], ports, token), turn
                )
            )


def _listening(token: str) -> Callable[[_Caller], int | str]:
    def listen(caller: _Caller) -> int | str:
        try:
            return caller.listen(token)
        except LaunchError as error:
            return str(error)

    return listen


def _one_way(start: _Caller, end: _Caller, ports: dict[str, int | str], token: str) -> None:
    port = ports[end.key]
    if isinstance(port, str):
        start.link_faults[end.key] = f"it cannot listen: {port}"
    else:
        start.contact(end, port, token)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
