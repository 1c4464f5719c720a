"""Real servers of files by URL: moto's S3 in a process of its own, and OpenSSH's sftp."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.leaks import leave_to_fixture
from support.waiting import wait_until

KEY, SECRET = "AKIAPHALANXTEST", "secret-of-a-test"
BUCKET = "shelf"


@dataclass(frozen=True)
class FileServer:
    """Where a server listens, and what clients of it need in their environment."""

    url: str
    """A folder that exists."""
    port: int
    environment: dict[str, str]


def settle_clients() -> None:
    """Start the threads that fsspec keeps for all stores of a process, before anybody counts."""
    from fsspec.asyn import get_loop

    loop, num_helpers = get_loop(), min(32, (os.cpu_count() or 1) + 4)
    together = threading.Barrier(num_helpers)

    async def meet() -> None:
        helpers = (loop.run_in_executor(None, together.wait, 30.0) for _ in range(num_helpers))
        await asyncio.gather(*helpers)

    asyncio.run_coroutine_threadsafe(meet(), loop).result(60.0)


@contextmanager
def s3_server(folder: Path) -> Iterator[FileServer]:
    """moto's server with one bucket."""
    port = _free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1"]
    with (folder / "moto.log").open("wb") as log:
        process = subprocess.Popen([*command, "-p", str(port)], stdout=log, stderr=log)
    leave_to_fixture(process.pid)
    try:
        wait_until(lambda: _answers(port), "moto's server", limit_s=60.0)
        endpoint = f"http://127.0.0.1:{port}"
        environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "HOME": str(folder),
        }
        made = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(made, timeout=10):
            pass
        yield FileServer(f"s3://{BUCKET}", port, environment)
    finally:
        process.terminate()
        process.wait(10)


def let_in(server: FileServer, *, everybody: bool) -> None:
    """Let moto accept any key, or none at all: it has no users."""
    count = "inf" if everybody else "0"
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/moto-api/reset-auth",
        data=count.encode(),
        headers={"Content-Type": "text/plain"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer)["status"] == "ok"


@contextmanager
def sftp_server(folder: Path) -> Iterator[FileServer]:
    """OpenSSH's server for this user, with a key and a configuration in a home of their own."""
    sshd = shutil.which("sshd", path=f"{os.defpath}:/usr/sbin:/sbin")
    if sshd is None:
        pytest.skip("sshd not found")
    home, shelf = folder / "home", folder / "shelf"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    shelf.mkdir()
    for path in (home / ".ssh" / "id_ed25519", folder / "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    shutil.copy(home / ".ssh" / "id_ed25519.pub", folder / "authorized_keys")
    port = _free_port()
    public = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}\n")
    (home / ".ssh" / "config").write_text(
        f"Host shelf\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {home}/.ssh/id_ed25519\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    options = [
        "ListenAddress=127.0.0.1",
        f"HostKey={folder}/host_key",
        f"AuthorizedKeysFile={folder}/authorized_keys",
        "PidFile=none",
        "UsePAM=no",
        "StrictModes=no",
        "PasswordAuthentication=no",
        "KbdInteractiveAuthentication=no",
        "MaxStartups=100",
        "Subsystem=sftp internal-sftp",
    ]
    words = [word for option in options for word in ("-o", option)]
    command = [sshd, "-D", "-e", "-f", "/dev/null", "-p", str(port), *words]
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    leave_to_fixture(process.pid)
    try:
        wait_until(lambda: _answers(port), "the ssh server", limit_s=20.0)
        yield FileServer(f"sftp://shelf{shelf}", port, {"HOME": str(home)})
    finally:
        process.terminate()
        process.wait(10)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
