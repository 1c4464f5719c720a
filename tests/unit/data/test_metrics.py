"""The metrics of predicted classes, against worked examples."""

import numpy as np
import pytest

from phalanx.data.metrics import (
    Predictions,
    compute_metrics,
    kappa,
    mean_class_accuracy,
    per_class_accuracy,
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
