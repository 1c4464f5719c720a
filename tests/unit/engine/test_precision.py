"""Which format is chosen, and that the reason says why."""

import time
from collections.abc import Callable

import pytest
import torch

from phalanx.engine.precision import Precision, autocast, choose_precision, cpu_has_bf16


def busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def steps(fp32_s: float, bf16_s: float) -> Callable[[Precision], Callable[[], None]]:
    return lambda name: lambda: busy(fp32_s if name == "fp32" else bf16_s)


def unused(name: Precision) -> Callable[[], None]:
    raise AssertionError(f"nothing should be measured in {name}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16 sse\n", True),
        ("flags : fpu amx_bf16 amx_tile\n", True),
        ("Features : fp asimd bf16\n", True),
        ("flags : fpu avx512f avx512_bf16x\n", False),
        ("", False),
    ],
)
def test_cpu_flags(text: str, expected: bool) -> None:
    assert cpu_has_bf16(text) is expected


def test_what_is_asked_for_is_not_measured() -> None:
    assert choose_precision("fp32", step_factory=unused).name == "fp32"
    slow = choose_precision("bf16", step_factory=unused, has_bf16=False)
    assert slow.name == "bf16"
    assert "no bf16 instructions" in slow.reason
    assert "no bf16" not in choose_precision("bf16", step_factory=unused, has_bf16=True).reason


def test_auto_without_the_instructions_is_fp32() -> None:
    choice = choose_precision("auto", step_factory=unused, has_bf16=False)
    assert (choice.name, choice.measured_gain) == ("fp32", None)


def test_auto_takes_the_faster() -> None:
    fast = choose_precision("auto", step_factory=steps(0.006, 0.001), has_bf16=True, budget_s=0.05)
    assert fast.name == "bf16"
    assert fast.measured_gain is not None
    assert fast.measured_gain > 1.5
    slow = choose_precision("auto", step_factory=steps(0.001, 0.006), has_bf16=True, budget_s=0.05)
    assert slow.name == "fp32"
    assert slow.measured_gain is not None
    assert slow.measured_gain < 1


def test_autocast_computes_in_bf16() -> None:
    ones = torch.ones(2, 2)
    with autocast("bf16"):
        assert (ones @ ones).dtype == torch.bfloat16
    with autocast("fp32"):
        assert (ones @ ones).dtype == torch.float32
