"""Open files over sftp as ssh would: `~/.ssh/config`, the agent's keys, and known hosts only.

Imports paramiko, so it is imported on use, by `url_store`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem
from typing_extensions import override

_CONNECT_S = 15.0
_SILENCE_S = 20.0  # of a connection while something is asked for


class KnownHostFiles(SFTPFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of a host whose key is known; another key or none is refused."""

    cachable = False

    @override
    def _connect(self) -> None:
        settings = _settings_for(self.host)
        self.client = paramiko.SSHClient()
        for path in settings.pop("known_hosts"):
            if path.is_file():
                self.client.load_system_host_keys(str(path))
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        options: dict[str, Any] = {**settings, **self.ssh_kwargs}
        try:
            self.client.connect(
                options.pop("hostname", self.host),
                timeout=_CONNECT_S,
                banner_timeout=_CONNECT_S,
                auth_timeout=_CONNECT_S,
                **options,
            )
            self.ftp = self.client.open_sftp()
        except BaseException:
            self.client.close()  # a connection that was refused keeps its thread
            raise
        channel = self.ftp.get_channel()
        assert channel is not None
        channel.settimeout(_SILENCE_S)

    @override
    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        first = start or 0
        with self.ftp.open(path, "rb") as file:
            size = file.stat().st_size or 0
            count = (size if end is None else min(end, size)) - first
            # One request in flight at a time would take a round trip for every 32 KB.
            return b"".join(file.readv([(first, count)])) if count > 0 else b""

    def close(self) -> None:
        """End the connection."""
        self.client.close()


def _settings_for(host: str) -> dict[str, Any]:
    """Return what the user's ssh configuration says of a host, in paramiko's names."""
    path = Path("~/.ssh/config").expanduser()
    config = paramiko.SSHConfig.from_path(str(path)) if path.is_file() else paramiko.SSHConfig()
    said = config.lookup(host)
    known = said.get("userknownhostsfile", "~/.ssh/known_hosts /etc/ssh/ssh_known_hosts").split()
    found: dict[str, Any] = {"known_hosts": [Path(one).expanduser() for one in known]}
    if said.get("hostname", host) != host:
        found["hostname"] = said["hostname"]
    if "user" in said:
        found["username"] = said["user"]
    if "port" in said:
        found["port"] = int(said["port"])
    if "identityfile" in said:
        found["key_filename"] = said["identityfile"]
    return found
