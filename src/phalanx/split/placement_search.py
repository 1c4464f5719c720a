"""Planned placement: the cheapest of all placements, by branch and bound.

Objective: step + wire, where `step` is the simulated time of one training step (the slowest machine
and those that wait for it) and `wire` the time for which the step occupies the network, so that of
two equally fast placements the one with less traffic wins, and a cut must gain more than it sends.
Constraint: the parts of a worker fit into its memory.

Units (parts, or groups that share weights; parts without weights go with the one they read) are
placed one after another in the order of the parts.
Lower bound of the cost of a partial placement: the largest of

- the busiest worker so far,
- all work, at each part's own or else its shortest time, spread evenly over all workers,
- the longest path through the graph for one micro-batch, forward and backward, with the messages
  that are already certain,

plus the wire time of what is certain to be sent. Of identical machines only the first unused one is
tried. The search starts from the best of simple placements, improved by moving single units, so
that a limit on its length can only cost the proof, not a good answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import msgspec

from phalanx.errors import PlanError
from phalanx.spec.split import NaivePlacement
from phalanx.split.graph import LinkTraffic, NetworkGraph, Places, one_each, traffic_of
from phalanx.split.op_order import Schedule, SplitCosts, SplitTimeline, depths, simulate

# Operations in all bounds and simulations together: a few seconds.
MOST_WORK = 600_000
# Cost of simulating an operation, in multiples of bounding it.
_SIMULATION = 8
_MOST_ROUNDS = 20
_MOST_STARTS = 3


class PlacementProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Parts to place, and the workers to place them on."""

    graph: NetworkGraph
    costs: SplitCosts
    num_rows: int
    micro_batches: int = 1
    schedule: Schedule = "1f1b"
    memory_bytes: tuple[float, ...] = ()
    """Of each worker; empty: no limit."""
    fixed: Mapping[int, tuple[int, ...]] = {}
    """Parts whose workers are given."""

    def simulate(self, places: Places) -> SplitTimeline:
        """Simulate one training step of a placement."""
        return simulate(
            self.graph,
            places,
            self.costs,
            num_rows=self.num_rows,
            micro_batches=self.micro_batches,
            schedule=self.schedule,
        )

    def traffic(self, places: Places) -> dict[tuple[int, int], LinkTraffic]:
        """Return the bytes that workers exchange in one step of a placement, by (from, to)."""
        return traffic_of(
            self.graph, places, num_rows=self.num_rows, micro_batches=self.micro_batches
        )


class PlacementSolution(msgspec.Struct, frozen=True, kw_only=True):
    """A placement, and whether it is proved optimal."""

    places: Places
    cost_s: float
    proven: bool


def cost_s(question: PlacementProblem, places: Places) -> float:
    """Return the objective, in seconds: the step, and all its transfers in sequence."""
    links, costs = question.traffic(places).values(), question.costs
    wire_s = sum(one.messages * costs.latency_s + one.total / costs.bytes_per_s for one in links)
    return question.simulate(places).step_s + wire_s


def memory_needs(question: PlacementProblem, places: Places) -> tuple[float, ...]:
    """Return the bytes that each worker needs for its parts."""
    needs = [0.0] * question.costs.num_workers
    micro = min(question.micro_batches, question.num_rows)
    for part, holders, depth in zip(
        question.graph.parts, places, depths(question.graph, places), strict=True
    ):
        kept = micro if question.schedule == "gpipe" else min(micro, depth)
        rows = question.num_rows * kept / micro / len(holders)
        for holder in holders:
            needs[holder] += part.state_bytes + rows * part.sample_bytes
    return tuple(needs)


def memory_fault(question: PlacementProblem, places: Places) -> str | None:
    """Return why a placement does not fit; None: it does."""
    for worker, need in enumerate(memory_needs(question, places)):
        if question.memory_bytes and need > question.memory_bytes[worker]:
            return (
                f"its parts on worker {worker} need {need / 2**20:,.0f} MiB, and it has "
                f"{question.memory_bytes[worker] / 2**20:,.0f} MiB"
            )
    return None


