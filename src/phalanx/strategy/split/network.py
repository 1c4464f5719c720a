"""One worker's side of a split network, in the interface of a replica.

All workers call each method together, because none has the whole network: states are gathered at
the chief, metrics are known where the loss is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phalanx.comm.base import Collective
from phalanx.data.stream import Batch
from phalanx.engine.loss import error_sums
from phalanx.engine.replica import as_tensors
from phalanx.engine.result import EvaluationSums
from phalanx.engine.stage import Contents, Stage
from phalanx.engine.state_layout import StateLayout
from phalanx.model.parts import INPUT, Columns
from phalanx.spec.optimize import OptimizerSpec
from phalanx.split.graph import Places
from phalanx.strategy.split.gather_state import StateGatherer, check_fit
from phalanx.strategy.split.pipeline_runner import PipelineLayout, PipelineRunner


@dataclass(frozen=True)
class ModelPartition:
    """A partitioned network: facts about all of it, and the parts held here."""

    stage: Stage
    layout: PipelineLayout
    outline: StateLayout
    contents: Sequence[Contents]
    inputs: Mapping[str, Columns]
    """The columns that own parts read, counted within the samples that this worker loads."""


class SplitNetwork:
    """The network as one worker sees it.

    Args:
        partition: The parts, and where all of them are.
        collective: All workers.
        optimizer: The update rule.
        seed: Of the job.
    """

    def __init__(
        self,
        partition: ModelPartition,
        collective: Collective,
        *,
        optimizer: OptimizerSpec,
        seed: int,
    ) -> None:
        self._partition = partition
        self._collective = collective
        self.stage = partition.stage
        self.runner = PipelineRunner(partition.stage, partition.layout, collective, seed=seed)
        self._gatherer = StateGatherer(
            partition.outline,
            partition.contents,
            holders=[self.holders(unit)[0] for unit in partition.contents],
            optimizer=optimizer,
        )
        self._read = sorted(
            {
                source
                for sources, holders in zip(partition.layout.sources, self.places, strict=True)
                if collective.rank in holders
                for source in sources
                if isinstance(source, str)
            }
        )

    @property
    def places(self) -> Places:
        """The workers of each part."""
        return self._partition.layout.places

    def holders(self, unit: Contents) -> tuple[int, ...]:
        """Return the workers that hold a unit."""
        return self.places[unit.parts[0]]

    def answers_for(self, unit: Contents) -> bool:
        """Return whether this worker sends a unit's state for all of its holders."""
        return self.holders(unit)[0] == self._collective.rank

    def tensors(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return the inputs of own parts in a batch, and its targets."""
        samples, targets = as_tensors(batch)
        columns = self._partition.inputs
        return {
            name: samples if name == INPUT else columns[name].take(samples) for name in self._read
        }, targets

    @property
    def parameters(self) -> Tensor:
        """Return all trained parameters at the chief; an empty row at the others."""
        return self.state().get("parameters", torch.zeros(0))

    def evaluate(self, batch: Batch) -> EvaluationSums:
        """Evaluate one batch; the result is at the worker with the last part, others get zeros."""
        inputs, targets = self.tensors(batch)
        passed = self.runner.evaluate(inputs, targets)
        errors = (0.0, 0.0)
        if passed.output is not None:
            rows = slice(passed.first_row, passed.first_row + len(passed.output))
            errors = error_sums(passed.output, batch.targets[rows])
        return EvaluationSums(passed.loss_sum, passed.num_correct, passed.num_samples, *errors)

    def evaluate_into(self, batch: Batch, predicted: npt.NDArray[np.int64]) -> EvaluationSums:
        """Evaluate likewise; the worker with the last part writes the predicted classes."""
        inputs, targets = self.tensors(batch)
        passed = self.runner.evaluate(inputs, targets)
        if passed.output is not None:
            rows = slice(passed.first_row, passed.first_row + len(passed.output))
            predicted[rows] = passed.output.argmax(dim=1).numpy()
        return EvaluationSums(passed.loss_sum, passed.num_correct, passed.num_samples)

    def state(self) -> dict[str, Tensor]:
        """Return the whole state at the chief, nothing at the others."""
        return self._gatherer.gather(self.stage.units, self._collective)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore own parts from a whole state, of a run with any placement or none.

        Raises:
            EngineError: The state is of another model or optimiser; nothing was changed.
        """
        check_fit(self._gatherer.template(), state)
        for unit in self.stage.units:
            unit.take_from(state, self._partition.outline)

    def regularisation(self) -> float:
        """Return the regulariser's part of the loss, over all workers."""
        own = [
            unit.optimizer.regularisation()
            for unit in self.stage.units
            if unit.optimizer is not None and self.answers_for(unit.contents)
        ]
        total = torch.tensor([math.fsum(own)], dtype=torch.float64)
        self._collective.all_reduce(total)
        return float(total.item())
