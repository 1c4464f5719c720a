"""Run the trials of a study in their places until none is left; the only module here that acts.

`stopping` decides which trial is next, from the journal alone. A trial is appended to the journal
when it has ended, so an interruption costs at most the running trials. Their run directories are
moved aside and never counted.

A machine of a pool that is lost is used no more in this session. The trial that it ended begins
anew on the machines that are left; what ran on fewer machines is journalled with these, so that
reports compare only runs on the same ones.
"""

from __future__ import annotations

import selectors
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from phalanx.control.signals import CaughtSignals, catch_signals
from phalanx.data.sources import open_source
from phalanx.errors import DataError, Interrupted, LaunchError, SpecError, Terminated
from phalanx.launch.fork_server import OWN, warm_workers
from phalanx.records.study import PlannedCell, StudyDir, StudyManifest, Trial
from phalanx.spec.backend import BACKENDS
from phalanx.spec.loader import job_from_mapping
from phalanx.study.lock import StudyLock
from phalanx.study.measure import metric_values
from phalanx.study.messages import TrialOrder
from phalanx.study.places import TrialPlace, assign_places
from phalanx.study.process import TrialAssignment, TrialProcess
from phalanx.study.stopping import (
    Key,
    Planned,
    Standing,
    StudyEstimate,
    estimate_rest,
    next_trial,
    used_s,
)

_TICK_S = 0.25
# From the last message of a trial, or a signal, until its process must have exited.
_END_LIMIT_S = 30.0


@dataclass(frozen=True)
class RunningTrial:
    """A running trial, for views."""

    planned: Planned
    place: TrialPlace
    share: float
    activity: str
    elapsed_s: float


class StudyObserver(Protocol):
    """Observes a study; called by the runner's loop, so it must be quick."""

    def study_started(
        self, study: StudyDir, manifest: StudyManifest, outlook: StudyEstimate
    ) -> None:
        """Called before the first trial of this session."""

    def moved(self, running: Sequence[RunningTrial], outlook: StudyEstimate) -> None:
        """Called a few times a second."""

    def trial_ended(self, trial: Trial, outlook: StudyEstimate) -> None:
        """Called when a trial is in the journal."""

    def trial_put_off(self, trial: Trial, left: TrialPlace) -> None:
        """Called when a trial ended with a machine, and begins anew on those that are left."""


@dataclass(frozen=True)
class StudyOutcome:
    """The outcome of a study."""

    study: StudyDir
    trials: list[Trial]
    unfinished: int
    """Trials that did not fit into the budget."""

    @property
    def failed(self) -> list[Trial]:
        """Trials that did not finish."""
        return [trial for trial in self.trials if trial.state != "finished"]


