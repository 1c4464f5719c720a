"""The coordinator of a parameter server against played processes: the course of a whole run."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.control.parameter_server.states import TRANSITIONS, AtGate, Finishing, Left
from phalanx.control.parameter_server.training_progress import PhaseBound
from phalanx.control.state_machine import StateMachine
from phalanx.errors import ExitCode, ProtocolError, SpecError
from phalanx.records.events import Checkpoint, Decision, Epoch, Evaluation, ServerRestored
from phalanx.records.position import Position
from phalanx.wire.messages import EpochDone
from phalanx.wire.parameter_server import (
    Admit,
    Connect,
    Dismiss,
    Finish,
    Flush,
    Pause,
    QueryVersion,
    ReadAndEvaluate,
    RestoreFromDisk,
    Save,
    SendParameters,
    Work,
    WorkDone,
)
from phalanx.wire.switch import StepLimit
from support.company import (
    EVALUATOR,
    NUM_SAMPLES,
    Company,
    process_facts,
    serving_job,
)
from support.scripted import make_report

BSP = {"consistency": "bsp"}


def kinds(company: Company, *of_interest: type) -> list[str]:
    """What was sent, as kinds in order; repetitions to several processes are told once."""
    found = [type(one).__name__ for _, one in company.api.sent if isinstance(one, of_interest)]
    return [kind for i, kind in enumerate(found) if i == 0 or kind != found[i - 1]]


def test_a_run_has_servers_workers_and_an_evaluator() -> None:
    company = Company(serving_job(strategy={"servers": 2}))
    assert company.names == ["server-0", "server-1", "worker-0", "worker-1", EVALUATOR]
    colocated = Company(serving_job(strategy={"servers": "colocated"}))
    assert colocated.names == ["worker-0", "worker-1", EVALUATOR]


@pytest.mark.parametrize("servers", [1, 2, "colocated"])
@pytest.mark.parametrize("dispatch", ["static", "dynamic"])
@pytest.mark.parametrize("consistency", ["async", "bsp", "ssp"])
def test_a_run_from_start_to_finish(consistency: str, dispatch: str, servers: int | str) -> None:
    strategy = {"consistency": consistency, "dispatch": dispatch, "servers": servers}
    company = Company(serving_job(strategy=strategy)).start()
    company.play()
    assert company.is_finished
    assert company.judge().finished
    assert kinds(company, Work, Pause, Flush, ReadAndEvaluate, Save, Finish)[-3:] == [
        "Save",
        "ReadAndEvaluate",
        "Finish",
    ]
    assert sorted(company.used) == list(range(1, 13))
    assert set(company.used.values()) == {1}
    outcome = company.coordinator.outcome()
    assert (outcome.epochs, outcome.samples) == (2, 2 * NUM_SAMPLES)
    assert (outcome.train_loss, outcome.train_accuracy) == (0.25, 1.0)
    assert (outcome.val_loss, outcome.test_loss) == (0.5, 0.5)
    assert outcome.updates == company.server_versions[0]
    assert set(company.coordinator.times) == {"worker-0", "worker-1"}
    parts = [event.part for event in company.api.recorded(Evaluation)]
    assert parts == ["validation", "validation", "test"]
    assert [event.epoch for event in company.api.recorded(Epoch)] == [0, 1]
    assert [event.epoch for event in company.api.recorded(Checkpoint)] == [1, 2]
    assert [report.samples for report in company.api.announced] == [10, 20]


def test_an_epoch_ends_in_this_order() -> None:
    company = Company(serving_job(epochs=1)).start()
    company.play()
    assert kinds(company, Work, Pause, Flush, ReadAndEvaluate, Save, Finish) == [
        "Work",
        "Pause",
        "Flush",
        "ReadAndEvaluate",
        "Save",
        "ReadAndEvaluate",
        "Finish",
    ]
    looks = company.api.sent_to(EVALUATOR, ReadAndEvaluate)
    assert [look.part for look in looks] == ["validation", "test"]


def test_nobody_gets_a_ticket_of_the_next_epoch_before_the_servers_have_been_read() -> None:
    company = Company(serving_job()).start()
    company.play(until=company.reached(EVALUATOR, ReadAndEvaluate))
    handed_out = {t for _, one in company.api.sent if isinstance(one, Work) for t in one.tickets}
    assert handed_out == set(range(1, 7))
    company.scene(EVALUATOR)
    assert any(7 in one.tickets for _, one in company.api.sent if isinstance(one, Work))


def test_a_look_that_takes_longer_than_an_epoch_is_waited_for() -> None:
    company = Company(serving_job(epochs=3)).start()
    company.play(until=company.reached(EVALUATOR, Save))
    # The evaluator is slow to save while a whole epoch goes by.
    company.gone.add(EVALUATOR)
    company.play()
    assert len(company.api.sent_to(EVALUATOR, ReadAndEvaluate)) == 1
    company.gone.clear()
    company.play()
    assert company.is_finished
    assert [event.epoch for event in company.api.recorded(Epoch)] == [0, 1, 2]
    assert [event.samples for event in company.api.recorded(Checkpoint)] == [10, 20, 30]


def test_checkpoints_within_an_epoch_close_the_gate_there() -> None:
    company = Company(serving_job(epochs=1, checkpoint={"every_steps": 2})).start()
    company.play(until=company.reached(EVALUATOR, ReadAndEvaluate))
    assert sorted(company.used) == [1, 2, 3, 4]
    [look] = company.api.sent_to(EVALUATOR, ReadAndEvaluate)
    assert look.part is None
    company.play()
    assert company.is_finished
    assert [(e.epoch, e.samples) for e in company.api.recorded(Checkpoint)] == [(0, 8), (1, 10)]
    assert len(company.api.recorded(Epoch)) == 1


@pytest.mark.parametrize("evaluate", ["never", "end"])
def test_what_is_not_wanted_is_not_measured(evaluate: str) -> None:
    job = serving_job(evaluate=evaluate, checkpoint={"every_epochs": None, "best": None})
    company = Company(job).start()
    company.play()
    parts = [event.part for event in company.api.recorded(Evaluation)]
    assert parts == ([] if evaluate == "never" else ["validation", "test"])
    assert len(company.api.recorded(Checkpoint)) == 1
    assert [report.epoch for report in company.api.announced] == [0, 1]


@pytest.mark.parametrize("checkpoint", [{}, {"every_epochs": None, "best": None}], ids=str)
def test_early_stopping_waits_for_what_the_look_finds(checkpoint: dict[str, object]) -> None:
    job = serving_job(
        epochs=9, early_stop={"monitor": "val_loss", "patience": 2}, checkpoint=checkpoint
    )
    company = Company(job, losses=[0.9, 0.5, 0.6, 0.7]).start()
    company.play(until=company.reached(EVALUATOR, ReadAndEvaluate))
    assert max(company.used) == 6
    company.play()
    assert company.is_finished
    outcome = company.coordinator.outcome()
    assert (outcome.epochs, outcome.stopped_early) == (4, True)
    assert outcome.parameters_sha256
    # The last state is always written down.
    assert company.api.recorded(Checkpoint)[-1].epoch == 4


def test_everybody_is_introduced_to_everybody() -> None:
    company = Company(serving_job(strategy={"servers": 2}))
    company.start("worker-0", "server-0", EVALUATOR)
    assert not company.api.sent_to("worker-0", Connect), "a server is still missing"
    company.start("server-1", "worker-1")
    for name in ("worker-0", "worker-1", EVALUATOR):
        [connect] = company.api.sent_to(name, Connect)
        assert [address.server for address in connect.servers] == [0, 1]
        for server in ("server-0", "server-1"):
            keys = [admit.public_key for admit in company.api.sent_to(server, Admit)]
            assert f"key-{name}-1" in keys
    roles = {admit.role for admit in company.api.sent_to("server-0", Admit)}
    assert roles == {"worker", "reader"}


def test_a_server_that_has_nothing_to_own_is_not_waited_for() -> None:
    company = Company(serving_job(strategy={"servers": 2}))
    company.start("server-0", "worker-0", "worker-1", EVALUATOR)
    company.done.add("server-1")
    company.say("server-1", company._last_words("evaluator-0", 1))
    assert company.api.sent_to("worker-0", Connect)
    company.play()
    assert company.is_finished


def test_a_lost_workers_tickets_go_to_others_and_servers_stop_waiting_for_it() -> None:
    company = Company(serving_job(epochs=1)).start()
    company.scene("worker-1")
    company.scene("worker-1")
    held = list(company.tickets["worker-1"])
    assert held
    company.lose("worker-1")
    assert company.api.sent_to("server-0", Dismiss) == [Dismiss(role="worker", rank=1)]
    [decision] = company.api.recorded(Decision)
    assert decision.what == f"give {len(held)} batches of worker-1 to others"
    company.play()
    assert set(company.used.values()) == {1}
    assert sorted(company.used) == list(range(1, 7))
    outcome = company.coordinator.outcome()
    assert outcome.samples == NUM_SAMPLES
    assert company.coordinator.serving is not None
    assert company.coordinator.serving.processes_replaced == 1


def test_the_late_word_of_a_lost_worker_does_not_count() -> None:
    company = Company(serving_job(epochs=1)).start()
    company.scene("worker-1")
    company.scene("worker-1")
    ticket = company.tickets["worker-1"][0]
    company.lose("worker-1")
    company.say("worker-1", WorkDone((company.completed(ticket),), 0))
    company.play()
    assert company.coordinator.outcome().samples == NUM_SAMPLES


def test_a_worker_may_come_back_and_work() -> None:
    company = Company(serving_job(epochs=2)).start()
    company.play(until=lambda: len(company.used) == 2)
    company.lose("worker-0")
    company.restart("worker-0")
    assert company.api.sent_to("server-0", Admit)[-1].incarnation == 2
    before = len(company.api.sent_to("worker-0", Work))
    company.play()
    assert company.is_finished
    assert len(company.api.sent_to("worker-0", Work)) > before
    assert company.coordinator.outcome().samples == 2 * NUM_SAMPLES


@pytest.mark.parametrize("phase", [ReadAndEvaluate, Save], ids=["reading", "saving"])
def test_a_worker_lost_while_the_servers_are_looked_at_changes_nothing(phase: type) -> None:
    job = serving_job(early_stop={"monitor": "val_loss", "patience": 9})
    company = Company(job).start()
    company.play(until=company.reached(EVALUATOR, phase))
    company.lose("worker-1")
    company.restart("worker-1")
    company.play()
    assert company.is_finished
    assert [event.epoch for event in company.api.recorded(Epoch)] == [0, 1]
    assert company.coordinator.outcome().samples == 2 * NUM_SAMPLES


def test_whoever_comes_back_after_the_end_is_sent_home() -> None:
    company = Company(serving_job(epochs=1)).start()
    company.play(until=lambda: len(company.used) == 3)
    company.lose("worker-1")
    company.play()
    assert "worker-1" not in company.done
    assert not company.coordinator.judge([company.well(name) for name in company.names]).finished
    company.restart("worker-1")
    company.play()
    assert company.is_finished
    assert company.judge().finished


def test_a_lost_server_gets_the_freshest_copy() -> None:
    company = Company(serving_job(strategy={"servers": 2})).start()
    company.play(until=lambda: len(company.used) == 3)
    company.held["worker-0", 1], company.held["worker-1", 1] = 7, 9
    company.api.versions["server-1"] = 11
    company.lose("server-1")
    assert not company.api.sent_to("worker-0", QueryVersion)
    company.restart("server-1")
    for worker in ("worker-0", "worker-1"):
        # Peers are told the new address before they are asked to send anything there.
        sent = [one for name, one in company.api.sent if name == worker]
        assert sent[-1] == QueryVersion(1, number=1)
        assert isinstance(sent[-2], Connect)
        assert sent[-2].servers[1].door == "tcp://server-1-2"
    company.play(until=lambda: company.api.recorded(ServerRestored))
    assert company.api.sent_to("worker-1", SendParameters) == [SendParameters(1, number=1)]
    assert not company.api.sent_to("worker-0", SendParameters)
    [restored] = company.api.recorded(ServerRestored)
    assert (restored.version, restored.lost_updates) == (9, 2)
    company.play()
    assert company.is_finished
    company.coordinator.outcome()
    assert company.coordinator.serving is not None
    assert company.coordinator.serving.updates_lost == 2


def test_a_server_recalls_what_it_wrote_when_nobody_holds_a_copy() -> None:
    company = Company(serving_job()).start("server-0", "worker-0", "worker-1", EVALUATOR)
    company.lose("server-0")
    company.restart("server-0")
    company.play()
    assert company.api.sent_to("server-0", RestoreFromDisk)
    assert company.is_finished


def test_a_server_recalls_when_there_is_no_worker_at_all() -> None:
    company = Company(serving_job()).start()
    company.lose("worker-0")
    company.lose("worker-1")
    company.lose("server-0")
    company.restart("server-0")
    assert company.api.sent_to("server-0", RestoreFromDisk)


@pytest.mark.parametrize("answered", [False, True])
def test_a_donor_that_is_lost_is_replaced_by_another(answered: bool) -> None:
    company = Company(serving_job()).start()
    company.play(until=lambda: len(company.used) == 4)
    company.held["worker-0", 0], company.held["worker-1", 0] = 4, 5
    company.lose("server-0")
    company.restart("server-0")
    if answered:
        company.play(until=company.reached("worker-1", SendParameters))
    company.lose("worker-1")
    company.play(until=lambda: company.api.recorded(ServerRestored))
    [order] = company.api.sent_to("worker-0", SendParameters)
    assert (order.server, order.number) == (0, 2 if answered else 1)
    company.restart("worker-1")
    company.play()
    assert company.is_finished


@pytest.mark.parametrize("servers", [1, 2, "colocated"])
def test_a_server_lost_before_it_ever_served(servers: int | str) -> None:
    company = Company(serving_job(strategy={"servers": servers}))
    first = company.names[0]
    company.lose(first)
    company.start(*company.names[1:])
    company.restart(first)
    company.play()
    assert company.is_finished


@pytest.mark.parametrize("phase", [Pause, Flush, ReadAndEvaluate])
def test_a_server_lost_at_the_end_of_an_epoch_is_flushed_once_it_is_back(phase: type) -> None:
    company = Company(serving_job(epochs=1)).start()
    at = {"Pause": "worker-0", "Flush": "server-0", "ReadAndEvaluate": EVALUATOR}[phase.__name__]
    company.play(until=company.reached(at, phase))
    company.lose("server-0")
    company.play()
    flushes = len(company.api.sent_to("server-0", Flush))
    if phase is Pause:
        assert flushes == 0, "nobody is there to be flushed"
    company.restart("server-0")
    company.play()
    assert company.is_finished
    if phase is not ReadAndEvaluate:
        assert len(company.api.sent_to("server-0", Flush)) > flushes
    assert company.coordinator.outcome().samples == NUM_SAMPLES
    assert len(company.api.recorded(Epoch)) == 1


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_gate_stays_closed_until_a_restored_server_knows_that_workers_rest(
    is_answered: bool,
) -> None:
    # It would take the round for begun, and let a joining worker wait for an update of nobody.
    company = Company(serving_job(epochs=2, strategy={"consistency": "bsp", "servers": 2})).start()
    company.play(until=company.reached(EVALUATOR, ReadAndEvaluate))
    # The evaluator is slow: the server is back before it has read.
    unread = list(company.api.inboxes[EVALUATOR])
    company.api.inboxes[EVALUATOR].clear()
    company.lose("server-0")
    company.restart("server-0")
    begun = len(company.api.sent)
    company.play(until=lambda: company.api.sent_to("server-0", Flush)[1:])
    company.api.inboxes[EVALUATOR].extend(unread)
    state = company.coordinator.state
    assert isinstance(state, AtGate)
    assert state.unflushed == {"server-0"}
    assert "to apply its last gradients" in {one.what for one in company.coordinator.awaited()}
    if not is_answered:
        # Lost once more before it answers: its successor is flushed, too.
        company.lose("server-0")
        company.restart("server-0")
    company.play()
    assert company.is_finished
    orders = [(name, type(order)) for name, order in company.api.sent[begun:]]
    num_flushed = len(company.api.sent_to("server-0", Flush))
    assert num_flushed == 3 + (not is_answered)
    first_work = next(i for i, (_, kind) in enumerate(orders) if kind is Work)
    assert ("server-0", Flush) in orders[:first_work]
    assert company.coordinator.outcome().samples == 2 * NUM_SAMPLES


def test_a_lost_worker_with_a_server_inside_is_both() -> None:
    company = Company(serving_job(strategy={"servers": "colocated"})).start()
    company.play(until=lambda: len(company.used) == 4)
    company.lose("worker-1")
    company.restart("worker-1")
    assert company.api.sent_to("worker-0", QueryVersion) == [QueryVersion(1, number=1)]
    company.play()
    assert company.is_finished
    assert company.api.sent_to("worker-0", SendParameters) == [SendParameters(1, number=1)]
    assert company.coordinator.outcome().samples == 2 * NUM_SAMPLES


@pytest.mark.parametrize("back", [False, True], ids=["gone", "back"])
def test_the_tail_of_bsp_after_a_loss_is_made_even_by_skips(back: bool) -> None:
    job = serving_job(epochs=1, workers=3, batch={"global": 3}, strategy=BSP)
    company = Company(job).start()
    company.play(until=lambda: len(company.used) >= 3)
    company.lose("worker-2")
    if back:
        company.restart("worker-2")
    company.play()
    assert company.coordinator.outcome().samples == NUM_SAMPLES
    assert sorted(company.used) == list(range(1, 13))
    assert set(company.used.values()) == {1}
    # Every update with samples took a push of each worker, some of them without samples.
    trained = [pushed for pushed in company.rounds if any(pushed.values())]
    assert all({"worker-0", "worker-1"} <= pushed.keys() for pushed in trained)
    assert any(0 in pushed.values() for pushed in trained)
    if not back:
        assert company.num_stalls == 0, "nobody had to wait until a round counted as stuck"


def test_bsp_without_losses_needs_no_skips() -> None:
    company = Company(serving_job(strategy=BSP | {"dispatch": "static"})).start()
    company.play()
    tickets = [t for _, one in company.api.sent if isinstance(one, Work) for t in one.tickets]
    assert 0 not in tickets


def test_whoever_would_be_waited_for_leaves_when_it_has_nothing_to_do() -> None:
    strategy = {"consistency": "ssp", "staleness": 1, "dispatch": "dynamic"}
    company = Company(serving_job(epochs=1, strategy=strategy)).start()
    company.scene("worker-1")
    company.scene("worker-0")
    while company.api.inboxes["worker-0"] or company.tickets["worker-0"]:
        company.scene("worker-0")
    assert company.api.sent_to("worker-0", Pause) == [Pause(leave=True)]
    assert not company.api.sent_to("worker-1", Pause), "it has tickets of its own"
    company.play()
    assert company.is_finished


@pytest.mark.parametrize("kind", ["SpecError", "DataError", "EngineError", "StoreError"])
def test_what_a_new_start_would_only_repeat_ends_the_run(kind: str) -> None:
    company = Company(serving_job()).start()
    verdict = company.judge(worker_1=process_facts("worker-1", exit_code=1, error=kind))
    assert verdict.failure is not None
    assert verdict.failure.process == "worker-1"
    assert verdict.replace == ()


@pytest.mark.parametrize("name", ["worker-0", "server-0", EVALUATOR])
def test_other_losses_are_replaced(name: str) -> None:
    company = Company(serving_job()).start()
    lost = process_facts(name, exit_code=4, error="PeerError")
    verdict = company.judge(**{name.replace("-", "_"): lost})
    assert verdict.failure is None
    assert [failure.process for failure in verdict.replace] == [name]


def test_a_process_that_never_joins_ends_the_run() -> None:
    company = Company(serving_job())
    absent = process_facts("server-0", joined=False, age_s=121.0)
    verdict = company.judge(server_0=absent)
    assert verdict.failure is not None
    assert verdict.failure.exit_code is ExitCode.LAUNCH


def test_whoever_is_lost_while_leaving_is_not_replaced() -> None:
    company = Company(serving_job(epochs=1)).start()
    company.play()
    killed = process_facts("worker-0", exit_code=-9)
    assert company.judge(worker_0=killed).finished


def test_a_resumed_run_goes_on_where_it_stood() -> None:
    position = Position(epoch=1, epoch_samples=8, samples=18, updates=9, epoch_loss_sum=2.0)
    company = Company(serving_job(epochs=2), position).start()
    company.play()
    assert sorted(company.used) == [11, 12]
    outcome = company.coordinator.outcome()
    assert (outcome.samples, outcome.epochs) == (20, 2)
    assert outcome.train_loss == pytest.approx((2.0 + 0.5) / NUM_SAMPLES)


def test_a_position_between_two_batches_cannot_be_taken_up() -> None:
    position = Position(epoch_samples=6, samples=6)
    company = Company(serving_job(), position)
    with pytest.raises(SpecError, match=r"6 samples into an epoch.*batches of 4"):
        company.start()


def test_a_run_resumed_at_its_end_just_measures() -> None:
    position = Position(epoch=2, samples=20, updates=12, val_loss=0.25, train_loss=0.125)
    company = Company(serving_job(strategy={"servers": 2}), position)
    company.server_versions.update({0: 12, 1: 12})
    company.start("worker-0", "worker-1", EVALUATOR, "server-0", "server-1")
    company.play()
    assert company.is_finished
    assert not company.used
    assert not company.api.announced
    outcome = company.coordinator.outcome()
    assert (outcome.samples, outcome.updates, outcome.val_loss) == (20, 12, 0.25)
    assert [event.part for event in company.api.recorded(Evaluation)] == ["test"]


def test_more_workers_join_and_get_work() -> None:
    company = Company(serving_job(epochs=3)).start()
    company.play(until=lambda: len(company.used) == 3)
    started = company.coordinator.resize(4)
    assert [process.name for process in started] == ["worker-2", "worker-3"]
    assert company.coordinator.resize(3) == []
    for process in started:
        company.report(process.name)
    company.play()
    assert company.api.sent_to("worker-2", Work)
    assert company.api.sent_to("worker-3", Finish)
    assert set(company.used.values()) == {1}
    assert company.coordinator.outcome().samples == 3 * NUM_SAMPLES


def test_a_worker_that_joined_later_may_be_lost_too() -> None:
    company = Company(serving_job(strategy={"servers": "colocated"})).start()
    company.play(until=lambda: len(company.used) == 3)
    [process] = company.coordinator.resize(3)
    company.lose(process.name)
    company.play()
    assert company.coordinator.outcome().samples == 2 * NUM_SAMPLES


def test_what_is_not_for_a_coordinator_of_servers_is_refused() -> None:
    company = Company(serving_job()).start()
    with pytest.raises(ProtocolError, match="it sent EpochDone, of another strategy"):
        company.say("worker-0", EpochDone(make_report()))


@given(
    seed=st.integers(0, 2**32),
    consistency=st.sampled_from(["async", "bsp", "ssp", "k_sync"]),
    servers=st.sampled_from([1, 2, "colocated"]),
    dispatch=st.sampled_from(["static", "dynamic"]),
)
def test_random_losses_never_cost_or_double_a_sample(
    seed: int, consistency: str, servers: int | str, dispatch: str
) -> None:
    """Whatever is lost whenever: the run ends, and counts every sample of every epoch once."""
    chance = random.Random(seed)
    strategy: dict[str, object] = {
        "consistency": consistency,
        "servers": servers,
        "dispatch": dispatch,
        "max_failures": 1000,
    }
    if consistency == "k_sync":
        strategy["k"] = 1
    job = serving_job(workers=3, epochs=3, strategy=strategy, checkpoint={"every_steps": 2})
    company = Company(job)
    company.start(*chance.sample(company.names, len(company.names)))
    away: list[str] = []
    for _ in range(3000):
        if company.is_finished and not away:
            break
        names = company.busy()
        if away and (chance.random() < 0.15 or not names):
            company.restart(away.pop(chance.randrange(len(away))))
        elif chance.random() < 0.04 and len(away) < 2 and not company.done:
            name = chance.choice([one for one in company.names if one not in away])
            company.lose(name)
            away.append(name)
        elif names:
            company.scene(chance.choice(names))
        else:
            assert company.pass_time(), "everybody waits for somebody"
    assert company.is_finished
    assert company.judge().finished
    outcome = company.coordinator.outcome()
    assert (outcome.samples, outcome.epochs) == (3 * NUM_SAMPLES, 3)
    assert (outcome.train_loss, outcome.train_accuracy) == (0.25, 1.0)
    assert [event.samples for event in company.api.recorded(Epoch)] == [10, 20, 30]
    if consistency != "k_sync":  # which drops gradients by rule
        for tickets in company.ledgers.values():
            assert tickets == set(range(1, 1 + 3 * company.plan.per_epoch)), "on restored servers"


def play_phase(seed: int) -> Company:
    """A phase that ends by plan or is told to, with losses at any moment, up to its end."""
    chance = random.Random(seed)
    strategy: dict[str, object] = {
        "consistency": chance.choice(["async", "bsp", "ssp"]),
        "servers": chance.choice([1, 2, "colocated"]),
        "dispatch": chance.choice(["static", "dynamic"]),
        "max_failures": 1000,
    }
    job = serving_job(workers=3, epochs=3, strategy=strategy, checkpoint={"every_steps": 2})
    limit = chance.choice(
        [None, StepLimit(1, 0), StepLimit(1, 1), StepLimit(2, 2), StepLimit(0, 0)]
    )
    company = Company(job, bound=PhaseBound(limit, to_memory=chance.random() < 0.6))
    company.start(*chance.sample(company.names, len(company.names)))
    away: list[str] = []
    for _ in range(3000):
        if company.done:
            break
        names = company.busy()
        if away and (chance.random() < 0.15 or not names):
            company.restart(away.pop(chance.randrange(len(away))))
        elif chance.random() < 0.03 and len(away) < 2:
            name = chance.choice([one for one in company.names if one not in away])
            company.lose(name)
            away.append(name)
        elif chance.random() < 0.01:
            company.coordinator.leave(discard=chance.random() < 0.3)
        elif names:
            company.scene(chance.choice(names))
        else:
            assert company.pass_time(), "everybody waits for somebody"
    return company


@given(seed=st.integers(0, 2**32))
def test_a_phase_that_is_left_holds_every_batch_up_to_its_end_once(seed: int) -> None:
    company = play_phase(seed)
    end = company.coordinator.end
    assert isinstance(company.coordinator.state, Left | Finishing)
    assert company.coordinator.is_job_done == (end is None)
    if end is None:
        assert company.coordinator.outcome().samples == 3 * NUM_SAMPLES
        return
    position = end.position
    batch = company.job.global_batch
    assert position.samples == position.epoch * NUM_SAMPLES + position.epoch_samples
    assert position.epoch_samples in (0, batch, 2 * batch, NUM_SAMPLES)
    assert not (end.snapshot and end.is_unsaved), "one of the two holds what the next begins with"


def test_every_transition_of_the_table_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[type, StrEnum]] = set()
    advance = StateMachine.advance

    def noted(self: StateMachine[Any], event: StrEnum, target: object) -> None:
        taken.add((type(self.state), event))
        advance(self, event, target)

    monkeypatch.setattr(StateMachine, "advance", noted)
    for seed in range(100):
        if taken >= TRANSITIONS.keys():
            break
        play_phase(seed)
    assert taken >= TRANSITIONS.keys()
