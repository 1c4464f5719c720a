"""Data sets by URL, from real servers: copied whole and once, or one sentence."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import data_files
from phalanx.data import url_files
from phalanx.data.dataset import open_dataset
from phalanx.data.url_files import local_files
from phalanx.errors import DataError, StoreError
from phalanx.spec.data import DataSpec
from phalanx.store import url_store
from phalanx.store.url_store import RetryRule, UrlStore
from support.relay import Relay
from support.url_servers import FileServer, let_in, s3_server, settle_clients, sftp_server

PLENTY = 10**9


@pytest.fixture(scope="module", autouse=True)
def settled() -> None:
    settle_clients()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def sftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    with sftp_server(tmp_path_factory.mktemp("sftp")) as server:
        yield server


@pytest.fixture(params=["s3", "sftp"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    found: FileServer = request.getfixturevalue(request.param)
    for key, value in found.environment.items():
        monkeypatch.setenv(key, value)
    return found


@pytest.fixture
def shelf(server: FileServer, request: pytest.FixtureRequest) -> Iterator[UrlStore]:
    store = UrlStore(f"{server.url}/{request.node.name.partition('[')[0]}")
    yield store
    store.close()


def put_npz(store: UrlStore, name: str, folder: Path, *, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(40, 6)).astype(np.float32)
    np.savez(folder / "made.npz", x=x, y=np.arange(40) % 3)
    store.put(folder / "made.npz", name)
    return x


def test_a_file_is_copied_once_and_again_when_it_changes(shelf: UrlStore, tmp_path: Path) -> None:
    x = put_npz(shelf, "flowers.npz", tmp_path)
    spec = DataSpec(name=f"{shelf.url}/flowers.npz")
    first = open_dataset(spec, data_root=tmp_path, cache_root=tmp_path / "cache")
    assert (first.name, first.location) == ("flowers", spec.name)
    assert np.array_equal(first.train.inputs, x)
    kept = local_files(spec.name, cache_root=tmp_path / "cache", limit_bytes=PLENTY)
    before = kept.stat().st_ino
    again = open_dataset(spec, data_root=tmp_path, cache_root=tmp_path / "cache")
    assert again.cache_folder == first.cache_folder
    assert kept.stat().st_ino == before
    other = put_npz(shelf, "flowers.npz", tmp_path, seed=1)
    # Times of change over sftp are whole seconds; another size or tag is another file in any case.
    if shelf.url.startswith("sftp"):
        os.utime(Path(shelf.url.partition("shelf")[2]) / "flowers.npz", (0, 0))
    changed = open_dataset(spec, data_root=tmp_path, cache_root=tmp_path / "cache")
    assert np.array_equal(changed.train.inputs, other)


@pytest.mark.parametrize(
    "server", ["sftp", pytest.param("s3", marks=pytest.mark.full)], indirect=True
)
def test_folders_of_tables_and_of_images(shelf: UrlStore, tmp_path: Path) -> None:
    for part in range(3):
        path = tmp_path / "made" / f"part-{part}.parquet"
        data_files.write_image_parquet(path, data_files.images(8, seed=part), [0, 1] * 4)
        shelf.put(path, f"tables/deep/{path.name}")
    for number in range(6):
        picture = data_files.encoded(data_files.images(1, seed=number)[0])
        shelf.write(f"pictures/{'cat' if number % 2 else 'dog'}/{number}.png", picture)
    shelf.write("pictures/.cat.png.1234", b"a file that somebody is writing")
    opened = {
        name: open_dataset(
            DataSpec(name=f"{shelf.url}/{name}/"), data_root=tmp_path, cache_root=tmp_path / "cache"
        )
        for name in ("tables", "pictures")
    }
    assert len(opened["tables"].train.file_sizes) == 3
    assert opened["pictures"].class_names == ("cat", "dog")


def test_a_half_written_object_is_named_by_its_address(shelf: UrlStore, tmp_path: Path) -> None:
    put_npz(shelf, "whole.npz", tmp_path)
    shelf.write("half.npz", (tmp_path / "made.npz").read_bytes()[:300])
    spec = DataSpec(name=f"{shelf.url}/half.npz")
    with pytest.raises(DataError, match=f"^{spec.name} is truncated, corrupt"):
        open_dataset(spec, data_root=tmp_path, cache_root=tmp_path / "cache")


def test_an_absent_address_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.csv does not exist, or holds no files"):
        local_files("memory://nothing.csv", cache_root=tmp_path, limit_bytes=PLENTY)
    assert not (tmp_path / "files").exists()


def test_wrong_credentials_are_said_at_once(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_s3 = server.url.startswith("s3")
    if is_s3:
        let_in(server, everybody=False)
    else:
        monkeypatch.setenv("HOME", str(tmp_path))  # without a key or known hosts
    url = f"{server.url}/x.npz".replace("shelf/", f"127.0.0.1:{server.port}/", not is_s3)
    try:
        with pytest.raises(DataError, match="the store refused access"):
            local_files(url, cache_root=tmp_path, limit_bytes=PLENTY)
    finally:
        if is_s3:
            let_in(server, everybody=True)


def test_a_connection_that_is_cut_is_made_again(
    server: FileServer, shelf: UrlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(3 << 20)
    shelf.write("large.bin", content)
    shelf.close()
    monkeypatch.setattr(url_store, "_BLOCK_BYTES", 1 << 18)
    with Relay(server.port) as relay:
        port = relay.address.rpartition(":")[2]
        if server.url.startswith("s3"):
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        else:
            home = tmp_path / "home" / ".ssh"
            home.mkdir(parents=True)
            for name in ("config", "known_hosts"):
                text = (Path(server.environment["HOME"]) / ".ssh" / name).read_text()
                (home / name).write_text(text.replace(str(server.port), port))
            monkeypatch.setenv("HOME", str(home.parent))
        cuts_at = [1 << 20, 2 << 20]

        def cut(_: str, done: int, total: int) -> None:
            if cuts_at and done >= cuts_at[0]:
                cuts_at.pop(0)
                relay.cut()

        path = local_files(
            f"{shelf.url}/large.bin", cache_root=tmp_path, limit_bytes=PLENTY, on_progress=cut
        )
    assert relay.num_cuts == 2
    assert path.read_bytes() == content


def test_a_store_that_is_gone_leaves_nothing_half_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = UrlStore("memory://gone")
    shelf.write("large.bin", os.urandom(1 << 20))
    monkeypatch.setattr(url_store, "_BLOCK_BYTES", 1 << 18)
    read = UrlStore.read

    def reading(store: UrlStore, name: str = "", start: int = 0, stop: int | None = None) -> bytes:
        if start >= 1 << 19:
            raise StoreError("gone", url=store.url, kind="unreached")
        return read(store, name, start, stop)

    monkeypatch.setattr(UrlStore, "read", reading)
    with pytest.raises(StoreError, match="gone"):
        local_files(f"{shelf.url}/large.bin", cache_root=tmp_path, limit_bytes=PLENTY)
    assert [path.suffix for path in (tmp_path / "files").iterdir()] == [".lock"]


def test_old_copies_give_way_and_fresh_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = UrlStore("memory://shelf")
    for name in "abc":
        store.write(f"{name}.bin", bytes(600))

    def copied(name: str) -> Path:
        return local_files(f"{store.url}/{name}.bin", cache_root=tmp_path, limit_bytes=1000)

    first = copied("a")
    with pytest.raises(DataError, match=r"used within the last hour take 6e-07 of the 1e-06 GB"):
        copied("b")
    old = time.time() - 2 * url_files._IN_USE_S
    os.utime(first.parent / "copy.json", (old, old))
    assert copied("b").stat().st_size == 600
    assert not first.exists()
    with pytest.raises(DataError, match=r"has 6e-07 GB, and .* may take 5e-07 GB"):
        local_files(f"{store.url}/c.bin", cache_root=tmp_path, limit_bytes=500)


def test_a_local_address_is_read_where_it_is(tmp_path: Path) -> None:
    data_files.write_image_parquet(tmp_path / "a b.parquet", data_files.images(8), [0, 1] * 4)
    spec = DataSpec(name=f"file://{tmp_path}/a%20b.parquet")
    assert open_dataset(spec, data_root=tmp_path, cache_root=tmp_path / "c").num_classes == 2
    assert not (tmp_path / "c" / "files").exists()
    with pytest.raises(DataError, match=r"file:///nowhere/x\.csv does not exist"):
        local_files("file:///nowhere/x.csv", cache_root=tmp_path, limit_bytes=PLENTY)


def test_a_store_that_never_answers_is_given_up_at_its_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # connects, and says nothing
        url = f"sftp://127.0.0.1:{nobody.getsockname()[1]}/x"
        store = UrlStore(url, RetryRule(request_s=0.3, deadline_s=0.4))
        with pytest.raises(StoreError, match=f"{url} could not be reached within 0 s"):
            store.read()
