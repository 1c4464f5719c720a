"""Serve the dashboard over HTTP: one page, its data as server-sent events, and few changes.

Every answer passes `_Guard`. Files of runs are read in threads, so that a slow disk holds up
nobody else; a view that several people look at is read once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from importlib import resources
from typing import Annotated

import msgspec
from fastapi import FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phalanx.dashboard.access import HEADERS, Access
from phalanx.dashboard.actions import ACTIONS
from phalanx.dashboard.chart_bundle import bundled_library
from phalanx.dashboard.follow import read_text_from
from phalanx.dashboard.library import UNREADABLE, Library, LibraryEntry
from phalanx.dashboard.views import Describers, View, open_view
from phalanx.errors import PhalanxError, SpecError, printable
from phalanx.records.rundir import RunDir
from phalanx.report.document import Section, line
from phalanx.report.page import chart_config, interaction_script

INTERVAL_S = 1.0
LIBRARY_INTERVAL_S = 2.0
MAX_VIEWS = 16
MAX_COMPARED = 12
_QUIET_S = 15.0
_FILES = {
    "actions.js": "text/javascript",
    "app.js": "text/javascript",
    "blocks.js": "text/javascript",
    "charts.js": "text/javascript",
    "dom.js": "text/javascript",
    "interact.js": "text/javascript",
    "list.js": "text/javascript",
    "logs.js": "text/javascript",
    "app.css": "text/css",
}
_REFUSAL = "This dashboard opens with the link that `phalanx dashboard` printed, token included.\n"


class _SharedView:
    """A view with its encoded sections, for all who look at it."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.sections: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self.cost_s = 0.0
        """Processor time of the last look."""
        self._polled_s = float("-inf")

    def update(self) -> dict[str, bytes]:
        """Read what is new, unless somebody just did; return the sections in order."""
        with self._lock:
            if time.monotonic() - self._polled_s < INTERVAL_S / 2 and not self.view.is_behind:
                return self.sections
            begun_s = time.thread_time()
            try:
                if self.view.poll() or not self.sections:
                    found = self.view.sections()
                    self.sections = {one.id: msgspec.json.encode(one) for one in found}
            except UNREADABLE as error:
                # Said where the figures would be; what was read before stays.
                self.sections = {**self.sections, "unreadable": _unreadable(error)}
            self.cost_s = time.thread_time() - begun_s
            self._polled_s = time.monotonic()
            return self.sections


def _unreadable(error: Exception) -> bytes:
    words = line(f"cannot be read: {printable(str(error))[:500]}", "doubt")
    return msgspec.json.encode(Section(id="unreadable", title="Unreadable", blocks=[words]))


class Dashboard:
    """What the requests share.

    Args:
        library: Runs, studies and plans.
        describers: The commands' own descriptions.
    """

    def __init__(self, library: Library, describers: Describers) -> None:
        self.library = library
        self.closing = asyncio.Event()
        """Ends the streams, which would hold up the end of the server; set in its loop."""
        self._describers = describers
        self._views: OrderedDict[str, _SharedView] = OrderedDict()
        self._lock = threading.Lock()
        self._entries: dict[str, LibraryEntry] = {}
        self._scanned_s = float("-inf")

    def scan(self) -> dict[str, LibraryEntry]:
        """Look for runs, studies and plans, unless somebody just did."""
        with self._lock:
            if time.monotonic() - self._scanned_s > LIBRARY_INTERVAL_S / 2:
                self._entries = dict(self.library.scan())
                self._scanned_s = time.monotonic()
            return self._entries

    def find(self, id: str) -> LibraryEntry:
        """Find an entry; one that is new is looked for."""
        with self._lock:
            return self.library.find(id)

    def view(self, kind: str, ids: str) -> _SharedView:
        """Open a view, or the one that others look at."""
        key = f"{kind}/{ids}"
        with self._lock:
            if key not in self._views:
                wanted = list(dict.fromkeys(ids.split(",")))
                if len(wanted) > MAX_COMPARED:
                    raise SpecError(f"at most {MAX_COMPARED} runs can be compared")
                try:
                    view = open_view(self.library, kind, wanted, self._describers)
                except UNREADABLE as error:
                    raise SpecError(f"cannot be read: {error}") from error
                self._views[key] = _SharedView(view)
            self._views.move_to_end(key)
            while len(self._views) > MAX_VIEWS:
                self._views.popitem(last=False)
            return self._views[key]

    async def view_stream(self, shared: _SharedView) -> AsyncIterator[bytes]:
        """Send the sections of a view, and from then on those that change."""
        sent: dict[str, bytes] = {}
        sent_state = ""
        quiet_since_s = time.monotonic()
        while not self.closing.is_set():
            sections = await run_in_threadpool(shared.update)
            state = shared.view.state
            changed = [body for id, body in sections.items() if sent.get(id) != body]
            if changed or list(sent) != list(sections) or state != sent_state:
                head = {
                    "title": shared.view.title,
                    "state": state,
                    "actions": shared.view.actions,
                    "order": list(sections),
                }
                yield _message(head, b"sections", changed)
                sent, sent_state = dict(sections), state
                quiet_since_s = time.monotonic()
            elif time.monotonic() - quiet_since_s > _QUIET_S:
                # So that a connection which broke silently is noticed.
                yield b": \n\n"
                quiet_since_s = time.monotonic()
            if not shared.view.is_behind:
                # A view that is dear to make is made less often: at most an eighth of one core.
                await self._pause(max(INTERVAL_S, 7 * shared.cost_s))

    async def library_stream(self) -> AsyncIterator[bytes]:
        """Send all entries, and from then on those that change."""
        sent: dict[str, LibraryEntry] | None = None
        quiet_since_s = time.monotonic()
        while not self.closing.is_set():
            entries = await run_in_threadpool(self.scan)
            before = sent or {}
            changed = [one for id, one in entries.items() if before.get(id) != one]
            gone = [id for id in before if id not in entries]
            if sent is None or changed or gone:
                bodies = [msgspec.json.encode(one, enc_hook=str) for one in changed]
                yield _message({"gone": gone}, b"changed", bodies)
                quiet_since_s = time.monotonic()
            elif time.monotonic() - quiet_since_s > _QUIET_S:
                yield b": \n\n"
                quiet_since_s = time.monotonic()
            sent = entries
            await self._pause(LIBRARY_INTERVAL_S)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.closing.wait(), seconds)


