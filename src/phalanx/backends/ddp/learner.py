"""A module with an optimiser of torch.optim, in the interface of the training loop.

Parameters and gradients stay where torch puts them. Evaluation, saving and loading are here, the
training step is in `step`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from phalanx.backends.ddp.optimizer import make_optimizer
from phalanx.data.stream import Batch
from phalanx.engine.loss import ForwardPass, Loss, LossSums, error_sums
from phalanx.engine.loss_functions import required_outputs
from phalanx.engine.precision import Precision, autocast
from phalanx.engine.result import EvaluationSums
from phalanx.errors import EngineError
from phalanx.spec.job import JobSpec

_MODEL, _OPTIMIZER = "model/", "optimizer/"


class DdpModel:
    """One worker's model, in float32 on the CPU.

    Convolutions are brought to channels-last, which torch's guide to performance advises and which
    the batches have already.
    """

    def __init__(self, module: nn.Module, *, job: JobSpec, precision: Precision) -> None:
        # As the native engine does: denormal numbers in decaying momentum would slow a CPU down.
        torch.set_flush_denormal(True)
        self.module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        self._l2 = job.optimizer.l2
        self._loss = Loss(job.loss)
        self._precision: Precision = precision
        self.optimizer = make_optimizer(job.optimizer, self.trained)

    @property
    def parameters(self) -> Tensor:
        """Return a copy of all trainable parameters, one after another."""
        return torch.cat([p.detach().reshape(-1) for p in self.trained])

    def loss(self, module: nn.Module, batch: Batch) -> LossSums:
        """Return the sums of our module, or of what DDP made of it."""
        return self._forward(module, batch).sums

    def counts(self, batch: Batch) -> bool:
        """Return whether the loss may weigh samples differently."""
        return self._loss.counts(batch)

    def _forward(self, module: nn.Module, batch: Batch) -> ForwardPass:
        with autocast(self._precision):
            return self._loss.forward(module, batch)

    def penalty(self) -> Tensor | None:
        """Return the L2 regulariser, differentiable; None if the job has none."""
        if self._l2 == 0:
            return None
        return self._l2 * torch.stack([p.square().sum() for p in self._kernels()]).sum()

    def regularisation(self) -> float:
        """Return the value of the L2 regulariser."""
        with torch.no_grad():
            return self._l2 * math.fsum(float(p.square().sum()) for p in self._kernels())

    def _kernels(self) -> list[nn.Parameter]:
        return [p for p in self.trained if p.ndim >= 2]

    def evaluate(self, batch: Batch) -> EvaluationSums:
        """Evaluate one batch without learning."""
        if len(batch.targets) == 0:
            return EvaluationSums(0.0, 0, 0)
        return self._evaluate(batch)[0]

    def evaluate_outputs(self, batch: Batch) -> tuple[EvaluationSums, Tensor]:
        """Evaluate one batch, which is not empty, and return the tensor of predictions too."""
        measured, outputs = self._evaluate(batch)
        return measured, required_outputs(outputs)

    def _evaluate(self, batch: Batch) -> tuple[EvaluationSums, object]:
        if self.module.training:
            self.module.eval()
        with torch.inference_mode():
            passed = self._forward(self.module, batch)
            errors = error_sums(passed.outputs, batch.targets)
        total, correct, weight = passed.sums
        sums = EvaluationSums(float(total), int(correct), len(batch.targets), *errors, weight)
        return sums, passed.outputs

    def state(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs."""
        state = {_MODEL + name: value for name, value in self.module.state_dict().items()}
        for index, memory in self.optimizer.state_dict()["state"].items():
            state |= {
                f"{_OPTIMIZER}{index}/{key}": value
                for key, value in memory.items()
                if isinstance(value, Tensor)
            }
        return {name: value.contiguous() for name, value in state.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned.

        Raises:
            EngineError: The state is of another model or of another backend; nothing was changed.
        """
        own = {_MODEL + name: value.shape for name, value in self.module.state_dict().items()}
        given = {name: value.shape for name, value in state.items() if name.startswith(_MODEL)}
        if own != given:
            raise EngineError(
                "the checkpoint does not hold this model as backend ddp writes it; resume with the "
                "model and the backend of the saved run"
            )
        self.module.load_state_dict({name.removeprefix(_MODEL): state[name] for name in own})
        memory: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            if name.startswith(_OPTIMIZER):
                index, _, key = name.removeprefix(_OPTIMIZER).partition("/")
                parameter = self.trained[int(index)]
                if value.shape == parameter.shape:
                    # Fused rules read the parameter's memory and this side by side: one layout.
                    value = torch.empty_like(parameter, requires_grad=False).copy_(value)
                memory.setdefault(int(index), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": memory, "param_groups": groups})
