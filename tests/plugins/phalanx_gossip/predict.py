"""How fast gossip goes: the slower of each pair waits, and one message each way is exposed."""

from __future__ import annotations

from phalanx.plan.crew import Crew
from phalanx.plan.facts import World
from phalanx.plan.result import Pace, StepParts
from phalanx_gossip.settings import GossipSpec


def predict_gossip(crew: Crew, spec: GossipSpec, world: World) -> Pace:
    """Predict the throughput of gossip averaging."""
    mean_s = sum(crew.means_s) / len(crew.hands)
    slowest_s = max(crew.means_s)
    link = world.network.within
    exchange_s = (link.latency_s + world.model.size_bytes / link.bandwidth_bytes_per_s) / spec.every
    apply_s = max(hand.fit.apply_s for hand in crew.hands)
    step_s = slowest_s + exchange_s + apply_s
    return Pace(
        family="gossip",
        samples_per_s=crew.batch / step_s,
        parts=StepParts(
            compute_s=mean_s,
            communication_s=exchange_s,
            wait_s=slowest_s - mean_s,
            apply_s=apply_s,
        ),
        busy=tuple((hand.compute_s + apply_s) / step_s for hand in crew.hands),
        sent_bytes=world.model.size_bytes / spec.every,
    )
