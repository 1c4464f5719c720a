"""Hold a script's models as the training loop needs them: flat buffers, replicas, state."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.data.stream import Batch
from phalanx.engine.buffers import FlatBuffers
from phalanx.engine.flat import OnBucketReady
from phalanx.engine.layout import FlatLayout, Range
from phalanx.engine.result import EvaluationSums, StepResult
from phalanx.errors import EngineError
from phalanx.program.gradients import ScriptGradients
from phalanx.program.moments import ScriptOptimizer
from phalanx.program.script import (
    BackwardDone,
    Script,
    ScriptEnded,
    StepEntered,
    WantBatch,
    WantEpoch,
)
from phalanx.program.session import ModelSetup
from phalanx.program.stall_watch import StallWatch
from phalanx.program.turn import LossScale, ScriptBatch, Turn

_SCRIPT = "script"


class ScriptReplica:
    """One of a script's models, as a strategy trains it (`engine.trained.FlatReplica`).

    To compute a batch is to let the script run until its backward pass is done; to apply the update
    is to let it run on.

    Args:
        setup: What the script declared.
        flat: Its flat buffers.
        buffers: Its running statistics; empty: another replica holds those of all models.
        turns: Takes turns with the script.
        steps_by_call: Whether the script's `step()` calls are answered one by one, because there
            are several optimisers.
    """

    def __init__(
        self,
        setup: ModelSetup,
        flat: ScriptGradients,
        buffers: Callable[[], Tensor],
        turns: ScriptTurns,
        *,
        steps_by_call: bool,
    ) -> None:
        self.flat = flat
        self._setup = setup
        self._buffers = buffers
        self._turns = turns
        self._steps_by_call = steps_by_call
        self._optimizer = ScriptOptimizer(setup.optimizer, flat)
        self.gradient_weight = 0.0

    @property
    def layout(self) -> FlatLayout:
        """Which parameter lies where."""
        return self.flat.layout

    @property
    def buckets(self) -> tuple[Range, ...]:
        """The ranges of `gradients` that are exchanged one by one."""
        return self.flat.buckets

    @property
    def parameters(self) -> Tensor:
        """All trainable parameters of the model."""
        return self.flat.parameters

    @property
    def gradients(self) -> Tensor:
        """What the script's backward passes found."""
        return self.flat.gradients

    @property
    def buffers(self) -> Tensor:
        """All running statistics."""
        return self._buffers()

    @property
    def optimizer(self) -> ScriptOptimizer:
        """The state of the script's optimiser."""
        return self._optimizer

    def forward_backward(
        self, batch: Batch, on_bucket_ready: OnBucketReady | None = None, *, step: int
    ) -> StepResult:
        """Let the script compute a batch, up to the end of its last backward pass."""
        assert isinstance(batch, ScriptBatch)
        self.gradient_weight = float(len(batch))
        if self._steps_by_call:
            # The script waits in step(): its gradients are there.
            self.flat.arm(on_bucket_ready)
            self.flat.finish()
            return self._turns.take_result(batch)
        return self._turns.compute(batch, on_bucket_ready, step=step)

    def counts(self, batch: Batch) -> bool:
        """Return False: a script's losses are weighed before they are differentiated."""
        return False

    def apply(self, lr: float) -> None:
        """Let the script make its step, and run on to its next batch."""
        self.flat.show_sum()
        if self._steps_by_call:
            self._setup.apply()
        else:
            self._turns.run_on(steps=True)