def plan_places(question: PlacementProblem, *, most_work: int = MOST_WORK) -> PlacementSolution:
    """Return the best placement found; after `most_work` operations without a proof.

    Raises:
        PlanError: None fits into the workers' memory.
    """
    search = _Search(question, most_work)
    search.start()
    search.go(0)
    if search.best is None:
        raise PlanError(
            "no placement of the parts fits into the workers' memory; add workers, or raise "
            "'strategy.memory' or 'strategy.micro_batches'"
        )
    return PlacementSolution(places=search.best, cost_s=search.best_s, proven=not search.is_spent)


class _Search:
    def __init__(self, question: PlacementProblem, most_work: int) -> None:
        self._question = question
        self._left = most_work
        self._seen: dict[Places, float] = {}
        self.best: Places | None = None
        self.best_s = self._worst_s = float("inf")
        self._units = _units(question)
        self._places: list[tuple[int, ...] | None] = [None] * len(question.graph.parts)
        for number, workers in question.fixed.items():
            self._places[number] = tuple(workers)
        self._kinds = _kinds(question)
        everyone = range(question.costs.num_workers)
        self._shortest = [
            min(self._seconds(number, worker) for worker in everyone)
            for number in range(len(question.graph.parts))
        ]

    @property
    def is_spent(self) -> bool:
        """Whether the search ended before it had a proof."""
        return self._left <= 0

    def start(self) -> None:
        """Find a good placement to start from, by local search from simple ones."""
        simple = sorted(
            (self._consider(places, self._worst_s, anyway=True), places)
            for places in dict.fromkeys(self._simple())
        )
        for cost, places in simple[:_MOST_STARTS]:
            self._descend(cost, places)

    def _descend(self, here_s: float, places: Places) -> None:
        """Move single units as long as that lowers the cost."""
        for _ in range(_MOST_ROUNDS):
            found = [(self._consider(other, here_s), other) for other in self._moved(places)]
            if not found or min(found)[0] >= here_s:
                return
            here_s, places = min(found)

    def go(self, depth: int) -> None:
        """Branch on the unit of that number, and on all that follow."""
        if self.is_spent:
            return
        if depth == len(self._units):
            places = tuple(place for place in self._places if place is not None)
            self._consider(places, self.best_s)
            return
        bounded = []
        for worker in self._workers():
            self._put(depth, (worker,))
            bound = self._bound()
            if bound < self.best_s and not self._too_large():
                bounded.append((bound, worker))
            self._put(depth, None)
        # Most promising first: its result prunes the others.
        for bound, worker in sorted(bounded):
            if bound < self.best_s:
                self._put(depth, (worker,))
                self.go(depth + 1)
                self._put(depth, None)

    def _put(self, depth: int, place: tuple[int, ...] | None) -> None:
        for number in self._units[depth]:
            self._places[number] = place

    def _workers(self) -> list[int]:
        used = {worker for place in self._places if place for worker in place}
        found, fresh = [], set()
        for worker, kind in enumerate(self._kinds):
            if worker in used:
                found.append(worker)
            elif kind not in fresh:
                fresh.add(kind)
                found.append(worker)
        return found

    def _consider(self, places: Places, limit_s: float, *, anyway: bool = False) -> float:
        """Return the cost of a placement; infinity: it does not fit, or reaches the limit.

        `anyway` simulates it even when the search has been long enough.
        """
        if places in self._seen or (self.is_spent and not anyway):
            return self._seen.get(places, self._worst_s)
        before, self._places = self._places, list(places)
        bound_s = self._bound()
        self._places = before
        if bound_s >= limit_s:
            return self._worst_s
        self._seen[places] = self._worst_s
        if memory_fault(self._question, places) is not None:
            return self._worst_s
        micro = min(self._question.micro_batches, self._question.num_rows)
        self._left -= _SIMULATION * len(places) * micro
        found_s = self._seen[places] = cost_s(self._question, places)
        if found_s < self.best_s:
            self.best, self.best_s = places, found_s
        return found_s

    def _bound(self) -> float:
        """Return a lower bound of the cost, given the present places."""
        self._left -= len(self._places)
        question, costs = self._question, self._question.costs
        parts, micro = question.graph.parts, min(question.micro_batches, question.num_rows)
        loads = [0.0] * costs.num_workers
        open_s = 0.0
        ways = [0.0] * len(parts)
        for number, part in enumerate(parts):
            place = self._places[number]
            if place is None:
                own_s = self._shortest[number]
                open_s += own_s
            else:
                own_s = min(self._seconds(number, worker) for worker in place) / len(place)
                for worker in place:
                    loads[worker] += self._seconds(number, worker) / len(place)
            longest = 0.0
            for source in part.reads:
                there = self._places[source]
                # Rows that stay where they are need no message, so only disjoint places are sure.
                sure = place is not None and there is not None and not set(place) & set(there)
                both_s = self._there_and_back(source) if sure else 0.0
                longest = max(longest, ways[source] + both_s / max(1, len(there or ())))
            ways[number] = longest + own_s / micro
        even_s = (sum(loads) + open_s) / costs.num_workers
        return max(*loads, even_s, ways[-1]) + self._certain_wire_s()

    def _seconds(self, number: int, worker: int) -> float:
        costs = self._question.costs
        backward = (
            costs.backward_s[worker][number]
            if self._question.graph.parts[number].needs_gradient
            else 0.0
        )
        return costs.forward_s[worker][number] + backward

    def _there_and_back(self, source: int) -> float:
        question = self._question
        part = question.graph.parts[source]
        rows = question.num_rows // min(question.micro_batches, question.num_rows)
        one_s = question.costs.message_s(0) + rows * part.out_bytes / question.costs.bytes_per_s
        return (2 if part.needs_gradient else 1) * one_s

    def _certain_wire_s(self) -> float:
        """Return the wire time between single workers that are both fixed."""
        question = self._question
        parts = question.graph.parts
        micro = min(question.micro_batches, question.num_rows)
        total = 0.0
        for number, readers in enumerate(question.graph.readers):
            place = self._places[number]
            if place is None or len(place) > 1:
                continue
            targets = {
                there[0]
                for reader in readers
                if (there := self._places[reader]) is not None and len(there) == 1
            } - set(place)
            both = 2 if parts[number].needs_gradient else 1
            each = micro * question.costs.latency_s
            each += question.num_rows * parts[number].out_bytes / question.costs.bytes_per_s
            total += len(targets) * both * each
        return total

    def _too_large(self) -> bool:
        question = self._question
        if not question.memory_bytes:
            return False
        needs = [0.0] * question.costs.num_workers
        micro = min(question.micro_batches, question.num_rows)
        for part, place in zip(question.graph.parts, self._places, strict=True):
            for worker in place or ():
                # At least one micro-batch is kept, whatever the schedule.
                rows = question.num_rows / micro / len(place or ())
                needs[worker] += part.state_bytes + rows * part.sample_bytes
        return any(need > room for need, room in zip(needs, question.memory_bytes, strict=True))

    def _simple(self) -> Iterable[Places]:
        question = self._question
        num_workers = question.costs.num_workers
        for kind in NAIVE:
            yield self._with_fixed(naive_places(kind, question.graph, num_workers))
        for worker in range(num_workers):
            yield self._with_fixed(((worker,),) * len(question.graph.parts))
        yield self._with_fixed(self._by_branches())

    def _by_branches(self) -> Places:
        """Place whole branches, the heaviest first, each where it would finish first."""
        graph, num_workers = self._question.graph, self._question.costs.num_workers
        branches: dict[int, list[int]] = {}
        head: list[int] = []
        for number, part in enumerate(graph.parts):
            follows = len(part.reads) == 1 and graph.readers[part.reads[0]] == (number,)
            head.append(head[part.reads[0]] if follows else number)
            branches.setdefault(head[number], []).append(number)
        loads = [0.0] * num_workers
        found: dict[int, tuple[int, ...]] = {}
        for branch in sorted(
            branches.values(), key=lambda one: -sum(self._shortest[number] for number in one)
        ):
            after = [
                loads[worker] + sum(self._seconds(number, worker) for number in branch)
                for worker in range(num_workers)
            ]
            worker = after.index(min(after))
            loads[worker] = after[worker]
            found |= dict.fromkeys(branch, (worker,))
        return tuple(found[number] for number in range(len(graph.parts)))

    def _with_fixed(self, places: Places) -> Places:
        found = list(places)
        for number, workers in self._question.fixed.items():
            found[number] = tuple(workers)
        for unit in self._units:
            for number in unit:
                found[number] = found[unit[0]]
        return tuple(found)

    def _moved(self, places: Places) -> Iterable[Places]:
        """Yield all placements that differ in one unit, or in a run of units that were together."""
        num_workers = self._question.costs.num_workers
        for first, last in itertools.combinations(range(len(self._units) + 1), 2):
            moved = [number for unit in self._units[first:last] for number in unit]
            if last - first > 1 and len({places[number] for number in moved}) > 1:
                continue
            for worker in range(num_workers):
                found = list(places)
                for number in moved:
                    found[number] = (worker,)
                yield tuple(found)


