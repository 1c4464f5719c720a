"""Messages between the controller and the processes of every run.

Typed, in msgpack; decoding checks the types, so a malformed message is refused as a whole.
Gradients and parameters never travel here; a model's float statistics do, in parts (`delivery`).
"""

from __future__ import annotations

import msgspec

from phalanx.wire.elastic import FromMember, ToMember
from phalanx.wire.parameter_server import FromServing, ToController
from phalanx.wire.program import FromScript, ToScript
from phalanx.wire.relay import FromProcess, ToPeers
from phalanx.wire.server_stats import ServerStats
from phalanx.wire.split import SplitFacts, ToSplit
from phalanx.wire.switch import FromSwitch, ToSwitch


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a worker; running totals, so that a lost message costs nothing."""

    epoch: int = 0
    step: int = 0
    samples: int = 0
    epoch_samples: int = 0
    epoch_total: int = 0
    loss_sum: float = 0.0
    num_correct: int = 0
    weight: float | None = None
    """What the two sums are over; None: the samples."""
    has_classes: bool = True
    """Whether a sample can be correct at all."""
    activity: str = "starting"
    is_starting: bool = False
    """The process imports code or builds its network, which may hold up this very message."""
    lr: float = 0.0
    input_s: float = 0.0
    compute_s: float = 0.0
    exchange_s: float = 0.0
    apply_s: float = 0.0
    wait_s: float = 0.0
    open_exchange_s: float = 0.0
    """The part of `exchange_s` that is not yet divided into communication and waiting."""
    sent_bytes: int = 0
    version: int = 0
    cpu_s: float = 0.0
    """Processor time of the process, by which one that computes is told from one that waits."""


class EpochFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a finished epoch, over all workers; recorded as `events.Epoch`."""

    epoch: int
    samples: int
    updates: int
    train_loss: float
    train_accuracy: float | None
    """None, as the other one: the targets are no classes."""
    regularisation: float
    val_loss: float | None
    val_accuracy: float | None
    lr: float
    train_s: float
    evaluate_s: float


class WorkTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Time breakdown of one worker, and the bytes it sent."""

    sent_bytes: int
    input_s: float
    compute_s: float
    communication_s: float
    wait_s: float
    apply_s: float
    overlapped_s: float = 0.0


class InferenceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Latency and throughput of a trained network."""

    layout: str
    """single, data_parallel or split."""
    batch: int
    """Samples in a request."""
    requests: int
    latency_p50_s: float
    latency_p95_s: float
    samples_per_s: float
    """With requests in a row, over all workers."""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a run, measured over all workers."""

    precision: str
    parameters: int
    epochs: int
    samples: int
    updates: int
    train_s: float
    evaluate_s: float
    startup_s: float
    stopped_early: bool
    train_loss: float | None
    train_accuracy: float | None
    regularisation: float | None
    val_loss: float | None
    val_accuracy: float | None
    test_loss: float | None
    test_accuracy: float | None
    parameters_sha256: str
    inference: InferenceFacts | None = None
    val_metrics: dict[str, float] = {}
    """The other metrics of the data."""
    test_metrics: dict[str, float] = {}


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class Hello(_Message, frozen=True):
    """A process has started and receives messages."""

    pid: int
    host: str


class Heartbeat(_Message, frozen=True):
    """A process is alive; sent by a separate thread, so only a frozen process is silent."""

    progress: Progress


class EpochDone(_Message, frozen=True):
    """The chief has finished an epoch."""

    figures: EpochFigures


class Failed(_Message, frozen=True):
    """A process is about to end because of an error."""

    kind: str
    message: str
    traceback: str
    exit_code: int


class Done(_Message, frozen=True):
    """A process has finished its work.

    Attributes:
        times: Of a worker.
        outcome: Of the run, from the chief of a synchronous one.
        server: Of a server.
        split: Of a worker of a split run.
    """

    times: WorkTimes | None = None
    outcome: RunOutcome | None = None
    server: ServerStats | None = None
    split: SplitFacts | None = None


class PhaseOver(_Message, frozen=True):
    """A process is done with a phase, but not with the run.

    Attributes:
        times: Of a worker, in this phase.
        server: Of a server.
        position: Of a worker of a synchronous phase: where it stands, in JSON.
        snapshot: Of the chief: name of the checkpoint that it is writing; empty: none.
    """

    times: WorkTimes | None = None
    server: ServerStats | None = None
    position: bytes = b""
    snapshot: str = ""


class PutValue(_Message, frozen=True):
    """Rendezvous: publish a value under a key."""

    key: str
    value: bytes


class WantValues(_Message, frozen=True):
    """Rendezvous: request all values of a group, those that are published later included."""

    group: str


class StoredValues(_Message, frozen=True):
    """Rendezvous: values of a requested group, by key."""

    values: dict[str, bytes]


class Ping(_Message, frozen=True):
    """Ask for the controller's monotonic clock."""

    asked_s: float


class Pong(_Message, frozen=True):
    """Time stamp of the question, and the controller's monotonic clock."""

    asked_s: float
    clock_s: float


class Stop(_Message, frozen=True):
    """Ask a process to end now."""

    reason: str


FromCoordinator = FromServing | FromSwitch | FromProcess | ToScript | ToMember
FromWorker = (
    Hello
    | Heartbeat
    | Ping
    | EpochDone
    | Failed
    | Done
    | PhaseOver
    | PutValue
    | WantValues
    | ToController
    | ToSwitch
    | ToSplit
    | ToPeers
    | FromScript
    | FromMember
)
FromController = StoredValues | Pong | Stop | FromCoordinator
