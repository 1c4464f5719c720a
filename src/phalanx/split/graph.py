"""Describe a network for splitting: parts, their inputs, their costs, their placement.

Notation: n rows (samples) in a micro-batch, a part p held by R workers of which worker i computes
rows n·i/R to n·(i+1)/R, rounded down. Nothing here knows what a part computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

Places = tuple[tuple[int, ...], ...]
"""For each part the workers that hold it: one, or several that divide every batch."""


class NetworkPart(msgspec.Struct, frozen=True, kw_only=True):
    """Cost and inputs of a part."""

    name: str
    reads: tuple[int, ...] = ()
    """Parts whose output it reads, each numbered below itself; inputs are not among them."""
    out_bytes: int
    """Bytes of its output for one sample, as sent."""
    parameters: int = 0
    state_bytes: int = 0
    """Weights, gradients, optimiser state."""
    sample_bytes: int = 0
    """Activations kept for one sample until its gradient has passed."""
    needs_gradient: bool = True
    """Whether it, or any part before it, has weights to train."""


class NetworkGraph(msgspec.Struct, frozen=True, dict=True):
    """All parts, each after those that it reads; the last computes the loss."""

    parts: tuple[NetworkPart, ...]
    tied: tuple[tuple[int, ...], ...] = ()
    """Parts that share weights and must be on one worker."""

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each part, the parts that read it."""
        found: list[list[int]] = [[] for _ in self.parts]
        for number, part in enumerate(self.parts):
            for source in dict.fromkeys(part.reads):
                found[source].append(number)
        return tuple(map(tuple, found))


class RowShare(NamedTuple):
    """One of `of` equal shares of some rows."""

    number: int
    of: int

    def rows(self, num_rows: int) -> tuple[int, int]:
        """Return the first row, and the one after the last."""
        return num_rows * self.number // self.of, num_rows * (self.number + 1) // self.of

    def meets(self, other: RowShare) -> bool:
        """Return whether two shares of the same rows can overlap."""
        return (
            self.number * other.of < (other.number + 1) * self.of
            and other.number * self.of < (self.number + 1) * other.of
        )


class Transfer(NamedTuple):
    """Rows of a part's output sent from one worker to another, and their gradient back."""

    part: int
    source: int
    target: int
    source_share: RowShare
    target_share: RowShare

    def rows(self, num_rows: int) -> tuple[int, int]:
        """Return the rows, of all, that are sent; maybe none."""
        low, high = self.source_share.rows(num_rows)
        first, last = self.target_share.rows(num_rows)
        return max(low, first), max(min(high, last), max(low, first))


def transfers(graph: NetworkGraph, places: Places) -> tuple[Transfer, ...]:
    """Return all transfers of one micro-batch, in an order all workers agree on.

    An output that several parts on one worker read is sent once.
    """
    found: dict[Transfer, None] = {}
    for number, readers in enumerate(graph.readers):
        for index, source in enumerate(places[number]):
            own = RowShare(index, len(places[number]))
            for reader in readers:
                for place, target in enumerate(places[reader]):
                    other = RowShare(place, len(places[reader]))
                    if target != source and own.meets(other):
                        found[Transfer(number, source, target, own, other)] = None
    return tuple(found)


class LinkTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one training step on one link, by kind."""

    activations: int = 0
    gradients: int = 0
    parameters: int = 0
    """Gradients of weights, between workers that hold the same part."""
    messages: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.activations + self.gradients + self.parameters


def traffic_of(
    graph: NetworkGraph, places: Places, *, num_rows: int, micro_batches: int = 1
) -> dict[tuple[int, int], LinkTraffic]:
    """Return the bytes that workers exchange in one step, by (from, to)."""
    sums: dict[tuple[int, int], list[int]] = {}

    def add(source: int, target: int, kind: int, num_bytes: float) -> None:
        row = sums.setdefault((source, target), [0, 0, 0, 0])
        row[kind] += int(num_bytes)
        row[3] += 1

    for one in transfers(graph, places):
        part = graph.parts[one.part]
        for piece in pieces(num_rows, micro_batches):
            first, last = one.rows(piece)
            if first < last:
                add(one.source, one.target, 0, (last - first) * part.out_bytes)
                if part.needs_gradient:
                    add(one.target, one.source, 1, (last - first) * part.out_bytes)
    for part, holders in zip(graph.parts, places, strict=True):
        size = len(holders)
        for index, holder in enumerate(holders):
            if size > 1 and part.parameters:
                # A ring: each sends to the next, (R-1)/R of all while reducing and while gathering.
                sent = 2 * (size - 1) / size * part.parameters * 4
                add(holder, holders[(index + 1) % size], 2, sent)
    return {
        pair: LinkTraffic(activations=a, gradients=g, parameters=p, messages=m)
        for pair, (a, g, p, m) in sums.items()
    }


def total_of(traffic: dict[tuple[int, int], LinkTraffic]) -> LinkTraffic:
    """Return the sum over all pairs."""
    fields = LinkTraffic.__struct_fields__
    return LinkTraffic(
        **{name: sum(getattr(one, name) for one in traffic.values()) for name in fields}
    )


def pieces(num_rows: int, micro_batches: int) -> tuple[int, ...]:
    """Return the rows of each micro-batch: as equal as can be, none empty."""
    count = min(micro_batches, num_rows)
    shares = [RowShare(index, count).rows(num_rows) for index in range(count)]
    return tuple(last - first for first, last in shares)


def one_each(workers: Sequence[int]) -> Places:
    """Return places in which every part is on one worker."""
    return tuple((worker,) for worker in workers)
