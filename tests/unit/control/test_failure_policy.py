from __future__ import annotations

import itertools
import signal
from dataclasses import replace

import pytest

from phalanx.control.failure_policy import (
    ECHO_S,
    ProcessFacts,
    ProcessFailure,
    ReportedError,
    diagnose,
    find_cause,
    find_losses,
)
from phalanx.errors import ExitCode
from phalanx.spec.job import DeadlineSpec

DEADLINES = DeadlineSpec(start_s=100.0, heartbeat_s=5.0)


def process(
    name: str,
    *,
    joined: bool = True,
    done: bool = False,
    silent_s: float = 0.0,
    age_s: float = 10.0,
    exit_code: int | None = None,
    error: str | None = None,
    machine: str = "",
    lost: str | None = None,
    is_starting: bool = False,
    is_crowded: bool = False,
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
        age_s=age_s,
        exit_code=exit_code,
        error=reported,
        machine=machine,
        lost=lost,
        is_starting=is_starting,
        is_crowded=is_crowded,
    )


WELL = process("well")
LOST = process("lost", machine="b", lost="nothing was heard of it")
DONE = process("done", done=True, exit_code=0)
STARTING = process("starting", joined=False)
KILLED = process("killed", exit_code=-signal.SIGKILL)
CRASHED = process("crashed", exit_code=1, error="ValueError")
WORDLESS = process("wordless", exit_code=3)
QUITTER = process("quitter", exit_code=0)
FROZEN = process("frozen", silent_s=5.1)
ABSENT = process("absent", joined=False, age_s=100.1)
STUCK = process("stuck", is_starting=True, silent_s=100.1)
OVERLOADED = "; if its machine is only overloaded, raise deadlines.heartbeat_s"
SLOW_START = (
    ", and no other process did meanwhile; on slow or crowded machines raise deadlines.start_s"
)
BEREFT = process("bereft", exit_code=4, error="PeerError")
# In the order in which they are blamed.
BY_WEIGHT = [LOST, KILLED, CRASHED, WORDLESS, FROZEN, ABSENT, BEREFT]


def cause(
    *processes: ProcessFacts, since_suspicion_s: float | None = ECHO_S
) -> tuple[bool, ProcessFailure | None]:
    return find_cause(processes, deadlines=DEADLINES, since_suspicion_s=since_suspicion_s)


def blamed(*processes: ProcessFacts, since_suspicion_s: float | None = ECHO_S) -> ProcessFailure:
    wrong, failure = cause(*processes, since_suspicion_s=since_suspicion_s)
    assert wrong
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    "processes", [(WELL, WELL), (STARTING, WELL), (WELL, DONE), (DONE, DONE)], ids=str
)
def test_nothing_is_wrong(processes: tuple[ProcessFacts, ...]) -> None:
    assert cause(*processes) == (False, None)


@pytest.mark.parametrize(
    ("guilty", "sentence", "code"),
    [
        (LOST, "lost is lost with machine b: nothing was heard of it", 4),
        (
            process("a", machine="b", silent_s=6.0),
            f"a on b is frozen: no sign of life for 6.0 s{OVERLOADED}",
            4,
        ),
        (KILLED, "killed was killed by SIGKILL; the system may have run out of memory", 4),
        (process("a", exit_code=-11), "a was killed by SIGSEGV", 4),
        (CRASHED, "crashed failed: crashed says ValueError", 1),
        (WORDLESS, "wordless ended with exit code 3 without saying why", 4),
        (QUITTER, "quitter ended with exit code 0 without saying why", 4),
        (FROZEN, f"frozen is frozen: no sign of life for 5.1 s{OVERLOADED}", 4),
        (ABSENT, f"absent did not join within 100 s{SLOW_START}", 3),
        (
            STUCK,
            "stuck is frozen: no sign of life for 100.1 s; if its machine is only overloaded, "
            "raise deadlines.start_s",
            4,
        ),
        (BEREFT, "bereft failed: bereft says PeerError", 4),
    ],
    ids=lambda value: value.process if isinstance(value, ProcessFacts) else None,
)
def test_each_kind_of_failure_has_its_sentence_and_code(
    guilty: ProcessFacts, sentence: str, code: int
) -> None:
    found = blamed(WELL, guilty)
    assert (found.process, found.cause, found.exit_code) == (guilty.process, sentence, code)


