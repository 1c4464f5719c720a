"""The workers of a script evaluate together, through losses of any of them."""

from __future__ import annotations

from phalanx.control.coordinator import ControllerApi
from phalanx.control.parameter_server.script_evaluation import ScriptWorkers
from phalanx.wire.parameter_server import Evaluated, ReadAndEvaluate
from phalanx.wire.program import FigureTotals, ScriptEvaluated, ScriptFigures
from support.company import ScriptedApi

CHIEF, OTHER = "worker-0", "worker-1"


def joined(api: ControllerApi) -> ScriptWorkers:
    workers = ScriptWorkers(api)
    workers.joined(CHIEF)
    workers.joined(OTHER)
    return workers


def look(number: int = 1, part: str | None = "validation", epoch: int = 1) -> ReadAndEvaluate:
    return ReadAndEvaluate(look=number, part=part, statistics=b"", epoch=epoch)


def figures(*values: float, call: int = 1, epoch: int = 1) -> ScriptFigures:
    return ScriptFigures(part="validation", epoch=epoch, call=call, values=values)


def test_all_get_the_sums_once_all_have_reported() -> None:
    api = ScriptedApi()
    workers = joined(api)
    workers.look(look())
    workers.take_figures(CHIEF, figures(1.0, 4.0))
    assert not api.sent_to(CHIEF, FigureTotals)
    workers.take_figures(OTHER, figures(2.0, 3.0))
    (totals,) = api.sent_to(OTHER, FigureTotals)
    assert (totals.values, totals.num_workers) == ((3.0, 7.0), 2)
    assert api.sent_to(CHIEF, FigureTotals) == [totals]


def test_a_lost_worker_is_not_waited_for_and_its_successor_gets_the_same_sums() -> None:
    api = ScriptedApi()
    workers = joined(api)
    workers.look(look())
    workers.take_figures(CHIEF, figures(1.0))
    workers.left(OTHER)
    (totals,) = api.sent_to(CHIEF, FigureTotals)
    assert totals.values == (1.0,)
    workers.joined(OTHER)
    assert len(api.sent_to(OTHER, ReadAndEvaluate)) == 2
    workers.take_figures(OTHER, figures(5.0))
    assert api.sent_to(OTHER, FigureTotals) == [totals]


def answered(workers: ScriptWorkers, process: str, number: int = 1) -> Evaluated | None:
    sums = {"accuracy": (30.0, 40.0), "loss": (20.0, 40.0), "f1": (8.0, 10.0)}
    message = ScriptEvaluated(look=number, figures=sums, ended=True, duration_s=2.0)
    return workers.take_answer(process, message)


def test_what_was_measured_is_known_when_all_are_done() -> None:
    workers = joined(ScriptedApi())
    workers.look(look())
    assert answered(workers, CHIEF) is None
    found = answered(workers, OTHER)
    assert found is not None
    assert (found.loss, found.accuracy, found.metrics) == (0.5, 0.75, {"f1": 0.8})
    assert (found.num_samples, found.ended) == (40, True)
    assert workers.measured() is None, "it is passed on once"


def test_without_the_chief_nothing_is_measured_until_its_successor_has() -> None:
    api = ScriptedApi()
    workers = joined(api)
    workers.look(look())
    answered(workers, CHIEF)
    workers.left(CHIEF)
    assert answered(workers, OTHER) is None
    workers.joined(CHIEF)
    # Asked again as an evaluator that is back; the others repeat what they found.
    workers.look(look(2))
    assert answered(workers, OTHER) is None, "an answer to the request before"
    assert answered(workers, CHIEF, 2) is None
    assert answered(workers, OTHER, 2) is not None


def test_only_the_chief_reads_where_nothing_is_measured() -> None:
    api = ScriptedApi()
    workers = joined(api)
    workers.look(look(part=None))
    assert not api.sent_to(OTHER, ReadAndEvaluate)
    found = workers.take_answer(CHIEF, ScriptEvaluated(look=1))
    assert found is not None
    assert not found.has_figures
