"""What a dashboard costs: `python benchmarks/dashboard.py [MACHINES]`.

Lists 1,000 made-up runs (wanted: under 1 s), reads a run of 50 machines over one day, and updates
it once a second. Processor time is printed beside the clock's: on a busy machine only that one
tells. None of that is the controller's, as a dashboard only reads files; what a controller spends
per second on looking for requests is printed last (wanted: under 5 ms).
"""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

NUM_RUNS = 1000
DAY_S = 86400
STEP_EVERY_S = 10
WALL_S = 1_800_000_000.0
UPDATES = 5
TICKS_PER_S = 10
"""Of a controller."""


def main() -> None:
    """Measure and print."""
    machines = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory() as folder:
        _list(Path(folder))
        _watch(Path(folder), machines)
        _request(Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"memory: {peak / 1e6:.0f} MB at most")


def _timed(what: str, action: Callable[[], object]) -> None:
    begun_s, busy_s = time.perf_counter(), time.process_time()
    action()
    spent_s, used_s = time.perf_counter() - begun_s, time.process_time() - busy_s
    print(f"{what}: {spent_s:.3f} s, CPU {used_s:.3f} s")


def _list(folder: Path) -> None:
    from phalanx.dashboard.library import Library
    from support.dashboard import JOB
    from support.records import write_run

    first = write_run(folder / "first", "one", JOB)
    for number in range(NUM_RUNS):
        run = folder / "runs" / f"run-{number:04d}"
        run.mkdir(parents=True)
        for name in ("manifest.json", "status.json", "summary.json"):
            shutil.copyfile(first.path / name, run / name)
    library = Library([folder / "runs"])
    _timed(f"list of {NUM_RUNS:,} runs (wanted: under 1 s)", library.scan)
    _timed("the same again", library.scan)


def _request(folder: Path) -> None:
    from phalanx.control.process_table import ProcessTable
    from phalanx.control.switch.coordinator import SwitchCoordinator
    from phalanx.control.user_requests import UserRequests
    from support.dashboard import JOB
    from support.records import write_run

    run = write_run(folder / "asked", "one", JOB)
    requests = UserRequests(run, 1, lambda event: None)
    # Neither is touched as long as nothing is asked for.
    coordinator, processes = (
        SwitchCoordinator.__new__(SwitchCoordinator),
        ProcessTable.__new__(ProcessTable),
    )

    def one_second() -> None:
        for _ in range(TICKS_PER_S):
            requests.check_stop()
            requests.carry_out(coordinator, processes)

    _timed("the controller's look for requests, per second (wanted: under 5 ms)", one_second)


def _watch(folder: Path, machines: int) -> None:
    from phalanx.cli.dashboard import describers
    from phalanx.dashboard.views import SingleRunView
    from phalanx.observe.sampler import interval_after
    from support.dashboard import JOB
    from support.records import Outcome, write_run

    outcome = Outcome(sampled=False, num_steps=1, state="running")
    run = write_run(folder, "day", {**JOB, "workers": machines}, outcome)
    samples = [0.0]
    while samples[-1] < DAY_S:
        samples.append(samples[-1] + interval_after(samples[-1], 1.0))
    for machine in range(machines):
        events = [_sample(machine, time_s) for time_s in samples]
        events += [_step(number) for number in range(DAY_S // STEP_EVERY_S)]
        run.events_path(f"worker-{machine}").write_bytes(b"".join(events))
    size = sum(path.stat().st_size for path in (run.path / "events").iterdir())
    print(f"{machines} machines, one day, {size / 1e6:.0f} MB of events")
    view = SingleRunView(run, describers())

    def read_all() -> None:
        view.poll()
        while view.is_behind:
            view.poll()
        view.sections()

    def update() -> None:
        view.poll()
        view.sections()

    _timed("first look", update)
    _timed("all of it", read_all)
    for number in range(UPDATES):
        for machine in range(machines):
            with run.events_path(f"worker-{machine}").open("ab") as file:
                file.write(_step(DAY_S // STEP_EVERY_S + number))
        _timed("update", update)


def _sample(machine: int, time_s: float) -> bytes:
    from phalanx.records.events import HostSample

    sample = HostSample(
        host=f"pc{machine}",
        cpu_user_s=time_s,
        cpu_system_s=0.1 * time_s,
        cpu_idle_s=time_s,
        core_busy_s=[0.3 * time_s] * 8,
        load_1min=1.0,
        memory_used_bytes=2**30,
        memory_total_bytes=2**33,
        received_bytes={"lo": 0, "eth0": int(1e6 * time_s)},
        sent_bytes={"lo": 0, "eth0": int(1e6 * time_s)},
        energy_j=40 * time_s,
        energy_source="rapl",
        wall_s=WALL_S + time_s,
        mono_s=100 + time_s,
    )
    return msgspec.json.encode(sample) + b"\n"


def _step(number: int) -> bytes:
    from phalanx.records.events import Step

    step = Step(
        epoch=0,
        step=100 * number,
        num_samples=3200,
        loss_sum=10.0,
        num_correct=100,
        lr=0.1,
        input_s=0.5,
        forward_s=2.0,
        backward_s=4.0,
        exchange_s=3.0,
        apply_s=0.4,
        num_steps=100,
        wall_s=WALL_S + STEP_EVERY_S * number,
        mono_s=100.0 + STEP_EVERY_S * number,
    )
    return msgspec.json.encode(step) + b"\n"


if __name__ == "__main__":
    main()
