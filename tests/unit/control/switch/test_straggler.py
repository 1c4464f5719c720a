"""Slow machines: uneven batches, a looser strategy, back again, and never to and fro."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.control.switch.straggler import StragglerPolicy
from phalanx.control.switch.transition import PhaseTransition
from phalanx.spec.switch import StragglerSpec


def policy(num_workers: int = 3, **settings: object) -> StragglerPolicy:
    return StragglerPolicy(StragglerSpec.model_validate(settings), num_workers=num_workers)


def window(
    straggler: StragglerPolicy, slowness: Sequence[float], step_s: float = 0.0
) -> PhaseTransition | None:
    """Workers of so many times the usual time per sample do their shares of a batch.

    Args:
        straggler: Watches them.
        slowness: By rank.
        step_s: What a step costs whatever its size, where a sample usually takes a second.
    """
    counts = [round(100 * share) for share in straggler._shares]
    times = [one * (count + step_s) for one, count in zip(slowness, counts, strict=True)]
    return straggler.consider(times, counts)


def feed(
    straggler: StragglerPolicy, slowness: float, windows: int, step_s: float = 0.0
) -> list[PhaseTransition]:
    """Windows in which worker 2 is slow."""
    answers = [window(straggler, [1.0, 1.0, slowness], step_s) for _ in range(windows)]
    return [answer for answer in answers if answer is not None]


def test_uneven_batches_first_and_even_ones_again() -> None:
    straggler = policy()
    assert feed(straggler, 2.0, 2) == []
    [reshare] = feed(straggler, 2.0, 5)
    assert (reshare.kind, reshare.shares) == ("reshare", (1.2, 1.2, 0.6))
    assert reshare.cause == "worker-2 takes 2.00 times the median time per sample"
    assert feed(straggler, 1.0, 2) == []
    [back] = feed(straggler, 1.0, 5)
    assert (back.kind, back.shares) == ("reshare", (1.0, 1.0, 1.0))
    assert back.cause.startswith("recovered: ")


def test_beyond_uneven_batches_a_looser_strategy_and_back() -> None:
    straggler = policy()
    found = feed(straggler, 5.0, 20)
    assert [one.kind for one in found] == ["reshare", "loosen"]
    # Batches are handed out one by one from now on, and all are equal.
    assert found[-1].shares == (1.0, 1.0, 1.0)
    assert feed(straggler, 2.0, 20) == []
    [back] = feed(straggler, 1.0, 20)
    assert (back.kind, back.shares) == ("return", (1.0, 1.0, 1.0))


def test_uneven_batches_stay_where_nothing_is_handed_out() -> None:
    straggler = policy(loosen_to={"name": "parameter_server", "dispatch": "static"})
    reshare, loosen = feed(straggler, 5.0, 20)
    assert loosen.shares == reshare.shares


def test_recovery_is_seen_whatever_a_step_costs_besides_its_samples() -> None:
    straggler = policy()
    assert [one.kind for one in feed(straggler, 12.0, 20, step_s=20)] == ["reshare", "loosen"]
    [back] = feed(straggler, 1.0, 5, step_s=20)
    assert back.kind == "return"


def test_without_uneven_batches_it_loosens_at_once() -> None:
    straggler = policy(reshare=False)
    assert [one.kind for one in feed(straggler, 1.5, 10)] == ["loosen"]


def test_uneven_batches_alone() -> None:
    straggler = policy(loosen_above=None)
    assert [one.kind for one in feed(straggler, 50.0, 30)] == ["reshare"]
    assert feed(policy(reshare=False, loosen_above=None), 50.0, 30) == []


def test_what_is_slow_and_what_has_recovered_do_not_touch() -> None:
    straggler = policy(slow=1.4)
    assert feed(straggler, 1.39, 30) == []
    assert len(feed(straggler, 1.5, 10)) == 1
    # Between 1.2 and 1.4 it is neither: nothing is undone, and nothing is done anew.
    assert feed(straggler, 1.25, 30) == []
    assert len(feed(straggler, 1.19, 10)) == 1


def test_a_window_without_work_says_nothing() -> None:
    straggler = policy(windows=1)
    assert straggler.consider([1.0, 0.0, 9.0], [10, 0, 10]) is None
    assert policy(num_workers=1).consider([1.0], [10]) is None


def test_recovery_is_seen_however_much_a_step_costs() -> None:
    """With little to do, the cost of a step alone makes a worker look slow per sample."""
    straggler = policy(loosen_above=None)
    shares = [one.shares[2] for one in feed(straggler, 4.0, 30, step_s=40.0)]
    # Towards steps of equal length, and no further than what leaves a change for undoing.
    assert len(shares) == 3
    assert 0.5 > shares[0] > shares[1] > shares[2] > 0.1
    [even] = feed(straggler, 1.0, 3, step_s=40.0)
    assert even.shares == (1.0, 1.0, 1.0)


def test_the_last_change_is_kept_for_undoing() -> None:
    straggler = policy(max_changes=2)
    assert [one.kind for one in feed(straggler, 9.0, 50)] == ["reshare"]
    assert [one.kind for one in feed(straggler, 1.0, 50)] == ["reshare"]
    assert feed(straggler, 9.0, 50) == []


@given(
    periods=st.lists(st.tuples(st.integers(1, 8), st.floats(1.0, 20.0)), max_size=30),
    settings=st.fixed_dictionaries(
        {"windows": st.integers(1, 4), "max_changes": st.integers(2, 6), "reshare": st.booleans()}
    ),
)
def test_a_machine_that_comes_and_goes_never_makes_the_run_flap(
    periods: Sequence[tuple[int, float]], settings: dict[str, int]
) -> None:
    straggler = policy(**settings)
    changes: list[PhaseTransition] = []
    since = settings["windows"]
    for length, slowness in periods:
        for _ in range(length):
            answer = window(straggler, [1.0, slowness, 1.0])
            since += 1
            if answer is not None:
                assert since >= settings["windows"], "two changes closer than the windows"
                changes.append(answer)
                since = 0
    assert len(changes) <= settings["max_changes"]
    loose = False
    for change in changes:
        assert (change.kind == "loosen") <= (not loose)
        assert (change.kind == "return") <= loose
        loose = change.kind == "loosen" or (loose and change.kind != "return")
    # Whatever has been done, a machine that stays well is answered with even batches.
    restored = [a for a in (window(straggler, [1.0] * 3) for _ in range(20)) if a is not None]
    if any(change.kind != "return" for change in changes[-1:]) and restored:
        assert restored[-1].shares == (1.0, 1.0, 1.0)
    assert not straggler._loose
    assert straggler._shares == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("period", [1, 2])
def test_oscillation_faster_than_the_windows_is_ignored(period: int) -> None:
    straggler = policy(windows=3)
    for _ in range(50):
        assert feed(straggler, 10.0, period) == []
        assert feed(straggler, 1.0, period) == []
