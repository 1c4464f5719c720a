"""Turn a candidate into a job: the same work with its workers, batch and strategy. Pure."""

from __future__ import annotations

from phalanx.plan.placement import Candidate
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_mapping


def job_of(job: JobSpec, candidate: Candidate) -> JobSpec:
    """Return the job with the settings of a candidate.

    Raises:
        SpecError: The job and the candidate's strategy are incompatible.
    """
    mapping: dict[str, object] = dict(to_mapping(job))
    mapping |= {
        "workers": candidate.num_workers,
        "batch": _batch(candidate),
        "strategy": to_mapping(candidate.strategy),
        "precision": candidate.precision,
    }
    return job_from_mapping(mapping)


def _batch(candidate: Candidate) -> dict[str, object]:
    sizes = [size for seat in candidate.seats for size in seat.batches]
    batch: dict[str, object] = {"global": candidate.global_batch}
    if max(sizes) - min(sizes) > 1 and not candidate.strategy.hands_out_batches:
        batch["shares"] = [float(size) for size in sizes]
    return batch
