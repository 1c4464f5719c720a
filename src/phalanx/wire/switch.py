"""Messages between the coordinator and the processes of a run with several phases.

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
"""State carried from one phase into the next; see `worker.parameter_server.handover`."""


class StepLimit(msgspec.Struct, frozen=True):
    """End of a phase: before this step of this epoch."""

    epoch: int
    step: int


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class PhaseIdle(_Message, frozen=True):
    """A process has built what all phases share and waits for `BeginPhase`."""

    num_samples: int
    """Training samples of an epoch."""


class PhaseBegun(_Message, frozen=True):
    """A worker can train in its new phase; `pause_s` after the last step of the one before."""

    pause_s: float


class WindowReport(_Message, frozen=True, kw_only=True):
    """Measurements of a synchronous phase over a few steps, over all workers; from the chief.

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

    def covers(self, num_workers: int) -> bool:
        """Return whether there is an entry for each of so many workers."""
        lengths = (len(self.compute_s), len(self.exchange_s), len(self.num_samples))
        return all(length == num_workers for length in lengths)


class HandedOver(_Message, frozen=True):
    """A worker holds the servers' final state, or its part of it; answers `HandOver`."""


class BeginPhase(_Message, frozen=True, kw_only=True):
    """To all processes of a phase: begin it.

    Attributes:
        phase: Number of the phase in the job; -1: the looser strategy for stragglers.
        position: Where the run stands, in JSON.
        stop: Where the phase ends; None: with the job, or at `EndPhase`.
        group: Number of the group of workers; a new number means that a new group must form.
        checkpoint: Load this file among the run's checkpoints instead of continuing from memory;
            "newest" for the newest one of the run that is resumed.
        newcomer: The phase is under way, and this process joins it.
        save: The chief writes the state that the phase begins with.
        statistics: Batch-norm statistics to continue with, as float32; empty: the worker's own.
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
    """To the chief of a synchronous phase: have all workers end it at the next window.

    Attributes:
        stay: The same strategy continues, with other shares of the batch.
    """

    stay: bool = False


class HandOver(_Message, frozen=True):
    """To the workers of a phase with servers: the servers hold their final state.

    Attributes:
        read: Read all of it; otherwise each worker takes over the server inside it, and the next
            phase begins by gathering the shards.
    """

    read: bool


class KeepSnapshot(_Message, frozen=True):
    """To a worker of a phase with servers: make sure the state at its beginning is saved.

    Attributes:
        snapshot: Name of the file.
        position: Where the phase began, in JSON.
    """

    snapshot: str
    position: bytes


ToSwitch = PhaseIdle | PhaseBegun | WindowReport | HandedOver
FromSwitch = BeginPhase | EndPhase | HandOver | KeepSnapshot
