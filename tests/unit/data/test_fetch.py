"""Fetching, against a real server on this machine."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import data_files
from phalanx.data.catalogue import CATALOGUE, Entry, RemoteFile
from phalanx.data.fetch import copy_from, download
from phalanx.errors import DataError, StoreError


@dataclasses.dataclass
class Site:
    """What a server has, how it misbehaves, and what it was asked for."""

    url: str
    files: dict[str, bytes]
    asked: list[str] = dataclasses.field(default_factory=list)
    truncate: bool = False
    silent: threading.Event | None = None


@contextmanager
def _serve(files: dict[str, bytes]) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            site.asked.append(name)
            if name not in files:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(files[name])))
            self.end_headers()
            if site.silent is not None:
                site.silent.wait(30)
                return
            self.wfile.write(files[name][: -10 if site.truncate else None])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(url=f"http://127.0.0.1:{server.server_port}/", files=files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        if site.silent is not None:
            site.silent.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _direct(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def published(tmp_path) -> dict[str, bytes]:
    data_files.write_mnist(tmp_path / "published")
    return {path.name: path.read_bytes() for path in (tmp_path / "published").iterdir()}


def _entry(published: dict[str, bytes], *mirrors: str, of_contents: bool = True) -> Entry:
    def remote(name: str) -> RemoteFile:
        data = published[name]
        digest = hashlib.sha256(gzip.decompress(data) if of_contents else data).hexdigest()
        return RemoteFile(name=name, sha256=digest, of_contents=of_contents, size_bytes=len(data))

    mnist = CATALOGUE["mnist"]
    files = tuple(remote(file.name) for file in mnist.files)
    return dataclasses.replace(mnist, mirrors=mirrors, files=files)


def _listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("of_contents", [True, False])
def test_download(tmp_path, published, of_contents):
    progress: list[tuple[str, int, int]] = []
    with _serve(published) as site:
        entry = _entry(published, site.url, of_contents=of_contents)
        paths = download(entry, root=tmp_path, on_progress=lambda *facts: progress.append(facts))
        download(entry, root=tmp_path)
        assert len(site.asked) == 4  # the second time, everything was there
    assert {path.name: path.read_bytes() for path in paths} == published
    assert _listing(tmp_path / "mnist") == sorted(published)
    for name, data in published.items():
        assert (name, len(data), len(data)) in progress


def test_a_damaged_file_is_fetched_again(tmp_path, published):
    with _serve(published) as site:
        entry = _entry(published, site.url)
        path = download(entry, root=tmp_path)[0]
        path.write_bytes(path.read_bytes()[:-4])
        download(entry, root=tmp_path)
    assert path.read_bytes() == published[path.name]


def test_not_found_and_the_next_mirror(tmp_path, published):
    with _serve({}) as empty, _serve(published) as site:
        download(_entry(published, empty.url, site.url), root=tmp_path)
        assert _listing(tmp_path / "mnist") == sorted(published)
        with pytest.raises(DataError) as caught:
            download(_entry(published, empty.url), root=tmp_path / "other")
    message = str(caught.value)
    assert f"{empty.url}train-images-idx3-ubyte.gz answered 404" in message
    assert "phalanx data fetch mnist --from DIR" in message


def test_truncated_body(tmp_path, published):
    with _serve(published) as site:
        site.truncate = True
        with pytest.raises(DataError, match=r"broke off after [\d,]+ of [\d,]+ bytes"):
            download(_entry(published, site.url), root=tmp_path)
    assert _listing(tmp_path / "mnist") == []


def test_wrong_checksum(tmp_path, published):
    other = {name: gzip.compress(b"something else") for name in published}
    with _serve(other) as site, pytest.raises(DataError, match="wrong checksum"):
        download(_entry(published, site.url), root=tmp_path)
    assert _listing(tmp_path / "mnist") == []


def test_a_silent_server(tmp_path, published):
    with _serve(published) as site:
        site.silent = threading.Event()
        with pytest.raises(DataError, match="broke off"):
            download(
                _entry(published, site.url), root=tmp_path, timeout=timedelta(milliseconds=200)
            )


def test_nobody_there(tmp_path, published):
    with _serve({}) as site:
        url = site.url
    with pytest.raises(DataError, match="could not be reached"):
        download(_entry(published, url), root=tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path, published):
    (tmp_path / "mnist").write_text("in the way")
    with _serve(published) as site, pytest.raises(StoreError, match="PHALANX_DATA"):
        download(_entry(published, site.url), root=tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_copy_from_a_directory(tmp_path, published, packed):
    origin = tmp_path / "stick"
    data_files.write_mnist(origin / "mnist", packed=packed)
    paths = copy_from(_entry(published), origin, root=tmp_path / "root")
    assert [p.parent for p in paths] == [tmp_path / "root" / "mnist"] * 4
    assert _listing(tmp_path / "root" / "mnist") == _listing(origin / "mnist")


def test_copy_accepts_files_packed_anew(tmp_path, published):
    origin = tmp_path / "stick"
    origin.mkdir()
    for name, data in published.items():
        (origin / name).write_bytes(gzip.compress(gzip.decompress(data), 1, mtime=7))
    copy_from(_entry(published), origin, root=tmp_path / "root")


@pytest.mark.parametrize("of_contents", [True, False])
def test_copy_of_a_damaged_file(tmp_path, published, of_contents):
    origin = tmp_path / "stick"
    data_files.write_mnist(origin)
    path = origin / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=f"{path} is truncated or corrupt"):
        copy_from(_entry(published, of_contents=of_contents), origin, root=tmp_path / "root")
    assert _listing(tmp_path / "root") == []


def test_copy_of_the_wrong_file(tmp_path, published):
    data_files.write_mnist(tmp_path / "stick", seed=9)
    with pytest.raises(DataError, match="wrong checksum"):
        copy_from(_entry(published), tmp_path / "stick", root=tmp_path / "root")


def test_copy_onto_itself_keeps_the_files(tmp_path, published):
    data_files.write_mnist(tmp_path / "mnist")
    copy_from(_entry(published), tmp_path, root=tmp_path)
    assert _listing(tmp_path / "mnist") == sorted(published)


def test_copy_of_what_is_not_there(tmp_path, published):
    with pytest.raises(DataError, match="was not found"):
        copy_from(_entry(published), tmp_path / "stick", root=tmp_path)


@pytest.mark.parametrize("layout", ["tar", "batches", "parquet"])
def test_copy_of_cifar(tmp_path, layout):
    origin = tmp_path / "stick"
    if layout == "parquet":
        for part in ("train", "test"):
            data_files.write_image_parquet(
                origin / f"{part}-0.parquet", data_files.images(3), range(3)
            )
    else:
        data_files.write_cifar(origin, as_tar=layout == "tar")
    entry = CATALOGUE["cifar10"]
    paths = copy_from(entry, origin, root=tmp_path / "root")
    # What was copied is found again.
    assert copy_from(entry, tmp_path / "root", root=tmp_path / "second")
    assert len(paths) == {"tar": 1, "batches": 6, "parquet": 2}[layout]
