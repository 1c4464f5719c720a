"""A cluster emulated on this machine: made, checked, probed, broken, and gone without a trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from phalanx.pool.emulate.cluster import EmulatedCluster
from phalanx.pool.emulate.groups import find_groups
from phalanx.pool.emulate.network import leftover_links
from phalanx.pool.emulate.system import obstacle
from phalanx.spec.pool_file import load_cluster
from support.waiting import wait_until

CLUSTER = """\
cluster: lab
hosts:
  - {name: a, cores: 0.5, memory: 1GB, link: 100Mbit/s, price_per_hour: 0.2}
  - {name: b, cores: 0.3, memory: 1GB, link: 20Mbit/s, price_per_hour: 0.1}
  - {name: c, cores: 0.2, memory: 1GB, link: 400Mbit/s, price_per_hour: 0.3}
"""
CORES = {"a": 0.5, "b": 0.3, "c": 0.2}
MBIT_PER_S = {"a": 100, "b": 20, "c": 400}
LIMIT_S = 110


@dataclass
class Bench:
    """A cluster file, where its state goes, and the command."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "cluster.yaml"

    @property
    def pool(self) -> Path:
        return self.folder / "state" / "lab" / "pool.yaml"

    @property
    def cluster(self) -> EmulatedCluster:
        return EmulatedCluster(load_cluster(self.file), self.folder / "state")

    def command(self, *arguments: str) -> list[str]:
        cache = f"PHALANX_CACHE={self.folder / 'cache'}"
        return ["env", cache, sys.executable, "-m", "phalanx.cli.main", "pool", *arguments]

    def phalanx(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def emulate(self, action: str) -> subprocess.CompletedProcess[str]:
        return self.phalanx(
            "emulate", str(self.file), action, "--state", str(self.folder / "state")
        )

    def facts(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = self.phalanx(*arguments, "--json")
        return done.returncode, json.loads(done.stdout)

    def config_with(self, line: str, *, named: str, without: str) -> Path:
        """A pool whose ssh config has another line instead of the one that begins so."""
        config = self.pool.with_name("ssh_config").read_text().splitlines()
        changed = [line if one.strip().startswith(without) else one for one in config]
        self.pool.with_name(named).write_text("\n".join(changed) + "\n")
        pool = self.pool.with_name(f"{named}.yaml")
        pool.write_text(
            self.pool.read_text().replace("ssh_config: ssh_config", f"ssh_config: {named}")
        )
        return pool


def new_bench(folder: Path) -> Bench:
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    (folder / "cluster.yaml").write_text(CLUSTER)
    return Bench(folder)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = new_bench(tmp_path_factory.mktemp("cluster"))
    try:
        up = bench.emulate("up")
        assert up.returncode == 0, up.stderr
        yield bench
    finally:
        bench.cluster.down()


def test_check_finds_every_host_by_its_own_name(bench: Bench) -> None:
    code, facts = bench.facts("check", str(bench.pool))
    assert code == 0
    looks = {one["name"]: one["probe"]["looks"] for one in facts["machines"]}
    assert {name: one["host"] for name, one in looks.items()} == {"a": "a", "b": "b", "c": "c"}
    assert {name: one["quota_cores"] for name, one in looks.items()} == CORES
    assert all(one["memory_limit_bytes"] < 1e9 + 1 for one in looks.values())
    assert all(one["memory_free_bytes"] < 1e9 for one in looks.values())
    for one in facts["machines"]:
        clock = one["probe"]["clock"]
        assert abs(clock["offset_s"]) <= clock["error_s"], "all hosts have this machine's clock"


@pytest.mark.timeout(400)
def test_a_probe_measures_what_was_asked_for(bench: Bench) -> None:
    """Within 15 %; other work on this machine can only take away, so the best of three counts."""
    cores = dict.fromkeys(CORES, 0.0)
    speeds: dict[tuple[str, str], float] = {}
    for _ in range(3):
        code, facts = bench.facts("probe", str(bench.pool))
        assert (code, facts["faults"]) == (0, [])
        for one in facts["machines"]:
            name, probe = one["name"], one["probe"]
            cores[name] = max(cores[name], probe["speed"]["cores_delivered"])
            for other, link in probe["links"].items():
                way = (name, other)
                speeds[way] = max(speeds.get(way, 0.0), link["bytes_per_s"] * 8e-6)
        if _all_close(cores, speeds):
            break
    assert cores == pytest.approx(CORES, rel=0.15)
    assert len(speeds) == 6
    for (start, end), speed in speeds.items():
        wanted = min(MBIT_PER_S[start], MBIT_PER_S[end])
        assert speed == pytest.approx(wanted, rel=0.15), f"{start} to {end}"

    code, shown = bench.facts("show", str(bench.pool), "--policy", "fastest")
    assert (code, shown["selected"]) == (0, ["a"])
    code, shown = bench.facts(
        "show", str(bench.pool), "--where", "cpus: 0.3+", "--policy", "cheapest"
    )
    assert (code, shown["selected"]) == (0, ["b"])
    assert shown["machines"][0]["probe"]["measured_at"].startswith("20")


def _all_close(cores: dict[str, float], speeds: dict[tuple[str, str], float]) -> bool:
    wanted = {way: min(MBIT_PER_S[way[0]], MBIT_PER_S[way[1]]) for way in speeds}
    return cores == pytest.approx(CORES, rel=0.15) and speeds == pytest.approx(wanted, rel=0.15)


def test_a_host_that_is_cut_off_is_named_and_the_others_go_on(bench: Bench) -> None:
    bench.cluster.switch_link("b", on=False)
    try:
        done = bench.phalanx("check", str(bench.pool), "--json")
        status = bench.cluster.status()
    finally:
        bench.cluster.switch_link("b", on=True)
    facts = json.loads(done.stdout)
    assert done.returncode == 3
    assert [one["machine"] for one in facts["faults"]] == ["b"]
    assert facts["faults"][0]["kind"] == "unreachable"
    assert "Connection timed out" in done.stderr
    assert done.stderr.startswith("phalanx: 1 of 3 machines cannot be used: b: ssh: connect to")
    assert done.stderr.count("\n") == 1
    assert [one["probe"] is not None for one in facts["machines"]] == [True, False, True]
    assert status.state == "partly up"
    wait_until(lambda: bench.cluster.status().state == "up", "the link of b to come back")


def test_a_wrong_key_is_bad_input(bench: Bench, tmp_path: Path) -> None:
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    pool = bench.config_with(f"  IdentityFile {key}", named="wrong-key", without="IdentityFile")
    done = bench.phalanx("check", str(pool), "--where", "name=a")
    assert done.returncode == 2
    assert "Permission denied (publickey)" in done.stderr
    assert "check 'user' and 'key'" in done.stderr


def test_an_unknown_host_key_is_bad_input(bench: Bench, tmp_path: Path) -> None:
    line = f"  UserKnownHostsFile {tmp_path / 'none'}"
    pool = bench.config_with(line, named="unknown-key", without="UserKnownHostsFile")
    done = bench.phalanx("check", str(pool), "--where", "name=a")
    assert done.returncode == 2
    assert "host key" in done.stderr.lower()


def test_an_unknown_host_is_bad_input(bench: Bench) -> None:
    pool = bench.pool.with_name("unknown-host.yaml")
    pool.write_text(bench.pool.read_text() + "  - {host: nowhere.invalid, name: d}\n")
    done = bench.phalanx("check", str(pool), "--where", "name=d")
    assert done.returncode == 2
    assert "Could not resolve hostname nowhere.invalid" in done.stderr


def test_a_missing_interpreter_is_named(bench: Bench) -> None:
    pool = bench.pool.with_name("no-python.yaml")
    pool.write_text(bench.pool.read_text().replace(sys.executable, "/no/such/python"))
    done = bench.phalanx("check", str(pool), "--where", "name=a")
    assert done.returncode == 3
    assert "/no/such/python" in done.stderr
    assert "check 'python'" in done.stderr


def test_a_second_start_is_refused(bench: Bench) -> None:
    done = bench.emulate("up")
    assert done.returncode == 2
    assert "is up already" in done.stderr


def test_nobody_left_by_the_filter_is_bad_input(bench: Bench) -> None:
    done = bench.phalanx("check", str(bench.pool), "--policy", "gpu")
    assert done.returncode == 2
    assert "no machine of pool 'lab' is left by policy 'gpu'" in done.stderr


def test_down_leaves_nothing_even_with_work_going_on(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    assert bench.emulate("up").returncode == 0
    cluster = bench.cluster
    try:
        config = bench.pool.with_name("ssh_config")
        # Out of sight of its session, as a daemon is: only the control group still knows it.
        work = "setsid sleep 600 >/dev/null 2>&1 </dev/null & sleep 600"
        session = subprocess.Popen(["ssh", "-F", config, "a", work], stdin=subprocess.DEVNULL)
        wait_until(lambda: cluster.status().hosts[0].num_processes >= 4, "the work to begin")
    finally:
        down = bench.emulate("down")
    assert down.returncode == 0, down.stderr
    assert session.wait(LIMIT_S) != 0
    assert cluster.leftovers() == []
    assert not (tmp_path / "state").exists()
    assert _processes_named(str(tmp_path)) == []
    again = bench.emulate("down")
    assert (again.returncode, "nothing was there" in again.stdout) == (0, True)


def test_a_start_that_was_killed_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    cluster = bench.cluster
    state = str(tmp_path / "state")
    prefix = cluster.prefix
    starting = subprocess.Popen(
        bench.command("emulate", str(bench.file), "up", "--state", state),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: leftover_links(prefix)[0], "the first namespace")
        starting.send_signal(signal.SIGKILL)
        starting.wait(LIMIT_S)
        assert cluster.status().state != "up"
        assert cluster.leftovers()
        again = bench.emulate("up")
        assert again.returncode == 0, again.stderr
        assert "leftovers of an earlier start" in again.stdout
        assert cluster.status().state == "up"
    finally:
        cluster.down()
    assert cluster.leftovers() == []
    assert find_groups(prefix) == []


def test_without_root_one_sentence_says_so(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        command = [sys.executable]
    else:
        command = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable]
    code = "from phalanx.pool.emulate.system import require_tools; require_tools()"
    done = subprocess.run([*command, "-c", code], capture_output=True, text=True, check=False)
    assert "an emulated cluster needs root" in done.stderr


def _processes_named(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found
