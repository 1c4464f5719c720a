"""Ports that are held until TensorFlow's server has them."""

from __future__ import annotations

import socket

import pytest

from phalanx.backends.tensorflow.rendezvous import HeldPort
from phalanx.errors import LaunchError

LOOPBACK = "127.0.0.1"


def bind(port: int, *, shared: bool) -> None:
    with socket.socket() as one:
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind((LOOPBACK, port))
        one.listen()


def test_a_held_port_is_nobody_elses_but_the_servers() -> None:
    port = HeldPort(LOOPBACK)
    host, number = port.address.split(":")
    try:
        assert host == LOOPBACK
        with pytest.raises(OSError, match="in use"):
            bind(int(number), shared=False)
        bind(int(number), shared=True)
    finally:
        port.close()
    bind(int(number), shared=False)


def test_two_processes_never_get_the_same_port() -> None:
    held = [HeldPort(LOOPBACK) for _ in range(20)]
    try:
        assert len({one.address for one in held}) == 20
    finally:
        for one in held:
            one.close()


def test_a_successor_takes_the_port_of_its_predecessor_or_says_why_not() -> None:
    first = HeldPort(LOOPBACK)
    number = int(first.address.split(":")[1])
    first.close()
    again = HeldPort(LOOPBACK, number)
    assert again.address == f"{LOOPBACK}:{number}"
    again.close()
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(LaunchError, match=f"cannot take {LOOPBACK}:{taken}"):
            HeldPort(LOOPBACK, taken)
