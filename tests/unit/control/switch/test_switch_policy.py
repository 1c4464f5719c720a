"""When to switch by itself: each gate by hand, and what watches over the switch afterwards."""

from __future__ import annotations

import math

import msgspec
import pytest

from phalanx.control.switch.switch_policy import Canary, SwitchPolicy, expected_gain
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.switch import AutoSpec, PhaseStrategy
from phalanx.wire.switch import WindowReport

ASYNC = ParameterServerSpec(servers="colocated", dispatch="dynamic")
# Two workers, one of half the speed; 1000 samples a second of window, noise far above signal.
OPEN = WindowReport(
    samples=50_000,
    epoch=5,
    step_s=0.1,
    compute_s=(0.4, 0.9),
    exchange_s=(0.6, 0.1),
    num_samples=(500, 500),
    noise=100_000.0,
    signal=1.0,
    loss=0.5,
    lr=0.01,
)


def policy(after: PhaseStrategy = ASYNC, **settings: object) -> SwitchPolicy:
    return SwitchPolicy(
        AutoSpec.model_validate({"windows": 1} | settings),
        after=after,
        peak_lr=0.1,
        total_samples=100_000,
        global_batch=100,
        warmup=0.0,
    )


def changed(**fields: object) -> WindowReport:
    return msgspec.structs.replace(OPEN, **fields)


def test_all_gates_open() -> None:
    outlook = policy().consider(OPEN)
    assert outlook.closed == ()
    assert outlook.ready
    assert outlook.rel_lr == pytest.approx(0.1)
    # Noise over signal in samples, then in global batches of 100.
    assert outlook.noise_batches == pytest.approx(1000)
    # Now 1000 samples take 0.9 + 0.1 s. Each for itself: 500 in 0.5 s and 500 in 1.0 s.
    assert outlook.gain == pytest.approx(1.5)
    # 50,000 samples are left, 50 s of them at 1000 a second.
    assert outlook.saved_s == pytest.approx(50 * (1 - 1 / 1.5))


@pytest.mark.parametrize(
    ("window", "settings", "reason"),
    [
        (changed(samples=2_999), {}, "it is too early"),
        (changed(lr=0.021), {}, "the learning rate is above 20% of its peak"),
        (changed(noise=199.0), {}, "the gradient noise scale is below 2 global batches"),
        (changed(noise=-1.0), {}, "the gradient noise scale is below 2 global batches"),
        (OPEN, {"gain": 1.6}, "the gain is below 1.60x"),
        (changed(samples=99_900), {}, "it saves less than 0.8 s"),
    ],
)
def test_each_gate_closes_alone(
    window: WindowReport, settings: dict[str, object], reason: str
) -> None:
    outlook = policy(**settings).consider(window)
    assert outlook.closed == (reason,)
    assert not outlook.ready


def test_nothing_but_noise_opens_the_gate() -> None:
    assert policy().consider(changed(signal=-0.5)).noise_batches == math.inf
    assert policy().consider(changed(signal=-0.5)).ready


def test_gates_must_be_open_in_several_windows_in_a_row() -> None:
    moment = policy(windows=3)
    shut = changed(lr=0.1)
    ready = [moment.consider(one).ready for one in (OPEN, OPEN, shut, OPEN, OPEN, OPEN, OPEN)]
    assert ready == [False, False, False, False, False, True, True]


def test_warm_up_counts_as_too_early() -> None:
    moment = SwitchPolicy(
        AutoSpec(windows=1), after=ASYNC, peak_lr=0.1, total_samples=100_000, global_batch=100,
        warmup=0.6,
    )  # fmt: skip
    assert moment.consider(OPEN).closed == ("it is too early",)


def test_after_a_rollback_more_gain_is_asked_for() -> None:
    moment = policy(gain=1.2)
    assert moment.consider(OPEN).ready
    moment.demand_more()
    assert moment.required_gain == pytest.approx(1.4)
    assert moment.consider(OPEN).ready
    moment.demand_more()
    assert moment.consider(OPEN).closed == ("the gain is below 1.80x",)


def test_a_slow_switch_must_save_more() -> None:
    moment = policy()
    moment.switch_s = 10.0
    assert moment.consider(OPEN).closed == ("it saves less than 30.0 s",)


def test_noise_is_averaged_over_windows() -> None:
    moment = policy()
    for _ in range(60):
        outlook = moment.consider(changed(noise=500.0, signal=1.0))
    assert outlook.noise_batches == pytest.approx(5.0)
    # A tenth of one window that says a hundred times as much.
    assert moment.consider(changed(noise=50_000.0)).noise_batches == pytest.approx(54.5, rel=0.01)


@pytest.mark.parametrize(
    ("after", "gain"),
    [
        (ASYNC, 1.5),
        (ParameterServerSpec(consistency="bsp"), 1.0),
        (AllreduceSpec(), 1.0),
        # The slowest computes 0.9 s and pays a quarter of 0.1 s for exchanges.
        (LocalSgdSpec(every=4), 1.0 / 0.925),
    ],
)
def test_expected_gain_by_hand(after: PhaseStrategy, gain: float) -> None:
    assert expected_gain(OPEN, after) == pytest.approx(gain)


def test_equal_workers_gain_nothing_from_going_alone() -> None:
    even = changed(compute_s=(0.9, 0.9), exchange_s=(0.1, 0.1))
    assert expected_gain(even, ASYNC) == pytest.approx(1.0)
    assert expected_gain(changed(compute_s=(0.0, 0.0), exchange_s=(0.0, 0.0)), ASYNC) == 1.0


def canary(**settings: object) -> Canary:
    spec = AutoSpec.model_validate(settings)
    return Canary(spec, baseline=0.4, begin=50_000, total_samples=100_000)


def test_the_canary_looks_once_enough_has_been_seen() -> None:
    watch = canary()
    for _ in range(24):
        watch.count(90.0, 100)
    assert watch.alarm is None
    assert not watch.is_over
    watch.count(90.0, 100)
    assert watch.is_over
    assert watch.alarm == (
        "the training loss is 0.9 after the switch, above 1.5 times the 0.4 before it"
    )


@pytest.mark.parametrize(("loss", "alarms"), [(0.59, False), (0.61, True), (math.nan, True)])
def test_the_canary_compares_with_the_loss_before(loss: float, alarms: bool) -> None:
    watch = canary()
    watch.count(0.0, 0)
    for _ in range(50):
        watch.count(100 * loss, 100)
    assert (watch.alarm is not None) is alarms


def test_a_shock_that_has_passed_by_then_is_no_alarm() -> None:
    watch = canary()
    for number in range(100):
        watch.count(50.0 if number < 30 else 7.5, 25)
    assert watch.is_over
    assert watch.alarm is None


def test_without_a_threshold_there_is_no_alarm() -> None:
    watch = canary(canary=None)
    for _ in range(50):
        watch.count(math.inf, 100)
    assert watch.is_over
    assert watch.alarm is None
