"""Training over ssh on an emulated cluster: every strategy, every loss, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from phalanx.errors import SpecError
from phalanx.records.events import Epoch, HostSample, Started
from phalanx.records.log import read_events, read_logs
from support.lab import HOSTS, LIMIT_S, SERVED, Lab, make_whole, running_lab
from support.leaks import leave_to_fixture
from support.waiting import wait_until


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("ssh")) as lab:
        yield lab


@pytest.fixture(autouse=True)
def _nothing_stays(lab: Lab) -> Iterator[None]:
    yield
    make_whole(lab)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("allreduce", marks=pytest.mark.full),
        pytest.param(SERVED, marks=pytest.mark.full),
        "{name: switch, at: 0.5}",
    ],
    ids=["all", "ps", "switch"],
)
def test_one_command_trains_on_all_machines(lab: Lab, strategy: str) -> None:
    before = lab.num_runs()
    done = lab.train("job.yaml", "--set", f"strategy={strategy}", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["workers"], summary["epochs"]) == (4, 2)
    assert summary["test_accuracy"] > 0.4
    assert lab.num_runs() == before + 1, "one run directory, here"
    if strategy == "allreduce":
        here = lab.train_here("job.yaml", "--set", f"strategy={strategy}")
        for key in ("train_loss", "val_loss", "test_loss"):
            assert summary[key] == pytest.approx(here[key], abs=1e-4), key
    assert summary["energy_j"] > 0, "declared for one machine, and reckoned there"
    lab.await_clean()

    run = lab.run_dir()
    logs = read_logs(run / "events", Started, HostSample)
    hosts = {
        process: {one.host for one in events if isinstance(one, Started)}
        for process, events in logs.items()
        if process.startswith("worker-")
    }
    assert hosts == {f"worker-{rank}": {host} for rank, host in enumerate(HOSTS)}
    watched = [
        one.host for events in logs.values() for one in events if isinstance(one, HostSample)
    ]
    assert set(watched) == set(HOSTS), "one process of each machine watches it"
    assert list((run / "checkpoints").glob("*.safetensors"))
    assert {path.stem for path in (run / "logs").iterdir()} == set(logs) - {"controller"}


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy", ["{name: local_sgd, every: 4}", "{name: split, placement: by_layers}"]
)
def test_other_strategies_work_over_ssh_as_well(lab: Lab, strategy: str) -> None:
    done = lab.train("job.yaml", "--set", f"strategy={strategy}", "--without", "d", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["test_accuracy"] > 0.4


@pytest.mark.full
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="the extra tensorflow is missing")
@pytest.mark.parametrize(
    "strategy",
    ["allreduce", "{name: parameter_server, servers: 1, dispatch: dynamic}"],
    ids=["all", "ps"],
)
def test_tensorflow_trains_on_several_machines(lab: Lab, strategy: str) -> None:
    done = lab.train(
        *("job.yaml", "--set", "backend=tensorflow", "--set", f"strategy={strategy}"),
        *("--set", "trust_network=true"),
        *("--set", "deadlines.heartbeat_s=10", "--without", "c", "--without", "d", "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["test_accuracy"] > 0.4
    assert "can run code as you while tensorflow trains" in done.stderr


def test_a_pulled_link_ends_lockstep_training_with_the_machine_named(lab: Lab) -> None:
    before = lab.num_runs()
    run = lab.start("--set", "epochs=5000")
    lab.await_training(before)
    lab.cluster.switch_link("b", on=False)
    # Cut off, the machine ends its processes by itself.
    wait_until(lambda: not lab.processes("b", "python"), "b to end its processes", limit_s=10.0)
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 4
    assert "worker-1 is lost with machine b: nothing was heard of it for" in said
    assert f"--resume runs/{lab.run_dir().name} --without b --workers 3\n" in said
    status = json.loads((lab.run_dir() / "status.json").read_text())
    assert (status["state"], status["rank"]) == ("failed", 1)


def test_a_frozen_worker_is_replaced_where_it_was(lab: Lab) -> None:
    before = lab.num_runs()
    run = lab.start("--set", "epochs=120", "--set", f"strategy={SERVED}", "--without", "d")
    lab.await_training(before)
    [frozen] = lab.processes("c", "phalanx.worker")[:1]
    os.kill(frozen, signal.SIGSTOP)
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    assert any("on c is frozen" in cause for cause in lab.causes())
    assert "replace worker-2" in lab.decisions()
    starts = read_events(lab.run_dir() / "events" / "worker-2.jsonl", Started)
    assert [one.host for one in starts if isinstance(one, Started)] == ["c", "c"]


def is_forked(pid: int) -> bool:
    """Whether a process has the command line of a fork server, which it has from its parent."""
    return b"phalanx.worker.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.full
def test_workers_of_one_machine_start_warm_with_the_result_of_cold_ones(lab: Lab) -> None:
    pool = lab.pool_of("a", slots=2)
    ways, results = {}, {}
    for setting in ("off", "own"):
        before = lab.num_runs()
        run = lab.start("--set", "epochs=40", pool=pool, fork_server=setting)
        ways[setting] = {
            is_forked(started.pid) for started in lab.await_starts(before, "worker-0", "worker-1")
        }
        _, said = run.communicate(timeout=LIMIT_S)
        assert run.returncode == 0, said
        summary = json.loads((lab.run_dir() / "summary.json").read_text())
        results[setting] = (summary["parameters_sha256"], summary["val_loss"])
        lab.await_clean()
    assert ways == {"off": {False}, "own": {True}}
    assert results["off"] == results["own"]


def test_the_successor_of_a_killed_worker_starts_warm(lab: Lab) -> None:
    before = lab.num_runs()
    run = lab.start(
        *("--set", "epochs=5000", "--set", f"strategy={SERVED}"), pool=lab.pool_of("a", slots=2)
    )
    lab.await_training(before)
    [first, other] = lab.await_starts(before, "worker-0", "worker-1")
    os.kill(first.pid, signal.SIGKILL)
    [_, successor] = wait_until(
        lambda: (found := lab.starts("worker-0"))[1:] and found, "its successor", limit_s=LIMIT_S
    )
    assert is_forked(successor.pid)
    assert is_forked(other.pid), "the other one is still there"
    # Under the limits of its machine: a forked process is in the group of its fork server.
    assert successor.pid in lab.cluster.processes("a")
    wait_until(lambda: "replace worker-0" in lab.decisions(), "the record of it", limit_s=LIMIT_S)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130


@pytest.mark.full
def test_a_frozen_worker_ends_lockstep_training_with_the_machine_named(lab: Lab) -> None:
    before = lab.num_runs()
    run = lab.start("--set", "epochs=5000", "--without", "d")
    lab.await_training(before)
    os.kill(lab.processes("b", "phalanx.worker")[0], signal.SIGSTOP)
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 4
    assert "worker-1 on b is frozen" in said


@pytest.mark.full
def test_a_killed_supervisor_is_swept_up_after(lab: Lab) -> None:
    before = lab.num_runs()
    run = lab.start("--set", "epochs=5000", "--without", "d")
    lab.await_training(before)
    [supervisor] = lab.processes("c", "phalanx-agent")
    os.kill(supervisor, signal.SIGKILL)
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 4
    assert "worker-2 is lost with machine c" in said


def test_a_killed_controller_leaves_nothing_on_any_machine(lab: Lab) -> None:
    before = lab.num_runs()
    run = lab.start("--set", "epochs=5000", "--set", f"strategy={SERVED}")
    lab.await_training(before)
    run.kill()
    run.communicate()
    lab.await_clean()


@pytest.mark.full
def test_an_interrupted_run_goes_on_on_the_same_machines(lab: Lab) -> None:
    before = lab.num_runs()
    run = lab.start("--set", "epochs=5000", "--without", "c", "--without", "d")
    path = lab.await_training(before)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130
    lab.await_clean()
    trained = len([1 for one in read_events(path / "events" / "worker-0.jsonl", Epoch)])
    done = subprocess.run(
        lab.command("train", "--resume", path.name, "--epochs", str(trained + 3), "--json"),
        cwd=lab.folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["workers"], summary["attempts"]) == (2, 2)


def test_code_and_data_of_the_user_are_sent(lab: Lab) -> None:
    """A path through this process's own directory does not lead to the data on other machines."""
    import numpy as np

    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(300, 8)).astype(np.float32)
    np.savez(lab.folder / "own.npz", x=inputs, y=(inputs[:, 0] > 0).astype(np.int64))
    (lab.folder / "mine").mkdir()
    (lab.folder / "mine" / "__init__.py").write_text("")
    (lab.folder / "mine" / "width.py").write_text("WIDTH = 12\n")
    (lab.folder / "mine" / "net.py").write_text(
        "import os\n"
        "from torch import nn\n"
        "from mine.width import WIDTH\n"
        "def build():\n"
        "    print('RANK', os.environ['RANK'], os.environ['TF_CONFIG'])\n"
        "    return nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))\n"
    )
    done = lab.train(
        *("job.yaml", "--set", "model=mine.net:build", "--without", "c", "--without", "d"),
        *("--set", "data={name: own.npz, directory: /proc/self/cwd}", "--json"),
    )
    assert done.returncode == 0, done.stderr
    said = (lab.run_dir() / "logs" / "worker-1.log").read_text()
    assert said.startswith('[worker-1 b] RANK 1 {"cluster": {"worker": ["10.77.')


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["allreduce", "{name: parameter_server, consistency: bsp}"])
def test_a_script_is_sent_and_trains_on_all_machines(lab: Lab, strategy: str) -> None:
    program = str(Path(__file__).parents[1] / "programs" / "cnn.py")
    arguments = ("--pool", str(lab.pool), "--strategy", strategy, "--json", program)
    done = subprocess.run(
        lab.command("launch", *arguments),
        cwd=lab.folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["workers"], summary["epochs"], summary["samples"]) == (4, 3, 450)
    assert summary["val_accuracy"] == 1.0
    lab.await_clean()


