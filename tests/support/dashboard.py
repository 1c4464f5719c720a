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
from phalanx.plan.planfile import Plan, PlanRow
from phalanx.plan.result import Prediction, StepParts, around
from phalanx.records.study import StudyDir
from phalanx.spec.loader import job_from_mapping
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


def _prediction(total_s: float, joules: float) -> Prediction:
    return Prediction(
        step_s=around(0.1, 0.1),
        samples_per_s=around(320.0, 0.1),
        train_s=around(total_s - 1, 0.1),
        total_s=around(total_s, 0.1),
        parts=StepParts(compute_s=0.08, communication_s=0.01, wait_s=0.01),
        memory_bytes={"pc1": 1000},
        sent_bytes_per_step=10.0,
        energy_j=around(joules, 0.1),
    )


def made_up_plan() -> Plan:
    """A plan with two candidates, both on the front."""
    rows = [
        PlanRow(
            machines=("pc1",),
            strategy=name,
            servers="-",
            workers=2,
            batches=(16, 16),
            precision="fp32",
            effect="exact",
            prediction=_prediction(total_s, joules),
        )
        for name, total_s, joules in (("allreduce", 20.0, 900.0), ("single", 30.0, 500.0))
    ]
    assert rows[0].prediction is not None
    return Plan(
        phalanx="0",
        job=job_from_mapping(JOB).model_dump(mode="json", by_alias=True),
        goal="time",
        deadline_s=None,
        budget=None,
        accept="exact",
        seats=(),
        strategy="allreduce",
        prediction=rows[0].prediction,
        sentence="Use pc1",
        reasons=("because",),
        candidates=tuple(rows),
        front=tuple(rows),
        num_candidates=2,
        sources=("a test",),
    )


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
