"""Read the environment variables of the commands; no other module above the worker does.

An option always beats its variable, and the variable beats the default.
"""

from __future__ import annotations

import os
from pathlib import Path


def runs_root(option: Path | None = None) -> Path:
    """Return the directory of runs: `--runs`, `PHALANX_RUNS`, else `runs` here."""
    return option or _path("PHALANX_RUNS") or Path("runs")


def data_root(option: Path | None = None) -> Path:
    """Return the directory of data sets: `--data`, `PHALANX_DATA`, else the user's cache."""
    return option or _path("PHALANX_DATA") or _user_cache() / "data"


def cache_root() -> Path:
    """Return the directory of decoded data: `PHALANX_CACHE`, else the user's cache."""
    return _path("PHALANX_CACHE") or _user_cache() / "cache"


def fork_server() -> str | None:
    """Return `PHALANX_FORK_SERVER`: own, off, or an address; None if it is not set."""
    return os.environ.get("PHALANX_FORK_SERVER") or None  # noqa: TID251 (its one home)


def moments() -> str | None:
    """Return `PHALANX_MOMENTS`: what tests have called at moments of the protocol; else None."""
    return os.environ.get("PHALANX_MOMENTS") or None  # noqa: TID251 (its one home)


def debug() -> bool:
    """Tell whether defects of Phalanx show their traceback: `PHALANX_DEBUG=1`."""
    return os.environ.get("PHALANX_DEBUG", "") not in ("", "0")  # noqa: TID251 (its one home)


def _path(variable: str) -> Path | None:
    text = os.environ.get(variable)  # noqa: TID251 (its one home)
    return Path(text).expanduser() if text else None


def _user_cache() -> Path:
    return Path.home() / ".cache" / "phalanx"
