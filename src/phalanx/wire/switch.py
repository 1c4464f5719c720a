"""What the controller and the processes of a run with several phases say to each other.

Everything between two phases is here; within a phase its strategy's own messages are used.
"""

from __future__ import annotations

import msgspec

CARRIED = (
    "parameters",
    "optimiser state",
    "batch-norm statistics",
    "schedule position",
    "sample position",
    "random state",
)
"""What goes from one phase into the next; how, says `worker.parameter_server.handover`."""


class StepLimit(msgspec.Struct, frozen=True):
    """A moment at which a phase ends: before this step of this epoch."""

    epoch: int
    step: int


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class PhaseIdle(_Message, frozen=True):
    """A process has made what all phases share and waits for `BeginPhase`."""

    num_samples: int
    """Training samples of an epoch."""


class PhaseBegun(_Message, frozen=True):
    """A worker can train in its new phase; `pause_s` after the last step of the one before."""

    pause_s: float


class WindowReport(_Message, frozen=True, kw_only=True):
    """What the workers of a lockstep phase found together over a few steps; from the chief.

    Attributes:
        samples: Seen so far.
        epoch: Of the last step.
        step_s: Time of one step.
        compute_s: Of every worker, in the whole window.
        exchange_s: Of every worker, waiting included.
        num_samples: Of every worker.
        noise: Variance of a single sample's gradient, summed over its entries.
        signal: Squared length of the true gradient.
        loss: Mean over the window.
        lr: Of the last step.
    """

    samples: int
    epoch: int
    step_s: float
    compute_s: tuple[float, ...]
    exchange_s: tuple[float, ...]
    num_samples: tuple[int, ...]
    noise: float
    signal: float
    loss: float
    lr: float


class HandedOver(_Message, frozen=True):
    """A worker has what the servers held last, or its part of it; answers `HandOver`."""


class BeginPhase(_Message, frozen=True, kw_only=True):
    """To all processes of a phase: take it up.

    Attributes:
        phase: Number of the phase in the job; -1: the looser strategy of the straggler reaction.
        position: Where the run stands, in JSON.
        stop: Where the phase ends; None: with the job, or when the workers are told to turn.
        group: Number of the group of workers; another one than before must be formed anew.
        checkpoint: Take up this file among the run's checkpoints instead of going on from what is
            in memory; "newest" for the newest one of the run that is resumed.
        newcomer: The phase is under way, and this process comes into it.
        save: The chief writes down what the phase begins with, as nobody else has.
        statistics: Batch-norm statistics to go on from, as float32; empty: the worker's own.
        shares: Relative share of the global batch per worker; empty: as the job says.
    """

    phase: int
    position: bytes
    stop: StepLimit | None
    group: int
    checkpoint: str = ""
    newcomer: bool = False
    save: bool = False
    statistics: bytes = b""
    shares: tuple[float, ...] = ()


class EndPhase(_Message, frozen=True):
    """To the chief of a lockstep phase: have all workers end it at the next window.

    Attributes:
        stay: The same strategy goes on, with other shares of the batch.
    """

    stay: bool = False


class HandOver(_Message, frozen=True):
    """To the workers of a phase with servers: what the servers hold now is the last.

    Attributes:
        read: Read all of it; otherwise each worker takes what the server inside it holds, and the
            next phase begins with putting these together.
    """

    read: bool


class KeepSnapshot(_Message, frozen=True):
    """To a worker of a phase with servers: see to it that the state at its beginning is written.

    Attributes:
        snapshot: Name of the file with the state at which the phase began.
        position: Where that was, in JSON.
    """

    snapshot: str
    position: bytes


ToSwitch = PhaseIdle | PhaseBegun | WindowReport | HandedOver
FromSwitch = BeginPhase | EndPhase | HandOver | KeepSnapshot
