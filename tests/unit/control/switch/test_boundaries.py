"""Where phases begin: whole steps, by share, epoch and decay."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.control.switch.boundaries import boundary, limit_at
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.switch import PhaseSpec, SwitchSpec
from phalanx.wire.switch import StepLimit


def planned(num_samples: int = 1000, **moment: Any) -> StepLimit | None:
    fields = {
        "workers": 2,
        "epochs": 10,
        "batch": {"global": 300},
        "schedule": {"name": "milestones", "at_epochs": [3, 6]},
    }
    job = job_from_mapping(fields | {"strategy": {"name": "switch", **moment}})
    assert isinstance(job.strategy, SwitchSpec)
    phase: PhaseSpec = job.strategy.resolved[1]
    return boundary(phase, job, num_samples=num_samples)


@pytest.mark.parametrize(
    ("moment", "limit"),
    [
        ({"at": 0.5}, StepLimit(5, 0)),
        ({"at": 0.55}, StepLimit(5, 2)),  # 500 samples in: after the batches of 300 and 600
        ({"at": 0.03}, StepLimit(0, 1)),  # exactly one batch
        ({"at": 0.0301}, StepLimit(0, 2)),
        ({"at": 0.0901}, StepLimit(1, 0)),  # in the last batch, of 100: with the next epoch
        ({"at": 0.9999}, StepLimit(10, 0)),  # never
        ({"at": 0.7}, StepLimit(7, 0)),  # 0.7 is not exact in binary
        ({"epoch": 2}, StepLimit(2, 0)),
        ({"epoch": 2.25}, StepLimit(2, 1)),
        ({"lr_drop": 1}, StepLimit(3, 0)),
        ({"lr_drop": 2}, StepLimit(6, 0)),
        ({"at": "auto"}, None),
    ],
)
def test_moments_in_whole_steps(moment: dict[str, Any], limit: StepLimit | None) -> None:
    assert planned(**moment) == limit


def test_decays_by_share_count_all_samples() -> None:
    schedule = {"name": "milestones", "at": [0.25]}
    job = job_from_mapping(
        {"epochs": 4, "batch": {"global": 10}, "schedule": schedule, "workers": 2}
        | {"strategy": {"name": "switch", "lr_drop": 1}}
    )
    assert isinstance(job.strategy, SwitchSpec)
    assert boundary(job.strategy.resolved[1], job, num_samples=101) == StepLimit(1, 0)


@given(
    num_samples=st.integers(1, 500),
    batch=st.integers(1, 600),
    epochs=st.integers(1, 20),
    share=st.floats(0, 1),
)
def test_the_limit_is_the_first_step_at_or_after_the_share(
    num_samples: int, batch: int, epochs: int, share: float
) -> None:
    wanted = share * num_samples * epochs
    limit = limit_at(wanted, num_samples=num_samples, global_batch=batch)
    num_steps = math.ceil(num_samples / batch)
    assert 0 <= limit.step < num_steps

    def begins(epoch: int, step: int) -> int:
        return epoch * num_samples + min(step * batch, num_samples)

    slack = 1e-5
    assert begins(limit.epoch, limit.step) >= wanted - slack
    epoch, step = (limit.epoch, limit.step - 1) if limit.step else (limit.epoch - 1, num_steps - 1)
    if epoch >= 0:
        assert begins(epoch, step) < wanted + slack
