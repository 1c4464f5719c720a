"""Know the session of this process; `phalanx.session()` returns it."""

from __future__ import annotations

from phalanx.program.session import ScriptSession
from phalanx.program.standalone import StandaloneDriver

_sessions: list[ScriptSession] = []
_asked: list[bool] = []


def session() -> ScriptSession:
    """Return the session of this process: of the run that it is part of, or one of its own.

    Every call returns the same.
    """
    _asked[:] = [True]
    return running_session()


def running_session() -> ScriptSession:
    """Return the session of this process, for a framework's loop that has not asked for it."""
    if not _sessions:
        driver = StandaloneDriver()
        driver.session = ScriptSession(driver)
        _sessions.append(driver.session)
    return _sessions[0]


def set_session(made: ScriptSession) -> None:
    """Make a session that of this process; the worker calls it before the script runs."""
    _sessions[:] = [made]
    _asked.clear()


def is_asked_for() -> bool:
    """Return whether the script has asked for its session."""
    return bool(_asked)
