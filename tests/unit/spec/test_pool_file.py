"""Pool files: what is read, and the one sentence for each thing that can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import ExitCode, SpecError
from phalanx.spec.pool_file import (
    cluster_from_mapping,
    load_cluster,
    load_pool,
)
from support.pools import pool_from_mapping

POOL = """\
pool: lab
defaults: {user: ada, python: /opt/phalanx/bin/python}
machines:
  - host: 192.0.2.11
    name: alpha
    cores: 4
    memory: 8GB
    price_per_hour: 0.12
    watts_idle: 30
    watts_full: 95
    labels: [rack-a]
  - host: beta.example
    user: bob
    port: 2222
    key: keys/id_ed25519
    gpu: {count: 1, model: RTX 2060, memory: 6GB}
    slots: 2
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pool.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def sentence(tmp_path: Path, text: str) -> str:
    path = write(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        load_pool(path)
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(path), "pool.yaml")


def test_a_pool_is_read_with_defaults_units_and_absolute_paths(tmp_path: Path) -> None:
    spec = load_pool(write(tmp_path, POOL)).spec
    alpha, beta = spec.machines
    assert (alpha.title, alpha.user, alpha.memory, alpha.cores) == ("alpha", "ada", 8 * 10**9, 4)
    assert (alpha.python, alpha.gpu.count, alpha.slots) == ("/opt/phalanx/bin/python", 0, 1)
    assert (beta.title, beta.user, beta.port, beta.slots) == ("beta.example", "bob", 2222, 2)
    assert beta.key == str(tmp_path / "keys/id_ed25519")
    assert (beta.gpu.count, beta.gpu.memory) == (1, 6 * 10**9)


def test_a_resolved_pool_can_be_read_again(tmp_path: Path) -> None:
    spec = load_pool(write(tmp_path, POOL)).spec
    assert pool_from_mapping(spec.model_dump(mode="json")).spec == spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("machines: []\n", "pool.yaml:1: a pool needs at least one machine"),
        (
            "machines:\n  - {host: a}\n  - host: A\n",
            "pool.yaml:3: machines 1 and 2 have the same address 'A'",
        ),
        (
            "machines:\n  - {host: a, name: x}\n  - host: b\n    name: x\n",
            "pool.yaml:4: machines 1 and 2 have the same name 'x'",
        ),
        (
            "machines:\n  - host: a\n    password: geheim\n",
            "pool.yaml:3: 'password' is refused: anyone who reads the file could log in with it; "
            "use a key (`ssh-copy-id` installs it) or the ssh agent",
        ),
        ("machines:\n  - name: a\n", "pool.yaml:2: machines.0.host is missing"),
        (
            "machines:\n  - host: ada@a\n",
            "pool.yaml:2: 'ada@a' is no host; write 'host: a' and 'user: ada'",
        ),
        (
            "machines:\n  - host: a:2222\n",
            "pool.yaml:2: 'a:2222' is no host; write 'host: a' and 'port: 2222'",
        ),
        ("machines:\n  - host: -oProxyCommand=x\n", "pool.yaml:2: '-oProxyCommand=x' is no host"),
        ("machines:\n  - host: a\n    user: -l\n", "pool.yaml:3: '-l' is no user name"),
        (
            "machines:\n  - host: a\n    memory: lots\n",
            "pool.yaml:3: 'lots' is no size; write 8GB or 512MiB",
        ),
        (
            "machines:\n  - host: a\n    cores: 0\n",
            "pool.yaml:3: machines.0.cores must be a number above 0",
        ),
        ("machines:\n  - host: a\n    core: 4\n", "pool.yaml:3: unknown key 'core' in machines.0"),
        (
            "machines:\n  - {host: a, watts_idle: 50, watts_full: 40}\n",
            "pool.yaml:2: watts_full (40) is below watts_idle (50)",
        ),
        ("machines:\n  - {host: a, key: k, agent: true}\n", "pool.yaml:2: key and 'agent: true'"),
        ("- host: a\n", "pool.yaml: a pool is settings by name"),
        ("defaults: {user: 7}\nmachines: [{host: a}]\n", "pool.yaml:1: defaults.user must be"),
        ("pool: x\n", "pool.yaml:1: machines is missing"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, text: str, expected: str) -> None:
    assert sentence(tmp_path, text).startswith(expected)


def test_a_secret_is_never_repeated_in_the_message(tmp_path: Path) -> None:
    assert "geheim" not in sentence(tmp_path, "machines:\n  - {host: a, Password: geheim}\n")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        load_pool(tmp_path / "none.yaml")


def test_a_default_key_gives_way_to_the_agent_of_a_machine() -> None:
    spec = pool_from_mapping(
        {"defaults": {"key": "/k"}, "machines": [{"host": "a"}, {"host": "b", "agent": True}]}
    ).spec
    assert [one.key for one in spec.machines] == ["/k", None]


CLUSTER = """\
cluster: lab
hosts:
  - {name: a, cores: 0.5, memory: 512MiB, link: 100Mbit/s}
  - {name: b, cores: 2, link: 1Gbit/s, price_per_hour: 0.1}
"""


def test_a_cluster_is_read(tmp_path: Path) -> None:
    first, second = load_cluster(write(tmp_path, CLUSTER)).hosts
    assert (first.cores, first.memory, first.link) == (0.5, 512 * 2**20, 100_000_000)
    assert (second.memory, second.link, second.price_per_hour) == (None, 10**9, 0.1)


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({"hosts": []}, "a cluster has 1 to 200 hosts, not 0"),
        ({"hosts": [{"name": "a"}, {"name": "a"}]}, "hosts 1 and 2 have the same name 'a'"),
        ({"hosts": [{"name": "A b"}]}, "'A b' is no name of a host"),
        ({"hosts": [{"name": "a", "link": "fast"}]}, "'fast' is no speed of a link"),
        ({"hosts": [{"name": "a"}], "subnet": "8.8.8.0/24"}, "'8.8.8.0/24' is not private"),
        ({"hosts": [{"name": "a"}], "subnet": "x"}, "'x' is no IPv4 network"),
    ],
)
def test_what_is_wrong_with_a_cluster(mapping: dict[str, object], expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        cluster_from_mapping(mapping)
    assert str(caught.value).startswith(expected)


def test_an_inventory_brings_the_machines_and_their_lines(tmp_path: Path) -> None:
    (tmp_path / "own_format.py").write_text(
        "from phalanx.spec.document import Document, Mark\n"
        "from phalanx.spec.pool_file import ReadInventory\n"
        "def read(path):\n"
        "    hosts = path.read_text().split()\n"
        "    marks = {(n, 'host'): Mark(path.name, n + 1) for n in range(len(hosts))}\n"
        "    return ReadInventory(Document([{'host': one} for one in hosts], marks), ('read',))\n"
    )
    inventory = "inventory: {name: 'own_format:read', file: hosts, python_path: [.]}\n"
    (tmp_path / "hosts").write_text("a\nb\n")
    file = load_pool(write(tmp_path, f"defaults: {{user: ada}}\n{inventory}"))
    assert [(one.host, one.user) for one in file.spec.machines] == [("a", "ada"), ("b", "ada")]
    assert file.notes == ("read",)
    (tmp_path / "hosts").write_text("a\nb@c\n")
    assert "hosts:2: 'b@c' is no host" in sentence(tmp_path, inventory)
    assert "keep one of the two" in sentence(tmp_path, f"{inventory}machines: []\n")
    assert "file is missing" in sentence(tmp_path, "inventory: {name: a:b}\n")
