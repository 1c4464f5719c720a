"""Run the dashboard's server until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from phalanx.dashboard.access import LOOPBACK, Access
from phalanx.dashboard.server import Dashboard, create_app
from phalanx.errors import SpecError

_BACKLOG = 128


class DashboardServer:
    """A server that listens from its construction on, and answers while `run` is called.

    Args:
        dashboard: What it serves.
        host: Address to listen on.
        port: Port; 0: a free one.

    Raises:
        SpecError: The address cannot be listened on.
    """

    def __init__(self, dashboard: Dashboard, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._socket = _listen(host, port)
        own_port = int(self._socket.getsockname()[1])
        self.is_loopback = host in ("127.0.0.1", "localhost", "::1")
        self.access = Access(own_port, LOOPBACK if self.is_loopback else None)
        shown = "127.0.0.1" if host != "::1" else "[::1]"
        if not self.is_loopback:
            shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
        self.link = f"http://{shown}:{own_port}/?token={self.access.token}"
        config = uvicorn.Config(
            create_app(dashboard, self.access),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
        self._server = _ClosingServer(config, dashboard.closing.set)

    def run(self) -> None:
        """Serve until `stop` is called, or the process is interrupted."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True


class _ClosingServer(uvicorn.Server):
    """Ends the streams when it is asked to end, instead of waiting for those who look."""

    def __init__(self, config: uvicorn.Config, close: Callable[[], None]) -> None:
        super().__init__(config)
        self._close = close

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._close()
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SpecError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listening
