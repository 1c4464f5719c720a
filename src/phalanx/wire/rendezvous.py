"""Values that processes publish for one another before they have connections among themselves.

Keys are `group/member`. Whoever wants one value of a group is sent all of them, those that are
there at once and later ones as they come, many in a message: n members that each want the values
of all others then cost n messages now and then instead of n squared.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Iterator

from phalanx.errors import PeerError
from phalanx.wire.deadline import Deadline
from phalanx.wire.messages import StoredValues

_PROCESS = re.compile(r"[a-z]+-\d+")


def group_of(key: str) -> str:
    """Return the group of a key; its members are published together."""
    return key.rpartition("/")[0]


class ValueBoard:
    """The controller's side: holds the values, and knows who has not been sent them."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._owners: dict[str, str] = {}
        self._readers: dict[str, set[str]] = defaultdict(set)
        self._unsent: dict[tuple[str, str], dict[str, bytes]] = defaultdict(dict)

    def put(self, process: str, key: str, value: bytes) -> None:
        """Publish a value; a successor may replace what its predecessor published.

        Raises:
            PeerError: The value belongs to another process.
        """
        member = key.rpartition("/")[2]
        owner = member if _PROCESS.fullmatch(member) else self._owners.get(key, process)
        if owner != process:
            raise PeerError(f"{process} published {key}, which belongs to {owner}")
        self._owners[key] = process
        group = group_of(key)
        self._values[group][key] = value
        for reader in self._readers[group]:
            self._unsent[reader, group][key] = value

    def want(self, process: str, group: str) -> None:
        """Have a process sent all values of a group from now on."""
        self._readers[group].add(process)
        if self._values[group]:
            self._unsent[process, group].update(self._values[group])

    def forget(self, process: str) -> None:
        """Send nothing more to a process that was replaced; what it published stays."""
        for readers in self._readers.values():
            readers.discard(process)
        for reader, group in list(self._unsent):
            if reader == process:
                del self._unsent[reader, group]

    def take_unsent(self) -> Iterator[tuple[str, StoredValues]]:
        """Yield what is to be sent, one message for each process and group."""
        unsent, self._unsent = self._unsent, defaultdict(dict)
        for (process, _), values in unsent.items():
            yield process, StoredValues(values)


class PublishedValues:
    """A process's side: values that have arrived; one thread writes, another waits."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._wanted: set[str] = set()
        self._changed = threading.Condition()

    def wants(self, key: str) -> bool:
        """Return whether the group of this key has to be asked for; True once per group."""
        group = group_of(key)
        with self._changed:
            is_new = group not in self._wanted
            self._wanted.add(group)
        return is_new

    def put(self, stored: StoredValues) -> None:
        """Take values that have arrived."""
        with self._changed:
            self._values.update(stored.values)
            self._changed.notify_all()

    def get(self, key: str, deadline: Deadline) -> bytes:
        """Wait for a value.

        Raises:
            TimeoutExpired: It did not come in time.
        """
        with self._changed:
            while key not in self._values:
                if not self._changed.wait(deadline.remaining_s):
                    raise deadline.error()
            return self._values[key]
