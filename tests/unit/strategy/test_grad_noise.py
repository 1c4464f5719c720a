"""Lengths of gradients are read once, in the steps that were asked for."""

from __future__ import annotations

import pytest
import torch

from phalanx.strategy.allreduce import GradNoiseGauge


def test_own_and_common_lengths() -> None:
    gauge = GradNoiseGauge()
    gauge.arm()
    # Two of eight samples: what this worker adds is a quarter of its own mean, which is 8 and 12.
    gauge.read_own(torch.tensor([2.0]))
    gauge.read_own(torch.tensor([3.0]))
    gauge.read_sum(torch.tensor([1.0, 2.0]), num_samples=2, global_count=8)
    assert gauge.take() == pytest.approx((8.0**2 + 12.0**2, 5.0))
    assert gauge.take() == (0.0, 0.0)


def test_only_the_armed_step_is_read() -> None:
    gauge = GradNoiseGauge()
    gauge.read_own(torch.ones(3))
    gauge.read_sum(torch.ones(3), num_samples=1, global_count=1)
    assert gauge.take() == (0.0, 0.0)
    gauge.arm()
    gauge.read_own(torch.ones(3))
    gauge.read_sum(torch.ones(3), num_samples=1, global_count=1)
    gauge.read_own(torch.full((3,), 9.0))
    gauge.read_sum(torch.full((3,), 9.0), num_samples=1, global_count=1)
    assert gauge.take() == (3.0, 3.0)


def test_a_worker_without_samples_has_no_gradient() -> None:
    gauge = GradNoiseGauge()
    gauge.arm()
    gauge.read_sum(torch.ones(3), num_samples=0, global_count=8)
    assert gauge.take() == (0.0, 3.0)
