"""Export runs as TensorBoard event files (`phalanx export tensorboard`).

Each run becomes one folder with one file; exporting again replaces it. Curves carry the times of
the run, not of the export. Needs the extra `tensorboard`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from phalanx.errors import StoreError
from phalanx.export.metrics import RunMetrics, read_metrics, require
from phalanx.records.rundir import RunDir

_SUFFIX = ".phalanx"


def export_tensorboard(runs: Iterable[RunDir], folder: Path) -> list[Path]:
    """Write runs as TensorBoard event files.

    Args:
        runs: Runs to export.
        folder: The `--logdir` of TensorBoard.

    Returns:
        The folder of each run.

    Raises:
        SpecError: The package is not installed.
        StoreError: The folder cannot be written.
    """
    require("tensorboardX", extra="tensorboard", use="exporting to TensorBoard")
    return [_write(read_metrics(run), folder / run.name) for run in runs]


def _write(metrics: RunMetrics, folder: Path) -> Path:
    from tensorboardX import SummaryWriter
    from tensorboardX.summary import hparams

    try:
        for former in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
            former.unlink()
        with SummaryWriter(str(folder), filename_suffix=_SUFFIX) as writer:
            for scalar in (*metrics.epochs, *metrics.system):
                # A diverged loss is not finite; TensorBoard marks it as such.
                writer.add_scalar(scalar.name, scalar.value, scalar.step, walltime=scalar.wall_s)
            params = {key: _number(text) for key, text in sorted(metrics.params.items())}
            results = {f"result/{name}": value for name, value in metrics.results.items()}
            for part in hparams(params, results):
                writer.file_writer.add_summary(part, walltime=metrics.end_s)
            for name, value in results.items():
                writer.add_scalar(name, value, 0, walltime=metrics.end_s)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror}", path=str(folder)) from error
    return folder


def _number(text: str) -> float | bool | str:
    """Convert settings for TensorBoard's filters: numbers and booleans by type."""
    if text in ("true", "false"):
        return text == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