def _units(question: PlacementProblem) -> list[tuple[int, ...]]:
    """Group parts that are placed together, without those whose place is fixed.

    A part without weights that reads one other part, and is its only reader, goes with it: pooling
    and the like reduces what is sent and costs little.
    """
    graph = question.graph
    home = list(range(len(graph.parts)))
    for group in graph.tied:
        for number in group:
            home[number] = group[0]
    for number, part in enumerate(graph.parts):
        if part.parameters == 0 and len(part.reads) == 1 and home[number] == number:
            (source,) = part.reads
            alone = graph.readers[source] == (number,)
            shorter = part.out_bytes <= graph.parts[source].out_bytes
            if alone and shorter and source not in question.fixed:
                home[number] = home[source]
    found: dict[int, list[int]] = {}
    for number, first in enumerate(home):
        if number not in question.fixed:
            found.setdefault(first, []).append(number)
    return [tuple(unit) for unit in found.values()]


def _kinds(question: PlacementProblem) -> list[object]:
    """Return a key per worker; workers with equal keys are identical."""
    costs = question.costs
    named = {worker for workers in question.fixed.values() for worker in workers}
    return [
        (
            costs.forward_s[worker],
            costs.backward_s[worker],
            question.memory_bytes[worker] if question.memory_bytes else None,
            worker if worker in named else None,
        )
        for worker in range(costs.num_workers)
    ]


NAIVE: tuple[NaivePlacement, ...] = ("round_robin", "by_layers", "by_parameters")


def naive_places(kind: NaivePlacement, graph: NetworkGraph, num_workers: int) -> Places:
    """Return the placement of that name; parts that share weights follow the first of them."""
    if kind == "round_robin":
        found = [number % num_workers for number in range(len(graph.parts))]
    elif kind == "by_layers":
        found = _contiguous([1.0] * len(graph.parts), num_workers)
    else:
        found = _contiguous([float(part.parameters) for part in graph.parts], num_workers)
    for group in graph.tied:
        for number in group:
            found[number] = found[group[0]]
    return one_each(found)


def _contiguous(weights: list[float], num_workers: int) -> list[int]:
    """Cut parts into contiguous blocks of about equal weight."""
    total = sum(weights) or 1.0
    found: list[int] = []
    before = 0.0
    for weight in weights:
        middle = (before + weight / 2) / total
        found.append(min(num_workers - 1, int(middle * num_workers)))
        before += weight
    return found
