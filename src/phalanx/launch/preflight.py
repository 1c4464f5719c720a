"""Before a run on other machines: can each of them take part? All are asked at the same time.

Checks reachability, host keys, versions, addresses, firewalls, memory, clocks and data, sends what
is missing, and leaves an open line to every machine. Whatever is wrong becomes one sentence that
names the machine; nothing has been started by then, so it counts as bad input.
"""

from __future__ import annotations

import contextlib
import platform
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from phalanx.data.dataset import open_dataset
from phalanx.errors import DataError, LaunchError, PlanError, SpecError
from phalanx.launch.fleet import Fleet, ReadyMachine
from phalanx.launch.look_for_data import Found, Place, Search
from phalanx.launch.parcel import (
    MAX_DATA_BYTES,
    Parcel,
    data_files,
    data_there,
    pack,
    pack_phalanx,
    pack_user_code,
)
from phalanx.launch.session import Hello, Session
from phalanx.pool.facts import Probe
from phalanx.pool.identity import identity
from phalanx.pool.probe import ProbeOptions, probe_pool
from phalanx.pool.ssh import SshRoute
from phalanx.spec.data import DataSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec

CACHE = "~/.cache/phalanx"
"""On every machine: code, environments and data that were sent, and decoded data."""
PROCESS_BYTES = 250 << 20
"""What a process of a run needs at the least, with its framework and without any model."""
_CLOCK_LIMIT_S = 1.0
_ASK_S = 30.0
_SEND_S = 600.0
_LOOK_S = 600.0
_BUILD_S = 3600.0
_MAX_THREADS = 64
# The same on all machines: numbers and wire formats depend on them.
_EQUAL = ("torch",)
_NEEDED = ("numpy", "pyzmq", "msgspec", "pydantic", "psutil", "safetensors", "typing-extensions")

T = TypeVar("T")


class MachinesUnfit(PlanError):
    """Machines that cannot take part; `facts["faults"]` has the reason of each by name."""


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
        raise unfit({one.machine: one.reason for one in found.faults.values()}, pool)
    keys = {one.title: identity(one, pool.ssh_config) for one in pool.machines}
    return {title: found.probes[key] for title, key in keys.items()}


def unfit(faults: Mapping[str, str], pool: PoolSpec) -> MachinesUnfit:
    """The error for machines that cannot take part."""
    each = "; ".join(f"{name}: {reason}" for name, reason in faults.items())
    many = len(faults) > 1
    said = f"{len(faults)} of {len(pool.machines)} machines cannot take part: " if many else ""
    alone = len(faults) == len(pool.machines)
    advice = "" if alone else f"; {' '.join(f'--without {name}' for name in faults)} leaves "
    advice += "" if alone else ("them out" if many else "it out")
    return MachinesUnfit(f"{said}{each}{advice}", faults=dict(faults))


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


