"""Sample the use of a process and, in one process per machine, of the whole machine.

Every process of a run has one sampler thread. It writes samples to the process's event log at an
interval, and on request when training begins and ends. It never delays the process nor fails
it: a failed measurement is logged once, and the run continues.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Literal

from phalanx.errors import StoreError
from phalanx.observe.host import HostMeter
from phalanx.observe.process import ProcessMeter
from phalanx.records.events import Event
from phalanx.spec.observe import ObserveSpec

_log = logging.getLogger(__name__)

Moment = Literal["begin", "end"]

# In the first hour as often as the job asks, then at most every five seconds, after a day thirty.
_PACES = ((3600.0, 0.0), (86400.0, 5.0))


def interval_after(elapsed_s: float, interval_s: float) -> float:
    """Return the time until the next sample: longer in a long run, whose log must not fill disks.

    Samples hold totals, so fewer of them lose detail in time and nothing of the sums.
    """
    slowest_s = next((pace for limit_s, pace in _PACES if elapsed_s < limit_s), 30.0)
    return max(interval_s, slowest_s)


class Sampler:
    """Thread that samples until it is closed; use as a context manager.

    Without an interval in the spec nothing is measured. `record` is called by the sampler's thread
    and by `mark`; `watch_host` measures the machine as well.
    """

    def __init__(
        self,
        spec: ObserveSpec,
        record: Callable[[Event], None],
        *,
        attempt: int = 1,
        watch_host: bool = False,
        with_children: bool = True,
        host: str = "",
    ) -> None:
        self._spec = spec
        self._record = record
        self._attempt = attempt
        self._watch_host = watch_host
        self._with_children = with_children
        self._name = host or socket.gethostname()
        self._process: ProcessMeter | None = None
        self._host: HostMeter | None = None
        self._phase = "run"
        self._measuring = threading.Lock()
        self._closing = threading.Event()
        # A process that has finished must not wait for a measurement.
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        if self._spec.interval_s is not None:
            self._attempt_to(self._open)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
            self._sample()

    def watch_idle(self, duration_s: float) -> None:
        """Sample the idle machine for a while, as a baseline."""
        self._phase = "baseline"
        self._sample()
        self._closing.wait(duration_s)
        self._sample()
        self._phase = "run"

    def mark(self, moment: Moment) -> None:
        """Record a sample at a moment: before the first training step, or after the last one."""
        self._sample(moment)

    def _open(self) -> None:
        self._process = ProcessMeter(with_children=self._with_children)
        if self._watch_host:
            self._host = HostMeter(self._spec)
            watching = self._host.describe()
            watching.host = self._name
            watching.attempt = self._attempt
            self._record(watching)

    def _run(self) -> None:
        assert self._spec.interval_s is not None
        begun_s = time.monotonic()
        self._sample()
        while not self._closing.wait(
            interval_after(time.monotonic() - begun_s, self._spec.interval_s)
        ):
            self._sample()

    def _sample(self, moment: Moment | None = None) -> None:
        with self._measuring:
            self._attempt_to(lambda: self._measure(moment))

    def _measure(self, moment: Moment | None) -> None:
        if self._process is not None:
            sample = self._process.read()
            sample.host = self._name
            sample.moment = moment or ""
            sample.attempt = self._attempt
            self._record(sample)
        if self._host is not None:
            around = self._host.read()
            around.host = self._name
            around.phase = self._phase
            around.attempt = self._attempt
            self._record(around)

    def _attempt_to(self, measure: Callable[[], None]) -> None:
        try:
            measure()
        except StoreError:
            # The disk is full; the next event of the process will report it.
            self._closing.set()
        except Exception:  # a missing figure must not end a run; logged once, with its cause
            self._closing.set()
            self._process = self._host = None
            _log.warning("resources are not measured any more", exc_info=True)
