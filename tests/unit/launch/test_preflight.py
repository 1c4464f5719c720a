from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from phalanx.errors import LaunchError
from phalanx.launch.preflight import _open_port, usable_address
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


def test_two_hundred_machines_reach_this_one_while_strangers_hold_connections() -> None:
    """Each connects as an agent does, and some never go away."""
    with _open_port() as port, ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5.0))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5.0).close()


@pytest.mark.parametrize("said", ["0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "\x1b[2J", 7])
def test_an_address_that_a_machine_names_must_be_one_of_a_machine(said: object) -> None:
    with pytest.raises(LaunchError) as caught:
        usable_address(said)
    assert str(caught.value).isprintable()


def test_an_address_of_a_machine_is_taken() -> None:
    assert usable_address("10.77.0.11") == "10.77.0.11"
