"""Define the summary of a run: the object that `--json` prints and that `runs show` reads.

The keys are documented in docs/ref-summary.md and only ever added to.
"""

from __future__ import annotations

import msgspec

from phalanx.wire.messages import InferenceFacts


class ServingSummary(msgspec.Struct, kw_only=True):
    """Figures of parameter servers in the summary of a run."""

    servers: int
    consistency: str
    updates_per_s: float
    pushes: int
    pushes_applied: int
    pushes_dropped: int
    staleness_mean: float
    staleness_max: int
    staleness_histogram: dict[int, int]
    server_busy_share: float
    server_queue_max: int
    updates_lost: int
    processes_replaced: int


class SwitchSummary(msgspec.Struct, kw_only=True):
    """One change of strategy in the middle of a run."""

    before: str
    after: str
    cause: str
    epoch: int
    samples: int
    pause_s: float


class SplitWorkerSummary(msgspec.Struct, kw_only=True):
    """One worker of a split run."""

    rank: int
    parts: list[str]
    compute_s: float
    communication_s: float
    wait_s: float
    cpu_s: float | None
    predicted_compute_s: float
    """Per step; `compute_s` is of the whole run."""


class SplitLinkSummary(msgspec.Struct, kw_only=True):
    """Traffic from one worker to another."""

    source: int
    target: int
    kind: str
    sent_bytes: int
    messages: int


class SplitSummary(msgspec.Struct, kw_only=True):
    """Predicted and measured figures of a split network."""

    placement: str
    places: dict[str, list[int]]
    predicted_step_s: float
    step_s: float
    predicted_imbalance: float
    imbalance: float
    predicted_bytes_per_step: int
    bytes_per_step: float
    bytes_by_kind: dict[str, int]
    links: list[SplitLinkSummary]
    workers: list[SplitWorkerSummary]
    socket_bytes: int | None
    """Total traffic of the workers' connections, as the kernel counted it."""


class Summary(msgspec.Struct, kw_only=True):
    """The result of one run."""

    run_dir: str
    name: str
    state: str
    strategy: str
    model: str
    data: str
    workers: int
    threads: int
    precision: str
    seed: int
    global_batch: int
    epochs: int
    samples: int
    updates: int
    parameters: int
    elapsed_s: float
    train_s: float
    evaluate_s: float
    startup_s: float
    samples_per_s: float
    train_loss: float | None
    train_accuracy: float | None
    regularisation: float | None
    val_loss: float | None
    val_accuracy: float | None
    test_loss: float | None
    test_accuracy: float | None
    bytes_sent: int
    input_s: float
    compute_s: float
    communication_s: float
    wait_s: float
    apply_s: float
    stopped_early: bool
    attempts: int
    parameters_sha256: str
    cause: str | None = None
    val_metrics: dict[str, float] = {}
    test_metrics: dict[str, float] = {}
    serving: ServingSummary | None = None
    split: SplitSummary | None = None
    inference: InferenceFacts | None = None
    switches: list[SwitchSummary] = msgspec.field(default_factory=list)
    overlapped_s: float = 0.0
    cpu_s: float | None = None
    memory_peak_bytes: int | None = None
    energy_j: float | None = None
    energy_source: str | None = None
    backend: str = "native"
