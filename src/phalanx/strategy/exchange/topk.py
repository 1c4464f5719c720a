"""Send the largest entries of gradients, with error feedback and momentum correction.

Notation: g gradient, u velocity, v what waits, m momentum, k entries of a bucket. u' = m u + g,
v' = v + u'; the k largest entries of |v'| are sent with their places and set to zero in u' and v',
so that entries which wait gather the momentum they would have had. With m = 0, v is the residual.
Every worker gets the entries of all and adds them in the order of ranks.
References: Lin et al. 2018 (deep gradient compression).
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.engine.trained import FlatReplica
from phalanx.spec.compression import TopKSpec
from phalanx.strategy.exchange.base import RESIDUAL, BackgroundExchange

_VELOCITY = "gathered"


class TopKExchange(BackgroundExchange):
    """Send a share of each bucket's entries.

    Args:
        spec: Share and momentum.
        replica: Its gradient buffer is summed in place.
        collective: The workers.
    """

    def __init__(self, spec: TopKSpec, replica: FlatReplica, collective: Collective) -> None:
        super().__init__(replica, collective)
        self._spec = spec
        self._waiting = torch.zeros_like(replica.gradients)
        self._velocity = torch.zeros_like(replica.gradients) if spec.momentum else None

    @property
    @override
    def kept(self) -> dict[str, Tensor]:
        if self._velocity is None:
            return {RESIDUAL: self._waiting}
        return {RESIDUAL: self._waiting, _VELOCITY: self._velocity}

    @override
    def _exchange(self, index: int) -> None:
        bucket = self._replica.buckets[index]
        gradient = self._replica.gradients[bucket.start : bucket.stop]
        waiting = self._waiting[bucket.start : bucket.stop]
        if self._velocity is None:
            waiting.add_(gradient)
        else:
            velocity = self._velocity[bucket.start : bucket.stop]
            waiting.add_(velocity.mul_(self._spec.momentum).add_(gradient))
        count = self._spec.num_kept(len(bucket))
        places = torch.topk(waiting.abs(), count, sorted=False).indices
        # One message: places and the bits of their values.
        message = torch.stack((places.to(torch.int32), waiting[places].view(torch.int32)))
        waiting[places] = 0.0
        if self._velocity is not None:
            velocity[places] = 0.0
        gradient.zero_()
        for where, values in self._collective.all_gather(message):
            gradient.index_add_(0, where, values.view(torch.float32))
