"""What a prediction needs to know: machines, links, the model, the job, and what exchanging costs.

Plain records. Measured values are put in by `calibrate` (from earlier runs) and from a probed pool;
the defaults of `SystemCosts` are of one ordinary core, replaced by measurements where there are
any. Seconds end in `_s`, sizes in `_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from phalanx.split.graph import NetworkGraph

BYTES_PER_FLOAT = 4
# Share of the computation that threads divide among them; the rest is done by one. A ResNet-20 on
# two threads was 1.7 times as fast as on one.
PARALLEL_SHARE = 0.83
# What each further worker on the same machine costs the others: they share its memory bandwidth.
CONTENTION = 0.05


class ComputeFit(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that one worker computes in a step: `fixed_s + per_sample_s * batch`, on average."""

    fixed_s: float
    per_sample_s: float
    jitter: float = 0.0
    """Standard deviation from step to step over the mean."""
    backward_share: float = 0.6
    """The part of it in which buckets become ready."""
    apply_s: float = 0.0
    """The optimiser's update, where the worker makes it itself."""
    threads: int = 1
    workers: int = 1
    """Workers on the machine at the same time."""
    precision: str = "fp32"
    error: float = 0.1
    """Standard deviation of the fit's own error, as a share of the value."""

    def seconds(self, batch: int) -> float:
        """Mean time of a step with so many samples; an empty one takes none."""
        return self.fixed_s + self.per_sample_s * batch if batch > 0 else 0.0

    def scaled(self, factor: float, **changes: object) -> ComputeFit:
        """The same computation, so many times as slow."""
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
    """That may be used; a share of one counts as that share."""
    memory_bytes: int
    fits: tuple[ComputeFit, ...]
    slots: int = 1
    """Workers that it may hold at most."""
    price_per_hour: float | None = None
    watts_idle: float | None = None
    watts_full: float | None = None

    def threads(self, workers: int) -> int:
        """Compute threads of each of so many workers."""
        return max(1, int(self.cores) // workers)

    def compute(self, *, workers: int, threads: int, precision: str) -> ComputeFit | None:
        """The fit for so many workers; None: nothing is known of the precision.

        What was measured in just this setting is taken as it is. Otherwise the nearest is scaled by
        Amdahl's law, and its error grows.

        Args:
            workers: On this machine.
            threads: Of each of them.
            precision: Format that they compute in.
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
            # More threads than cores take turns.
            factor *= workers * threads / self.cores
        return fit.scaled(factor, threads=threads, workers=workers, error=fit.error + 0.1)


def _amdahl(threads: int) -> float:
    return 1 - PARALLEL_SHARE + PARALLEL_SHARE / threads


class LinkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The way between two machines, or within one."""

    latency_s: float
    """One way."""
    bandwidth_bytes_per_s: float


LOOPBACK = LinkFacts(latency_s=5e-5, bandwidth_bytes_per_s=1.5e9)
GIGABIT = LinkFacts(latency_s=2e-4, bandwidth_bytes_per_s=1.17e8)


class NetworkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All links; a pair that was not measured has the default one."""

    between: LinkFacts = GIGABIT
    within: LinkFacts = LOOPBACK
    pairs: Mapping[str, Mapping[str, LinkFacts]] = {}

    def link(self, one: str, other: str) -> LinkFacts:
        """The link between two machines; of both directions, what was measured."""
        if one == other:
            return self.within
        found = self.pairs.get(one, {}).get(other) or self.pairs.get(other, {}).get(one)
        return found or self.between

    def port(self, machine: str) -> float:
        """Bytes per second of a machine's own port: as fast as its fastest link."""
        speeds = [link.bandwidth_bytes_per_s for link in self.pairs.get(machine, {}).values()]
        return max(speeds, default=self.between.bandwidth_bytes_per_s)


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What travels, and what has to fit into memory."""

    num_parameters: int
    num_moments: int = 1
    """Numbers that the optimiser keeps for each parameter."""
    bucket_bytes: int | None = None
    """None: a quarter of the model, within 512 KiB and 25 MiB, as the engine cuts it."""
    process_bytes: int = 350 << 20
    """Of a worker before it holds a model: interpreter, framework, data."""
    sample_bytes: int = 0
    """Memory for each sample of a batch while it is computed."""

    @property
    def size_bytes(self) -> int:
        """All parameters, in full precision."""
        return self.num_parameters * BYTES_PER_FLOAT

    def buckets(self) -> tuple[int, ...]:
        """Bytes of each bucket, in the order in which backward fills them."""
        size = self.bucket_bytes or min(max(self.size_bytes // 4, 512 << 10), 25 << 20)
        whole, rest = divmod(self.size_bytes, size)
        return (size,) * whole + ((rest,) if rest else ())


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is to do."""

    global_batch: int
    samples_per_epoch: int
    epochs: int
    evaluated_samples: int = 0
    """Validation and test samples that are measured over the whole run."""
    per_worker: bool = False
    """`global_batch` is what each worker gets, however many there are."""

    def batch(self, num_workers: int) -> int:
        """Samples of one step over so many workers."""
        return self.global_batch * (num_workers if self.per_worker else 1)


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """How far earlier runs were from what was predicted for them."""

    factor: float = 1.0
    """Measured over predicted, of all but exchanges."""
    exchange: float = 1.0
    """Measured over predicted, of exposed exchanges."""
    error: float = 0.15
    """Standard deviation of the logarithm of what is left; the default is what uncalibrated models
    get."""
    count: int = 0
    """Runs behind it."""


class SystemCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What exchanging takes besides the wire, and what a run takes besides steps."""

    call_s: float = 3e-4
    """Each collective call: waking threads up, system calls."""
    reduce_s_per_byte: float = 2e-10
    cast_s_per_byte: float = 1.5e-10
    """To a shorter format and back."""
    update_s_per_byte: float = 7e-10
    """A server's update: some five streams through memory for each parameter."""
    message_s: float = 6e-5
    """Each segment that a server takes and answers."""
    seal_s_per_byte: float = 1e-9
    """Encrypting or decrypting what travels between a worker and a server on another machine."""
    startup_s: float = 6.0
    """From the command to the first step, and from the last step to the end."""
    warm_up_s: float = 0.5
    """What the first steps take longer than later ones."""
    checkpoint_s: float = 0.2
    """Settling and writing down at the end of each epoch."""
    switch_s: float = 1.0
    corrections: Mapping[str, Correction] = {}
    """By family: single, allreduce, local_sgd, bsp, async."""

    def correction(self, family: str) -> Correction:
        """What is known of a family."""
        return self.corrections.get(family, Correction())


class PartsFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a network, as a split run measured them."""

    graph: NetworkGraph
    forward_s: tuple[float, ...]
    """Of each part for a batch, on the chief's machine; only their proportions count."""
    backward_s: tuple[float, ...]
    run: str
    """That measured them."""


class ClusterModel(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that predictions are made from."""

    machines: Mapping[str, MachineFacts]
    model: ModelFacts
    job: JobFacts
    network: NetworkFacts = NetworkFacts()
    costs: SystemCosts = SystemCosts()
    sources: tuple[str, ...] = ()
    """Where the facts come from, for people."""
    parts: PartsFacts | None = None
    """What is known of the network's parts; None: no split run of it."""
