"""What processes say to a real controller: no process runs, their channels are played."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

from phalanx.control.controller import Controller
from phalanx.control.process_table import RunRequest
from phalanx.control.run_end import RunFailed
from phalanx.control.synchronous import SynchronousCoordinator
from phalanx.errors import ExitCode, Interrupted
from phalanx.launch.base import LaunchRequest
from phalanx.records.events import Decision
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.worker import WorkerSpec
from phalanx.wire import control_client
from phalanx.wire.control_client import ControlClient
from phalanx.wire.keys import KeyPair, secure_client
from phalanx.wire.messages import Failed, FromWorker, Heartbeat, Hello, Progress
from phalanx.wire.parameter_server import Flushed, Ready, WorkDone
from phalanx.wire.split import PlacementReport
from support.fake_launcher import FakeLauncher, Script

Act = Callable[[ControlClient, WorkerSpec], None]
SERVED = {"name": "parameter_server", "servers": 1}


class Play:
    """A controller, and processes of which only the channel is real."""

    def __init__(self, folder: Path, act: Act, **job: object) -> None:
        self.job = JobSpec.model_validate({"workers": 2, "deadlines": {"stop_s": 0.1}, **job})
        self.run = RunDir.create(folder / "runs", "job")
        launcher = FakeLauncher(LaunchRequest(self.job, folder, folder), Script(on_start=self.join))
        self.controller = Controller(
            RunRequest(self.job, self.run, folder, folder),
            launcher=launcher,
            allocation=launcher.allocate(self.run),
        )
        self._act = act
        self._stack = ExitStack()

    def join(self, spec: WorkerSpec) -> None:
        client = self._stack.enter_context(
            ControlClient(
                spec.control_address,
                server_key=spec.controller_key,
                keys=KeyPair(public=spec.public_key, secret=spec.secret_key),
                progress=Progress,
                on_stop=lambda reason: None,
            )
        )
        client.send(Hello(pid=1, host="here"))
        self._act(client, spec)

    def go(self) -> None:
        with self._stack:
            self.controller.run()

    @property
    def decisions(self) -> list[str]:
        return [one.what for one in read_events(self.run.events_path("controller"), Decision)]


@pytest.fixture(autouse=True)
def quick_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    # The controller is gone by the time that the played processes close their channels.
    monkeypatch.setattr(control_client, "_LAST_MESSAGE_S", 0.1)


def saying(process: str, message: FromWorker) -> Act:
    def act(client: ControlClient, spec: WorkerSpec) -> None:
        if spec.process == process:
            client.send(message)

    return act


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (Flushed(server=1, version=0), "it sent Flushed for server 1"),
        (PlacementReport(b"{"), "Input data was truncated"),
        (PlacementReport(b'{"kind": "\xff"}'), "codec can't decode"),
        (PlacementReport(b"[]"), "Expected `object`"),
    ],
)
def test_a_word_that_is_malformed_or_not_its_own_ends_its_sender_with_a_sentence(
    tmp_path: Path, message: FromWorker, sentence: str
) -> None:
    process = "worker-0"
    play = Play(tmp_path, saying(process, message))
    with pytest.raises(RunFailed, match=f"{process} failed: .*{sentence}"):
        play.go()
    assert play.run.read_status().state == "failed"


def test_an_exit_code_that_does_not_exist_is_a_failure_like_any_other(tmp_path: Path) -> None:
    failed = Failed(kind="Odd", message="so it ends", traceback="", exit_code=99)
    play = Play(tmp_path, saying("worker-1", failed))
    with pytest.raises(RunFailed, match="worker-1 failed: so it ends") as caught:
        play.go()
    assert caught.value.exit_code == ExitCode.FAILED


def test_a_process_that_speaks_for_others_is_replaced_where_processes_are(tmp_path: Path) -> None:
    def act(client: ControlClient, spec: WorkerSpec) -> None:
        if spec.process == "evaluator-0" and spec.incarnation == 1:
            client.send(WorkDone((), 1))
        elif spec.incarnation > 1:
            os.kill(os.getpid(), signal.SIGINT)  # enough has been seen

    play = Play(tmp_path, act, strategy=SERVED)
    with pytest.raises(Interrupted):
        play.go()
    assert "replace evaluator-0" in play.decisions


@contextmanager
def plain_socket(spec: WorkerSpec) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        keys = KeyPair(public=spec.public_key, secret=spec.secret_key)
        secure_client(socket, keys, spec.controller_key)
        socket.linger = 0
        socket.connect(spec.control_address)
        yield socket


def test_a_process_that_sends_garbage_ends_with_a_sentence(tmp_path: Path) -> None:
    with ExitStack() as stack:

        def act(client: ControlClient, spec: WorkerSpec) -> None:
            if spec.process == "worker-1":
                stack.enter_context(plain_socket(spec)).send(b"garbage")

        play = Play(tmp_path, act)
        with pytest.raises(RunFailed, match="worker-1 failed: a frame of 7 bytes is none of"):
            play.go()


def test_messages_without_end_leave_a_turn_for_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(tmp_path, lambda client, spec: None)
    flood = itertools.repeat(("worker-0", Heartbeat(Progress())))

    def watch(self: Controller, coordinator: SynchronousCoordinator, *_: object) -> None:
        monkeypatch.setattr(self._server, "receive", lambda wait_s: next(flood))
        assert not self._take_messages(coordinator), "there is always more"
        raise Interrupted("but this is reached")

    monkeypatch.setattr(Controller, "_watch", watch)
    with pytest.raises(Interrupted):
        play.go()


def test_a_run_in_which_nothing_moves_ends_with_what_it_waits_for(tmp_path: Path) -> None:
    play = Play(
        tmp_path,
        saying("worker-1", Ready(num_samples=4, precision="fp32")),
        strategy=SERVED,
        deadlines={"stop_s": 0.1, "progress_s": 1.0},
    )
    sentence = (
        r"nothing has moved for 1 s \(deadlines.progress_s\): the run waits for .*"
        r"worker-1 to connect to the servers \(it says: starting\), "
        r"server-0 to serve its slice \(it says: starting\)"
    )
    with pytest.raises(RunFailed, match=sentence) as caught:
        play.go()
    assert caught.value.exit_code == ExitCode.DEADLINE
    assert play.run.read_status().state == "failed"
