"""Describe the measurement of inference latency and throughput."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from phalanx.spec.base import Spec


class InferSpec(Spec):
    """Requests to the trained network, one at a time for latency, then in a row for throughput."""

    requests: Annotated[int, Field(gt=0)] = 50
    """Requests of each kind; under data parallelism for each worker."""
    batch: Annotated[int, Field(gt=0)] = 1
    """Samples in a request."""
