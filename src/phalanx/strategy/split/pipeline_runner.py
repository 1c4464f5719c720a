"""Run this worker's parts of a split network: activations forward, gradients back.

Autograd stops between parts: each part's output is detached and its backward pass runs once, when
the gradients of all its readers are there. So the placement of readers does not matter, and sums
are formed in the same order wherever they are. The order of operations comes from `split.op_order`,
the same for all workers.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.comm.base import Collective
from phalanx.engine.part_profiler import Form
from phalanx.engine.result import check_loss
from phalanx.engine.rng import draw_seed
from phalanx.engine.stage import Stage
from phalanx.model.parts import part_seed
from phalanx.split.graph import NetworkGraph, Places, RowShare, Transfer, pieces, transfers
from phalanx.split.op_order import BACKWARD, FORWARD, Schedule, SplitCosts, SplitOp, simulate
from phalanx.strategy.split.p2p import P2pTransfers, TransferMessage

EVALUATION = "evaluation"
# Above every tag that activations and gradients use.
_TOKEN_TAG = 1 << 23


@dataclass(frozen=True)
class PipelineLayout:
    """Placement and order of operations; equal on all workers."""

    graph: NetworkGraph
    places: Places
    forms: Sequence[Form]
    sources: Sequence[Sequence[int | str]]
    """What each part reads: parts by number, inputs by name."""
    costs: SplitCosts
    micro_batches: int
    schedule: Schedule
    wire: str = "fp32"


@dataclass
class PassResult:
    """Result of one pass on this worker."""

    loss_sum: float = 0.0
    num_correct: int = 0
    num_samples: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    output: Tensor | None = None
    """Of an evaluation: the last part's output, if that is on this worker."""
    first_row: int = 0
    """The row of the batch that `output` begins with."""
    weight: float | None = None
    """What the sums are over; None: the samples."""


@dataclass
class _Saved:
    output: Tensor
    leaves: dict[int, Tensor]


