"""What every exchange of gradients promises, whatever it sends."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phalanx.comm.base import Collective
from phalanx.engine.replica import Replica
from phalanx.errors import PeerError
from phalanx.model.parts import drawing
from phalanx.spec.compression import (
    COMPRESSIONS,
    Bf16Spec,
    CompressionSpec,
    Int4Spec,
    Int8Spec,
    PowerSgdSpec,
    TopKSpec,
    WholeSpec,
)
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.loss import LossSpec
from phalanx.spec.render import to_mapping
from phalanx.strategy.exchange.base import GradientExchange, build_exchange
from support.plugins import PLUGINS
from support.ranks import over_gloo, over_mesh, run_ranks

SPECS: dict[str, CompressionSpec] = {
    "none": WholeSpec(),
    "bf16": Bf16Spec(),
    "int8": Int8Spec(),
    "int4": Int4Spec(),
    "powersgd": PowerSgdSpec(rank=3),
    "topk": TopKSpec(share=0.05),
    "topk-momentum": TopKSpec(share=0.05, momentum=0.9),
}
KEEPING = [name for name in SPECS if name not in ("none", "topk-momentum")]
BUCKET_BYTES = 3_000
STEPS = 12
each = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def make(spec: CompressionSpec, group: Collective) -> tuple[Replica, GradientExchange]:
    """A network of several buckets, of which the last is smaller than a block."""
    with drawing(0):
        module = nn.Sequential(nn.Linear(5, 30), nn.Linear(30, 40), nn.Linear(40, 20))
    replica = Replica(module, loss=LossSpec(), optimizer=None, bucket_bytes=BUCKET_BYTES)
    assert len(replica.buckets) > 2
    return replica, build_exchange(spec, replica, group)


def exchange(replica: Replica, by: GradientExchange, gradient: Tensor, step: int = 0) -> Tensor:
    replica.gradients.copy_(gradient)
    by.begin(step)
    for index in range(len(replica.buckets)):
        by.start(index)
    by.finish()
    assert not by.pending
    return replica.gradients.clone()


def gradients(rank: int, size: int, steps: int = STEPS) -> Tensor:
    """A gradient per step: a part that stays and noise of this worker's own, in unlike scales."""
    steady = torch.Generator().manual_seed(7)
    own = torch.Generator().manual_seed(rank + 1)
    scales = torch.logspace(-4, 1, size)
    kept = torch.randn(size, generator=steady) + torch.randn(size, generator=own)
    return scales * (kept + 0.3 * torch.randn(steps, size, generator=own))


def sums(
    spec: CompressionSpec, size: int, steps: int = STEPS, over: Any = over_gloo
) -> list[tuple[Tensor, ...]]:
    """Per rank: what each step gave, what is kept at the end, and the rank's own gradients."""

    def body(group: Collective) -> tuple[Tensor, ...]:
        replica, by = make(spec, group)
        own = gradients(group.rank, replica.gradients.numel(), steps)
        given = torch.stack([exchange(replica, by, one) for one in own])
        nothing = torch.zeros_like(own[0])
        return given, by.kept.get("residual", nothing).clone(), own

    return run_ranks(size, body, over)


def test_every_built_in_kind_is_tried() -> None:
    # `auto` uses the others; test_auto.py tries it.
    assert {spec.name for spec in SPECS.values()} | {"auto"} == set(COMPRESSIONS.built_in)


@each
@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_workers_get_the_same_bits_in_every_step(spec: CompressionSpec, size: int) -> None:
    results = sums(spec, size)
    for given, _, _ in results[1:]:
        assert torch.equal(given, results[0][0])
    assert torch.equal(sums(spec, size)[0][0], results[0][0]), "another run gave other bits"


