"""How fast gossip goes: the slower of each pair waits, and one message each way is exposed."""

from __future__ import annotations

from phalanx.plan.facts import ClusterModel
from phalanx.plan.result import StepParts, Throughput
from phalanx.plan.workers import WorkerModels
from phalanx_gossip.settings import GossipSpec


def predict_gossip(group: WorkerModels, spec: GossipSpec, cluster: ClusterModel) -> Throughput:
    """Predict the throughput of gossip averaging."""
    mean_s = sum(group.means_s) / len(group.workers)
    slowest_s = max(group.means_s)
    link = cluster.network.within
    exchange_s = (
        link.latency_s + cluster.model.size_bytes / link.bandwidth_bytes_per_s
    ) / spec.every
    apply_s = max(worker.fit.apply_s for worker in group.workers)
    step_s = slowest_s + exchange_s + apply_s
    return Throughput(
        family="gossip",
        samples_per_s=group.batch / step_s,
        parts=StepParts(
            compute_s=mean_s,
            communication_s=exchange_s,
            wait_s=slowest_s - mean_s,
            apply_s=apply_s,
        ),
        busy=tuple((worker.compute_s + apply_s) / step_s for worker in group.workers),
        sent_bytes=cluster.model.size_bytes / spec.every,
    )
