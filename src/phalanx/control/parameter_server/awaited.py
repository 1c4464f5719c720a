"""Say what a parameter-server run waits for, state by state; the watchdog names it."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.control.coordinator import Awaited
from phalanx.control.parameter_server.evaluation import (
    EvaluationScheduler,
    MeasuringPart,
    ReadingServers,
    SavingCheckpoint,
)
from phalanx.control.parameter_server.gates import GateCycle, ServedRun
from phalanx.control.parameter_server.states import (
    AtGate,
    Closing,
    Finishing,
    Flushing,
    HandingOver,
    Left,
    Pausing,
    Starting,
    Training,
)


def awaited_in(cycle: GateCycle, run: ServedRun) -> list[Awaited]:
    """Return what has to come before the run leaves its present state."""
    host = "worker" if run.is_colocated else "server"
    servers = [Awaited(f"{host}-{one}", "to serve its slice") for one in run.membership.missing]
    match cycle.state:
        case Starting():
            unready = sorted(set(range(run.num_workers)) - run.membership.workers)
            return [*_workers(unready, "to get ready"), *servers]
        case Training():
            owed = sorted(cycle.num_open.items())
            tickets = [Awaited(f"worker-{w}", f"to complete {n} batches") for w, n in owed]
            return [*tickets, *_unconnected(run), *servers]
        case Pausing(unpaused):
            return [*_workers(unpaused, "to pause"), *servers]
        case Flushing(unflushed):
            return _unflushed(unflushed)
        case Closing(unflushed) | AtGate(unflushed=unflushed):
            return [*_evaluation(run.evaluation), *_unflushed(unflushed), *_unconnected(run)]
        case HandingOver(read=read, unflushed=unflushed):
            unread = sorted(set(range(run.num_workers)) - read)
            read_on = _workers(unread, "to take over the servers' state")
            return [*_evaluation(run.evaluation), *_unflushed(unflushed), *read_on, *servers]
        case Left() | Finishing():
            return [Awaited(one, "to end") for one in run.membership.everyone]


def _unflushed(processes: Iterable[str]) -> list[Awaited]:
    return [Awaited(one, "to apply its last gradients") for one in sorted(processes)]


def _unconnected(run: ServedRun) -> list[Awaited]:
    missing = sorted(run.membership.workers - run.membership.connected)
    return _workers(missing, "to connect to the servers")


def _workers(ranks: Iterable[int], what: str) -> list[Awaited]:
    return [Awaited(f"worker-{rank}", what) for rank in ranks]


def _evaluation(evaluation: EvaluationScheduler) -> list[Awaited]:
    who = evaluation.evaluator.name
    match evaluation.state:
        case ReadingServers():
            return [Awaited(who, "to read the servers")]
        case MeasuringPart(request):
            return [Awaited(who, f"to evaluate the {request.part} part")]
        case SavingCheckpoint():
            return [Awaited(who, "to write a checkpoint")]
        case _:
            return []