class StudyRunner:
    """Runs a study, new or resumed, on disjoint sets of cores or machines."""

    def __init__(
        self,
        study: StudyDir,
        *,
        cores: Sequence[int],
        observers: Sequence[StudyObserver] = (),
        retry_failed: bool = False,
        resume_with: str = "phalanx study resume",
    ) -> None:
        self._study = study
        self._resume_with = resume_with
        self._observers = observers
        self._manifest = study.manifest()
        jobs = [job_from_mapping(cell.job) for cell in self._manifest.cells]
        self._places = assign_places(self._manifest, cores, jobs)
        self._free = list(self._places)
        is_local = self._manifest.pool is None
        self._can_fork = is_local and any(BACKENDS.find(job.backend).can_fork for job in jobs)
        self._fork_server = OWN
        self._running: list[TrialProcess] = []
        self._retry = retry_failed
        self._trials: list[Trial] = []
        self._values: dict[Key, float] = {}
        self._earlier: list[Trial] = []

    def run(self) -> StudyOutcome:
        """Run every trial of the plan that is not in the journal.

        Raises:
            Interrupted: Ctrl-C; running trials were ended and will be run again.
            Terminated: The same by SIGTERM.
            StoreError: Another study runs in the directory, or it cannot be written.
        """
        with (
            StudyLock(self._study.path / "lock") as lock,
            catch_signals() as caught,
            selectors.DefaultSelector() as selector,
            warm_workers(useful=self._can_fork) as self._fork_server,
        ):
            # Only under the lock: a trial of another session may still be writing its run.
            self._take_stock()
            try:
                self._loop(lock, caught, selector)
            finally:
                self._end_running()
        return StudyOutcome(self._study, self._trials, self._num_unfinished())

    def _take_stock(self) -> None:
        journal = self._study.trials()
        put_aside(self._study, journal)
        again = [trial for trial in journal if self._retry and self._is_lacking(trial)]
        self._earlier = again
        self._trials = [trial for trial in journal if trial not in again]
        self._values = metric_values(self._study, self._trials, self._manifest.repeats.metric)
        for observer in self._observers:
            observer.study_started(self._study, self._manifest, self._outlook())

    def _is_lacking(self, trial: Trial) -> bool:
        """Tell whether a trial failed, or had other machines than the study offers."""
        places = [set(place.machines) for place in self._places]
        return trial.state == "failed" or set(trial.machines) not in places

    def _loop(
        self, lock: StudyLock, caught: CaughtSignals, selector: selectors.BaseSelector
    ) -> None:
        while True:
            while self._free and (planned := next_trial(self._manifest, self._standing())):
                process = self._start(planned, lock)
                selector.register(process.output, selectors.EVENT_READ, process)
            if not self._running:
                self._raise_without_places()
                return
            for key, _ in selector.select(_TICK_S):
                process = key.data
                if not process.hear():
                    selector.unregister(process.output)
                    self._finish(process)
            self._raise_if_signalled(caught)
            self._end_still_ones()
            for observer in self._observers:
                observer.moved(self._views(), self._outlook())

    def _standing(self) -> Standing:
        running = [(one.planned.cell, one.planned.repeat) for one in self._running]
        spans = [trial.span for trial in (*self._earlier, *self._trials)]
        spans += [process.span for process in self._running]
        return Standing.of(
            self._manifest,
            self._trials,
            self._values,
            running=running,
            spent_s=used_s(spans),
        )

    def _outlook(self) -> StudyEstimate:
        running = {(one.planned.cell, one.planned.repeat): one.elapsed_s for one in self._running}
        return estimate_rest(
            self._manifest, self._standing(), running=running, core_sets=len(self._places)
        )

    def _start(self, planned: Planned, lock: StudyLock) -> TrialProcess:
        cell = self._manifest.cell(planned.cell)
        process = TrialProcess(self._assignment(planned, cell, self._free.pop(0), lock))
        # Registered first, so that an error during the start still ends the process.
        self._running.append(process)
        process.start()
        return process

    def _assignment(
        self, planned: Planned, cell: PlannedCell, place: TrialPlace, lock: StudyLock
    ) -> TrialAssignment:
        name = trial_name(planned)
        pool = self._manifest.pool
        return TrialAssignment(
            planned=planned,
            settings=cell.settings,
            place=place,
            order=TrialOrder(
                job=cell.job | {"name": name, "seed": planned.seed},
                runs=str(self._study.runs.resolve()),
                data_root=self._manifest.data_root,
                cache_root=self._manifest.cache_root,
                cores=list(place.cores),
                fork_server=self._fork_server,
                pool="" if pool is None else pool.file,
                machines=list(place.machines),
                build_env=pool is not None and pool.build_env,
            ),
            log=self._study.logs / f"{name}.log",
            lock=lock.descriptor,
        )

    def _finish(self, process: TrialProcess) -> None:
        trial = process.finish(_END_LIMIT_S)
        left = process.place.without(process.lost_machines)
        again = trial.state == "failed" and 0 < len(left.machines) < len(process.place.machines)
        if not again:
            # Journal first: after a crash, only trials without a line are run again.
            self._study.append(trial)
        self._running.remove(process)
        self._give_back(process, left)
        if again:
            self._put_off(trial, left)
            return
        self._trials.append(trial)
        self._values |= metric_values(self._study, [trial], self._manifest.repeats.metric)
        for observer in self._observers:
            observer.trial_ended(trial, self._outlook())

    def _give_back(self, process: TrialProcess, left: TrialPlace) -> None:
        """Free the place of a trial, without machines that were lost; one without any is closed."""
        self._places.remove(process.place)
        if left.machines or not process.place.machines:
            self._places.append(left)
            self._free.append(left)

    def _put_off(self, trial: Trial, left: TrialPlace) -> None:
        """Have a trial that ended with a machine begin anew on those that are left."""
        if trial.run is not None:
            (self._study.runs / trial.run).rename(self._study.abandoned / trial.run)
        for observer in self._observers:
            observer.trial_put_off(trial, left)

    def _end_still_ones(self) -> None:
        """Give up trials that do not move; they are journalled once their process has ended."""
        limit_s = self._manifest.trial_limit_s
        if limit_s is None:
            return
        for process in self._running:
            allowed_s = _END_LIMIT_S if process.is_given_up else limit_s
            if process.still_s > allowed_s:
                process.give_up(limit_s)

    def _raise_without_places(self) -> None:
        if not self._places:
            last = self._trials[-1].cause if self._trials else ""
            raise LaunchError(
                f"no machine of the pool is left: {last}; when they are back, go on with "
                f"`{self._resume_with} {self._study.path} --retry-failed`"
            )

    def _raise_if_signalled(self, caught: CaughtSignals) -> None:
        if caught.number is None:
            return
        kind = Terminated if caught.number == signal.SIGTERM else Interrupted
        raise kind(
            f"the study was interrupted after {len(self._trials)} runs; those under way will be "
            f"run again; go on with `{self._resume_with} {self._study.path}`"
        )

    def _end_running(self) -> None:
        # All are signalled before any is awaited, so that they shut down at the same time.
        for process in self._running:
            process.interrupt()
        for process in self._running:
            process.end(_END_LIMIT_S)
        if self._running:
            self._running.clear()
            put_aside(self._study, self._study.trials())

    def _views(self) -> list[RunningTrial]:
        return [
            RunningTrial(one.planned, one.place, one.share, one.activity, one.elapsed_s)
            for one in self._running
        ]

    def _num_unfinished(self) -> int:
        outlook = self._outlook()
        return outlook.expected - outlook.ended


