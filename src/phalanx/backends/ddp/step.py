"""One training step with DistributedDataParallel, or without it for one worker.

DDP divides the summed gradients by the number of workers, so each worker's loss is its sum over
samples times workers over the global batch: the mean over the global batch results, however unequal
the shares. Running statistics are not broadcast in every step (`broadcast_buffers=False`) but
averaged when an epoch ends, as the native strategies do.
"""

from __future__ import annotations

import math
import time
import warnings

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from phalanx.backends.ddp.hooks import bucket_megabytes, bytes_of_exchange, compress
from phalanx.backends.ddp.learner import DdpModel
from phalanx.comm.base import Collective
from phalanx.data.pipeline import Batch
from phalanx.engine.loss import LossSums
from phalanx.engine.result import check_loss
from phalanx.engine.rng import draw_seed
from phalanx.engine.spans import span
from phalanx.errors import PeerError
from phalanx.spec.job import JobSpec
from phalanx.spec.lockstep import AllreduceSpec
from phalanx.strategy.base import StepFacts, Strategy

_NS = 1e-9
# DDP takes its times in the first ten steps in any case.
_CLOCK_EVERY = 10


class DdpSteps(Strategy):
    """Train a model, alone or in the default process group.

    The collective joins the same workers, for what is exchanged between epochs.
    """

    def __init__(
        self,
        learner: DdpModel,
        collective: Collective,
        *,
        job: JobSpec,
        input_shape: tuple[int, ...],
    ) -> None:
        self._learner = learner
        self._collective = collective
        self._seed = job.seed
        self._clip_norm = job.optimizer.clip_norm
        self._input_shape = input_shape
        self._ddp: DistributedDataParallel | None = None
        self._bytes_per_step = 0
        self._num_steps = 0
        self._exposed = self._overlapped = 0.0
        if collective.size > 1:
            spec = job.strategy
            assert isinstance(spec, AllreduceSpec)
            with warnings.catch_warnings():
                # torch 2.13 has a new name for `broadcast_buffers`, which 2.6 does not know.
                warnings.simplefilter("ignore", FutureWarning)
                self._ddp = DistributedDataParallel(
                    learner.module,
                    bucket_cap_mb=bucket_megabytes(spec),
                    gradient_as_bucket_view=True,
                    broadcast_buffers=False,
                )
            compress(self._ddp, spec)
            self._ddp._set_ddp_runtime_logging_sample_rate(_CLOCK_EVERY)  # type: ignore[no-untyped-call]
            num_bytes = bytes_of_exchange(learner.trained, spec)
            self._bytes_per_step = int(2 * (collective.size - 1) / collective.size * num_bytes)
            if collective.rank == 0:
                # DDP has just broadcast the chief's weights and statistics.
                sent = sum(tensor.nbytes for tensor in learner.module.state_dict().values())
                collective.count_beside(math.ceil(math.log2(collective.size)) * sent)

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        learner, started = self._learner, time.perf_counter()
        for group in learner.optimizer.param_groups:
            group["lr"] = lr
        learner.optimizer.zero_grad(set_to_none=True)
        seed = draw_seed(self._seed, self._collective.rank, step_index)
        torch.default_generator.manual_seed(seed)
        with span("forward"):
            sums = self._forward(batch)
            value = float(sums.total.detach())
        check_loss(value, step=step_index, rank=self._collective.rank)
        objective = sums.total * (self._collective.size / self._divisor(batch, sums.weight))
        penalty = learner.penalty()
        if penalty is not None:
            objective = objective + penalty
        forwarded = time.perf_counter()
        with span("backward"):
            self._backward(objective)
        computed = time.perf_counter()
        self._read_clock(computed - forwarded)
        exposed_s = self._exposed * (computed - forwarded)
        with span("apply"):
            if self._clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(learner.trained, self._clip_norm)
            learner.optimizer.step()
        return StepFacts(
            num_samples=len(batch.targets),
            loss_sum=value,
            num_correct=int(sums.correct),
            weight=sums.weight,
            forward_s=forwarded - started,
            backward_s=computed - forwarded - exposed_s,
            exchange_s=exposed_s,
            apply_s=time.perf_counter() - computed,
            overlapped_s=self._overlapped * (computed - forwarded),
        )

    def _divisor(self, batch: Batch, weight: float) -> float:
        """Return what the loss of all workers is divided by: samples, or what the loss counts."""
        if not self._learner.counts(batch):
            return batch.global_count
        total = torch.tensor([weight], dtype=torch.float64)
        self._collective.all_reduce(total)
        return max(total.item(), 1.0)

    def _forward(self, batch: Batch) -> LossSums:
        module = self._ddp if self._ddp is not None else self._learner.module
        if len(batch.targets) > 0:
            # Only when needed: it visits every layer.
            if not self._learner.module.training:
                module.train()
            return self._learner.loss(module, batch)
        # Others have samples and wait for this worker's gradients: zeros, from a synthetic sample
        # in evaluation mode, which leaves running statistics untouched.
        module.eval()
        dtype = torch.from_numpy(batch.inputs).dtype
        blank = torch.zeros((1, *self._input_shape), dtype=dtype)
        outputs = module(blank.permute(0, 3, 1, 2) if blank.ndim == 4 else blank)
        return LossSums(0.0 * outputs.sum(), torch.zeros((), dtype=torch.int64), 0.0)

    def _backward(self, objective: Tensor) -> None:
        try:
            objective.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if self._ddp is None:
                raise
            reason = (str(error).strip() or "no reason given").splitlines()[0]
            raise PeerError(
                f"backward with all-reduce among {self._collective.size} workers broke off: "
                f"{reason}",
                rank=self._collective.rank,
            ) from error
        self._collective.count_beside(self._bytes_per_step)

    def _read_clock(self, backward_s: float) -> None:
        """Read from DDP's clock how much of backward was exchange, exposed and overlapped.

        Reading it takes 45 µs, which short steps would feel: it is read in the first steps and in
        every tenth, which is when DDP takes these times, and reused for the steps between.
        """
        self._num_steps += 1
        if self._ddp is None or (
            self._num_steps > _CLOCK_EVERY and self._num_steps % _CLOCK_EVERY > 0
        ):
            return
        assert self._ddp.logger is not None
        self._ddp.logger.set_runtime_stats_and_log()
        facts = self._ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        exchange_s = _NS * max(0, facts.get("backward_comm_time", 0))
        overlapped_s = _NS * max(0, facts.get("backward_compute_comm_overlap_time", 0))
        overlapped_s = min(overlapped_s, exchange_s)
        self._exposed = min(exchange_s - overlapped_s, backward_s) / backward_s
        self._overlapped = min(overlapped_s, backward_s) / backward_s

    @override
    def synchronize(self) -> None:
        """Replace each worker's running statistics by the mean over workers."""
        if self._ddp is None:
            return
        for buffer in self._learner.module.buffers():
            if buffer.is_floating_point():
                self._collective.all_reduce(buffer)
                buffer.div_(self._collective.size)
