"""Whole runs that switch, played with losses at any moment: each ends, by the table alone."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.control.coordinator import Coordinator
from phalanx.control.parameter_server import batches
from phalanx.control.state_machine import StateMachine
from phalanx.control.switch.coordinator import SwitchCoordinator
from phalanx.control.switch.phase_controller import PhaseController
from phalanx.control.switch.states import TRANSITIONS, Ending, HandedOn
from phalanx.control.switch.transition import PhaseTransition
from phalanx.records.events import Switched
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.switch import LOOSENED, phase_job
from phalanx.wire.messages import Done, FromController, PhaseOver, RunOutcome
from phalanx.wire.parameter_server import Connect, Finish, Ready
from phalanx.wire.switch import BeginPhase, EndPhase, HandOver, PhaseBegun, PhaseIdle, WindowReport
from support.company import (
    NUM_SAMPLES,
    Company,
    process_facts,
    server_facts,
    serving_job,
)

WORKERS = ("worker-0", "worker-1")
COLOCATED = {"name": "parameter_server", "servers": "colocated", "max_failures": 1000}
APART = COLOCATED | {"servers": 2, "consistency": "bsp"}
# Whoever is slow once is answered by a looser strategy.
STRAGGLER = {"windows": 1, "window_s": 0.1, "reshare": False, "loosen_above": 1.5}
OUTCOME = RunOutcome(
    precision="fp32", parameters=1, epochs=3, samples=30, updates=1, train_s=0.0, evaluate_s=0.0,
    startup_s=0.0, stopped_early=False, train_loss=None, train_accuracy=None, regularisation=0.0,
    val_loss=None, val_accuracy=None, test_loss=None, test_accuracy=None, parameters_sha256="",
)  # fmt: skip


class SwitchCompany(Company):
    """Plays every process of a run that switches."""

    def __init__(self, job: JobSpec) -> None:
        super().__init__(serving_job())
        self.whole = job
        self.switcher: Coordinator = SwitchCoordinator(job, self.api, Position())
        self.coordinator = self.switcher  # type: ignore[assignment]  # takes the same messages
        self.phase_of: dict[str, BeginPhase] = {}
        self.steps: dict[str, BeginPhase] = {}
        """Workers of a lockstep phase that have not left it."""
        self.is_turned = False
        self.handed_over: set[str] = set()

    def report(self, name: str, *, restoring: bool = False) -> None:
        self.gone.discard(name)
        self.say(name, PhaseIdle(num_samples=NUM_SAMPLES))

    def lose(self, name: str) -> None:
        super().lose(name)
        for known in (self.phase_of, self.steps):
            known.pop(name, None)
        self.handed_over.discard(name)

    def succeed(self) -> None:
        """New processes take over."""
        assert self.switcher.successor is not None
        self.switcher = self.switcher.successor
        self.coordinator = self.switcher  # type: ignore[assignment]  # takes the same messages
        for kept in (self.phase_of, self.steps, self.tickets, self.api.inboxes):
            kept.clear()
        for name in self.names:
            self.done.discard(name)
            self.api.incarnations[name] += 1
        self._members.clear()
        self.start()

    @property
    def is_loosened(self) -> bool:
        return any(begin.phase == LOOSENED for begin in self.phase_of.values())

    def recover(self) -> None:
        """The slow machine is as fast as the others again."""
        back = PhaseTransition("return", "recovered", (1.0, 1.0))
        with mock.patch.object(PhaseController, "compare_workers", return_value=back):
            self.judge()

    def can_lose(self, name: str) -> bool:
        facts = [self.well(one) for one in self.names if one != name]
        verdict = self.switcher.judge([*facts, process_facts(name, exit_code=-9)])
        return [one.process for one in verdict.replace] == [name]

    def pass_time(self) -> bool:
        # The phases of a switch look at the real clock.
        with mock.patch.object(batches, "_STALLED_S", -1.0):
            return super().pass_time()

    def busy(self) -> list[str]:
        together = sorted(self.steps) if set(self.steps) == set(WORKERS) else []
        return sorted({*super().busy(), *together} - self.gone - self.done)

    def scene(self, name: str) -> None:
        if self.api.inboxes[name] or self.tickets[name]:
            super().scene(name)
        elif name in self.steps:
            self._step()

    def _step(self) -> None:
        """The workers of a lockstep phase train up to its end, or up to the next step."""
        for name, begin in list(self.steps.items()):
            del self.steps[name]
            at = msgspec.json.decode(begin.position, type=Position)
            batch, stop = self.job.global_batch, begin.stop
            if stop is None and not self.is_turned:
                self.done.add(name)
                self.say(name, Done(outcome=OUTCOME))
                continue
            epoch, step = at.epoch, -(-at.epoch_samples // batch)
            if stop is not None and not self.is_turned:
                epoch, step = stop.epoch, stop.step
            at.epoch, at.epoch_samples = epoch, min(step * batch, NUM_SAMPLES)
            at.samples = epoch * NUM_SAMPLES + at.epoch_samples
            position = msgspec.json.encode(at)
            self.phase_of.pop(name, None)
            self.say(name, PhaseOver(position=position, snapshot=f"switch-{at.samples}"))
        self.is_turned = False

    def _obey(self, name: str, order: FromController) -> None:
        match order:
            case BeginPhase() if name not in self.phase_of:
                self.phase_of[name] = order
                self._enter(name, order)
            case BeginPhase():
                self.api.inboxes[name].appendleft(order)
            case EndPhase():
                self.is_turned = name in self.steps
            case Finish():
                self._finish(name)
            case HandOver():
                self.handed_over.add(name)
                super()._obey(name, order)
            case Connect() if name not in self.phase_of:
                pass
            case _:
                super()._obey(name, order)

    def _enter(self, name: str, order: BeginPhase) -> None:
        phase = phase_job(self.whole, order.phase, order.shares)
        role, rank = name.split("-")
        if not isinstance(phase.strategy, ParameterServerSpec):
            self.steps[name] = order
            self.say(name, PhaseBegun(pause_s=0.1))
            return
        self.job = phase.model_copy(update={"epochs": self.whole.epochs})
        serves = role == "server" or (role == "worker" and self._colocated)
        if serves:
            self._server_up(name, int(rank), restoring=order.newcomer)
        if role != "server":
            self.say(name, Ready(num_samples=NUM_SAMPLES, precision="fp32", serves=serves))
        if role == "worker":
            self.say(name, PhaseBegun(pause_s=0.1))

    def _finish(self, name: str) -> None:
        begin = self.phase_of.pop(name, None)
        if begin is None:
            self.done.add(name)
            self.say(name, Done())
            return
        role, rank = name.split("-")
        self._members.discard(name)
        self._pending.pop(name, None)
        self.tickets[name].clear()
        serves = role == "server" or self._colocated
        facts = server_facts(int(rank), 1) if serves and role != "evaluator" else None
        if role == "worker" and name not in self.handed_over:
            self.done.add(name)
            self.say(name, Done(server=facts))
        else:
            self.handed_over.discard(name)
            self.say(name, PhaseOver(server=facts))


def window(samples: int) -> WindowReport:
    """The first worker is twice as slow as the other."""
    return WindowReport(
        samples=samples, epoch=0, step_s=0.1, compute_s=(2.0, 1.0), exchange_s=(0.1, 1.1),
        num_samples=(10, 10), noise=1.0, signal=1.0, loss=1.0, lr=0.1,
    )  # fmt: skip


def play_run(seed: int) -> SwitchCompany:
    """A run of three or four phases with losses, up to its end."""
    chance = random.Random(seed)
    handover = chance.choice(["live", "live", "restart"])
    strategies = [
        chance.choice(["allreduce", COLOCATED, APART]) for _ in range(chance.choice([3, 4]))
    ]
    phases = [{"strategy": strategy} for strategy in strategies]
    for phase, at in zip(
        phases[1:], ({"epoch": 0.4}, {"epoch": 1.0}, {"epoch": 1.8}), strict=False
    ):
        phase |= at
    straggler = STRAGGLER if handover == "live" and chance.random() < 0.5 else None
    strategy = {"name": "switch", "phases": phases, "handover": handover, "straggler": straggler}
    fields = {"data": "digits", "batch": {"global": 4}, "workers": 2, "epochs": 3}
    company = SwitchCompany(job_from_mapping(fields | {"strategy": strategy}))
    company.start(*chance.sample(company.names, len(company.names)))
    away: list[str] = []
    for _ in range(5000):
        if isinstance(company.switcher.state, HandedOn):  # type: ignore[attr-defined]
            away.clear()
            company.succeed()
        if company.done >= set(company.names):
            break
        names = company.busy()
        candidates = [one for one in company.names if one not in {*away, *company.done}]
        if away and (chance.random() < 0.15 or not names):
            company.restart(away.pop(chance.randrange(len(away))))
        elif chance.random() < 0.04 and candidates and not company.done:
            name = chance.choice(candidates)
            if company.can_lose(name):
                company.lose(name)
                away.append(name)
        elif straggler and "worker-0" in company.steps and chance.random() < 0.2:
            company.say("worker-0", window(samples=10))
        elif company.is_loosened and chance.random() < 0.1:
            company.recover()
        elif names:
            company.scene(chance.choice(names))
        else:
            company.pass_time()
            assert company.busy() or away, f"everybody waits in {company.switcher.state}"
    return company


@given(seed=st.integers(0, 2**32))
def test_a_run_that_switches_ends_whatever_is_lost(seed: int) -> None:
    company = play_run(seed)
    assert company.done >= set(company.names)
    assert isinstance(company.switcher.state, Ending)  # type: ignore[attr-defined]
    planned = len(company.whole.strategy.resolved)  # type: ignore[union-attr]
    phases = [event.phase for event in company.api.recorded(Switched)]
    # A run may come back to a phase from the looser strategy, but never skips one.
    assert list(dict.fromkeys(one for one in phases if one > 0)) == list(range(1, planned))
    assert list(company.switcher.switches) == company.api.recorded(Switched)


def test_every_transition_of_the_table_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[type, StrEnum]] = set()
    advance = StateMachine.advance

    def noted(self: StateMachine[Any], event: StrEnum, target: object) -> None:
        taken.add((type(self.state), event))
        advance(self, event, target)

    monkeypatch.setattr(StateMachine, "advance", noted)
    for seed in range(200):
        if taken >= TRANSITIONS.keys():
            break
        play_run(seed)
    assert taken >= TRANSITIONS.keys()
