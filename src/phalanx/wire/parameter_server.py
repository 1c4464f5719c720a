"""What the controller and the processes around a parameter server say to each other.

Only decisions, counts and addresses; gradients and parameters travel between workers and servers
over `bulk`. All of these ride on the control channel.
"""

from __future__ import annotations

import msgspec

from phalanx.spec.epoch_quota import EpochQuota


class ServerAddress(msgspec.Struct, frozen=True):
    """Where a server is, and the key by which it is known to be the right one."""

    server: int
    door: str
    public_key: str


class CompletedTicket(msgspec.Struct, frozen=True):
    """A ticket whose gradient every server has acknowledged, and what its samples showed."""

    ticket: int
    num_samples: int
    loss_sum: float
    num_correct: int


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class ServerUp(_Message, frozen=True):
    """A server listens; from a server's process, or from the worker that hosts it."""

    address: ServerAddress
    restoring: bool


class Ready(_Message, frozen=True):
    """A worker or the evaluator has its replica and waits for `Connect`."""

    num_samples: int
    """Training samples of an epoch."""
    precision: str
    serves: bool = False
    """Whether a server is in the same process."""
    portions: EpochQuota | None = None
    """How an epoch is divided where workers own samples."""


class RequestWork(_Message, frozen=True):
    """A worker has room for so many more tickets."""

    count: int


class WorkDone(_Message, frozen=True):
    """A worker is done with tickets, and has room for so many more."""

    completed: tuple[CompletedTicket, ...]
    want: int


class Paused(_Message, frozen=True):
    """A worker does nothing; with its batch-norm statistics, as float32."""

    statistics: bytes


class HeldVersion(_Message, frozen=True):
    """Report the version of a server's parameters that a worker holds, -1: none."""

    server: int
    version: int


class Restored(_Message, frozen=True):
    """A restarted server has its parameters again and serves.

    Attributes:
        server: Which.
        version: From which it goes on.
        optimizer_version: The version that its optimiser state is from; 0: none was found.
    """

    server: int
    version: int
    optimizer_version: int


class Flushed(_Message, frozen=True):
    """A server has applied everything that it had gathered; answers `Flush`."""

    server: int
    version: int


class SnapshotTaken(_Message, frozen=True):
    """The evaluator holds a snapshot, so training may go on; answers `ReadAndEvaluate`."""

    look: int


class Evaluated(_Message, frozen=True):
    """The evaluator has evaluated a part of the data; follows `SnapshotTaken`."""

    look: int

    part: str
    num_samples: int
    loss: float
    accuracy: float
    regularisation: float
    duration_s: float
    metrics: dict[str, float] = {}


class Saved(_Message, frozen=True):
    """The evaluator has written a checkpoint; answers `Save`."""

    look: int

    path: str
    size_bytes: int
    duration_s: float
    parameters: int
    parameters_sha256: str
    pinned: str = ""
    """Name under which it is kept for the rest of the run, if that was asked for."""


class Admit(_Message, frozen=True):
    """To a server: let this peer in, and its earlier incarnations no longer."""

    public_key: str
    role: str
    rank: int
    incarnation: int


class Dismiss(_Message, frozen=True):
    """To a server: shut this peer out and stop waiting for it."""

    role: str
    rank: int


class Connect(_Message, frozen=True):
    """To a worker or the evaluator: where the servers are now; sent again when one has moved."""

    servers: tuple[ServerAddress, ...]


class Work(_Message, frozen=True):
    """To a worker: compute these tickets, in this order; 0: take part without samples.

    Attributes:
        tickets: What to do.
        statistics: Batch-norm statistics to go on from, as float32; empty: the worker's own.
    """

    tickets: tuple[int, ...]
    statistics: bytes = b""


class Pause(_Message, frozen=True):
    """To a worker: nothing for you until the next `Work`; answered by `Paused`.

    Attributes:
        leave: Leave the servers meanwhile, so that nobody waits for this worker's clock.
    """

    leave: bool


class QueryVersion(_Message, frozen=True):
    """To a worker: which version of this server's parameters do you hold?"""

    server: int


class SendParameters(_Message, frozen=True):
    """To a worker: send this server the copy of its parameters that you hold."""

    server: int


class RestoreFromDisk(_Message, frozen=True):
    """To a server: nobody holds a copy; go on from what you last wrote down."""


class Flush(_Message, frozen=True):
    """To a server: apply what has been gathered, however little.

    Attributes:
        done_below: Tickets below this one are done, and need not be remembered.
        write: Write the state down as well; otherwise it stays in memory for another phase.
    """

    done_below: int
    write: bool = True


class ReadAndEvaluate(_Message, frozen=True):
    """To the evaluator: read everything that the servers hold now, then measure a part of the data.

    Attributes:
        look: Number of this request; answers carry it.
        part: validation or test; None: only read.
        statistics: Batch-norm statistics of the workers' mean, as float32.
    """

    look: int
    part: str | None
    statistics: bytes


class Save(_Message, frozen=True):
    """To the evaluator: write what was read at the last `ReadAndEvaluate` as a checkpoint.

    Attributes:
        look: Number of the look.
        position: Where the run stood then, in JSON.
        best: It is the best so far.
        pin: Keep it for the rest of the run, as another phase begins with it.
    """

    look: int
    position: bytes
    best: bool
    pin: bool = False


class Finish(_Message, frozen=True):
    """To all: the job is done; report and leave."""


ToController = (
    ServerUp
    | Ready
    | RequestWork
    | WorkDone
    | Paused
    | HeldVersion
    | Restored
    | Flushed
    | SnapshotTaken
    | Evaluated
    | Saved
)
FromServing = (
    Admit
    | Dismiss
    | Connect
    | Work
    | Pause
    | QueryVersion
    | SendParameters
    | RestoreFromDisk
    | Flush
    | ReadAndEvaluate
    | Save
    | Finish
)