def test_the_traceback_is_handed_on() -> None:
    assert blamed(CRASHED).detail == "traceback of crashed"


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.combinations(BY_WEIGHT, 2)),
    ids=lambda facts: facts.process,
)
def test_the_cause_is_named_and_not_its_echo(first: ProcessFacts, second: ProcessFacts) -> None:
    for processes in ((first, second), (second, WELL, first)):
        assert blamed(*processes).process == first.process


@pytest.mark.parametrize("facts", [CRASHED, WORDLESS, BEREFT], ids=lambda facts: facts.process)
def test_what_may_be_an_echo_is_not_blamed_at_once(facts: ProcessFacts) -> None:
    assert cause(WELL, facts, since_suspicion_s=None) == (True, None)
    assert cause(WELL, facts, since_suspicion_s=ECHO_S / 2) == (True, None)
    assert blamed(WELL, facts, since_suspicion_s=ECHO_S).process == facts.process


@pytest.mark.parametrize("facts", [LOST, KILLED, FROZEN, ABSENT], ids=lambda facts: facts.process)
def test_what_cannot_be_an_echo_is_blamed_at_once(facts: ProcessFacts) -> None:
    assert blamed(WELL, facts, since_suspicion_s=None).process == facts.process


def test_a_killed_worker_is_found_behind_echoes_that_came_first() -> None:
    assert cause(BEREFT, WELL, since_suspicion_s=None) == (True, None)
    assert blamed(BEREFT, KILLED, since_suspicion_s=0.1).process == "killed"


def test_a_silent_process_that_never_joined_is_not_frozen() -> None:
    assert cause(process("slow", joined=False, silent_s=50.0)) == (False, None)


def test_a_process_that_is_done_may_take_its_time_to_leave_but_not_for_ever() -> None:
    assert cause(process("leaving", done=True, silent_s=4.0), DONE) == (False, None)
    assert blamed(process("stuck", done=True, silent_s=6.0), DONE).process == "stuck"


def test_a_machine_that_is_lost_when_its_process_is_done_costs_nothing() -> None:
    assert cause(process("leaving", done=True, machine="b", lost="gone"), DONE) == (False, None)


def test_done_with_a_bad_exit_code_is_a_failure() -> None:
    assert blamed(process("odd", done=True, exit_code=1)).exit_code is ExitCode.WORKER_LOST


def test_a_process_that_imports_its_code_is_not_frozen() -> None:
    assert cause(process("importing", is_starting=True, silent_s=90.0, age_s=90.0)) == (False, None)


def test_nobody_is_replaced_while_others_start_beside_it() -> None:
    crowded = process("crowded", is_crowded=True, silent_s=90.0)
    assert find_losses([crowded], DEADLINES).replaceable == ()
    forgotten = process("forgotten", is_crowded=True, silent_s=100.1)
    assert [one.process for one in find_losses([forgotten], DEADLINES).replaceable] == ["forgotten"]


@pytest.mark.parametrize("code", [99, 0, -3])
def test_an_exit_code_that_no_process_may_report_is_a_plain_failure(code: int) -> None:
    facts = replace(WELL, error=ReportedError("X", "message", "", code))
    found = diagnose(facts, DEADLINES)
    assert found is not None
    assert found[1].exit_code is ExitCode.FAILED


@pytest.mark.parametrize(("number", "name"), [(34, "SIGRTMIN"), (35, "signal 35"), (9, "SIGKILL")])
def test_a_signal_without_a_name_has_its_number(number: int, name: str) -> None:
    found = diagnose(replace(WELL, exit_code=-number), DEADLINES)
    assert found is not None
    assert f"was killed by {name}" in found[1].cause
