"""The processes around a parameter server, played without any: messages in, messages out.

The coordinator under test talks to a scripted api. What it sends lies in the inbox of the process
it was meant for until the test lets that process read it, so every order of events can be played,
and losses put between any two messages.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from phalanx.control.coordinator import Identity
from phalanx.control.failure_policy import ProcessFacts, ReportedError, RunVerdict
from phalanx.control.parameter_server.coordinator import ParameterServerCoordinator
from phalanx.control.parameter_server.training_progress import PhaseBound
from phalanx.data.order import share_sizes
from phalanx.records.events import Event
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.wire.messages import (
    Done,
    EpochFigures,
    FromController,
    FromWorker,
    Progress,
    WorkTimes,
)
from phalanx.wire.parameter_server import (
    CompletedTicket,
    Connect,
    Evaluated,
    Finish,
    Flush,
    Flushed,
    HeldVersion,
    Pause,
    Paused,
    QueryVersion,
    ReadAndEvaluate,
    Ready,
    RequestWork,
    Restored,
    RestoreFromDisk,
    Save,
    Saved,
    SendParameters,
    ServerAddress,
    ServerUp,
    SnapshotTaken,
    Work,
    WorkDone,
)
from phalanx.wire.server_stats import ServerStats
from phalanx.wire.switch import HandedOver, HandOver
from phalanx.wire.ticket_set import TicketSet
from phalanx.wire.tickets import TicketPlan

Message = TypeVar("Message")
NUM_SAMPLES = 10
WANT = 2
EVALUATOR = "evaluator-0"
# More than any play here takes; a coordinator that goes in circles is found out.
_MOST_SCENES = 5000


def serving_job(*, strategy: Mapping[str, object] | None = None, **fields: object) -> JobSpec:
    """Three steps of two parts in an epoch of ten samples."""
    defaults: dict[str, object] = {
        "data": "digits",
        "batch": {"global": 4},
        "workers": 2,
        "epochs": 2,
        "strategy": {"name": "parameter_server", "dispatch": "dynamic", **(strategy or {})},
    }
    return job_from_mapping(defaults | fields)


class ScriptedApi:
    """Keeps what the coordinator has done."""

    def __init__(self) -> None:
        self.inboxes: dict[str, deque[FromController]] = defaultdict(deque)
        self.sent: list[tuple[str, FromController]] = []
        self.events: list[Event] = []
        self.announced: list[EpochFigures] = []
        self.incarnations: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()

    def send(self, process: str, message: FromController) -> None:
        self.sent.append((process, message))
        self.inboxes[process].append(message)

    def record(self, event: Event) -> None:
        self.events.append(event)

    def announce(self, report: EpochFigures) -> None:
        self.announced.append(report)

    def progress(self, process: str) -> Progress:
        return Progress(lr=0.5, version=self.versions[process])

    def learning_rate(self) -> float:
        return 0.5

    def identity(self, process: str) -> Identity:
        incarnation = 1 + self.incarnations[process]
        return Identity(public_key=f"key-{process}-{incarnation}", incarnation=incarnation)

    def sent_to(self, process: str, kind: type[Message]) -> list[Message]:
        """Everything of one kind that a process was ever sent."""
        return [one for name, one in self.sent if name == process and isinstance(one, kind)]

    def recorded(self, kind: type[Message]) -> list[Message]:
        return [event for event in self.events if isinstance(event, kind)]


class Company:
    """Plays every process of a run as it should behave.

    Args:
        job: What the run is.
        position: Where it begins.
        losses: Validation losses by look; the last one stays.
        bound: Where the phase ends, if it is one.
    """

    def __init__(
        self,
        job: JobSpec,
        position: Position | None = None,
        *,
        losses: Sequence[float] = (0.5,),
        bound: PhaseBound | None = None,
    ) -> None:
        self.job = job
        self.api = ScriptedApi()
        self.now = 0.0
        """What the coordinator takes for the time."""
        self.coordinator = ParameterServerCoordinator(
            job, self.api, position or Position(), bound=bound, clock=lambda: self.now
        )
        self.plan = TicketPlan(job.workers, -(-NUM_SAMPLES // job.global_batch))
        self.tickets: dict[str, deque[int]] = defaultdict(deque)
        self.gone: set[str] = set()
        self.done: set[str] = set()
        self.used: Counter[int] = Counter()
        """Tickets whose gradients the servers have: what exactly once is about."""
        self.server_versions: Counter[int] = Counter()
        self.held: dict[tuple[str, int], int] = {}
        """Versions of the servers' parameters that workers hold."""
        self.ledgers: dict[int, set[int]] = defaultdict(set)
        """Tickets that the parameters of each server contain."""
        self._down: set[int] = set()
        self._copies: dict[tuple[str, int], set[int]] = {}
        self._saved: dict[int, tuple[int, set[int]]] = {}
        self.rounds: list[dict[str, int]] = []
        """Who pushed which ticket into each update, where an update takes everybody's."""
        self.num_stalls = 0
        self._members: set[str] = set()
        self._pending: dict[str, int] = {}
        self._losses = deque(losses)
        self._unmeasured: ReadAndEvaluate | None = None

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.coordinator.processes()]

    def start(self, *processes: str) -> Company:
        """Processes report for the first time; all of them if none is named."""
        for name in processes or self.names:
            self.report(name)
        return self

    def report(self, name: str, *, restoring: bool = False) -> None:
        """A process is up: what it says first."""
        role, rank = name.split("-")
        self.gone.discard(name)
        if role == "server":
            self._server_up(name, int(rank), restoring=restoring)
            return
        if role == "worker" and self._colocated:
            self._server_up(name, int(rank), restoring=restoring)
        self.say(name, Ready(num_samples=NUM_SAMPLES, precision="fp32", serves=self._colocated))

    def say(self, name: str, message: FromWorker) -> None:
        self.coordinator.take(name, message)

    def lose(self, name: str) -> None:
        """A process is gone, with everything in its inbox."""
        self.gone.add(name)
        self.api.inboxes[name].clear()
        self.tickets[name].clear()
        for key in [key for key in self.held if key[0] == name]:
            del self.held[key]
            self._copies.pop(key, None)
        role, rank = name.split("-")
        if role == ("worker" if self._colocated else "server"):
            self._down.add(int(rank))
        self.coordinator.left(name)
        self.api.incarnations[name] += 1
        self._members.discard(name)
        self._pending.pop(name, None)
        self._close_round_if_full()

    def restart(self, name: str) -> None:
        """Its successor reports."""
        self.report(name, restoring=True)

    def judge(self, **facts: ProcessFacts) -> RunVerdict:
        """What the coordinator makes of the processes; those not named are well."""
        return self.coordinator.judge(
            [facts.get(name.replace("-", "_"), self.well(name)) for name in self.names]
        )

    def well(self, name: str) -> ProcessFacts:
        ended = name in self.done
        return process_facts(name, done=ended, exit_code=0 if ended else None)

    def busy(self) -> list[str]:
        """Processes that have something to read or to do."""
        return [
            name
            for name in sorted(self.api.inboxes.keys() | self.tickets.keys())
            if name not in self.gone | self.done
            and (self.api.inboxes[name] or self._can_push(name))
        ]

    @property
    def is_down(self) -> bool:
        """Whether a server is away, or without its parameters."""
        return bool(self._down & set(range(self._num_servers)))

    def _can_push(self, name: str) -> bool:
        # No push is complete while a server is away or without its parameters.
        return bool(self.tickets[name]) and name not in self._pending and not self.is_down

    def scene(self, name: str) -> None:
        """A process reads one message, or does one ticket if there is none."""
        if self.api.inboxes[name]:
            self._obey(name, self.api.inboxes[name].popleft())
        elif self._can_push(name):
            self.do_ticket(name)

    def do_ticket(self, name: str) -> None:
        ticket = self.tickets[name].popleft()
        if not self._in_rounds:
            self._finish_push(name, ticket)
            return
        self._pending[name] = ticket
        self._close_round_if_full()

    def _close_round_if_full(self) -> None:
        if self._pending and self._members <= self._pending.keys() and not self.is_down:
            self._close_round()

    def _close_round(self) -> None:
        pushed, self._pending = self._pending, {}
        self.rounds.append(pushed)
        for name, ticket in pushed.items():
            self._finish_push(name, ticket)

    def _finish_push(self, name: str, ticket: int) -> None:
        if ticket == 0:
            self.say(name, WorkDone((), WANT))
            return
        self._push(name, ticket)
        self.say(name, WorkDone((self.completed(ticket),), WANT))

    def completed(self, ticket: int) -> CompletedTicket:
        unit = self.plan.unit(ticket)
        batch = self.job.global_batch
        rows = min(batch, NUM_SAMPLES - unit.step * batch)
        count = share_sizes(rows, self.job.workers)[unit.part]
        return CompletedTicket(ticket, num_samples=count, loss_sum=0.25 * count, num_correct=count)

    def play(self, until: Callable[[], object] | None = None) -> None:
        """Let everybody act in turn until a condition holds, or nobody has anything to do."""
        for _ in range(_MOST_SCENES):
            if until is not None and until():
                return
            names = self.busy()
            if not names and not self.pass_time():
                assert until is None, "everybody waits, and what was to come has not"
                return
            if not names:
                continue
            self.scene(names[0] if len(names) == 1 else self._next(names))
        raise AssertionError("the play does not end")

    def pass_time(self) -> bool:
        """Nobody has anything to do: a round may lack gradients, which only time can show."""
        self.now += 10.0
        self.judge()
        self.num_stalls += bool(self.busy())
        return bool(self.busy())

    @property
    def is_finished(self) -> bool:
        return self.done == set(self.names) - self.gone

    def reached(self, name: str, kind: type[FromController]) -> Callable[[], bool]:
        """Whether a message of a kind lies next in an inbox."""
        return lambda: bool(self.api.inboxes[name]) and isinstance(self.api.inboxes[name][0], kind)

    @property
    def _in_rounds(self) -> bool:
        return bool(getattr(self.job.strategy, "synchronous", False))

    @property
    def _num_servers(self) -> int:
        servers = getattr(self.job.strategy, "servers", 1)
        return self.job.workers if servers == "colocated" else int(servers)

    @property
    def _colocated(self) -> bool:
        return getattr(self.job.strategy, "servers", None) == "colocated"

    def _next(self, names: list[str]) -> str:
        self._turn = (getattr(self, "_turn", -1) + 1) % len(names)
        return names[self._turn]

    def _server_up(self, name: str, server: int, *, restoring: bool) -> None:
        incarnation = 1 + self.api.incarnations[name]
        address = ServerAddress(server, f"tcp://{name}-{incarnation}", f"server-key-{incarnation}")
        if not restoring:
            self._down.discard(server)
        saved = self._saved.get(server, (0, set()))[0]
        self.say(name, ServerUp(address=address, restoring=restoring, saved_version=saved))

    def _push(self, name: str, ticket: int) -> None:
        # A server ignores what it has; only one that was restored may lack a ticket of before.
        self.used[ticket] += ticket not in self.ledgers[0] or self._num_servers == 1
        for server in range(self._num_servers):
            self.server_versions[server] += 1
            self.ledgers[server].add(ticket)
            self.held[name, server] = self.server_versions[server]
            self._copies[name, server] = set(self.ledgers[server])
            host = name if self._colocated else f"server-{server}"
            self.api.versions[host] = self.server_versions[server]

    def _obey(self, name: str, order: FromController) -> None:
        rank = int(name.split("-")[1])
        match order:
            case Connect():
                if name.startswith("worker") and name not in self._members:
                    self._members.add(name)
                    self.say(name, RequestWork(WANT))
            case Work():
                self.tickets[name].extend(order.tickets)
            case Pause():
                self.say(name, Paused(b""))
            case QueryVersion():
                held = self.held.get((name, order.server), -1)
                self.say(name, HeldVersion(order.server, order.number, held))
            case SendParameters():
                key = name, order.server
                self.restore(order.server, self.held[key], self._copies.get(key, set()))
            case RestoreFromDisk():
                self.restore(rank, *self._saved.get(rank, (0, set())))
            case Flush() if rank in self._down:
                pass  # sent again once it has its parameters
            case Flush():
                if self._pending:
                    self._close_round()
                if order.write:
                    self._saved[rank] = self.server_versions[rank], set(self.ledgers[rank])
                self.say(name, Flushed(rank, self.server_versions[rank]))
            case ReadAndEvaluate():
                self.say(name, SnapshotTaken(order.look))
                if order.part is not None:
                    loss = self._losses.popleft() if len(self._losses) > 1 else self._losses[0]
                    self.say(name, measured(order, loss=loss))
            case Save():
                self.say(name, saved(order))
            case HandOver():
                self.say(name, HandedOver())
            case Finish():
                self.done.add(name)
                self.say(name, self._last_words(name, rank))
            case _:
                pass  # introductions: Admit, Dismiss

    def restore(self, server: int, version: int, tickets: set[int]) -> None:
        host = f"worker-{server}" if self._colocated else f"server-{server}"
        self.server_versions[server] = version
        if server == 0:
            # Lost with the server: to be used once more.
            self.used.subtract(self.ledgers[0] - tickets)
        self.ledgers[server] = set(tickets)
        self._down.discard(server)
        held = TicketSet(self.job.workers, tickets).encode()
        self.say(host, Restored(server=server, version=version, optimizer_version=0, tickets=held))
        self._close_round_if_full()

    def _last_words(self, name: str, rank: int) -> Done:
        if name.startswith("server"):
            return Done(server=server_facts(rank, self.server_versions[rank]))
        if name.startswith("evaluator"):
            return Done()
        times = WorkTimes(
            sent_bytes=1, input_s=0.0, compute_s=0.0, communication_s=0.0, wait_s=0.0, apply_s=0.0
        )
        server = server_facts(rank, self.server_versions[rank]) if self._colocated else None
        return Done(times=times, server=server)