@dataclass
class _Candidate:
    """A machine during the preflight."""

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
        return self.spec.title


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
            _Candidate(one, Session(SshRoute(one, wanted.pool.ssh_config)), probes[one.title])
            for one in wanted.pool.machines
        ]
        self.notes: list[str] = []

    def close(self) -> None:
        self._each(lambda one: one.session.close())

    def inspect(self, *, data_root: Path, cache_root: Path) -> Fleet:
        """All steps; the cheapest and most telling first."""
        self._each(self._connect)
        self._each(self._check_room)
        self._on_progress("checking ports")
        self._check_ways()
        self._on_progress("sending code")
        phalanx, own = pack_phalanx(), pack_user_code(self._job.model, self._wanted.directory)
        self._each(lambda one: self._send_code(one, phalanx, own))
        self._each(self._choose_python)
        self._each(self._check_versions)
        self._on_progress("looking for data")
        self._find_data(data_root, cache_root)
        return self._fleet()

    def _connect(self, one: _Candidate) -> None:
        one.hello = one.session.open()
        own = f"{platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]}"
        theirs = f"{one.hello.python[0]}.{one.hello.python[1]}"
        if own != theirs:
            raise LaunchError(
                f"Python {theirs} is there and {own} here; set 'python' of this machine to a "
                f"Python {own}"
            )
        looks = one.probe.looks
        address = one.spec.address or next(iter(looks.addresses), one.spec.host)
        try:
            one.address = one.session.ask({"do": "bindable", "address": address}, _ASK_S)
        except LaunchError as error:
            raise LaunchError(
                f"{address} is none of its own addresses ({_reason(error, one)}); set 'address' "
                "of this machine to the one by which the others reach it"
            ) from error
        offset_s = one.probe.clock.offset_s
        if abs(offset_s) > _CLOCK_LIMIT_S + one.probe.clock.error_s:
            self.notes.append(f"{one.name}: its clock is {offset_s:+.1f} s off")

    def _check_room(self, one: _Candidate) -> None:
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
            listening = self._each(lambda one: one.session.ask({"do": "listen"}, _ASK_S))
            ports = {one.name: at for one, at in zip(self._machines, listening, strict=True)}
            self._each(lambda one: self._check_way_here(one, port))
            self._each(lambda one: self._check_ways_there(one, ports))

    def _check_way_here(self, one: _Candidate, port: int) -> None:
        reasons = {}
        for address in _own_addresses(one):
            order = {"do": "reach", "targets": [["here", address, port]]}
            failed = one.session.ask(order, _ASK_S)
            if not failed:
                one.controller = address
                return
            reasons[address] = failed["here"]
        tried = ", ".join(f"{address} ({reason})" for address, reason in reasons.items())
        raise LaunchError(
            f"it cannot connect to this machine at {tried}; let this machine's firewall accept "
            "connections from it, on all ports above 1023"
        )

    def _check_ways_there(self, one: _Candidate, ports: Mapping[str, int]) -> None:
        targets = [
            [other.name, other.address, ports[other.name]]
            for other in self._machines
            if other is not one
        ]
        failed = one.session.ask({"do": "reach", "targets": targets}, _ASK_S)
        if failed:
            each = ", ".join(f"{name} ({reason})" for name, reason in failed.items())
            raise LaunchError(
                f"it cannot connect to {each}; let their firewalls accept connections from "
                f"{one.address} on all ports above 1023, or set 'address' of those machines"
            )

    def _send_code(self, one: _Candidate, phalanx: Parcel, own: Parcel | None) -> None:
        parcels = [phalanx] if own is None else [phalanx, own]
        one.code = tuple(self._send(one, "code", parcel) for parcel in parcels)

    def _send(self, one: _Candidate, kind: str, parcel: Parcel) -> str:
        """Where a parcel is unpacked there; sent only if it is not yet."""
        assert one.hello is not None
        path = f"{one.hello.home}/{CACHE.removeprefix('~/')}/{kind}/{parcel.key}"
        if not one.session.ask({"do": "exists", "path": path}, _ASK_S):
            one.session.ask({"do": "unpack", "path": path}, _SEND_S, parcel.content)
        return path

    def _choose_python(self, one: _Candidate) -> None:
        assert one.hello is not None
        one.python = one.hello.executable
        if self._wanted.build_env:
            self._on_progress(f"{one.name}: building the environment")
            versions = {name: _here(name) for name in _requirements()}
            order = {"do": "build", "root": f"{CACHE}/env", "versions": versions}
            one.python = one.session.ask({**order, "limit_s": _BUILD_S}, _BUILD_S)

    def _check_versions(self, one: _Candidate) -> None:
        names = [*_EQUAL, *_NEEDED]
        order = {"do": "packages", "names": names, "python": one.python}
        there: dict[str, str | None] = one.session.ask(order, _ASK_S)
        missing = [name for name in names if there[name] is None]
        if missing:
            raise LaunchError(
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed for "
                f"{one.python}; set 'python' to an environment that has what Phalanx needs, or "
                "let one be built there with --build-env"
            )
        for name in names:
            here, theirs = _public(_here(name)), _public(there[name] or "")
            if here == theirs:
                continue
            if name in _EQUAL:
                raise LaunchError(
                    f"{name} {theirs} is there and {here} here; install the same, or let an "
                    "environment be built there with --build-env"
                )
            self.notes.append(f"{one.name}: {name} {theirs} is there and {here} here")

    def _find_data(self, data_root: Path, cache_root: Path) -> None:
        spec = self._job.data
        try:
            own = open_dataset(spec, data_root=data_root, cache_root=cache_root).fingerprint
            files = data_files(spec, data_root)
        except (DataError, SpecError) as error:
            own, files = self._agree_on_data(error), {}
        size_bytes = sum(path.stat().st_size for path in files.values())
        places = _places(spec, data_root)
        absent = [
            one
            for one, found in zip(
                self._machines, self._each(lambda one: _look(one, places, own)), strict=True
            )
            if found.place is None
        ]
        if not absent:
            return
        if size_bytes > MAX_DATA_BYTES or not files:
            raise unfit(
                {
                    one.name: f"{spec.name} is not there, and it is too large to be sent "
                    f"({size_bytes >> 20} MiB, {MAX_DATA_BYTES >> 20} at most); copy it to "
                    f"{places[0].root} there, for instance with rsync"
                    for one in absent
                },
                self._wanted.pool,
            )
        self._on_progress(f"sending {spec.name}")
        parcel = pack(files, compress=False)
        names = {one.name for one in absent}
        self._each(lambda one: self._send_data(one, parcel, own) if one.name in names else None)

    def _agree_on_data(self, error: Exception) -> str:
        """The data is not here; if all machines have the same, that is as good."""
        places = _places(self._job.data, Path(CACHE) / "data")
        found = self._each(lambda one: _look(one, places, None))
        prints = {one.fingerprint for one in found if one.place is not None}
        if len(prints) != 1 or any(one.place is None for one in found):
            raise error
        return prints.pop()

    def _send_data(self, one: _Candidate, parcel: Parcel, fingerprint: str) -> None:
        folder = self._send(one, "sent", parcel)
        spec = data_there(self._job.data, folder)
        place = Place(data=_mapping(spec), root=folder)
        found = _look(one, [place], fingerprint)
        if found.place is None:
            raise LaunchError(f"{spec.name} was sent, but cannot be used: {found.reasons[0]}")

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
                data_root=_absolute(one.place.root, one.hello.home),
                cache_root=_absolute(f"{CACHE}/cache", one.hello.home),
                cpus=tuple(one.hello.cpus),
            )
        seen = {one.controller for one in self._machines}
        # Where machines see this one under several addresses, it has to listen on all of them.
        listen = seen.pop() if len(seen) == 1 else "0.0.0.0"
        return Fleet(ready, listen=listen, notes=self.notes)

    def _each(self, step: Callable[[_Candidate], T]) -> list[T]:
        """Do a step for all machines at the same time.

        Raises:
            MachinesUnfit: It failed for one or more.
        """
        faults: dict[str, str] = {}

        def attempt(one: _Candidate) -> T | None:
            try:
                return step(one)
            except LaunchError as error:
                faults[one.name] = _reason(error, one)
                return None

        with ThreadPoolExecutor(min(_MAX_THREADS, len(self._machines))) as threads:
            done = list(threads.map(attempt, self._machines))
        if faults:
            ordered = {one.name: faults[one.name] for one in self._machines if one.name in faults}
            raise unfit(ordered, self._wanted.pool)
        return done  # type: ignore[return-value]  # None only where there is a fault


