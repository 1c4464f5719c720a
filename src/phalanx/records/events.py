"""Define the events that a process records while it runs.

Each event is one JSON object on one line, tagged by `kind`. Durations end in `_s`, sizes in
`_bytes`. `mono_s` is the machine's monotonic clock (for durations), `wall_s` the time of day (for
people). Record types are plain data and separate from the objects that produce them.
"""

from __future__ import annotations

import msgspec

from phalanx.records.event_base import Event as Event
from phalanx.records.grouped import Grouped as Grouped
from phalanx.records.measures import PartFigures
from phalanx.records.refused import Refused as Refused
from phalanx.records.script_trained import ScriptTrained
from phalanx.records.tensor_slot import TensorSlot
from phalanx.spec.fields import InputField
from phalanx.split.placement import SplitForecast
from phalanx.wire.messages import EpochFigures, WorkTimes
from phalanx.wire.server_stats import ServerStats


class Started(Event):
    """A process is up and has joined the run."""

    rank: int
    role: str
    pid: int
    host: str
    attempt: int
    threads: int
    cpus: list[int]
    precision: str
    precision_reason: str
    startup_s: float


class NetworkBuilt(Event):
    """Names and shapes of what checkpoints hold in flat buffers, and how inputs are prepared."""

    parameters: list[TensorSlot]
    buffers: list[TensorSlot]
    input_shape: tuple[int, ...]
    num_outputs: int
    scale: list[float]
    """Factor of each channel (last axis of a stored sample), before `shift` is added."""
    shift: list[float]
    class_names: list[str] = []
    renamed: dict[str, str] = {}
    """Names in the network of tensors that checkpoints keep by another name."""
    whole_numbers: bool = False
    """The network reads stored whole numbers as they are."""
    fields: list[InputField] = []
    """Inputs of a sample, where it has several; stored samples are rows of bytes."""


