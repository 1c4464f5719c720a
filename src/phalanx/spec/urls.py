"""Read addresses of files in stores: `s3://bucket/folder`, `sftp://host/data`, `hdfs://name/x`.

Pure: nothing is opened. An address is written down in records, so it never holds a password.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from phalanx.spec.base import fault

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_PASSWORD = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@]*:[^/@]*@", re.IGNORECASE)
_SECRET_QUERY = re.compile(r"[?&][^=&]*(?:secret|token|signature|password|key)[^=&]*=", re.I)


def is_url(name: str) -> bool:
    """Return whether a name is the address of a file or folder in a store."""
    return _SCHEME.match(name) is not None


def scheme_of(url: str) -> str:
    """Return the scheme of an address, in lower case."""
    found = _SCHEME.match(url)
    assert found is not None, f"{url} is no URL"
    return found[1].lower()


def local_path(url: str) -> Path | None:
    """Return the path that a `file://` address means; None for any other."""
    return Path(unquote(urlsplit(url).path)) if scheme_of(url) == "file" else None


def without_secrets(url: str) -> str:
    """Return an address unless it holds a password or a key.

    Raises:
        PydanticCustomError: It does.
    """
    if _PASSWORD.match(url) or _SECRET_QUERY.search(url):
        raise fault(
            f"the address {url.split('://')[0]}://… holds a password or key, and job files and "
            "records are read by others",
            "; leave it to the store's own settings, such as ~/.aws/credentials, AWS_* variables "
            "or ~/.ssh/config",
        )
    return url


def join_url(url: str, *names: str) -> str:
    """Return the address of something below another."""
    return "/".join((url.rstrip("/"), *(name.strip("/") for name in names)))


def last_name(url: str) -> str:
    """Return the last part of an address, without what follows a question mark."""
    return urlsplit(url).path.rstrip("/").rpartition("/")[2] or urlsplit(url).netloc
