"""Judge what Spark offers for seats, and put what it says into sentences; pure.

Used by `spark_seats`, which asks Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.errors import PlanError
from phalanx.spec.scheduler import SparkSpec

_SEAT_BYTES = 384 << 20
"""Least memory of a seat: agent, and one process with its framework."""
_MIN_OVERHEAD_BYTES = 384 << 20
_UNITS = {"b": 1, "": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class Offer:
    """What the settings of a Spark session say about its executors.

    Attributes:
        is_dynamic: Whether executors come and go with the tasks.
        limits_memory: Whether a container ends an executor whose processes take too much.
        executor_cores: Cores of an executor; None: not known.
        overhead_bytes: Memory of an executor's container beside the heap.
    """

    is_dynamic: bool
    limits_memory: bool
    executor_cores: int | None
    overhead_bytes: int

    @classmethod
    def of(cls, setting: Callable[[str], str | None]) -> Offer:
        """Read the offer from the settings of a session."""
        master = setting("spark.master") or ""
        is_kubernetes = master.startswith("k8s")
        heap_bytes = to_bytes(setting("spark.executor.memory") or "1g", unit="m")
        usual_share = 0.4 if is_kubernetes else 0.1
        share = float(setting("spark.executor.memoryOverheadFactor") or usual_share)
        usual = max(_MIN_OVERHEAD_BYTES, int(heap_bytes * share))
        given = setting("spark.executor.memoryOverhead")
        cores = setting("spark.executor.cores")
        return cls(
            is_dynamic=setting("spark.dynamicAllocation.enabled") == "true",
            limits_memory=is_kubernetes or master.startswith("yarn"),
            executor_cores=None if cores is None else int(cores),
            overhead_bytes=usual if given is None else to_bytes(given, unit="m"),
        )


def to_bytes(text: str, *, unit: str) -> int:
    """Read a size of Spark's settings, such as `2g`; a bare number has the given unit."""
    found = re.fullmatch(r"(\d+)\s*([bkmgt]?)b?", text.strip().lower())
    if found is None:
        raise PlanError(f"Spark's settings hold '{text}', which is no size such as 2g")
    return int(found[1]) * _UNITS[found[2] or unit]


def check_overhead(spec: SparkSpec, offer: Offer) -> None:
    """Refuse seats that would outgrow the container of their executor.

    Raises:
        PlanError: It has too little memory beside the heap.
    """
    if not offer.limits_memory:
        return
    seats = max(1, (offer.executor_cores or spec.cores) // spec.cores)
    need = seats * (spec.memory or _SEAT_BYTES)
    if need > offer.overhead_bytes:
        many = "1 seat needs" if seats == 1 else f"{seats} seats need"
        raise PlanError(
            f"{many} {need >> 20} MiB beside the heap of an executor, whose container has "
            f"{offer.overhead_bytes >> 20} MiB for it; set 'spark.executor.memoryOverhead' to "
            f"{need >> 20}m or more"
        )


def too_few(spec: SparkSpec, slots: int) -> str:
    """Say that Spark has fewer slots than there are seats."""
    cores = "1 core" if spec.cores == 1 else f"{spec.cores} cores"
    return (
        f"Spark has {slots} slot{'' if slots == 1 else 's'} of {cores}, and {spec.seats} are "
        "wanted; set fewer 'seats' or 'cores' in the pool file, or give Spark more executors or "
        "cores"
    )


def verdict(said: str) -> str:
    """Return one sentence on why Spark has ended the job of a seat."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it ended"]
    broken = [line for line in lines if "LineBroken:" in line]
    if broken:
        return broken[-1].partition("LineBroken:")[2].strip().rstrip(".")
    if "SPARK_JOB_CANCELLED" in said or "OPERATION_CANCELED" in said or "cancelled" in lines[0]:
        return "its job was cancelled in Spark"
    for line in lines:
        if "ExecutorLostFailure" in line:
            return f"Spark says: {line[line.index('ExecutorLostFailure') :].rstrip('.')}"
    return f"Spark says: {lines[0].rstrip('.')}"
