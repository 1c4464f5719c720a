"""How long gradients are: what the gradient noise scale is estimated from, at no extra traffic.

Armed for single steps, it reads each bucket once before its exchange and the sum once after it.
"""

from __future__ import annotations

from torch import Tensor


class Gauge:
    """Measures the gradients of the steps that it is armed for."""

    def __init__(self) -> None:
        self._armed = False
        self._own = 0.0
        self._found = (0.0, 0.0)

    def arm(self) -> None:
        """Measure in the next step."""
        self._armed = True
        self._own = 0.0
        self._found = (0.0, 0.0)

    def read_own(self, part: Tensor) -> None:
        """A part of this worker's gradient is final, and not yet exchanged."""
        if self._armed:
            self._own += float(part.dot(part))

    def read_sum(self, gradients: Tensor, *, num_samples: int, global_count: int) -> None:
        """The gradient of all workers is here.

        Args:
            gradients: The mean over the global batch.
            num_samples: Of this worker.
            global_count: Of all workers.
        """
        if not self._armed:
            return
        self._armed = False
        # What a worker adds is its mean gradient times its share of the batch.
        scale = global_count / num_samples if num_samples else 0.0
        self._found = (self._own * scale * scale, float(gradients.dot(gradients)))

    def take(self) -> tuple[float, float]:
        """Squared lengths of this worker's own mean gradient and of that of all workers."""
        found, self._found = self._found, (0.0, 0.0)
        return found
