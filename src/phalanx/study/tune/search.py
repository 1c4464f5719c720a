"""Carrying a search out: ask `tune` what to run, let the study runner run it, ask again.

A search lives in a study directory whose cells grow as it goes. All that it decides follows from
tune.json and the journal, so it is resumed by starting it again, whatever ended it. Journals, locks
and processes are the runner's business.
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
from phalanx.study.tune.results import TuneResult, describe_best, look_at, synchronous_curve
from phalanx.study.tune.search_plan import SearchRequest, plan_search, with_cells
from phalanx.study.tune.switch_jobs import as_file, with_share

Listener = Callable[[TuneResult], None]


def create_search(path: Path, request: SearchRequest, *, cores: Sequence[int]) -> StudyDir:
    """Make the directory of a new search.

    Args:
        path: Where.
        request: What is searched.
        cores: What its runs may use.

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
    # The study's manifest comes last: without it there is no search, and it may be begun anew.
    write_tune(path, tune)
    return StudyDir.create(path, manifest)


class SwitchSearch:
    """Runs a search to its end, from wherever it stands.

    Args:
        study: Its directory.
        cores: What its runs may use.
        observers: Who follows the runs.
        listen: Told after every decision.
        retry_failed: Run what has failed once more.
    """

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
        """Search.

        Raises:
            PhalanxError: The synchronous job failed, so there is nothing to compare with.
            Interrupted: Ctrl-C; runs under way will be run again.
            Terminated: The same by SIGTERM.
        """
        findings = look_at(self._study, without_failed=self._retry)
        while not findings.decision.is_over:
            self._stage(findings.decision.wanted)
            findings = look_at(self._study)
            self._listen(findings)
        if findings.decision.target is None:
            raise self._nothing_to_compare()
        heading = describe_best(findings)
        text = as_file(with_share(self._tune.job, findings.best), heading)
        write_atomically(self._study.path / FOUND_JOB, text.encode())
        return findings

    def _stage(self, wanted: Sequence[WantedTrial]) -> None:
        """Run what the next decision needs."""
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
        # Once is enough: what fails again would be run for ever.
        self._retry = False

    def _nothing_to_compare(self) -> PhalanxError:
        causes = [trial.cause for trial in self._study.trials() if trial.state == "failed"]
        cause = next((cause for cause in causes if cause), "it did not finish")
        return PhalanxError(
            f"the synchronous job failed, so there is nothing to compare with: {cause}; mend it "
            f"and go on with `phalanx tune resume {self._study.path} --retry-failed`"
        )
