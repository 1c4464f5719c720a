"""Define the session: what a user's script calls.

A script declares its model, optimiser and data, then loops over `epochs` and its feed. Started by
`python script.py`, the session does nothing but order the batches and clip; started by
`phalanx launch`, the loop of a worker is behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from phalanx.errors import EngineError, SpecError
from phalanx.program.feed import EvaluationFeed, Feed
from phalanx.program.memory_format import MemoryFormat
from phalanx.program.own_stream import OwnStream
from phalanx.program.passes import Passes
from phalanx.program.source import BatchCut, BatchSource, MicroBatch, open_source
from phalanx.program.turn import LossForm


class Driver(Protocol):
    """What is behind a session: a worker's loop, or nothing but the script itself."""

    cut: BatchCut

    def next_epoch(self) -> int | None:
        """Return the number of the epoch that begins; None: there is no more."""

    def next_batch(self) -> MicroBatch | None:
        """Return the next batch of the epoch; None: it is over."""

    def step(self, index: int, apply: Callable[[], Any]) -> Any:
        """Make the step of an optimiser."""

    def total(self, values: list[float]) -> list[float]:
        """Add numbers over all workers."""


@dataclass
class ModelSetup:
    """A model and its optimiser, as the script declared them."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: Any
    accumulate: int
    passes: int
    clip_norm: float | None
    loss: LossForm
    memory_format: MemoryFormat
    extra: Mapping[str, Any]
    apply: Callable[..., Any]
    """The optimiser's own step, clipping included."""


@dataclass
class TrainData:
    """The training data, as the script declared it."""

    given: Any
    steps: int | None
    count: Callable[[Any], Any] | None
    own: BatchCut | None = None
    """This worker among all, where it reads a stream of its own."""
    source: BatchSource | None = None

    def open(self, accumulate: int) -> BatchSource:
        """Open the data for a model that accumulates so many batches."""
        if self.own is None:
            return open_source(self.given, steps=self.steps, accumulate=accumulate)
        wanted = self.steps * accumulate if self.steps is not None else None
        passes = Passes.over(self.given, has_steps=wanted is not None)
        return OwnStream(passes, self.own, wanted)


@dataclass
class Declared:
    """All that a script has declared before its loop."""

    setups: list[ModelSetup] = field(default_factory=list)
    data: TrainData | None = None
    epochs: int | None = None

    @property
    def accumulate(self) -> int:
        """Batches of the loader in one update."""
        return self.setups[0].accumulate if self.setups else 1

    @property
    def source(self) -> BatchSource:
        """The training data, opened on first use."""
        if self.data is None:
            raise SpecError("the script has no training data; call session.data(loader)")
        if self.data.source is None:
            self.data.source = self.data.open(self.accumulate)
        return self.data.source

    def check(self) -> None:
        """Refuse to begin the loop with less than all of it.

        Raises:
            SpecError: Something is missing.
        """
        if not self.setups:
            raise SpecError(
                "the script's loop begins without a model; call session.setup(model, optimizer)"
            )
        _ = self.source


