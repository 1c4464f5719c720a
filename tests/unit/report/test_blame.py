from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.records.events import Clock, Stall, Step
from phalanx.report.blame import PHASES, Blame, Round, blame_rounds, charge, make_rounds

seconds = st.floats(min_value=0, max_value=1e6)


def step(number: int, **times: Any) -> Step:
    fields = dict.fromkeys(("input_s", "forward_s", "backward_s", "exchange_s", "apply_s"), 0.0)
    fields |= {key: value for key, value in times.items() if key in fields}
    rest = {key: value for key, value in times.items() if key not in fields}
    return Step(
        **{"epoch": 0, "sent_bytes": 8} | rest,
        step=number,
        num_samples=1,
        loss_sum=1.0,
        num_correct=0,
        lr=0.1,
        **fields,
    )


def blame(*workers: list[Any]) -> Blame:
    return blame_rounds(make_rounds(dict(enumerate(workers))), ranks=range(len(workers)))


def test_the_slow_phase_of_the_last_worker_is_charged() -> None:
    # Rank 2 is late by 3.5 s against rank 0 and 2.5 s against rank 1: 1.5 s of it in input (others
    # spend 1 s, it spends 2.5) and 1.5 s in backward (others 2.5 s on average, it 4).
    found = blame(
        [step(1, input_s=1, forward_s=1, backward_s=2, exchange_s=3.5)],
        [step(1, input_s=1, forward_s=1, backward_s=3, exchange_s=2.5)],
        [step(1, input_s=2.5, forward_s=1, backward_s=4, exchange_s=0.5)],
    )
    # a = 4, 5, 7.5; waiting 3, 2, 0; lateness 3.5 and 2.5 explain all of it.
    assert found.rounds == 1
    assert found.waiting_s == found.blamed_s == 5.0
    worst = found.ranks[0]
    assert (worst.rank, worst.cost_s, worst.rounds_last, worst.waited_s) == (2, 5.0, 1, 0.0)
    assert worst.phases == {"input": 2.5, "backward": 2.5}
    assert [one.waited_s for one in found.ranks[1:]] == [3.0, 2.0]


def test_waiting_that_lateness_does_not_explain_stays_unblamed() -> None:
    found = blame(
        [step(1, forward_s=1, exchange_s=10)],
        [step(1, forward_s=1.5, exchange_s=1)],
    )
    assert (found.waiting_s, found.blamed_s) == (9.0, 0.5)
    assert found.ranks[0].phases == {"forward": 0.5}


def test_applying_and_the_time_between_steps_count_for_the_next_exchange() -> None:
    fast = [
        step(1, forward_s=1, exchange_s=1, apply_s=1, mono_s=10.0),
        step(2, forward_s=1, exchange_s=6, apply_s=1, mono_s=18.0),
    ]
    slow = [
        step(1, forward_s=1, exchange_s=1, apply_s=3, mono_s=10.0),
        # Of the 9 s since the last stamp 6 are its own; 3 went by between the steps.
        step(2, forward_s=1, exchange_s=4, apply_s=1, mono_s=19.0),
    ]
    found = blame(fast, slow)
    assert (found.waiting_s, found.blamed_s) == (2.0, 2.0)
    # Behind by 2 s in applying and by 3 s in between.
    assert found.ranks[0].phases == pytest.approx({"apply": 0.8, "other": 1.2})


def test_steps_without_an_exchange_add_up_to_the_next_one() -> None:
    fast = [step(1, forward_s=1, sent_bytes=0), step(2, forward_s=1, exchange_s=4)]
    slow = [step(1, forward_s=3, sent_bytes=0), step(2, forward_s=2, exchange_s=1)]
    found = blame(fast, slow)
    assert (found.rounds, found.ranks[0].rank, found.blamed_s) == (1, 1, 3.0)


def test_the_end_of_an_epoch_is_an_exchange_too() -> None:
    def worker(apply_s: float, settle_s: float) -> list[Any]:
        end = Stall(epoch=0, what="settle", duration_s=settle_s)
        return [step(1, apply_s=apply_s), end]

    found = blame(worker(1.0, 5.0), worker(3.0, 3.0))
    assert (found.rounds, found.waiting_s) == (2, 2.0)
    assert found.ranks[0].phases == {"apply": 2.0}


def test_a_step_that_a_resumed_run_repeats_is_compared_within_its_attempt() -> None:
    again = Clock(offset_s=0.0, error_s=1.0, attempt=2)
    found = blame(
        [step(7, forward_s=1, exchange_s=2), again, step(7, forward_s=5, exchange_s=1)],
        [step(7, forward_s=2, exchange_s=1), again, step(7, forward_s=1, exchange_s=5)],
    )
    assert found.rounds == 2
    assert [(one.rank, one.cost_s) for one in found.ranks] == [(0, 4.0), (1, 1.0)]


def test_servers_say_how_long_they_held_a_worker_back() -> None:
    fast = [step(n, forward_s=1, exchange_s=3, wait_s=2.0) for n in (1, 3, 5)]
    slow = [step(n, forward_s=2.5, exchange_s=1, wait_s=0.0) for n in (2, 4)]
    found = blame(fast, slow)
    # Three steps, each held for 2 s, of which 1.5 s of lateness per step explain 4.5.
    assert (found.rounds, found.waiting_s, found.blamed_s) == (1, 6.0, 4.5)
    assert found.ranks[0].phases == {"forward": 4.5}


def test_one_worker_has_nobody_to_blame() -> None:
    found = blame([step(1, forward_s=1), step(2, forward_s=9)])
    assert (found.rounds, found.blamed_s, found.ranks[0].cost_s) == (0, 0.0, 0.0)


@st.composite
def some_round(draw: st.DrawFn) -> Round:
    size = draw(st.integers(2, 5))
    own = st.tuples(*[seconds] * len(PHASES))
    return Round(
        ranks=list(range(size)),
        own_s=draw(st.lists(own, min_size=size, max_size=size)),
        waited_s=draw(st.lists(seconds, min_size=size, max_size=size)),
        weights=draw(st.lists(st.floats(0, 1e3), min_size=size, max_size=size)),
    )


@given(some_round())
def test_blame_never_exceeds_waiting_and_is_split_without_loss(one: Round) -> None:
    found = charge(one)
    assert 0 <= found.cost_s <= sum(one.waited_s) * (1 + 1e-12)
    assert sum(found.phases_s) == pytest.approx(found.cost_s, abs=1e-9)
    assert all(part >= 0 for part in found.phases_s)


@given(st.lists(some_round(), max_size=5))
def test_blamed_seconds_never_exceed_all_waiting(rounds: list[Round]) -> None:
    found = blame_rounds(rounds)
    assert found.blamed_s <= found.waiting_s * (1 + 1e-9)
    assert found.rounds == len(rounds)
