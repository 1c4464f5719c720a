"""Run a search: decide the next runs, let the study runner execute them, repeat.

A search is kept in a study directory that gains cells as it proceeds. All its decisions follow from
tune.json and the journal, so it is resumed by starting it again, whatever ended it. The study
runner handles journal, lock and processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.errors import PhalanxError, SpecError
from phalanx.records.study import StudyDir, is_study
from phalanx.records.tune import FOUND_JOB, read_tune, write_tune
from phalanx.store.atomic import write_atomically
from phalanx.study.runner import StudyObserver, StudyRunner, check_plan
from phalanx.study.tune.policy import WantedTrial
from phalanx.study.tune.results import TuneResult, describe_best, read_results, synchronous_curve
from phalanx.study.tune.search_plan import (
    SearchRequest,
    as_file,
    plan_search,
    with_cells,
    with_share,
)

Listener = Callable[[TuneResult], None]


def create_search(path: Path, request: SearchRequest, *, cores: Sequence[int]) -> StudyDir:
    """Create the directory of a new search.

    Raises:
        SpecError: The job's switch cannot be searched, or the directory holds a study already.
        DataError: Files of the data set are missing or broken.
    """
    if is_study(path):
        raise SpecError(
            f"{path} already holds a search or a study; go on with `phalanx tune resume {path}` or "
            "choose another directory with --to",
            path=str(path),
        )
    manifest, tune = plan_search(request)
    check_plan(manifest, cores)
    # The study's manifest is written last: without it there is no search, so after a crash it can
    # be created again.
    write_tune(path, tune)
    return StudyDir.create(path, manifest)


class SwitchSearch:
    """Runs a search to its end, new or resumed; calls `listen` after every decision."""

    def __init__(
        self,
        study: StudyDir,
        *,
        cores: Sequence[int],
        observers: Sequence[StudyObserver] = (),
        listen: Listener = lambda findings: None,
        retry_failed: bool = False,
    ) -> None:
        self._study = study
        self._tune = read_tune(study)
        self._cores = cores
        self._observers = observers
        self._listen = listen
        self._retry = retry_failed

    def run(self) -> TuneResult:
        """Run the search to its end.

        Raises:
            PhalanxError: The synchronous job failed, so there is nothing to compare with.
            Interrupted: Ctrl-C; running trials will be run again.
            Terminated: The same by SIGTERM.
        """
        findings = read_results(self._study, without_failed=self._retry)
        while not findings.decision.is_over:
            self._stage(findings.decision.wanted)
            findings = read_results(self._study)
            self._listen(findings)
        if findings.decision.target is None:
            raise self._nothing_to_compare()
        heading = describe_best(findings)
        text = as_file(with_share(self._tune.job, findings.best), heading)
        write_atomically(self._study.path / FOUND_JOB, text.encode())
        return findings

    def _stage(self, wanted: Sequence[WantedTrial]) -> None:
        curve = synchronous_curve(self._study) if any(one.barred for one in wanted) else {}
        self._study.write_manifest(
            with_cells(self._study.manifest(), self._tune, wanted, curve=curve)
        )
        StudyRunner(
            self._study,
            cores=self._cores,
            observers=self._observers,
            retry_failed=self._retry,
            resume_with="phalanx tune resume",
        ).run()
        # Retried once only: a run that always fails would be repeated for ever.
        self._retry = False

    def _nothing_to_compare(self) -> PhalanxError:
        causes = [trial.cause for trial in self._study.trials() if trial.state == "failed"]
        cause = next((cause for cause in causes if cause), "it did not finish")
        return PhalanxError(
            f"the synchronous job failed, so there is nothing to compare with: {cause}; mend it "
            f"and go on with `phalanx tune resume {self._study.path} --retry-failed`"
        )
