"""Define the facts that predictions need: machines, links, model, job, communication costs.

Plain records. Measured values come from `calibrate` (earlier runs) and from a probed pool; the
defaults of `SystemCosts` are of one ordinary core, replaced by measurements where available.
Seconds end in `_s`, sizes in `_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from phalanx.split.graph import NetworkGraph

BYTES_PER_FLOAT = 4
# Parallel fraction of the computation (Amdahl's law). A ResNet-20 on two threads was 1.7 times as
# fast as on one.
PARALLEL_SHARE = 0.83
# Slowdown per further worker on the same machine, which shares its memory bandwidth.
CONTENTION = 0.05


class ComputeFit(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds that one worker computes in a step: `fixed_s + per_sample_s * batch`."""

    fixed_s: float
    per_sample_s: float
    jitter: float = 0.0
    """Coefficient of variation from step to step."""
    backward_share: float = 0.6
    """Share of backward, in which buckets become ready."""
    apply_s: float = 0.0
    """Optimiser update, if made by the worker."""
    threads: int = 1
    workers: int = 1
    """Concurrent workers on the machine."""
    precision: str = "fp32"
    error: float = 0.1
    """Relative standard error of the fit."""

    def seconds(self, batch: int) -> float:
        """Return the mean time of a step with this batch size; an empty one takes none."""
        return self.fixed_s + self.per_sample_s * batch if batch > 0 else 0.0

    def scaled(self, factor: float, **changes: object) -> ComputeFit:
        """Return the same computation slowed down by a factor."""
        return msgspec.structs.replace(
            self,
            fixed_s=self.fixed_s * factor,
            per_sample_s=self.per_sample_s * factor,
            apply_s=self.apply_s * factor,
            **changes,
        )


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One machine."""

    name: str
    cores: float
    """Usable cores; may be fractional."""
    memory_bytes: int
    fits: tuple[ComputeFit, ...]
    slots: int = 1
    """Maximum number of workers."""
    price_per_hour: float | None = None
    watts_idle: float | None = None
    watts_full: float | None = None

    def threads(self, workers: int) -> int:
        """Return the compute threads per worker."""
        return max(1, int(self.cores) // workers)

    def compute(self, *, workers: int, threads: int, precision: str) -> ComputeFit | None:
        """Return the fit for a number of workers; None: nothing is known of the precision.

        A fit measured in exactly this setting is returned as it is. Otherwise the nearest is scaled
        by Amdahl's law, and its error grows.
        """
        known = [fit for fit in self.fits if fit.precision == precision]
        if not known:
            return None
        fit = min(known, key=lambda f: (abs(f.workers - workers), abs(f.threads - threads)))
        if (fit.workers, fit.threads) == (workers, threads):
            return fit
        factor = _amdahl(threads) / _amdahl(fit.threads)
        factor *= (1 + CONTENTION * (workers - 1)) / (1 + CONTENTION * (fit.workers - 1))
        if workers * threads > self.cores:
            # Threads beyond the number of cores share them.
            factor *= workers * threads / self.cores
        return fit.scaled(factor, threads=threads, workers=workers, error=fit.error + 0.1)


def _amdahl(threads: int) -> float:
    return 1 - PARALLEL_SHARE + PARALLEL_SHARE / threads


class LinkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Link between two machines, or within one."""

    latency_s: float
    """One-way latency."""
    bandwidth_bytes_per_s: float


LOOPBACK = LinkFacts(latency_s=5e-5, bandwidth_bytes_per_s=1.5e9)
GIGABIT = LinkFacts(latency_s=2e-4, bandwidth_bytes_per_s=1.17e8)


class NetworkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All links; a pair that was not measured has the default link."""

    between: LinkFacts = GIGABIT
    within: LinkFacts = LOOPBACK
    pairs: Mapping[str, Mapping[str, LinkFacts]] = {}

    def link(self, one: str, other: str) -> LinkFacts:
        """Return the link between two machines; either measured direction."""
        if one == other:
            return self.within
        found = self.pairs.get(one, {}).get(other) or self.pairs.get(other, {}).get(one)
        return found or self.between

    def port(self, machine: str) -> float:
        """Return the bandwidth of a machine's port: that of its fastest link."""
        speeds = [link.bandwidth_bytes_per_s for link in self.pairs.get(machine, {}).values()]
        return max(speeds, default=self.between.bandwidth_bytes_per_s)


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Size of the model for communication and memory."""

    num_parameters: int
    num_moments: int = 1
    """Optimiser state values per parameter."""
    bucket_bytes: int | None = None
    """None: a quarter of the model, within 512 KiB and 25 MiB, as the engine does."""
    process_bytes: int = 350 << 20
    """Memory of a worker without a model: interpreter, framework, data."""
    sample_bytes: int = 0
    """Memory per sample of a batch during computation."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the parameters, which decide what factors of low rank send; empty: not known."""

    @property
    def size_bytes(self) -> int:
        """Return the size of all parameters, in full precision."""
        return self.num_parameters * BYTES_PER_FLOAT

    def buckets(self) -> tuple[int, ...]:
        """Return the size of each bucket, in the order in which backward fills them."""
        size = self.bucket_bytes or min(max(self.size_bytes // 4, 512 << 10), 25 << 20)
        whole, rest = divmod(self.size_bytes, size)
        return (size,) * whole + ((rest,) if rest else ())


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Amount of work of a job."""

    global_batch: int
    samples_per_epoch: int
    epochs: int
    evaluated_samples: int = 0
    """Validation and test samples evaluated over the whole run."""
    per_worker: bool = False
    """Whether `global_batch` is the batch of each worker."""
    splits_evenly: bool = False
    """Whether all workers take as many samples, because each reads a stream of its own."""
    script_s: float = 0.0
    """Time that a user's script takes between epochs and after the last one."""
    in_step_only: bool = False
    """Whether its workers must step together all the time, as those with streams of their own."""

    def batch(self, num_workers: int) -> int:
        """Return the samples of one step over all workers."""
        return self.global_batch * (num_workers if self.per_worker else 1)


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """Systematic error of predictions, measured on earlier runs."""

    factor: float = 1.0
    """Measured over predicted, of all but communication."""
    exchange: float = 1.0
    """Measured over predicted, of exposed communication."""
    error: float = 0.15
    """Standard deviation of the residual's logarithm; the default holds for uncalibrated models."""
    count: int = 0
    """Number of runs it is fitted to."""


class SystemCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Communication costs besides the wire, and run costs besides steps."""

    call_s: float = 3e-4
    """Per collective call: thread wake-up, system calls."""
    reduce_s_per_byte: float = 2e-10
    cast_s_per_byte: float = 1.5e-10
    """Casting to a shorter format and back."""
    update_s_per_byte: float = 7e-10
    """A server's update: some five streams through memory per parameter."""
    message_s: float = 6e-5
    """Per segment that a server receives and answers."""
    seal_s_per_byte: float = 1e-9
    """Encrypting or decrypting traffic between a worker and a server on another machine."""
    seal_frame_s_per_byte: float = 3e-10
    """Encrypting or decrypting traffic between workers on different machines."""
    startup_s: float = 6.0
    """From the command to the first step, and from the last step to the end."""
    warm_up_s: float = 0.5
    """Extra time of the first steps."""
    checkpoint_s: float = 0.2
    """Synchronizing and checkpointing at the end of each epoch."""
    switch_s: float = 1.0
    corrections: Mapping[str, Correction] = {}
    """By family: single, allreduce, local_sgd, bsp, async."""

    def correction(self, family: str) -> Correction:
        """Return the correction of a family."""
        return self.corrections.get(family, Correction())


class PartsFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of the parts of a network, as measured by a split run."""

    graph: NetworkGraph
    forward_s: tuple[float, ...]
    """Time of each part for a batch, on the chief's machine; only proportions count."""
    backward_s: tuple[float, ...]
    run: str
    """The run that measured them."""


class ClusterModel(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of predictions."""

    machines: Mapping[str, MachineFacts]
    model: ModelFacts
    job: JobFacts
    network: NetworkFacts = NetworkFacts()
    costs: SystemCosts = SystemCosts()
    sources: tuple[str, ...] = ()
    """Sources of the facts, for people."""
    parts: PartsFacts | None = None
    """Costs of the network's parts; None: no split run of it."""