@pytest.mark.full
def test_a_machine_that_does_not_answer_is_named_and_can_be_left_out(lab: Lab) -> None:
    before = lab.num_runs()
    lab.cluster.switch_link("b", on=False)
    done = lab.train("job.yaml")
    assert done.returncode == 2
    assert last_line(done).startswith("phalanx: b: ssh: connect to host")
    assert last_line(done).endswith("--without b leaves it out")
    assert lab.num_runs() == before, "nothing was begun"
    assert "lost" not in done.stderr

    # At a terminal the question is asked, and the answer is taken.
    master, slave = os.openpty()
    run = subprocess.Popen(
        lab.command("train", "job.yaml", "--pool", str(lab.pool), "--workers", "4"),
        cwd=lab.folder,
        stdin=slave,
        stdout=subprocess.DEVNULL,
        stderr=slave,
    )
    os.close(slave)
    try:
        said = b""
        while b"train without b? [y/N]" not in said:
            said += os.read(master, 1024)
        os.write(master, b"y\n")
        assert run.wait(LIMIT_S) == 0, said
    finally:
        os.close(master)
    summary = json.loads((lab.run_dir() / "summary.json").read_text())
    assert summary["workers"] == 3
    manifest = json.loads((lab.run_dir() / "manifest.json").read_text())
    assert manifest["machines"] == ["a", "c", "d"]


