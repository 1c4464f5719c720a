"""Report what `precision: auto` would choose here: `python -m phalanx.worker.precision_probe`.

Measures the default job's training step and writes one JSON object. A separate process, because
`phalanx doctor` runs without torch.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import msgspec

from phalanx.comm.solo import SoloCollective
from phalanx.data.pipeline import open_dataset
from phalanx.engine.precision import PrecisionChoice
from phalanx.spec.job import JobSpec
from phalanx.worker.replica import decide_precision


def probe() -> PrecisionChoice:
    """Return the choice for the default job, which needs no files."""
    job = JobSpec(precision="auto")
    with tempfile.TemporaryDirectory(prefix="phalanx-probe-") as cache:
        dataset = open_dataset(job.data, data_root=Path(cache), cache_root=Path(cache))
        return decide_precision(job, dataset, SoloCollective())


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(asdict(probe())) + b"\n")
