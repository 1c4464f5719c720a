"""Check before a run that every machine can take part, and prepare it; all machines in parallel.

Checks versions, addresses, firewalls, memory, clocks and data, sends what is missing, and passes
the sessions to a `HostGroup`. Every fault becomes one sentence that names the machine; nothing has
been started by then, so it counts as bad input.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.agent.remote.measure import TOKEN_LENGTH
from phalanx.errors import LaunchError, printable
from phalanx.launch.allocation import PROCESS_BYTES
from phalanx.launch.base import LaunchRequest
from phalanx.launch.code_package import CodePackage, pack_phalanx, pack_user_code
from phalanx.launch.data_staging import stage_data
from phalanx.launch.hosts import Host, HostGroup
from phalanx.launch.preflight_host import ASK_S, CACHE, PreflightHost, for_each_host, reason_of
from phalanx.launch.versions import EQUAL, NEEDED, check_versions, requirements
from phalanx.spec.data import DataSpec

ANY_ADDRESS = "0.0.0.0"
_CLOCK_LIMIT_S = 1.0
_BACKLOG = 1024
_BUILD_S = 3600.0


@dataclass(frozen=True)
class PreflightRequest:
    """Requirements on the machines.

    Attributes:
        num_processes: Number of processes per machine.
        needs_bytes: Memory that each machine needs, as far as a plan has predicted it.
        build_env: Whether to build an environment instead of using the machine's interpreter.
        directory: Directory of the user's code on this machine.
    """

    num_processes: Mapping[str, int]
    needs_bytes: Mapping[str, int] = field(default_factory=dict)
    build_env: bool = False
    directory: Path = field(default_factory=Path.cwd)


class Preflight:
    """Run the checks step by step over all machines; faults are collected per step.

    Args:
        request: The job and its data.
        wanted: Requirements on the machines.
        hosts: Connected hosts that will take part.
    """

    def __init__(
        self, request: LaunchRequest, wanted: PreflightRequest, hosts: Sequence[PreflightHost]
    ) -> None:
        self._request = request
        self._job = request.job
        self._wanted = wanted
        self._on_progress = request.on_progress
        self._hosts = hosts
        self._notes: list[str] = []

    def run(self) -> HostGroup:
        """Run all steps, the cheapest first; the returned group owns the sessions.

        Raises:
            MachinesUnfit: A machine cannot take part.
            SpecError: The job's data is neither here nor there.
        """
        for_each_host(self._hosts, self._check_python)
        for_each_host(self._hosts, self._check_memory)
        self._on_progress("checking ports")
        self._check_network()
        phalanx, own = pack_phalanx(), pack_user_code(self._job, self._wanted.directory)
        self._on_progress(f"sending code: {own.summary}" if own else "sending code")
        for_each_host(self._hosts, lambda one: self._send_code(one, phalanx, own))
        for_each_host(self._hosts, self._choose_python)
        for_each_host(self._hosts, self._check_versions)
        # Last, because the lookup runs the code and interpreter chosen above.
        self._on_progress("searching for data")
        stage_data(
            self._job.data,
            self._hosts,
            data_root=self._request.data_root,
            cache_root=self._request.cache_root,
        )
        return self._group()

    def _check_python(self, one: PreflightHost) -> None:
        assert one.info is not None
        assert one.probe is not None
        own = f"{sys.version_info.major}.{sys.version_info.minor}"
        theirs = f"{one.info.python[0]}.{one.info.python[1]}"
        if own != theirs:
            raise LaunchError(
                f"Python {theirs} is there and {own} here; set 'python' of this machine to a "
                f"Python {own}"
            )
        looks = one.probe.looks
        address = one.spec.address or next(iter(looks.addresses), one.spec.host)
        try:
            resolved = one.session.ask({"do": "resolve", "address": address}, ASK_S)
            one.address = usable_address(resolved)
        except LaunchError as error:
            raise LaunchError(
                f"{address} is none of its own addresses ({reason_of(error, one)}); set 'address' "
                "of this machine to the one by which the others reach it"
            ) from error
        offset_s = one.probe.clock.offset_s
        if abs(offset_s) > _CLOCK_LIMIT_S + one.probe.clock.error_s:
            self._notes.append(f"{one.name}: its clock is {offset_s:+.1f} s off")

    def _check_memory(self, one: PreflightHost) -> None:
        count = self._wanted.num_processes.get(one.name, 1)
        need = max(count * PROCESS_BYTES, self._wanted.needs_bytes.get(one.name, 0))
        assert one.probe is not None
        free = one.probe.looks.memory_free_bytes
        if one.spec.memory is not None:
            free = min(free, one.spec.memory)
        if need > free:
            processes = "1 process needs" if count == 1 else f"{count} processes need"
            raise LaunchError(
                f"{processes} {need / 1e9:.2f} GB of memory, and {free / 1e9:.2f} GB are "
                "free there; give it fewer 'slots', or end what else runs"
            )

    def _check_network(self) -> None:
        """Check that each machine can connect to the controller and to every other machine."""
        order = {"do": "listen", "token": secrets.token_hex(TOKEN_LENGTH // 2)}
        with _open_port() as port:
            listening = for_each_host(self._hosts, lambda one: one.session.ask(order, ASK_S))
            ports = {one.name: at for one, at in zip(self._hosts, listening, strict=True)}
            for_each_host(self._hosts, lambda one: self._check_way_here(one, port))
            for_each_host(self._hosts, lambda one: self._check_ways_there(one, ports))
        # No port stays open for the run that nobody needs.
        for_each_host(self._hosts, lambda one: one.session.ask({"do": "hush"}, ASK_S))

    def _check_way_here(self, one: PreflightHost, port: int) -> None:
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

    def _check_ways_there(self, one: PreflightHost, ports: Mapping[str, int]) -> None:
        targets = [
            [other.name, other.address, ports[other.name]]
            for other in self._hosts
            if other is not one
        ]
        failed = one.session.ask({"do": "reach", "targets": targets}, ASK_S)
        if failed:
            each = ", ".join(f"{name} ({reason})" for name, reason in failed.items())
            raise LaunchError(
                f"it cannot connect to {each}; let their firewalls accept connections from "
                f"{one.address} on all ports above 1023, or set 'address' of those machines"
            )

    def _send_code(self, one: PreflightHost, phalanx: CodePackage, own: CodePackage | None) -> None:
        packages = [phalanx] if own is None else [phalanx, own]
        one.code = tuple(one.send("code", package) for package in packages)

    def _choose_python(self, one: PreflightHost) -> None:
        assert one.info is not None
        one.python = one.info.executable
        if self._wanted.build_env:
            self._on_progress(f"{one.name}: building the environment")
            order = {"do": "build", "root": f"{CACHE}/env", "versions": requirements()}
            one.python = one.session.ask(order, _BUILD_S)

    def _check_versions(self, one: PreflightHost) -> None:
        order = {"do": "versions", "names": [*EQUAL, *NEEDED], "python": one.python}
        there = one.session.ask(order, ASK_S)
        notes = check_versions(there, python=one.python)
        self._notes += [f"{one.name}: {note}" for note in notes]

    def _group(self) -> HostGroup:
        ready = {}
        for one in self._hosts:
            assert one.location is not None
            assert one.info is not None
            ready[one.name] = Host(
                spec=one.spec,
                session=one.session,
                address=one.address,
                controller=one.controller,
                python=one.python,
                code=one.code,
                data=DataSpec.model_validate(one.location.data),
                data_root=one.absolute(one.location.root),
                cache_root=one.absolute(f"{CACHE}/cache"),
                cpus=tuple(one.info.cpus),
            )
        seen = {one.controller for one in self._hosts}
        # If machines see the controller under different addresses, it must listen on all of them.
        listen = seen.pop() if len(seen) == 1 else ANY_ADDRESS
        if not _is_own(listen):
            # Addresses are translated on the way: that one is not this machine's.
            listen = ANY_ADDRESS
        return HostGroup(ready, listen=listen, notes=self._notes)


@contextlib.contextmanager
def _open_port() -> Iterator[int]:
    """Listen on a port of this machine; whoever connects is let in and dismissed at once."""
    with socket.create_server(("", 0), backlog=_BACKLOG) as listener:

        def dismiss() -> None:
            # Without it the queue of connections would fill up after the first hundred or so.
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=dismiss, name="preflight-port")
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            # Wakes the thread, which closing alone does not.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def usable_address(said: object) -> str:
    """Return an address that a machine has named, if others can connect to such a one.

    Raises:
        LaunchError: It is no IPv4 address of one machine.
    """
    try:
        address = ipaddress.IPv4Address(str(said))
    except ValueError:
        raise LaunchError(f"'{printable(str(said))}' is no IPv4 address") from None
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        raise LaunchError(f"{address} is no address of one machine")
    return str(address)


def _is_own(address: str) -> bool:
    try:
        with socket.create_server((address, 0)):
            return True
    except OSError:
        return False


def _own_addresses(one: PreflightHost) -> list[str]:
    """Return addresses by which another machine may reach this one, the most likely first."""
    assert one.info is not None
    found = [usable_address(one.info.came_from)] if one.info.came_from else []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing; connecting a UDP socket only selects the route.
        probe.connect((one.address, 9))
        found.append(probe.getsockname()[0])
    return list(dict.fromkeys(found))
