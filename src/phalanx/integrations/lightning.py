"""Train with Lightning under `phalanx launch`: strategies for its `Trainer` and for `Fabric`.

Lightning keeps its loop, hooks, loggers and callbacks; a loader's batch is the global batch, which
the workers share out. Needs the extra `lightning`; called by users' scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.fabric.strategies import SingleDeviceStrategy as FabricDevice
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy as TrainerDevice
from torch import Tensor
from typing_extensions import override

from phalanx.errors import SpecError
from phalanx.integrations.epoch_feed import EpochFeed
from phalanx.program.current import session as current_session


class _SessionReductions:
    """What both kinds of strategy ask of other workers; before the loop all are equal."""

    def __init__(self, **others: Any) -> None:
        super().__init__(device="cpu", **others)  # type: ignore[call-arg]
        self.session = current_session()
        self.feed: EpochFeed | None = None
        self.global_rank = self.session.rank
        self.world_size = self.session.size
        rank_zero_only.rank = self.session.rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker logs and saves."""
        return self.session.chief

    def _sum(self, tensor: Tensor) -> Tensor:
        values = tensor.detach().flatten().tolist()
        summed = torch.tensor(self.session.total(values), dtype=torch.float64)
        return summed.to(tensor.dtype if tensor.is_floating_point() else torch.float32).view(
            tensor.shape
        )

    def _reduce(self, tensor: Any, reduce_op: Any) -> Any:
        if not isinstance(tensor, Tensor) or not self.session.has_begun:
            return tensor
        name = str(reduce_op or "mean").lower().rpartition(".")[2]
        if name not in ("sum", "mean", "avg"):
            raise SpecError(f"workers can be reduced by sum or mean, not by {name}")
        summed = self._sum(tensor)
        return summed if name == "sum" else summed / self.session.size

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Return the tensors of all workers, stacked; gradients stay on their worker."""
        if self.session.size == 1 or not self.session.has_begun:
            return tensor
        places = tensor.new_zeros((self.session.size, *tensor.shape))
        places[self.session.rank] = tensor.detach()
        return self._sum(places).to(tensor.dtype)

    def barrier(self, *args: Any, **others: Any) -> None:
        """Wait for all workers."""
        if self.session.has_begun:
            self.session.total([])

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all workers, or any, have decided so."""
        if not self.session.has_begun:
            return decision
        (agreed,) = self.session.total([float(decision)])
        return agreed == self.session.size if all else agreed > 0


