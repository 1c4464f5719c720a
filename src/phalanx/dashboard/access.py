"""Decide who may see a dashboard: those who have its link, and from then on their cookie.

The link carries a token. Whoever presents it gets a cookie, which every other request needs; there
is nothing to see or to do without. Cookies are not sent by pages of other sites (`SameSite`), and
a change is accepted only as JSON from the dashboard's own page.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Of every answer: the page loads nothing from elsewhere, and runs no script but its own files."""


@dataclass(frozen=True)
class Access:
    """Token and cookie of one dashboard.

    Args:
        port: Port of the server; part of the cookie's name, as cookies are shared by all ports.
        hosts: Names by which the dashboard may be addressed; None: any.
    """

    port: int
    hosts: frozenset[str] | None = LOOPBACK
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie_name(self) -> str:
        """Name of the cookie."""
        return f"phalanx-{self.port}"

    def accepts_host(self, host: str) -> bool:
        """Tell whether a request addresses this dashboard; other names may be a stranger's."""
        return self.hosts is None or host.rpartition(":")[0] in self.hosts or host in self.hosts

    def accepts_token(self, token: str | None) -> bool:
        """Tell whether a link is the right one."""
        return token is not None and _equal(token, self.token)

    def accepts_cookies(self, headers: Iterable[str]) -> bool:
        """Tell whether any of these `Cookie` headers holds the session."""
        for header in headers:
            try:
                found = SimpleCookie(header).get(self.cookie_name)
            except CookieError:
                continue
            if found is not None and _equal(found.value, self.session):
                return True
        return False

    def accepts_origin(self, origin: str | None, host: str) -> bool:
        """Tell whether a change comes from the dashboard's own page."""
        return origin == f"http://{host}"


def _equal(given: str, right: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), right.encode())