def _message(head: Mapping[str, object], name: bytes, bodies: list[bytes]) -> bytes:
    """Make one server-sent event of a mapping and a list that is encoded already."""
    start = msgspec.json.encode(head)[:-1]
    return b"data: " + start + b',"' + name + b'":[' + b",".join(bodies) + b"]}\n\n"


class _Guard:
    """Lets nobody past without the cookie, or with the token to the page; adds the headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        access, headers = self._access, request.headers
        host = headers.get("host", "")
        if not access.accepts_host(host):
            return PlainTextResponse("Unknown host.\n", status_code=421)
        token = request.query_params.get("token")
        is_page = request.method == "GET" and request.url.path == "/"
        if is_page and token is not None and access.accepts_token(token):
            return None
        if not access.accepts_cookies(headers.getlist("cookie")):
            return PlainTextResponse(_REFUSAL, status_code=401)
        if request.method not in ("GET", "HEAD"):
            is_json = headers.get("content-type", "").partition(";")[0] == "application/json"
            if not is_json or not access.accepts_origin(headers.get("origin"), host):
                return PlainTextResponse("Only from the dashboard's page.\n", status_code=403)
        return None


def create_app(dashboard: Dashboard, access: Access) -> FastAPI:
    """Make the application; what it serves is described in the how-to page."""
    # The generated documentation would load scripts from elsewhere.
    app = FastAPI(title="phalanx", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Guard, access=access)

    @app.exception_handler(PhalanxError)
    async def refuse(request: Request, error: PhalanxError) -> Response:
        return JSONResponse({"error": str(error)}, status_code=400)

    @app.get("/")
    async def page() -> Response:
        answer = Response(_asset("index.html"), media_type="text/html")
        answer.set_cookie(access.cookie_name, access.session, httponly=True, samesite="strict")
        return answer

    @app.get("/vega.js")
    def library() -> Response:
        kept = {"cache-control": "private, max-age=86400"}
        return Response(bundled_library(), media_type="text/javascript", headers=kept)

    @app.get("/api/chart-config")
    async def config() -> Response:
        return JSONResponse(chart_config())

    @app.get("/api/library")
    async def entries() -> Response:
        return _events(dashboard.library_stream())

    @app.get("/api/views/{kind}/{ids}")
    async def view(kind: str, ids: str) -> Response:
        shared = await run_in_threadpool(dashboard.view, kind, ids)
        return _events(dashboard.view_stream(shared))

    _add_run_routes(app, dashboard)

    @app.get("/{name}")
    async def asset(name: str) -> Response:
        if name not in _FILES:
            return PlainTextResponse("Not found.\n", status_code=404)
        return Response(_asset(name), media_type=_FILES[name])

    return app


def _add_run_routes(app: FastAPI, dashboard: Dashboard) -> None:
    @app.get("/api/runs/{id}/logs")
    def logs(id: str) -> Response:
        folder = dashboard.find(id).path / "logs"
        return JSONResponse(sorted(path.stem for path in folder.glob("*.log")))

    @app.get("/api/runs/{id}/logs/{process}")
    def log(id: str, process: str, offset: Annotated[int | None, Query(ge=0)] = None) -> Response:
        folder = dashboard.find(id).path / "logs"
        # By comparison with what is there, so that no request makes a path.
        for path in folder.glob("*.log"):
            if path.stem == process:
                piece = read_text_from(path, offset)
                return Response(msgspec.json.encode(piece), media_type="application/json")
        return JSONResponse({"error": "there is no such log"}, status_code=404)

    @app.post("/api/runs/{id}/{action}")
    def act(id: str, action: str, settings: dict[str, int]) -> Response:
        entry = dashboard.find(id)
        if action not in ACTIONS or entry.kind != "run":
            return JSONResponse({"error": "there is no such action"}, status_code=404)
        done = ACTIONS[action](RunDir.open(entry.path), settings)
        return JSONResponse({"done": done})


def _events(stream: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(stream, media_type="text/event-stream")


def _asset(name: str) -> bytes:
    if name == "interact.js":
        return interaction_script()
    return resources.files("phalanx.dashboard").joinpath("assets", name).read_bytes()