def trial_name(planned: Planned) -> str:
    """Return the name of the run of a trial."""
    return f"{planned.cell}-r{planned.repeat + 1}"


def check_plan(manifest: StudyManifest, cores: Sequence[int]) -> None:
    """Refuse a plan that cannot run here, before the directory is created.

    Raises:
        SpecError: There are not enough cores or machines for so many trials at the same time.
        DataError: Files of a data set are missing or broken; names the cell.
    """
    jobs = {cell.id: job_from_mapping(cell.job) for cell in manifest.cells}
    assign_places(manifest, cores, list(jobs.values()))
    if manifest.pool is not None:
        return  # the preflight looks for data on the machines
    # Each data set once; a spec may hold settings that have no hash.
    by_data = {job.data.model_dump_json(): (cell, job.data) for cell, job in jobs.items()}
    for cell, data in by_data.values():
        try:
            open_source(
                data,
                data_root=Path(manifest.data_root),
                cache_root=Path(manifest.cache_root),
            )
        except (SpecError, DataError) as error:
            raise type(error)(f"{error} (cell {cell})", **error.facts) from error


def put_aside(study: StudyDir, journal: Sequence[Trial]) -> list[str]:
    """Move run directories without a journal line to abandoned/; returns their names."""
    known = {trial.run for trial in journal}
    moved = []
    for path in sorted(study.runs.iterdir()):
        if path.name not in known:
            path.rename(study.abandoned / path.name)
            moved.append(path.name)
    return moved
