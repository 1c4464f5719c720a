"""Messages of processes that run the user's own script."""

from __future__ import annotations

import msgspec


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


FromScript = ScriptDeclared | ScriptPrinted
