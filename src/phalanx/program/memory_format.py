"""Compute the convolutions of a script's model channels-last, where the script cannot see it.

On CPUs convolutions are faster in this memory format. `engine.flat` lays the kernels of its modules
so; a script may call `weight.view(-1)`, so its kernels stay as they are, and the inputs of its
convolutions are laid channels-last instead, which all that follows takes over. Code that needs the
usual format (`x.view(len(x), -1)` behind a convolution) would fail. So the first call of a model is
tried out on copies of it in both formats; only if nothing fails or differs, and what the model
returns can be had in the usual format, is the new one used from then on, within calls of the model
that are differentiated.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Hashable, Iterator, Mapping
from enum import Enum, auto
from typing import Any, Literal

import torch
from torch import Tensor, nn

from phalanx.program.source import seeded

MemoryFormat = Literal["auto", "preserve"]
"""`auto`: channels-last where the script cannot see it; `preserve`: as the script has it."""

_MOST_KINDS = 8
# Of the largest output: far above rounding (also bf16's), far below mixed-up entries.
_TOLERANCE = 0.05
_PLAIN = (bool, int, float, str, bytes, type(None))


class _Use(Enum):
    """What is done in calls of one kind."""

    NOT = auto()
    WITHIN = auto()
    """Channels-last; what the model returns has the usual format by itself."""
    RESTORED = auto()
    """Channels-last; the one tensor that the model returns is laid as usual again."""


def compute_channels_last(model: nn.Module) -> None:
    """Let a model's two-dimensional convolutions compute channels-last, where that is not seen."""
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
    if convolutions and not any(map(_is_compiled, model.modules())):
        _ChannelsLast(model, convolutions)


class _ChannelsLast:
    """The hooks of a model: bound methods, so that a copy of the model gets a copy of this.

    Args:
        model: The script's.
        convolutions: Its layers whose inputs are laid channels-last.
    """

    def __init__(self, model: nn.Module, convolutions: list[nn.Conv2d | nn.ConvTranspose2d]):
        self._model = model
        self._uses: dict[Hashable, _Use] = {}
        self._tried: _Use | None = None
        """What a copy tries out."""
        self._calls: list[_Use] = []
        """Calls of the model that are under way."""
        model.register_forward_pre_hook(self._enter, with_kwargs=True)
        model.register_forward_hook(self._leave, always_call=True)
        for one in convolutions:
            one.register_forward_pre_hook(self._lay)

    def _enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        use = self._tried
        if use is None:
            use = self._use(args, kwargs) if torch.is_grad_enabled() else _Use.NOT
        self._calls.append(use)

    def _lay(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        is_wanted = self._calls and self._calls[-1] is not _Use.NOT
        if not is_wanted or not args or not isinstance(args[0], Tensor) or args[0].ndim != 4:
            return None
        return (_channels_last(args[0]), *args[1:])

    def _leave(self, _: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        use = self._calls.pop() if self._calls else _Use.NOT
        error = sys.exc_info()[1]
        if use is not _Use.NOT and isinstance(error, RuntimeError) and "view" in str(error):
            hint = "session.setup(..., memory_format='preserve') leaves tensors as the script has"
            error.args = (f"{error} ({hint} them)",)
        if use is _Use.RESTORED and isinstance(output, Tensor):
            return output.contiguous()
        return None

    def _use(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Use:
        try:
            tensors = [*_tensors(args), *_tensors(kwargs)]
        except TypeError:
            return _Use.NOT
        shapes = tuple((one.dtype, one.shape[1:]) for one in tensors)
        kind = (self._model.training, torch.is_autocast_enabled("cpu"), shapes)
        if kind not in self._uses:
            # A model that is called in ever new ways is not tried for ever.
            is_tried = len(self._uses) < _MOST_KINDS
            self._uses[kind] = self._try_out(args, kwargs) if is_tried else _Use.NOT
        return self._uses[kind]

    def _try_out(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Use:
        """Compare both formats on copies of the model."""
        if self._has_other_hooks():
            return _Use.NOT
        try:
            usual, _ = self._run_copy(args, kwargs, _Use.NOT)
            ours, draws = self._run_copy(args, kwargs, _Use.WITHIN)
            return _compare(usual, ours, compares_values=not draws)
        except Exception:
            # The user's code may raise anything; what fails in both formats fails again.
            return _Use.NOT

    def _run_copy(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], use: _Use
    ) -> tuple[Any, bool]:
        """Call a copy of the model; return its output, and whether it has drawn random numbers."""
        model, hooks = copy.deepcopy((self._model, self))
        hooks._tried = use
        given, named = _copied(args), _copied(kwargs)
        with seeded(0):
            before = torch.get_rng_state()
            output = model(*given, **named)
            draws = not torch.equal(before, torch.get_rng_state())
        for module in model.modules():
            for value in vars(module).values():
                if isinstance(value, Tensor) and value.ndim == 4 and not value.is_contiguous():
                    raise TypeError("the model keeps a tensor that the script may look at")
        return output, draws

    def _has_other_hooks(self) -> bool:
        """Return whether the script has hooks of its own, which would run in copies, too."""
        return any(
            getattr(hook, "__self__", None) is not self
            for module in self._model.modules()
            for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        )


def _is_compiled(module: nn.Module) -> bool:
    return (
        isinstance(module, torch.jit.ScriptModule)
        or "_orig_mod" in module._modules
        or module._compiled_call_impl is not None
    )


def _channels_last(x: Tensor) -> Tensor:
    if x.shape[1] != 1:
        return x.contiguous(memory_format=torch.channels_last)
    if x.requires_grad:
        return x
    # With one channel both formats are the same memory; strides tell which one is meant.
    _, _, height, width = x.shape
    return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))


def _compare(usual: Any, ours: Any, *, compares_values: bool) -> _Use:
    pairs = list(zip(_tensors(usual), _tensors(ours), strict=True))
    for before, after in pairs:
        if before.shape != after.shape or before.dtype != after.dtype:
            return _Use.NOT
        if compares_values and before.is_floating_point() and before.numel():
            difference = (before - after).abs().max().item()
            if not difference <= _TOLERANCE * max(before.abs().max().item(), 1e-6):
                return _Use.NOT
    if all(_is_laid_alike(before, after) for before, after in pairs):
        return _Use.WITHIN
    is_one = isinstance(usual, Tensor) and usual.is_contiguous()
    return _Use.RESTORED if is_one else _Use.NOT


def _is_laid_alike(one: Tensor, other: Tensor) -> bool:
    return one.stride() == other.stride() or (one.is_contiguous() and other.is_contiguous())


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of arguments or results.

    Raises:
        TypeError: Something else might hold tensors.
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif not isinstance(value, _PLAIN):
        raise TypeError(type(value).__name__)


def _copied(value: Any) -> Any:
    """Copy the tensors of arguments: a model may write to what it is given."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(one) for one in value)
    return copy.deepcopy(value)
