"""A user without any rights trains on machines that are aliases in the own ssh configuration.

A real account is made for the test, with a real ssh server; both machines are this one, under two
addresses.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import phalanx
from phalanx.records.events import Started
from phalanx.records.log import read_logs
from support.waiting import wait_until

LIMIT_S = 110
ADDRESSES = ("127.0.0.2", "127.0.0.3")
NAME = f"phx{os.getpid()}"
POOL = """\
pool: room
defaults: {{python: {python}}}
machines:
  - {{host: pc1}}
  - {{host: pc2}}
"""
JOB = """\
name: job
data: digits
model: mlp
epochs: 2
"""


@dataclass
class Account:
    """Somebody with a home directory, a key and an ssh configuration."""

    home: Path
    uid: int
    gid: int

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As this user, in the home directory, with nothing of our own environment but the path."""
        return subprocess.run(
            command,
            cwd=self.home,
            env={"HOME": str(self.home), "USER": NAME, "PATH": os.defpath},
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    @property
    def python(self) -> str:
        return str(self.home / "env" / "bin" / "python")

    def build(self) -> None:
        """An environment of the user's own that sees the packages of this one."""
        made = self.run(interpreter(), "-m", "venv", "--without-pip", str(self.home / "env"))
        assert made.returncode == 0, made.stderr
        (packages,) = (self.home / "env" / "lib").glob("python*/site-packages")
        paths = (sysconfig.get_path("purelib"), str(Path(phalanx.__file__).parents[1]))
        (packages / "borrowed.pth").write_text("\n".join(paths))

    def phalanx(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-m", "phalanx.cli.main", *arguments)

    def processes(self) -> list[str]:
        """What runs under this account, apart from the ssh server's own processes."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and entry.stat().st_uid == self.uid:
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return [line for line in found if line and not line.startswith("sshd")]


def obstacle() -> str | None:
    if os.geteuid() != 0:
        return "only root can make an account"
    missing = [tool for tool in ("useradd", "userdel", "sshd", "ssh-keygen") if find(tool) is None]
    return f"{', '.join(missing)} not found" if missing else None


def interpreter() -> str:
    """A Python of this version that anybody may run: this one's, or the system's."""
    own = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    is_public = all(place.stat().st_mode & 0o005 == 0o005 for place in own.parents)
    found = str(own) if is_public else find(own.name)
    if found is None:
        pytest.skip(f"no {own.name} that other users may run")
    return found


def find(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.defpath}:/usr/sbin:/sbin")


def tool(name: str) -> str:
    found = find(name)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    # Below /tmp itself: pytest's own directories are closed to other users.
    home = Path(f"/tmp/{NAME}")
    # No password fits "*", and unlike "!" it does not lock the account.
    words = ["--create-home", "--home-dir", str(home), "--password", "*", NAME]
    subprocess.run([tool("useradd"), *words], check=True)
    server = None
    try:
        entry = pwd.getpwnam(NAME)
        user = Account(home, entry.pw_uid, entry.pw_gid)
        user.build()
        seen = user.run(user.python, "-c", "import phalanx, torch")
        if seen.returncode != 0:
            pytest.skip(f"other users cannot read the packages: {seen.stderr.splitlines()[-1]}")
        port = free_port()
        server = serve(user, port, tmp_path_factory.mktemp("sshd") / "host_key")
        wait_until(lambda: is_open(port), "the ssh server", limit_s=10.0)
        (home / "job.yaml").write_text(JOB)
        (home / "pool.yaml").write_text(POOL.format(python=user.python))
        yield user
    finally:
        if server is not None:
            server.terminate()
            server.wait(10)
        subprocess.run(["pkill", "-KILL", "-u", NAME], check=False)
        subprocess.run([tool("userdel"), "--force", NAME], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def free_port() -> int:
    with socket.create_server((ADDRESSES[0], 0)) as listener:
        return int(listener.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((ADDRESSES[0], port)) == 0


def serve(user: Account, port: int, host_key: Path) -> subprocess.Popen[bytes]:
    """An ssh server that lets the user in by key, and the user's configuration for two aliases."""
    folder = user.home / ".ssh"
    made = user.run("mkdir", "-m", "700", str(folder))
    assert made.returncode == 0, made.stderr
    make_key = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f")
    user.run(*make_key, str(folder / "id_ed25519"))
    subprocess.run([*make_key, str(host_key)], check=True)
    public = host_key.with_suffix(".pub").read_text().split()[:2]
    known = "".join(f"[{address}]:{port} {' '.join(public)}\n" for address in ADDRESSES)
    config = "".join(
        f"Host pc{number}\n  HostName {address}\n  Port {port}\n"
        for number, address in enumerate(ADDRESSES, start=1)
    )
    for name, text in (("known_hosts", known), ("config", config)):
        (folder / name).write_text(text)
        os.chown(folder / name, user.uid, user.gid)
    shutil.copy(folder / "id_ed25519.pub", folder / "authorized_keys")
    os.chown(folder / "authorized_keys", user.uid, user.gid)
    Path("/run/sshd").mkdir(exist_ok=True)
    options = [
        *(f"ListenAddress={address}" for address in ADDRESSES),
        f"HostKey={host_key}",
        "PidFile=none",
        "UsePAM=no",
        "PasswordAuthentication=no",
        f"AllowUsers={NAME}",
    ]
    words = [word for option in options for word in ("-o", option)]
    return subprocess.Popen(
        [tool("sshd"), "-D", "-f", "/dev/null", "-p", str(port), *words], stderr=subprocess.DEVNULL
    )


@pytest.mark.parametrize("strategy", ["allreduce", "{name: parameter_server, servers: 1}"])
def test_aliases_and_a_plain_user_are_enough(account: Account, strategy: str) -> None:
    done = account.phalanx(
        "train", "job.yaml", "--pool", "pool.yaml", "--set", f"strategy={strategy}"
    )
    assert done.returncode == 0, done.stderr
    run = max((account.home / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    started = [
        event
        for name, events in read_logs(run / "events", Started).items()
        for event in events
        if name.startswith("worker-") and isinstance(event, Started)
    ]
    assert sorted(event.host for event in started) == ["pc1", "pc2"]
    assert (run / "summary.json").stat().st_uid == account.uid
    wait_until(lambda: not account.processes(), "the account to be empty", limit_s=10.0)
