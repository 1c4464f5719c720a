"""Jobs whose data is in a store: S3 by moto's server, sftp by OpenSSH's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from phalanx.store.url_store import UrlStore
from support.runs import Place
from support.url_servers import FileServer, s3_server, settle_clients, sftp_server

SERVERS = {"s3": s3_server, "sftp": sftp_server}


@pytest.fixture(scope="module", params=["s3", pytest.param("sftp", marks=pytest.mark.full)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FileServer]:
    settle_clients()
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.fixture
def store(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[UrlStore]:
    for key, value in server.environment.items():
        monkeypatch.setenv(key, value)
    found = UrlStore(server.url)
    yield found
    found.close()


def test_a_job_by_url_ends_with_the_bits_of_the_local_one(place: Place, store: UrlStore) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 8)).astype(np.float32)
    path = place.folder / "flowers.npz"
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(np.int64))
    store.put(path, "flowers.npz")
    job = {"model": "mlp", "epochs": 1, "workers": 2, "batch": {"global": 30}}
    losses = []
    for name in (str(path), f"{store.url}/flowers.npz"):
        file = place.write_job({**job, "data": name})
        losses.append(place.summary(file)["test_loss"])
    assert losses[0] == losses[1]


def test_an_address_that_is_not_there_ends_with_one_sentence(place: Place, store: UrlStore) -> None:
    job = place.write_job({"model": "mlp", "data": f"{store.url}/nothing.csv", "epochs": 1})
    done = place.run("train", job)
    assert done.returncode == 2
    assert f"{store.url}/nothing.csv does not exist, or holds no files" in done.stderr
    assert "Traceback" not in done.stderr
