"""A notebook with a real kernel: progress while a run trains, its curves afterwards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.runs import LIMIT_S

TRAIN = """
import phalanx
result = phalanx.train(
    {"data": "digits", "model": "mlp", "epochs": 8, "workers": 2, "checkpoint": {"keep": 1}}
)
result
"""
PLOT = 'phalanx.open_run("last").plot("loss", "accuracy")'


@pytest.mark.full
def test_a_notebook_shows_progress_and_curves(tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient")
    form = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    shown: list[str] = []

    class Watched(client.NotebookClient):  # type: ignore[misc, name-defined]
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] == "update_display_data":
                shown.append(msg["content"]["data"]["text/html"])
            return super().process_message(msg, cell, cell_index)

    cells = [form.v4.new_code_cell(source) for source in (TRAIN, PLOT)]
    notebook = form.v4.new_notebook(cells=cells)
    Watched(notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shares = [float(found[1]) for one in shown if (found := re.search(r"value='([\d.]+)'", one))]
    assert shares == sorted(shares)
    assert any(0 < one < 1 for one in shares), "nothing was shown while it trained"
    assert shares[-1] == 1
    assert "finished after" in shown[-1]
    trained, plotted = (cell.outputs for cell in notebook.cells)
    assert "<progress" in trained[0].data["text/html"]
    assert "<svg" in trained[-1].data["text/html"]
    (output,) = plotted
    assert output.data["text/html"].startswith("<figure")
    assert "loss by epoch" in output.data["text/html"]
