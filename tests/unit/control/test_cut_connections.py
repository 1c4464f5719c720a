"""Control connections cut at every message of a run: nothing is lost, done twice, or waited for."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.control.parameter_server import states as served_states
from phalanx.control.switch import states as switch_states
from phalanx.control.switch.coordinator import SwitchCoordinator
from phalanx.records.events import Switched
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from support.company import EVALUATOR, Company, serving_job
from support.cut_company import CutMixin, WireApi
from unit.control.switch.test_switch_play import APART, COLOCATED, SwitchCompany

JOBS = {
    "async": serving_job(strategy={"consistency": "async"}),
    "bsp": serving_job(strategy={"consistency": "bsp", "servers": 2}),
    "colocated": serving_job(strategy={"consistency": "ssp", "servers": "colocated"}),
}
_NUM_TICKETS = 12


class CutCompany(CutMixin, Company):
    """A parameter-server run whose connections are cut once."""

    def __init__(self, job: JobSpec, *, cut_at: int | None = None) -> None:
        super().__init__(job, cut_at=cut_at)
        self.api = WireApi(self)
        self.coordinator = type(self.coordinator)(job, self.api, Position(), clock=lambda: self.now)

    def busy(self) -> list[str]:
        """The evaluator acts when nobody else has anything to do: gates come to wait for it."""
        names = super().busy()
        return [name for name in names if name != EVALUATOR] or names


def names_of(table: dict[Any, Any]) -> set[str]:
    return {source.__name__ for source, _ in table} | {one.__name__ for one in table.values()}


@pytest.mark.parametrize("kind", JOBS)
def test_a_cut_at_any_message_of_a_served_run_changes_nothing(kind: str) -> None:
    whole = CutCompany(JOBS[kind])
    whole.start()
    whole.play()
    assert whole.is_finished
    cut_in: set[str] = set()
    for cut_at in range(1, whole.num_transmissions + 1):
        company = CutCompany(JOBS[kind], cut_at=cut_at)
        company.start()
        company.play()
        assert company.is_finished, f"cut at {cut_at} in {company.cut_in}: it hangs"
        assert sorted(company.used) == list(range(1, _NUM_TICKETS + 1))
        assert set(company.used.values()) == {1}, "every batch counts once"
        assert company.coordinator.outcome().samples == 20
        cut_in.update(company.cut_in)
    # Those of a phase that hands over are cut below.
    phase_only = {"HandingOver", "Left"}
    assert cut_in == names_of(dict(served_states.TRANSITIONS)) - phase_only


class CutSwitchCompany(CutMixin, SwitchCompany):
    """A run of several phases whose connections are cut once."""

    def __init__(self, job: JobSpec, *, cut_at: int | None = None) -> None:
        super().__init__(job, cut_at=cut_at)
        self.api = WireApi(self)
        self.switcher = SwitchCoordinator(job, self.api, Position())
        self.coordinator = self.switcher  # type: ignore[assignment]  # takes the same messages

    def states(self) -> list[str]:
        state = self.switcher.state  # type: ignore[attr-defined]
        inner = getattr(getattr(state, "phase", None), "coordinator", None)
        within = getattr(inner, "state", None)
        return [type(one).__name__ for one in (state, within) if one is not None]


def switching_job(strategy: dict[str, object]) -> JobSpec:
    phases = [
        {"strategy": "allreduce"},
        {"strategy": strategy, "epoch": 0.4},
        {"strategy": "allreduce", "epoch": 1.2},
    ]
    fields = {"data": "digits", "batch": {"global": 4}, "workers": 2, "epochs": 2}
    return job_from_mapping(fields | {"strategy": {"name": "switch", "phases": phases}})


@pytest.mark.parametrize("strategy", [COLOCATED, APART], ids=["colocated", "apart"])
def test_a_cut_at_any_message_of_a_switch_changes_nothing(strategy: dict[str, object]) -> None:
    job = switching_job(strategy)
    whole = CutSwitchCompany(job)
    whole.start()
    whole.play(until=lambda: whole.done >= set(whole.names))
    cut_in: set[str] = set()
    for cut_at in range(1, whole.num_transmissions + 1):
        company = CutSwitchCompany(job, cut_at=cut_at)
        company.start()
        company.play(until=lambda company=company: company.done >= set(company.names))
        phases = [event.phase for event in company.api.recorded(Switched)]
        assert phases == [1, 2], f"cut at {cut_at} in {company.cut_in}"
        assert set(company.used.values()) == {1}, "every batch of the servers counts once"
        cut_in.update(company.cut_in)
    live = {"Gathering", "InPhase", "Committed", "Ending"}
    assert live <= names_of(dict(switch_states.TRANSITIONS))
    assert cut_in >= live | {"Training", "Pausing", "Flushing", "AtGate", "HandingOver", "Left"}