def _look(one: _Candidate, places: Sequence[Place], fingerprint: str | None) -> Found:
    """Search for the data on a machine; what is found is noted in the candidate."""
    question = Search(places=list(places), cache_root=f"{CACHE}/cache", fingerprint=fingerprint)
    order: dict[str, Any] = {
        "do": "run",
        "command": [one.python, "-m", "phalanx.launch.look_for_data"],
        "environment": {"PYTHONPATH": ":".join(one.code)},
        "input": msgspec.json.encode(question).decode(),
        "limit_s": _LOOK_S,
    }
    done = one.session.ask(order, _LOOK_S)
    if done["code"] != 0:
        said = (done["complained"].strip() or "nothing").splitlines()[-1]
        raise LaunchError(f"looking for data there failed: {said}")
    found = msgspec.json.decode(done["said"].strip().splitlines()[-1], type=Found)
    if found.place is not None:
        one.place = places[found.place]
    return found


def _places(spec: DataSpec, data_root: Path) -> list[Place]:
    """Where a machine may have the data: at the same place as here, or where it is by default."""
    here = spec
    if spec.directory is not None:
        here = spec.model_copy(update={"directory": str(Path(spec.directory).expanduser())})
    if "/" in spec.name or Path(spec.name).suffix:
        name = Path(spec.name).expanduser()
        here = here.model_copy(update={"name": str(name.resolve())})
    usual = spec.model_copy(update={"directory": None})
    root = str(data_root if str(data_root).startswith("~") else data_root.resolve())
    places = [Place(data=_mapping(here), root=root)]
    return [*places, Place(data=_mapping(usual), root=f"{CACHE}/data")]


def _own_addresses(one: _Candidate) -> list[str]:
    """Addresses of this machine that another may reach it by, the most likely first."""
    assert one.hello is not None
    found = [one.hello.came_from] if one.hello.came_from else []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing; the system only chooses the way.
        probe.connect((one.address, 9))
        found.append(probe.getsockname()[0])
    return list(dict.fromkeys(found))


def _requirements() -> list[str]:
    """Names of what the installed Phalanx needs."""
    lines = metadata.requires("phalanx") or []
    plain = [line for line in lines if "extra ==" not in line]
    return [_leading_name(line) for line in plain]


def _leading_name(line: str) -> str:
    for end, letter in enumerate(line):
        if not (letter.isalnum() or letter in "-_."):
            return line[:end]
    return line


def _here(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _public(version: str) -> str:
    """A version without what only says how it was built, such as +cpu."""
    return version.partition("+")[0]


def _mapping(spec: DataSpec) -> dict[str, object]:
    return spec.model_dump(mode="json", by_alias=True)


def _absolute(path: str, home: str) -> str:
    return home + path[1:] if path.startswith("~") else path


def _reason(error: LaunchError, one: _Candidate) -> str:
    return str(error).removeprefix(f"{one.name}: ")
