"""Hold what a probe found out about a machine, as plain facts with units; what the cache keeps.

Nothing here measures: the agent does, on the machine itself, and `probe` collects.
"""

from __future__ import annotations

import msgspec


class HostSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast torch computes there, in 10^9 floating-point operations per second."""

    threads: int
    """What `all` means: usable cores, or the quota rounded up."""
    gemm_1_gflops: float
    conv_1_gflops: float
    gemm_all_gflops: float
    conv_all_gflops: float
    bf16_gemm_all_gflops: float
    cores_delivered: float
    """Processor time per time while all threads computed."""


class ClockOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's clock is ahead of the asker's by the offset, give or take the error."""

    offset_s: float
    error_s: float


class HostLink(msgspec.Struct, frozen=True, kw_only=True):
    """The way from one machine to another, measured with plain TCP."""

    address: str
    """Where the other one was reached."""
    bytes_per_s: float
    round_trip_s: float
    """Median of some dozens of round trips."""
    round_trip_min_s: float
    measured_at: str


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine says about itself when asked, without load."""

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
    """Graphics cards that can be computed on; None: not looked for."""
    load_1min: float
    addresses: list[str]

    @property
    def cores(self) -> float:
        """Cores that a program gets: those it may run on, or the quota if that is less."""
        return min(self.usable_cores, self.quota_cores or self.usable_cores)

    @property
    def memory_bytes(self) -> int:
        """Memory that a program may use."""
        return min(self.memory_total_bytes, self.memory_limit_bytes or self.memory_total_bytes)

    @property
    def has_bf16(self) -> bool:
        """Whether the processor computes in bf16."""
        return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(self.flags))


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured on one machine, with the date."""

    measured_at: str
    """UTC, ISO 8601."""
    looks: HostFacts
    clock: ClockOffset
    speed: HostSpeed | None = None
    """None: torch is not installed there, or it was not measured."""
    links: dict[str, HostLink] = {}
    """Identity of the other machine to the way there."""
    link_faults: dict[str, str] = {}
    """Identity of the other machine to the reason why there is no way."""