@each
def test_it_goes_over_links_of_their_own_too(spec: CompressionSpec) -> None:
    results = sums(spec, 3, steps=3, over=over_mesh)
    for given, _, _ in results[1:]:
        assert torch.equal(given, results[0][0])
    if spec.name not in ("bf16", "none", "powersgd"):
        # No sums on the way: the same entries are added in the same order.
        assert torch.equal(results[0][0], sums(spec, 3, steps=3)[0][0])


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("size", [2, 3])
def test_over_many_steps_nothing_is_lost_but_the_residuals(name: str, size: int) -> None:
    results = sums(SPECS[name], size)
    whole = sum(own.sum(0) for _, _, own in results)
    owed = sum(kept for _, kept, _ in results)
    assert owed.abs().sum() > 0, "nothing was left out: the test shows nothing"
    # Sums in bf16 are rounded on their way from worker to worker, which no one keeps.
    slack = 0.05 if name == "bf16" else 1e-5
    length = float(whole.norm())
    assert float((results[0][0].sum(0) + owed - whole).norm()) < slack * length


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "spec",
    [PowerSgdSpec(rank=1_000), TopKSpec(share=1.0), WholeSpec()],
    ids=lambda spec: spec.label(),
)
def test_without_anything_left_out_it_is_the_sum(spec: CompressionSpec, size: int) -> None:
    results = sums(spec, size, steps=3)
    whole = torch.stack([own for _, _, own in results]).sum(0)
    torch.testing.assert_close(results[0][0], whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("spec", "step"), [(Int8Spec(), 127), (Int4Spec(), 7)])
def test_a_rounded_sum_is_off_by_half_a_step_for_each_who_rounds(
    spec: CompressionSpec, step: int
) -> None:
    size = 3
    results = sums(spec, size, steps=1)
    rows = [own[0] for _, _, own in results]
    whole = torch.stack(rows).sum(0)
    largest = max(float(row.abs().max()) for row in rows)
    half = 0.5 / step * ((size - 1) * largest + float(whole.abs().max()) * 1.1)
    assert float((results[0][0][0] - whole).abs().max()) <= half * 1.01


@each
@pytest.mark.parametrize("size", [2, 3])
def test_bytes_are_those_that_the_spec_tells_the_planner(spec: CompressionSpec, size: int) -> None:
    def body(group: Collective) -> tuple[int, float]:
        replica, by = make(spec, group)
        before = group.sent_bytes
        exchange(replica, by, gradients(group.rank, replica.gradients.numel(), 1)[0])
        expected = 0.0
        for bucket in replica.buckets:
            slots = [s for s in replica.layout.slots if bucket.start <= s.start < bucket.stop]
            expected += spec.summed_bytes([slot.shape for slot in slots], size)
        return group.sent_bytes - before, 2 * (size - 1) / size * expected

    for sent, expected in run_ranks(size, body):
        # Each of the two calls per bucket counts whole bytes.
        assert sent == pytest.approx(expected, abs=2 * 3)


@each
def test_state_goes_on_bit_by_bit_and_in_a_group_of_any_size(spec: CompressionSpec) -> None:
    def body(group: Collective) -> tuple[dict[str, Tensor], Tensor]:
        replica, by = make(spec, group)
        own = gradients(group.rank, replica.gradients.numel(), 4)
        for one in own[:3]:
            exchange(replica, by, one)
        state = {name: tensor.clone() for name, tensor in by.export_state().items()}
        return state, exchange(replica, by, own[3])

    results = run_ranks(2, body)
    state = results[0][0]

    def resumed(group: Collective) -> Tensor:
        replica, by = make(spec, group)
        by.import_state(state)
        return exchange(replica, by, gradients(group.rank, replica.gradients.numel(), 4)[3])

    for found, (_, expected) in zip(run_ranks(2, resumed), results, strict=True):
        assert torch.equal(found, expected)

    def other_group(group: Collective) -> dict[str, Tensor]:
        _, by = make(spec, group)
        by.import_state(state)
        return {name: tensor.clone() for name, tensor in by.kept.items()}

    for size in (1, 3):
        carried = run_ranks(size, other_group)
        for name in carried[0]:
            total = torch.stack([one[name] for one in carried]).sum(0)
            assert torch.equal(total, state[name].sum(0))


@pytest.mark.parametrize(
    "spec",
    [PowerSgdSpec(start_after=3), Int4Spec(start_after=3), TopKSpec(start_after=3)],
    ids=lambda spec: spec.name,
)
def test_the_first_steps_are_sent_whole(spec: CompressionSpec) -> None:
    def body(group: Collective) -> tuple[Tensor, Tensor]:
        replica, by = make(spec, group)
        own = gradients(group.rank, replica.gradients.numel(), 5)
        given = [exchange(replica, by, one, step) for step, one in enumerate(own)]
        return torch.stack(given), own

    results = run_ranks(2, body)
    whole = results[0][1] + results[1][1]
    equal = [torch.equal(one, other) for one, other in zip(results[0][0], whole, strict=True)]
    assert equal == [True, True, True, False, False]


