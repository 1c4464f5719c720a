"""Bring an emulated cluster up or down, and report its status.

State is written before anything is created, and everything created carries the cluster's prefix, so
`down` finds all of it however the previous command ended, and may be repeated. Called by
`phalanx pool emulate` and by tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from phalanx.errors import LaunchError, SpecError
from phalanx.pool.emulate import groups, network, sshd
from phalanx.pool.emulate.layout import ClusterLayout, EmulatedHost, plan_layout, prefix_of
from phalanx.pool.emulate.system import require_tools
from phalanx.spec.cluster import ClusterSpec
from phalanx.spec.pool_file import cluster_from_mapping
from phalanx.store.atomic import write_atomically
from phalanx.wire.deadline import Deadline

STATE_ROOT = Path("/var/lib/phalanx/emulated")
_STATE = "state.json"
_LOCK_S = 60.0


class ClusterState(msgspec.Struct, kw_only=True):
    """Persistent state of a cluster."""

    phase: str
    """making: not complete, or its creator was killed; up: complete."""
    subnet: str
    spec: dict[str, object]


class HostStatus(msgspec.Struct, kw_only=True):
    """Status of one host."""

    name: str
    address: str
    answers: bool
    """Whether its ssh server responds."""
    link_up: bool
    num_processes: int
    cores: float
    memory_used_bytes: int | None
    memory_limit_bytes: int | None
    link_bits_per_s: int | None


class ClusterStatus(msgspec.Struct, kw_only=True):
    """Status of a cluster."""

    cluster: str
    state: str
    """up, partly up (something is missing) or down."""
    pool: str | None
    leftovers: list[str]
    """Resources that exist although the cluster is down or incomplete."""
    hosts: list[HostStatus]


class EmulatedCluster:
    """An emulated cluster on this machine.

    Args:
        spec: Its hosts.
        root: Directory of state, with one subdirectory per cluster.
    """

    def __init__(self, spec: ClusterSpec, root: Path = STATE_ROOT) -> None:
        self._spec = spec
        self._path = root.absolute() / spec.cluster
        self._prefix = prefix_of(self._path)

    @property
    def prefix(self) -> str:
        """Return the name prefix of everything on this machine that belongs to the cluster."""
        return self._prefix

    @property
    def pool_file(self) -> Path:
        """Return the path of the pool file, which exists while the cluster is up."""
        return self._path / "pool.yaml"

    def up(self) -> list[str]:
        """Create the cluster; return remarks, such as that leftovers were removed.

        Where a cluster is up but for some ssh servers, these are started again and nothing else is
        touched.

        Raises:
            SpecError: Not root, a tool is missing, or the cluster is up already.
            LaunchError: A system call failed; everything created so far has been removed.
        """
        require_tools()
        mended = self._mend()
        if mended:
            return mended
        notes = self._make_room()
        try:
            with _choosing_network():
                layout = plan_layout(self._spec, self._path, network.networks_in_use())
                # Before anything is created: `down` finds the rest by this state.
                self._write_state("making", layout)
                network.create_links(layout)
            sshd.make_keys(layout, self._path)
            for host in layout.hosts:
                folders = groups.make_group(
                    host.group, cores=host.spec.cores, memory_bytes=host.spec.memory
                )
                sshd.start_sshd(host, folders)
            sshd.await_sshd(layout.hosts)
            sshd.write_ssh_config(self._spec, layout, self._path)
            self._write_state("up", layout)
        except BaseException:
            self.down()
            raise
        return notes

    def down(self) -> list[str]:
        """Kill every process of the hosts and remove all resources; may be repeated.

        Returns:
            The resources that were found and removed.

        Raises:
            SpecError: Not root, or a tool is missing.
            TimeoutExpired: A process does not die.
        """
        require_tools()
        found = self.leftovers()
        namespaces, _ = network.leftover_links(self._prefix)
        inside = [pid for name in namespaces for pid in network.processes_in(name)]
        # Processes first: a namespace exists as long as a process uses it.
        groups.end_all(groups.find_groups(self._prefix), inside)
        network.remove_links(self._prefix)
        if (self._path / _STATE).exists():
            _remove(self._path)
        return found

    def leftovers(self) -> list[str]:
        """List all existing resources of this cluster by name."""
        namespaces, interfaces = network.leftover_links(self._prefix)
        folders = groups.find_groups(self._prefix)
        found = [f"namespace {name}" for name in namespaces]
        found += [f"interface {name}" for name in interfaces]
        found += [f"control group {folder}" for folder in folders]
        pids = {pid for folder in folders for pid in groups.members(folder)}
        found += [f"process {pid}" for pid in sorted(pids)]
        if (self._path / _STATE).exists():
            found.append(f"state in {self._path}")
        return found

    def status(self) -> ClusterStatus:
        """Return the status of the cluster."""
        require_tools()
        state = self._read_state()
        found = self.leftovers()
        if state is None:
            return ClusterStatus(
                cluster=self._spec.cluster, state="down", pool=None, leftovers=found, hosts=[]
            )
        hosts = [_host_status(host) for host in self._layout(state).hosts]
        complete = state.phase == "up" and all(one.answers and one.link_up for one in hosts)
        return ClusterStatus(
            cluster=self._spec.cluster,
            state="up" if complete else "partly up",
            pool=str(self.pool_file) if self.pool_file.exists() else None,
            leftovers=[] if state.phase == "up" else found,
            hosts=hosts,
        )

    def switch_link(self, name: str, *, on: bool) -> None:
        """Take the link of a host down, or up again.

        Raises:
            SpecError: The cluster is down, or has no such host.
        """
        network.switch_link(self._host(name), on=on)

    def kill_sshd(self, name: str) -> None:
        """Kill the ssh server of a host with all sessions; `up` starts it again.

        Raises:
            SpecError: The cluster is down, or has no such host.
        """
        sshd.kill_sshd(self.processes(name))

    def processes(self, name: str) -> list[int]:
        """List the processes of a host.

        Raises:
            SpecError: The cluster is down, or has no such host.
        """
        host = self._host(name)
        folders = [one for one in groups.find_groups(self._prefix) if one.name == host.group]
        return sorted({pid for folder in folders for pid in groups.members(folder)})

    def _host(self, name: str) -> EmulatedHost:
        state = self._read_state()
        found = () if state is None else self._layout(state).hosts
        host = next((one for one in found if one.spec.name == name), None)
        if host is None:
            raise SpecError(f"cluster '{self._spec.cluster}' has no host '{name}' that is up")
        return host

    def _mend(self) -> list[str]:
        """Start dead ssh servers of a cluster that is up; return one remark for each."""
        state = self._read_state()
        # After a reboot the state file reads up, but nothing else exists.
        if state is None or state.phase != "up" or len(self.leftovers()) <= 1:
            return []
        hosts = self._layout(state).hosts
        # A host whose link was taken down does not answer either, and that is intended.
        dead = [one for one in hosts if network.link_is_up(one) and not sshd.answers(one)]
        folders = groups.find_groups(self._prefix)
        for host in dead:
            sshd.start_sshd(host, [one for one in folders if one.name == host.group])
        sshd.await_sshd(dead)
        return [
            f"the ssh server of {host.spec.name} was dead and is started again" for host in dead
        ]

    def _make_room(self) -> list[str]:
        notes = []
        cores = sum(host.cores for host in self._spec.hosts)
        here = len(os.sched_getaffinity(0))
        most = max(self._spec.hosts, key=lambda host: host.cores)
        if most.cores > here:
            raise SpecError(
                f"host '{most.name}' wants {most.cores:g} cores, and this machine has {here}"
            )
        if cores > here:
            notes.append(
                f"the hosts have {cores:g} cores together, this machine {here}: when all of them "
                "compute they slow one another down"
            )
        state, found = self._read_state(), self.leftovers()
        # After a reboot the state file reads up, but nothing else exists.
        if state is not None and state.phase == "up" and len(found) > 1:
            raise SpecError(
                f"cluster '{self._spec.cluster}' is up already; its pool is {self.pool_file}, and "
                "`down` removes it"
            )
        if found:
            self.down()
            notes.append(f"removed {len(found)} leftovers of an earlier start")
        self._path.mkdir(parents=True, mode=0o755, exist_ok=True)
        if any(self._path.iterdir()):
            raise SpecError(
                f"{self._path} exists and is not a cluster's; remove it or choose another --state"
            )
        return notes

    def _write_state(self, phase: str, layout: ClusterLayout) -> None:
        state = ClusterState(
            phase=phase,
            subnet=str(layout.network),
            spec=self._spec.model_dump(mode="json"),
        )
        write_atomically(self._path / _STATE, msgspec.json.encode(state))

    def _read_state(self) -> ClusterState | None:
        try:
            return msgspec.json.decode((self._path / _STATE).read_bytes(), type=ClusterState)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise LaunchError(f"{self._path / _STATE} cannot be read: {error}") from error

    def _layout(self, state: ClusterState) -> ClusterLayout:
        """Return the layout as created: the file may have changed since."""
        spec = cluster_from_mapping({**state.spec, "subnet": state.subnet})
        return plan_layout(spec, self._path, ())


def _host_status(host: EmulatedHost) -> HostStatus:
    folders = groups.find_groups(host.group.partition("-")[0])
    own = [folder for folder in folders if folder.name == host.group]
    used = [size for folder in own if (size := groups.memory_used(folder)) is not None]
    return HostStatus(
        name=host.spec.name,
        address=host.address,
        answers=sshd.answers(host),
        link_up=network.link_is_up(host),
        num_processes=len({pid for folder in own for pid in groups.members(folder)}),
        cores=host.spec.cores,
        memory_used_bytes=used[0] if used else None,
        memory_limit_bytes=host.spec.memory,
        link_bits_per_s=host.spec.link,
    )


@contextlib.contextmanager
def _choosing_network() -> Iterator[None]:
    """Serialize the choice of a free network among the clusters of this machine."""
    deadline = Deadline.after(_LOCK_S, "another cluster to take its network")
    pause = threading.Event()
    # Locking a directory that always exists leaves no file behind.
    descriptor = os.open("/run", os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                deadline.check()
                pause.wait(0.05)
        yield
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a cluster's directory, the state file last: until then the cluster is identifiable."""
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != _STATE:
            entry.unlink()
    (path / _STATE).unlink()
    path.rmdir()
    with contextlib.suppress(OSError):  # other clusters are there
        path.parent.rmdir()
