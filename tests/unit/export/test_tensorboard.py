from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import SpecError
from phalanx.export.tensorboard import export_tensorboard
from phalanx.records.events import Epoch
from support.scripted import make_summary
from support.written import write_run

# Sets a variable of its own when it is imported; no test must be blamed for it.
pytest.importorskip("tensorboardX")
EPOCH = Epoch(
    epoch=0, samples=100, updates=1, train_loss=2.0, train_accuracy=0.5, regularisation=0.0,
    val_loss=1.5, val_accuracy=0.25, lr=0.1, train_s=4.0, evaluate_s=0.0, wall_s=1e9,
)  # fmt: skip


def read_back(folder: Path) -> Iterator[Any]:
    """The events of the only file in a folder: each in a frame of length, sum, bytes, sum."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.iterdir()
    raw, position = path.read_bytes(), 0
    while position < len(raw):
        (length,) = struct.unpack_from("<Q", raw, position)
        yield Event.FromString(raw[position + 12 : position + 12 + length])
        position += 16 + length


def test_curves_and_settings_can_be_read_back_and_are_not_doubled(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", {"worker-0": [EPOCH]})
    run.write_summary(make_summary(run_dir=str(run.path), strategy="allreduce", workers=2))
    for _ in range(2):
        (folder,) = export_tensorboard([run], tmp_path / "logs")
    assert folder == tmp_path / "logs" / run.name
    scalars: dict[str, tuple[int, float, float]] = {}
    plugins: dict[str, bytes] = {}
    for event in read_back(folder):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                plugins[value.tag] = value.metadata.plugin_data.content
            else:
                assert value.tag not in scalars
                scalars[value.tag] = (event.step, value.simple_value, event.wall_time)
    assert scalars["train/loss"] == (1, 2.0, 1e9)
    assert scalars["val/accuracy"] == (1, 0.25, 1e9)
    assert scalars["lr"] == (1, pytest.approx(0.1), 1e9)
    assert scalars["samples_per_s"] == (1, 25.0, 1e9)
    assert scalars["result/test_accuracy"][1] == 0.75
    start = plugins["_hparams_/session_start_info"]
    assert b"optimizer.lr" in start
    assert b"strategy.name" in start


def test_a_missing_package_is_named_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(SpecError, match=r"pip install 'phalanx\[tensorboard\]'"):
        export_tensorboard([], tmp_path)
