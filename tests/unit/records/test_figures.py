"""One fact, one name: what is made of another by its fields has all of them."""

from __future__ import annotations

from phalanx.records.events import Epoch, Event
from phalanx.records.summary import Summary
from phalanx.wire.messages import EpochFigures, RunOutcome, WorkTimes


def names(struct: type) -> set[str]:
    fields: tuple[str, ...] = struct.__struct_fields__  # type: ignore[attr-defined]
    return set(fields)


def test_the_event_of_an_epoch_has_exactly_its_figures() -> None:
    assert names(Epoch) - names(Event) == names(EpochFigures)


def test_a_summary_says_all_that_a_run_came_to_and_where_time_went() -> None:
    times = names(WorkTimes) - {"sent_bytes"}
    assert names(RunOutcome) | times <= names(Summary)
    assert not names(RunOutcome) & times


def test_an_event_is_made_of_figures() -> None:
    figures = EpochFigures(
        epoch=1,
        samples=200,
        updates=20,
        train_loss=0.5,
        train_accuracy=0.75,
        regularisation=0.125,
        val_loss=None,
        val_accuracy=None,
        lr=0.1,
        train_s=2.0,
        evaluate_s=0.5,
    )
    event = Epoch.of(figures)
    assert (event.epoch, event.regularisation, event.val_loss) == (1, 0.125, None)
    assert (event.train_s, event.evaluate_s) == (2.0, 0.5)
