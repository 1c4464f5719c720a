"""The parts of an emulated cluster that need no root: names, addresses, limits, settings."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import LaunchError, SpecError
from phalanx.pool.emulate.groups import find_groups, make_group, read_mounts
from phalanx.pool.emulate.layout import plan_layout, prefix_of
from phalanx.pool.emulate.network import shaping
from phalanx.pool.emulate.sshd import write_ssh_config
from phalanx.spec.cluster import ClusterSpec, HostSpec
from phalanx.spec.pool_file import load_pool

HOSTS = (HostSpec(name="a", labels=("x",)), HostSpec(name="b", price_per_hour=0.5))


def network(text: str) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(text)


def test_the_first_free_network_is_taken() -> None:
    spec = ClusterSpec(hosts=HOSTS)
    layout = plan_layout(spec, Path("/x"), [network("10.77.0.0/24"), network("10.77.1.128/25")])
    assert layout.gateway == "10.77.2.1/24"
    assert [host.address for host in layout.hosts] == ["10.77.2.11", "10.77.2.12"]


def test_a_network_in_use_is_refused() -> None:
    spec = ClusterSpec(hosts=HOSTS, subnet="10.5.0.0/24")
    with pytest.raises(SpecError, match=r"network 10\.5\.0\.0/24 is in use"):
        plan_layout(spec, Path("/x"), [network("10.0.0.0/8")])
    with pytest.raises(SpecError, match="all networks"):
        plan_layout(ClusterSpec(hosts=HOSTS), Path("/x"), [network("10.0.0.0/8")])


@given(st.integers(1, 200), st.text("abc/", min_size=1))
def test_names_fit_and_are_distinct(num_hosts: int, state: str) -> None:
    spec = ClusterSpec(hosts=tuple(HostSpec(name=f"h{i}") for i in range(num_hosts)))
    layout = plan_layout(spec, Path("/") / state, ())
    interfaces = [layout.bridge, *(host.interface for host in layout.hosts)]
    assert len(set(interfaces)) == num_hosts + 1
    assert all(len(name) <= 15 for name in interfaces), "the kernel allows no more"
    assert all(name.startswith(f"{layout.prefix}-") for name in interfaces)
    assert len({host.address for host in layout.hosts}) == num_hosts


def test_the_prefix_follows_from_the_place_of_the_state() -> None:
    assert prefix_of(Path("/a/lab")) == prefix_of(Path("/a/lab"))
    assert prefix_of(Path("/a/lab")) != prefix_of(Path("/b/lab"))


@given(st.integers(10**5, 10**11))
def test_a_token_bucket_has_room_for_a_packet(bits_per_s: int) -> None:
    words = shaping(bits_per_s, queue_ms=25).split()
    assert words[1] == f"{bits_per_s}bit"
    assert int(words[3].removesuffix("b")) >= 1514


def test_the_pool_file_can_be_read(tmp_path: Path) -> None:
    spec = ClusterSpec(cluster="lab", hosts=HOSTS, python="/opt/python")
    pool = load_pool(write_ssh_config(spec, plan_layout(spec, tmp_path, ()), tmp_path)).spec
    assert (pool.pool, pool.ssh_config) == ("lab", str(tmp_path / "ssh_config"))
    a, b = pool.machines
    assert (a.host, a.address, a.python, a.labels) == ("a", "10.77.0.11", "/opt/python", ("x",))
    assert b.price_per_hour == 0.5
    config = [line.strip() for line in (tmp_path / "ssh_config").read_text().splitlines()]
    blocks = [line for line in config if line.startswith("Host ")]
    assert blocks == ["Host a", "Host b", "Host *"], "ssh takes the first value that it finds"
    assert config[config.index("Host b") + 1] == "HostName 10.77.0.12"


def fake_root(tmp_path: Path, mounts: list[str], groups: str) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(mounts) + "\n")
    (tmp_path / "proc/self/cgroup").write_text(groups)
    return tmp_path


V1 = [
    "25 1 0:22 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
    "26 1 0:23 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
    "27 1 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
]
V2 = ["30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"]


def test_limits_by_version_1_inside_the_callers_own_group(tmp_path: Path) -> None:
    root = fake_root(tmp_path, V1, "4:memory:/box\n3:cpu,cpuacct:/\n0::/\n")
    for name in ("cpu,cpuacct", "memory/box", "unified"):
        (root / "sys/fs/cgroup" / name).mkdir(parents=True)
    cpu, memory = make_group("phx1-a", cores=0.5, memory_bytes=10**9, root=root)
    assert cpu == root / "sys/fs/cgroup/cpu,cpuacct/phx1-a"
    assert memory == root / "sys/fs/cgroup/memory/box/phx1-a"
    period = int((cpu / "cpu.cfs_period_us").read_text())
    assert int((cpu / "cpu.cfs_quota_us").read_text()) == period / 2
    assert (memory / "memory.limit_in_bytes").read_text() == "1000000000"
    assert sorted(find_groups("phx1", root)) == sorted([cpu, memory])


def test_limits_by_version_2_in_the_nearest_group_that_can(tmp_path: Path) -> None:
    root = fake_root(tmp_path, V2, "0::/user.slice/session.scope\n")
    slice_ = root / "sys/fs/cgroup/user.slice"
    (slice_ / "session.scope").mkdir(parents=True)
    (slice_ / "cgroup.subtree_control").write_text("cpu memory pids")
    (slice_ / "session.scope/cgroup.subtree_control").mkdir()  # cannot be written
    (folder,) = make_group("phx1-a", cores=2, memory_bytes=10**9, root=root)
    assert folder == slice_ / "phx1-a"
    quota, period = (folder / "cpu.max").read_text().split()
    assert int(quota) == 2 * int(period)
    assert (folder / "memory.max").read_text() == "1000000000"
    assert find_groups("phx1", root) == [folder]


def test_where_nothing_can_be_limited_a_sentence_says_so(tmp_path: Path) -> None:
    root = fake_root(tmp_path, ["20 1 0:4 / /proc rw - proc proc rw"], "0::/\n")
    assert read_mounts(root) == []
    with pytest.raises(LaunchError, match="no control group here can limit cpu"):
        make_group("phx1-a", cores=1, memory_bytes=None, root=root)
