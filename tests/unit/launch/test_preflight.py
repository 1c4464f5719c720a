from __future__ import annotations

import pytest

from phalanx.launch.preflight_host import unfit


@pytest.mark.parametrize(
    ("faults", "num_machines", "sentence"),
    [
        ({"a": "is off"}, 1, "a: is off"),
        ({"a": "is off"}, 3, "a: is off; --without a leaves it out"),
        (
            {"a": "is off", "b": "is full"},
            3,
            "2 of 3 machines cannot take part: a: is off; b: is full; --without a --without b "
            "leaves them out",
        ),
        ({"a": "x", "b": "y"}, 2, "2 of 2 machines cannot take part: a: x; b: y"),
    ],
)
def test_machines_are_named_and_the_way_out_is_offered(
    faults: dict[str, str], num_machines: int, sentence: str
) -> None:
    error = unfit(faults, num_machines)
    assert str(error) == sentence
    assert error.facts["faults"] == faults
    assert error.exit_code == 2
