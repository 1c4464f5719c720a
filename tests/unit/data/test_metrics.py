"""The metrics of predicted classes, against worked examples."""

import numpy as np
import pytest

from phalanx.data.metrics import (
    Predictions,
    compute_metrics,
    kappa,
    mean_class_accuracy,
    per_class_accuracy,
    value_metrics,
)


def verdicts(actual: list[int], predicted: list[int], classes: int) -> Predictions:
    return Predictions(np.array(actual), np.array(predicted), classes)


def test_kappa_and_class_accuracy_of_a_worked_example() -> None:
    # 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: agreement 0.7, by chance 0.5, kappa 0.4.
    actual = [0] * 25 + [1] * 25
    predicted = [0] * 20 + [1] * 5 + [0] * 10 + [1] * 15
    one = verdicts(actual, predicted, 2)
    found = compute_metrics(("accuracy", "mean_class_accuracy", "kappa"), one)
    assert found == pytest.approx({"accuracy": 0.7, "mean_class_accuracy": 0.7, "kappa": 0.4})
    assert one.confusion().tolist() == [[20, 5, 0], [10, 15, 0]]
    assert per_class_accuracy(one.confusion()) == [0.8, 0.6]


def test_outputs_beyond_the_classes_and_classes_without_samples() -> None:
    one = verdicts([0, 0, 2], [0, 19, 2], 3)
    assert per_class_accuracy(one.confusion()) == [0.5, None, 1.0]
    assert one.confusion()[0].tolist() == [1, 0, 0, 1]
    assert mean_class_accuracy(one) == 0.75
    assert kappa(verdicts([1, 1], [1, 1], 2)) == 1.0
    assert compute_metrics(("kappa",), verdicts([], [], 2)) == {}


def test_classes_off_by_one_count_as_near() -> None:
    one = verdicts([0, 1, 2, 3, 4], [0, 1, 3, 3, 0], 5)
    assert compute_metrics(("within_one",), one) == {"within_one": 0.8}


def test_metrics_of_values_are_those_of_the_textbook() -> None:
    random = np.random.default_rng(3)
    targets = random.normal(size=(40, 3)).astype(np.float32)
    errors = random.normal(scale=0.5, size=(40, 3))
    found = value_metrics(
        targets, float(np.abs(errors).mean(1).sum()), float(np.square(errors).mean(1).sum())
    )
    assert found["mae"] == pytest.approx(np.abs(errors).mean())
    assert found["rmse"] == pytest.approx(np.sqrt(np.square(errors).mean()))
    spread = np.square(targets - targets.mean(axis=0)).sum()
    assert found["r2"] == pytest.approx(1 - np.square(errors).sum() / spread)


def test_values_without_spread_have_no_r2_and_those_not_compared_no_metric() -> None:
    assert value_metrics(np.ones(4, dtype=np.float32), 2.0, 1.0) == {"mae": 0.5, "rmse": 0.5}
    assert value_metrics(np.ones(4, dtype=np.float32), float("nan"), float("nan")) == {}
    assert value_metrics(np.ones(0, dtype=np.float32), 0.0, 0.0) == {}
