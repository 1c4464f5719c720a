"""What a step came to: plain numbers, the same for every strategy and engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepFacts:
    """What one step of one worker came to, and where its time went."""

    num_samples: int
    loss_sum: float
    num_correct: int
    forward_s: float
    backward_s: float
    exchange_s: float
    apply_s: float
    overlapped_s: float = 0.0
    """Exchange behind forward and backward; `exchange_s` is what was left exposed."""
    wait_s: float | None = None
    """The part of `exchange_s` that was waiting for others; None: the worker alone cannot know."""
