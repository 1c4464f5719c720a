"""Format numbers for people: with units, and no more digits than are significant.

Pure text; all commands share it, so that a duration looks the same wherever it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from phalanx.report.document import CellFormat, Column, Value, text

NOTHING = "-"
"""Shown for a value that was not measured."""

Shown = TypeVar("Shown", bound=str | float)

_BYTE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(size_bytes: float) -> str:
    """Format a size in binary units: `640 B`, `1.5 MiB`."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    exponent = min(int(math.log(size_bytes, 1024)), len(_BYTE_UNITS))
    # 1023.99 KiB would round to 1024.0 KiB; the next unit reads better.
    if exponent < len(_BYTE_UNITS) and size_bytes / 1024**exponent >= 1023.95:
        exponent += 1
    return f"{size_bytes / 1024**exponent:.1f} {_BYTE_UNITS[exponent - 1]}"


def format_duration(seconds: float | None) -> str:
    """Format a duration: `0.42 s`, `8.3 s`, `42 s`, `3 min 05 s`, `2 h 07 min`, `3 d 04 h`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def format_clock(seconds: float) -> str:
    """Format elapsed time as a clock: `0:07`, `12:30`, `1:02:03`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def format_count(number: float) -> str:
    """Format a whole number with thousands separators: `1,199,882`."""
    return f"{number:,.0f}"


def format_rate(samples_per_s: float) -> str:
    """Format throughput: `7.25 samples/s`, `12,345 samples/s`."""
    digits = 2 if samples_per_s < 9.995 else 1 if samples_per_s < 99.95 else 0
    return f"{samples_per_s:,.{digits}f} samples/s"


def format_percent(share: float | None, digits: int = 0) -> str:
    """Format a share of one as per cent: `97.22 %`."""
    return NOTHING if share is None else f"{100 * share:.{digits}f} %"


def format_accuracy(accuracy: float | None) -> str:
    """Format an accuracy, to a hundredth of a per cent."""
    return format_percent(accuracy, 2)


def format_loss(loss: float | None) -> str:
    """Format a loss to four digits: `0.1234`, `12.34`; tiny ones as `1.2e-05`."""
    if loss is None:
        return NOTHING
    if 0 < abs(loss) < 0.001:
        return f"{loss:.1e}"
    return f"{loss:.4f}" if abs(loss) < 10 else f"{loss:.4g}"


def format_ratio(ratio: float | None) -> str:
    """Format a ratio: `1.31x`."""
    return NOTHING if ratio is None else f"{ratio:.2f}x"


def format_shares(shares: Mapping[str, float]) -> str:
    """Format shares of time: `input 2 %, compute 61 %, communication 25 %, waiting 12 %`."""
    if not shares:
        return NOTHING
    return ", ".join(f"{name} {format_percent(share)}" for name, share in shares.items())


def count_noun(number: int, noun: str) -> str:
    """Format a number with its noun, singular or plural: `1 worker`, `4 workers`."""
    return f"{format_count(number)} {noun}{'' if number == 1 else 's'}"


def shown(value: Shown | None, form: Callable[[Shown], str]) -> Value:
    """Make a table entry of a value; None is marked as not measured."""
    return Value(NOTHING if value is None else form(value), value)


def number_field(
    key: str, title: str, form: Callable[[Any], str] = str, *, keep: int | None = None
) -> tuple[Column, CellFormat[Any]]:
    """Make a column that shows the attribute `key` of each row as `form` writes it."""
    return Column(key, title, keep=keep), lambda row: shown(getattr(row, key), form)


def text_field(
    key: str, title: str, *, wraps: bool = False, keep: int | None = None
) -> tuple[Column, CellFormat[Any]]:
    """Make a column that shows the attribute `key` of each row as it is."""
    column = Column(key, title, is_text=True, wraps=wraps, keep=keep)
    return column, lambda row: text(getattr(row, key))


def format_places(places: Mapping[str, Sequence[int]]) -> str:
    """List the parts of a split network by worker; a whole branch is one name."""
    by_worker: dict[tuple[int, ...], list[str]] = {}
    for part, workers in places.items():
        by_worker.setdefault(tuple(workers), []).append(part)
    lines = []
    for workers, parts in sorted(by_worker.items()):
        who = "+".join(str(worker) for worker in workers)
        lines.append(f"worker {who}: {', '.join(group_parts(parts, places))}")
    return "; ".join(lines)


def group_parts(parts: Sequence[str], among: Mapping[str, object]) -> list[str]:
    """Name parts, with `branch.*` for a branch that is whole.

    Args:
        parts: Parts to name.
        among: All parts of the network, by name.
    """
    found: list[str] = []
    for part in parts:
        branch = part.partition(".")[0]
        whole = [name for name in among if name.partition(".")[0] == branch]
        if len(whole) > 1 and all(name in parts for name in whole):
            found.append(f"{branch}.*")
        else:
            found.append(part)
    return list(dict.fromkeys(found))
