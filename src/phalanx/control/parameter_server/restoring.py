"""Restore lost servers: which copy, from whom, until when. Pure: facts in, orders out.

A restarted server needs the newest parameters that survived. All workers are asked which version
they hold; the newest copy, or the server's own state in the store if that is no older, is restored.
Every request has a number that grows through the run, and every order may be repeated: a donor
answers a number once, a server takes only the copy with the number it was told. So a server ends at
one version from one donor, whatever is lost, late or doubled on the way. `paramserver.donation` and
`paramserver.slice_restore` are the other two parts of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from phalanx.control.coordinator import Identity
from phalanx.wire.parameter_server import (
    ExpectParameters,
    FromServing,
    HeldVersion,
    QueryVersion,
    RestoreFromDisk,
    SendParameters,
)

_REPEAT_S = 5.0
"""Orders without an effect for so long are repeated."""

Order = tuple[str, FromServing]


@dataclass(frozen=True)
class AskingVersions:
    """Workers are asked for the version that they hold."""

    number: int
    offers: Mapping[str, int | None]
    """By worker; None: no answer yet."""


@dataclass(frozen=True)
class AwaitingCopy:
    """A worker sends its copy to the server."""

    number: int
    donor: str
    num_loaded: int = 0


@dataclass(frozen=True)
class AwaitingDisk:
    """The server restores its state in the store."""

    number: int


RestoreStep = AskingVersions | AwaitingCopy | AwaitingDisk


@dataclass
class _Restoration:
    """The restoration of one server."""

    host: str
    saved_version: int
    step: RestoreStep
    moved_s: float
    ordered_s: float
    given_up: set[str] = field(default_factory=set)
    """Donors whose copy did not arrive."""
    acknowledged: set[int] = field(default_factory=set)
    """Tickets of outstanding pushes that the lost server has answered."""


class Restorations:
    """Restorations of all servers of a run.

    Args:
        identity: Returns key and incarnation of a process.
        patience_s: A donor whose copy does not move for so long is given up.
    """

    def __init__(self, identity: Callable[[str], Identity], *, patience_s: float) -> None:
        self._identity = identity
        self._patience_s = patience_s
        self._number = 0
        self._by_server: dict[int, _Restoration] = {}
        self._chosen: dict[int, frozenset[int]] = {}

    @property
    def is_over(self) -> bool:
        """Whether no server is being restored."""
        return not self._by_server

    def step_of(self, server: int) -> RestoreStep | None:
        """Return how far the restoration of a server is; None: it is not being restored."""
        found = self._by_server.get(server)
        return found.step if found is not None else None

    def begin(
        self, server: int, host: str, workers: Collection[str], *, saved_version: int, now_s: float
    ) -> list[Order]:
        """Restore a server that has just come up without its parameters.

        Args:
            server: Which one.
            host: The process that hosts it.
            workers: Those that may hold a copy.
            saved_version: Of its state in the store; -1: none.
            now_s: The time.
        """
        step = AskingVersions(0, {})
        self._by_server[server] = _Restoration(host, saved_version, step, now_s, now_s)
        return self._ask(server, workers, now_s)

    def offered(self, process: str, offer: HeldVersion, now_s: float) -> list[Order]:
        """Take the version that a worker holds; the last answer decides."""
        one = self._by_server.get(offer.server)
        if one is None or not isinstance(one.step, AskingVersions):
            return []
        if offer.number != one.step.number or process not in one.step.offers:
            return []
        one.step = replace(one.step, offers={**one.step.offers, process: offer.version})
        one.moved_s = now_s
        if offer.acknowledged:
            one.acknowledged.add(offer.acknowledged)
        return self._choose(offer.server, now_s)

    def moved(self, server: int, number: int, num_loaded: int, now_s: float) -> None:
        """Note that segments of a copy have arrived."""
        one = self._by_server.get(server)
        if one is not None and isinstance(one.step, AwaitingCopy) and one.step.number == number:
            one.step = replace(one.step, num_loaded=num_loaded)
            one.moved_s = now_s

    def worker_left(self, process: str, workers: Collection[str], now_s: float) -> list[Order]:
        """Do without a lost worker, whether it was asked for a version or for its copy."""
        orders: list[Order] = []
        for server, one in list(self._by_server.items()):
            match one.step:
                case AskingVersions(offers=offers) if process in offers:
                    left = {name: version for name, version in offers.items() if name != process}
                    one.step = replace(one.step, offers=left)
                    orders += self._choose(server, now_s)
                case AwaitingCopy(donor=donor) if donor == process:
                    # All are asked again: what the others hold may be newer by now.
                    orders += self._ask(server, workers, now_s)
        return orders

    def server_left(self, server: int) -> None:
        """Forget the restoration of a server that was lost again."""
        self._by_server.pop(server, None)
        self._chosen.pop(server, None)

    def restored(self, server: int) -> bool:
        """Note that a server has its parameters again; False: that was known."""
        return self._by_server.pop(server, None) is not None

    def tick(self, workers: Collection[str], now_s: float) -> list[Order]:
        """Repeat orders that had no effect, and give up donors whose copy does not move."""
        orders: list[Order] = []
        for server, one in list(self._by_server.items()):
            stuck = now_s - one.moved_s > self._patience_s
            if isinstance(one.step, AwaitingCopy) and stuck:
                one.given_up.add(one.step.donor)
                orders += self._ask(server, workers, now_s)
            elif now_s - one.ordered_s > _REPEAT_S:
                one.ordered_s = now_s
                orders += self._orders(server)
        return orders

    def take_chosen(self) -> dict[int, frozenset[int]]:
        """Return the servers whose source was chosen since the last call.

        With the tickets of outstanding pushes that the lost server had acknowledged: what was done
        at that moment, and these, are what the restored server must contain.
        """
        chosen, self._chosen = self._chosen, {}
        return chosen

    def _ask(self, server: int, workers: Collection[str], now_s: float) -> list[Order]:
        one = self._by_server[server]
        holders = sorted(set(workers) - one.given_up)
        if not holders and one.saved_version < 0:
            # There is nothing else: those that were given up may have become reachable.
            holders = sorted(workers)
        self._number += 1
        one.step = AskingVersions(self._number, dict.fromkeys(holders))
        one.moved_s = one.ordered_s = now_s
        return self._orders(server) + self._choose(server, now_s)

    def _choose(self, server: int, now_s: float) -> list[Order]:
        """Choose the newest copy, once all workers have answered."""
        one = self._by_server[server]
        assert isinstance(one.step, AskingVersions)
        held = {name: held for name, held in one.step.offers.items() if held is not None}
        if len(held) < len(one.step.offers):
            return []
        number = one.step.number
        # By name among equals, so that the same facts give the same orders.
        best = max(sorted(held), key=lambda name: held[name], default=None)
        # A state in the store comes with its optimiser, and needs no transfer.
        if best is not None and held[best] > one.saved_version:
            one.step = AwaitingCopy(number, best)
        else:
            one.step = AwaitingDisk(number)
        one.moved_s = one.ordered_s = now_s
        self._chosen[server] = frozenset(one.acknowledged)
        return self._orders(server)

    def _orders(self, server: int) -> list[Order]:
        """Return the orders of the present step; the same again if they had no effect."""
        one = self._by_server[server]
        match one.step:
            case AskingVersions(number, offers):
                missing = [name for name, version in offers.items() if version is None]
                return [(name, QueryVersion(server, number)) for name in missing]
            case AwaitingCopy(number, donor):
                incarnation = self._identity(donor).incarnation
                rank = int(donor.rsplit("-", 1)[1])
                # The server first: it refuses copies that it was not told of.
                return [
                    (one.host, ExpectParameters(number, rank, incarnation)),
                    (donor, SendParameters(server, number)),
                ]
            case AwaitingDisk(number):
                return [(one.host, RestoreFromDisk(number))]
