"""Made-up machines, jobs and models for the planner's tests, and random ones for hypothesis."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from phalanx.plan.facts import (
    ClusterModel,
    ComputeFit,
    JobFacts,
    LinkFacts,
    MachineFacts,
    ModelFacts,
    NetworkFacts,
    SystemCosts,
)
from phalanx.plan.placement import Candidate, Seat
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.strategy import StrategySpec

GIB = 1 << 30


def fit(per_sample_s: float = 1e-3, *, jitter: float = 0.1, fixed_s: float = 0.01) -> ComputeFit:
    return ComputeFit(
        fixed_s=fixed_s, per_sample_s=per_sample_s, jitter=jitter, threads=4, apply_s=1e-3
    )


def machine(name: str, per_sample_s: float = 1e-3, **fields: object) -> MachineFacts:
    values: dict[str, object] = {"cores": 4, "memory_bytes": 8 * GIB, "fits": (fit(per_sample_s),)}
    return MachineFacts(name=name, **values | fields)  # type: ignore[arg-type]


def world(
    machines: Sequence[MachineFacts],
    *,
    num_parameters: int = 1_200_000,
    bandwidth: float = 1.17e8,
    global_batch: int = 256,
    **costs: object,
) -> ClusterModel:
    return ClusterModel(
        machines={one.name: one for one in machines},
        model=ModelFacts(num_parameters=num_parameters),
        job=JobFacts(global_batch=global_batch, samples_per_epoch=50_000, epochs=2),
        network=NetworkFacts(
            between=LinkFacts(latency_s=2e-4, bandwidth_bytes_per_s=bandwidth),
        ),
        costs=SystemCosts(**costs),  # type: ignore[arg-type]
    )


def even(size: int, **fields: object) -> ClusterModel:
    """So many equal machines, and four more that can serve."""
    return world([machine(f"m{i}") for i in range(size + 4)], **fields)  # type: ignore[arg-type]


def on_machines(size: int, strategy: StrategySpec, *, batch: int = 64) -> Candidate:
    """One worker on each of the first machines; servers of their own on the next ones."""
    served = strategy if isinstance(strategy, ParameterServerSpec) else None
    colocated = strategy.name == "switch" or (served is not None and served.servers == "colocated")
    seats = [
        Seat(machine=f"m{i}", batches=(batch,), threads=4, servers=int(colocated))
        for i in range(size)
    ]
    if served is not None and isinstance(served.servers, int):
        seats += [Seat(machine=f"m{size + i}", servers=1) for i in range(served.servers)]
    return Candidate(seats=tuple(seats), strategy=strategy)


def job(**fields: object) -> JobSpec:
    return job_from_mapping({"data": "mnist", "batch": {"global": 256}, "epochs": 2} | fields)


def short_summary(global_batch: int, workers: int) -> Summary:
    """What a small run came to: 12 s of training, 3 s of measuring, 20 s in all."""
    fields = msgspec.structs.fields(Summary)
    values: dict[str, object] = {field.name: 0 for field in fields if field.required}
    values |= dict.fromkeys(("run_dir", "name", "strategy", "model", "data"), "made-up")
    values |= {"precision": "fp32", "parameters_sha256": "", "stopped_early": False}
    values |= {"state": "finished", "parameters": 1_000_000, "global_batch": global_batch}
    values |= {"workers": workers, "elapsed_s": 20.0, "train_s": 12.0, "evaluate_s": 3.0}
    return Summary(**values)  # type: ignore[arg-type]


@st.composite
def random_machines(draw: st.DrawFn, most: int = 4) -> list[MachineFacts]:
    """Machines that differ in everything."""
    count = draw(st.integers(1, most))
    return [
        machine(
            f"m{i}",
            draw(st.floats(2e-4, 5e-3)),
            fits=(
                fit(
                    draw(st.floats(2e-4, 5e-3)),
                    jitter=draw(st.sampled_from([0.0, 0.1, 0.3])),
                    fixed_s=draw(st.floats(0.0, 0.05)),
                ),
            ),
            memory_bytes=draw(st.sampled_from([GIB // 2, 2 * GIB, 8 * GIB])),
            slots=draw(st.integers(1, 2)),
            price_per_hour=draw(st.floats(0.01, 2.0)),
            watts_idle=40.0,
            watts_full=draw(st.floats(41.0, 300.0)),
        )
        for i in range(count)
    ]


@st.composite
def random_worlds(draw: st.DrawFn, most: int = 4) -> ClusterModel:
    """Worlds of a few machines."""
    return world(
        draw(random_machines(most)),
        num_parameters=draw(st.integers(10_000, 20_000_000)),
        bandwidth=draw(st.floats(1e6, 2e9)),
        global_batch=draw(st.integers(8, 1024)),
    )