class PipelineRunner:
    """Run one worker's side of the network; seed and step decide dropout."""

    def __init__(
        self, stage: Stage, layout: PipelineLayout, collective: Collective, *, seed: int
    ) -> None:
        self._stage = stage
        self._layout = layout
        self._rank = collective.rank
        self._seed = seed
        self.p2p = P2pTransfers(
            collective,
            wire=layout.wire,
            latency_s=layout.costs.latency_s,
            rate=layout.costs.bytes_per_s,
        )
        self._transfers = transfers(layout.graph, layout.places)
        self._out: dict[int, list[int]] = defaultdict(list)
        self._in: dict[tuple[int, RowShare], list[int]] = defaultdict(list)
        for number, one in enumerate(self._transfers):
            if one.source == self._rank:
                self._out[one.part].append(number)
            if one.target == self._rank:
                self._in[one.part, one.target_share].append(number)
        self._own = {
            number: RowShare(holders.index(self._rank), len(holders))
            for number, holders in enumerate(layout.places)
            if self._rank in holders
        }
        self._last = len(layout.graph.parts) - 1
        busy = {worker for holders in layout.places for worker in holders}
        self._idle = [worker for worker in range(collective.size) if worker not in busy]
        self._orders: dict[int, tuple[SplitOp, ...]] = {}
        self.steps = 0
        self.samples = 0

    def train(
        self, inputs: dict[str, Tensor], targets: Tensor, *, step: int, global_count: int
    ) -> PassResult:
        """Run forward and backward on all rows of a batch, accumulating gradients of own weights.

        Raises:
            EngineError: The loss is not finite, or a part failed.
            PeerError: Another worker is gone.
        """
        self._stage.set_training(True)
        work = _BatchInFlight(inputs, targets, pieces(len(targets), self._layout.micro_batches))
        work.step, work.global_count = step, global_count
        order = self._order(len(targets))
        self.p2p.begin(self._expected(order, work))
        for op in order:
            begin, blocked = time.perf_counter(), self.p2p.blocked_s
            if op.direction == FORWARD:
                self._forward(op, work)
            else:
                self._backward(op, work)
            took = time.perf_counter() - begin - (self.p2p.blocked_s - blocked)
            if op.direction == FORWARD:
                work.passed.forward_s += took
            else:
                work.passed.backward_s += took
        self.steps += 1
        self.samples += len(targets)
        self._keep_step()
        return work.passed

    def evaluate(self, inputs: dict[str, Tensor], targets: Tensor) -> PassResult:
        """Run forward only, without dropout; the worker with the last part learns the loss."""
        self._stage.set_training(False)
        work = _BatchInFlight(inputs, targets, (len(targets),))
        work.kind = EVALUATION
        order = [SplitOp(FORWARD, 0, number) for number in sorted(self._own)]
        self.p2p.begin(self._expected(order, work))
        with torch.no_grad():
            for op in order:
                self._forward(op, work)
        self._keep_step()
        return work.passed

    def _keep_step(self) -> None:
        """Keep workers without parts from running ahead of the others."""
        leader = self._layout.places[self._last][0]
        if self._rank == leader:
            for peer in self._idle:
                self.p2p.send_token(peer, _TOKEN_TAG)
        elif self._rank in self._idle:
            self.p2p.await_token(leader, _TOKEN_TAG)

    def _order(self, num_rows: int) -> tuple[SplitOp, ...]:
        # A run has full batches, and one that is smaller at the end of an epoch.
        if num_rows not in self._orders:
            self._orders[num_rows] = self._find_order(num_rows)
        return self._orders[num_rows]

    def _find_order(self, num_rows: int) -> tuple[SplitOp, ...]:
        layout = self._layout
        timeline = simulate(
            layout.graph,
            layout.places,
            layout.costs,
            num_rows=num_rows,
            micro_batches=layout.micro_batches,
            schedule=layout.schedule,
        )
        return timeline.orders[self._rank]

    def _expected(self, order: Sequence[SplitOp], work: _BatchInFlight) -> list[TransferMessage]:
        found: dict[tuple[int, int, int], TransferMessage] = {}
        for op in order:
            rows = work.pieces[op.micro_batch]
            if op.direction == FORWARD:
                own = self._own[op.part]
                numbers = [
                    number
                    for source in self._layout.sources[op.part]
                    if isinstance(source, int)
                    for number in self._in[source, own]
                ]
            else:
                numbers = self._out[op.part]
            for number in numbers:
                message = self._message(number, op.micro_batch, rows, direction=op.direction)
                if message is not None:
                    found.setdefault(message.key, message)
        return list(found.values())

    def _message(
        self, number: int, micro_batch: int, num_rows: int, *, direction: int
    ) -> TransferMessage | None:
        """Return the message of a transfer in one operation; None: it has no rows."""
        one: Transfer = self._transfers[number]
        first, last = one.rows(num_rows)
        if first == last:
            return None
        return TransferMessage(
            key=(direction, number, micro_batch),
            peer=one.target if one.source == self._rank else one.source,
            tag=2 * number + direction,
            rows=last - first,
            form=self._layout.forms[one.part],
        )

    def _forward(self, op: SplitOp, work: _BatchInFlight) -> None:
        rows = work.pieces[op.micro_batch]
        first, last = self._own[op.part].rows(rows)
        if first == last:
            return
        leaves: dict[int, Tensor] = {}
        read: list[Tensor] = []
        for source in self._layout.sources[op.part]:
            if isinstance(source, str):
                offset = work.offsets[op.micro_batch]
                read.append(work.inputs[source][offset + first : offset + last])
                continue
            if source not in leaves:
                value = self._gather(source, op, work, first, last)
                trains = self._layout.graph.parts[source].needs_gradient and work.kind != EVALUATION
                leaves[source] = value.detach().requires_grad_(trains)
            read.append(leaves[source])
        seed = part_seed(
            draw_seed(self._seed, 0, work.step),
            op.part,
            replica=self._own[op.part].number,
            micro_batch=op.micro_batch,
        )
        output = self._stage.run(op.part, read, seed=seed)
        work.saved[op.micro_batch, op.part] = _Saved(output, leaves)
        if op.part == self._last:
            self._measure(op, work, output, first, last)
        for number in self._out[op.part]:
            message = self._message(number, op.micro_batch, rows, direction=FORWARD)
            if message is not None:
                begin, end = self._transfers[number].rows(rows)
                kind = "activations" if work.kind != EVALUATION else EVALUATION
                self.p2p.send(message, output[begin - first : end - first], kind)

    def _gather(
        self, source: int, op: SplitOp, work: _BatchInFlight, first: int, last: int
    ) -> Tensor:
        """Return rows `first` to `last` of a part's input, from here or from other workers."""
        rows = work.pieces[op.micro_batch]
        found: list[tuple[int, Tensor]] = []
        if source in self._own:
            low, high = self._own[source].rows(rows)
            begin, end = max(low, first), min(high, last)
            if begin < end:
                output = work.saved[op.micro_batch, source].output
                found.append((begin, output[begin - low : end - low]))
        for number in self._in[source, self._own[op.part]]:
            message = self._message(number, op.micro_batch, rows, direction=FORWARD)
            if message is not None:
                if message.key not in work.arrived:
                    work.arrived[message.key] = self.p2p.receive(message.key)
                found.append((self._transfers[number].rows(rows)[0], work.arrived[message.key]))
        if len(found) == 1:
            return found[0][1]
        return torch.cat([tensor for _, tensor in sorted(found, key=lambda one: one[0])])

    def _measure(
        self, op: SplitOp, work: _BatchInFlight, output: Tensor, first: int, last: int
    ) -> None:
        offset = work.offsets[op.micro_batch]
        targets = work.targets[offset + first : offset + last]
        loss, correct = self._stage.measure(output, targets)
        value = float(loss.detach())
        if work.kind != EVALUATION:
            check_loss(value, step=work.step, rank=self._rank)
        work.losses[op.micro_batch] = loss
        if work.kind == EVALUATION:
            work.passed.output, work.passed.first_row = output, first
        work.passed.loss_sum += value
        work.passed.num_correct += int(correct)
        work.passed.num_samples += last - first

    def _backward(self, op: SplitOp, work: _BatchInFlight) -> None:
        rows = work.pieces[op.micro_batch]
        first, last = self._own[op.part].rows(rows)
        saved = work.saved.get((op.micro_batch, op.part))
        if saved is None:
            return
        if op.part == self._last:
            loss = work.losses.pop(op.micro_batch)
            scale = torch.tensor(1.0 / work.global_count, dtype=loss.dtype)
            torch.autograd.backward([loss], [scale])
        else:
            gradient = self._collect(op, work, saved.output, first, last)
            torch.autograd.backward([saved.output], [gradient])
        # Free the graph; only the gradients of its sources are needed from here on.
        del work.saved[op.micro_batch, op.part]
        for source, leaf in saved.leaves.items():
            if leaf.requires_grad:
                gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
                work.found[op.micro_batch, source].append((first, last, gradient))
                self._return(source, op, work, first)

    def _collect(
        self, op: SplitOp, work: _BatchInFlight, output: Tensor, first: int, last: int
    ) -> Tensor:
        """Return the gradient of a part's output, summed over all its readers."""
        rows = work.pieces[op.micro_batch]
        pieces_: list[tuple[int, int, Tensor]] = []
        for begin, end, gradient in work.found.pop((op.micro_batch, op.part), []):
            low, high = max(begin, first), min(end, last)
            if low < high:
                pieces_.append((low, high, gradient[low - begin : high - begin]))
        for number in self._out[op.part]:
            message = self._message(number, op.micro_batch, rows, direction=BACKWARD)
            if message is not None:
                begin, end = self._transfers[number].rows(rows)
                pieces_.append((begin, end, self.p2p.receive(message.key)))
        if len(pieces_) == 1 and pieces_[0][:2] == (first, last):
            return pieces_[0][2].to(output.dtype)
        total = torch.zeros_like(output)
        for begin, end, gradient in pieces_:
            total[begin - first : end - first].add_(gradient)
        return total

    def _return(self, source: int, op: SplitOp, work: _BatchInFlight, first: int) -> None:
        """Send back the gradient of received rows, once all readers here have added theirs."""
        own = self._own[op.part]
        for number in self._in[source, own]:
            key = (number, op.micro_batch)
            work.readers[key] += 1
            if work.readers[key] < self._num_readers(source, own):
                continue
            rows = work.pieces[op.micro_batch]
            message = self._message(number, op.micro_batch, rows, direction=BACKWARD)
            if message is None:
                continue
            begin, end = self._transfers[number].rows(rows)
            found = [
                gradient[begin - first : end - first]
                for low, high, gradient in work.found[op.micro_batch, source]
                if (low, high) == self._own[op.part].rows(rows)
            ]
            total = found[0] if len(found) == 1 else sum(found[1:], found[0])
            self.p2p.send(message, total, "gradients")
            work.arrived.pop((FORWARD, number, op.micro_batch), None)

    def _num_readers(self, source: int, share: RowShare) -> int:
        return sum(
            self._own.get(reader) == share and self._layout.graph.parts[reader].needs_gradient
            for reader in self._layout.graph.readers[source]
        )


class _BatchInFlight:
    def __init__(self, inputs: dict[str, Tensor], targets: Tensor, sizes: tuple[int, ...]) -> None:
        self.inputs, self.targets, self.pieces = inputs, targets, sizes
        self.offsets = [sum(sizes[:index]) for index in range(len(sizes))]
        self.step = 0
        self.global_count = 1
        self.kind = "training"
        self.passed = PassResult()
        self.saved: dict[tuple[int, int], _Saved] = {}
        self.losses: dict[int, Tensor] = {}
        self.arrived: dict[tuple[int, int, int], Tensor] = {}
        self.found: dict[tuple[int, int], list[tuple[int, int, Tensor]]] = defaultdict(list)
        self.readers: dict[tuple[int, int], int] = defaultdict(int)
