"""Describe the measurement of inference latency and throughput."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from phalanx.spec.base import Spec


class InferSpec(Spec):
    """Requests to the trained network, one at a time for latency, then in a row for throughput."""

    requests: Annotated[int, Field(gt=0)] = 50
    """Requests of each kind; under data parallelism for each worker."""
    batch: Annotated[int, Field(gt=0)] = 1
    """Samples in a request."""


def job_to_ask(
    job: Mapping[str, Any], layout: Literal["own", "split", "data"], workers: int | None
) -> dict[str, object]:
    """Change the job of a trained run to the layout whose inference is measured.

    Args:
        job: The mapping of the run's job.
        layout: The run's own layout, the network split over workers, or a copy on each.
        workers: How many; None: as many as the run had.
    """
    found: dict[str, object] = dict(job)
    count = workers or int(job["workers"])
    strategy = job["strategy"]
    if layout == "split" and strategy["name"] != "split":
        strategy = {"name": "split"}
    elif layout == "data" or strategy["name"] in ("parameter_server", "switch"):
        strategy = {"name": "allreduce" if count > 1 else "single"}
    if strategy["name"] == "single":
        count = 1
    if strategy["name"] == "split" and job["precision"] == "auto":
        found["precision"] = "fp32"
    found["batch"] = {key: value for key, value in job["batch"].items() if key != "shares"}
    return found | {"strategy": strategy, "workers": count}
