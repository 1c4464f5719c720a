"""The conversation and the probe itself, with a local shell in the place of ssh."""

from __future__ import annotations

import ast
import shlex
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from phalanx.errors import LaunchError
from phalanx.pool import remote
from phalanx.pool.agent import Agent, MachineFault
from phalanx.pool.facts import Looks
from phalanx.pool.remote import TOKEN_LENGTH
from phalanx.pool.ssh import SshRoute
from phalanx.spec.machine import MachineSpec

LIMIT_S = 60.0
TOKEN = "0" * TOKEN_LENGTH


@dataclass(frozen=True)
class LocalRoute(SshRoute):
    """Runs what ssh would run over there in a shell here, after a login script that prints."""

    before: str = "echo welcome"

    def command(self, remote: str) -> list[str]:
        return ["sh", "-c", f"{self.before}; {remote}"]


def agent(python: str = sys.executable, before: str = "echo welcome") -> Agent:
    return Agent(LocalRoute(MachineSpec(host="alpha", python=python), before=before))


def test_the_probe_is_written_for_older_interpreters_too() -> None:
    ast.parse(Path(remote.__file__).read_text(encoding="utf-8"), feature_version=(3, 8))


def test_a_machine_describes_itself_behind_the_noise_of_a_login_script() -> None:
    with agent() as asked:
        answer = asked.ask(
            {"do": "describe", "workdir": "/tmp/none/at/all", "quick": True}, LIMIT_S
        )
        looks = msgspec.convert(answer, Looks)
        clock = asked.measure_clock()
    assert looks.host == socket.gethostname()
    assert looks.logical_cores >= looks.usable_cores >= 1
    assert looks.memory_total_bytes >= looks.memory_free_bytes > 0
    assert (looks.gpus, looks.disk_write_bytes_per_s) == (None, None)
    assert looks.python == ".".join(map(str, sys.version_info[:3]))
    assert abs(clock.offset_s) <= clock.error_s, "both sides have the same clock"


def test_two_machines_measure_the_way_between_them() -> None:
    with agent() as listening, agent() as calling:
        port = listening.ask({"do": "listen", "token": TOKEN}, LIMIT_S)["port"]
        question = {"do": "contact", "port": port, "token": TOKEN, "seconds": 0.2}
        # Nothing listens at the first address; the next is tried.
        link = calling.ask({**question, "hosts": ["127.0.0.254", "127.0.0.1"]}, LIMIT_S)
        assert link["bytes_per_s"] > 1e6
        assert 0 < link["round_trip_min_s"] <= link["round_trip_s"]
        with pytest.raises(LaunchError, match=r"closed the connection|Connection reset"):
            calling.ask({**question, "hosts": ["127.0.0.1"], "token": "1" * TOKEN_LENGTH}, LIMIT_S)


def test_a_stranger_is_turned_away_and_the_next_is_served() -> None:
    with agent() as listening:
        port = listening.ask({"do": "listen", "token": TOKEN}, LIMIT_S)["port"]
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as stranger:
            stranger.sendall(b"1" * TOKEN_LENGTH + struct.pack("!cd", b"e", 0.0))
            assert stranger.recv(1) == b""
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as known:
            known.sendall(TOKEN.encode() + struct.pack("!cd", b"e", 0.0) + b"x")
            assert known.recv(1) == b"x"


def test_nobody_listens() -> None:
    with agent() as calling, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        question = {"do": "contact", "hosts": ["127.0.0.1"], "token": TOKEN, "seconds": 0.1}
        with pytest.raises(
            LaunchError, match=r"alpha: ConnectionError: 127\.0\.0\.1 port .* refused"
        ):
            calling.ask({**question, "port": closed.getsockname()[1]}, LIMIT_S)


def test_what_cannot_be_done_is_told_and_the_conversation_goes_on() -> None:
    with agent() as asked:
        with pytest.raises(LaunchError, match="alpha: KeyError: 'dance'"):
            asked.ask({"do": "dance"}, LIMIT_S)
        assert asked.ask({"do": "clock"}, LIMIT_S)["time_s"] > 0


def test_a_missing_interpreter_is_a_fault_with_its_reason() -> None:
    with agent(python="/no/such/python") as asked, pytest.raises(MachineFault) as caught:
        asked.ask({"do": "clock"}, LIMIT_S)
    assert caught.value.fault.kind == "python"
    assert "/no/such/python" in str(caught.value)


def test_ssh_that_fails_is_a_fault_with_its_reason() -> None:
    before = f"echo {shlex.quote('ada@alpha: Permission denied (publickey).')} >&2; exit 255"
    with agent(before=before) as asked, pytest.raises(MachineFault) as caught:
        asked.ask({"do": "clock"}, LIMIT_S)
    assert caught.value.fault.kind == "key"


def test_a_machine_that_does_not_answer_is_given_up_and_ended() -> None:
    with agent(before="exec sleep 600") as asked, pytest.raises(MachineFault) as caught:
        asked.ask({"do": "clock"}, 0.2)
    assert caught.value.fault.kind == "slow"


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next() -> None:
    with agent() as asked:
        asked.ask({"do": "clock"}, LIMIT_S)
        question = {"do": "describe", "workdir": "/", "quick": False}  # takes a second at least
        with pytest.raises(MachineFault):
            asked.ask(question, 0.001)
        assert set(asked.ask({"do": "clock"}, LIMIT_S)) == {"time_s"}
