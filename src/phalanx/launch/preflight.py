"""Before a run on other machines: can each of them take part? All are asked at the same time.

Checks reachability, host keys, versions, addresses, firewalls, memory, clocks and data, sends what
is missing, and leaves an open line to every machine. Whatever is wrong becomes one sentence that
names the machine; nothing has been started by then, so it counts as bad input.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from phalanx.errors import LaunchError
from phalanx.launch.candidates import ASK_S, CACHE, Candidate, ask_each, reason_of, unfit
from phalanx.launch.find_data import find_data
from phalanx.launch.fleet import Fleet, ReadyMachine
from phalanx.launch.parcel import Parcel, pack_phalanx, pack_user_code
from phalanx.launch.session import Session
from phalanx.launch.versions import EQUAL, NEEDED, check_versions, requirements
from phalanx.pool.facts import Probe
from phalanx.pool.identity import identity
from phalanx.pool.probe import ProbeOptions, probe_pool
from phalanx.pool.ssh import SshRoute
from phalanx.spec.data import DataSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.pool import PoolSpec

PROCESS_BYTES = 250 << 20
"""What a process of a run needs at the least, with its framework and without any model."""
_CLOCK_LIMIT_S = 1.0
_BUILD_S = 3600.0

T = TypeVar("T")


@dataclass(frozen=True)
class Muster:
    """What is asked of a pool.

    Attributes:
        pool: The machines that are to take part.
        num_processes: Processes that each will run.
        needs_bytes: Memory that each needs, as far as a plan has predicted it.
        build_env: Whether an environment is built there instead of using the machine's own.
        directory: Where the user's code lies here.
    """

    pool: PoolSpec
    num_processes: Mapping[str, int]
    needs_bytes: Mapping[str, int] = field(default_factory=dict)
    build_env: bool = False
    directory: Path = field(default_factory=Path.cwd)


def look_at(pool: PoolSpec) -> dict[str, Probe]:
    """Log in to every machine and see what it has free now.

    Raises:
        MachinesUnfit: One or more cannot be reached.
    """
    found = probe_pool(pool, ProbeOptions(quick=True, links=False))
    if found.faults:
        faults = {one.machine: one.reason for one in found.faults.values()}
        raise unfit(faults, len(pool.machines))
    keys = {one.title: identity(one, pool.ssh_config) for one in pool.machines}
    return {title: found.probes[key] for title, key in keys.items()}


@contextlib.contextmanager
def muster(
    job: JobSpec,
    wanted: Muster,
    probes: Mapping[str, Probe],
    *,
    data_root: Path,
    cache_root: Path,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Fleet]:
    """Make machines ready for a job; inside the block their lines are open.

    Args:
        job: What is to be done.
        wanted: On which machines.
        probes: What `look_at` has found.
        data_root: Where data sets lie here.
        cache_root: Where decoded data is kept here.
        on_progress: Told in a few words what goes on; called from several threads.

    Raises:
        MachinesUnfit: A machine cannot take part.
        SpecError: The job's data is neither here nor there.
    """
    inspector = _Inspector(job, wanted, probes, on_progress)
    try:
        fleet = inspector.inspect(data_root=data_root, cache_root=cache_root)
    except BaseException:
        inspector.close()
        raise
    with fleet:
        yield fleet


class _Inspector:
    """Carries the checks out, step by step over all machines; faults are gathered per step."""

    def __init__(
        self,
        job: JobSpec,
        wanted: Muster,
        probes: Mapping[str, Probe],
        on_progress: Callable[[str], None],
    ) -> None:
        self._job = job
        self._wanted = wanted
        self._on_progress = on_progress
        self._machines = [
            Candidate(one, Session(SshRoute(one, wanted.pool.ssh_config)), probes[one.title])
            for one in wanted.pool.machines
        ]
        self._notes: list[str] = []

    def close(self) -> None:
        self._each(lambda one: one.session.close())

    def inspect(self, *, data_root: Path, cache_root: Path) -> Fleet:
        """All steps; the cheapest and most telling first."""
        self._each(self._connect)
        self._each(self._check_room)
        self._on_progress("checking ports")
        self._check_ways()
        self._on_progress("sending code")
        phalanx, own = pack_phalanx(), pack_user_code(self._job, self._wanted.directory)
        self._each(lambda one: self._send_code(one, phalanx, own))
        self._each(self._choose_python)
        self._each(self._check_versions)
        self._on_progress("looking for data")
        find_data(self._job.data, self._machines, data_root=data_root, cache_root=cache_root)
        return self._fleet()

    def _connect(self, one: Candidate) -> None:
        one.hello = one.session.open()
        own = f"{sys.version_info.major}.{sys.version_info.minor}"
        theirs = f"{one.hello.python[0]}.{one.hello.python[1]}"
        if own != theirs:
            raise LaunchError(
                f"Python {theirs} is there and {own} here; set 'python' of this machine to a "
                f"Python {own}"
            )
        looks = one.probe.looks
        address = one.spec.address or next(iter(looks.addresses), one.spec.host)
        try:
            one.address = one.session.ask({"do": "bindable", "address": address}, ASK_S)
        except LaunchError as error:
            raise LaunchError(
                f"{address} is none of its own addresses ({reason_of(error, one)}); set 'address' "
                "of this machine to the one by which the others reach it"
            ) from error
        offset_s = one.probe.clock.offset_s
        if abs(offset_s) > _CLOCK_LIMIT_S + one.probe.clock.error_s:
            self._notes.append(f"{one.name}: its clock is {offset_s:+.1f} s off")

    def _check_room(self, one: Candidate) -> None:
        count = self._wanted.num_processes.get(one.name, 1)
        need = max(count * PROCESS_BYTES, self._wanted.needs_bytes.get(one.name, 0))
        free = one.probe.looks.memory_free_bytes
        if one.spec.memory is not None:
            free = min(free, one.spec.memory)
        if need > free:
            processes = "1 process needs" if count == 1 else f"{count} processes need"
            raise LaunchError(
                f"{processes} {need / 1e9:.2f} GB of memory, and {free / 1e9:.2f} GB are "
                "free there; give it fewer 'slots', or end what else runs"
            )

    def _check_ways(self) -> None:
        """Whether each machine gets to the controller, and to every other machine."""
        with socket.create_server(("", 0)) as listener:
            port = listener.getsockname()[1]
            listening = self._each(lambda one: one.session.ask({"do": "listen"}, ASK_S))
            ports = {one.name: at for one, at in zip(self._machines, listening, strict=True)}
            self._each(lambda one: self._check_way_here(one, port))
            self._each(lambda one: self._check_ways_there(one, ports))

    def _check_way_here(self, one: Candidate, port: int) -> None:
        reasons = {}
        for address in _own_addresses(one):
            order = {"do": "reach", "targets": [["here", address, port]]}
            failed = one.session.ask(order, ASK_S)
            if not failed:
                one.controller = address
                return
            reasons[address] = failed["here"]
        tried = ", ".join(f"{address} ({reason})" for address, reason in reasons.items())
        raise LaunchError(
            f"it cannot connect to this machine at {tried}; let this machine's firewall accept "
            "connections from it, on all ports above 1023"
        )

    def _check_ways_there(self, one: Candidate, ports: Mapping[str, int]) -> None:
        targets = [
            [other.name, other.address, ports[other.name]]
            for other in self._machines
            if other is not one
        ]
        failed = one.session.ask({"do": "reach", "targets": targets}, ASK_S)
        if failed:
            each = ", ".join(f"{name} ({reason})" for name, reason in failed.items())
            raise LaunchError(
                f"it cannot connect to {each}; let their firewalls accept connections from "
                f"{one.address} on all ports above 1023, or set 'address' of those machines"
            )

    def _send_code(self, one: Candidate, phalanx: Parcel, own: Parcel | None) -> None:
        parcels = [phalanx] if own is None else [phalanx, own]
        one.code = tuple(one.send("code", parcel) for parcel in parcels)

    def _choose_python(self, one: Candidate) -> None:
        assert one.hello is not None
        one.python = one.hello.executable
        if self._wanted.build_env:
            self._on_progress(f"{one.name}: building the environment")
            order = {"do": "build", "root": f"{CACHE}/env", "versions": requirements()}
            one.python = one.session.ask(order, _BUILD_S)

    def _check_versions(self, one: Candidate) -> None:
        order = {"do": "packages", "names": [*EQUAL, *NEEDED], "python": one.python}
        there = one.session.ask(order, ASK_S)
        notes = check_versions(there, python=one.python)
        self._notes += [f"{one.name}: {note}" for note in notes]

    def _fleet(self) -> Fleet:
        ready = {}
        for one in self._machines:
            assert one.place is not None
            assert one.hello is not None
            ready[one.name] = ReadyMachine(
                spec=one.spec,
                session=one.session,
                address=one.address,
                controller=one.controller,
                python=one.python,
                code=one.code,
                data=DataSpec.model_validate(one.place.data),
                data_root=one.absolute(one.place.root),
                cache_root=one.absolute(f"{CACHE}/cache"),
                cpus=tuple(one.hello.cpus),
            )
        seen = {one.controller for one in self._machines}
        # Where machines see this one under several addresses, it has to listen on all of them.
        listen = seen.pop() if len(seen) == 1 else "0.0.0.0"
        return Fleet(ready, listen=listen, notes=self._notes)

    def _each(self, step: Callable[[Candidate], T]) -> list[T]:
        return ask_each(self._machines, step)


def _own_addresses(one: Candidate) -> list[str]:
    """Addresses of this machine that another may reach it by, the most likely first."""
    assert one.hello is not None
    found = [one.hello.came_from] if one.hello.came_from else []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing; the system only chooses the way.
        probe.connect((one.address, 9))
        found.append(probe.getsockname()[0])
    return list(dict.fromkeys(found))
