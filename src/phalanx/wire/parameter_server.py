"""Messages between the coordinator and the processes of a parameter-server run.

Only decisions, counts and addresses; gradients and parameters travel between workers and servers
over `bulk`. All of these use the control channel.
"""

from __future__ import annotations

import msgspec

from phalanx.spec.epoch_quota import EpochQuota


class ServerAddress(msgspec.Struct, frozen=True):
    """Address of a server, and the key that authenticates it."""

    server: int
    door: str
    public_key: str


class CompletedTicket(msgspec.Struct, frozen=True):
    """A ticket whose gradient every server has acknowledged, with its metrics."""

    ticket: int
    num_samples: int
    loss_sum: float
    num_correct: int
    weight: float | None = None
    """What the two sums are over; None: the samples."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class ServerUp(_Message, frozen=True):
    """A server listens; from its process, or from the worker that hosts it.

    Attributes:
        address: Where it listens.
        restoring: Whether it has lost its parameters.
        saved_version: Of the state in the store that it could continue from; -1: none.
    """

    address: ServerAddress
    restoring: bool
    saved_version: int = -1


class Ready(_Message, frozen=True):
    """A worker or the evaluator has built its replica and waits for `Connect`."""

    num_samples: int
    """Training samples of an epoch."""
    precision: str
    serves: bool = False
    """Whether a server is in the same process."""
    portions: EpochQuota | None = None
    """Division of an epoch where workers own samples."""
    has_classes: bool = True
    """Whether the targets are classes, so that there is an accuracy."""


class RequestWork(_Message, frozen=True):
    """A worker has room for more tickets."""

    count: int


class WorkDone(_Message, frozen=True):
    """A worker has completed tickets, and has room for more."""

    completed: tuple[CompletedTicket, ...]
    want: int


class Paused(_Message, frozen=True):
    """A worker is paused; with its batch-norm statistics, as float32."""

    statistics: bytes


class HeldVersion(_Message, frozen=True):
    """Version of a server's parameters that a worker holds; answers `QueryVersion`.

    Completed tickets were reported before: whatever the lost server has acknowledged to this worker
    is either known as done, or named here.

    Attributes:
        server: Index of the server.
        number: Of the question.
        version: -1: none.
        acknowledged: Ticket of the outstanding push, if the lost server has answered it; 0: none.
    """

    server: int
    number: int
    version: int
    acknowledged: int = 0


class RestoreProgress(_Message, frozen=True):
    """So many segments of the copy with this number have arrived at a restarted server."""

    server: int
    number: int
    num_loaded: int


class RestoredTickets(_Message, frozen=True):
    """A part of the tickets of `Restored`, before it, where they are too many for one message."""

    server: int
    tickets: bytes


class Restored(_Message, frozen=True):
    """A restarted server has its parameters again and serves.

    Attributes:
        server: Index of the server.
        version: From which it goes on.
        optimizer_version: The version that its optimiser state is from; 0: none was found.
        tickets: Batches that its parameters contain, as an encoded `TicketSet`.
    """

    server: int
    version: int
    optimizer_version: int
    tickets: bytes = b""


class Flushed(_Message, frozen=True):
    """A server has applied all gathered gradients; answers `Flush`."""

    server: int
    version: int


class SnapshotTaken(_Message, frozen=True):
    """The evaluator has read the servers, so training may go on; answers `ReadAndEvaluate`."""

    look: int


class Evaluated(_Message, frozen=True):
    """The evaluator has evaluated a part of the data; follows `SnapshotTaken`.

    A user's script may report no loss, or nothing at all; `ended`: it has left its loop.
    """

    look: int

    part: str
    num_samples: int
    loss: float | None
    accuracy: float | None
    regularisation: float
    duration_s: float
    metrics: dict[str, float] = {}
    ended: bool = False

    @property
    def has_figures(self) -> bool:
        """Whether anything was measured."""
        return self.loss is not None or self.accuracy is not None or bool(self.metrics)


class Saved(_Message, frozen=True):
    """The evaluator has written a checkpoint; answers `Save`."""

    look: int

    path: str
    size_bytes: int
    duration_s: float
    parameters: int
    parameters_sha256: str
    pinned: str = ""
    """Name under which it is kept for the rest of the run, if requested."""


class Admit(_Message, frozen=True):
    """To a server: accept this client, and no earlier incarnation of it.

    Attributes:
        public_key: Of the client.
        role: worker or reader.
        rank: Of the client.
        incarnation: Of the client.
        expected: Whether a restarted server waits for this worker; not if it was sent away.
    """

    public_key: str
    role: str
    rank: int
    incarnation: int
    expected: bool = True


class Dismiss(_Message, frozen=True):
    """To a server: reject this client and stop waiting for it."""

    role: str
    rank: int


class Connect(_Message, frozen=True):
    """To a worker or the evaluator: addresses of the servers; sent again when one has moved."""

    servers: tuple[ServerAddress, ...]


class ServerLost(_Message, frozen=True):
    """To a worker or the evaluator: a server is being replaced; `Connect` will say where it is."""

    server: int


class Work(_Message, frozen=True):
    """To a worker: compute these tickets, in this order; 0: push without samples.

    Attributes:
        tickets: Their numbers.
        statistics: Batch-norm statistics to continue with, as float32; empty: the worker's own.
    """

    tickets: tuple[int, ...]
    statistics: bytes = b""


class Pause(_Message, frozen=True):
    """To a worker: compute nothing until the next `Work`; answered by `Paused`.

    Attributes:
        leave: Leave the servers meanwhile, so that no update waits for this worker's clock.
    """

    leave: bool


class QueryVersion(_Message, frozen=True):
    """To a worker: report the version of this server's parameters that you hold."""

    server: int
    number: int