def measured(look: ReadAndEvaluate, *, loss: float = 0.5, accuracy: float = 0.75) -> Evaluated:
    assert look.part is not None
    return Evaluated(
        look=look.look,
        part=look.part,
        num_samples=4,
        loss=loss,
        accuracy=accuracy,
        regularisation=0.0,
        duration_s=0.1,
    )


def saved(save: Save) -> Saved:
    return Saved(
        look=save.look,
        path=f"look-{save.look}",
        size_bytes=1,
        duration_s=0.1,
        parameters=7,
        parameters_sha256="ab" * 32,
        pinned=f"kept-{save.look}" if save.pin else "",
    )


def server_facts(server: int, version: int) -> ServerStats:
    return ServerStats(
        server=server,
        version=version,
        samples=0,
        pushes=version,
        applied=version,
        dropped=0,
        lost=0,
        gathered=0,
        repeated=0,
        refused=0,
        staleness={},
        held_s={},
        sent_bytes={},
        received_bytes={},
        running_s=1.0,
        busy_s=0.5,
        queue_mean=0.0,
        queue_max=0,
    )


def process_facts(
    name: str,
    *,
    done: bool = False,
    exit_code: int | None = None,
    error: str | None = None,
    joined: bool = True,
    age_s: float = 1.0,
) -> ProcessFacts:
    reported = ReportedError(error, "what it said", "traceback", 1) if error else None
    return ProcessFacts(
        process=name,
        joined=joined,
        done=done,
        silent_s=0.0,
        age_s=age_s,
        exit_code=exit_code,
        error=reported,
    )
