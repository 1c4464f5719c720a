"""Keep the parameters and gradients of a script's model in flat buffers, unseen by the script.

Parameters become views of one buffer. Gradients are brought into the other as autograd fills them:
scripts drop theirs by `zero_grad()`, so each fresh one is copied home by a hook. Unlike
`engine.flat`, which owns the backward pass, this follows backward passes that the script makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from phalanx.engine.flat import OnBucketReady, layout_of
from phalanx.engine.layout import FlatLayout
from phalanx.errors import EngineError


def save_plainly(model: nn.Module) -> None:
    """Let `state_dict()` of a model return copies: files would hold all of the flat buffer.

    Libraries refuse to save tensors of one storage; those that the model itself shares stay shared.
    """

    def copied(module: nn.Module, state: dict[str, Any], prefix: str, metadata: object) -> None:
        if module is not model:  # a deep copy of it, with parameters of its own
            return
        copies: dict[object, Tensor] = {}
        for name, value in state.items():
            # Asked for with keep_vars, it is the parameter that is wanted.
            if isinstance(value, Tensor) and not value.requires_grad:
                key = value.data_ptr(), value.shape, value.stride()
                if key not in copies:
                    copies[key] = value.clone()
                state[name] = copies[key]

    model.register_state_dict_post_hook(copied)  # type: ignore[no-untyped-call]


class ScriptGradients:
    """The flat buffers of one model.

    Args:
        named: Its trainable parameters; moved in place.
        parameters: Buffer that they move into, as long as all of them.
        gradients: Buffer of the gradients, likewise.
        bucket_bytes: Size of the ranges that become ready together; None chooses by model size.
    """

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        *,
        parameters: Tensor,
        gradients: Tensor,
        bucket_bytes: int | None,
    ) -> None:
        # Kernels lie as the script knows them: it may call `weight.view(-1)`.
        self.layout: FlatLayout = layout_of(named, channels_last=False)
        self.parameters = parameters
        self.gradients = gradients
        self.buckets = self.layout.buckets(bucket_bytes)
        self._trained = list(named.values())
        self._homes = [slot.view(gradients) for slot in self.layout.slots]
        self._bucket_of = [
            next(i for i, b in enumerate(self.buckets) if b.start <= slot.start < b.stop)
            for slot in self.layout.slots
        ]
        self._on_ready: OnBucketReady | None = None
        self._missing: list[int] = []
        self._next = 0
        self._holds_sum = False
        for index, (slot, parameter) in enumerate(
            zip(self.layout.slots, self._trained, strict=True)
        ):
            place = slot.view(parameters)
            place.copy_(parameter.detach())
            parameter.data = place
            parameter.grad = None
            self._watch(index, parameter)

    @property
    def num_writes(self) -> int:
        """How often the script has written to parameters; the exchange does not count."""
        return sum(one._version for one in self._trained)

    @property
    def trained_ids(self) -> list[int]:
        """Identities of the parameters, in the order of the layout."""
        return [id(one) for one in self._trained]

    def begin_pass(self, *, keep_sum: bool) -> None:
        """Prepare for a backward pass.

        Args:
            keep_sum: Whether this worker keeps gradients that have been summed over all workers
                and not dropped since; they must count once in the next sum, not on every worker.
        """
        if self._holds_sum and not keep_sum:
            for parameter in self._trained:
                if parameter.grad is not None:
                    parameter.grad.zero_()
        self._holds_sum = False

    def arm(self, on_bucket_ready: OnBucketReady | None) -> None:
        """Report buckets of the next backward pass as they become final."""
        self._on_ready = on_bucket_ready
        self._next = 0
        self._missing = [0] * len(self.buckets)
        for bucket in self._bucket_of:
            self._missing[bucket] += 1

    def finish(self, *, is_summed: bool = True) -> None:
        """Report the buckets that are left; parameters without a gradient count as zero.

        Args:
            is_summed: Whether the exchange leaves the sum over all workers here; servers keep it.
        """
        for parameter, home in zip(self._trained, self._homes, strict=True):
            if parameter.grad is None:
                home.zero_()
        self._missing = [0] * len(self.buckets)
        self._fire()
        self._holds_sum = is_summed and self._on_ready is not None
        self._on_ready = None

    def show_sum(self) -> None:
        """Let parameters that only other workers have used see their gradient, too."""
        if not self._holds_sum:
            return
        for parameter, home in zip(self._trained, self._homes, strict=True):
            if parameter.grad is None and bool(home.any()):
                parameter.grad = home

    def is_all(self, parameters: Sequence[Tensor]) -> bool:
        """Return whether these are all parameters that have a gradient, and no others."""
        own = {id(one) for one in self._trained if one.grad is not None}
        return own == {id(one) for one in parameters if one.grad is not None}

    def is_changed(self, version: int) -> bool:
        """Return whether someone has changed gradients since a version of their memory."""
        if self.gradients._version != version:
            return True
        return any(
            parameter.grad is not None and parameter.grad is not home
            for parameter, home in zip(self._trained, self._homes, strict=True)
        )

    def bring_all_home(self) -> None:
        """Copy gradients home that the script has replaced by others."""
        for parameter, home in zip(self._trained, self._homes, strict=True):
            if parameter.grad is None:
                home.zero_()
            elif parameter.grad is not home:
                home.copy_(parameter.grad)

    def check(self) -> None:
        """Refuse parameters that the script has moved elsewhere since.

        Raises:
            EngineError: It has; names the first.
        """
        for slot, parameter in zip(self.layout.slots, self._trained, strict=True):
            place = self.parameters.data_ptr() + slot.start * self.parameters.element_size()
            if parameter.data_ptr() != place:
                raise EngineError(
                    f"the script has replaced parameter '{slot.name}' after session.setup(), by "
                    ".to(), .half() or assignment to .data; do that before setup, and change "
                    "values in place",
                    parameter=slot.name,
                )

    def _watch(self, index: int, parameter: nn.Parameter) -> None:
        home, bucket = self._homes[index], self._bucket_of[index]

        def bring_home(parameter: Tensor) -> None:
            grad = parameter.grad
            assert grad is not None
            if grad is not home:
                if grad.is_sparse:
                    name = self.layout.slots[index].name
                    raise EngineError(
                        f"parameter '{name}' has sparse gradients, which cannot be exchanged; "
                        "build its layer with sparse=False",
                        parameter=name,
                    )
                home.copy_(grad)
                parameter.grad = home
            if self._on_ready is not None:
                self._missing[bucket] -= 1
                if self._missing[bucket] == 0:
                    self._fire()

        parameter.register_post_accumulate_grad_hook(bring_home)  # type: ignore[no-untyped-call]

    def _fire(self) -> None:
        while self._next < len(self._missing) and self._missing[self._next] == 0:
            self._next += 1
            if self._on_ready is not None:
                self._on_ready(self._next - 1)
