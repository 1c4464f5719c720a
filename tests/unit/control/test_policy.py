from __future__ import annotations

import dataclasses
import itertools
import signal
from typing import NamedTuple

import pytest

from phalanx.control.policy import ECHO_S, ProcessFacts, ReportedError, Trouble, find_cause
from phalanx.errors import ExitCode
from phalanx.spec.job import DeadlineSpec

DEADLINES = DeadlineSpec(start_s=100.0, heartbeat_s=5.0)


def process(
    name: str,
    *,
    joined: bool = True,
    done: bool = False,
    silent_s: float = 0.0,
    exit_code: int | None = None,
    error: str | None = None,
) -> ProcessFacts:
    reported = None
    if error is not None:
        code = ExitCode.WORKER_LOST if error == "PeerError" else ExitCode.FAILED
        reported = ReportedError(error, f"{name} says {error}", f"traceback of {name}", code)
    return ProcessFacts(
        process=name,
        joined=joined,
        done=done,
        silent_s=silent_s,
        age_s=10.0,
        exit_code=exit_code,
        error=reported,
    )


WELL = process("well")
DONE = process("done", done=True, exit_code=0)
STARTING = process("starting", joined=False)
KILLED = process("killed", exit_code=-signal.SIGKILL)
CRASHED = process("crashed", exit_code=1, error="ValueError")
WORDLESS = process("wordless", exit_code=3)
QUITTER = process("quitter", exit_code=0)
FROZEN = process("frozen", silent_s=5.1)
ABSENT = process("absent", joined=False)
BEREFT = process("bereft", exit_code=4, error="PeerError")
# In the order in which they are blamed.
BY_WEIGHT = [KILLED, CRASHED, WORDLESS, FROZEN, ABSENT, BEREFT]


class Found(NamedTuple):
    wrong: bool
    trouble: Trouble | None


def verdict(
    *processes: ProcessFacts, since_start_s: float = 10.0, since_suspicion_s: float | None = None
) -> Found:
    aged = [dataclasses.replace(facts, age_s=since_start_s) for facts in processes]
    return Found(*find_cause(aged, deadlines=DEADLINES, since_suspicion_s=since_suspicion_s))


@pytest.mark.parametrize("processes", [(WELL, WELL), (STARTING, WELL), (WELL, DONE)])
def test_while_nothing_is_wrong_the_run_goes_on(processes: tuple[ProcessFacts, ...]) -> None:
    assert verdict(*processes) == Found(False, None)


@pytest.mark.parametrize(
    ("guilty", "cause", "code"),
    [
        (KILLED, "killed was killed by SIGKILL; the system may have run out of memory", 4),
        (process("a", exit_code=-11), "a was killed by SIGSEGV", 4),
        (CRASHED, "crashed failed: crashed says ValueError", 1),
        (WORDLESS, "wordless ended with exit code 3 without saying why", 4),
        (QUITTER, "quitter ended with exit code 0 without saying why", 4),
        (FROZEN, "frozen is frozen: no sign of life for 5.1 s", 4),
        (ABSENT, "absent did not join within 100 s", 3),
        (BEREFT, "bereft failed: bereft says PeerError", 4),
    ],
    ids=lambda value: value.process if isinstance(value, ProcessFacts) else None,
)
def test_each_kind_of_trouble_has_its_sentence_and_code(
    guilty: ProcessFacts, cause: str, code: int
) -> None:
    found = verdict(WELL, guilty, since_start_s=100.1, since_suspicion_s=ECHO_S).trouble
    assert found is not None
    assert (found.process, found.cause, found.exit_code) == (guilty.process, cause, code)


def test_the_traceback_is_handed_on() -> None:
    found = verdict(CRASHED, since_suspicion_s=ECHO_S).trouble
    assert found is not None
    assert found.detail == "traceback of crashed"


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.combinations(BY_WEIGHT, 2)),
    ids=lambda facts: facts.process,
)
def test_the_cause_is_named_and_not_its_echo(first: ProcessFacts, second: ProcessFacts) -> None:
    for processes in ((first, second), (second, WELL, first)):
        found = verdict(*processes, since_start_s=200.0, since_suspicion_s=ECHO_S).trouble
        assert found is not None
        assert found.process == first.process


@pytest.mark.parametrize("facts", [CRASHED, WORDLESS, BEREFT], ids=lambda facts: facts.process)
def test_what_may_be_an_echo_is_not_blamed_at_once(facts: ProcessFacts) -> None:
    assert verdict(WELL, facts) == Found(True, None)
    assert verdict(WELL, facts, since_suspicion_s=ECHO_S / 2) == Found(True, None)
    assert verdict(WELL, facts, since_suspicion_s=ECHO_S).trouble is not None


@pytest.mark.parametrize("facts", [KILLED, FROZEN, ABSENT], ids=lambda facts: facts.process)
def test_what_cannot_be_an_echo_is_blamed_at_once(facts: ProcessFacts) -> None:
    assert verdict(WELL, facts, since_start_s=200.0).trouble is not None


def test_a_killed_worker_is_found_behind_echoes_that_came_first() -> None:
    assert verdict(BEREFT, WELL).trouble is None
    found = verdict(BEREFT, KILLED, since_suspicion_s=0.1).trouble
    assert found is not None
    assert found.process == "killed"


def test_a_silent_process_that_never_joined_is_not_frozen() -> None:
    assert verdict(process("slow", joined=False, silent_s=50.0)) == Found(False, None)


def test_a_process_that_is_done_may_take_its_time_to_leave_but_not_for_ever() -> None:
    leaving = process("leaving", done=True, silent_s=4.0)
    assert verdict(leaving, DONE) == Found(False, None)
    stuck = process("stuck", done=True, silent_s=6.0)
    assert verdict(stuck, DONE).trouble is not None


def test_done_with_a_bad_exit_code_is_trouble() -> None:
    found = verdict(process("odd", done=True, exit_code=1), since_suspicion_s=ECHO_S).trouble
    assert found is not None
    assert found.exit_code is ExitCode.WORKER_LOST
