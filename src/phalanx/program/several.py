"""Train several models of a script, such as the two of a GAN: each optimiser's step exchanges."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.data.stream import Batch
from phalanx.engine.trained import FlatReplica
from phalanx.program.turn import ScriptBatch
from phalanx.program.turns import ScriptTurns
from phalanx.spec.strategy import StrategySpec
from phalanx.strategy.base import StepFacts, Strategy, build_strategy


def attach_strategy(
    spec: StrategySpec,
    replicas: Sequence[FlatReplica],
    collective: Collective,
    *,
    turns: ScriptTurns,
    equal: bool = False,
) -> Strategy:
    """Return the strategy of all models of a script, attached to them.

    Args:
        spec: Of the strategy.
        replicas: The models.
        collective: The workers.
        turns: Takes turns with the script.
        equal: Whether all workers hold the same parameters already.
    """
    parts = []
    for replica in replicas:
        part = build_strategy(spec)
        part.attach(replica, collective, equal=equal)
        parts.append(part)
    return parts[0] if len(parts) == 1 else SeveralModels(parts, turns)


class SeveralModels(Strategy):
    """One strategy per model, used whenever the script calls `step()` of its optimiser.

    The script decides the order and how often; all workers come to the same.

    Args:
        parts: Attached to their replicas, in the order of the script's `setup` calls.
        turns: Takes turns with the script.
    """

    def __init__(self, parts: Sequence[Strategy], turns: ScriptTurns) -> None:
        self._parts = parts
        self._turns = turns

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        assert isinstance(batch, ScriptBatch)
        facts = StepFacts(len(batch), 0.0, 0, 0.0, 0.0, 0.0, 0.0)
        self._turns.give(batch, None, step=step_index)
        while (index := self._turns.entered) is not None:
            facts = facts.plus(self._parts[index].step(batch, lr=lr, step_index=step_index))
            self._turns.leave_step()
        return facts

    @override
    def synchronize(self) -> None:
        for part in self._parts:
            part.synchronize()

    @override
    def take_note(self) -> str | None:
        notes = [note for part in self._parts if (note := part.take_note()) is not None]
        return "; ".join(notes) or None

    @override
    def export_state(self) -> dict[str, Tensor]:
        return {
            f"{index}/{name}": tensor
            for index, part in enumerate(self._parts)
            for name, tensor in part.export_state().items()
        }

    @override
    def import_state(self, state: dict[str, Tensor]) -> None:
        for index, part in enumerate(self._parts):
            prefix = f"{index}/"
            part.import_state(
                {
                    name.removeprefix(prefix): tensor
                    for name, tensor in state.items()
                    if name.startswith(prefix)
                }
            )
