"""Run a short command of an engine, such as `scontrol` or `kubectl get`, for its answer."""

from __future__ import annotations

import subprocess

from phalanx.errors import SpecError, printable

_ASK_S = 30.0


def ask_engine(scheduler: str, *command: str) -> str:
    """Run a command and return what it prints.

    Args:
        scheduler: Name of the scheduler in the pool file, for messages.
        *command: The command with its arguments.

    Raises:
        SpecError: It is not installed, fails, or does not answer in time.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S,
            check=False,
        )
    except FileNotFoundError:
        raise SpecError(
            f"'scheduler: {scheduler}' needs the command `{command[0]}`, which is not installed "
            "here"
        ) from None
    except subprocess.TimeoutExpired:
        raise SpecError(f"`{command[0]}` did not answer within {_ASK_S:g} s") from None
    if done.returncode != 0:
        said = printable(done.stderr).strip().splitlines()[-1:] or [f"code {done.returncode}"]
        raise SpecError(f"`{' '.join(command)}` failed: {said[0]}")
    return done.stdout
