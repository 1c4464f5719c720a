"""Run the evaluator: read the servers' parameters, evaluate, write checkpoints."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext

import numpy as np
import torch

from phalanx.comm.solo import SoloCollective
from phalanx.consistency.shards import ShardLayout
from phalanx.data.pipeline import Dataset
from phalanx.engine.averaging import average_in
from phalanx.engine.optimizer_factory import factory_for
from phalanx.engine.regulariser import Regulariser
from phalanx.paramserver.reader import Reader
from phalanx.wire.deadline import IdleDeadline
from phalanx.wire.messages import Done, FromCoordinator
from phalanx.wire.moments import reach
from phalanx.wire.parameter_server import (
    Connect,
    Evaluated,
    Finish,
    ReadAndEvaluate,
    Ready,
    Save,
    ServerLost,
    SnapshotTaken,
)
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.context import WorkerContext
from phalanx.worker.evaluate import evaluate, judge_of
from phalanx.worker.parameter_server.known_servers import KnownServers
from phalanx.worker.parameter_server.saving import save_served
from phalanx.worker.parameter_server.server_file import read_optimizer
from phalanx.worker.replica import build_replica, shard_layout


def run_evaluator(context: WorkerContext) -> Done:
    """Carry out the coordinator's orders until the job is done."""
    torch.set_num_threads(context.spec.threads)
    dataset = context.open_data()
    evaluator = _Evaluator(context, dataset)
    context.control.send(Ready(num_samples=dataset.epoch_samples, precision="fp32"))
    try:
        while True:
            order = evaluator.next_order()
            if isinstance(order, Finish):
                return Done()
            evaluator.obey(order)
    finally:
        evaluator.close()


class _Evaluator:
    def __init__(self, context: WorkerContext, dataset: Dataset) -> None:
        self._context = context
        self._dataset = dataset
        self._replica = build_replica(
            context.job, dataset, rank=0, precision="fp32", optimizer=False
        )
        replica = self._replica
        factory = factory_for(context.job.optimizer, replica.module, replica.layout)
        self._layout: ShardLayout = shard_layout(context, replica, factory)
        self._regulariser = Regulariser(
            context.job.optimizer.l2, self._replica.parameters, self._replica.layout.kernels()
        )
        self._checkpoints = Checkpoints(context.store, context.job.checkpoint)
        self._servers = KnownServers[Reader]()
        self._optimizer: dict[str, torch.Tensor] = {}
        self._deferred: ReadAndEvaluate | None = None
        self._later: deque[FromCoordinator] = deque()

    def close(self) -> None:
        if self._servers.client is not None:
            self._servers.client.__exit__(None, None, None)

    def next_order(self) -> FromCoordinator:
        # Waits until Finish or the end of this process: the lifelines end it.
        return self._later.popleft() if self._later else self._context.control.inbox.get()

    def obey(self, order: FromCoordinator) -> None:
        match order:
            case Connect():
                self._connect(order)
            case ServerLost():
                self._servers.lost.add(order.server)
            case ReadAndEvaluate() if self._servers.client is None:
                # A server was lost as well: the addresses of all of them are yet to come.
                self._deferred = order
            case ReadAndEvaluate():
                self._look(order)
            case Save():
                self._save(order)
            case _:
                raise AssertionError(f"{order} is not for an evaluator")

    def _connect(self, order: Connect) -> None:
        reach("meeting servers")
        self._servers.update(order.servers)
        if self._servers.client is None:
            self._servers.client = Reader(
                self._layout,
                order.servers,
                keys=self._context.keys,
                incarnation=self._context.spec.incarnation,
                generation=self._context.spec.attempt,
            ).__enter__()
        if self._deferred is not None:
            order_deferred, self._deferred = self._deferred, None
            self._look(order_deferred)

    def _attend(self) -> None:
        """Take the addresses of restarted servers while they are awaited."""
        while not self._context.control.inbox.empty():
            order = self._context.control.inbox.get()
            if isinstance(order, Connect | ServerLost):
                self.obey(order)
            else:
                self._later.append(order)

    def _look(self, order: ReadAndEvaluate) -> None:
        reader = self._servers.client
        assert reader is not None, "asked to evaluate before the servers were known"
        reach("reading servers")
        self._context.metrics.activity = "reading"
        deadline = IdleDeadline(
            self._context.job.deadlines.exchange_s,
            "the servers' state",
            setting="deadlines.exchange_s",
            is_moving=self._servers.is_moving,
        )
        reader.pull(self._replica.parameters, deadline, self._attend)
        if order.statistics:
            statistics = np.frombuffer(order.statistics, dtype=np.float32).copy()
            self._replica.buffers.copy_(torch.from_numpy(statistics))
        self._optimizer = read_optimizer(self._context.store, self._layout)
        # Before evaluating: training may go on, since parameters and optimiser are copies now.
        self._context.control.send(SnapshotTaken(order.look))
        if order.part is None:
            return
        self._context.metrics.activity = f"measuring {order.part}"
        part = self._dataset.test if order.part == "test" else self._dataset.validation
        average = average_in(self._optimizer)
        with self._replica.holding(average) if average is not None else nullcontext():
            measures = evaluate(
                self._replica,
                SoloCollective(),
                part,
                judge=judge_of(self._dataset),
                metrics=self._context.job.metrics,
            )
        assert measures.loss is not None  # only scripts leave it out, and they have no evaluator
        if order.part == "test" and measures.verdicts is not None:
            self._context.run.write_predictions(measures.verdicts)
        self._context.control.send(
            Evaluated(
                look=order.look,
                part=order.part,
                num_samples=measures.num_samples,
                loss=measures.loss,
                accuracy=measures.accuracy,
                regularisation=self._regulariser.value(),
                duration_s=measures.duration_s,
                metrics=dict(measures.metrics),
            )
        )

    def _save(self, order: Save) -> None:
        reach("saving")
        saved = save_served(self._checkpoints, order, self._replica, self._optimizer)
        self._context.control.send(saved)
