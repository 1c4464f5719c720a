"""The server: nothing for strangers, nothing from elsewhere, and the same refusals as the CLI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from phalanx.dashboard.library import id_of
from phalanx.dashboard.serve import DashboardServer
from phalanx.records.events import Failure
from phalanx.records.rundir import RunDir, Status
from phalanx.records.stop_request import is_stop_requested
from phalanx.records.switch_request import requested_switch
from support.dashboard import JOB, Visitor, serving, write_small_study
from support.records import Outcome, write_run

HOSTILE = "<img src=x onerror=alert(1)>"
DYNAMIC = {
    **JOB,
    "strategy": {"name": "parameter_server", "dispatch": "dynamic", "consistency": "async"},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root, "plain", JOB)
    hostile = write_run(root, HOSTILE, JOB, Outcome(warning="</script><script>alert(2)</script>"))
    (hostile.path / "logs").mkdir()
    (hostile.path / "logs" / "worker-0.log").write_text(f"hello {HOSTILE}\n\x1b]0;title\x07")
    growing = write_run(root, "growing", DYNAMIC, Outcome(state="running"))
    growing.write_status(Status.of_this_process("running", attempt=1))
    write_small_study(root / "study")
    return root


@pytest.fixture
def server(root: Path) -> Iterator[DashboardServer]:
    with serving([root]) as server:
        yield server


def run_id(root: Path, name: str) -> str:
    return id_of(root / name)


def test_a_stranger_gets_nothing(server: DashboardServer, root: Path) -> None:
    stranger = Visitor(server)
    paths = [
        "/",
        "/app.js",
        "/actions.js",
        "/vega.js",
        "/api/library",
        f"/api/views/run/{run_id(root, 'plain')}",
    ]
    guesses = ["/?token=", "/?token=guess", "/?token=%C3%A9", "/api/library?token=guess"]
    # The token opens the page and nothing else.
    guesses.append(f"/api/library?token={server.access.token}")
    for path in paths + guesses:
        answer = stranger.get(path)
        assert answer.status == 401, path
        assert b"plain" not in answer.body
        assert answer.headers["set-cookie"] is None
    named = f"{server.access.cookie_name}=guess"
    assert stranger.get("/", cookie=named).status == 401
    assert stranger.get("/", cookie='a="b; phalanx').status == 401
    other = stranger.ask("POST", f"/api/runs/{run_id(root, 'growing')}/scale", body={"workers": 9})
    assert other.status == 401


def test_the_link_opens_the_page_under_a_strict_policy(server: DashboardServer) -> None:
    answer = Visitor(server).get(f"/?token={server.access.token}")
    assert answer.status == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert server.access.token not in cookie
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert b"<script>" not in answer.body
    assert b"style=" not in answer.body
    assert b"http" not in answer.body
    assert answer.headers["referrer-policy"] == "no-referrer"
    visitor = Visitor.with_link(server)
    for path in ("/", "/app.js", "/app.css", "/blocks.js"):
        assert visitor.get(path).headers["content-security-policy"] == policy
    assert visitor.get("/nothing.js").status == 404
    assert visitor.get("/docs").status == 404


def test_only_its_own_names_reach_a_dashboard_on_loopback(server: DashboardServer) -> None:
    visitor = Visitor.with_link(server)
    assert visitor.get("/", host="evil.example").status == 421
    assert visitor.get("/", host=f"localhost:{server.access.port}").status == 200


def test_the_list_and_its_changes(server: DashboardServer, root: Path) -> None:
    stream = Visitor.with_link(server).events("/api/library")
    first = next(stream)
    names = {entry["name"] for entry in first["changed"]}
    assert {"plain", HOSTILE, "study"} <= names
    late = write_run(root, "late", JOB)
    second = next(stream)
    assert [entry["id"] for entry in second["changed"]] == [id_of(late.path)]
    stream.close()


def test_a_run_is_followed_and_only_what_changes_is_sent(
    server: DashboardServer, root: Path
) -> None:
    run = RunDir(root / "plain")
    stream = Visitor.with_link(server).events(f"/api/views/run/{id_of(run.path)}")
    first = next(stream)
    assert first["title"] == "plain"
    assert first["state"] == "finished"
    assert [section["id"] for section in first["sections"]] == first["order"]
    assert {"progress", "learning", "speed", "machines", "result"} <= set(first["order"])
    with run.events_path("controller").open("ab") as file:
        file.write(msgspec.json.encode(Failure(rank=0, cause="out of memory")) + b"\n")
    second = next(stream)
    sent = {section["id"] for section in second["sections"]}
    assert "faults" in sent
    assert "machines" not in sent
    stream.close()


def test_studies_and_comparisons(server: DashboardServer, root: Path) -> None:
    visitor = Visitor.with_link(server)
    both = f"{run_id(root, 'plain')},{run_id(root, HOSTILE)}"
    for path in (f"/api/views/study/{id_of(root / 'study')}", f"/api/views/compare/{both}"):
        stream = visitor.events(path)
        assert next(stream)["sections"]
        stream.close()
    assert visitor.get("/api/views/run/..%2f..%2fetc").status in (400, 404)
    assert visitor.get("/api/views/nothing/abc").status == 400


def test_output_of_processes(server: DashboardServer, root: Path) -> None:
    visitor = Visitor.with_link(server)
    scan(visitor)
    logs = f"/api/runs/{run_id(root, HOSTILE)}/logs"
    assert visitor.get(logs).content == ["worker-0"]
    piece = visitor.get(f"{logs}/worker-0").content
    assert piece["text"] == f"hello {HOSTILE}\n\\x1b]0;title\\x07"
    assert visitor.get(f"{logs}/worker-0?offset={piece['next']}").content["text"] == ""
    for name in ("..%2f..%2fmanifest.json", "worker-9", "%2e%2e"):
        assert visitor.get(f"{logs}/{name}").status == 404
    assert visitor.get(f"{logs}/worker-0?offset=-1").status == 422


def scan(visitor: Visitor) -> None:
    stream = visitor.events("/api/library")
    next(stream)
    stream.close()


def test_changes_need_cookie_page_and_the_checks_of_the_command(
    server: DashboardServer, root: Path
) -> None:
    visitor = Visitor.with_link(server)
    scan(visitor)
    growing = f"/api/runs/{run_id(root, 'growing')}/scale"
    page = {"content-type": "application/json", "origin": visitor.origin}

    def post(path: str, body: object, **changed: str) -> int:
        headers = {key: value for key, value in {**page, **changed}.items() if value}
        return visitor.ask("POST", path, headers=headers, body=body).status

    assert post(growing, {"workers": 9}, origin="http://evil.example") == 403
    assert post(growing, {"workers": 9}, origin="") == 403
    assert post(growing, {"workers": 9}, **{"content-type": "text/plain"}) == 403
    assert RunDir(root / "growing").requested_workers() is None
    assert post(growing, {"workers": 2}) == 400
    assert post(growing, {"workers": "many"}) == 422
    assert post(growing, {}) == 400
    assert post(f"/api/runs/{run_id(root, 'plain')}/scale", {"workers": 9}) == 400
    assert post(f"/api/runs/{run_id(root, 'growing')}/delete", {"workers": 9}) == 404
    assert RunDir(root / "growing").requested_workers() is None
    assert post(growing, {"workers": 4}) == 200
    assert RunDir(root / "growing").requested_workers() == 4


def test_a_run_is_stopped_and_switched_with_the_checks_of_the_commands(
    server: DashboardServer, root: Path
) -> None:
    switching = write_run(
        root, "switching", {**JOB, "strategy": "switch"}, Outcome(state="running")
    )
    switching.write_status(Status.of_this_process("running", attempt=3))
    visitor = Visitor.with_link(server)
    scan(visitor)

    def post(name: str, action: str, **headers: str) -> tuple[int, str]:
        page = {"content-type": "application/json", "origin": visitor.origin, **headers}
        path = f"/api/runs/{run_id(root, name)}/{action}"
        answer = visitor.ask("POST", path, headers=page, body={})
        return answer.status, answer.body.decode()

    for action in ("stop", "switch"):
        assert post("switching", action, origin="http://evil.example")[0] == 403
        status, words = post("plain", action)
        assert (status, "only a running one" in words) == (400, True)
    status, words = post("growing", "switch")
    assert (status, "its strategy is parameter_server" in words) == (400, True)
    assert requested_switch(switching, 3) is None
    assert not is_stop_requested(switching, 3)
    assert post("switching", "switch")[0] == 200
    first = requested_switch(switching, 3)
    assert post("switching", "switch")[0] == 200
    assert first != requested_switch(switching, 3) is not None
    assert requested_switch(switching, 4) is None
    assert post("switching", "stop")[0] == 200
    assert is_stop_requested(switching, 3)


def test_looking_writes_nothing(server: DashboardServer, root: Path) -> None:
    def files() -> dict[Path, tuple[int, int]]:
        found = {path: path.stat() for path in (root / "study").rglob("*")}
        return {path: (one.st_mtime_ns, one.st_size) for path, one in found.items()}

    before = files()
    visitor = Visitor.with_link(server)
    scan(visitor)
    trial = sorted((root / "study" / "runs").iterdir())[0]
    for path in (f"study/{id_of(root / 'study')}", f"run/{id_of(trial)}"):
        stream = visitor.events(f"/api/views/{path}")
        next(stream)
        stream.close()
    assert files() == before


def test_a_torn_directory_is_said_and_spoils_no_other(
    server: DashboardServer, root: Path, tmp_path: Path
) -> None:
    torn = write_run(root, "torn", JOB)
    visitor = Visitor.with_link(server)
    stream = visitor.events(f"/api/views/run/{id_of(torn.path)}")
    assert "unreadable" not in next(stream)["order"]
    (torn.path / "status.json").write_text("{")
    message = next(stream)
    assert "unreadable" in message["order"]
    assert "progress" in message["order"]
    stream.close()
    (torn.path / "manifest.json").write_text('{"job": {}}')
    assert visitor.get(f"/api/views/run/{id_of(torn.path)}0").status == 400
