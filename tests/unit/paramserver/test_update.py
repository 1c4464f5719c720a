from __future__ import annotations

import math

import pytest
import torch

from phalanx.consistency.policy import ConsistencyPolicy, PushMember, Update
from phalanx.consistency.rule import ConsistencyRule
from phalanx.consistency.shards import plan_shards
from phalanx.engine.layout import FlatLayout, Slot
from phalanx.engine.optimizer_factory import OptimizerFactory
from phalanx.paramserver.compression import Received
from phalanx.paramserver.shard import PushedSegment, Shard
from phalanx.paramserver.update import Contribution, DelayCompensation, SliceUpdater, StepSize
from phalanx.spec.optimize import AdamSpec, SgdSpec
from phalanx.wire.bulk import Kind

LAYOUT = plan_shards(10, num_servers=1, segment_bytes=16)


def pushed(values: torch.Tensor, weight: float = 1.0, worker: int = 0) -> Contribution:
    return Contribution(worker, Received(Kind.F32, values.clone(), values.numel()), weight)


def updater(parameters: torch.Tensor, **fields: object) -> SliceUpdater:
    return SliceUpdater(OptimizerFactory(SgdSpec(lr=1.0)), parameters, LAYOUT.segments, **fields)  # type: ignore[arg-type]


def test_unequal_shares_give_the_mean_over_all_samples() -> None:
    slices = updater(torch.zeros(10))
    size = LAYOUT.segments[0].size
    ones, threes = torch.ones(size), torch.full((size,), 3.0)
    # 1 sample with gradient 1 and 3 samples with gradient 3, pushed as sum over the global batch.
    gradient = slices.combine(0, [pushed(ones * 0.25, 0.25), pushed(threes * 0.75, 0.75)])
    assert gradient is not None
    assert gradient.tolist() == [2.5] * size
    # One of the two is missing: still a mean, of what is there.
    gradient = slices.combine(0, [pushed(threes * 0.75, 0.75)])
    assert gradient is not None
    assert gradient.tolist() == [3.0] * size


def test_workers_without_samples_do_not_count() -> None:
    slices = updater(torch.zeros(10))
    size = LAYOUT.segments[0].size
    assert slices.combine(0, [Contribution(0, None, 0.0)]) is None
    gradient = slices.combine(0, [Contribution(0, None, 0.0), pushed(torch.ones(size))])
    assert gradient is not None
    assert gradient.tolist() == [1.0] * size


def test_segments_move_as_the_whole_buffer_would() -> None:
    spec = AdamSpec(lr=0.1, l2=0.01)
    shapes = {"scale": (0, (1,)), "first": (1, (5, 1)), "bias": (6, (2,)), "last": (8, (1, 2))}
    places = tuple(
        Slot(name, shape, start, start + math.prod(shape), channels_last=False)
        for name, (start, shape) in shapes.items()
    )
    factory = OptimizerFactory(spec, FlatLayout(places))
    start = torch.randn(10, generator=torch.Generator().manual_seed(1))
    whole, cut = start.clone(), start.clone()
    reference = factory.build(whole)
    slices = SliceUpdater(factory, cut, LAYOUT.segments)
    for step in range(5):
        gradient = torch.randn(10, generator=torch.Generator().manual_seed(step))
        reference.step(gradient.clone(), 0.1)
        for index, part in enumerate(slices.parts):
            combined = slices.combine(index, [pushed(gradient[part])])
            assert combined is not None
            slices.move(index, combined, 0.1)
    # Not bit by bit: fused kernels round the last few entries of a tensor in another way.
    assert torch.allclose(whole, cut, rtol=1e-6, atol=1e-7)
    state = slices.state()
    assert all(torch.allclose(state[key], value) for key, value in reference.state().items())
    other = SliceUpdater(factory, cut.clone(), LAYOUT.segments)
    other.load_state(state)
    assert all(torch.equal(other.state()[key], value) for key, value in state.items())


def rate(
    scaling: str, rule: ConsistencyRule, staleness: list[int], workers: int = 4
) -> list[float]:
    sizes = StepSize(lambda _: 1.0, scaling=scaling, rule=rule)  # type: ignore[arg-type]
    return [
        sizes.of(Update(i + 1, (PushMember(0, tau, 1),)), samples_seen=0, num_workers=workers)
        for i, tau in enumerate(staleness)
    ]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ConsistencyRule(), 0.25),
        (ConsistencyRule(gather=2), 0.5),
        (ConsistencyRule(gather=8), 1.0),
        (ConsistencyRule(gather=None, barrier=True), 1.0),
        (ConsistencyRule(gather=None, spare=1, barrier=True), 0.75),
    ],
)
def test_by_workers_makes_a_sample_count_as_under_bsp(
    rule: ConsistencyRule, expected: float
) -> None:
    assert rate("by_workers", rule, [3]) == [expected]
    assert rate("none", rule, [3]) == [1.0]


