"""A compression from another package: the signs of gradients, in one length per bucket."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.spec.compression import CompressionKind, CompressionSpec, Shape


class SignSpec(CompressionSpec):
    """Settings of the sign compression."""

    def summed_bytes(self, shapes: Sequence[Shape], num_workers: int) -> float:
        """Return the size of the all-reduce."""
        return super().summed_bytes(shapes, num_workers) / 2


SIGN = CompressionKind(
    name="sign",
    spec=SignSpec,
    effect="lossy",
    exchange="phalanx_extras.sign_exchange:SignExchange",
)