class Step(Event):
    """One step of one worker, or several in a long run: results, and time by phase, as sums."""

    epoch: int
    step: int
    num_samples: int
    loss_sum: float
    num_correct: int
    lr: float
    input_s: float
    forward_s: float
    backward_s: float
    exchange_s: float
    apply_s: float
    sent_bytes: int = 0
    overlapped_s: float = 0.0
    """Exchange hidden behind the computation; `exchange_s` is what was left exposed."""
    wait_s: float | None = None
    """The part of `exchange_s` in which a server's consistency held this worker back; None in a
    synchronous group, where it follows from comparing the workers: see `records.step_phases`."""
    num_steps: int = 1
    """Steps that it stands for; `step` and `lr` are those of the last."""
    weight: float | None = None
    """What loss and correct ones are sums over, such as tokens; None: the samples."""

    @property
    def divisor(self) -> float:
        """Return what the sums are over."""
        return self.num_samples if self.weight is None else self.weight

    @property
    def duration_s(self) -> float:
        """Time of all phases."""
        return self.input_s + self.forward_s + self.backward_s + self.exchange_s + self.apply_s

    def __add__(self, later: Step) -> Step:
        """Return one event for both."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED}
        if self.wait_s is not None and later.wait_s is not None:
            sums["wait_s"] = self.wait_s + later.wait_s
        if self.weight is not None or later.weight is not None:
            sums["weight"] = self.divisor + later.divisor
        return msgspec.structs.replace(later, **sums)


_OF_THE_LAST = {"wall_s", "mono_s", "epoch", "step", "lr", "wait_s", "weight"}
_SUMMED = set(Step.__struct_fields__) - _OF_THE_LAST


class Stall(Event):
    """A worker neither read nor computed, between two steps."""

    epoch: int
    what: str
    """work: had none to do; round: took part in an update without samples; settle: replicas were
    synchronized at the end of an epoch."""
    duration_s: float
    wait_s: float | None = None
    """The part of it that was waiting for others; None as in `Step`."""

    @property
    def exchange_s(self) -> float:
        """All of it: a stall does nothing else."""
        return self.duration_s


class Epoch(Event):
    """The end of an epoch, measured over all workers."""

    epoch: int
    samples: int
    updates: int
    train_loss: float
    train_accuracy: float | None
    """None: the targets are no classes."""
    regularisation: float
    val_loss: float | None
    val_accuracy: float | None
    lr: float
    train_s: float
    evaluate_s: float

    @classmethod
    def of(cls, figures: EpochFigures) -> Epoch:
        """Make the event from the figures, which have the same fields."""
        return cls(**msgspec.structs.asdict(figures))


class Evaluation(Event):
    """One pass over the validation or test part, measured over all workers."""

    part: str
    epoch: int
    num_samples: int
    loss: float | None
    """None: a script has not reported it."""
    accuracy: float | None
    """None: the targets are no classes."""
    duration_s: float
    metrics: dict[str, float] = {}
    """Metrics other than accuracy."""

    @classmethod
    def of(cls, measured: PartFigures, *, part: str, epoch: int) -> Evaluation:
        """Make the event from measured figures."""
        return cls(
            part=part,
            epoch=epoch,
            num_samples=measured.num_samples,
            loss=measured.loss,
            accuracy=measured.accuracy,
            duration_s=measured.duration_s,
            metrics=dict(measured.metrics),
        )


class Checkpoint(Event):
    """A checkpoint reached the disk."""

    path: str
    epoch: int
    samples: int
    size_bytes: int
    duration_s: float


class Resumed(Event):
    """The run continues from a checkpoint."""

    path: str
    epoch: int
    samples: int


class Switched(Event):
    """The run continues under another strategy.

    Attributes:
        phase: Number of the phase that begins; -1: the looser strategy of a straggler reaction.
        before: Strategy that ends.
        after: Strategy that begins.
        cause: Why now.
        epoch: Where.
        samples: Where.
        pause_s: Longest time that a worker did not train.
        carried: State that was handed over.
        handover: live or restart.
    """

    phase: int
    before: str
    after: str
    cause: str
    epoch: int
    samples: int
    pause_s: float
    carried: list[str]
    handover: str = "live"


class PlacedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a split network: its measured costs, and its workers."""

    name: str
    workers: list[int]
    forward_s: float
    """For all rows of a batch, on the first of its workers."""
    backward_s: float
    chief_forward_s: float
    """The same on the chief, which measured all parts."""
    chief_backward_s: float
    out_bytes: int
    """For one sample, as it travels."""
    parameters: int
    reads: list[str]
    state_bytes: int
    sample_bytes: int
    needs_gradient: bool


class Placed(Event):
    """The parts of a network have been placed on workers, with the forecast of one step.

    Attributes:
        forecast: Of the chosen placement.
        others: Of placements to compare with.
        parts: Measured costs of each part.
        rows: Samples of a batch.
        latency_s: Of the slowest link from the chief.
        bytes_per_s: Likewise.
        proven: Whether a planned placement is known to be the best.
        tied: Parts that share weights.
    """

    forecast: SplitForecast
    others: list[SplitForecast]
    parts: list[PlacedPart]
    rows: int
    latency_s: float
    bytes_per_s: float
    proven: bool
    tied: list[list[str]] = []
    attempt: int = 1


class Considered(Event):
    """Statistics of one window of a synchronous phase, and whether to switch now."""

    samples: int
    rel_lr: float
    noise_batches: float
    gain: float
    saved_s: float
    closed: list[str]


class ServerRestored(Event):
    """A lost server was restored.

    Attributes:
        server: Index of the server.
        version: From which it goes on.
        lost_updates: Updates that its predecessor had made beyond that.
        optimizer_version: The version that its optimiser state is from.
        repeated: Batches of those updates that are computed again.
    """

    server: int
    version: int
    lost_updates: int
    optimizer_version: int
    repeated: int = 0


