"""The depot over real sockets: broken connections, strangers, the replaced, and the half-done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.errors import StoreError, TimeoutExpired
from phalanx.wire import depot_client
from phalanx.wire.depot import PART_BYTES, WINDOW
from phalanx.wire.depot_client import DepotClient
from phalanx.wire.keys import KeyPair
from support.depots import DepotHouse, open_house
from support.relay import Relay
from support.waiting import wait_until

NAME = "checkpoints/samples-000000000064.safetensors"
LARGE = os.urandom(3 * WINDOW * PART_BYTES + 4321)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[DepotHouse]:
    with open_house(tmp_path) as house:
        yield house


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depot_client, "_AGAIN_S", 0.3)


def store(client: DepotClient, content: bytes, name: str = NAME) -> None:
    with client.store(name) as upload:
        upload.write(content)


def fetch(client: DepotClient, name: str = NAME) -> bytes:
    with client.open(name) as file:
        return bytes(file.read(0, file.size))


def leftovers(house: DepotHouse) -> list[str]:
    return [path.name for path in house.root.rglob(".*")]


def test_large_and_empty_files_arrive_whole(house: DepotHouse) -> None:
    client = house.client()
    for content in (LARGE, b"", b"x"):
        store(client, content)
        assert (house.root / NAME).read_bytes() == content
        assert fetch(client) == content
    assert leftovers(house) == []


def test_a_transfer_survives_a_connection_that_breaks(house: DepotHouse) -> None:
    for move in (store, None):
        cut_after = len(LARGE) // 2 if move else 2000
        with Relay(house.depot.port, cut_after=cut_after, stays_cut=False) as relay:
            client = house.client(address=relay.address)
            if move:
                move(client, LARGE)
            else:
                assert fetch(client) == LARGE
            assert relay.num_cuts == 1, "nothing was cut"
            assert relay.num_connections >= 2
    assert (house.root / NAME).read_bytes() == LARGE


def test_a_transfer_that_is_cut_half_way_leaves_the_old_file_whole(house: DepotHouse) -> None:
    keys = house.control.admit("worker-0")
    store(house.client(keys=keys), b"old")
    with Relay(house.depot.port, cut_after=len(LARGE) // 2, stays_cut=True) as relay:
        client = house.client(keys=keys, address=relay.address, limit_s=1.5)
        with pytest.raises(TimeoutExpired, match=rf"waited 1.5 s for {NAME} to reach the depot"):
            store(client, LARGE)
        assert relay.num_cuts == 1, "nothing was cut"
    assert (house.root / NAME).read_bytes() == b"old"
    assert house.client("worker-1").find("checkpoints").coming == (NAME,)
    # Its successor has another key; what the lost one had begun is swept away.
    house.control.admit("worker-0")
    wait_until(lambda: not leftovers(house), "the depot to forget it", limit_s=20)
    assert house.client("worker-1").find("checkpoints").coming == ()


def test_a_writer_that_gives_up_leaves_nothing(house: DepotHouse) -> None:
    client = house.client()
    store(client, b"old")

    def break_off() -> None:
        with client.store(NAME) as upload:
            upload.write(LARGE)
            raise RuntimeError("crash in the middle")

    with pytest.raises(RuntimeError):
        break_off()
    wait_until(lambda: not leftovers(house), "the depot to forget it", limit_s=20)
    assert fetch(client) == b"old"


def test_a_reader_gets_one_file_whatever_becomes_of_its_name(house: DepotHouse) -> None:
    client = house.client()
    store(client, LARGE)
    with client.open(NAME) as file:
        store(client, b"new")
        client.drop((NAME,))
        assert bytes(file.read(100, len(LARGE) - 100)) == LARGE[100:]
        with pytest.raises(StoreError, match=f"the file ends after {len(LARGE)} bytes"):
            file.read(len(LARGE) - 1, 2)
    with pytest.raises(StoreError, match="No such file"):
        fetch(client)


def test_strangers_are_not_heard(house: DepotHouse) -> None:
    with pytest.raises(TimeoutExpired):
        house.client(keys=KeyPair.make(), limit_s=1.0).find("checkpoints")


def test_one_that_was_replaced_is_not_heard_any_longer(house: DepotHouse) -> None:
    old = house.client("worker-0", limit_s=1.0)

    def go_on_as_a_zombie() -> None:
        with old.store(NAME) as upload:
            upload.write(b"of the old one")
            store(house.client("worker-0"), b"of the new one")

    with pytest.raises(TimeoutExpired):
        go_on_as_a_zombie()
    assert (house.root / NAME).read_bytes() == b"of the new one"


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/../status.json",
        "/etc/passwd",
        "events/worker-0.safetensors",
        "checkpoints/.hidden.safetensors",
        "checkpoints/a/b.safetensors",
        "checkpoints/a.json",
    ],
)
def test_only_files_of_the_depot_have_names(house: DepotHouse, name: str) -> None:
    client = house.client()
    for move in (
        lambda: store(client, b"", name),
        lambda: fetch(client, name),
        lambda: client.drop((name,)),
        lambda: client.link(NAME, name),
        lambda: client.link(name, NAME),
    ):
        with pytest.raises(StoreError, match="is no name of a file in the depot"):
            move()
    with pytest.raises(StoreError, match="the depot has no folder 'events'"):
        client.find("events")


def test_a_disk_that_refuses_is_told_to_the_writer(house: DepotHouse) -> None:
    (house.root / "servers").rmdir()
    (house.root / "servers").touch()
    with pytest.raises(StoreError, match=r"cannot write .*servers"):
        store(house.client(), b"x", "servers/server-0.safetensors")


def test_transfers_of_several_processes_do_not_mix(house: DepotHouse) -> None:
    one, two = house.client("server-0"), house.client("server-1")
    names = [f"servers/server-{index}.safetensors" for index in range(2)]
    reverse = LARGE[::-1]
    with one.store(names[0]) as first, two.store(names[1]) as second:
        for start in range(0, len(LARGE), 10 * PART_BYTES):
            first.write(memoryview(LARGE)[start : start + 10 * PART_BYTES])
            second.write(memoryview(reverse)[start : start + 10 * PART_BYTES])
    assert (house.root / names[0]).read_bytes() == LARGE
    assert (house.root / names[1]).read_bytes() == reverse
    assert one.find("servers").names == tuple(names)
