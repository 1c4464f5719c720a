"""Messages of processes that run the user's own script."""

from __future__ import annotations

import msgspec

from phalanx.wire.parameter_server import Saved


class ScriptDeclared(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What the script has declared before its loop; must be the same on every process.

    Attributes:
        epochs: Of its loop.
        global_batch: Samples of one update over all workers.
        num_samples: Of one epoch.
        num_parameters: Of all its models.
        digest: Identifies names and shapes of its parameters.
        order: Identifies the order of its batches.
    """

    epochs: int
    global_batch: int
    num_samples: int
    num_parameters: int
    digest: str
    order: str


class ScriptPrinted(msgspec.Struct, frozen=True, tag=True):
    """Lines that the chief's script has printed."""

    text: str


class ScriptFigures(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Numbers of one worker to be added over all, where servers keep no group of workers.

    Attributes:
        part: What the script measures: validation or test.
        epoch: Epochs that are done.
        call: Number of this exchange since.
        values: The numbers.
    """

    part: str
    epoch: int
    call: int
    values: tuple[float, ...]


class ScriptEvaluated(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A worker has read the servers, and its script has run what follows an epoch, or its loop.

    Attributes:
        look: Number of the request.
        figures: Sum and count of all that the script has reported, over all workers.
        ended: Whether the script has left its loop over epochs.
        duration_s: How long it took.
    """

    look: int
    figures: dict[str, tuple[float, float]] = {}
    ended: bool = False
    duration_s: float = 0.0


class ScriptSaved(msgspec.Struct, frozen=True, tag=True):
    """The chief of a script's workers has written a checkpoint."""

    saved: Saved


class FigureTotals(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """To the workers of a script: the sums of what they have sent as `ScriptFigures`.

    Attributes:
        part, epoch, call: Of the exchange.
        values: The sums; as many as the shortest of them had.
        num_workers: Workers that took part.
    """

    part: str
    epoch: int
    call: int
    values: tuple[float, ...]
    num_workers: int


FromScript = ScriptDeclared | ScriptPrinted | ScriptFigures | ScriptEvaluated | ScriptSaved
ToScript = FigureTotals
