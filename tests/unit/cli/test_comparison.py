from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from phalanx.cli.comparison import comparison_table, interpret, render_times
from phalanx.cli.demo import STRATEGIES, demo_job
from phalanx.cli.output import print_blocks
from phalanx.cli.result import result_blocks
from phalanx.report.compare import RunComparison, compare
from phalanx.report.document import Block
from support.scripted import make_summary


def rows(*speeds: float, accuracies: tuple[float, ...] = (0.98, 0.97, 0.98)) -> list[RunComparison]:
    changes: list[dict[str, Any]] = [
        {"strategy": "single", "workers": 1, "threads": 2},
        {"strategy": "allreduce", "workers": 4, "threads": 1, "bytes_sent": 80 << 20},
        {"strategy": "local_sgd", "workers": 4, "threads": 1, "bytes_sent": 10 << 20},
    ]
    return compare(
        [
            make_summary(samples_per_s=speed, test_accuracy=accuracy, elapsed_s=723.0, **change)
            for change, speed, accuracy in zip(changes, speeds, accuracies, strict=True)
        ]
    )


def rendered(part: RenderableType | list[Block]) -> list[str]:
    console = Console(file=io.StringIO(), width=80, record=True)
    if isinstance(part, list):
        print_blocks(console, part)
    else:
        console.print(part)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_table_fits_80_columns() -> None:
    lines = rendered([comparison_table(rows(100_000.0, 50_000.0, 120_000.0))])
    assert len(lines) == 5
    assert max(cell_len(line) for line in lines) <= 80
    cells = "allreduce 4 97.00 % 50,000 0.50x 12 min 03 s 80.0 MiB"
    assert " ".join(lines[3].split()) == cells


def test_the_bars_fit_80_columns_and_show_the_shares() -> None:
    lines = rendered(render_times(rows(3.0, 2.0, 1.0)))
    assert max(cell_len(line) for line in lines) <= 80
    assert lines[1].endswith("10 %  60 %  20 %  10 %")


def test_the_result_names_what_matters() -> None:
    summary = make_summary(stopped_early=True, test_loss=None, test_accuracy=None)
    text = "\n".join(rendered(result_blocks(summary)))
    assert "finished after 3 epochs, stopped early" in text
    assert re.search(r"^test +not measured", text, re.MULTILINE)
    assert "1,941 samples/s on 1 worker x 2 threads, fp32" in text
    assert "input 10 %, compute 60 %, communication 20 %, waiting 10 %" in text
    assert "runs/job-1" in text


@pytest.mark.parametrize(
    ("speeds", "cores", "part"),
    [
        ((100.0, 50.0, 90.0), 2, "they cannot do more work in total"),
        ((100.0, 50.0, 120.0), 2, "Do not trust this gain: 4 workers share 2 cores"),
        ((100.0, 50.0, 90.0), 8, "exchange takes longer than it saves"),
        ((100.0, 350.0, 390.0), 8, "exchange takes less than they add"),
    ],
)
def test_the_sentence_on_speed_follows_the_measurement(
    speeds: tuple[float, float, float], cores: int, part: str
) -> None:
    sentence = interpret(rows(*speeds), cores=cores)[1]
    assert part in sentence
    assert f"allreduce {speeds[1] / 100:.2f}x" in sentence


def test_the_sentence_on_accuracy_follows_the_measurement() -> None:
    same, *_ = interpret(rows(1.0, 1.0, 1.0), cores=2)
    assert same == "Accuracy: all reach about the same, 97.00 % to 98.00 %."
    apart, *_ = interpret(rows(1.0, 1.0, 1.0, accuracies=(0.98, 0.97, 0.9)), cores=2)
    assert "local_sgd is behind" in apart


def test_traffic_is_compared() -> None:
    assert "8.0 times less" in interpret(rows(1.0, 1.0, 1.0), cores=2)[2]


def test_only_strategy_and_workers_differ_in_the_demo() -> None:
    jobs = [demo_job(strategy, workers) for strategy, workers in STRATEGIES]
    alike = [job.model_dump(exclude={"name", "strategy", "workers"}) for job in jobs]
    assert alike[0] == alike[1] == alike[2]
    assert [job.workers for job in jobs] == [1, 4, 4]
