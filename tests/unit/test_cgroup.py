from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.cgroup import cpu_quota, cpu_used, memory_limit, memory_used


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_no_groups_mean_no_limits(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None


def test_version_2_takes_the_smallest_limit_on_the_way_up(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/batch/job",
            "sys/fs/cgroup/batch/job/cpu.max": "max 100000",
            "sys/fs/cgroup/batch/cpu.max": "150000 100000",
            "sys/fs/cgroup/cpu.max": "400000 100000",
            "sys/fs/cgroup/batch/job/memory.max": "2147483648",
            "sys/fs/cgroup/batch/memory.max": "max",
        },
    )
    assert cpu_quota(tmp_path) == pytest.approx(1.5)
    assert memory_limit(tmp_path) == 2 << 30


def test_version_1(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/x\n3:memory:/docker/x",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "1073741824",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert cpu_quota(tmp_path) == pytest.approx(0.5)
    assert memory_limit(tmp_path) == 1 << 30


def test_inside_a_container_the_top_group_is_its_own(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods/not/visible/here",
            "sys/fs/cgroup/cpu.max": "200000 100000",
        },
    )
    assert cpu_quota(tmp_path) == pytest.approx(2.0)


def test_a_quota_of_minus_one_is_none(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu:/",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert cpu_quota(tmp_path) is None


def test_what_a_group_has_used(tmp_path: Path) -> None:
    assert cpu_used(tmp_path) is None
    assert memory_used(tmp_path) is None
    newer = write(
        tmp_path / "newer",
        {
            "proc/self/cgroup": "0::/batch/job",
            "sys/fs/cgroup/batch/job/cpu.stat": "usage_usec 2500000\nuser_usec 2000000",
            "sys/fs/cgroup/batch/job/memory.current": "1048576",
            "sys/fs/cgroup/batch/memory.current": "99999999",
        },
    )
    assert (cpu_used(newer), memory_used(newer)) == (2.5, 1 << 20)
    older = write(
        tmp_path / "older",
        {
            "proc/self/cgroup": "4:memory:/job\n3:cpuacct:/job",
            "sys/fs/cgroup/cpuacct/job/cpuacct.usage": "1500000000",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "4096",
        },
    )
    assert (cpu_used(older), memory_used(older)) == (1.5, 4096)
