"""Check that a machine has the packages that the processes of a run need; pure.

Numbers and the bytes of collectives depend on torch, so that one has to be the same everywhere;
of the others it is enough that they are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from phalanx.errors import LaunchError

EQUAL = ("torch",)
NEEDED = ("numpy", "pyzmq", "msgspec", "pydantic", "psutil", "safetensors", "typing-extensions")


def check_versions(there: Mapping[str, str | None], *, python: str) -> list[str]:
    """List what differs without being an obstacle, in a few words each.

    Args:
        there: Versions by name; None: not installed.
        python: The interpreter that was asked.

    Raises:
        LaunchError: Something is missing, or has to be the same and is not.
    """
    missing = [name for name in (*EQUAL, *NEEDED) if there[name] is None]
    if missing:
        raise LaunchError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed for "
            f"{python}; set 'python' to an environment that has what Phalanx needs, or let one "
            "be built there with --build-env"
        )
    notes = []
    for name in (*EQUAL, *NEEDED):
        here, theirs = _public(version_here(name)), _public(there[name] or "")
        if here != theirs and name in EQUAL:
            raise LaunchError(
                f"{name} {theirs} is there and {here} here; install the same, or let an "
                "environment be built there with --build-env"
            )
        if here != theirs:
            notes.append(f"{name} {theirs} is there and {here} here")
    return notes


def requirements() -> dict[str, str]:
    """Return what the installed Phalanx needs, in the versions that are in use here."""
    lines = metadata.requires("phalanx") or []
    names = [_leading_name(line) for line in lines if "extra ==" not in line]
    return {name: version for name in names if (version := version_here(name))}


def version_here(name: str) -> str:
    """Return the version of a package in this process; empty: it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _public(version: str) -> str:
    """Return a version without what only says how it was built, such as +cpu."""
    return version.partition("+")[0]


def _leading_name(line: str) -> str:
    for end, letter in enumerate(line):
        if not (letter.isalnum() or letter in "-_."):
            return line[:end]
    return line
