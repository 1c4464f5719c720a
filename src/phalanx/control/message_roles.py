"""Say which process may send which control message; checked for every message, in one place.

A key proves who speaks; this table says what it may say. A message of a server or of the evaluator
never counts as that of the worker with the same rank, and a server speaks for itself only.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.errors import ProtocolError
from phalanx.wire.elastic import CaughtUp, Halted, JoinRequest
from phalanx.wire.messages import Done, EpochDone, FromWorker, PhaseOver
from phalanx.wire.parameter_server import (
    Evaluated,
    Flushed,
    HeldVersion,
    Paused,
    Ready,
    RequestWork,
    Restored,
    RestoredTickets,
    RestoreProgress,
    Saved,
    ServerUp,
    SnapshotTaken,
    WorkDone,
)
from phalanx.wire.program import (
    ScriptDeclared,
    ScriptEvaluated,
    ScriptFigures,
    ScriptPrinted,
    ScriptSaved,
)
from phalanx.wire.relay import ProcessNote, SendToProcess
from phalanx.wire.split import PlacementReport
from phalanx.wire.switch import HandedOver, PhaseBegun, PhaseIdle, WindowReport

_ALL = frozenset({"worker", "server", "evaluator", "chief"})
_WORKER = frozenset({"worker"})
_EVALUATOR = frozenset({"evaluator"})
# A server is a process of its own, or inside the worker of the same number.
_HOST = frozenset({"server", "worker"})
_LEADER = frozenset({"worker", "chief"})

SENDERS: Mapping[type, frozenset[str]] = {
    EpochDone: _LEADER,
    Done: _ALL,
    PhaseOver: _ALL,
    ServerUp: _HOST,
    Ready: frozenset({"worker", "evaluator"}),
    RequestWork: _WORKER,
    WorkDone: _WORKER,
    Paused: _WORKER,
    HeldVersion: _WORKER,
    RestoreProgress: _HOST,
    RestoredTickets: _HOST,
    Restored: _HOST,
    Flushed: _HOST,
    SnapshotTaken: _EVALUATOR,
    Evaluated: _EVALUATOR,
    Saved: _EVALUATOR,
    PhaseIdle: _ALL,
    PhaseBegun: _ALL - _EVALUATOR,
    WindowReport: _WORKER,
    HandedOver: _WORKER,
    PlacementReport: _WORKER,
    SendToProcess: _ALL,
    ProcessNote: _ALL,
    ScriptDeclared: _ALL,
    ScriptPrinted: _WORKER,
    ScriptFigures: _WORKER,
    ScriptEvaluated: _WORKER,
    ScriptSaved: _WORKER,
    JoinRequest: _WORKER,
    Halted: _WORKER,
    CaughtUp: _WORKER,
}
"""Roles that may send each message to a coordinator."""


def check_sender(process: str, message: FromWorker) -> None:
    """Refuse a message that its sender has no right to.

    Raises:
        ProtocolError: It is another role's, or speaks for another server.
    """
    role, _, rank = process.partition("-")
    kind = type(message).__name__
    if role not in SENDERS[type(message)]:
        raise ProtocolError(f"it sent {kind}, which no {role} may send", process=process)
    match message:
        case ServerUp(address=address):
            server = address.server
        case Restored(server=server) | Flushed(server=server):
            pass
        case RestoreProgress(server=server) | RestoredTickets(server=server):
            pass
        case _:
            return
    if server != int(rank):
        raise ProtocolError(f"it sent {kind} for server {server}", process=process)
