"""Take part in a run with parameter servers as a worker whose training code is the user's script.

Tickets become the script's batches. At the end of an epoch every worker reads the servers, and the
script runs what follows its loop; what it reports is added up by the coordinator. The chief writes
the checkpoints: servers keep the optimiser's state, the script all other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import torch
from typing_extensions import override

from phalanx.errors import EngineError
from phalanx.program.served_model import ServedModel
from phalanx.program.session import ScriptSession
from phalanx.program.tickets import ScriptTicketLoader
from phalanx.program.turns import ScriptTurns
from phalanx.records.position import Position
from phalanx.wire.messages import FromCoordinator
from phalanx.wire.parameter_server import ReadAndEvaluate, Save
from phalanx.wire.program import FigureTotals, ScriptEvaluated, ScriptFigures, ScriptSaved
from phalanx.wire.switch import HandOver
from phalanx.worker.checkpoint import NEWEST
from phalanx.worker.checkpoint.state import REPLICA
from phalanx.worker.context import WorkerContext
from phalanx.worker.inject import InjectedSlowdown
from phalanx.worker.parameter_server.handover import PhaseEntry, set_statistics
from phalanx.worker.parameter_server.saving import save_served
from phalanx.worker.parameter_server.server_file import read_optimizer
from phalanx.worker.parameter_server.worker import ParameterServerWorker
from phalanx.worker.replica import TrainResources

_LOOK_S = 0.25


class ScriptServedWorker(ParameterServerWorker):
    """Compute the tickets of a run, or of one phase of it, by the user's script.

    Args:
        context: Of this process.
        basis: What it computes with.
        stack: Closes what it opens.
        start: What it begins with.
        session: Of the script.
        turns: Takes turns with it.
        seed: Of the script.
        slowdown: The injected slowdown, with its state from earlier phases.
    """

    def __init__(
        self,
        context: WorkerContext,
        basis: TrainResources,
        stack: ExitStack,
        *,
        start: PhaseEntry,
        session: ScriptSession,
        turns: ScriptTurns,
        seed: int,
        in_rounds: bool,
        slowdown: InjectedSlowdown | None = None,
    ) -> None:
        assert isinstance(basis.replica, ServedModel)
        self._model = basis.replica
        self._session = session
        self._turns = turns
        self._seed = seed
        self._in_rounds = in_rounds
        self._look: ReadAndEvaluate | None = None
        self.optimizer: dict[str, torch.Tensor] = {}
        """The chief's: the state of the optimiser as servers last wrote it."""
        self._totals: FigureTotals | None = None
        self._evaluation = _Evaluation()
        super().__init__(context, basis, stack, start=start, slowdown=slowdown)
        turns.add_up = self._add_up
        self._model.has_one_server = self.layout.num_servers == 1
        if start.position is not None and start.carries and start.checkpoint is None:
            self._follow_schedule(start.position)
        self._restore_script(start)

    @override
    def _make_loader(self) -> ScriptTicketLoader:
        declared = self._session.declared
        return ScriptTicketLoader(
            declared.source,
            self._plan(),
            self._context.job,
            accumulate=declared.accumulate,
            seed=self._seed,
            in_rounds=self._in_rounds,
        )

    @override
    def _num_pushes(self) -> int:
        return len(self._model.setups)

    @override
    def _recorded_rate(self) -> Callable[[int], float]:
        return lambda _: self._model.lr()

    @override
    def _obey(self, order: FromCoordinator) -> None:
        match order:
            case ReadAndEvaluate():
                self._look = order
            case Save():
                # At once: it comes before the tickets after which the parameters change.
                self._write(order)
            case FigureTotals():
                self._totals = order
            case _:
                super()._obey(order)

    @override
    def _carry_out_deferred(self) -> None:
        super()._carry_out_deferred()
        if self._look is not None:
            look, self._look = self._look, None
            self._read_and_evaluate(look)

    @override
    def _report_pause(self) -> None:
        # What the script does after its last step belongs to the state at the gate.
        self._turns.leave_last_step()
        super()._report_pause()

    @override
    def _hand_over(self, order: HandOver) -> None:
        self._turns.leave_last_step()
        super()._hand_over(order)

    def _restore_script(self, start: PhaseEntry) -> None:
        """Give the script its scheduler and other state, if others have trained before."""
        name = start.checkpoint or (NEWEST if start.restoring else None)
        if name is None:
            return
        found = self._checkpoints.load(name, only=self._model.script_state_names(REPLICA))
        if found is None:
            return
        self._model.load_script_state(
            {key.removeprefix(REPLICA): tensor for key, tensor in found.tensors.items()}
        )
        self._follow_schedule(found.position)

    def _follow_schedule(self, position: Position) -> None:
        """Note where the run stands that the scheduler's state belongs to."""
        plan = self._tickets.loader.plan
        step = plan.step_at(position.epoch_samples)
        self._model.schedule.start_at(position.epoch * plan.num_steps + step)

    def _read_and_evaluate(self, order: ReadAndEvaluate) -> None:
        """Read the servers; let the script run what follows its loop, once."""
        context, turns = self._context, self._turns
        context.metrics.activity = "reading"
        self._client.pull(self._limit("the servers' state"), self._read_inbox)
        set_statistics(self._model, order.statistics)
        if context.spec.rank == 0:
            self.optimizer = read_optimizer(context.store, self.layout)
        at = (order.part, order.epoch)
        if order.part is not None and self._evaluation.at != at:
            context.metrics.activity = f"running {self._context.job.model_name} after its loop"
            begin = time.perf_counter()
            self._evaluation = _Evaluation(at)
            if order.part == "test":
                turns.finish()
            else:
                turns.epoch = order.epoch - 1
                turns.begin_epoch()
                before = self._model.parameters.clone()
                turns.end_epoch()
                self._agree_on_end()
                if not turns.has_ended:
                    self._model.check_kept(before)
            self._model.check()
            self._evaluation.figures = self._session.reports.pop(order.part, {})
            self._evaluation.duration_s = time.perf_counter() - begin
        context.control.send(
            ScriptEvaluated(
                look=order.look,
                figures=self._evaluation.figures if order.part is not None else {},
                ended=turns.has_ended,
                duration_s=self._evaluation.duration_s,
            )
        )

    def _agree_on_end(self) -> None:
        """Refuse that only some workers have ended: the others would wait for them."""
        ended, all_workers = self._exchange([float(self._turns.has_ended)])
        if 0 < ended[0] < all_workers:
            raise EngineError(
                "some workers have left the loop over epochs and others have not; decide by what "
                "session.report() returns, which is the same on all"
            )

    def _add_up(self, values: list[float]) -> list[float]:
        """Add what the script reports over all workers."""
        summed, num_workers = self._exchange([float(len(values)), *values])
        if len(summed) != 1 + len(values) or summed[0] != len(values) * num_workers:
            raise EngineError("workers have called session.report() with different figures")
        return summed[1:]

    def _exchange(self, values: list[float]) -> tuple[list[float], int]:
        """Add numbers over all workers; returns the sums and how many workers there are."""
        evaluation, context = self._evaluation, self._context
        part, epoch = evaluation.at
        evaluation.num_calls += 1
        figures = ScriptFigures(
            part=part or "", epoch=epoch, call=evaluation.num_calls, values=tuple(values)
        )
        context.control.send(figures)
        deadline = self._limit("all workers to report")
        wanted = (figures.part, figures.epoch, figures.call)
        while (found := self._totals) is None or (found.part, found.epoch, found.call) != wanted:
            self._read_inbox(_LOOK_S)
            deadline.check()
        self._totals = None
        return list(found.values), found.num_workers

    def _write(self, order: Save) -> None:
        self._model.check()
        saved = save_served(self._checkpoints, order, self._model, self.optimizer)
        self._context.control.send(ScriptSaved(saved))


class _Evaluation:
    """What the script has done after one epoch, or after its loop."""

    def __init__(self, at: tuple[str | None, int] = (None, -1)) -> None:
        self.at = at
        self.num_calls = 0
        self.figures: dict[str, tuple[float, float]] = {}
        self.duration_s = 0.0
