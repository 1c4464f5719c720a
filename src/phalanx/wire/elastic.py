"""Messages of elastic synchronous runs: who trains together, by numbered generations.

The controller alone numbers generations. A group of an older number is refused everywhere, so a
worker that comes back after it was given up can take part in nothing.
"""

from __future__ import annotations

import msgspec

NO_STATE = -1
"""What a worker without a state of the run reports instead of its commits."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class JoinRequest(_Message, frozen=True):
    """A worker has its data and network, and can become a member."""


class Halted(_Message, frozen=True):
    """A member has left the group of a generation, and waits for the next one.

    Attributes:
        generation: Which it has left.
        commits: Steps and other units that its state holds; `NO_STATE`: it has none.
        planned: It left at the boundary that all members agreed on.
        suspects: Members that it waited for when its exchange broke off.
        reason: Why, in words.
    """

    generation: int
    commits: int
    planned: bool = False
    suspects: tuple[str, ...] = ()
    reason: str = ""


class CaughtUp(_Message, frozen=True):
    """A member that joined without a state has it now, and can be given samples."""

    generation: int


class GroupMember(msgspec.Struct, frozen=True):
    """A member of a generation.

    Attributes:
        process: Its name.
        has_state: It goes on from its own state; otherwise it takes that of the first member, and
            is given no samples before the next generation.
    """

    process: str
    has_state: bool


class FormGroup(_Message, frozen=True):
    """Train on as a member of this generation.

    Attributes:
        generation: Its number.
        members: In the order of their ranks in the group; the first is the chief.
        base: Commits that it goes on from; `NO_STATE`: from the newest checkpoint, or the
            beginning.
    """

    generation: int
    members: tuple[GroupMember, ...]
    base: int


class HaltGroup(_Message, frozen=True):
    """Break off the exchange of this generation, and report what was committed."""

    generation: int


class TurnGroup(_Message, frozen=True):
    """End this generation after the step in which all members know of this.

    Attributes:
        generation: Which.
        leaving: The receiver will not be a member of the next one.
    """

    generation: int
    leaving: bool = False


class LeaveGroup(_Message, frozen=True):
    """End: the run goes on without the receiver.

    Attributes:
        reason: Why.
    """

    reason: str


FromMember = JoinRequest | Halted | CaughtUp
ToMember = FormGroup | HaltGroup | TurnGroup | LeaveGroup