def changed_pool(lab: Lab, before: str, after: str) -> Path:
    text = lab.pool.read_text()
    assert before in text
    path = lab.pool.with_name("changed.yaml")
    path.write_text(text.replace(before, after))
    return path


@pytest.mark.parametrize(
    ("before", "after", "arguments", "sentence"),
    [
        ("host: a,", "host: a, password: x,", (), "'password' is refused"),
        ("host: b,", "host: a,", (), "machines 1 and 2 have the same address 'a'"),
        ("host: b,", "host: nowhere.invalid,", (), "Could not resolve hostname nowhere.invalid"),
        ("name: b", "name: b, memory: 100MB", (), "b: 1 process needs 0.26 GB of memory, and 0.10"),
        ('"10.77.', '"11.77.', (), "is none of its own addresses"),
        ("name: a", "name: a", ("--select", "gpu"), "no machine of pool 'lab' is left by policy"),
        ("name: a", "name: a", ("--workers", "9"), "9 workers do not fit: 4 machines have 4 slots"),
        ("name: a", "name: a", ("--without", "e"), "there is no such machine among a, b, c, d"),
        (
            "name: a",
            "name: a",
            ("--set", "data=mnist"),
            "mnist: train-images-idx3-ubyte.gz was not",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    lab: Lab, before: str, after: str, arguments: tuple[str, ...], sentence: str
) -> None:
    num_runs = lab.num_runs()
    done = lab.train("job.yaml", "-q", *arguments, pool=changed_pool(lab, before, after))
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert lab.num_runs() == num_runs


def test_a_wrong_key_is_bad_input(lab: Lab) -> None:
    key = lab.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    config = lab.pool.with_name("ssh_config").read_text().splitlines()
    changed = [
        f"  IdentityFile {key}" if line.strip().startswith("IdentityFile") else line
        for line in config
    ]
    lab.pool.with_name("wrong-key").write_text("\n".join(changed) + "\n")
    pool = changed_pool(lab, "ssh_config: ssh_config", "ssh_config: wrong-key")
    done = lab.train("job.yaml", "-q", "--without", "b", "--without", "c", pool=pool)
    assert done.returncode == 2
    assert "Permission denied (publickey)" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.full
def test_a_killed_ssh_server_costs_a_served_run_one_machine(lab: Lab) -> None:
    before = lab.num_runs()
    run = lab.start("--set", "epochs=25", "--set", f"strategy={SERVED}")
    lab.await_training(before)
    lab.cluster.kill_sshd("d")
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    assert lab.causes()[0].startswith(
        "worker-3 is lost with machine d: the connection to it broke off"
    )
    assert "go on without worker-3" in lab.decisions()
    assert lab.cluster.up() == ["the ssh server of d was dead and is started again"]
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # the dead one has no command any more
            if "hosts/d/sshd_config" in " ".join(one.cmdline()):
                leave_to_fixture(one.pid)
    assert lab.cluster.status().state == "up"
    with pytest.raises(SpecError, match="is up already"):
        lab.cluster.up()


@pytest.mark.full
def test_a_served_run_goes_on_without_the_machine_of_worker_0(lab: Lab) -> None:
    """Comes last: nobody starts that server again."""
    before = lab.num_runs()
    run = lab.start("--json", "--set", "epochs=25", "--set", f"strategy={SERVED}")
    lab.await_training(before)
    lab.cluster.kill_sshd("a")
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    assert any(cause.startswith("worker-0 is lost with machine a") for cause in lab.causes())
    assert "go on without worker-0" in lab.decisions()
    # Told when it happened; and the epochs after it have their learning rate.
    assert "the run goes on without it" in said
    log = lab.run_dir() / "events" / "controller.jsonl"
    last = [one for one in read_events(log, Epoch) if isinstance(one, Epoch)][-1]
    assert (last.epoch, last.lr > 0) == (24, True)
