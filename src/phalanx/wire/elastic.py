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
    """A worker has its data and network, and can become a member.

    Attributes:
        address: Where other members reach it.
        port: Likewise.
    """

    address: str = ""
    port: int = 0


class Halted(_Message, frozen=True):
    """A member has left the group of a generation, and waits for the next one.

    Attributes:
        generation: Which it has left.
        commits: Steps and other units that its state holds; `NO_STATE`: it has none.
        planned: It left at the boundary that all members agreed on.
        suspects: Members that it waited for when its exchange broke off.
        reason: Why, in words; empty: it was told to.
    """

    generation: int
    commits: int
    planned: bool = False
    suspects: tuple[str, ...] = ()
    reason: str = ""


class CaughtUp(_Message, frozen=True):
    """A member that joined without a state has it now, and can be given samples."""

    generation: int


class LeaveNotice(_Message, frozen=True):
    """A worker is asked by its machine to end, and wants to be drained first."""

    reason: str


class GroupMember(msgspec.Struct, frozen=True):
    """A member of a generation.

    Attributes:
        process: Its name.
        share: Of the samples, as a weight; 0: it has none until it has caught up.
        donor: Member that gives it the state of the run; empty: it has that.
        address: Where it listens for other members.
        port: Likewise.
    """

    process: str
    share: float
    donor: str = ""
    address: str = ""
    port: int = 0


class FormGroup(_Message, frozen=True):
    """Train on as a member of this generation.

    Attributes:
        generation: Its number.
        members: In the order of their ranks in the group; the first is the chief.
        base: Commits that it goes on from; `NO_STATE`: from the newest checkpoint, or the
            beginning.
        keys: Secret that the receiver shares with each other member, by process; of this
            generation only.
    """

    generation: int
    members: tuple[GroupMember, ...]
    base: int
    keys: dict[str, bytes] = {}


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


FromMember = JoinRequest | Halted | CaughtUp | LeaveNotice
ToMember = FormGroup | HaltGroup | TurnGroup | LeaveGroup
