"""Read the environment variables of the commands; no other module above the worker does.

An option always beats its variable, and the variable beats the default.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from phalanx.errors import SpecError


def runs_root(option: Path | None = None) -> Path:
    """Return the directory of runs: `--runs`, `PHALANX_RUNS`, else `runs` here.

    Raises:
        SpecError: Something else is there.
    """
    root = option or _path("PHALANX_RUNS") or Path("runs")
    if root.exists() and not root.is_dir():
        raise SpecError(f"{root} is no directory of runs; choose another place with --runs")
    return root


def data_root(option: Path | None = None) -> Path:
    """Return the directory of data sets: `--data`, `PHALANX_DATA`, else the user's cache."""
    return option or _path("PHALANX_DATA") or _user_cache() / "data"


def cache_root() -> Path:
    """Return the directory of decoded data: `PHALANX_CACHE`, else the user's cache."""
    return _path("PHALANX_CACHE") or _user_cache() / "cache"


def fork_server() -> str | None:
    """Return `PHALANX_FORK_SERVER`: own, off, or an address; None if it is not set."""
    return os.environ.get("PHALANX_FORK_SERVER") or None  # noqa: TID251 (its one home)


def fits_to_load() -> bool:
    """Tell whether `threads: auto` leaves busy cores to others: not with `PHALANX_THREADS=all`.

    Raises:
        SpecError: The variable holds something else.
    """
    text = os.environ.get("PHALANX_THREADS", "")  # noqa: TID251 (its one home)
    if text not in ("", "all"):
        raise SpecError(f"PHALANX_THREADS is '{text}'; set it to all, or leave it out")
    return not text


def moments() -> str | None:
    """Return `PHALANX_MOMENTS`: what tests have called at moments of the protocol; else None."""
    return os.environ.get("PHALANX_MOMENTS") or None  # noqa: TID251 (its one home)


def debug() -> bool:
    """Tell whether defects of Phalanx show their traceback: `PHALANX_DEBUG=1`."""
    return os.environ.get("PHALANX_DEBUG", "") not in ("", "0")  # noqa: TID251 (its one home)


def require_usable_place(arguments: Sequence[str]) -> None:
    """Refuse arguments and folders that no record could name, and a folder that is gone.

    Raises:
        SpecError: One of them is not UTF-8, or the current folder no longer exists.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise SpecError(
            "the current folder no longer exists; change to another one, or enter it again with cd"
        ) from None
    for one in (*arguments, here):
        _require_utf8(one)


def _require_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode(errors="surrogateescape").decode(errors="replace")
        raise SpecError(f"'{shown}' is not UTF-8; rename the file or the folder") from None


def _path(variable: str) -> Path | None:
    text = os.environ.get(variable)  # noqa: TID251 (its one home)
    if not text:
        return None
    _require_utf8(text)
    return Path(text).expanduser()


def _user_cache() -> Path:
    return Path.home() / ".cache" / "phalanx"
