"""Messages between chief, workers and evaluator of a parameter-server run.

They travel through the controller; work and parameters travel over TensorFlow's channels. A
TensorFlow worker does not see its own steps, so the chief reports them, and every process keeps its
records.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from phalanx.records.measures import Measures
from phalanx.wire.relay import FromProcess, SendToProcess
from phalanx.worker.context import WorkerContext


class _PeerMessage(msgspec.Struct, frozen=True, tag=True):
    pass


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step that a worker has made."""

    ticket: int
    epoch: int
    num_samples: int
    loss_sum: float
    num_correct: int
    lr: float
    stamps: tuple[float, float, float, float, float]
    """On the worker's clock, since 1970: before it; after input, forward, backward and apply."""
    sent_bytes: int


class StepsDone(_PeerMessage, frozen=True):
    """To a worker: the steps it has made."""

    rows: tuple[StepRow, ...]


class TrainingMark(_PeerMessage, frozen=True):
    """To a worker: training begins with the next step, or has ended with the last, for now."""

    what: Literal["begin", "end"]
    epoch: int
    total: int
    resumed: bool


class EvaluatePart(_PeerMessage, frozen=True):
    """To the evaluator: measure a part of the data with the state in a file."""

    number: int
    part: str


class PartEvaluated(_PeerMessage, frozen=True):
    """From the evaluator: the result of an evaluation."""

    number: int
    measures: Measures


class EvaluatorPresent(_PeerMessage, frozen=True):
    """From the evaluator: it has started, maybe after a loss, and has no request yet."""


PeerMessage = StepsDone | TrainingMark | EvaluatePart | PartEvaluated | EvaluatorPresent


def send_message(context: WorkerContext, process: str, message: PeerMessage) -> None:
    """Send a message to another process through the controller."""
    context.control.send(SendToProcess(process, msgspec.msgpack.encode(message)))


def decode_message(relayed: FromProcess) -> PeerMessage:
    """Decode what another process has sent; a malformed message is refused as a whole."""
    message: PeerMessage = msgspec.msgpack.decode(relayed.body, type=PeerMessage)
    return message
