from __future__ import annotations

import pytest

from phalanx.records.improvement import Monitor, is_better


@pytest.mark.parametrize(
    ("monitor", "value", "best", "min_delta", "expected"),
    [
        ("val_loss", 5.0, None, 0.0, True),
        ("val_accuracy", 0.0, None, 9.0, True),
        ("val_loss", 0.4, 0.5, 0.0, True),
        ("val_loss", 0.5, 0.5, 0.0, False),
        ("val_loss", 0.6, 0.5, 0.0, False),
        ("val_accuracy", 0.6, 0.5, 0.0, True),
        ("val_accuracy", 0.5, 0.5, 0.0, False),
        ("val_accuracy", 0.4, 0.5, 0.0, False),
        ("val_loss", 0.25, 0.5, 0.25, False),
        ("val_loss", 0.24, 0.5, 0.25, True),
        ("val_accuracy", 0.75, 0.5, 0.25, False),
        ("val_accuracy", 0.76, 0.5, 0.25, True),
        ("val_loss", float("nan"), 0.5, 0.0, False),
        ("val_accuracy", float("nan"), 0.5, 0.0, False),
    ],
)
def test_better_means_beyond_the_best_by_more_than_the_least_difference(
    monitor: Monitor, value: float, best: float | None, min_delta: float, expected: bool
) -> None:
    assert is_better(monitor, value, best, min_delta=min_delta) is expected
