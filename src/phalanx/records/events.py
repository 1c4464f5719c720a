"""The kinds of facts that a process writes down while it runs.

Each event is one JSON object on one line, told apart by `kind`. Durations end in `_s`, sizes in
`_bytes`. `mono_s` is the machine's monotonic clock (for durations), `wall_s` the time of day (for
people). Record types are plain data and separate from the objects that produce them.
"""

from __future__ import annotations

import msgspec

from phalanx.wire.facts import ServerFacts


class Event(msgspec.Struct, tag_field="kind", tag=str.lower, kw_only=True, omit_defaults=True):
    """What all events carry; the log fills in the stamps when it writes."""

    wall_s: float = 0.0
    mono_s: float = 0.0


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


class Step(Event):
    """One step of one worker: what it computed and where the time went."""

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


class Epoch(Event):
    """The end of an epoch, measured over all workers."""

    epoch: int
    samples: int
    updates: int
    train_loss: float
    train_accuracy: float
    regularisation: float
    val_loss: float | None
    val_accuracy: float | None
    lr: float
    train_s: float
    evaluate_s: float


class Evaluation(Event):
    """One pass over the validation or test part, measured over all workers."""

    part: str
    epoch: int
    num_samples: int
    loss: float
    accuracy: float
    duration_s: float


class Checkpoint(Event):
    """A checkpoint reached the disk."""

    path: str
    epoch: int
    samples: int
    size_bytes: int
    duration_s: float


class Resumed(Event):
    """The run goes on from a checkpoint."""

    path: str
    epoch: int
    samples: int


class ServerRestored(Event):
    """A lost server serves again."""

    server: int
    version: int
    lost_updates: int
    optimizer_version: int


class Served(Event):
    """A server's totals so far."""

    facts: ServerFacts


class Decision(Event):
    """The controller decided something, and why."""

    what: str
    reason: str
    rank: int | None = None


class Failure(Event):
    """Something broke; the first one of a run is its cause."""

    rank: int | None
    cause: str
    detail: str = ""


class Warned(Event):
    """A setting without effect, a fallback taken, a doubt about the result."""

    message: str


class Finished(Event):
    """A process is done with its part."""

    rank: int
    state: str


AnyEvent = (
    Started
    | Step
    | Epoch
    | Evaluation
    | Checkpoint
    | Resumed
    | ServerRestored
    | Served
    | Decision
    | Failure
    | Warned
    | Finished
)
