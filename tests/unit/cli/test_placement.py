"""How a split is shown."""

from __future__ import annotations

import msgspec

from phalanx.cli.progress import placement_lines
from phalanx.records.events import Placed
from phalanx.report.format import format_places
from phalanx.split.placement import SplitForecast

PLACES = {
    "left.conv": [0],
    "left.dense": [0],
    "right.conv": [1],
    "right.dense": [0],
    "trunk": [1, 2],
}


def forecast(name: str, *, step_s: float, sent: int) -> SplitForecast:
    return SplitForecast(
        placement=name,
        places=PLACES,
        step_s=step_s,
        busy_s=[step_s, step_s / 2],
        imbalance=1.25,
        activation_bytes=sent // 2,
        gradient_bytes=sent // 2,
        parameter_bytes=0,
        messages=4,
        memory_bytes=[0, 0],
    )


def placed(*, other_s: float = 0.5, other_sent: int = 100 << 20) -> Placed:
    return Placed(
        forecast=forecast("planned", step_s=0.25, sent=1 << 20),
        others=[forecast("data_parallel", step_s=other_s, sent=other_sent)],
        parts=[],
        rows=32,
        latency_s=1e-4,
        bytes_per_s=1e8,
        proven=True,
    )


def test_whole_branches_are_drawn_together() -> None:
    text = format_places(PLACES)
    assert text == ("worker 0: left.*, right.dense; worker 1: right.conv; worker 1+2: trunk")


def test_the_forecast_stands_beside_data_parallelism_with_a_reason() -> None:
    lines = placement_lines(placed())
    assert lines[0].startswith("placement planned, the best of all: worker 0")
    assert lines[1] == "predicted: step 0.25 s, imbalance 1.25, 1.0 MiB per step"
    assert "split is expected to be 2.0 times as fast as data parallelism" in lines[-1]
    assert "sends 100 times less" in lines[-1]


def test_it_says_so_when_copies_are_faster() -> None:
    text = placement_lines(placed(other_s=0.1, other_sent=1 << 19))[-1]
    assert "data parallelism is expected to be 2.5 times as fast as split" in text
    assert "sends 2.0 times more" in text


def test_the_event_survives_the_log() -> None:
    event = placed()
    assert msgspec.json.decode(msgspec.json.encode(event), type=Placed) == event
