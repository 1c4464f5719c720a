"""What predictions must hold for, over random machines and all strategies."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phalanx.plan.facts import ClusterModel, ModelFacts
from phalanx.plan.predict import predict
from phalanx.plan.result import Prediction
from phalanx.spec.compression import (
    Bf16Spec,
    CompressionSpec,
    Int4Spec,
    Int8Spec,
    PowerSgdSpec,
    TopKSpec,
    WholeSpec,
)
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec, SingleSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import SwitchSpec
from support.worlds import GIB, even, machine, on_machines, world

STRATEGIES: list[StrategySpec] = [
    AllreduceSpec(),
    AllreduceSpec(compression="bf16"),
    LocalSgdSpec(),
    ParameterServerSpec(dispatch="dynamic"),
    ParameterServerSpec(servers="colocated", dispatch="dynamic"),
    ParameterServerSpec(consistency="ssp", servers=2),
    ParameterServerSpec(consistency="bsp", servers=2),
    ParameterServerSpec(consistency="bsp", servers="colocated"),
    ParameterServerSpec(consistency="k_sync", k=2),
    ParameterServerSpec(consistency="k_async", k=2),
]
strategies = st.sampled_from(STRATEGIES)
sizes = st.integers(2, 12)


def predicted(candidate_size: int, strategy: StrategySpec, where: ClusterModel) -> Prediction:
    found = predict(on_machines(candidate_size, strategy), where)
    assert isinstance(found, Prediction)
    return found


def changed(where: ClusterModel, name: str, **fields: object) -> ClusterModel:
    machines = dict(where.machines)
    machines[name] = msgspec.structs.replace(machines[name], **fields)
    return msgspec.structs.replace(where, machines=machines)


@pytest.mark.parametrize(
    "compression",
    [WholeSpec(), Bf16Spec(), Int8Spec(), Int4Spec(), PowerSgdSpec(), TopKSpec()],
    ids=lambda spec: spec.name,
)
def test_a_compressed_step_sends_what_its_spec_says_and_is_no_faster_than_the_link(
    compression: CompressionSpec,
) -> None:
    shapes = ((128, 9216), (128,), (10, 128), (10,))
    where = even(4, bandwidth=1e7)
    model = ModelFacts(num_parameters=sum(map(math.prod, shapes)), shapes=shapes)
    where = msgspec.structs.replace(where, model=model)
    sent = 2 * 3 / 4 * compression.summed_bytes(shapes, 4)
    for every, strategy in (
        (1, AllreduceSpec(compression=compression)),
        (8, LocalSgdSpec(compression=compression, average_moments=False)),
    ):
        found = predicted(4, strategy, where)
        assert found.sent_bytes_per_step == pytest.approx(sent / every)
        assert found.step_s.value >= sent / every / 1e7


@given(strategies, sizes, st.floats(1e6, 1e9), st.floats(1.0, 20.0), st.integers(10_000, 10**7))
@example(ParameterServerSpec(consistency="ssp", servers=2), 3, 719427469.0, 13.0, 7714195)
def test_more_bandwidth_is_never_slower(
    strategy: StrategySpec, size: int, bandwidth: float, more: float, parameters: int
) -> None:
    slow = even(size, bandwidth=bandwidth, num_parameters=parameters)
    fast = even(size, bandwidth=bandwidth * more, num_parameters=parameters)
    before, after = predicted(size, strategy, slow), predicted(size, strategy, fast)
    assert after.step_s.value <= before.step_s.value * (1 + 1e-9)


@given(strategies, sizes, st.floats(0.2, 1.0))
def test_a_faster_machine_is_never_slower(strategy: StrategySpec, size: int, share: float) -> None:
    before = even(size)
    faster = before.machines["m0"].fits[0].scaled(share)
    after = changed(before, "m0", fits=(faster,))
    first, second = predicted(size, strategy, before), predicted(size, strategy, after)
    # Unequal workers at servers that are the bottleneck are solved approximately.
    slack = 1e-2 if isinstance(strategy, ParameterServerSpec) else 1e-9
    assert second.step_s.value <= first.step_s.value * (1 + slack)


@given(strategies, sizes, st.floats(0.01, 5.0), st.floats(0.0, 5.0))
def test_cost_grows_with_price(
    strategy: StrategySpec, size: int, price: float, more: float
) -> None:
    where = even(size)
    for name in where.machines:
        where = changed(where, name, price_per_hour=price)
    dearer = changed(where, "m0", price_per_hour=price + more)
    first, second = predicted(size, strategy, where), predicted(size, strategy, dearer)
    assert first.cost is not None
    assert second.cost is not None
    assert second.cost.value >= first.cost.value
    # All machines are paid for as long as it takes.
    seats = len(on_machines(size, strategy).seats)
    assert first.cost.value == pytest.approx(seats * price * first.total_s.value / 3600)


@given(strategies, sizes)
def test_values_lie_in_their_intervals(strategy: StrategySpec, size: int) -> None:
    found = predicted(size, strategy, even(size))
    for interval in (found.step_s, found.samples_per_s, found.train_s, found.total_s):
        assert 0 < interval.low <= interval.value <= interval.high
    assert found.samples_per_s.value * found.step_s.value == pytest.approx(64 * size)


def test_parts_add_up_to_the_step() -> None:
    for strategy in STRATEGIES[:3]:
        found = predicted(4, strategy, even(4))
        assert found.parts.total_s == pytest.approx(found.step_s.value)


def test_one_worker_alone_by_hand() -> None:
    where = world([machine("m0")], global_batch=64, startup_s=5.0, warm_up_s=0.0, checkpoint_s=0.0)
    found = predicted(1, SingleSpec(), where)
    # 10 ms fixed, 64 samples at 1 ms, 1 ms to update.
    assert found.step_s.value == pytest.approx(0.075)
    assert found.train_s.value == pytest.approx(100_000 / 64 * 0.075)
    assert found.total_s.value == pytest.approx(found.train_s.value + 5.0)


def test_a_switch_is_the_mix_of_its_phases() -> None:
    where = even(4)
    phase = ParameterServerSpec(servers="colocated", dispatch="dynamic")
    before = predicted(4, AllreduceSpec(), where).step_s.value
    after = predicted(4, phase, where).step_s.value
    mixed = predicted(4, SwitchSpec(at=0.25), where).step_s.value
    assert mixed == pytest.approx(0.25 * before + 0.75 * after, rel=0.05)


def test_longer_averaging_intervals_exchange_less() -> None:
    where = even(8, bandwidth=1e7)
    steps = [predicted(8, LocalSgdSpec(every=every), where).step_s.value for every in (1, 4, 16)]
    assert steps == sorted(steps, reverse=True)


def test_staleness_of_async_is_one_push_of_everybody_else() -> None:
    found = predicted(5, ParameterServerSpec(dispatch="dynamic"), even(5))
    assert found.staleness == 4


def test_what_does_not_fit_is_refused_with_figures() -> None:
    where = world([machine("m0", memory_bytes=GIB // 4)], num_parameters=50_000_000)
    found = predict(on_machines(1, SingleSpec()), where)
    assert isinstance(found, str)
    assert found == "needs 1.1 GiB on m0, which has 0.2 GiB free"


def test_a_batch_too_small_for_all_is_refused() -> None:
    found = predict(on_machines(2, AllreduceSpec(), batch=0), even(2))
    assert isinstance(found, str)
    assert "without a sample" in found


def test_an_unknown_precision_is_refused() -> None:
    candidate = msgspec.structs.replace(on_machines(1, SingleSpec()), precision="bf16")
    assert predict(candidate, even(1)) == "nothing is known of bf16 on m0"
