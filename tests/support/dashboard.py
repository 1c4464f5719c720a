"""A dashboard's server in a thread, and a browserless visitor."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.cli.dashboard import describers
from phalanx.dashboard.library import Library
from phalanx.dashboard.serve import DashboardServer
from phalanx.dashboard.server import Dashboard
from phalanx.records.study import StudyDir
from support.records import Outcome, write_study

LIMIT_S = 60.0
JOB = {"name": "made-up", "model": "mlp", "data": "digits", "workers": 2, "strategy": "allreduce"}


def write_small_study(path: Path) -> StudyDir:
    """Two cells of two runs, one of which failed."""
    cells = {
        name: ({"strategy": name}, {**JOB, "strategy": name}) for name in ("allreduce", "local_sgd")
    }
    failed = Outcome(state="failed", cause="worker-1 was killed")
    trials = [
        ("allreduce", 1, Outcome(train_s=9.0)),
        ("allreduce", 2, Outcome(train_s=10.0)),
        ("local_sgd", 1, Outcome(train_s=7.0)),
        ("local_sgd", 2, failed),
    ]
    return write_study(path, cells, trials)


@contextmanager
def serving(sources: Sequence[Path]) -> Iterator[DashboardServer]:
    """A server over some directories, which has ended when this returns."""
    server = DashboardServer(Dashboard(Library(sources), describers()))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


@dataclass
class Answer:
    """What a visitor got."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


@dataclass
class Visitor:
    """Sends requests; keeps the cookie, if it was given one."""

    server: DashboardServer
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def with_link(cls, server: DashboardServer) -> Visitor:
        """One who followed the link."""
        visitor = cls(server)
        cookie = visitor.get(f"/?token={server.access.token}").headers["set-cookie"]
        visitor.headers["cookie"] = cookie.partition(";")[0]
        return visitor

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.access.port}"

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: object = None,
    ) -> Answer:
        connection = self._connect()
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def events(self, path: str) -> Iterator[Any]:
        """Yield the messages of a stream; close it to leave."""
        connection = self._connect()
        try:
            connection.request("GET", path, headers=self.headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.server.access.port, timeout=LIMIT_S)
