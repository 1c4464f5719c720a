"""The dashboard in a real browser: live, quiet, alone, with keys only, on a phone, in the dark."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page

from phalanx.cli.dashboard import describers
from phalanx.dashboard.library import Library, id_of
from phalanx.dashboard.once import render_once
from phalanx.dashboard.serve import DashboardServer
from phalanx.plan.planfile import write_plan
from phalanx.records.events import Event, Failure, Switched
from phalanx.records.rundir import RunDir, Status
from phalanx.records.stop_request import is_stop_requested
from support.dashboard import JOB, made_up_plan, serving, write_small_study
from support.records import Outcome, write_run
from support.runs import ENDLESS, Place

LIMIT_MS = 100_000
HOSTILE = "<img src=x onerror=document.body.dataset.harmed=1>"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("first", "second", HOSTILE):
        warning = f"{HOSTILE}</script><script>document.body.dataset.harmed=1</script>"
        write_run(tmp_path, name, JOB, Outcome(warning=warning, watts=40.0))
    run = RunDir(tmp_path / HOSTILE)
    (run.path / "logs").mkdir()
    (run.path / "logs" / "worker-0.log").write_text(f"{HOSTILE}\nthe last line\n")
    write_small_study(tmp_path / "study")
    return tmp_path


@pytest.fixture
def server(root: Path) -> Iterator[DashboardServer]:
    with serving([root]) as server:
        yield server


@dataclass
class Visit:
    """A page, and what it said and asked for."""

    page: Page
    server: DashboardServer
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(self.server.link, timeout=LIMIT_MS)
        self.ready("list")

    def ready(self, kind: str) -> None:
        self.page.wait_for_selector(f"main[data-ready={kind}]", timeout=LIMIT_MS)

    def open(self, kind: str, id: str) -> None:
        self.page.evaluate("hash => { location.hash = hash; }", f"#/{kind}/{id}")
        self.ready(kind)

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for(timeout=LIMIT_MS)

    def until(self, expression: str) -> None:
        """Wait for a condition; the page forbids what Playwright would wait with."""
        deadline_s = time.monotonic() + LIMIT_MS / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline_s, expression
            self.page.wait_for_timeout(50)

    def charts(self) -> None:
        """Wait until every chart has marks."""
        self.until(
            "Array.from(document.querySelectorAll('.chart')).every(c => c.querySelector('svg g'))"
            " && document.querySelector('.chart') !== null"
        )

    def leave(self) -> None:
        """Close it, after it said nothing, asked nobody else and was not harmed."""
        harmed = self.page.evaluate("document.body.dataset.harmed")
        self.page.context.close()
        origin = f"http://127.0.0.1:{self.server.access.port}/"
        assert self.said == []
        assert [url for url in self.asked if not url.startswith((origin, "data:"))] == []
        # The token is used once, and is in no address afterwards.
        assert [url for url in self.asked if "token" in url] == [self.server.link]
        assert harmed is None


def visit(browser: Browser, server: DashboardServer, width: int = 1280, **settings: str) -> Visit:
    context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
    return Visit(context.new_page(), server)


def append(run: RunDir, process: str, *events: Event) -> None:
    with run.events_path(process).open("ab") as file:
        for event in events:
            file.write(msgspec.json.encode(event) + b"\n")


def test_a_live_run_is_followed_through_a_fault_and_a_switch_to_its_end(
    browser: Browser, server: DashboardServer, root: Path
) -> None:
    job = {**JOB, "strategy": {"name": "parameter_server", "dispatch": "dynamic"}}
    live = write_run(root, "live", job, Outcome(state="running", epochs=3))
    live.write_status(Status.of_this_process("running", attempt=1))
    seen = visit(browser, server)
    seen.open("run", id_of(live.path))
    seen.charts()
    seen.sees("▶ running")
    marks = "document.querySelectorAll('[data-figure=learning] .mark-symbol path').length"
    before = seen.page.evaluate(marks)
    donor = write_run(root, "donor", job, Outcome(epochs=6))
    content = donor.events_path("worker-0").read_bytes().splitlines(keepends=True)
    epochs = [line for line in content if b'"kind":"epoch"' in line]
    with live.events_path("worker-0").open("ab") as file:
        file.write(b"".join(epochs))
    seen.until(f"{marks} > {before}")
    append(live, "controller", Failure(rank=1, cause="worker-1 was killed by signal 9"))
    seen.sees("worker-1 was killed by signal 9")
    switch = Switched(
        phase=1,
        before="allreduce",
        after="parameter_server",
        cause="the gradients are quiet",
        epoch=1,
        samples=512,
        pause_s=0.04,
        carried=[],
    )
    append(live, "controller", switch)
    seen.sees("the gradients are quiet")
    seen.page.get_by_label("number of workers").fill("5")
    seen.page.get_by_role("button", name="scale").click()
    seen.sees("asked live for 5 workers")
    assert live.requested_workers() == 5
    stop = seen.page.get_by_role("button", name="stop")
    stop.focus()
    seen.page.keyboard.press("Enter")
    seen.sees("stop: press again")
    assert not is_stop_requested(live, 1)
    seen.page.keyboard.press("Enter")
    seen.sees("asked live to stop")
    assert is_stop_requested(live, 1)
    assert not seen.page.get_by_role("button", name="switch now").is_visible()
    live.write_status(Status.of_this_process("finished", attempt=1))
    seen.sees("✓ finished")
    for name in ("scale", "stop"):
        assert not seen.page.get_by_role("button", name=name).is_visible()
    seen.leave()


@pytest.mark.full
def test_a_real_run_is_watched_while_a_worker_is_killed(browser: Browser, place: Place) -> None:
    """The commands as a user starts them: training, dashboard, and a page that sees the loss."""
    strategy = {"name": "parameter_server", "consistency": "async", "servers": 1}
    job = place.write_job({**ENDLESS, "strategy": strategy})
    with place.start(job) as training:
        pids = training.worker_pids()
        with commanded(place) as link:
            page = browser.new_page()
            page.goto(link, timeout=LIMIT_MS)
            page.get_by_role("link", name=training.run.name).click(timeout=LIMIT_MS)
            page.get_by_text("▶ running").wait_for(timeout=LIMIT_MS)
            page.get_by_text("samples/s").first.wait_for(timeout=LIMIT_MS)
            os.kill(pids[1], signal.SIGKILL)
            fault = page.locator("#part-faults").get_by_text("replace worker-1")
            fault.first.wait_for(timeout=LIMIT_MS)
            training.process.send_signal(signal.SIGINT)
            page.get_by_text("‖ interrupted").wait_for(timeout=LIMIT_MS)
            page.close()
        training.end()


@pytest.mark.full
def test_a_real_run_is_switched_and_stopped_from_the_page(browser: Browser, place: Place) -> None:
    job = place.write_job({**ENDLESS, "strategy": "switch"})
    with place.start(job) as training:
        training.worker_pids()
        with commanded(place) as link:
            page = browser.new_page()
            page.goto(link, timeout=LIMIT_MS)
            page.get_by_role("link", name=training.run.name).click(timeout=LIMIT_MS)
            now = page.get_by_role("button", name="switch now")
            now.click(timeout=LIMIT_MS)
            now.click()
            switch = page.locator("#part-switches").get_by_text("a user asked for it")
            switch.first.wait_for(timeout=LIMIT_MS)
            # It is in its last phase now.
            now.wait_for(state="hidden", timeout=LIMIT_MS)
            stop = page.get_by_role("button", name="stop")
            stop.click()
            stop.click()
            page.get_by_text("‖ interrupted").wait_for(timeout=LIMIT_MS)
            page.close()
        code, errors = training.end()
    assert (code, "stopped on request" in errors) == (130, True)


@contextmanager
def commanded(place: Place) -> Iterator[str]:
    """Run `phalanx dashboard`; yields its link, and interrupts it, which is its usual end."""
    with subprocess.Popen(
        place.command("dashboard"), cwd=place.folder, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_with_keys_only_two_runs_are_found_and_compared(
    browser: Browser, server: DashboardServer
) -> None:
    seen = visit(browser, server)
    keys = seen.page.keyboard
    keys.press("/")
    keys.type("finished digits")
    seen.until("document.querySelectorAll('tbody tr').length > 2")
    keys.press("Escape")
    for _ in range(2):
        keys.press("j")
        keys.press("x")
    keys.press("c")
    seen.ready("compare")
    seen.charts()
    assert seen.page.locator("[data-table=compared] tbody tr").count() == 2
    keys.press("l")
    seen.ready("list")
    keys.press("j")
    keys.press("Enter")
    seen.ready("run")
    keys.press("?")
    assert seen.page.locator("dialog").is_visible()
    keys.press("Escape")
    seen.leave()


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.full), "dark"])
def test_on_a_phone_everything_fits(
    browser: Browser, server: DashboardServer, root: Path, scheme: str
) -> None:
    seen = visit(browser, server, width=390, color_scheme=scheme)
    for kind, path in (("run", root / HOSTILE), ("study", root / "study")):
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
        seen.open(kind, id_of(path))
        if kind == "run":
            seen.charts()
            seen.page.get_by_text("Output of processes").click()
            seen.sees("the last line")
    ground = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(22, 24, 28)" if scheme == "dark" else "rgb(255, 255, 255)")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    seen.leave()


def test_a_plan_a_study_and_the_map_of_machines(
    browser: Browser, server: DashboardServer, root: Path
) -> None:
    write_plan(made_up_plan(), root / "first" / "plan.json")
    seen = visit(browser, server)
    seen.open("study", id_of(root / "study"))
    seen.charts()
    seen.sees("4 of at least 4 runs have ended")
    seen.open("run", id_of(root / "first"))
    seen.charts()
    seen.page.locator("#part-plan").get_by_text("Use pc1").wait_for(timeout=LIMIT_MS)
    assert seen.page.locator("#part-machines .chart").count() >= 3
    seen.page.locator("#part-map").get_by_text("worker-1").first.wait_for(timeout=LIMIT_MS)
    seen.leave()


def test_the_candidates_of_a_plan_are_drawn(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(made_up_plan(), path)
    with serving([path]) as server:
        seen = visit(browser, server, width=390, color_scheme="dark")
        seen.open("plan", id_of(path))
        seen.charts()
        assert seen.page.locator("[data-table=candidates] tbody tr").count() == 2
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
        seen.leave()


def test_a_stranger_sees_nothing(browser: Browser, server: DashboardServer) -> None:
    page = browser.new_page()
    answer = page.goto(server.link.partition("?")[0], timeout=LIMIT_MS)
    assert answer is not None
    assert answer.status == 401
    words = page.inner_text("body").strip()
    assert (
        words
        == "This dashboard opens with the link that `phalanx dashboard` printed, token included."
    )
    page.close()


def test_the_file_of_the_view_needs_nobody(browser: Browser, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "view.html"
    file.write_text(render_once(Library([root]), describers()))
    page = browser.new_page(viewport={"width": 390, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri(), timeout=LIMIT_MS)
    page.wait_for_selector(".chart svg g", state="attached", timeout=LIMIT_MS)
    assert page.evaluate("document.body.dataset.harmed") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    page.close()


@pytest.mark.full
def test_a_search_among_a_thousand_runs(
    browser: Browser, server: DashboardServer, root: Path
) -> None:
    for number in range(1000):
        run = root / f"many-{number:04d}"
        run.mkdir()
        for name in ("manifest.json", "status.json", "summary.json"):
            shutil.copyfile(root / "first" / name, run / name)
    seen = visit(browser, server)
    seen.until("document.querySelector('.filters .note').textContent.includes('1,00')")
    assert seen.page.locator("tbody tr").count() == 200
    seen.page.get_by_label("search").fill("many-0777")
    seen.until("document.querySelectorAll('tbody tr').length === 1")
    seen.leave()