class ScriptSession:
    """A script's connection to the run that it is part of; made by `phalanx.session()`.

    Everything is declared before the loop: `setup` for each model, `data` once for training.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._feed: Feed | None = None
        self.declared = Declared()
        self.reports: dict[str, dict[str, tuple[float, float]]] = {}
        """Sums and counts over all workers, by part and name, since the loop took them."""
        self.has_begun = False

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._driver.cut.rank

    @property
    def size(self) -> int:
        """Number of workers."""
        return self._driver.cut.size

    @property
    def chief(self) -> bool:
        """Whether this is the one worker that prints, saves and downloads for all."""
        return self.rank == 0

    def setup(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: Any = None,
        *,
        accumulate: int = 1,
        passes: int = 1,
        clip_norm: float | None = None,
        loss: LossForm = "mean",
        memory_format: MemoryFormat = "auto",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare a model and its optimiser; both stay as they are and are used as before.

        Args:
            model: Float32 on the CPU.
            optimizer: Over parameters of this model.
            scheduler: Saved and restored with the run; stepped by the script.
            accumulate: Batches whose gradients the script adds up before a step.
            passes: Backward passes that the script makes of each batch.
            clip_norm: Largest norm of the gradients, cut before each step.
            loss: What the script's loss is: the mean over a batch (`mean`), a sum over its samples
                (`sum`), or divided by the count of all batches of the update (`update_mean`).
            memory_format: Whether convolutions compute channels-last where the script cannot see it
                (`auto`), or as the script has it (`preserve`).
            extra: Further objects with `state_dict`, saved and restored with the run.

        Raises:
            SpecError: They do not belong together, or the loop has begun.
        """
        self._refuse_late("setup")
        _check_setup(model, optimizer, self.declared.setups)
        if min(accumulate, passes) < 1:
            raise SpecError("setup(accumulate=, passes=) count from 1")
        if self.declared.setups and accumulate != self.declared.accumulate:
            raise SpecError(
                f"setup(accumulate={accumulate}) after setup(accumulate="
                f"{self.declared.accumulate}): all models of a script accumulate alike"
            )
        if memory_format not in get_args(MemoryFormat):
            raise SpecError(
                f"setup(memory_format={memory_format!r}) is 'auto' or 'preserve'; to compute "
                "channels-last everywhere, convert model and inputs by .to(memory_format=...)"
            )
        for name, one in (extra or {}).items():
            if not hasattr(one, "state_dict"):
                raise SpecError(f"setup(extra=): '{name}' has no state_dict to save")
        index = len(self.declared.setups)
        real = optimizer.step
        made = ModelSetup(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            accumulate=accumulate,
            passes=passes,
            clip_norm=clip_norm,
            loss=loss,
            memory_format=memory_format,
            extra=dict(extra or {}),
            apply=functools.partial(_apply, model, real, clip_norm),
        )
        self.declared.setups.append(made)

        @functools.wraps(real)
        def step(closure: Callable[[], Any] | None = None) -> Any:
            # The closure computes loss and gradients once; exchange happens at its end.
            value = closure() if closure is not None else None
            self._driver.step(index, made.apply)
            return value

        optimizer.step = step  # type: ignore[method-assign]

    def data(
        self,
        source: Any,
        *,
        train: bool = True,
        own: bool = False,
        steps: int | None = None,
        count: Callable[[Any], Any] | None = None,
    ) -> Feed | EvaluationFeed:
        """Declare data, and return what the script iterates over instead of it.

        The batch of a loader is the global batch: each worker gets its rows of it.

        Args:
            source: A `DataLoader`, an iterable of batches, or a function that returns one.
            train: False: data to evaluate on, shared out likewise; add up with `report`.
            own: Whether each worker reads other data, by a loader built for its `rank` and `size`:
                its batches are then this worker's, and one that ends before the others' goes on
                with rows that count nothing.
            steps: Updates that the loop makes, over as many passes as it takes; None: one pass.
            count: What the loss of a batch is the mean over, such as its tokens; None: samples.

        Raises:
            SpecError: It is the second training data, or has no length and no `steps`.
        """
        if not train:
            return EvaluationFeed(source, self._driver, own=own)
        self._refuse_late("data")
        if self._feed is not None:
            raise SpecError("session.data() was called twice for training; a script has one feed")
        self.declared.data = TrainData(source, steps, count, self._driver.cut if own else None)
        self._feed = Feed(self, self._driver)
        return self._feed

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs of the run, from where it stands, up to `count`.

        Raises:
            SpecError: There are two such loops.
        """
        if self.declared.epochs is not None:
            raise SpecError("session.epochs() was called twice; a script has one loop over epochs")
        if count < 1:
            raise SpecError(f"session.epochs({count}) has no epoch")
        self.declared.epochs = count
        return self._epochs()

    def _epochs(self) -> Iterator[int]:
        self.begin()
        while (epoch := self._driver.next_epoch()) is not None:
            yield epoch

    def report(self, part: str = "validation", **pairs: tuple[Any, Any]) -> dict[str, float]:
        """Add up figures of all workers and return their means, the same on each.

        Args:
            part: `validation` within the loop over epochs, `test` after it.
            pairs: Sum and count of this worker's rows, as in `accuracy=(correct, seen)`.

        Raises:
            SpecError: A figure is not a pair.
        """
        names = sorted(pairs)
        for name in names:
            if not isinstance(pairs[name], tuple) or len(pairs[name]) != 2:
                raise SpecError(
                    f"session.report({name}=...) takes the sum and the count of this worker's "
                    f"rows, as in {name}=(correct, seen)"
                )
        flat = [float(value) for name in names for value in pairs[name]]
        summed = self._driver.total(flat)
        found = {
            name: (summed[2 * place], summed[2 * place + 1]) for place, name in enumerate(names)
        }
        self.reports.setdefault(part, {}).update(found)
        return {name: one / count if count else 0.0 for name, (one, count) in found.items()}

    def total(self, values: Sequence[float]) -> list[float]:
        """Add numbers over all workers, which all call it together, within or after the loop."""
        return self._driver.total(list(values))

    def begin(self) -> None:
        """Close the declarations; the first batch or epoch calls it."""
        if not self.has_begun:
            self.declared.check()
            self.has_begun = True

    def _refuse_late(self, what: str) -> None:
        if self.has_begun:
            raise SpecError(f"session.{what}() comes after the loop has begun; call it before")


def _apply(model: nn.Module, real: Callable[[], Any], clip_norm: float | None) -> Any:
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    return real()


def _check_setup(model: nn.Module, optimizer: Optimizer, earlier: list[ModelSetup]) -> None:
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        raise SpecError("session.setup() takes a torch module and a torch optimiser over it")
    if isinstance(optimizer, LBFGS):
        raise SpecError(
            "LBFGS evaluates the loss several times in one step, so a step is not one exchange; "
            "use another optimiser"
        )
    own = {id(one) for one in model.parameters()}
    for before in earlier:
        if before.model is model:
            raise SpecError("session.setup() got the same model twice")
        if before.optimizer is optimizer:
            raise SpecError("session.setup() got the same optimiser twice")
        if own & {id(one) for one in before.model.parameters()}:
            raise SpecError(
                "session.setup() got two models that share parameters; put both into one module "
                "with one optimiser"
            )
    held = [one for group in optimizer.param_groups for one in group["params"]]
    if any(id(one) not in own for one in held):
        raise SpecError(
            f"the optimiser {type(optimizer).__name__} holds parameters that are not in the model "
            "given to session.setup() with it; build it from this model's parameters()"
        )
    if any(one.is_sparse for one in held):
        raise EngineError("sparse parameters cannot be trained")
