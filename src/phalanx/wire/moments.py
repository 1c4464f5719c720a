"""Name the moments of the protocols at which tests make a fault happen.

A process calls `enter_state` wherever a table of transitions moves it, and `reach` at the moments
that no table names: around what is flushed, written and handed over. Both do nothing unless a
listener was set, which the entry points do only if `PHALANX_MOMENTS` names one. A listener is
called in the thread that reached the moment, and may end, stop or delay it there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from phalanx.spec.registry import load

MomentListener = Callable[[str], None]


class _Planted:
    """The listener of this process."""

    listener: MomentListener | None = None


def reach(moment: str) -> None:
    """Tell the listener, if there is one, that this process has come to a moment."""
    if _Planted.listener is not None:
        _Planted.listener(moment)


def enter_state(state: object) -> None:
    """Tell the listener, if there is one, that this process has entered a state.

    The moment is called as the class of the state, which is unique in the source.
    """
    if _Planted.listener is not None:
        _Planted.listener(type(state).__name__)


def plant(target: str, *, process: str, control_address: str = "") -> None:
    """Set the listener of this process.

    Args:
        target: `package.module:function`; called with the other arguments, returns the listener.
        process: Name of this process in the run.
        control_address: Where its controller listens; empty in the controller.
    """
    make = cast("Callable[[str, str], MomentListener]", load(target))
    _Planted.listener = make(process, control_address)


def uproot() -> None:
    """Remove the listener of this process."""
    _Planted.listener = None
