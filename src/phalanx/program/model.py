"""Hold a script's models as the training loop needs them: flat buffers, replicas, state."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.data.stream import Batch
from phalanx.engine.buffers import FlatBuffers
from phalanx.engine.flat import OnBucketReady
from phalanx.engine.layout import FlatLayout, Range
from phalanx.engine.result import EvaluationSums, StepResult
from phalanx.engine.trained import OptimizerState
from phalanx.errors import EngineError
from phalanx.program.gradients import ScriptGradients, save_plainly
from phalanx.program.moments import ScriptOptimizer
from phalanx.program.session import ModelSetup
from phalanx.program.turn import ScriptBatch
from phalanx.program.turns import ScriptTurns

SCRIPT = "script"
"""Name of the state of optimisers, schedulers and extras in a checkpoint."""


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
        self._optimizer: OptimizerState = ScriptOptimizer(setup.optimizer, flat)
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
    def optimizer(self) -> OptimizerState:
        """The state of the script's optimiser, or of what steps in its place."""
        return self._optimizer

    def step_by(self, optimizer: OptimizerState) -> None:
        """Note that another optimiser steps in place of the script's."""
        self._optimizer = optimizer

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

    @property
    def update_options(self) -> bytes:
        """What servers have to know for an update: nothing, as there are none."""
        return b""

    def pass_over(self, batch: Batch, *, step: int) -> None:
        """Let the script compute a batch of others, as all workers run it."""
        self.forward_backward(batch, step=step)

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
        self.gradients = gradients = torch.zeros(sum(sizes))
        """What the script's backward passes found, of all models."""
        self._statistics = FlatBuffers(self.module)
        self._frozen = {n: p.data for n, p in self.module.named_parameters() if not p.requires_grad}
        self._num_held = [_num_held(one) for one in setups]
        self.replicas: list[ScriptReplica] = []
        nothing = torch.empty(0)
        start = 0
        for setup, named, size in zip(setups, trained, sizes, strict=True):
            save_plainly(setup.model)
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

    @property
    def is_served(self) -> bool:
        """Whether servers make the optimiser's step."""
        return False

    def clips_elsewhere(self, parameters: Sequence[Tensor], largest: float) -> bool:
        """Return whether others clip the gradients of these parameters in the next update."""
        return False

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
        state[SCRIPT] = torch.frombuffer(bytearray(written.getvalue()), dtype=torch.uint8)
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned.

        Raises:
            EngineError: It is of another script.
        """
        own = self.state()
        served = [key for key in state if key.startswith("optimizer/") and key not in own]
        if served:
            raise EngineError(
                "the run was trained by parameter servers or a switch, so that the state of the "
                "script's optimiser is in their form; resume it under such a strategy, or begin "
                "anew from its weights by phalanx.open_run(RUN).load_into(model)"
            )
        for key in sorted((own.keys() | state.keys()) - {SCRIPT}):
            here = tuple(own[key].shape) if key in own else "nothing"
            saved = tuple(state[key].shape) if key in state else "nothing"
            if here != saved:
                raise EngineError(
                    f"the saved state has {saved} for '{key}' where the script's model has {here}; "
                    "resume with the script of the saved run"
                )
        for key, value in state.items():
            if key != SCRIPT:
                own[key].copy_(value)
        try:
            loaded = torch.load(io.BytesIO(state[SCRIPT].numpy().tobytes()), weights_only=True)
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
