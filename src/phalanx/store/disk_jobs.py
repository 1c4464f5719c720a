"""Wait for the disk in a thread, so that the store server answers everybody meanwhile.

Jobs run one after another in the order in which they were started: the file that was committed
last is the one that stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from phalanx.errors import StoreError
from phalanx.store.transfers import TransferId


@dataclass
class DiskJob:
    """A job, and where its client waits for the answer."""

    future: Future[object]
    route: bytes
    is_commit: bool
    begun: float = field(default_factory=time.monotonic)

    @property
    def age_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.begun

    @property
    def error(self) -> BaseException | None:
        """What it failed with, once it is done; a job that was never begun counts as failed."""
        if self.future.cancelled():
            return StoreError("the run ended before the file was written")
        return self.future.exception()


class DiskJobs:
    """Run jobs one after another; the thread starts with the first. Used from one thread.

    Args:
        on_done: Called when a job is done, in another thread.
    """

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="store-disk")
        self._jobs: dict[TransferId, DiskJob] = {}

    def start(
        self, transfer: TransferId, task: Callable[[], object], *, route: bytes, is_commit: bool
    ) -> None:
        """Start a job, or queue it behind those before it."""
        future: Future[object] = self._executor.submit(task)
        self._jobs[transfer] = DiskJob(future, route, is_commit)
        future.add_done_callback(lambda _: self._on_done())

    def is_running(self, transfer: TransferId) -> bool:
        """Return whether a job has been started, and not been taken since."""
        return transfer in self._jobs

    def redirect(self, transfer: TransferId, route: bytes) -> None:
        """Note that the client waits at another connection."""
        self._jobs[transfer].route = route

    def take_finished(self) -> list[tuple[TransferId, DiskJob]]:
        """Return the jobs that are done, and forget them."""
        finished = [(key, job) for key, job in self._jobs.items() if job.future.done()]
        for key, _ in finished:
            del self._jobs[key]
        return finished

    def unfinished(self) -> Iterator[tuple[TransferId, DiskJob]]:
        """Return the jobs that are not done."""
        return ((key, job) for key, job in self._jobs.items() if not job.future.done())

    def close(self) -> None:
        """Wait for the job under way; jobs that are not begun fail."""
        self._executor.shutdown(cancel_futures=True)
