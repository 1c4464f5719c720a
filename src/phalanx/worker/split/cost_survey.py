"""Measure parts, links and memory of the workers before the parts of a split run are placed.

Workers take turns, so that those on one machine do not disturb one another. Results are exchanged
and the chief decides: all workers use the same numbers.
"""

from __future__ import annotations

import hashlib
import socket
import statistics
import time

import psutil
import torch

from phalanx.cgroup import memory_limit, memory_used
from phalanx.comm.base import Collective
from phalanx.data.pipeline import Dataset
from phalanx.engine.part_profiler import PartTimes, time_parts
from phalanx.engine.precision import Precision
from phalanx.model.parts import PartedNetwork
from phalanx.spec.split import SplitSpec
from phalanx.split.op_order import SplitCosts

_PINGS = 10
_BULK_FLOATS = 1 << 18
_FIRST_TAG = 1 << 25


def survey_costs(
    network: PartedNetwork,
    dataset: Dataset,
    collective: Collective,
    *,
    spec: SplitSpec,
    rows: int,
    precision: Precision,
) -> SplitCosts:
    """Measure the time of each part on each worker, and the links; all call it together."""
    times = _in_turns(
        collective,
        lambda: time_parts(
            network,
            dataset.input_shape,
            rows=rows,
            precision=precision,
            whole_numbers=dataset.has_whole_numbers,
        ),
        only_chief=spec.speeds is not None,
    )
    num_parts = len(network.reads)
    own = torch.zeros((2, num_parts), dtype=torch.float64)
    if times is not None:
        own[0] = torch.tensor(times.forward_s, dtype=torch.float64)
        own[1] = torch.tensor(times.backward_s, dtype=torch.float64)
    tables = collective.all_gather(own)
    if spec.speeds is not None:
        chief = tables[0]
        tables = [chief * spec.speeds[0] / speed for speed in spec.speeds]
    latency_s, rate = _measure_links(collective)
    return SplitCosts(
        forward_s=tuple(tuple(table[0].tolist()) for table in tables),
        backward_s=tuple(tuple(table[1].tolist()) for table in tables),
        latency_s=latency_s,
        bytes_per_s=rate,
    )


def _in_turns(collective: Collective, measure: object, *, only_chief: bool) -> PartTimes | None:
    found: PartTimes | None = None
    for turn in range(1 if only_chief else collective.size):
        if collective.rank == turn:
            found = measure()  # type: ignore[operator]
        collective.all_reduce(torch.zeros(1))
    return found


def _measure_links(collective: Collective) -> tuple[float, float]:
    """Return latency and bytes per second of the slowest link from the chief."""
    latency_s, rate = 1e-6, 1e10
    small, bulk = torch.zeros(1), torch.zeros(_BULK_FLOATS)
    for peer in range(1, collective.size):
        if collective.rank in (0, peer):
            other = peer if collective.rank == 0 else 0
            pings = [_ping(collective, small, other) for _ in range(_PINGS)]
            bulks = [_ping(collective, bulk, other) for _ in range(4)]
            one_s = statistics.median(pings) / 2
            latency_s = max(latency_s, one_s)
            both_s = statistics.median(bulks) / 2
            rate = min(rate, bulk.nbytes / max(both_s - one_s, 1e-9))
    found = torch.tensor([latency_s, -rate], dtype=torch.float64)
    collective.all_reduce(found, "max")
    return float(found[0].item()), -float(found[1].item())


def _ping(collective: Collective, tensor: torch.Tensor, other: int) -> float:
    begin = time.perf_counter()
    if collective.rank == 0:
        collective.start_send(tensor, target=other, tag=_FIRST_TAG).wait()
        collective.start_receive(tensor, source=other, tag=_FIRST_TAG + 1).wait()
    else:
        collective.start_receive(tensor, source=other, tag=_FIRST_TAG).wait()
        collective.start_send(tensor, target=other, tag=_FIRST_TAG + 1).wait()
    return time.perf_counter() - begin


def survey_memory(collective: Collective, spec: SplitSpec) -> tuple[float, ...]:
    """Return the bytes that each worker may use for its parts."""
    if spec.memory is not None:
        return tuple(map(float, spec.memory))
    host = int(hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12], 16)
    own = torch.tensor([float(host), _free_bytes()], dtype=torch.float64)
    rows = collective.all_gather(own)
    hosts = [row[0].item() for row in rows]
    return tuple(row[1].item() / hosts.count(row[0].item()) for row in rows)


def _free_bytes() -> float:
    free = float(psutil.virtual_memory().available)
    limit, used = memory_limit(), memory_used()
    return free if limit is None else min(free, max(0.0, limit - (used or 0)))
