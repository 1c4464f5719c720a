"""Control messages of real runs: over connections that are cut, long ones, and slow answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from phalanx import api
from phalanx.control.state_machine import StateMachine
from phalanx.records.events import Step
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir
from phalanx.records.summary import Summary
from phalanx.wire.control import ControlServer
from phalanx.wire.delivery import MAX_FRAME_BYTES
from support.relay import Relay
from support.runs import Place

# The statistics of a network of 150,000 batch-norm channels, which is small otherwise.
WIDE = '''
import math

from torch import Tensor, nn


class Wide(nn.Module):
    """Every class has 15,000 channels of its own."""

    def __init__(self, size: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, num_classes)
        self.repeats = 150_000 // num_classes
        self.norm = nn.BatchNorm1d(num_classes * self.repeats)

    def forward(self, inputs: Tensor) -> Tensor:
        scores = self.linear(inputs.flatten(1))
        wide = self.norm(scores.repeat_interleave(self.repeats, dim=1))
        return wide.unflatten(1, (scores.shape[1], self.repeats)).mean(2)


def build(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Wide(math.prod(input_shape), num_classes)
'''
JOB: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [32]},
    "data": "digits",
    "batch": {"global": 128},
    "epochs": 2,
    "workers": 2,
}
SERVED = {"name": "parameter_server", "consistency": "bsp", "min_shard_bytes": 1024}


class CutLine:
    """A line between the controller and its processes that is cut at every transition."""

    def __init__(self) -> None:
        self.cut_in: set[str] = set()
        self._relays: dict[int, Relay] = {}
        self._stack = ExitStack()

    def __enter__(self) -> CutLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, server: ControlServer) -> str:
        port = server._port
        if port not in self._relays:
            self._relays[port] = self._stack.enter_context(Relay(port))
        return self._relays[port].address

    def cut(self, state: object) -> None:
        self.cut_in.add(type(state).__name__)
        for relay in self._relays.values():
            relay.cut()


@contextmanager
def cutting(monkeypatch: pytest.MonkeyPatch) -> Iterator[CutLine]:
    """All control connections of runs in this process go through lines that are cut."""
    advance = StateMachine.advance
    with CutLine() as line, monkeypatch.context() as patch:

        def advance_and_cut(self: StateMachine[Any], event: StrEnum, target: object) -> None:
            advance(self, event, target)
            # What is sent in the new state meets a broken line, and so does what it answers.
            line.cut(target)

        patch.setattr(StateMachine, "advance", advance_and_cut)
        patch.setattr(ControlServer, "address_at", lambda self, host=None: line.address(self))
        yield line


def train(place: Place, strategy: dict[str, Any], name: str, **fields: Any) -> Summary:
    job = JOB | {"name": name, "strategy": strategy} | fields
    return api.train(job, runs=place.runs, data_root=place.data, cache_root=place.cache)


@pytest.mark.full
def test_a_served_run_whose_connections_are_cut_in_every_state_gives_the_same_bits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = SERVED | {"servers": 2}
    whole = train(place, strategy, "whole")
    with cutting(monkeypatch) as line:
        cut = train(place, strategy, "cut")
    assert line.cut_in >= {"Training", "Pausing", "Flushing", "Closing", "AtGate", "Finishing"}
    assert line.cut_in >= {"ReadingServers", "MeasuringPart", "SavingCheckpoint"}
    assert cut.parameters_sha256 == whole.parameters_sha256
    assert (cut.samples, cut.updates) == (whole.samples, whole.updates)
    assert cut.serving is not None
    assert cut.serving.processes_replaced == 0


@pytest.mark.full
@pytest.mark.parametrize("servers", [1, "colocated"])
def test_a_switch_whose_connections_are_cut_in_every_state_gives_the_same_bits(
    place: Place, monkeypatch: pytest.MonkeyPatch, servers: int | str
) -> None:
    served = SERVED | {"servers": servers}
    phases = [
        {"strategy": "allreduce"},
        {"strategy": served, "epoch": 0.5},
        {"strategy": "allreduce", "epoch": 1.5},
    ]
    strategy = {"name": "switch", "phases": phases}
    whole = train(place, strategy, "whole")
    with cutting(monkeypatch) as line:
        cut = train(place, strategy, "cut")
    assert line.cut_in >= {"InPhase", "Committed", "Ending", "HandingOver", "Left"}
    assert cut.parameters_sha256 == whole.parameters_sha256
    assert cut.samples == whole.samples


@pytest.mark.full
def test_a_network_of_150_000_channels_passes_its_gates(place: Place) -> None:
    (place.folder / "wide.py").write_text(WIDE)
    job = JOB | {"name": "wide", "model": "wide:build", "strategy": SERVED, "epochs": 2}
    place.write_job(job)
    summary = place.summary("job.yaml")
    assert 4 * MAX_FRAME_BYTES < 2 * 150_000 * 4
    assert summary["epochs"] == 2
    assert summary["serving"]["processes_replaced"] == 0
    # A network that was evaluated with the statistics of its beginning knows nothing.
    assert summary["test_accuracy"] > 0.3


@pytest.mark.full
def test_a_partner_that_is_slower_than_the_deadline_is_waited_for(place: Place) -> None:
    limit_s = 1.5
    job = JOB | {
        "name": "slow",
        "strategy": SERVED,
        "deadlines": {"exchange_s": limit_s},
        # One step in the middle takes thousands of times as long as another.
        "inject": [{"rank": 1, "slow": 12000, "begin": 0.5, "end": 0.501}],
    }
    place.write_job(job)
    summary = place.summary("job.yaml")
    assert summary["serving"]["processes_replaced"] == 0
    run = RunDir.open(Path(summary["run_dir"]))
    steps = read_events(run.events_path("worker-0"), Step)
    assert max(step.exchange_s for step in steps if isinstance(step, Step)) > 2 * limit_s