def test_by_staleness_shortens_only_the_steps_of_outliers() -> None:
    usual, *_, outlier, after = rate("by_staleness", ConsistencyRule(), [3] * 50 + [30, 3])
    assert usual == 0.25
    assert 0.02 < outlier < 0.03
    assert after == 0.25


def test_the_rate_follows_samples_seen() -> None:
    sizes = StepSize(lambda samples: 1.0 / (1 + samples), scaling="none", rule=ConsistencyRule())
    update = Update(1, (PushMember(0, 0, 1),))
    assert sizes.of(update, samples_seen=3, num_workers=1) == 0.25


def test_delay_compensation_follows_its_formula() -> None:
    parameters = torch.tensor([1.0, 2.0])
    correction = DelayCompensation(parameters, adaptive=False, strength=0.5)
    part = slice(0, 2)
    correction.remember(0, part)
    parameters.add_(torch.tensor([0.5, -1.0]))
    gradient = torch.tensor([2.0, 3.0])
    correction.correct(0, part, gradient)
    assert gradient.tolist() == [2 + 0.5 * 4 * 0.5, 3 + 0.5 * 9 * -1.0]
    fresh = torch.tensor([2.0, 3.0])
    correction.remember(0, part)
    correction.correct(0, part, fresh)
    assert fresh.tolist() == [2.0, 3.0], "a gradient on the newest parameters needs no correction"


def test_adaptive_delay_compensation_divides_by_the_root_mean_square() -> None:
    parameters = torch.tensor([1.0])
    correction = DelayCompensation(parameters, adaptive=True, strength=2.0)
    correction.remember(0, slice(0, 1))
    parameters.add_(0.5)
    gradient = torch.tensor([2.0])
    correction.correct(0, slice(0, 1), gradient)
    assert gradient.item() == pytest.approx(2 + 2 / (0.05 * 4 + 1e-7) ** 0.5 * 4 * 0.5)


def weight(rule: ConsistencyRule, samples: list[int], workers: int = 4) -> float:
    sizes = StepSize(lambda _: 1.0, scaling="by_workers", rule=rule, push_samples=32.0)
    members = tuple(PushMember(worker, 0, count) for worker, count in enumerate(samples))
    return sizes.weight_of(Update(1, members), num_workers=workers)


@pytest.mark.parametrize("rule", [ConsistencyRule(), ConsistencyRule(lead=2)])
def test_an_update_of_few_samples_weighs_less(rule: ConsistencyRule) -> None:
    assert weight(rule, [32]) == 1.0
    assert weight(rule, [6]) == 6 / 32
    assert sum(weight(rule, [count]) for count in (100, 28)) == 4.0, "unequal shares add up"


def test_updates_of_several_gradients_weigh_by_the_samples_of_all() -> None:
    assert weight(ConsistencyRule(gather=2), [32, 32]) == 1.0
    assert weight(ConsistencyRule(gather=2), [32, 6]) == 38 / 64
    assert weight(ConsistencyRule(gather=2), [32]) == 0.5, "flushed before the second came"


def test_an_update_of_all_workers_weighs_one_as_a_single_process_would_have_it() -> None:
    everybody = ConsistencyRule(gather=None, fresh=True, barrier=True)
    assert weight(everybody, [6, 6, 6, 6]) == 1.0
    assert weight(ConsistencyRule(), [0]) == 1.0, "a repeated batch brings no samples"


def test_the_last_samples_of_an_epoch_move_the_parameters_by_their_number() -> None:
    """Four pushes of 6 samples move as far as 24 of the samples of full pushes, not as 128."""

    def moved(*pushes: int) -> float:
        rule = ConsistencyRule()
        shard = Shard(
            LAYOUT.segments,
            updater=updater(torch.zeros(10)),
            policy=ConsistencyPolicy(rule, range(4)),
            step_size=StepSize(lambda _: 1.0, scaling="by_workers", rule=rule, push_samples=32.0),
        )
        for worker in range(4):
            shard.enter(worker, clock=0)
        for worker, count in enumerate(pushes):
            for index, segment in enumerate(LAYOUT.segments):
                # The gradient of every sample is 1.
                gradient = pushed(torch.full((segment.size,), count / 128)).gradient
                shard.deliver(
                    PushedSegment(
                        worker, 1, 0, index, gradient, weight=count / 128, num_samples=count
                    )
                )
        return -float(shard.updater.parameters[0])

    assert moved(32, 32, 32, 32) == pytest.approx(1.0)
    assert moved(6, 6, 6, 6) == pytest.approx(24 / 128)
