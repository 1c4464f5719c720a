from __future__ import annotations

import pytest

from phalanx.errors import SpecError
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.observe import ProfileSpec


@pytest.mark.parametrize(("text", "epochs"), [("3", [2]), ("2-4", [1, 2, 3]), ("1,3-4", [0, 2, 3])])
def test_epochs_are_written_from_one_and_counted_from_zero(text: str, epochs: list[int]) -> None:
    spec = ProfileSpec(epochs=text)
    assert [epoch for epoch in range(10) if spec.covers(epoch)] == epochs


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        ("0-2", "such as '3', '2-4' or '2-4,8'"),
        ("two", "such as '3', '2-4' or '2-4,8'"),
        ("4-2", "'4-2' is no range; write '2-4'"),
        ("2-6", "profile.epochs names epoch 6, but the job has 5"),
    ],
)
def test_epochs_that_make_no_sense(epochs: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        job_from_mapping({"epochs": 5, "profile": {"epochs": epochs}})
