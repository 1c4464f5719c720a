"""Files of a store by URL: whole or absent, retried, and one sentence where that does not help."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fsspec  # noqa: F401 (its table of schemes)
import pytest
from pydantic_core import PydanticCustomError

from phalanx.errors import SpecError, StoreError
from phalanx.spec.urls import without_secrets
from phalanx.store import url_store
from phalanx.store.url_errors import explain
from phalanx.store.url_store import RetryRule, UrlStore


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> UrlStore:
    return UrlStore(f"{request.param}://{tmp_path}")


def test_a_file_is_replaced_listed_and_read_in_ranges(store: UrlStore) -> None:
    store.write("a/b.bin", b"old")
    store.write("a/b.bin", bytes(range(100)))
    assert [(one.name, one.size) for one in store.list()] == [("a/b.bin", 100)]
    assert store.read("a/b.bin", 10, 14) == bytes([10, 11, 12, 13])
    store.delete("a/b.bin")
    store.delete("a/b.bin")
    assert store.list() == []


def test_a_fetched_file_is_whole(store: UrlStore, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    store.write("x", b"12345")
    store.fetch("x", tmp_path / "copy", lambda _, done, total: seen.append((done, total)))
    assert (tmp_path / "copy").read_bytes() == b"12345"
    assert seen == [(5, 5)]


def test_a_missing_file_is_named(store: UrlStore) -> None:
    with pytest.raises(StoreError, match="nope does not exist; check the address"):
        store.read("nope")


def test_a_broken_request_is_repeated_over_a_new_connection(
    store: UrlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("x", b"12345")
    connect, opened = url_store._connect, []

    class Breaking:
        def __init__(self, fs: Any) -> None:
            self._fs = fs

        def cat_file(self, *_: Any, **__: Any) -> bytes:
            raise ConnectionResetError("connection reset")

    def connecting(url: str, scheme: str) -> tuple[Any, str]:
        fs, path = connect(url, scheme)
        opened.append(url)
        return (Breaking(fs) if len(opened) == 1 else fs), path

    monkeypatch.setattr(url_store, "_connect", connecting)
    store.close()
    assert store.read("x") == b"12345"
    assert len(opened) == 2


def test_a_store_that_never_answers_ends_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> tuple[Any, str]:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(url_store, "_connect", refuse)
    store = UrlStore("memory://nowhere", RetryRule(request_s=0.1, deadline_s=0.1))
    with pytest.raises(StoreError, match=r"could not be reached within 0 s \(refused\)"):
        store.read("x")


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(SpecError, match="no store is known by 'foo://'"):
        UrlStore("foo://x/y").read()


def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(SpecError, match=r"pip install 'phalanx\[s3\]'"):
        UrlStore("s3://bucket/x").read()


def test_refused_access_is_not_tried_again() -> None:
    assert explain(PermissionError("Access Denied"), "s3://b").kind == "denied"
    assert explain(ConnectionResetError(), "s3://b").is_passing


@pytest.mark.parametrize("url", ["sftp://me:secret@host/x", "https://h/x?token=abc"])
def test_an_address_with_a_secret_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        without_secrets(url)
    assert "secret" not in str(caught.value.message()).replace("secrets", "")
    assert "abc" not in str(caught.value.message())