def test_entries_that_do_not_wait_have_no_momentum_left_here() -> None:
    """What was sent starts again at zero, so with all entries sent it is the plain sum."""
    spec = TopKSpec(share=1.0, momentum=0.9)
    results = sums(spec, 2, steps=3)
    whole = results[0][2] + results[1][2]
    torch.testing.assert_close(results[0][0], whole, rtol=1e-5, atol=1e-6)


def test_entries_that_wait_gather_their_momentum() -> None:
    def body(group: Collective) -> list[float]:
        replica, by = make(TopKSpec(share=1e-6, momentum=0.5), group)
        gradient = torch.zeros_like(replica.gradients)
        bucket = replica.buckets[0]
        gradient[bucket.start], gradient[bucket.start + 1] = 3.0, 1.0
        return [float(exchange(replica, by, gradient)[bucket.start + 1]) for _ in range(4)]

    # What waits grows 1, 2.5, 4.25: larger than the other's 3 in the third step, and sent whole.
    assert run_ranks(1, body)[0] == [0.0, 0.0, 4.25, 0.0]


@pytest.mark.parametrize("name", ["int8", "int4", "powersgd", "topk"])
def test_a_gradient_that_is_not_finite_does_not_vanish(name: str) -> None:
    def body(group: Collective) -> Tensor:
        replica, by = make(SPECS[name], group)
        gradient = gradients(group.rank, replica.gradients.numel(), 1)[0]
        if group.rank == 1:
            gradient[100] = math.nan
        return exchange(replica, by, gradient)

    for found in run_ranks(2, body):
        assert not bool(found.isfinite().all())


@pytest.mark.parametrize("name", ["int8", "powersgd", "topk"])
def test_a_worker_that_leaves_ends_the_exchange_of_the_others(name: str) -> None:
    ready = threading.Barrier(2)

    def body(group: Collective) -> str:
        replica, by = make(SPECS[name], group)
        own = gradients(group.rank, replica.gradients.numel(), 2)
        exchange(replica, by, own[0])
        ready.wait(timeout=20)
        if group.rank == 1:
            return "left"
        with pytest.raises(PeerError):
            exchange(replica, by, own[1])
        return "told"

    assert run_ranks(2, body) == ["told", "left"]


def descend(spec: CompressionSpec, *, feedback: bool = True) -> float:
    """Share of the distance to the known optimum that is left; workers have different targets."""
    size, steps = 2, 150
    momentum = getattr(spec, "momentum", 0.0)

    def body(group: Collective) -> float:
        replica, by = make(spec, group)
        num = replica.gradients.numel()
        targets = [gradients(rank, num, 1)[0] for rank in range(size)]
        curvature = torch.linspace(1, 2, num)
        # The sum of curvature * |x - target|^2 / 2 over workers is least at the mean target.
        best = torch.stack(targets).mean(0)
        x = torch.zeros(num)
        for step in range(steps):
            own = curvature * (x - targets[group.rank]) / size
            x -= 0.2 * (1 - momentum) / (1 + step / 50) * exchange(replica, by, own, step)
            if not feedback:
                for kept in by.kept.values():
                    kept.zero_()
        return float((x - best).norm() / best.norm())

    return run_ranks(size, body)[0]


NEAR = {
    "none": 1e-5,
    "bf16": 1e-3,
    "int8": 1e-3,
    "int4": 0.01,
    "powersgd": 1e-4,
    "topk": 0.15,
    "topk-momentum": 0.1,
}


@pytest.mark.parametrize("name", SPECS)
def test_it_comes_to_the_optimum_of_a_convex_problem(name: str) -> None:
    assert descend(SPECS[name]) < NEAR[name]


@pytest.mark.parametrize("name", ["int4", "powersgd", "topk"])
def test_without_what_was_left_out_it_would_end_elsewhere(name: str) -> None:
    assert descend(SPECS[name], feedback=False) > 2 * descend(SPECS[name])


def test_a_kind_of_another_package_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))
    compression = {"name": "phalanx_extras.compression:SIGN"}
    strategy = {"name": "allreduce", "compression": compression}
    job = job_from_mapping({"strategy": strategy, "workers": 2})
    assert (job.strategy.effect, job.strategy.label()) == ("lossy", "allreduce, SIGN")
    assert job_from_mapping(to_mapping(job)) == job
    spec = job.strategy.compression  # type: ignore[attr-defined]
    assert descend(spec) < 0.2
