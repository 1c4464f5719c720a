"""One worker's copy of a model, with its flat buffers and optimiser.

`strategy` calls `forward_backward`, exchanges `gradients`, `parameters` or `buffers` with other
processes, and calls `apply`; a replica itself depends on no other worker. Loading data, schedules
and files are elsewhere.

Batch normalisation uses the statistics of the replica's share of the batch, as plain data
parallelism does; running statistics differ between workers until `buffers` are averaged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from phalanx.data.order import share_sizes
from phalanx.data.stream import Batch
from phalanx.engine.averaging import average_in
from phalanx.engine.buffers import FlatBuffers
from phalanx.engine.flat import FlatModule, OnBucketReady
from phalanx.engine.layout import FlatLayout, Range
from phalanx.engine.loss import ForwardPass, Loss, error_sums
from phalanx.engine.loss_functions import find_outputs, required_outputs
from phalanx.engine.optimizer_factory import factory_for
from phalanx.engine.precision import Precision, autocast
from phalanx.engine.result import EvaluationSums, StepResult, check_loss
from phalanx.engine.rng import draw_seed
from phalanx.engine.spans import span
from phalanx.errors import EngineError
from phalanx.spec.loss import LossSpec
from phalanx.spec.optimize import OptimizerSpec


class Replica:
    """A module with its flat buffers, loss and optimiser.

    Constructing one makes the CPU treat denormal numbers as zero in this thread: they occur in
    momentum that dies away, and many CPUs compute with them far more slowly.

    Args:
        module: Float32 on the CPU; its parameters and statistics move into flat buffers.
        loss: What is minimised.
        optimizer: The update rule; None if another process owns the parameters.
        precision: Format of the forward and backward pass.
        seed: Of the job; with `rank` and the step it decides dropout.
        rank: Of this worker.
        bucket_bytes: Gradients that become ready together; None chooses by model size.
        passes: Forward and backward passes in which a batch is computed, to save memory.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        loss: LossSpec,
        optimizer: OptimizerSpec | None,
        precision: Precision = "fp32",
        seed: int = 0,
        rank: int = 0,
        bucket_bytes: int | None = None,
        passes: int = 1,
    ) -> None:
        torch.set_flush_denormal(True)
        self.module = module
        self._flat = FlatModule(module, bucket_bytes=bucket_bytes)
        self._buffers = FlatBuffers(module)
        self._frozen = {n: p.data for n, p in module.named_parameters() if not p.requires_grad}
        self._loss = Loss(loss)
        self._precision: Precision = precision
        self._seed = seed
        self._rank = rank
        self._passes = passes
        self.gradient_weight = 0.0
        """The gradient is this over `Batch.global_count` times the mean over the share."""
        self.optimizer = (
            None
            if optimizer is None
            else factory_for(optimizer, module, self.layout).build(self.parameters)
        )
        module.train()

    @property
    def layout(self) -> FlatLayout:
        """Which parameter lies where in `parameters` and `gradients`."""
        return self._flat.layout

    @property
    def buckets(self) -> tuple[Range, ...]:
        """The ranges of `gradients` that `forward_backward` reports one by one."""
        return self._flat.buckets

    @property
    def parameters(self) -> Tensor:
        """All trainable parameters; writing to it changes the model."""
        return self._flat.parameters

    @property
    def gradients(self) -> Tensor:
        """What the last `forward_backward` found, until the next one; exchange works in place."""
        return self._flat.gradients

    @property
    def buffers(self) -> Tensor:
        """All running statistics; writing to it changes the model. Empty without batch norm."""
        return self._buffers.flat

    def forward_backward(
        self, batch: Batch, on_bucket_ready: OnBucketReady | None = None, *, step: int
    ) -> StepResult:
        """Compute loss and gradients of this worker's share of a batch.

        The gradients are those of the loss sum divided by `batch.global_count`: summed over all
        workers they are the mean over the global batch, however unequal the shares. Where the loss
        `counts` something else than samples, the sum over workers is still to be divided by that
        of `gradient_weight` over `batch.global_count`, unless this worker has the whole batch. A
        share without samples gives zero gradients and still reports every bucket.

        Args:
            batch: The samples; read, never changed or kept.
            on_bucket_ready: Called during backward with each bucket whose gradients are final, in
                rising order; None saves the bookkeeping.
            step: Number of this step in the run. Dropout depends on seed, rank and it alone, so
                a resumed run repeats what the first would have drawn.

        Raises:
            EngineError: The loss is not finite, or the batch does not fit the model.
        """
        started = time.perf_counter()
        num_samples, self.gradient_weight = len(batch.targets), 0.0
        if num_samples == 0:
            self._flat.skip(on_bucket_ready)
            return StepResult(0.0, 0, 0, 0.0, time.perf_counter() - started)
        if not self.module.training:
            self.module.train()
        torch.default_generator.manual_seed(draw_seed(self._seed, self._rank, step))
        # Nobody else has a part in this batch: the mean can be taken here.
        is_whole = self._loss.counts(batch) and num_samples == batch.global_count
        value = weight = forward_s = 0.0
        num_correct = 0
        pieces = _cut(batch, self._passes)
        self._flat.begin()
        for number, piece in enumerate(pieces, start=1):
            begun = time.perf_counter()
            with span("forward"):
                sums = self._forward(piece).sums
                value += float(sums.total.detach())
            check_loss(value, step=step, rank=self._rank)
            num_correct += int(sums.correct)
            weight += sums.weight
            self.gradient_weight = num_samples if is_whole else weight
            forward_s += time.perf_counter() - begun
            is_last = number == len(pieces)
            if sums.weight > 0:
                with span("backward"):
                    self._flat.add(
                        sums.total,
                        scale=1.0 / batch.global_count,
                        on_bucket_ready=on_bucket_ready if is_last and not is_whole else None,
                    )
        with span("backward"):
            if is_whole and weight not in (0, num_samples):
                self.gradients.mul_(num_samples / weight)
            self._flat.finish(on_bucket_ready)
        return StepResult(
            loss_sum=value,
            num_correct=num_correct,
            num_samples=num_samples,
            forward_s=forward_s,
            backward_s=time.perf_counter() - started - forward_s,
            weight=weight,
        )

    @property
    def update_options(self) -> bytes:
        """What servers have to know for an update: nothing, as they know the job."""
        return b""

    def pass_over(self, batch: Batch, *, step: int) -> None:
        """Do nothing about a batch of which this worker has no sample."""

    def counts(self, batch: Batch) -> bool:
        """Return whether the loss may weigh samples differently, so that weights are exchanged."""
        return self._loss.counts(batch)

    def apply(self, lr: float) -> None:
        """Update the parameters by `gradients`, which are consumed.

        Raises:
            EngineError: The replica was built without an optimiser.
        """
        if self.optimizer is None:
            raise EngineError("this replica has no optimiser; its parameters are moved elsewhere")
        with span("apply"):
            self.optimizer.step(self.gradients, lr)

    def regularisation(self) -> float:
        """Return the present value of the L2 regulariser; 0 without an optimiser."""
        return self.optimizer.regularisation() if self.optimizer is not None else 0.0

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Hold the average of the parameters instead of them, if the optimiser keeps one."""
        average = average_in(self.optimizer.state()) if self.optimizer is not None else None
        if average is None:
            yield
            return
        with self.holding(average):
            yield

    @contextmanager
    def holding(self, parameters: Tensor) -> Iterator[None]:
        """Hold other parameters for a while."""
        own = self.parameters.clone()
        self.parameters.copy_(parameters)
        try:
            yield
        finally:
            self.parameters.copy_(own)

    def evaluate(self, batch: Batch) -> EvaluationSums:
        """Evaluate one batch: no dropout, running statistics in batch norm.

        A loss that is not finite is returned as it is.
        """
        return self._evaluate(batch)[0]

    def evaluate_into(self, batch: Batch, predicted: npt.NDArray[np.int64]) -> EvaluationSums:
        """Evaluate one batch, and write the class of each sample's largest output."""
        measured, outputs = self._evaluate(batch)
        found = find_outputs(outputs)
        if found is not None and found.ndim == 2:
            predicted[:] = found.argmax(dim=1).numpy()
        return measured

    def evaluate_outputs(self, batch: Batch) -> tuple[EvaluationSums, Tensor]:
        """Evaluate one batch, which is not empty, and return the tensor of predictions too."""
        measured, outputs = self._evaluate(batch)
        return measured, required_outputs(outputs)

    def _evaluate(self, batch: Batch) -> tuple[EvaluationSums, object]:
        if len(batch.targets) == 0:
            return EvaluationSums(0.0, 0, 0), None
        if self.module.training:
            self.module.eval()
        with torch.inference_mode():
            passed = self._forward(batch)
            errors = error_sums(passed.outputs, batch.targets)
        total, correct, weight = passed.sums
        sums = EvaluationSums(float(total), int(correct), len(batch.targets), *errors, weight)
        return sums, passed.outputs

    def state(self) -> dict[str, Tensor]:
        """Return the live state that a resumed run needs: copy or write it before the next step."""
        state = {"parameters": self.parameters, "buffers": self.buffers}
        state |= {f"buffer/{name}": value for name, value in self._buffers.others.items()}
        state |= {f"frozen/{name}": value for name, value in self._frozen.items()}
        if self.optimizer is not None:
            state |= {f"optimizer/{key}": value for key, value in self.optimizer.state().items()}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned, here or in another process, bit by bit.

        Raises:
            EngineError: The state is of another model or optimiser; nothing was changed.
        """
        own = self.state()
        for key in sorted(own.keys() | state.keys()):
            here = tuple(own[key].shape) if key in own else "nothing"
            saved = tuple(state[key].shape) if key in state else "nothing"
            if here != saved:
                raise EngineError(
                    f"the saved state has {saved} for '{key}' where this model and optimiser have "
                    f"{here}; resume with the model and optimizer of the saved run"
                )
        for key, value in state.items():
            own[key].copy_(value)

    def _forward(self, batch: Batch) -> ForwardPass:
        with autocast(self._precision):
            return self._loss.forward(self.module, batch)


def _cut(batch: Batch, num_passes: int) -> list[Batch]:
    """Cut a batch into about equal pieces, none of them empty."""
    if num_passes == 1:
        return [batch]
    sizes = [size for size in share_sizes(len(batch), num_passes) if size]
    ends = list(accumulate(sizes))
    return [
        replace(
            batch,
            inputs=batch.inputs[end - size : end],
            targets=batch.targets[end - size : end],
            indices=batch.indices[end - size : end],
        )
        for size, end in zip(sizes, ends, strict=True)
    ]
