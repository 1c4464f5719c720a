"""Define the facts that a probe measures on a machine, with units; the format of the cache.

Nothing here measures: the agent does, on the machine itself, and `probe` collects.
"""

from __future__ import annotations

import msgspec


class HostSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Compute speed of torch, in 10^9 floating-point operations per second."""

    threads: int
    """Threads of the `all` figures: usable cores, or the quota rounded up."""
    gemm_1_gflops: float
    conv_1_gflops: float
    gemm_all_gflops: float
    conv_all_gflops: float
    bf16_gemm_all_gflops: float
    cores_delivered: float
    """Processor time over elapsed time while all threads computed."""


class ClockOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Offset of the machine's clock from this one's; positive: ahead. Exact to within the error."""

    offset_s: float
    error_s: float


class HostLink(msgspec.Struct, frozen=True, kw_only=True):
    """Link from one machine to another, measured with plain TCP."""

    address: str
    """Address at which the other machine was reached."""
    bytes_per_s: float
    round_trip_s: float
    """Median of some dozens of round trips."""
    round_trip_min_s: float
    measured_at: str


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a machine reports without running a load."""

    host: str
    system: str
    kernel: str
    cpu: str
    flags: list[str]
    logical_cores: int
    usable_cores: int
    quota_cores: float | None
    memory_total_bytes: int
    memory_free_bytes: int
    memory_limit_bytes: int | None
    disk_free_bytes: int
    disk_write_bytes_per_s: float | None
    python: str
    torch: str | None
    phalanx: str | None
    gpus: list[str] | None
    """Graphics cards usable for computation; None: not probed."""
    load_1min: float
    addresses: list[str]

    @property
    def cores(self) -> float:
        """Return the cores available to a program: usable cores, or the quota if lower."""
        return min(self.usable_cores, self.quota_cores or self.usable_cores)

    @property
    def memory_bytes(self) -> int:
        """Return the memory available to a program."""
        return min(self.memory_total_bytes, self.memory_limit_bytes or self.memory_total_bytes)

    @property
    def has_bf16(self) -> bool:
        """Return whether the processor computes in bf16."""
        return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(self.flags))


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one machine, with the date."""

    measured_at: str
    """UTC, ISO 8601."""
    looks: HostFacts
    clock: ClockOffset
    speed: HostSpeed | None = None
    """None: torch is not installed there, or speed was not measured."""
    links: dict[str, HostLink] = {}
    """Links by identity of the other machine."""
    link_faults: dict[str, str] = {}
    """Reasons of failed links by identity of the other machine."""
