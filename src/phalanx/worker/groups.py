"""Form groups of workers whose members have proved themselves.

Between machines a group has links of its own (`comm.mesh`). On one machine it is Gloo's, which is
faster there, once every pair has proved itself over it; where a stranger came first, the group is
made again, over links of its own.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch.distributed import ProcessGroupGloo

from phalanx.comm.base import Collective
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.gloo_proof import unproven_members
from phalanx.comm.mesh import MeshCollective
from phalanx.comm.pairing import GroupSecret, make_pairs
from phalanx.comm.rendezvous import RendezvousStore, swap_cards
from phalanx.comm.solo import SoloCollective
from phalanx.errors import PeerError
from phalanx.records import events
from phalanx.wire.deadline import Deadline
from phalanx.worker.context import WorkerContext


def join_group(
    context: WorkerContext, name: str = "workers", *, ranks: Sequence[int] | None = None
) -> Collective:
    """Form a group of workers; all of its members call this.

    Args:
        context: Of this worker.
        name: Of the group, the same on all members and used once per attempt of a run: its
            addresses are published under it.
        ranks: Of its members, in the order of their ranks in the group; None: all workers.

    Raises:
        TimeoutExpired: A member did not come in time.
    """
    ranks = range(context.job.workers) if ranks is None else ranks
    if len(ranks) == 1:
        return SoloCollective()
    members = [f"worker-{rank}" for rank in ranks]
    rank = ranks.index(context.spec.rank)
    if context.spec.is_networked or context.job.strategy.needs_own_links:
        return join_mesh(context, name, members, rank)
    group = _join_gloo(context, name, members, rank)
    return group or join_mesh(context, f"{name}/again", members, rank)


class GlooProof:
    """Prove the members of a Gloo group to one another; all of them go through it together.

    Args:
        context: Of this worker.
        name: Of the group.
        members: Names of its processes, by rank.
        rank: Of this one.

    Raises:
        TimeoutExpired: A member did not come in time.
    """

    def __init__(
        self, context: WorkerContext, name: str, members: Sequence[str], rank: int
    ) -> None:
        self._context = context
        self._name = f"{name}/proof"
        self._members = members
        self._rank = rank
        secret = GroupSecret(members[rank], host=context.spec.address, port=0)
        cards = swap_cards(
            context.control, self._name, secret.card, members, self._deadline("workers to join")
        )
        self._pairs = make_pairs(secret, rank, cards, group=self._name, encrypt="never")

    def succeeds(self, group: ProcessGroupGloo | None) -> bool:
        """Return whether everybody in the group is a member, in the eyes of all members.

        Args:
            group: The group as it has formed; None: it did not, for this member.
        """
        everybody = list(self._pairs)
        unproven = everybody if group is None else unproven_members(group, self._rank, self._pairs)
        if unproven:
            _record(self._context, self._name, Counter({"impostor": len(unproven)}))
        verdicts, control = f"{self._name}/verdict", self._context.control
        control.put(f"{verdicts}/{self._members[self._rank]}", b"no" if unproven else b"yes")
        deadline = self._deadline("proofs of workers")
        return all(control.get(f"{verdicts}/{one}", deadline) == b"yes" for one in self._members)

    def _deadline(self, activity: str) -> Deadline:
        limit_s = self._context.job.deadlines.start_s
        return Deadline.after(limit_s, activity, setting="deadlines.start_s")


def join_mesh(
    context: WorkerContext,
    name: str,
    members: Sequence[str],
    rank: int,
    *,
    check: Callable[[], None] = lambda: None,
) -> MeshCollective:
    """Form a group over links of its own; all of its members call this.

    Args:
        context: Of this worker.
        name: Of the group, used once.
        members: Names of its processes, by rank.
        rank: Of this one.
        check: Called again and again while the group forms; what it raises ends that.

    Raises:
        TimeoutExpired: A member did not come in time.
    """
    deadlines = context.job.deadlines
    return MeshCollective(
        context.control,
        group=name,
        members=members,
        rank=rank,
        host=context.spec.address,
        start_s=deadlines.start_s,
        exchange_s=deadlines.exchange_s,
        encrypt=context.job.strategy.encryption,
        on_refused=partial(_record, context, name),
        check=check,
    )


def _join_gloo(
    context: WorkerContext, name: str, members: Sequence[str], rank: int
) -> GlooCollective | None:
    """Form a group over Gloo; None: not everybody in it is a member."""
    proof, deadlines = GlooProof(context, name, members, rank), context.job.deadlines
    group = None
    # A group that a stranger keeps from forming is one that the others must not use either.
    with contextlib.suppress(PeerError):
        group = GlooCollective(
            RendezvousStore(context.control, prefix=f"{name}/", limit_s=deadlines.start_s),
            rank=rank,
            size=len(members),
            host=context.spec.address,
            deadline_s=deadlines.exchange_s,
        )
    if proof.succeeds(group.process_group if group is not None else None):
        return group
    if group is not None:
        group.close()
    return None


def _record(context: WorkerContext, name: str, refused: Mapping[str, int]) -> None:
    context.log.record(events.Refused(group=name, reasons=dict(refused)))