class ScriptTurns:
    """The loop's side of the turns that it takes with the script.

    Args:
        script: The script.
        scale: Weighs its losses.
        watch: Names it when it takes unusually long.
        passes: Backward passes that it makes of each batch; None: any number.
    """

    def __init__(
        self, script: Script, scale: LossScale, watch: StallWatch, *, passes: int | None
    ) -> None:
        self._script = script
        self._watch = watch
        self._scale = scale
        self._passes = passes
        self._turn: Turn | None = None
        self.epoch = 0
        """Told to the script when it begins one."""

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

    def give(self, batch: ScriptBatch, on_bucket: OnBucketReady | None, *, step: int) -> None:
        """Give the script a batch, and let it run to its next request."""
        self.run_on()
        while isinstance(self._script.pending, WantEpoch):
            self._script.resume(self.epoch)
        if not isinstance(self._script.pending, WantBatch):
            raise EngineError(
                f"{self._script.name} {_doing(self._script)} in the middle of an epoch, with "
                "batches left; every sample of an epoch is used once, so let the loop over "
                "session.data() run to its end, or shorten it by session.data(..., steps=N)"
            )
        passes = None if self._passes is None else self._passes * len(batch.micro)
        self._turn = Turn(
            step=step,
            waiting=deque(batch.micro),
            weigh=self._scale.weights(batch),
            passes_left=passes,
            on_bucket=on_bucket,
            sums=self._scale.sums,
            num_micro=len(batch.micro),
        )
        self._resume(self._turn)

    def run_on(self, *, steps: bool = False) -> None:
        """Let the script run on to its next batch, if it waits for the exchange.

        Args:
            steps: Whether its optimiser steps; a strategy that has no use for the update of a
                worker without samples does not ask for it.
        """
        while isinstance(self._script.pending, BackwardDone):
            self._resume(steps)

    def _resume(self, answer: object = None) -> None:
        """Let the script run within an epoch, where others wait for it."""
        self._watch.begin_turn()
        try:
            self._script.resume(answer)
        finally:
            self._watch.end_turn()

    def end_epoch(self) -> None:
        """Let the script leave its loop over batches, and run to the next epoch or its end."""
        self.run_on()
        if isinstance(self._script.pending, WantBatch):
            self._script.resume(None)
        if isinstance(self._script.pending, WantBatch):
            from phalanx.program.standalone import second_pass

            raise second_pass()

    def finish(self) -> None:
        """Let the script leave its loop over epochs, and run to its end."""
        while not isinstance(self._script.pending, ScriptEnded):
            if isinstance(self._script.pending, StepEntered):
                raise EngineError(f"{self._script.name} trains on after its loop over epochs")
            self._script.resume(None)

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


