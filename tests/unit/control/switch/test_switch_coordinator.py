"""Who follows whom, and what a loss means in between: the coordinator alone, processes scripted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.control.switch.coordinator import SwitchCoordinator
from phalanx.records.events import Switched, Warned
from phalanx.records.position import Position
from phalanx.spec.loader import job_from_mapping
from phalanx.wire.messages import Done, FromWorker, PhaseOver, RunOutcome
from phalanx.wire.parameter_server import (
    Finish,
    Flush,
    Flushed,
    Paused,
    ReadAndEvaluate,
    Ready,
    RequestWork,
    Save,
    ServerAddress,
    ServerUp,
    SnapshotTaken,
)
from phalanx.wire.switch import (
    BeginPhase,
    EndPhase,
    HandedOver,
    HandOver,
    KeepSnapshot,
    PhaseBegun,
    PhaseIdle,
)
from support.company import ScriptedApi, process_facts, saved, server_facts

BATCH, NUM_SAMPLES = 4, 20
WORKERS, EVALUATOR = ("worker-0", "worker-1"), "evaluator-0"
SERVED = {"name": "parameter_server", "servers": "colocated"}
# The phase with servers has no step of its own: it is left as soon as it stands.
PHASES = [
    {"strategy": "allreduce"},
    {"strategy": SERVED, "at": 0.3},
    {"strategy": "allreduce", "at": 0.3 + 1e-12},
]
AT = Position(epoch=0, epoch_samples=12, samples=12, updates=3)


class Play:
    """A run of two workers and an evaluator, who say their lines when told to."""

    def __init__(self, **switch: Any) -> None:
        settings = {"name": "switch", "phases": PHASES} | switch
        job = job_from_mapping({"workers": 2, "batch": {"global": BATCH}, "strategy": settings})
        self.api = ScriptedApi()
        self.coordinator = SwitchCoordinator(job, self.api, Position())
        for name in (*WORKERS, EVALUATOR):
            self.say(name, PhaseIdle(num_samples=NUM_SAMPLES * 2))

    def say(self, name: str, message: FromWorker) -> None:
        self.coordinator.take(name, message)

    def begins(self, name: str) -> list[BeginPhase]:
        return self.api.sent_to(name, BeginPhase)

    def leave_lockstep(self) -> None:
        for name in WORKERS:
            self.say(name, PhaseBegun(pause_s=0.1))
        at = msgspec.json.encode(AT)
        for name in WORKERS:
            self.say(name, PhaseOver(position=at, snapshot="switch-12"))

    def come_up(self, name: str, *, restoring: bool = False) -> None:
        rank = int(name[-1])
        incarnation = 1 + self.api.incarnations[name]
        address = ServerAddress(rank, f"tcp://{name}-{incarnation}", "key")
        self.say(name, ServerUp(address=address, restoring=restoring))
        self.say(name, Ready(num_samples=NUM_SAMPLES * 2, precision="fp32", serves=True))

    def enter_servers(self) -> None:
        for name in WORKERS:
            self.come_up(name)
        self.say(EVALUATOR, Ready(num_samples=NUM_SAMPLES * 2, precision="fp32"))
        for name in WORKERS:
            self.say(name, PhaseBegun(pause_s=0.2))
            self.say(name, RequestWork(2))
        for name in WORKERS:
            self.say(name, Paused(b""))
        for name in WORKERS:
            self.say(name, Flushed(int(name[-1]), AT.updates))

    def lose(self, name: str) -> None:
        self.coordinator.left(name)
        self.api.incarnations[name] += 1

    def hand_over(self) -> None:
        for name in WORKERS:
            self.say(name, HandedOver())
        for name in WORKERS:
            self.say(name, PhaseOver(server=server_facts(int(name[-1]), AT.updates)))


def test_phases_follow_one_another_when_all_workers_have_left() -> None:
    play = Play()
    assert [order.phase for order in play.begins("worker-0")] == [0]
    assert play.begins(EVALUATOR) == []
    assert play.begins("worker-0")[0].stop is not None
    play.leave_lockstep()
    assert [order.phase for order in play.begins("worker-1")] == [0, 1]
    [of_evaluator] = play.begins(EVALUATOR)
    position = msgspec.json.decode(of_evaluator.position, type=Position)
    assert (position.samples, position.phase, position.phase_begin) == (12, 1, 12)
    play.enter_servers()
    # In the middle of an epoch everything stays in memory: nothing is written, nobody looks.
    assert [order.write for order in play.api.sent_to("worker-0", Flush)] == [False]
    assert [order.read for order in play.api.sent_to("worker-0", HandOver)] == [False]
    play.hand_over()
    last = play.begins("worker-0")[-1]
    assert (last.phase, last.group, last.save, last.checkpoint) == (2, 0, True, "")
    for name in WORKERS:
        play.say(name, PhaseBegun(pause_s=0.3))
    found = play.api.recorded(Switched)
    assert [(event.phase, event.pause_s) for event in found] == [(1, 0.2), (2, 0.3)]


def test_a_user_may_begin_the_next_phase_before_its_moment() -> None:
    play = Play(phases=[{"strategy": "allreduce"}, {"strategy": "local_sgd", "at": 0.9}])
    assert play.coordinator.begin_next_phase("asked")
    assert [order.stay for order in play.api.sent_to("worker-0", EndPhase)] == [False]
    assert not play.coordinator.begin_next_phase("asked"), "it is being left already"
    play.leave_lockstep()
    assert [order.phase for order in play.begins("worker-1")] == [0, 1]
    for name in WORKERS:
        play.say(name, PhaseBegun(pause_s=0.1))
    [switch] = play.api.recorded(Switched)
    assert (switch.after, switch.cause, switch.samples) == ("local_sgd", "asked", AT.samples)
    assert not play.coordinator.begin_next_phase("asked"), "it is the last one"


def test_phases_that_end_where_the_job_says_are_not_left_on_request() -> None:
    rare = [{"strategy": "local_sgd"}, {"strategy": "allreduce", "at": 0.9}]
    assert not Play(phases=rare).coordinator.begin_next_phase("asked")
    assert not Play(handover="restart").coordinator.begin_next_phase("asked")
    assert Play(phases=rare, straggler={}).coordinator.begin_next_phase("asked")


def test_one_worker_that_has_not_left_holds_everything_back() -> None:
    play = Play()
    play.say("worker-0", PhaseOver(position=msgspec.json.encode(AT), snapshot="switch-12"))
    assert len(play.begins("worker-0")) == 1
    verdict = play.coordinator.judge(
        [process_facts("worker-0"), process_facts("worker-1", exit_code=-9)]
    )
    assert verdict.failure is not None
    assert verdict.failure.cause.startswith("worker-1 was killed by SIGKILL")


@pytest.mark.parametrize("lost", WORKERS)
def test_a_worker_lost_after_the_commitment_is_replaced_and_the_group_formed_anew(
    lost: str,
) -> None:
    play = Play()
    play.leave_lockstep()
    verdict = play.coordinator.judge([process_facts(lost, exit_code=-9)])
    assert [failure.process for failure in verdict.replace] == [lost]
    play.lose(lost)
    # Whoever is there writes what the successor needs, in case the chief has not.
    other = next(name for name in WORKERS if name != lost)
    [keep] = play.api.sent_to(other, KeepSnapshot)
    assert keep.snapshot == "switch-12"
    play.say(lost, PhaseIdle(num_samples=NUM_SAMPLES * 2))
    newcomer = play.begins(lost)[-1]
    assert (newcomer.newcomer, newcomer.checkpoint) == (True, "switch-12")
    play.enter_servers()
    play.hand_over()
    assert [order.group for order in play.begins(other)] == [0, 0, 1]


def test_a_worker_lost_while_handing_over_is_waited_for() -> None:
    play = Play()
    play.leave_lockstep()
    play.enter_servers()
    play.say("worker-0", HandedOver())
    verdict = play.coordinator.judge([process_facts("worker-1", exit_code=-9)])
    assert verdict.failure is None
    play.lose("worker-1")
    assert [order.phase for order in play.begins("worker-0")] == [0, 1]
    play.say("worker-1", PhaseIdle(num_samples=NUM_SAMPLES * 2))
    play.come_up("worker-1", restoring=True)
    assert len(play.api.sent_to("worker-1", HandOver)) == 1  # of its predecessor
    play.say("worker-1", RequestWork(2))
    assert len(play.api.sent_to("worker-1", HandOver)) == 2
    play.say("worker-1", HandedOver())
    assert play.api.sent_to("worker-0", Finish) != []


def test_after_the_hand_over_a_loss_ends_the_run() -> None:
    play = Play()
    play.leave_lockstep()
    play.enter_servers()
    for name in WORKERS:
        play.say(name, HandedOver())
    verdict = play.coordinator.judge(
        [process_facts("worker-0", exit_code=-9), process_facts("worker-1")]
    )
    assert verdict.failure is not None


def test_helpers_are_replaced_in_lockstep_phases() -> None:
    play = Play()
    well = [process_facts(name) for name in WORKERS]
    gone = process_facts(EVALUATOR, exit_code=-9)
    for _ in range(2):
        assert [one.process for one in play.coordinator.judge([*well, gone]).replace] == [EVALUATOR]
        play.lose(EVALUATOR)
    hopeless = process_facts(EVALUATOR, exit_code=1, error="SpecError")
    assert Play().coordinator.judge([*well, hopeless]).failure is not None


def test_an_evaluator_that_is_not_back_yet_is_told_of_the_phase_when_it_is() -> None:
    play = Play()
    play.lose(EVALUATOR)
    play.leave_lockstep()
    assert play.begins(EVALUATOR) == []
    play.say(EVALUATOR, PhaseIdle(num_samples=NUM_SAMPLES * 2))
    assert [order.phase for order in play.begins(EVALUATOR)] == [1]


def test_an_evaluator_that_is_late_at_the_end_is_sent_home() -> None:
    play = Play()
    play.leave_lockstep()
    play.enter_servers()
    play.hand_over()
    outcome = RunOutcome(
        precision="fp32", parameters=1, epochs=1, samples=1, updates=1, train_s=0.0,
        evaluate_s=0.0, startup_s=0.0, stopped_early=False, train_loss=None, train_accuracy=None,
        regularisation=0.0, val_loss=None, val_accuracy=None, test_loss=None, test_accuracy=None,
        parameters_sha256="",
    )  # fmt: skip
    play.say("worker-0", Done(outcome=outcome))
    before = len(play.api.sent_to(EVALUATOR, Finish))
    play.say(EVALUATOR, PhaseOver())
    assert len(play.api.sent_to(EVALUATOR, Finish)) == before + 1
    # So is one that comes up only now.
    play.lose(EVALUATOR)
    play.say(EVALUATOR, PhaseIdle(num_samples=NUM_SAMPLES * 2))
    assert len(play.api.sent_to(EVALUATOR, Finish)) == before + 2


def test_nobody_joins_a_run_that_switches() -> None:
    assert Play().coordinator.resize(5) == ()


def test_a_phase_with_servers_after_another_goes_through_a_file() -> None:
    phases = [*PHASES[:2], {"strategy": SERVED | {"servers": 1}, "at": 0.3 + 1e-12}]
    play = Play(phases=phases)
    play.say("server-0", PhaseIdle(num_samples=NUM_SAMPLES * 2))
    play.leave_lockstep()
    play.enter_servers()
    assert [order.write for order in play.api.sent_to("worker-0", Flush)] == [True]
    assert play.api.sent_to("worker-0", HandOver) == []  # not before it is saved
    assert play.api.recorded(Warned) == []


def test_a_server_that_a_phase_does_not_use_is_replaced_without_touching_the_phase() -> None:
    play = Play(phases=[*PHASES[:2], {"strategy": SERVED | {"servers": 1}, "at": 0.3 + 1e-12}])
    play.say("server-0", PhaseIdle(num_samples=NUM_SAMPLES * 2))
    play.leave_lockstep()
    for name in WORKERS:
        play.come_up(name)
    verdict = play.coordinator.judge(
        [*(process_facts(name) for name in WORKERS), process_facts("server-0", exit_code=-9)]
    )
    assert [failure.process for failure in verdict.replace] == ["server-0"]
    play.lose("server-0")
    for name in WORKERS:
        play.say(name, RequestWork(2))
        play.say(name, Paused(b""))
    # The server inside worker-0 has the same number, and is still there.
    assert play.api.sent_to("worker-0", Flush) != []


def test_an_evaluator_that_comes_into_a_phase_just_left_is_dismissed_from_it() -> None:
    play = Play()
    play.leave_lockstep()
    play.enter_servers()
    play.lose(EVALUATOR)
    play.say(EVALUATOR, PhaseIdle(num_samples=NUM_SAMPLES * 2))
    assert play.begins(EVALUATOR)[-1].newcomer
    play.hand_over()
    before = len(play.api.sent_to(EVALUATOR, Finish))
    play.say(EVALUATOR, Ready(num_samples=NUM_SAMPLES * 2, precision="fp32"))
    assert len(play.api.sent_to(EVALUATOR, Finish)) == before + 1


def test_a_process_lost_before_the_commitment_and_back_after_it_is_not_waited_for() -> None:
    play = Play(phases=[*PHASES[:2], {"strategy": SERVED, "at": 0.3 + 1e-12}])
    play.leave_lockstep()
    play.enter_servers()
    look = play.api.sent_to(EVALUATOR, ReadAndEvaluate)[-1]
    play.say(EVALUATOR, SnapshotTaken(look.look))
    [save] = play.api.sent_to(EVALUATOR, Save)
    assert save.pin
    play.say(EVALUATOR, saved(save))
    play.lose(EVALUATOR)
    for name in WORKERS:
        play.say(name, HandedOver())
    play.say(EVALUATOR, PhaseIdle(num_samples=NUM_SAMPLES * 2))
    play.hand_over()
    begin = play.begins(EVALUATOR)[-1]
    assert (begin.phase, begin.checkpoint) == (2, saved(save).pinned)
