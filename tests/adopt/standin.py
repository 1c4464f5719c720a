"""Stand in for the session: one process, and every call checked as the session checks it."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch


class StandInSession:
    """Check the order of calls; clip where it was asked to; count what was used."""

    rank, size, chief = 0, 1, True

    def __init__(self) -> None:
        self.setups: list[tuple[Any, Any]] = []
        self.passes: list[int] = []
        self.num_epoch_loops = 0
        self.has_begun = False

    def setup(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        *,
        accumulate: int = 1,
        passes: int = 1,
        clip_norm: float | None = None,
        loss: str = "mean",
        extra: dict[str, Any] | None = None,
    ) -> None:
        assert not self.has_begun
        assert isinstance(model, torch.nn.Module)
        assert isinstance(optimizer, torch.optim.Optimizer)
        own = {id(p) for p in model.parameters()}
        assert all(id(p) in own for group in optimizer.param_groups for p in group["params"])
        for earlier, _ in self.setups:
            assert not own & {id(p) for p in earlier.parameters()}
        assert scheduler is None or scheduler.optimizer is optimizer
        assert all(hasattr(one, "state_dict") for one in (extra or {}).values())
        assert accumulate >= 1
        assert loss in ("mean", "sum")
        self.setups.append((model, optimizer))
        real = optimizer.step
        if clip_norm is not None:

            @functools.wraps(real)
            def step(*given: Any) -> Any:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
                return real(*given)

            optimizer.step = step

    def data(self, source: Any, *, train: bool = True, steps: int | None = None) -> Any:
        assert train
        assert steps is None
        assert isinstance(source, torch.utils.data.DataLoader)
        assert not hasattr(self, "feed")
        self.feed = Feed(self, source)
        return self.feed

    def epochs(self, count: int) -> Iterator[int]:
        self.num_epoch_loops += 1
        assert self.num_epoch_loops == 1
        for epoch in range(count):
            yield epoch
            self.passes.append(self.feed.num_passes)


class Feed:
    """The loader, without what a feed does not have."""

    def __init__(self, session: StandInSession, loader: Any) -> None:
        self._session = session
        self._loader = loader
        self.dataset, self.batch_size = loader.dataset, loader.batch_size
        self.num_passes = 0

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        assert self._session.setups
        self._session.has_begun = True
        self.num_passes += 1
        return iter(self._loader)


def module_with(session: StandInSession) -> types.ModuleType:
    """Return a module that gives a script this session as `phalanx.session()`."""
    made = types.ModuleType("phalanx")
    made.session = lambda: session  # type: ignore[attr-defined]
    return made