class ScriptModel:
    """All models of a script as one: what checkpoints hold (`worker.trainable.Trainable`).

    Args:
        setups: What the script declared; their parameters are moved.
        turns: Takes turns with the script.
        bucket_bytes: Of gradients that travel together; None chooses by model size.
    """

    def __init__(
        self, setups: Sequence[ModelSetup], turns: ScriptTurns, *, bucket_bytes: int | None
    ) -> None:
        self.setups = setups
        # Names of several models begin with their number.
        self.module = (
            setups[0].model if len(setups) == 1 else nn.ModuleList(one.model for one in setups)
        )
        trained = [
            {name: p for name, p in one.model.named_parameters() if p.requires_grad}
            for one in setups
        ]
        sizes = [sum(p.numel() for p in named.values()) for named in trained]
        self.parameters = torch.empty(sum(sizes))
        gradients = torch.zeros(sum(sizes))
        self._statistics = FlatBuffers(self.module)
        self._frozen = {n: p.data for n, p in self.module.named_parameters() if not p.requires_grad}
        self._num_held = [_num_held(one) for one in setups]
        self.replicas: list[ScriptReplica] = []
        nothing = torch.empty(0)
        start = 0
        for setup, named, size in zip(setups, trained, sizes, strict=True):
            flat = ScriptGradients(
                named,
                parameters=self.parameters[start : start + size],
                gradients=gradients[start : start + size],
                bucket_bytes=bucket_bytes,
            )
            statistics = (lambda: self._statistics.flat) if start == 0 else (lambda: nothing)
            self.replicas.append(
                ScriptReplica(setup, flat, statistics, turns, steps_by_call=len(setups) > 1)
            )
            start += size

    def statistics(self) -> list[tuple[str, Tensor]]:
        """Return the running statistics by name, in the order of their flat buffer."""
        return self._statistics.named

    def begin_pass(self, *, keep_sum: bool) -> None:
        """Prepare all models for a backward pass of the script."""
        for replica in self.replicas:
            replica.flat.begin_pass(keep_sum=keep_sum)

    def check_groups(self) -> None:
        """Refuse parameters that an optimiser was given after `setup`.

        Raises:
            EngineError: It was.
        """
        for setup, num_held in zip(self.setups, self._num_held, strict=True):
            if _num_held(setup) != num_held:
                raise EngineError(
                    "the script has given its optimiser more parameters after session.setup(); "
                    "declare all of them before"
                )

    def check(self) -> None:
        """Refuse parameters that were moved or added after `setup`."""
        self.check_groups()
        known = sum(len(one.flat.layout.slots) for one in self.replicas)
        if sum(p.requires_grad for p in self.module.parameters()) != known:
            raise EngineError(
                "the model has other trainable parameters than at session.setup(); add layers and "
                "set requires_grad before it"
            )
        for replica in self.replicas:
            replica.flat.check()

    def lr(self) -> float:
        """Return the learning rate of the first group of the first optimiser."""
        return float(self.setups[0].optimizer.param_groups[0].get("lr", 0.0))

    def regularisation(self) -> float:
        """Return 0: what the script adds to its loss is part of the loss."""
        return 0.0

    def evaluate(self, batch: Batch) -> EvaluationSums:
        """Refuse: scripts evaluate by themselves."""
        raise EngineError("a script evaluates by itself")

    def state(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs; optimisers and extras as one tensor."""
        state = {"parameters": self.parameters, "buffers": self._statistics.flat}
        state |= {f"buffer/{name}": value for name, value in self._statistics.others.items()}
        state |= {f"frozen/{name}": value for name, value in self._frozen.items()}
        written = io.BytesIO()
        torch.save([_state_of(one) for one in self.setups], written)
        state[_SCRIPT] = torch.frombuffer(bytearray(written.getvalue()), dtype=torch.uint8)
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned.

        Raises:
            EngineError: It is of another script.
        """
        own = self.state()
        for key in sorted((own.keys() | state.keys()) - {_SCRIPT}):
            here = tuple(own[key].shape) if key in own else "nothing"
            saved = tuple(state[key].shape) if key in state else "nothing"
            if here != saved:
                raise EngineError(
                    f"the saved state has {saved} for '{key}' where the script's model has {here}; "
                    "resume with the script of the saved run"
                )
        for key, value in state.items():
            if key != _SCRIPT:
                own[key].copy_(value)
        try:
            loaded = torch.load(io.BytesIO(state[_SCRIPT].numpy().tobytes()), weights_only=True)
            for setup, part in zip(self.setups, loaded, strict=True):
                _restore(setup, part)
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise EngineError(
                f"the saved state of the script's optimiser, scheduler or extras does not fit: "
                f"{error}"
            ) from error


def _num_held(setup: ModelSetup) -> int:
    return sum(len(group["params"]) for group in setup.optimizer.param_groups)


def _state_of(setup: ModelSetup) -> dict[str, Any]:
    scheduler = setup.scheduler
    return {
        "optimizer": setup.optimizer.state_dict(),
        "scheduler": scheduler.state_dict() if scheduler is not None else None,
        "extra": {name: one.state_dict() for name, one in setup.extra.items()},
    }


def _restore(setup: ModelSetup, saved: dict[str, Any]) -> None:
    setup.optimizer.load_state_dict(saved["optimizer"])
    if setup.scheduler is not None and saved["scheduler"] is not None:
        setup.scheduler.load_state_dict(saved["scheduler"])
    for name, one in setup.extra.items():
        one.load_state_dict(saved["extra"][name])
