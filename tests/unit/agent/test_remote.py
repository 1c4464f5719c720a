"""What the agent describes and measures, with a local shell in the place of ssh."""

from __future__ import annotations

import ast
import shlex
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from phalanx.agent import remote
from phalanx.agent.line import MachineFault
from phalanx.agent.remote.measure import TOKEN_LENGTH
from phalanx.agent.session import Session, agent_program
from phalanx.agent.ssh import SshRoute
from phalanx.errors import LaunchError
from phalanx.pool.probe import ProbeOptions, probe_host
from phalanx.spec.machine import MachineSpec

LIMIT_S = 60.0
TOKEN = "0" * TOKEN_LENGTH


@dataclass(frozen=True)
class NoisyRoute(SshRoute):
    """Runs what ssh would run over there in a shell here, after a login script that prints."""

    before: str = "echo welcome"

    def command(self, remote: str) -> list[str]:
        return ["sh", "-c", f"{self.before}; {remote}"]


def session(python: str = sys.executable, before: str = "echo welcome") -> Session:
    machine = MachineSpec(host="alpha", python=python, workdir="/tmp/none/at/all")
    return Session(NoisyRoute(machine, before=before))


@contextmanager
def agent() -> Iterator[Session]:
    with closing(session()) as asked:
        asked.open()
        yield asked


def test_the_program_is_written_for_older_interpreters_too() -> None:
    folder = Path(remote.__file__).parent
    stems = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    sent = {name for name in remote.MODULES if name.startswith(remote.__name__)}
    assert sent == {f"{remote.__name__}.{stem}" for stem in stems}
    for name in remote.MODULES:
        path = folder.parents[1].joinpath(*name.split(".")[1:]).with_suffix(".py")
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    ast.parse(agent_program(), feature_version=(3, 8))


def test_the_program_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """Without site packages, and beside a Phalanx of another version that must not be mixed in."""
    (tmp_path / "phalanx").mkdir()
    (tmp_path / "phalanx" / "__init__.py").write_text("raise ImportError('an older version')")
    before = f"cd {tmp_path}; export PYTHONPATH={tmp_path} PYTHONNOUSERSITE=1"
    bare = str(Path(sys.base_prefix) / "bin" / "python3")
    with closing(session(bare, before=before)) as asked:
        asked.open()
        assert asked.ask({"do": "clock"}, LIMIT_S) > 0


def test_a_machine_describes_itself_behind_the_noise_of_a_login_script() -> None:
    with agent() as asked:
        probe = probe_host(asked, ProbeOptions(quick=True))
    looks, clock = probe.looks, probe.clock
    assert looks.host == socket.gethostname()
    assert looks.logical_cores >= looks.usable_cores >= 1
    assert looks.memory_total_bytes >= looks.memory_free_bytes > 0
    assert (looks.gpus, looks.disk_write_bytes_per_s) == (None, None)
    assert looks.python == ".".join(map(str, sys.version_info[:3]))
    assert abs(clock.offset_s) <= clock.error_s, "both sides have the same clock"


def test_two_machines_measure_the_way_between_them() -> None:
    with agent() as listening, agent() as calling:
        port = listening.ask({"do": "listen", "token": TOKEN}, LIMIT_S)
        question = {"do": "contact", "port": port, "token": TOKEN, "seconds": 0.2}
        # Nothing listens at the first address; the next is tried.
        link = calling.ask({**question, "hosts": ["127.0.0.254", "127.0.0.1"]}, LIMIT_S)
        assert link["bytes_per_s"] > 1e6
        assert 0 < link["round_trip_min_s"] <= link["round_trip_s"]
        with pytest.raises(LaunchError, match=r"closed the connection|Connection reset"):
            calling.ask({**question, "hosts": ["127.0.0.1"], "token": "1" * TOKEN_LENGTH}, LIMIT_S)


def test_a_stranger_is_turned_away_and_the_next_is_served() -> None:
    with agent() as listening:
        port = listening.ask({"do": "listen", "token": TOKEN}, LIMIT_S)
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
        assert asked.ask({"do": "clock"}, LIMIT_S) > 0


def test_a_missing_interpreter_is_a_fault_with_its_reason() -> None:
    broken = session(python="/no/such/python")
    with closing(broken) as asked, pytest.raises(MachineFault) as caught:
        asked.open()
    assert caught.value.fault.kind == "python"
    assert "/no/such/python" in str(caught.value)


def test_ssh_that_fails_is_a_fault_with_its_reason() -> None:
    before = f"echo {shlex.quote('ada@alpha: Permission denied (publickey).')} >&2; exit 255"
    with closing(session(before=before)) as asked, pytest.raises(MachineFault) as caught:
        asked.open()
    assert caught.value.fault.kind == "key"


def test_a_machine_that_does_not_answer_is_given_up_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("phalanx.agent.session._HELLO_S", 0.2)
    monkeypatch.setattr("phalanx.agent.session._CLOSE_S", 0.2)
    silent = session(before="exec sleep 600")
    with closing(silent) as asked, pytest.raises(MachineFault) as caught:
        asked.open()
    assert caught.value.fault.kind == "slow"


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next() -> None:
    with agent() as asked:
        asked.ask({"do": "clock"}, LIMIT_S)
        question = {"do": "describe", "workdir": "/", "quick": False}  # takes a second at least
        with pytest.raises(MachineFault):
            asked.ask(question, 0.001)
        assert isinstance(asked.ask({"do": "clock"}, LIMIT_S), float)


def test_an_answer_that_makes_no_sense_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with agent() as asked:
        monkeypatch.setattr(asked, "ask", lambda order, limit_s: 0.0)
        with pytest.raises(LaunchError, match="alpha: its answer makes no sense: Expected"):
            probe_host(asked, ProbeOptions(quick=True))
