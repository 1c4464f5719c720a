"""Made-up networks and pools of machines, for the splitting of networks."""

from __future__ import annotations

from hypothesis import strategies as st

from phalanx.split.graph import NetworkGraph, NetworkPart
from phalanx.split.op_order import SplitCosts
from phalanx.split.placement_search import PlacementProblem


def chain(*out_bytes: int, parameters: int = 1000) -> NetworkGraph:
    """Parts one after the other."""
    return NetworkGraph(
        tuple(
            NetworkPart(
                name=f"p{number}",
                reads=(number - 1,) if number else (),
                out_bytes=size,
                parameters=parameters,
            )
            for number, size in enumerate(out_bytes)
        )
    )


def costs(*rows: tuple[float, ...], latency_s: float = 0.0, bytes_per_s: float = 1e9) -> SplitCosts:
    """Seconds forward by worker, then part; backward takes twice as long."""
    return SplitCosts(
        forward_s=rows,
        backward_s=tuple(tuple(2 * second for second in row) for row in rows),
        latency_s=latency_s,
        bytes_per_s=bytes_per_s,
        apply_s_per_parameter=0.0,
    )


@st.composite
def graphs(draw: st.DrawFn, *, most_parts: int = 5) -> NetworkGraph:
    """Networks in which every part but the last is read."""
    count = draw(st.integers(1, most_parts))
    reads: list[set[int]] = [set() for _ in range(count)]
    for number in range(count - 1):
        readers = st.sets(st.integers(number + 1, count - 1), min_size=1, max_size=2)
        for reader in draw(readers):
            reads[reader].add(number)
    parts = []
    for number in range(count):
        trains = draw(st.booleans()) or number == count - 1
        parts.append(
            NetworkPart(
                name=f"p{number}",
                reads=tuple(sorted(reads[number])),
                out_bytes=draw(st.integers(1, 4000)),
                parameters=draw(st.integers(0, 5000)) if trains else 0,
                state_bytes=draw(st.integers(0, 100)),
                sample_bytes=draw(st.integers(0, 3)),
                needs_gradient=trains or any(parts[one].needs_gradient for one in reads[number]),
            )
        )
    return NetworkGraph(tuple(parts))


@st.composite
def questions(draw: st.DrawFn, *, most_parts: int = 5, most_workers: int = 3) -> PlacementProblem:
    """Networks, machines of unequal speed and memory, links."""
    graph = draw(graphs(most_parts=most_parts))
    num_workers = draw(st.integers(1, most_workers))
    work = draw(
        st.lists(st.floats(0.001, 1.0), min_size=len(graph.parts), max_size=len(graph.parts))
    )
    speeds = draw(
        st.lists(st.sampled_from([1.0, 1.0, 2.0]), min_size=num_workers, max_size=num_workers)
    )
    memory = draw(
        st.one_of(
            st.just(()),
            st.lists(
                st.integers(60, 600).map(float), min_size=num_workers, max_size=num_workers
            ).map(tuple),
        )
    )
    return PlacementProblem(
        graph=graph,
        costs=SplitCosts(
            forward_s=tuple(tuple(one / speed for one in work) for speed in speeds),
            backward_s=tuple(tuple(2 * one / speed for one in work) for speed in speeds),
            latency_s=draw(st.sampled_from([0.0, 0.001, 0.1])),
            bytes_per_s=draw(st.sampled_from([1e4, 1e6, 1e9])),
        ),
        num_rows=draw(st.integers(1, 12)),
        micro_batches=draw(st.integers(1, 4)),
        schedule=draw(st.sampled_from(["gpipe", "1f1b"])),
        memory_bytes=memory,
    )
