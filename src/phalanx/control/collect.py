"""Putting the reports of all workers together into the summary of the run."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.records.rundir import RunDir
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import Result


def summarise(
    run: RunDir,
    job: JobSpec,
    results: Mapping[str, Result],
    *,
    threads: int,
    elapsed_s: float,
    attempts: int,
) -> Summary:
    """The summary of a finished run.

    Measures come from the chief (worker-0), which has reduced them over all workers. Times are
    means per worker; bytes are the sum over workers.
    """
    chief = results["worker-0"]
    share = 1.0 / len(results)
    return Summary(
        run_dir=str(run.path),
        name=job.name,
        state="finished",
        strategy=job.strategy.name,
        model=job.model.name,
        data=job.data.name,
        workers=job.workers,
        threads=threads,
        precision=chief.precision,
        seed=job.seed,
        global_batch=job.global_batch,
        epochs=chief.epochs,
        samples=chief.samples,
        updates=chief.updates,
        parameters=chief.parameters,
        elapsed_s=elapsed_s,
        train_s=chief.train_s,
        evaluate_s=chief.evaluate_s,
        startup_s=chief.startup_s,
        samples_per_s=chief.samples / chief.train_s if chief.train_s > 0 else 0.0,
        train_loss=chief.train_loss,
        train_accuracy=chief.train_accuracy,
        regularisation=chief.regularisation,
        val_loss=chief.val_loss,
        val_accuracy=chief.val_accuracy,
        test_loss=chief.test_loss,
        test_accuracy=chief.test_accuracy,
        bytes_sent=sum(one.sent_bytes for one in results.values()),
        input_s=share * sum(one.input_s for one in results.values()),
        compute_s=share * sum(one.compute_s for one in results.values()),
        communication_s=share * sum(one.communication_s for one in results.values()),
        wait_s=share * sum(one.wait_s for one in results.values()),
        apply_s=share * sum(one.apply_s for one in results.values()),
        stopped_early=chief.stopped_early,
        attempts=attempts,
        parameters_sha256=chief.parameters_sha256,
    )
