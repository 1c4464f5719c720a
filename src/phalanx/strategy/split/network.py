"""Partition a network, and give one worker's side of it the interface of a replica.

All workers call each method together, because none has the whole network: states are gathered at
the chief, metrics are known where the loss is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phalanx.comm.base import Collective
from phalanx.data.stream import Batch
from phalanx.engine.inputs import as_tensors
from phalanx.engine.loss import error_sums
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.part_profiler import Form
from phalanx.engine.precision import Precision
from phalanx.engine.result import EvaluationSums
from phalanx.engine.stage import Contents, Stage, StageUnit, contents_of, put_unit
from phalanx.engine.state_layout import StateLayout, state_layout_of
from phalanx.errors import EngineError
from phalanx.model.parts import INPUT, Columns, PartedNetwork
from phalanx.spec.job import JobSpec
from phalanx.spec.optimize import OptimizerSpec
from phalanx.spec.split import SplitSpec
from phalanx.split.graph import NetworkGraph, Places
from phalanx.split.op_order import SplitCosts
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
    """The network as one worker sees it."""

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


# Above every tag that activations and gradients use.
_FIRST_TAG = 1 << 24


class StateGatherer:
    """Gather the units of all workers at the chief, each from one of its holders."""

    def __init__(
        self,
        outline: StateLayout,
        contents: Sequence[Contents],
        *,
        holders: Sequence[int],
        optimizer: OptimizerSpec,
    ) -> None:
        self._outline = outline
        self._contents = contents
        self._holders = holders
        # The rule's state for no weights at all shows its state for any.
        empty = FlatOptimizer(optimizer, torch.zeros(0)).state()
        self._flat_keys = ["parameters"]
        self._flat_keys += [f"optimizer/{key}" for key, value in empty.items() if value.ndim]
        self._counters = [f"optimizer/{key}" for key, value in empty.items() if not value.ndim]

    def template(self) -> dict[str, Tensor]:
        """Return the whole state with the right shapes, on no device."""
        outline = self._outline
        found = {key: torch.empty(outline.size, device="meta") for key in self._flat_keys}
        found["buffers"] = torch.empty(outline.buffer_size, device="meta")
        found |= {key: torch.empty((), device="meta") for key in self._counters}
        return found | dict(outline.others)

    def gather(self, units: Sequence[StageUnit], collective: Collective) -> dict[str, Tensor]:
        """Return the whole state at the chief; all workers call it together."""
        own = {unit.contents.parts: unit for unit in units}
        chief = collective.rank == 0
        whole = (
            {
                key: torch.zeros(value.shape, dtype=value.dtype)
                for key, value in self.template().items()
            }
            if chief
            else {}
        )
        tag = _FIRST_TAG
        for contents, holder in zip(self._contents, self._holders, strict=True):
            given = self._given(own.get(contents.parts))
            expected = self._expected(contents)
            if holder == 0 and chief:
                put_unit(given, whole, self._outline, contents)
            elif chief:
                for number, (key, value) in enumerate(expected.items()):
                    given[key] = torch.empty(value.shape, dtype=value.dtype)
                    collective.start_receive(given[key], source=holder, tag=tag + number).wait()
                put_unit(given, whole, self._outline, contents)
            elif holder == collective.rank:
                for number, key in enumerate(expected):
                    packed = given[key].contiguous()
                    collective.start_send(packed, target=0, tag=tag + number).wait()
            tag += len(expected)
        # A send is done when the bytes have left, not when they have arrived: a worker that closed
        # its connections now would leave the chief waiting for them.
        collective.all_reduce(torch.zeros(1))
        return whole

    def _given(self, unit: StageUnit | None) -> dict[str, Tensor]:
        return {} if unit is None else unit.flats() | unit.others

    def _expected(self, contents: Contents) -> dict[str, Tensor]:
        """Return keys and shapes of a unit's share; empty entries are not sent."""
        outline = self._outline
        size = sum(len(outline.parameters[name]) for name in contents.parameters)
        found: dict[str, Tensor] = {}
        if size:
            found = {key: torch.empty(size, device="meta") for key in self._flat_keys}
            found |= {key: torch.empty((), device="meta") for key in self._counters}
        statistics = sum(len(outline.buffers[name]) for name in contents.buffers)
        if statistics:
            found["buffers"] = torch.empty(statistics, device="meta")
        found |= {key: outline.others[key] for key in contents.others}
        return {key: value for key, value in found.items() if value.numel() > 0}


def check_fit(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Refuse a state that is not of this network and update rule.

    Raises:
        EngineError: It is not.
    """
    for key in sorted(own.keys() | state.keys()):
        here = tuple(own[key].shape) if key in own else "nothing"
        saved = tuple(state[key].shape) if key in state else "nothing"
        if here != saved:
            raise EngineError(
                f"the saved state has {saved} for '{key}' where this model and optimiser have "
                f"{here}; resume with the model and optimizer of the saved run"
            )


@dataclass(frozen=True)
class Partitioning:
    """Facts that all workers share before the network is partitioned."""

    graph: NetworkGraph
    forms: Sequence[Form]
    places: Places
    costs: SplitCosts


def partition_model(
    network: PartedNetwork,
    partitioning: Partitioning,
    *,
    job: JobSpec,
    rank: int,
    precision: Precision = "fp32",
    offset: int = 0,
) -> ModelPartition:
    """Keep the parts of one worker; the network must not be used afterwards.

    `offset` is the first column of the samples that this worker loads.
    """
    strategy = job.strategy
    assert isinstance(strategy, SplitSpec)
    outline = state_layout_of(network)
    contents = contents_of(network, partitioning.graph.tied, outline)
    own = [number for number, holders in enumerate(partitioning.places) if rank in holders]
    names = list(network.reads)
    sources = [
        tuple(names.index(source) if source in network.reads else source for source in reads)
        for reads in network.reads.values()
    ]
    stage = Stage(
        network,
        own,
        contents=contents,
        layout=outline,
        loss=job.loss,
        optimizer=job.optimizer,
        precision=precision,
    )
    layout = PipelineLayout(
        graph=partitioning.graph,
        places=partitioning.places,
        forms=partitioning.forms,
        sources=sources,
        costs=partitioning.costs,
        micro_batches=strategy.micro_batches,
        schedule=strategy.schedule,
        wire=strategy.wire,
    )
    return ModelPartition(
        stage=stage,
        layout=layout,
        # Identities of parameters are invalid once the network is gone.
        outline=replace(outline, name_of={}),
        contents=contents,
        inputs={
            name: replace(columns, start=columns.start - offset, stop=columns.stop - offset)
            for name, columns in network.inputs.items()
        },
    )


def loaded_columns(network: PartedNetwork, places: Places, rank: int) -> tuple[int, int] | None:
    """Return the first and last (excluded) column that a worker has to load; None: all columns.

    A worker that reads no columns gets the first, because a batch cannot be empty.
    """
    read = {
        source
        for sources, holders in zip(network.reads.values(), places, strict=True)
        if rank in holders
        for source in sources
        if source not in network.reads
    }
    if not network.inputs or any(source not in network.inputs for source in read):
        return None
    wanted = [network.inputs[name] for name in read]
    first = min((one.start for one in wanted), default=0)
    return first, max((one.stop for one in wanted), default=1)
