"""What the evaluator finds belongs to one moment, through every loss of the evaluator."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.control.parameter_server.evaluation import (
    TRANSITIONS,
    EvaluationScheduler,
    MeasuringPart,
    ReadingServers,
    SavingCheckpoint,
)
from phalanx.control.state_machine import StateMachine
from phalanx.records.events import Checkpoint, Epoch, Evaluation, Warned
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.wire.parameter_server import Evaluated, ReadAndEvaluate, Save, Saved, SnapshotTaken
from support.company import (
    EVALUATOR,
    NUM_SAMPLES,
    Company,
    ScriptedApi,
    measured,
    saved,
    serving_job,
)

EARLY = {"monitor": "val_loss", "patience": 9}


def epochs_of(company: Company) -> list[tuple[int, float | None]]:
    return [(event.epoch, event.val_loss) for event in company.api.recorded(Epoch)]


def position_after(epoch: int) -> Position:
    return Position(epoch=epoch, samples=epoch * 10, train_loss=1.0, train_accuracy=0.5)


def test_an_evaluator_lost_before_it_has_read_is_asked_again() -> None:
    company = Company(serving_job()).start()
    company.play(until=company.reached(EVALUATOR, ReadAndEvaluate))
    company.lose(EVALUATOR)
    company.play()
    assert max(company.used) == 6, "the servers have to rest until they have been read"
    company.restart(EVALUATOR)
    first, second = company.api.sent_to(EVALUATOR, ReadAndEvaluate)
    assert second == msgspec.structs.replace(first, look=first.look + 1)
    company.play()
    assert company.is_finished
    assert epochs_of(company) == [(0, 0.5), (1, 0.5)]
    assert not company.api.recorded(Warned)


def test_an_evaluator_lost_while_it_measures_costs_the_measure_and_nothing_else() -> None:
    company = Company(serving_job()).start()
    company.play(until=company.reached(EVALUATOR, ReadAndEvaluate))
    [look] = company.api.sent_to(EVALUATOR, ReadAndEvaluate)
    company.say(EVALUATOR, SnapshotTaken(look.look))
    assert company.busy(), "training goes on as soon as the servers have been read"
    company.lose(EVALUATOR)
    [warning] = company.api.recorded(Warned)
    assert "the state after 10 samples was neither measured nor saved" in warning.message
    company.restart(EVALUATOR)
    company.play()
    assert company.is_finished
    # The epoch is reported without what nobody measured.
    assert epochs_of(company) == [(0, None), (1, 0.5)]
    assert [event.samples for event in company.api.recorded(Checkpoint)] == [20]
    assert company.coordinator.outcome().samples == 2 * NUM_SAMPLES


def test_an_evaluator_lost_while_it_saves_costs_the_checkpoint_and_nothing_else() -> None:
    company = Company(serving_job()).start()
    company.play(until=company.reached(EVALUATOR, Save))
    company.lose(EVALUATOR)
    [warning] = company.api.recorded(Warned)
    assert "was not saved" in warning.message
    company.restart(EVALUATOR)
    company.play()
    assert company.is_finished
    assert epochs_of(company) == [(0, 0.5), (1, 0.5)]


@pytest.mark.parametrize(
    "job", [serving_job(early_stop=EARLY), serving_job(epochs=1)], ids=["early stop", "last epoch"]
)
def test_what_was_measured_is_not_counted_twice(job: JobSpec) -> None:
    # The servers rest until the look is over: nothing that the evaluator had is lost with it.
    company = Company(job).start()
    company.play(until=company.reached(EVALUATOR, Save))
    [first] = company.api.sent_to(EVALUATOR, Save)
    company.lose(EVALUATOR)
    assert not company.api.recorded(Warned)
    company.restart(EVALUATOR)
    company.play(until=company.reached(EVALUATOR, Save))
    # Read again and written as it was found the first time.
    assert company.api.sent_to(EVALUATOR, ReadAndEvaluate)[-1].part is None
    again = company.api.sent_to(EVALUATOR, Save)[-1]
    assert (again.position, again.best) == (first.position, first.best)
    company.play()
    assert company.is_finished
    assert [epoch for epoch, _ in epochs_of(company)] == list(range(company.job.epochs))
    assert len(company.api.announced) == company.job.epochs


def test_an_evaluator_lost_during_the_test_measures_it_again() -> None:
    company = Company(serving_job(epochs=1)).start()
    company.play(until=lambda: any(one.part == "test" for one in looks(company)))
    company.lose(EVALUATOR)
    company.restart(EVALUATOR)
    company.play()
    assert company.is_finished
    assert [event.part for event in company.api.recorded(Evaluation)] == ["validation", "test"]
    assert company.coordinator.outcome().test_accuracy == 0.75


def test_server_and_evaluator_lost_together() -> None:
    company = Company(serving_job(epochs=1, strategy={"servers": 2})).start()
    company.play(until=company.reached(EVALUATOR, ReadAndEvaluate))
    company.lose("server-1")
    company.lose(EVALUATOR)
    company.restart(EVALUATOR)
    company.restart("server-1")
    company.play()
    assert company.is_finished
    assert epochs_of(company) == [(0, 0.5)]


def looks(company: Company) -> list[ReadAndEvaluate]:
    return company.api.sent_to(EVALUATOR, ReadAndEvaluate)


def test_answers_of_a_look_that_was_given_up_are_ignored() -> None:
    api = ScriptedApi()
    evaluation = EvaluationScheduler(serving_job(), api)
    evaluation.evaluator_ready()
    position = position_after(1)
    evaluation.start(position, end_of_epoch=True, statistics=b"")
    [first] = api.sent_to(EVALUATOR, ReadAndEvaluate)
    evaluation.evaluator_left()
    evaluation.evaluator_ready()
    second = api.sent_to(EVALUATOR, ReadAndEvaluate)[1]
    evaluation.take(SnapshotTaken(first.look), position)
    assert not evaluation.may_train
    evaluation.take(measured(first, loss=9.0), position)
    assert position.val_loss is None
    evaluation.take(SnapshotTaken(second.look), position)
    assert evaluation.may_train
    assert not evaluation.is_free
    evaluation.take(measured(second, loss=0.25), position)
    assert position.val_loss == 0.25
    [save] = api.sent_to(EVALUATOR, Save)
    assert msgspec.json.decode(save.position, type=Position).val_loss == 0.25
    evaluation.take(saved(save), position)
    assert evaluation.is_free
    assert evaluation.saved == saved(save)


def test_a_look_keeps_the_moment_it_was_begun_at() -> None:
    api = ScriptedApi()
    evaluation = EvaluationScheduler(serving_job(), api)
    evaluation.evaluator_ready()
    position = position_after(1)
    evaluation.start(position, end_of_epoch=True, statistics=b"1234")
    [look] = api.sent_to(EVALUATOR, ReadAndEvaluate)
    assert look.statistics == b"1234"
    evaluation.take(SnapshotTaken(look.look), position)
    evaluation.servers_move_on()
    position.samples += 7
    evaluation.take(measured(look), position)
    [report] = api.announced
    assert (report.epoch, report.samples) == (0, 10)
    [save] = api.sent_to(EVALUATOR, Save)
    assert msgspec.json.decode(save.position, type=Position).samples == 10
    assert position.val_accuracy == 0.75


def test_best_is_marked_only_when_it_is_better() -> None:
    api = ScriptedApi()
    evaluation = EvaluationScheduler(serving_job(epochs=9), api)
    evaluation.evaluator_ready()
    position = Position(train_loss=1.0, train_accuracy=0.5)
    for epoch, accuracy in enumerate([0.5, 0.75, 0.75], start=1):
        position.epoch = epoch
        evaluation.start(position, end_of_epoch=True, statistics=b"")
        look = api.sent_to(EVALUATOR, ReadAndEvaluate)[-1]
        for answer in (SnapshotTaken(look.look), measured(look, accuracy=accuracy)):
            evaluation.take(answer, position)
        evaluation.take(saved(api.sent_to(EVALUATOR, Save)[-1]), position)
    assert [save.best for save in api.sent_to(EVALUATOR, Save)] == [True, True, False]
    assert position.best_value == 0.75


def test_without_an_evaluator_the_look_waits_for_one() -> None:
    api = ScriptedApi()
    evaluation = EvaluationScheduler(serving_job(), api)
    evaluation.start(position_after(1), end_of_epoch=True, statistics=b"")
    assert api.sent == []
    assert not evaluation.may_train
    evaluation.evaluator_ready()
    [look] = api.sent_to(EVALUATOR, ReadAndEvaluate)
    assert look.part == "validation"
    assert isinstance(measured(look), Evaluated)
    assert not isinstance(evaluation.saved, Saved)


def test_nothing_is_measured_where_nothing_was_put_aside() -> None:
    company = Company(serving_job(data={"name": "digits", "validation": 0})).start()
    company.play()
    assert company.is_finished
    assert {look.part for look in company.api.sent_to(EVALUATOR, ReadAndEvaluate)} <= {None, "test"}
    assert epochs_of(company) == [(0, None), (1, None)]


def test_a_part_that_rounds_to_no_samples_has_no_loss_and_accuracy() -> None:
    api = ScriptedApi()
    evaluation = EvaluationScheduler(serving_job(), api)
    evaluation.evaluator_ready()
    position = position_after(1)
    evaluation.start(position, end_of_epoch=True, statistics=b"")
    [look] = api.sent_to(EVALUATOR, ReadAndEvaluate)
    evaluation.take(SnapshotTaken(look=look.look), position)
    empty = msgspec.structs.replace(measured(look, loss=0.0, accuracy=0.0), num_samples=0)
    evaluation.take(empty, position)
    assert (position.val_loss, position.val_accuracy) == (None, None)
    [epoch] = api.recorded(Epoch)
    assert (epoch.val_loss, epoch.val_accuracy) == (None, None)


def act(evaluation: EvaluationScheduler, what: str, position: Position) -> None:
    """One thing that may happen to an evaluation: orders as gates give them, answers, losses."""
    state = evaluation.state
    match what:
        case "start" if evaluation.is_free:
            position.epoch += 1
            position.samples += 10
            evaluation.start(position, end_of_epoch=True, statistics=b"")
        case "test" if evaluation.is_free:
            evaluation.start_test(b"")
        case "train" if evaluation.may_train:
            evaluation.servers_move_on()
        case "leave":
            evaluation.servers_move_on()
        case "lose":
            evaluation.evaluator_left()
        case "ready":
            evaluation.evaluator_ready()
        case "answer":
            match state:
                case ReadingServers(request):
                    evaluation.take(SnapshotTaken(request.number), position)
                case MeasuringPart(request):
                    look = ReadAndEvaluate(look=request.number, part=request.part, statistics=b"")
                    evaluation.take(measured(look), position)
                case SavingCheckpoint(_, save):
                    evaluation.take(saved(save), position)


ACTS = ["start", "test", "train", "leave", "lose", "ready", "answer", "answer", "answer"]


@given(acts=st.lists(st.sampled_from(ACTS), max_size=60), every=st.sampled_from([1, 2, None]))
def test_no_order_of_events_is_undefined_and_every_epoch_is_reported_once(
    acts: list[str], every: int | None
) -> None:
    api = ScriptedApi()
    job = serving_job(epochs=100, checkpoint={"every_epochs": every, "best": None})
    evaluation = EvaluationScheduler(job, api)
    position = Position(train_loss=1.0, train_accuracy=0.5)
    for what in acts:
        act(evaluation, what, position)
    # Whatever was lost on the way: an evaluator that is there again ends what is open.
    evaluation.evaluator_ready()
    for _ in range(3):
        act(evaluation, "answer", position)
    assert evaluation.is_free
    assert [event.epoch for event in api.recorded(Epoch)] == list(range(position.epoch))
    assert len(api.announced) == position.epoch


def test_every_transition_of_the_table_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[type, StrEnum]] = set()
    advance = StateMachine.advance

    def noted(self: StateMachine[Any], event: StrEnum, target: object) -> None:
        taken.add((type(self.state), event))
        advance(self, event, target)

    monkeypatch.setattr(StateMachine, "advance", noted)
    chance = random.Random(0)
    for every in (1, 2, None):
        job = serving_job(epochs=10_000, checkpoint={"every_epochs": every, "best": None})
        evaluation = EvaluationScheduler(job, ScriptedApi())
        position = Position(train_loss=1.0, train_accuracy=0.5)
        for _ in range(300):
            act(evaluation, chance.choice(ACTS), position)
    assert taken == TRANSITIONS.keys()
