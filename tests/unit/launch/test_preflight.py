from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from phalanx.agent.remote.host import reach
from phalanx.agent.session import AgentInfo, Session
from phalanx.agent.ssh import SshRoute
from phalanx.errors import LaunchError
from phalanx.launch.base import LaunchRequest
from phalanx.launch.preflight import Preflight, PreflightRequest, _open_port, usable_address
from phalanx.launch.preflight_host import PreflightHost, unfit
from phalanx.spec.job import JobSpec
from phalanx.spec.machine import MachineSpec


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


class Answers:
    """The session of a machine that answers at once; it does connect where it is told to."""

    def __init__(self, number: int) -> None:
        self.route = SshRoute(MachineSpec(host=f"m{number}"))
        self.open_ports = 0

    def ask(self, order: dict[str, Any], limit_s: float, content: bytes = b"") -> object:
        match order["do"]:
            case "listen":
                self.open_ports += 1
                return 4000
            case "hush":
                self.open_ports = 0
                return None
            case "reach" if order["targets"][0][0] == "here":
                return reach(order["targets"])
            case _:
                assert len(order["targets"]) == 199
                return {}


def test_the_network_of_two_hundred_machines_is_checked_and_no_port_stays_open(
    tmp_path: Path,
) -> None:
    hosts = [PreflightHost(cast(Session, Answers(number))) for number in range(200)]
    info = AgentInfo(
        pid=1,
        host="m",
        home="/",
        python=(3, 11, 0),
        executable="python",
        cpus=[0],
        came_from="127.0.0.1",
    )
    for number, one in enumerate(hosts):
        one.info, one.address = info, f"127.0.1.{number}"
    request = LaunchRequest(JobSpec(workers=200), tmp_path, tmp_path)
    wanted = PreflightRequest(num_processes={one.name: 1 for one in hosts})
    Preflight(request, wanted, hosts)._check_network()
    assert {one.controller for one in hosts} == {"127.0.0.1"}
    assert {cast(Answers, one.session).open_ports for one in hosts} == {0}


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
