"""Profile torch's operators in the epochs that the job selects."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch.autograd.profiler import profile as torch_profile
from torch.autograd.profiler_util import MEMORY_EVENT_NAME
from typing_extensions import override

from phalanx.engine.spans import PREFIX, spans_on
from phalanx.records.profile import EpochProfile
from phalanx.spec.observe import ProfileSpec
from phalanx.worker.operators import OperatorCall, OperatorSums
from phalanx.worker.profile_window import ProfileWindow, WindowProfiler


class EpochProfiler(WindowProfiler):
    """Profile torch's operators in the chosen epochs of one worker."""

    engine = f"torch {torch.__version__.partition('+')[0]}"

    def prepare(self) -> None:
        """Start and stop the profiler once, before training: its first start takes seconds."""
        if self._spec is not None:
            with torch_profile(use_kineto=True):
                pass

    @override
    def _open(self, epoch: int, spec: ProfileSpec) -> ProfileWindow:
        return _TorchWindow(epoch, memory=spec.memory)


class _TorchWindow(ProfileWindow):
    def __init__(self, epoch: int, *, memory: bool) -> None:
        super().__init__(epoch)
        self._memory = memory
        self._sums = OperatorSums()

    @override
    def _start(self) -> None:
        self._stack = ExitStack()
        self._torch = torch_profile(use_kineto=True, profile_memory=self._memory)
        self._stack.enter_context(self._torch)
        self._stack.enter_context(spans_on())

    @override
    def _stop(self) -> None:
        self._stack.close()
        self._sums.add(_calls(self._torch))

    @override
    def _count(self, *, input_s: float, exchange_s: float) -> None:
        """Add nothing: both are spans, which the profiler sees."""

    @override
    def _include(self, former: EpochProfile) -> None:
        self._sums.include(former.operators, former.beside)

    @override
    def _profile(self, *, wall_s: float, steps: int) -> EpochProfile:
        return EpochProfile(
            epoch=self.epoch,
            wall_s=wall_s,
            steps=steps,
            operators=self._sums.operators(),
            beside=self._sums.beside(),
        )


def _calls(finished: torch_profile) -> list[OperatorCall]:
    """Return the profiler's calls.

    Reads the raw results: torch's own list of events is made in Python at 60 µs an event, half a
    minute for an epoch of a large model; this takes 3 µs.
    """
    results = finished.kineto_results
    assert results is not None
    events = results.events()
    # Spans are only opened by the training thread.
    threads = {event.start_thread_id() for event in events if event.name().startswith(PREFIX)}
    found: list[OperatorCall] = []
    for event in events:
        name, begin_ns, thread = event.name(), event.start_ns(), event.start_thread_id()
        if name == MEMORY_EVENT_NAME:
            num_bytes = event.nbytes()  # type: ignore[attr-defined]  # missing in torch's stub
            found.append(OperatorCall(begin_ns, begin_ns, name, thread not in threads, num_bytes))
        elif not name.startswith("profiler::_record_function"):
            beside = thread not in threads or event.is_async() or event.end_thread_id() != thread
            found.append(OperatorCall(begin_ns, begin_ns + event.duration_ns(), name, beside))
    return found
