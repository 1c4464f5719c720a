"""A company whose messages go over a wire that is cut at one moment, with all that is on its way.

Mix it into a company. Both ends of each process's channel are real `Delivery` objects; what the cut
swallows comes only when nobody has anything else to do, as after the next heartbeat.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import msgspec

from phalanx.wire.delivery import Delivery
from phalanx.wire.messages import FromController, FromWorker
from support.company import ScriptedApi

if TYPE_CHECKING:
    from support.company import Company as _Company
else:
    _Company = object

UP, DOWN = 0, 1


class Channel:
    """The two ends of one process's channel, and what is between them."""

    def __init__(self) -> None:
        # The process's end and the controller's; each wire begins at the end of its number.
        self.ends = (Delivery(), Delivery())
        self.wires: tuple[deque[bytes], deque[bytes]] = (deque(), deque())

    def send(self, end: int) -> None:
        self.wires[end].extend(self.ends[end].frames())
        if self.ends[end].must_answer:
            self.wires[end].append(self.ends[end].note())

    def arrive(self, end: int) -> bytes | None:
        body = self.ends[1 - end].take(self.wires[end].popleft())
        self.send(1 - end)
        return body


class WireApi(ScriptedApi):
    """Sends over the company's wires."""

    def __init__(self, company: CutMixin) -> None:
        super().__init__()
        self._company = company

    def send(self, process: str, message: FromController) -> None:
        self.sent.append((process, message))
        self._company.transmit(process, DOWN, message)


class CutMixin(_Company):
    """Cuts all connections at the transmission with this number.

    Attributes:
        cut_at: When; None: never.
        cut_in: Names of the coordinator's states at the cut.
        num_transmissions: So far.
    """

    cut_at: int | None = None
    cut_in: tuple[str, ...] = ()
    num_transmissions = 0

    def __init__(self, *arguments: Any, cut_at: int | None = None, **settings: Any) -> None:
        self.channels: dict[str, Channel] = defaultdict(Channel)
        self.cut_at = cut_at
        self._is_receiving: set[str] = set()
        super().__init__(*arguments, **settings)

    def say(self, name: str, message: FromWorker) -> None:
        self.transmit(name, UP, message)

    def transmit(self, name: str, end: int, message: FromWorker | FromController) -> None:
        channel = self.channels[name]
        channel.ends[end].put(msgspec.msgpack.encode(message))
        channel.send(end)
        self.num_transmissions += 1
        if self.num_transmissions == self.cut_at:
            self.cut_in = tuple(self.states())
            for one in self.channels.values():
                for wire in one.wires:
                    wire.clear()
        self.pump(name)

    def states(self) -> list[str]:
        """The states that the coordinator is in."""
        return [type(self.coordinator.state).__name__]

    def pump(self, name: str) -> bool:
        """Let everything arrive that is on its way; True: something did."""
        if name in self._is_receiving:
            return False  # a message is being handled: the next one waits for its turn
        self._is_receiving.add(name)
        moved, channel = False, self.channels[name]
        while any(channel.wires):
            for end in (UP, DOWN):
                if channel.wires[end] and (body := channel.arrive(end)) is not None:
                    moved = True
                    self._deliver(name, end, body)
        self._is_receiving.discard(name)
        return moved

    def _deliver(self, name: str, end: int, body: bytes) -> None:
        if end == UP:
            self.coordinator.take(name, msgspec.msgpack.decode(body, type=FromWorker))
        else:
            self.api.inboxes[name].append(msgspec.msgpack.decode(body, type=FromController))

    def pass_time(self) -> bool:
        """Heartbeats come, and with them what was lost."""
        moved = False
        for name, channel in list(self.channels.items()):
            for end in (UP, DOWN):
                channel.wires[end].append(channel.ends[end].note())
                moved |= self.pump(name)
        return moved or super().pass_time()
