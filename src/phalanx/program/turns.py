"""Take turns with a script: the training loop's side of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from phalanx.engine.flat import OnBucketReady
from phalanx.engine.result import StepResult
from phalanx.errors import EngineError
from phalanx.program.script import (
    BackwardDone,
    Script,
    ScriptEnded,
    StepEntered,
    WantBatch,
    WantEpoch,
    WantTotal,
)
from phalanx.program.stall_watch import StallWatch
from phalanx.program.turn import LossWeights, ScriptBatch, Turn, loss_samples


class ScriptTurns:
    """The loop's side of the turns that it takes with the script.

    Args:
        script: The script.
        scale: Weighs its losses.
        watch: Names it when it takes unusually long.
        passes: Backward passes that it makes of each batch; None: any number.
    """

    def __init__(
        self, script: Script, scale: LossWeights, watch: StallWatch, *, passes: int | None
    ) -> None:
        self._script = script
        self._watch = watch
        self.scale = scale
        self.passes = passes
        self._turn: Turn | None = None
        self.epoch = 0
        """Told to the script when it begins one."""
        self.between_s = 0.0
        """Time of the script between epochs and after the last one."""
        self.add_up: Callable[[list[float]], list[float]] | None = None
        """Adds what the script reports over workers that form no group."""

    def compute(
        self, batch: ScriptBatch, on_bucket: OnBucketReady | None, *, step: int
    ) -> StepResult:
        """Let the script compute a batch; its gradients are complete then."""
        self.give(batch, on_bucket, step=step)
        if not isinstance(self._script.pending, BackwardDone):
            raise EngineError(
                f"{self._script.name} {_doing(self._script)} before the backward pass of its "
                "batch; every batch of session.data() is trained on by loss.backward() and "
                "optimizer.step(), and setup(accumulate=, passes=) say how many passes there are"
            )
        return self.take_result(batch)

    def give(
        self,
        batch: ScriptBatch,
        on_bucket: OnBucketReady | None,
        *,
        step: int,
        rank: int | None = None,
    ) -> None:
        """Give the script a batch, and let it run to its next request."""
        self.run_on()
        self.begin_epoch()
        if not isinstance(self._script.pending, WantBatch):
            raise EngineError(
                f"{self._script.name} {_doing(self._script)} in the middle of an epoch, with "
                "batches left; every sample of an epoch is used once, so let the loop over "
                "session.data() run to its end, or shorten it by session.data(..., steps=N)"
            )
        passes = None if self.passes is None else self.passes * len(batch.micro)
        self._turn = Turn(
            step=step,
            waiting=deque(batch.micro),
            weigh=self.scale.weights(batch),
            samples=loss_samples(self.scale.loss, batch),
            passes_left=passes,
            on_bucket=on_bucket,
            rank=rank,
        )
        self._resume(self._turn)

    def reach_step(self, batch: ScriptBatch, *, step: int, rank: int) -> bool:
        """Let the script compute a batch up to the step of its optimiser; False: it makes none.

        Args:
            batch: The update.
            step: Its number in the run.
            rank: Of the worker whose random numbers it draws.
        """
        self.give(batch, None, step=step, rank=rank)
        turn = self._turn
        assert turn is not None
        if turn.waiting or not turn.num_passes:
            raise EngineError(
                f"{self._script.name} {_doing(self._script)} after {turn.num_passes} backward "
                f"passes and {turn.num_drawn} of the {len(batch.micro)} batches of an update; "
                "every batch of session.data() is trained on, and setup(accumulate=) says how many "
                "make an update"
            )
        return isinstance(self._script.pending, StepEntered)

    @property
    def gradient_version(self) -> int:
        """Version of the gradients' memory after the last backward pass."""
        return self._turn.gradient_version if self._turn is not None else 0

    def begin_epoch(self) -> None:
        """Let the script begin its epoch, if it is about to."""
        while isinstance(self._script.pending, WantEpoch):
            self._script.resume(self.epoch)

    def run_on(self, *, steps: bool = False) -> None:
        """Let the script run on to its next batch, if it waits for the exchange.

        Args:
            steps: Whether its optimiser steps; a strategy that has no use for the update of a
                worker without samples does not ask for it.
        """
        while isinstance(self._script.pending, BackwardDone):
            self._resume(steps)

    def leave_last_step(self) -> None:
        """Let the script run on from the last step of a batch, if it is there."""
        if isinstance(self._script.pending, StepEntered):
            self._resume()
        if isinstance(self._script.pending, StepEntered):
            raise self.second_step()

    def second_step(self) -> EngineError:
        """Return the error of a script that steps one optimiser twice."""
        return EngineError(
            f"{self._script.name} calls optimizer.step() twice for one batch, of which "
            "parameter servers make one update; use allreduce or local_sgd"
        )

    def _resume(self, answer: object = None) -> None:
        """Let the script run within an epoch, where others wait for it."""
        self._watch.begin_turn()
        try:
            self._script.resume(answer)
        finally:
            self._watch.end_turn()
        if isinstance(self._script.pending, WantTotal):
            raise EngineError(
                "session.report() adds over all workers, which do not go through the loop over "
                "session.data() together under parameter servers; call it after that loop"
            )

    def _run_after_loop(self) -> None:
        """Let the script run outside of its loop over batches, where it may report."""
        begin = time.perf_counter()
        self._script.resume(None)
        while isinstance(request := self._script.pending, WantTotal):
            assert self.add_up is not None, "workers that form a group add by themselves"
            self._script.resume(self.add_up(request.values))
        self.between_s += time.perf_counter() - begin

    def end_epoch(self) -> None:
        """Let the script leave its loop over batches, and run to the next epoch or its end."""
        self.run_on()
        if isinstance(self._script.pending, WantBatch):
            self._run_after_loop()
        if isinstance(self._script.pending, WantBatch):
            from phalanx.program.standalone import second_pass

            raise second_pass()

    def finish(self) -> None:
        """Let the script leave its loop over epochs, and run to its end."""
        while not isinstance(self._script.pending, ScriptEnded):
            if isinstance(self._script.pending, StepEntered):
                raise EngineError(f"{self._script.name} trains on after its loop over epochs")
            self._run_after_loop()

    @property
    def has_ended(self) -> bool:
        """Whether the script has ended."""
        return isinstance(self._script.pending, ScriptEnded)

    @property
    def entered(self) -> int | None:
        """The optimiser whose `step()` the script waits in."""
        pending = self._script.pending
        return pending.index if isinstance(pending, StepEntered) else None

    def leave_step(self) -> None:
        """Let the script run on from the step of an optimiser."""
        self._resume()

    def take_result(self, batch: ScriptBatch) -> StepResult:
        """Return what came of the script's turn since it was last asked."""
        assert self._turn is not None
        result = self._turn.result(batch)
        self._turn.loss_sum = self._turn.forward_s = self._turn.backward_s = 0.0
        return result


def _doing(script: Script) -> str:
    match script.pending:
        case ScriptEnded():
            return "ended"
        case WantEpoch():
            return "begins the next epoch"
        case WantBatch():
            return "asks for the next batch"
        case _:
            return "calls optimizer.step()"