class SendParameters(_Message, frozen=True):
    """To a worker: send this server your copy of its parameters, under this number."""

    server: int
    number: int


class ExpectParameters(_Message, frozen=True):
    """To a server: take the copy that this worker sends under this number, and no other."""

    number: int
    donor: int
    incarnation: int


class RestoreFromDisk(_Message, frozen=True):
    """To a server: no worker holds a newer copy; continue from your last snapshot."""

    number: int


class Flush(_Message, frozen=True):
    """To a server: apply the gathered gradients, however few.

    Attributes:
        done_below: Tickets below this one are done, and can be forgotten.
        write: Write the state too; otherwise it stays in memory for another phase.
    """

    done_below: int
    write: bool = True


class ReadAndEvaluate(_Message, frozen=True):
    """To the evaluator: read all parameters from the servers, then evaluate a part of the data.

    Where the user's script evaluates: to all its workers.

    Attributes:
        look: Number of this request; answers carry it.
        part: validation or test; None: only read.
        statistics: Mean batch-norm statistics of the workers, as float32.
        epoch: Epochs that are done.
    """

    look: int
    part: str | None
    statistics: bytes
    epoch: int = 0


class Save(_Message, frozen=True):
    """To the evaluator: write what the last `ReadAndEvaluate` read as a checkpoint.

    Attributes:
        look: Number of that request.
        position: Where the run stood then, in JSON.
        best: Whether it is the best so far.
        pin: Keep it for the rest of the run, as another phase begins with it.
    """

    look: int
    position: bytes
    best: bool
    pin: bool = False


class Finish(_Message, frozen=True):
    """To all: the job is done; report and exit."""


ToController = (
    ServerUp
    | Ready
    | RequestWork
    | WorkDone
    | Paused
    | HeldVersion
    | RestoreProgress
    | RestoredTickets
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
    | ServerLost
    | Work
    | Pause
    | QueryVersion
    | SendParameters
    | ExpectParameters
    | RestoreFromDisk
    | Flush
    | ReadAndEvaluate
    | Save
    | Finish
)