class PhalanxStrategy(_SessionReductions, TrainerDevice):
    """The workers of `phalanx launch`, as `Trainer(strategy=PhalanxStrategy())`.

    Every worker validates on the whole validation set.
    """

    strategy_name = "phalanx"

    def __init__(self, **others: Any) -> None:
        super().__init__(**others)
        self._trainer: Any = None

    @override
    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if trainer.state.fn != "fit":
            return
        if len(self.optimizers) != 1:
            raise SpecError(
                f"PhalanxStrategy trains a module with one optimiser, not {len(self.optimizers)}; "
                "write the loop of several with phalanx.session()"
            )
        limits = {
            "limit_train_batches": trainer.limit_train_batches not in (1.0, None),
            "overfit_batches": trainer.overfit_batches != 0.0,
            "reload_dataloaders_every_n_epochs": trainer.reload_dataloaders_every_n_epochs != 0,
        }
        for name, is_set in limits.items():
            if is_set:
                raise SpecError(
                    f"Trainer({name}=...) would leave out samples of an epoch; limit the run by "
                    "max_epochs or max_steps"
                )
        self._trainer = trainer

    @override
    def process_dataloader(self, dataloader: Any) -> Any:
        """Feed the training loop from the session; other loaders stay as they are."""
        trainer = self._trainer
        if trainer is None or not trainer.training:
            return dataloader
        if self.feed is not None:
            raise SpecError(
                "PhalanxStrategy trains on one loader; give Trainer.fit() a loader that joins them"
            )
        accumulate: int = trainer.accumulate_grad_batches
        epochs, steps = _limits(trainer, dataloader, accumulate)
        self.feed = EpochFeed(
            self.session, dataloader, epochs=epochs, steps=steps, accumulate=accumulate
        )
        schedulers = [one.scheduler for one in self.lr_scheduler_configs]
        extra = {f"scheduler-{place}": one for place, one in enumerate(schedulers[1:], 1)}
        self.session.setup(
            self.lightning_module,
            self.optimizers[0],
            schedulers[0] if schedulers else None,
            accumulate=accumulate,
            extra={**extra, "feed": self.feed, "trainer": _FitProgress(trainer, self.feed)},
        )
        return self.feed

    @override
    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], *args: Any, **o: Any
    ) -> Any:
        """Make a step; after the last one of an epoch all workers are equal."""
        value = super().optimizer_step(optimizer, closure, *args, **o)
        assert self.lightning_module is not None
        if self.feed is not None and self.lightning_module.automatic_optimization:
            self.feed.settle()
        return value

    @override
    def on_validation_start(self) -> None:
        if self.feed is not None:
            self.feed.settle()

    @override
    def on_validation_end(self) -> None:
        """Record what was validated with the run."""
        if not self.session.has_begun:
            return
        found = {
            name.removeprefix("val_").removeprefix("val/"): (float(value), 1)
            for name, value in self._trainer.callback_metrics.items()
            if name.startswith("val")
        }
        if found:
            self.session.report(
                "validation", **{name.replace("/", "_"): pair for name, pair in found.items()}
            )

    @override
    def on_train_end(self) -> None:
        if self.feed is not None:
            self.feed.finish()

    @override
    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the sum or mean over workers."""
        return self._reduce(tensor, reduce_op)


def _limits(trainer: Any, loader: Any, accumulate: int) -> tuple[int, int | None]:
    """Return the epochs of a Trainer, or the updates if these end within one."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    if steps is None or steps < 0:
        if epochs is None or epochs < 1:
            raise SpecError("Trainer(max_epochs=-1) has no end; give max_epochs or max_steps")
        return epochs, None
    per_epoch = -(-len(loader) // accumulate) if hasattr(loader, "__len__") else None
    if epochs is not None and epochs > 0 and per_epoch is not None and epochs * per_epoch <= steps:
        return epochs, None
    return 1, steps


class _FitProgress:
    """What the Trainer has counted, for checkpoints of the run."""

    def __init__(self, trainer: Any, feed: EpochFeed) -> None:
        self._trainer = trainer
        self._feed = feed

    def _callbacks(self) -> dict[str, Any]:
        kept = (EarlyStopping, ModelCheckpoint)
        return {one.state_key: one for one in self._trainer.callbacks if isinstance(one, kept)}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, and the state of callbacks that stop or save."""
        return {
            "epoch": self._trainer.current_epoch,
            "global_step": self._trainer.global_step,
            "stepped": self._trainer.fit_loop.epoch_loop._batches_that_stepped,
            "callbacks": {key: one.state_dict() for key, one in self._callbacks().items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from these counts; the Trainer is fetching the first batch then."""
        fit = self._trainer.fit_loop
        epoch, drawn, step = saved["epoch"], self._feed.num_drawn, saved["global_step"]
        for progress in (fit.epoch_progress.current, fit.epoch_progress.total):
            progress.ready = progress.started = epoch + 1
            progress.processed = progress.completed = epoch
        batches = fit.epoch_loop.batch_progress.current
        batches.ready = batches.started = batches.processed = batches.completed = drawn
        fit._data_fetcher.fetched = drawn
        steps = fit.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
        steps.ready = steps.completed = step
        fit.epoch_loop._batches_that_stepped = saved["stepped"]
        for key, callback in self._callbacks().items():
            if key in saved["callbacks"]:
                callback.load_state_dict(saved["callbacks"][key])


class PhalanxFabricStrategy(_SessionReductions, FabricDevice):
    """The workers of `phalanx launch`, as `Fabric(strategy=PhalanxFabricStrategy(epochs=3))`.

    Of the loaders given to `setup_dataloaders` the first is the training data; every worker reads
    the others whole.

    Args:
        epochs: Passes that the script's loop makes over the training data.
        accumulate: Batches whose gradients it adds up before a step.
        steps: Updates of its only pass, if it is not as long as the loader.
    """

    def __init__(
        self, *, epochs: int = 1, accumulate: int = 1, steps: int | None = None, **others: Any
    ) -> None:
        super().__init__(**others)
        self._epochs = epochs
        self._accumulate = accumulate
        self._steps = steps

    @override
    def setup_module_and_optimizers(
        self, module: Any, optimizers: list[Any], scheduler: Any = None
    ) -> tuple[Any, list[Any], Any]:
        """Declare a model and its optimiser to the session."""
        if len(optimizers) != 1:
            raise SpecError(
                f"fabric.setup() got a module with {len(optimizers)} optimisers; set up each "
                "module with its own one"
            )
        self.session.setup(module, optimizers[0], scheduler, accumulate=self._accumulate)
        return module, optimizers, scheduler

    @override
    def process_dataloader(self, dataloader: Any) -> Any:
        """Feed the script's loop from the session; other loaders stay as they are."""
        if self.feed is not None:
            return dataloader
        self.feed = EpochFeed(
            self.session,
            dataloader,
            epochs=self._epochs,
            steps=self._steps,
            accumulate=self._accumulate,
        )
        return self.feed

    @override
    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the sum or mean over workers."""
        return self._reduce(tensor, reduce_op)
