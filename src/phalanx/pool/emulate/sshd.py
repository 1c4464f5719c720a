"""Run the ssh servers of an emulated cluster, and write its keys, ssh config and pool file.

Every host has its own host key and a server in the host's namespaces and control group, which
everything started through it inherits. Only the cluster's key is accepted.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from phalanx.pool.emulate.layout import ClusterLayout, EmulatedHost
from phalanx.pool.emulate.system import run, tool
from phalanx.spec.cluster import ClusterSpec
from phalanx.spec.flow import flow
from phalanx.wire.deadline import Deadline

_PORT = 22
_START_S = 30.0
# Privilege separation directory of OpenSSH; distributions create it when their server starts.
_EMPTY_DIRECTORY = Path("/run/sshd")
_SETTINGS = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {state}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
UseDNS no
MaxStartups 200
MaxSessions 200
Subsystem sftp internal-sftp
"""
# Control groups first, so that all later processes count; then namespace, host name and server.
_START = """\
net=$1; name=$2; sshd=$3; settings=$4; log=$5; shift 5
for group in "$@"; do echo $$ > "$group/cgroup.procs" || exit 1; done
inside='echo "$1" > /proc/sys/kernel/hostname; exec "$2" -f "$3" -E "$4"'
exec NSENTER --net="$net" UNSHARE --uts \
/bin/sh -c "$inside" sh "$name" "$sshd" "$settings" "$log"
"""


def make_keys(layout: ClusterLayout, state: Path) -> None:
    """Create the cluster's key, the host keys, and the files that list them.

    Raises:
        LaunchError: A key could not be created.
    """
    _key(state / "key", "phalanx-emulated")
    (state / "authorized_keys").write_text((state / "key.pub").read_text())
    known = []
    for host in layout.hosts:
        (host.folder / "work").mkdir(parents=True, exist_ok=True)
        _key(host.folder / "host_key", host.spec.name)
        public = (host.folder / "host_key.pub").read_text().split()
        known.append(f"{host.spec.name},{host.address} {public[0]} {public[1]}\n")
        settings = _SETTINGS.format(
            port=_PORT, address=host.address, folder=host.folder, state=state
        )
        (host.folder / "sshd_config").write_text(settings)
    (state / "known_hosts").write_text("".join(known))


def start_sshd(host: EmulatedHost, groups: Sequence[Path]) -> None:
    """Start the ssh server of a host, which then runs in the background.

    Raises:
        LaunchError: It did not start; the message holds its reason.
    """
    _EMPTY_DIRECTORY.mkdir(mode=0o755, exist_ok=True)
    script = _START
    for name in ("nsenter", "unshare"):
        script = script.replace(name.upper(), str(tool(name)))
    arguments = [f"/run/netns/{host.namespace}", host.spec.name, str(tool("sshd"))]
    arguments += [str(host.folder / "sshd_config"), str(host.folder / "sshd.log")]
    run("sh", "-c", script, "sh", *arguments, *map(str, groups))


def kill_sshd(processes: Iterable[int]) -> None:
    """Kill an ssh server and its sessions among the processes of its host."""
    for pid in processes:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                os.kill(pid, signal.SIGKILL)


def await_sshd(hosts: Iterable[EmulatedHost]) -> None:
    """Wait until the ssh server of every host responds.

    Raises:
        TimeoutExpired: One does not; the deadline names it.
    """
    pause = threading.Event()
    for host in hosts:
        deadline = Deadline.after(_START_S, f"the ssh server of {host.spec.name}")
        while not answers(host):
            deadline.check()
            pause.wait(0.05)


def answers(host: EmulatedHost) -> bool:
    """Return whether an ssh server responds at the host's address."""
    try:
        with socket.create_connection((host.address, _PORT), timeout=2.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def write_ssh_config(spec: ClusterSpec, layout: ClusterLayout, state: Path) -> Path:
    """Write the ssh config and the pool file of the cluster; return the pool file."""
    entries = [
        "Host *",
        f"  IdentityFile {state / 'key'}",
        "  IdentitiesOnly yes",
        "  IdentityAgent none",
        f"  UserKnownHostsFile {state / 'known_hosts'}",
        "  GlobalKnownHostsFile /dev/null",
        "  StrictHostKeyChecking yes",
        "  UpdateHostKeys no",
        f"  User {getpass.getuser()}",
    ]
    for host in layout.hosts:
        entries += [f"Host {host.spec.name}", f"  HostName {host.address}"]
    # ssh uses the first value that it finds, so defaults come last.
    general, particular = entries[:9], entries[9:]
    (state / "ssh_config").write_text("\n".join([*particular, *general]) + "\n")
    lines = [f"pool: {spec.cluster}", "ssh_config: ssh_config", "machines:"]
    lines += [f"  - {flow(_machine(spec, host))}" for host in layout.hosts]
    pool = state / "pool.yaml"
    pool.write_text("\n".join(lines) + "\n")
    return pool


def _machine(spec: ClusterSpec, host: EmulatedHost) -> dict[str, object]:
    own = host.spec.model_dump(
        mode="json", exclude={"cores", "memory", "link"}, exclude_defaults=True
    )
    return {
        "host": host.spec.name,
        "address": host.address,
        "python": spec.python or sys.executable,
        "workdir": str(host.folder / "work"),
        **own,
    }


def _key(path: Path, comment: str) -> None:
    for old in (path, path.with_suffix(".pub")):
        if old.exists():
            os.unlink(old)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path))
