"""Have the workers of a user's script evaluate, each by the code that follows its loop.

Every worker reads the servers and runs on in the script; what the script reports is added up over
the control channel. The chief also writes the checkpoints. A worker that joins late gets the sums
of the others, so that all of them come to the same decisions.
"""

from __future__ import annotations

from collections import defaultdict

from phalanx.control.coordinator import ControllerApi
from phalanx.wire.parameter_server import Evaluated, ReadAndEvaluate
from phalanx.wire.program import FigureTotals, ScriptEvaluated, ScriptFigures

CHIEF = "worker-0"


class ScriptWorkers:
    """The workers of a script as the evaluator of its run."""

    name = CHIEF

    def __init__(self, api: ControllerApi) -> None:
        self._api = api
        self._present: set[str] = set()
        self._order: ReadAndEvaluate | None = None
        self._answers: dict[str, ScriptEvaluated] = {}
        self._figures: dict[int, dict[str, tuple[float, ...]]] = defaultdict(dict)
        self._totals: dict[int, FigureTotals] = {}

    def look(self, order: ReadAndEvaluate) -> None:
        """Send all workers the request; only the chief where nothing is measured."""
        before, self._order = self._order, order
        self._answers.clear()
        if before is None or (before.part, before.epoch) != (order.part, order.epoch):
            self._figures.clear()
            self._totals.clear()
        for process in self._asked:
            self._api.send(process, order)

    def joined(self, process: str) -> None:
        """Note that a worker can read the servers, and send it the open request.

        The chief gets its own as the evaluator that is back.
        """
        self._present.add(process)
        if self._order is not None and process != CHIEF and process in self._asked:
            self._api.send(process, self._order)

    def left(self, process: str) -> None:
        """Go on without a lost worker."""
        self._present.discard(process)
        self._answers.pop(process, None)
        for call in list(self._figures):
            self._figures[call].pop(process, None)
            self._add_up(call)

    def take_figures(self, process: str, message: ScriptFigures) -> None:
        """Add numbers of a worker; all get the sum once all have sent theirs."""
        order, call = self._order, message.call
        if order is None or (message.part, message.epoch) != (order.part, order.epoch):
            return  # of an evaluation that is over
        if call in self._totals:
            self._api.send(process, self._totals[call])
            return
        self._figures[call][process] = message.values
        self._add_up(call)

    def take_answer(self, process: str, message: ScriptEvaluated) -> Evaluated | None:
        """Note that a worker is done; returns what was measured once all are."""
        order = self._order
        if order is None or message.look != order.look:
            return None
        self._answers[process] = message
        return self.measured()

    def measured(self) -> Evaluated | None:
        """Return what was measured, once; None: not all are done, or nothing was asked."""
        order = self._order
        if order is None or CHIEF not in self._answers or not self._asked <= set(self._answers):
            return None
        answer = self._answers[CHIEF]
        means = {
            name: one / count if count else 0.0 for name, (one, count) in answer.figures.items()
        }
        self._order = None
        return Evaluated(
            look=order.look,
            part=order.part or "",
            num_samples=int(max((count for _, count in answer.figures.values()), default=0)),
            loss=means.pop("loss", None),
            accuracy=means.pop("accuracy", None),
            regularisation=0.0,
            duration_s=answer.duration_s,
            metrics=means,
            ended=answer.ended,
        )

    @property
    def _asked(self) -> set[str]:
        assert self._order is not None
        return self._present if self._order.part is not None else self._present & {CHIEF}

    def _add_up(self, call: int) -> None:
        order, sent = self._order, self._figures[call]
        if order is None or not sent or not self._present <= set(sent):
            return
        totals = FigureTotals(
            part=order.part or "",
            epoch=order.epoch,
            call=call,
            values=tuple(sum(column) for column in zip(*sent.values(), strict=False)),
            num_workers=len(sent),
        )
        self._totals[call] = totals
        del self._figures[call]
        for process in sent:
            self._api.send(process, totals)
