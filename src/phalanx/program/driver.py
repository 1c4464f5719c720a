"""Drive a script from the loop of a worker: hand out batches, follow its backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from phalanx.errors import EngineError
from phalanx.program.script import (
    BackwardDone,
    Script,
    StepEntered,
    WantBatch,
    WantEpoch,
    WantTotal,
)
from phalanx.program.seeds import seed_batch
from phalanx.program.source import BatchCut, MicroBatch
from phalanx.program.taps import Backward, scaled_roots
from phalanx.program.turn import Turn

if TYPE_CHECKING:
    from phalanx.comm.base import Collective
    from phalanx.program.model import ScriptModel


class LaunchedDriver:
    """The script's side of the turns that it takes with the loop.

    Attributes:
        script: The greenlet of the script.
        model: Its parameters in flat buffers; None until the loop has begun.
        collective: The workers; None until the loop has begun, and where they form no group.
        turn: The update that the script works on.
        skips_step: Whether the optimiser's step is left out: this worker had no sample, and
            updates by itself.
    """

    script: Script

    def __init__(self, cut: BatchCut) -> None:
        self.cut = cut
        self.seed = 0
        self.model: ScriptModel | None = None
        self.collective: Collective | None = None
        self.turn: Turn | None = None
        self.skips_step = False

    def next_epoch(self) -> int | None:
        """Ask the loop for the epoch."""
        answer = self.script.ask(WantEpoch())
        assert answer is None or isinstance(answer, int)
        return answer

    def next_batch(self) -> MicroBatch | None:
        """Take the next batch of the update, or ask the loop for another update."""
        if self.turn is None or not self.turn.waiting:
            answer = self.script.ask(WantBatch())
            assert answer is None or isinstance(answer, Turn)
            self.turn = answer
        turn = self.turn
        if turn is None:
            return None
        batch = turn.draw()
        rank = self.cut.rank if turn.rank is None else turn.rank
        seed_batch(self.seed, rank, turn.step, turn.num_drawn - 1)
        turn.clock()
        return batch

    def backward(
        self, original: Backward, roots: Sequence[Tensor], grads: Any, others: dict[str, Any]
    ) -> None:
        """Make a backward pass; in the last one of an update gradients are exchanged.

        Raises:
            EngineError: There are more passes than the script has declared.
        """
        turn, model = self.turn, self.model
        if turn is None or turn.num_drawn == 0 or model is None:
            original(roots, grads, **others)
            return
        if turn.passes_left == 0:
            raise EngineError(
                "a backward pass too many before the next batch: gradients have been exchanged "
                "already; say session.setup(..., passes=N) for N backward passes of each batch"
            )
        turn.forward_s += turn.clock()
        index = turn.begin_pass(model.setups[0].passes if len(model.setups) == 1 else None)
        if roots[0].numel() == 1:
            turn.loss_sum += float(roots[0].detach()) * turn.samples(index)
        weight = turn.weigh(index)
        model.begin_pass(keep_sum=self.cut.rank == 0)
        is_last = turn.passes_left == 1
        if is_last:
            model.replicas[0].flat.arm(turn.on_bucket)
        original(roots, scaled_roots(roots, grads, weight), **others)
        if is_last:
            model.replicas[0].flat.finish()
        turn.backward_s += turn.clock()
        turn.gradient_version = model.replicas[0].gradients._version
        if turn.passes_left is not None:
            turn.passes_left -= 1
        if is_last:
            self.skips_step = not self.script.ask(BackwardDone())

    def step(self, index: int, apply: Callable[[], Any]) -> Any:
        """Make the step of an optimiser; that of several exchanges its gradients first."""
        model = self.model
        if model is None:
            raise EngineError("the script has called optimizer.step() before its loop has begun")
        model.check_groups()
        # A scheduler warns otherwise that it comes before the first step.
        model.setups[index].optimizer._opt_called = True  # type: ignore[attr-defined]
        if model.is_served or len(model.replicas) > 1:
            return self.script.ask(StepEntered(index))
        return None if self.skips_step else apply()

    def clip(self, parameters: list[Tensor], largest: float, kind: float) -> Tensor | None:
        """Leave clipping to servers, which know the whole gradient; None: it is done here."""
        turn, model = self.turn, self.model
        if turn is None or turn.num_drawn == 0 or model is None or kind != 2:
            return None
        if not model.clips_elsewhere(parameters, largest):
            return None
        norms = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())

    def total(self, values: list[float]) -> list[float]:
        """Add numbers over all workers, which all call it together."""
        self.script.refuse_copies()
        if self.model is None:
            raise EngineError("session.report() adds over workers; call it after the loop begins")
        if self.collective is None:
            answer = self.script.ask(WantTotal(values))
            assert isinstance(answer, list)
            return answer
        summed = torch.tensor([float(len(values)), *values], dtype=torch.float64)
        self.collective.all_reduce(summed)
        if summed[0].item() != len(values) * self.collective.size:
            raise EngineError("workers have called session.report() with different figures")
        found: list[float] = summed[1:].tolist()
        return found
