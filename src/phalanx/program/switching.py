"""Take a worker whose training code is the user's script through the phases of a switching run."""

from __future__ import annotations

from contextlib import ExitStack

from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.consistency.rule import rule_for
from phalanx.program.driver import LaunchedDriver
from phalanx.program.served import ScriptServedWorker
from phalanx.program.served_model import ServedModel, ServedWeights
from phalanx.program.session import ScriptSession
from phalanx.program.several import attach_strategy
from phalanx.program.trainer import ScriptTrainer
from phalanx.program.turn import LossScale, start_sum
from phalanx.program.turns import ScriptTurns
from phalanx.spec.strategy import StrategySpec
from phalanx.strategy.base import Strategy
from phalanx.worker.context import WorkerContext
from phalanx.worker.parameter_server.handover import PhaseEntry
from phalanx.worker.replica import TrainResources
from phalanx.worker.switch.worker import SwitchingWorker
from phalanx.worker.torch_trainer import TrainSetup


class ScriptSwitchingWorker(SwitchingWorker):
    """Let the script go on from phase to phase; it waits for its next batch meanwhile.

    Args:
        context: Of this process.
        basis: Data and model, for all phases.
        stack: Closes what it opens.
        startup_s: How long it took until here.
        session: Of the script.
        turns: Takes turns with it.
        driver: The script's side of these turns.
    """

    def __init__(
        self,
        context: WorkerContext,
        basis: TrainResources,
        stack: ExitStack,
        *,
        startup_s: float,
        session: ScriptSession,
        turns: ScriptTurns,
        driver: LaunchedDriver,
    ) -> None:
        super().__init__(context, basis, stack, startup_s=startup_s)
        assert isinstance(basis.replica, ServedModel)
        self._model = basis.replica
        self._session = session
        self._turns = turns
        self._driver = driver

    @override
    def _attach(self, spec: StrategySpec, collective: Collective, *, equal: bool) -> Strategy:
        return attach_strategy(
            spec, self._model.replicas, collective, turns=self._turns, equal=equal
        )

    @override
    def _make_trainer(self, phase: WorkerContext, setup: TrainSetup) -> ScriptTrainer:
        declared, turns = self._session.declared, self._turns
        assert declared.data is not None
        first = declared.setups[0]
        self._model.serves = False
        self._driver.collective = setup.collective
        turns.passes = first.passes if len(declared.setups) == 1 else None
        turns.scale = LossScale(
            loss=first.loss, count=declared.data.count, total=start_sum(setup.collective)
        )
        return ScriptTrainer(
            phase,
            setup,
            self._checkpointer,
            session=self._session,
            turns=turns,
            seed=self._driver.seed,
        )

    @override
    def _make_worker(
        self, phase: WorkerContext, stack: ExitStack, start: PhaseEntry
    ) -> ScriptServedWorker:
        in_rounds = rule_for(phase.serving).in_rounds(phase.job.workers)
        self._model.serves = True
        self._driver.collective = None
        self._turns.passes = None
        self._turns.scale = ServedWeights(
            self._session.declared, in_rounds=in_rounds, is_alone=phase.job.workers == 1
        )
        return ScriptServedWorker(
            phase,
            self._basis,
            stack,
            start=start,
            session=self._session,
            turns=self._turns,
            seed=self._driver.seed,
            in_rounds=in_rounds,
            slowdown=self._slowdown,
        )
