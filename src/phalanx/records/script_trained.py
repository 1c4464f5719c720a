"""Define what a run tells plans of a user's script."""

from __future__ import annotations

from phalanx.records.event_base import Event


class ScriptTrained(Event):
    """What a user's script has declared and shown, for plans; written by the chief at the end.

    Attributes:
        digest: Identifies the text of the script.
        epochs: Of its loop.
        global_batch: Samples of one update over all workers.
        num_samples: Of one epoch.
        num_moments: State values of its optimiser per parameter.
        has_convolutions: Whether its model has convolutions.
        own_streams: Whether each worker reads data of its own.
        between_s: Time that it took between epochs and after the last one, to evaluate and save.
        in_step_only: Whether it declares what parameter servers cannot do, such as own streams.
    """

    digest: str
    epochs: int
    global_batch: int
    num_samples: int
    num_moments: int
    has_convolutions: bool
    own_streams: bool
    between_s: float
    in_step_only: bool = False
