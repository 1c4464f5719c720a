"""Run system tools, each with a deadline, and report missing ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from phalanx.errors import LaunchError, SpecError

# Tools for root are often not on the path of a plain shell.
_SEARCH = os.pathsep.join((os.defpath, "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin"))
_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
_LIMIT_S = 30.0


def obstacle() -> str | None:
    """Return why no cluster can be emulated here, in one sentence; None: it can."""
    if os.geteuid() != 0:
        return "an emulated cluster needs root, for network namespaces and limits; use sudo"
    missing = [name for name in _PACKAGES if tool(name) is None]
    if missing:
        packages = " ".join(dict.fromkeys(_PACKAGES[name] for name in missing))
        return (
            f"an emulated cluster needs {', '.join(missing)}; "
            f"install it, on Debian with `apt-get install {packages}`"
        )
    return None


def require_tools() -> None:
    """Check that a cluster can be emulated here.

    Raises:
        SpecError: Not root, or a tool is missing; one sentence.
    """
    found = obstacle()
    if found is not None:
        raise SpecError(found)


def tool(name: str) -> str | None:
    """Return the path of a tool, or None."""
    return shutil.which(name) or shutil.which(name, path=_SEARCH)


def run(*command: str, may_fail: bool = False) -> str:
    """Run a tool and return its output.

    Raises:
        LaunchError: It failed or timed out, unless `may_fail`.
    """
    name, *arguments = command
    try:
        done = subprocess.run(
            [tool(name) or name, *arguments],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"`{' '.join(command)}` took longer than {_LIMIT_S:g} s") from None
    if done.returncode and not may_fail:
        said = " ".join(done.stderr.split()) or f"code {done.returncode}"
        raise LaunchError(f"`{' '.join(command)}` failed: {said}")
    return done.stdout


def run_each(commands: Sequence[str]) -> None:
    """Run commands in sequence, each given as words separated by spaces.

    Raises:
        LaunchError: A command failed; the rest is not run.
    """
    for command in commands:
        run(*command.split())
