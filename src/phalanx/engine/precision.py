"""Choose the number format of the forward and backward pass.

Parameters, gradients and optimiser state are always float32; bf16 means that matrix products and
convolutions run in bfloat16 by torch's autocast. The worker calls `choose_precision` once and
records the answer; `phalanx doctor` shows it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]

# Below this, the gain is within what two measurements on a shared machine differ by.
MIN_GAIN = 1.05
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # x86 twice, then Arm
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class PrecisionChoice:
    """The format that a run uses."""

    name: Precision
    reason: str
    """One sentence for the run's record."""
    measured_gain: float | None = None
    """Seconds per step in fp32 divided by those in bf16; None if not measured."""


def cpu_has_bf16(cpuinfo: str | None = None) -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware.

    Args:
        cpuinfo: Text in the form of /proc/cpuinfo; None reads this machine's, and a machine without
            such a file counts as not having it.
    """
    if cpuinfo is None:
        try:
            cpuinfo = _CPUINFO.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            return not _BF16_FLAGS.isdisjoint(value.split())
    return False


def choose_precision(
    requested: Literal["fp32", "bf16", "auto"],
    *,
    step_factory: Callable[[Precision], Callable[[], object]],
    has_bf16: bool | None = None,
    budget_s: float = 2.0,
) -> PrecisionChoice:
    """Choose a format; `auto` measures, but only on a CPU that has bf16.

    Args:
        requested: The job's setting.
        step_factory: Given a format, returns a function that does one training step in it, such as
            `Replica(..., precision=name).forward_backward` on a batch of the job's shape. Called
            only if a measurement is made.
        has_bf16: Whether the CPU has bf16; None detects it.
        budget_s: About how long the measurement may take, warm-up steps not counted.
    """
    present = cpu_has_bf16() if has_bf16 is None else has_bf16
    if requested == "fp32":
        return PrecisionChoice("fp32", "asked for")
    if requested == "bf16":
        note = "" if present else "; this CPU has no bf16 instructions, so expect it to be slower"
        return PrecisionChoice("bf16", f"asked for{note}")
    if not present:
        return PrecisionChoice("fp32", "this CPU has neither avx512_bf16 nor amx_bf16")
    gain = _measure_gain(step_factory("fp32"), step_factory("bf16"), budget_s=budget_s)
    if gain >= MIN_GAIN:
        return PrecisionChoice("bf16", f"measured {gain:.2f} times as fast as fp32", gain)
    return PrecisionChoice("fp32", f"bf16 measured only {gain:.2f} times as fast", gain)


def autocast(precision: Precision) -> AbstractContextManager[object]:
    """Return the context manager for the forward pass and the loss."""
    if precision == "bf16":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return nullcontext()


def _measure_gain(
    slow: Callable[[], object], fast: Callable[[], object], *, budget_s: float
) -> float:
    """Return the time per step of `slow` over that of `fast`: medians of interleaved steps."""
    for step in (slow, fast, slow, fast):
        step()
    slow_s: list[float] = []
    fast_s: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(slow_s) < 3 or (len(slow_s) < 15 and time.perf_counter() < deadline):
        slow_s.append(_timed(slow))
        fast_s.append(_timed(fast))
    return statistics.median(slow_s) / statistics.median(fast_s)


def _timed(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
