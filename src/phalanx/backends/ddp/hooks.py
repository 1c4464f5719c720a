"""Compress DDP's exchange with torch's own communication hooks, so that comparisons are fair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from phalanx.spec.compression import PowerSgdSpec
from phalanx.spec.lockstep import AllreduceSpec

# torch's rule: factors must take at most half of a tensor's bytes.
_LEAST_RATE = 2
# Its smallest value with error feedback and warm start; these first steps are sent whole.
_WHOLE_STEPS = 2


def compress(ddp: DistributedDataParallel, spec: AllreduceSpec) -> None:
    """Register the hook that a spec asks for; none for `compression: none`."""
    chosen = spec.compression
    if chosen.name == "powersgd":
        assert isinstance(chosen, PowerSgdSpec)
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=chosen.rank,
            start_powerSGD_iter=max(_WHOLE_STEPS, chosen.whole_steps),
            min_compression_rate=_LEAST_RATE,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif chosen.name == "bf16":
        ddp.register_comm_hook(None, _bf16_hook)


def bucket_megabytes(spec: AllreduceSpec) -> int | None:
    """Return the bucket size that the hook needs; None: DDP's own.

    With several buckets torch's PowerSGD starts exchanges of later buckets from callbacks, in an
    order that can differ between workers on Gloo.
    """
    return 1 << 20 if spec.compression.name == "powersgd" else None


def bytes_of_exchange(trained: Sequence[nn.Parameter], spec: AllreduceSpec) -> int:
    """Return the bytes that are summed per step once compression is under way."""
    chosen = spec.compression
    if chosen.name != "powersgd":
        return int(chosen.summed_bytes([tuple(one.shape) for one in trained], 1))
    assert isinstance(chosen, PowerSgdSpec)
    total = 0
    for one in trained:
        rows = one.shape[0] if one.ndim > 1 else 1
        factors = chosen.rank * (rows + one.numel() // rows)
        pays = one.ndim > 1 and factors * _LEAST_RATE < one.numel()
        total += 4 * (factors if pays else one.numel())
    return total


def _bf16_hook(state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    # The public hook refuses groups other than NCCL's; what it calls works on any.
    return default_hooks._compress_hook(torch.bfloat16, None, bucket)  # type: ignore[arg-type]


# DDP compares the annotations themselves, not their text.
_bf16_hook.__annotations__ = {
    "bucket": dist.GradBucket,  # type: ignore[attr-defined]
    "return": torch.futures.Future[torch.Tensor],
}
