"""Calibration finds the constants that runs were made with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from phalanx.plan.calibrate import (
    calibrate,
    correction_of,
    is_alike,
    predicted_throughput,
    read_runs,
)
from phalanx.plan.compute_model import line
from phalanx.plan.facts import ClusterModel, JobFacts, MachineFacts, NetworkFacts
from phalanx.plan.measured import RunMeasures, measure_run
from phalanx.records.events import NetworkBuilt
from phalanx.records.rundir import RunDir
from phalanx.records.script_trained import ScriptTrained
from phalanx.records.tensor_slot import TensorSlot
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.program import script_digest
from support.worlds import short_summary
from support.written import started, step, write_run

FIXED_S, PER_SAMPLE_S, APPLY_S, EXCHANGE_S = 0.02, 0.001, 0.004, 0.03
JOB = {"data": "digits", "batch": {"global": 64}, "workers": 1, "strategy": "single"}


def network() -> NetworkBuilt:
    slots = [TensorSlot("weight", (1000, 999), 0), TensorSlot("bias", (1000,), 999_000)]
    return NetworkBuilt(slots, [], (8, 8), 10, scale=[1.0], shift=[0.0])


def made_up_run(
    root: Path,
    *,
    batch: int = 64,
    workers: int = 1,
    jitter: float = 0.0,
    slow: float = 1.0,
    job: Mapping[str, Any] | None = None,
    num_steps: int = 40,
    threads: int | None = None,
    script: ScriptTrained | None = None,
) -> RunDir:
    """Steps that take just what the constants say."""
    rng = np.random.default_rng(3)
    strategy = "allreduce" if workers > 1 else "single"
    logs = {}
    for rank in range(workers):
        events: list[Any] = [started(rank, 0.0, threads=threads or 2 // workers)]
        now_s = 1.0
        for number in range(num_steps):
            compute_s = (FIXED_S + PER_SAMPLE_S * batch) * slow
            if jitter:
                compute_s *= rng.gamma(1 / jitter**2, jitter**2)
            exchange_s = EXCHANGE_S if workers > 1 else 0.0
            # The first steps are slow, as they are.
            warm_s = 1.0 if number < 3 else 0.0
            now_s += compute_s + exchange_s + APPLY_S + warm_s
            events.append(
                step(
                    number,
                    now_s,
                    num_samples=batch,
                    forward_s=0.4 * compute_s + warm_s,
                    backward_s=0.6 * compute_s,
                    exchange_s=exchange_s,
                    apply_s=APPLY_S,
                )
            )
        logs[f"worker-{rank}"] = events
    logs["worker-0"].insert(1, network())
    spec: dict[str, Any] = {"workers": workers, "strategy": strategy}
    if script is not None:
        logs["worker-0"].append(script)
    else:
        spec = dict(JOB) | spec | {"batch": {"global": batch * workers}}
    run = write_run(root, logs, job=spec | dict(job or {}))
    run.write_summary(short_summary(batch * workers, workers))
    return run


def measured(run: RunDir) -> RunMeasures:
    found = measure_run(run)
    assert found is not None
    return found


def test_two_batch_sizes_tell_fixed_from_proportional(tmp_path: Path) -> None:
    runs = [measured(made_up_run(tmp_path, batch=batch)) for batch in (16, 64)]
    calibration = calibrate(runs)
    (fit,) = calibration.fits["here"]
    assert fit.fixed_s == pytest.approx(FIXED_S, rel=0.02)
    assert fit.per_sample_s == pytest.approx(PER_SAMPLE_S, rel=0.02)
    assert fit.apply_s == pytest.approx(APPLY_S)
    assert fit.backward_share == pytest.approx(0.6, rel=0.02)
    assert fit.jitter == pytest.approx(0.0, abs=1e-6)
    assert (fit.threads, fit.workers, fit.precision) == (2, 1, "fp32")
    assert calibration.costs.startup_s == pytest.approx(5.0)
    assert calibration.costs.warm_up_s == pytest.approx(3.0, rel=0.05)
    assert calibration.model.num_parameters == 1_000_000


def test_shapes_are_those_that_a_run_has_recorded(tmp_path: Path) -> None:
    found = calibrate([measured(made_up_run(tmp_path))])
    assert found.model.shapes == ((1000, 999), (1000,))


def test_jitter_is_found(tmp_path: Path) -> None:
    found = calibrate([measured(made_up_run(tmp_path, jitter=0.3, num_steps=400))])
    assert found.fits["here"][0].jitter == pytest.approx(0.3, rel=0.15)


def test_a_held_out_batch_size_is_predicted(tmp_path: Path) -> None:
    calibration = calibrate([measured(made_up_run(tmp_path, batch=b)) for b in (16, 64)])
    other = measured(made_up_run(tmp_path, batch=32))
    throughput = predicted_throughput(other, cluster_of(calibration.fits["here"], calibration))
    assert throughput.samples_per_s == pytest.approx(other.samples_per_s, rel=0.01)
    assert calibration.costs.correction("single").factor == pytest.approx(1.0, abs=0.02)


def test_a_run_is_predicted_with_the_threads_that_it_had(tmp_path: Path) -> None:
    """One thread on a machine of several cores, or of a share of one."""
    runs = [measured(made_up_run(tmp_path, batch=b, threads=1)) for b in (16, 64)]
    for cores in (8.0, 0.7):
        correction = calibrate(runs, cores={"here": cores}).costs.correction("single")
        assert correction.factor == pytest.approx(1.0, abs=0.02)


def test_the_first_exchange_of_local_sgd_says_nothing_about_its_speed(tmp_path: Path) -> None:
    """It waits for whoever was the last to start, eight steps after the beginning."""
    logs = {}
    for rank in range(2):
        events: list[Any] = [started(rank, 0.0, threads=1)]
        now_s = 1.0
        for number in range(40):
            exchange_s = (0.4 if number > 7 else 9.0) if number % 8 == 7 else 0.0
            now_s += 0.1 + exchange_s
            events.append(
                step(
                    number, now_s, num_samples=32, backward_s=0.1, exchange_s=exchange_s, apply_s=0
                )
            )
        logs[f"worker-{rank}"] = events
    spec = JOB | {"batch": {"global": 64}, "workers": 2, "strategy": "local_sgd"}
    run = write_run(tmp_path, logs, job=spec)
    run.write_summary(short_summary(64, 2))
    assert measured(run).samples_per_s == pytest.approx(64 * 8 / (8 * 0.1 + 0.4))


def cluster_of(fits: Any, calibration: Any) -> ClusterModel:
    here = MachineFacts(name="here", cores=2, memory_bytes=1 << 34, fits=fits, slots=2)
    return ClusterModel(
        machines={"here": here},
        model=calibration.model,
        job=JobFacts(global_batch=64, samples_per_epoch=1000, epochs=1),
        network=NetworkFacts(within=calibration.within),
        costs=calibration.costs,
    )


def test_the_link_within_a_machine_explains_the_exposed_exchange(tmp_path: Path) -> None:
    runs = [
        measured(made_up_run(tmp_path, batch=64)),
        measured(made_up_run(tmp_path, batch=64, workers=2)),
    ]
    calibration = calibrate(runs)
    throughput = predicted_throughput(runs[1], cluster_of(calibration.fits["here"], calibration))
    assert throughput.parts.communication_s == pytest.approx(EXCHANGE_S, rel=0.02)
    assert throughput.samples_per_s == pytest.approx(runs[1].samples_per_s, rel=0.02)


def test_exchanges_and_the_rest_are_corrected_apart() -> None:
    """Steps that are mostly exchange, and took a third longer than predicted."""
    found = correction_of(np.array([[0.1, 0.65], [0.15, 0.6]]))
    assert found.exchange == pytest.approx(1.3, abs=0.08)
    assert found.factor == pytest.approx(1.0, abs=0.1)
    # Steps that are mostly computing say nothing about exchanges.
    found = correction_of(np.array([[0.8, 0.02]] * 8))
    assert found.factor == pytest.approx(1.2, abs=0.06)
    assert found.exchange == pytest.approx(1.0, abs=0.1)


def test_runs_that_differ_from_the_prediction_widen_the_interval(tmp_path: Path) -> None:
    steady = calibrate([measured(made_up_run(tmp_path)) for _ in range(6)])
    mixed = calibrate(
        [measured(made_up_run(tmp_path, slow=slow)) for slow in (0.6, 1.6, 0.7, 1.4, 1.0, 1.2)]
    )
    assert mixed.costs.correction("single").error > 2 * steady.costs.correction("single").error


def test_only_runs_that_can_teach_are_read(tmp_path: Path) -> None:
    good = made_up_run(tmp_path)
    made_up_run(tmp_path, num_steps=5)
    made_up_run(tmp_path, job={"inject": [{"rank": 0}]})
    made_up_run(tmp_path, job={"model": "mlp"})
    broken = made_up_run(tmp_path)
    (broken.path / "summary.json").unlink()
    found = read_runs([tmp_path, tmp_path / "nowhere"], job_from_mapping(JOB))
    assert [run.name for run in found] == [good.name]


def test_alike_means_the_same_computation() -> None:
    one = job_from_mapping(JOB)
    assert is_alike(one, job_from_mapping(JOB | {"batch": {"global": 8}, "epochs": 9, "seed": 7}))
    assert not is_alike(one, job_from_mapping(JOB | {"optimizer": "adam"}))
    assert not is_alike(one, job_from_mapping(JOB | {"data": "mnist"}))


SCRIPT = ScriptTrained(
    digest=script_digest(Path(__file__)),
    epochs=3,
    global_batch=64,
    num_samples=1000,
    num_moments=2,
    has_convolutions=True,
    own_streams=False,
    between_s=0.0,
)


def script_job(script: str = __file__, **program: object) -> dict[str, Any]:
    return {"program": {"script": script, **program}}


def test_scripts_are_alike_if_they_and_their_arguments_are() -> None:
    one = job_from_mapping(script_job("a.py", args=["--lr", "1"]))
    trial = {"steps": 7, "part": 0.25}
    assert is_alike(one, job_from_mapping(script_job("a.py", args=["--lr", "1"], trial=trial)))
    assert not is_alike(one, job_from_mapping(script_job("b.py", args=["--lr", "1"])))
    assert not is_alike(one, job_from_mapping(script_job("a.py")))
    assert not is_alike(one, job_from_mapping(JOB))
    assert not is_alike(job_from_mapping(JOB), one)


def test_parts_of_a_scripts_batch_tell_fixed_from_proportional(tmp_path: Path) -> None:
    whole = made_up_run(tmp_path, batch=64, script=SCRIPT, job=script_job(trial={"steps": 40}))
    trial = {"steps": 40, "part": 0.25}
    made_up_run(tmp_path, batch=16, script=SCRIPT, job=script_job(trial=trial))
    changed = msgspec.structs.replace(SCRIPT, digest="another")
    made_up_run(tmp_path, batch=16, script=changed, job=script_job(trial=trial))
    made_up_run(tmp_path, batch=16)
    runs = read_runs([tmp_path], job_from_mapping(script_job()))
    assert sorted(run.job.global_batch for run in runs) == [16, 64]
    assert whole.name in {run.name for run in runs}
    calibration = calibrate(runs)
    (fit,) = calibration.fits["here"]
    assert fit.fixed_s == pytest.approx(FIXED_S, rel=0.02)
    assert fit.per_sample_s == pytest.approx(PER_SAMPLE_S, rel=0.02)
    assert calibration.model.num_moments == 2
    assert calibration.script == SCRIPT
    # 20 s in all less 12 s of training; trials do nothing else.
    assert calibration.costs.startup_s == pytest.approx(8.0)


def test_a_run_to_its_end_shows_what_a_script_does_between_epochs(tmp_path: Path) -> None:
    ended = msgspec.structs.replace(SCRIPT, between_s=2.0)
    made_up_run(tmp_path, script=ended, job=script_job())
    made_up_run(tmp_path, script=SCRIPT, job=script_job(trial={"steps": 40}))
    runs = read_runs([tmp_path], job_from_mapping(script_job()))
    assert calibrate(runs).script == ended


def test_lines_never_go_below_zero() -> None:
    assert line([1, 2, 3], [3.0, 5.0, 7.0], [1, 1, 1]) == pytest.approx((1.0, 2.0))
    # Falling through zero: no fixed part.
    assert line([1, 2], [1.0, 3.0], [1, 1])[0] == 0.0
    # Falling with the batch, which only noise can do.
    fixed, slope = line([1, 2], [3.0, 2.0], [1, 1])
    assert fixed > 0
    assert slope > 0
    # One size: a tenth is taken as fixed.
    assert line([4], [2.0], [1]) == pytest.approx((0.2, 0.45))
