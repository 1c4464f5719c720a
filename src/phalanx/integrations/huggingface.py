"""Train with Hugging Face's `Trainer` under `phalanx launch`: `PhalanxTrainer` in its place.

Everything that the Trainer does stays its own: arguments, collators, callbacks, logging, saving.
Its `per_device_train_batch_size` is the global batch, which the workers share out. Needs the extra
`huggingface`; called by users' scripts.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from typing_extensions import override

from phalanx.errors import EngineError, SpecError
from phalanx.integrations.epoch_feed import EpochFeed
from phalanx.program.current import session as current_session

_KEPT = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "log_history",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
"""What a resumed run needs of the Trainer's state; the rest follows from its arguments."""


class SessionTrainer:
    """Mix a session into a Trainer: `class Mine(SessionTrainer, Seq2SeqTrainer)`.

    Every worker evaluates the whole evaluation set, and the metrics are averaged over workers.
    """

    args: Any
    state: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(self, *args: Any, **others: Any) -> None:
        # First: the Trainer asks who is the chief while it is made.
        self.session = current_session()
        self._epoch_feed: EpochFeed | None = None
        super().__init__(*args, **others)
        self._refuse()
        self.add_callback(_EndOfPass(self))  # type: ignore[attr-defined]

    def _refuse(self) -> None:
        """Refuse what another launcher would do, or what writes to files that others read."""
        args = self.args
        refused = {
            "use_cpu=False with a GPU": args.device.type != "cpu",
            "deepspeed": bool(args.deepspeed),
            "fsdp": bool(args.fsdp),
            "fp16": args.fp16,
            "auto_find_batch_size": args.auto_find_batch_size,
            "load_best_model_at_end": args.load_best_model_at_end and self.session.size > 1,
        }
        for name, is_set in refused.items():
            if is_set:
                raise SpecError(
                    f"PhalanxTrainer cannot train with {name}; leave it out of TrainingArguments "
                    "(a run keeps its best weights itself: phalanx.open_run().load_into(model))"
                )

    def get_train_dataloader(self) -> EpochFeed:
        """Return what the Trainer's loop iterates over: this worker's rows of every batch."""
        args = self.args
        loader = super().get_train_dataloader()  # type: ignore[misc]
        accumulate: int = args.gradient_accumulation_steps
        per_epoch = -(-len(loader) // accumulate) if hasattr(loader, "__len__") else None
        epochs = args.num_train_epochs
        steps = args.max_steps if args.max_steps > 0 else None
        if steps is None and epochs != int(epochs) and per_epoch is not None:
            steps = math.ceil(epochs * per_epoch)
        self._epoch_feed = EpochFeed(
            self.session,
            loader,
            epochs=max(1, int(epochs)),
            steps=steps,
            accumulate=accumulate,
            count=self._count if self._divides_by_items else None,
        )
        return self._epoch_feed

    @property
    def _divides_by_items(self) -> bool:
        """Whether losses are divided by the number of labels of a whole update."""
        func = getattr(self, "compute_loss_func", None)
        return bool(getattr(self, "model_accepts_loss_kwargs", False)) or func is not None

    def _count(self, batch: Any) -> float:
        _, items = self.get_batch_samples(iter([batch]), 1, self.args.device)  # type: ignore[attr-defined]
        if items is None:
            raise SpecError(
                "the loss of this model is divided by its number of labels, but a batch has no "
                "'labels' that could be counted"
            )
        return float(items)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Make the scheduler; model and optimiser are complete then, and are declared."""
        made = super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]
        assert self._epoch_feed is not None
        # Accelerate wraps optimisers; the session is about the one that steps.
        inner = getattr(self.optimizer, "optimizer", self.optimizer)
        self.session.setup(
            self.model,
            inner,
            made,
            accumulate=self.args.gradient_accumulation_steps,
            clip_norm=self.args.max_grad_norm or None,
            loss="update_mean" if self._divides_by_items else "mean",
            extra={"feed": self._epoch_feed, "trainer": _TrainerProgress(self, self._epoch_feed)},
        )
        return made

    def _clip_grad_norm(self, model: Any) -> torch.Tensor:
        """Return the norm of the gradients; it is the session that clips them."""
        found = [one.grad for one in model.parameters() if one.grad is not None]
        return torch.nn.utils.get_total_norm(found)

    def evaluation_loop(self, *args: Any, **others: Any) -> Any:
        """Evaluate, and let all workers have the same metrics."""
        output = super().evaluation_loop(*args, **others)  # type: ignore[misc]
        if not self.session.has_begun:
            return output
        prefix = others.get("metric_key_prefix", "eval")
        numbers = {
            name.removeprefix(f"{prefix}_"): (float(value), 1)
            for name, value in output.metrics.items()
            if isinstance(value, int | float) and not name.endswith("_time")
        }
        part = "test" if prefix == "test" else "validation"
        means = self.session.report(part, **numbers)
        same = {f"{prefix}_{name}": value for name, value in means.items()}
        return output._replace(metrics={**output.metrics, **same})

    def is_world_process_zero(self) -> bool:
        """Return whether this worker logs and saves."""
        return self.session.chief

    def is_local_process_zero(self) -> bool:
        """Return whether this worker shows its progress."""
        return self.session.chief

    def save_model(self, *args: Any, **others: Any) -> None:
        """Save the model, on the chief."""
        if self.session.chief:
            super().save_model(*args, **others)  # type: ignore[misc]

    def _save_checkpoint(self, *args: Any, **others: Any) -> None:
        if self.session.chief:
            super()._save_checkpoint(*args, **others)  # type: ignore[misc]


class PhalanxTrainer(SessionTrainer, Trainer):
    """Hugging Face's Trainer with the workers of `phalanx launch`."""


class _EndOfPass(TrainerCallback):
    """Tell the session when the Trainer has made the last step of an epoch."""

    def __init__(self, trainer: SessionTrainer) -> None:
        self._trainer = trainer

    @override
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        feed = self._trainer._epoch_feed
        assert feed is not None
        # A resumed Trainer counts its epochs from zero.
        state.epoch = feed.epoch + feed.num_drawn / len(feed)
        feed.settle()

    @override
    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        feed = self._trainer._epoch_feed
        assert feed is not None
        feed.finish()


class _TrainerProgress:
    """What the Trainer has counted, for checkpoints of the run."""

    def __init__(self, trainer: SessionTrainer, feed: EpochFeed) -> None:
        self._trainer = trainer
        self._feed = feed

    def state_dict(self) -> dict[str, str]:
        """Return the counts, as text: tensors are all that is loaded from checkpoints otherwise."""
        state = dataclasses.asdict(self._trainer.state)
        return {"json": json.dumps({name: state[name] for name in _KEPT})}

    def load_state_dict(self, saved: Mapping[str, str]) -> None:
        """Go on from these counts.

        Raises:
            EngineError: The Trainer could not tell the last update of the epoch.
        """
        trainer = self._trainer
        if self._feed.num_drawn and len(self._feed) % trainer.args.gradient_accumulation_steps:
            raise EngineError(
                "a Trainer whose epoch is not a whole number of gradient_accumulation_steps can be "
                "resumed at the end of an epoch only; leave out checkpoint.every_steps"
            )
        for name, value in json.loads(saved["json"]).items():
            setattr(trainer.state, name, value)
        for name in ("_globalstep_last_logged", "_initial_global_step"):
            setattr(trainer, name, trainer.state.global_step)
