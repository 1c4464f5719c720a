"""Describe what is measured: resource samples, operator profiles and inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from phalanx.spec.base import Spec, Words, fault

Watts = Annotated[float, Field(ge=0)]


def check_watts(idle: float | None, full: float | None) -> None:
    """Refuse a power draw that falls with the load."""
    if idle is not None and full is not None and full < idle:
        raise fault(
            f"watts_full ({full:g}) is below watts_idle ({idle:g})",
            "; a busy machine draws more",
            at=("watts_full",),
        )


class ObserveSpec(Spec):
    """Sampling of the resources of processes and machines."""

    interval_s: Annotated[float, Field(ge=0.05)] | None = 1.0
    """Seconds between two samples of CPU, memory, network and disk; after an hour at least 5 s,
    after a day 30 s; null: no samples."""
    baseline_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds of sampling the idle machine before training begins."""
    energy: Literal["auto", "rapl", "model", "off"] = "auto"
    """rapl: the processor's own counters; model: from `watts_idle` and `watts_full`; auto: the
    first of the two that there is."""
    watts_idle: Watts | None = None
    """Power draw of one machine when idle."""
    watts_full: Watts | None = None
    """Power draw of one machine with all cores busy."""

    @model_validator(mode="after")
    def _model_needs_watts(self) -> ObserveSpec:
        idle, full = self.watts_idle, self.watts_full
        if (idle is None) != (full is None) or (self.energy == "model" and idle is None):
            raise fault(
                "the energy model needs both watts_idle and watts_full",
                ", such as 'watts_idle: 40' and 'watts_full: 95'",
                at=("watts_idle" if idle is None else "watts_full",),
            )
        check_watts(idle, full)
        return self


class ProfileSpec(Spec):
    """Epochs whose operators are profiled, in every worker."""

    epochs: Annotated[
        str,
        Field(
            pattern=r"^[1-9][0-9]{0,8}(-[1-9][0-9]{0,8})?(,[1-9][0-9]{0,8}(-[1-9][0-9]{0,8})?)*$"
        ),
        Words("epochs counted from 1, such as '3', '2-4' or '2-4,8'"),
    ] = "2"
    """Counted from 1. The first is seldom worth it: caches fill and memory is allocated."""
    memory: bool = False
    """Whether to record memory allocated by operators, which makes them slower."""

    @model_validator(mode="after")
    def _rising(self) -> ProfileSpec:
        for first, last in self.ranges():
            if last < first:
                raise fault(f"'{first}-{last}' is no range", f"; write '{last}-{first}'")
        return self

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return first and last epoch of each part, counted from 1."""
        parts = [part.split("-") for part in self.epochs.split(",")]
        return tuple((int(part[0]), int(part[-1])) for part in parts)

    def covers(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 0 as in records, is to be profiled."""
        return any(first <= epoch + 1 <= last for first, last in self.ranges())


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