class Served(Event):
    """A server's totals so far."""

    facts: ServerStats


class Clock(Event):
    """Offset of this process's monotonic clock to the controller's: theirs = ours + offset."""

    offset_s: float
    error_s: float
    """Error bound of the offset: half the round trip of the quickest of several exchanges."""
    attempt: int = 1


class ProcessSample(Event):
    """Resource use of this process and its children; totals, so a lost sample costs nothing.

    Totals begin with the process: compare only samples of one `pid`.
    """

    pid: int
    cpu_user_s: float
    cpu_system_s: float
    memory_bytes: int
    """Resident at this moment; pages shared with other processes count in full."""
    memory_peak_bytes: int
    """Highest resident size; includes the time before the run, if the process is older."""
    threads: int
    host: str = ""
    read_bytes: int | None = None
    """From the disk, not from the page cache; None where the system does not report it."""
    written_bytes: int | None = None
    moment: str = ""
    """begin: the first step is about to start; end: the last step so far is over; else by time."""
    attempt: int = 1


class Watching(Event):
    """One process begins to sample its whole machine: the facts that its samples refer to."""

    host: str
    cores: int
    memory_total_bytes: int
    energy_source: str
    """rapl, model, or empty."""
    energy_reason: str
    group_cores: float | None = None
    """Processor time that a control group (container, batch system) allows, in cores."""
    group_memory_bytes: int | None = None
    """Memory that it allows."""
    attempt: int = 1


class HostSample(Event):
    """Resource use of a whole machine since it booted; written by one process on each machine.

    Inside a container these are still the figures of the machine around it, except for the network,
    which is the container's own; `group_*` is what the container itself has used.
    """

    host: str
    cpu_user_s: float
    cpu_system_s: float
    cpu_idle_s: float
    core_busy_s: list[float]
    load_1min: float
    memory_used_bytes: int
    memory_total_bytes: int
    received_bytes: dict[str, int]
    """By network interface; traffic through `lo` counts once as sent and once as received."""
    sent_bytes: dict[str, int]
    read_bytes: int | None = None
    written_bytes: int | None = None
    cpu_stolen_s: float = 0.0
    """Taken by other guests of the same hypervisor."""
    energy_j: float | None = None
    """Since sampling began."""
    energy_source: str = ""
    """rapl, model (declared watts), or empty where energy is unknown."""
    group_cpu_s: float | None = None
    group_memory_bytes: int | None = None
    phase: str = "run"
    """baseline: before the work began, to be subtracted on request."""
    attempt: int = 1


class AttemptTotals(Event):
    """Elapsed time, phases and bytes of an attempt so far; its last one counts.

    Attributes:
        attempt: Number of the attempt.
        elapsed_s: Since it began.
        startup_s: Until the first step of a worker.
        times: Seconds as means per worker, bytes as sums over workers, lost ones included.
    """

    attempt: int
    elapsed_s: float
    startup_s: float
    times: WorkTimes


class Decision(Event):
    """A decision of the controller, with its reason."""

    what: str
    reason: str
    rank: int | None = None


class Failure(Event):
    """A failure; the first one of a run is its cause."""

    rank: int | None
    cause: str
    detail: str = ""


class Warned(Event):
    """A setting without effect, a fallback, or a doubt about the result."""

    message: str


class Finished(Event):
    """A process has finished its work."""

    rank: int
    state: str


AnyEvent = (
    Started
    | NetworkBuilt
    | ScriptTrained
    | Step
    | Stall
    | Epoch
    | Evaluation
    | Checkpoint
    | Resumed
    | Switched
    | Placed
    | Considered
    | ServerRestored
    | Served
    | Clock
    | ProcessSample
    | Watching
    | HostSample
    | AttemptTotals
    | Decision
    | Failure
    | Warned
    | Refused
    | Grouped
    | Finished
)
