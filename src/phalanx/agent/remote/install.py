"""Install code, data and environments on this machine, and run commands with them.

Part of the agent. Several machines may share a home directory, so everything is written atomically
or under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

_VERSIONS_S = 120.0
_MAX_OUTPUT = 4000
_COMPLETE = ".complete"
# Names of the files of a package, written beside them.
_LISTING = ".phalanx-package"
KEY_LENGTH = 24
"""Characters of a package's key, which names its folder."""
# Run by another interpreter where an environment was built.
_VERSIONS = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


def run_command(order: dict[str, Any]) -> dict[str, Any]:
    """Run a command to completion; return its exit code and the end of its output."""
    variables = {**os.environ, **order["environment"]}  # noqa: TID251 (what it inherits)
    done = subprocess.run(
        [os.path.expanduser(word) for word in order["command"]],
        input=order.get("input", "").encode(),
        capture_output=True,
        timeout=order["limit_s"],
        env={name: os.path.expanduser(value) for name, value in variables.items()},
        check=False,
    )
    return {
        "code": done.returncode,
        "stdout": done.stdout.decode(errors="replace")[-_MAX_OUTPUT:],
        "stderr": done.stderr.decode(errors="replace")[-_MAX_OUTPUT:],
    }


def versions(python: str, names: list[str]) -> dict[str, str | None]:
    """Return the package versions that an interpreter finds; None for a missing one."""
    done = subprocess.run(
        [python, "-c", _VERSIONS, *names], capture_output=True, timeout=_VERSIONS_S, check=True
    )
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def build(root: Path, wanted: dict[str, str]) -> str:
    """Build an environment with these versions unless it exists; return its interpreter."""
    lines = sorted(f"{name}=={version.partition('+')[0]}" for name, version in wanted.items())
    key = hashlib.sha256("\n".join([sys.version, *lines]).encode()).hexdigest()[:24]
    folder = root / key
    python = str(folder / "bin" / "python")
    root.mkdir(parents=True, exist_ok=True)
    # Machines may share a home directory: one builds, the others wait.
    with (root / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run_or_raise([sys.executable, "-m", "venv", str(folder)])
            _run_or_raise([python, "-m", "pip", "install", "--quiet", *lines])
            # Written last: an interrupted build is started over.
            (folder / _COMPLETE).touch()
    return python


def _run_or_raise(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        output = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        last = output[-1] if output else f"code {done.returncode}"
        raise RuntimeError(f"`{' '.join(command[:5])} ...` failed: {last}")


def is_complete(folder: Path) -> bool:
    """Whether a folder named by its package's key holds that package unchanged.

    Power may fail between the name of a file and its content, so the name alone says nothing. Files
    beside those of the package, such as compiled modules, do not matter.
    """
    try:
        names = json.loads((folder / _LISTING).read_text())
        return _key_of(folder, names) == folder.name
    except (OSError, ValueError):
        return False


def unpack(content: bytes, folder: Path) -> bool:
    """Unpack a package into the folder named by its key, whole or not at all.

    Returns:
        False: it was there already.

    Raises:
        ValueError: The package has arrived damaged.
        OSError: It cannot be stored.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Machines may share a home directory: one unpacks, the others wait and find it there.
    with (folder.parent / ".lock").open("w") as lock:
        # Some network file systems have no locks; the last one to rename then has it.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete(folder):
            return False
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        try:
            _unpack_into(temporary, content, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return True


def _unpack_into(temporary: Path, content: bytes, folder: Path) -> None:
    """Unpack a package beside its folder, check it, and rename it once it is on the disk."""
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        opened.extractall(temporary)
        names = sorted(opened.namelist())
    if _key_of(temporary, names) != folder.name:
        raise ValueError("the package arrived damaged; try again")
    (temporary / _LISTING).write_text(json.dumps(names))
    _sync(temporary)
    # What an earlier machine or a failure of power left incomplete.
    if folder.exists() and not is_complete(folder):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        temporary.rename(folder)
    except OSError:
        # Another machine with the same home was quicker; anything else is a fault.
        if not is_complete(folder):
            raise
    _sync_one(folder.parent)


def _key_of(folder: Path, names: list[str]) -> str:
    """Return the key of files in a folder, as `launch.code_package` computes it."""
    digest = hashlib.sha256()
    for name in names:
        content = (folder / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:KEY_LENGTH]


def _sync(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
