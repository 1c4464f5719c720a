"""Check that a machine has the packages that worker processes need; pure.

Numerics and the wire format of collectives depend on torch, so its version must be the same
everywhere; other packages only have to be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from phalanx.errors import LaunchError

EQUAL = ("torch",)
NEEDED = ("numpy", "pyzmq", "msgspec", "pydantic", "psutil", "safetensors", "typing-extensions")


def check_versions(there: Mapping[str, str | None], *, python: str) -> list[str]:
    """Return the differences that do not prevent a run, in a few words each.

    Args:
        there: Installed versions by package; None: not installed.
        python: The interpreter that was queried.

    Raises:
        LaunchError: A package is missing, or must have the same version and does not.
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
    """Return the requirements of the installed Phalanx, at the versions in use here."""
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
    """Return a version without its local suffix, such as +cpu."""
    return version.partition("+")[0]


def _leading_name(line: str) -> str:
    for end, letter in enumerate(line):
        if not (letter.isalnum() or letter in "-_."):
            return line[:end]
    return line
