"""Profile a network's parts before they are placed: the form of each output, and its time.

Every worker runs the whole network on a few synthetic samples to learn the form of its activations;
those that measure do so on a batch of the true size. The network is left as it was found.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.engine.precision import Precision, autocast
from phalanx.errors import EngineError, SpecError
from phalanx.model.parts import INPUT, PartedNetwork, drawing
from phalanx.split.graph import NetworkGraph, NetworkPart

# Too few for batch norm would be one.
_FEW_ROWS = 2


@dataclass(frozen=True)
class Form:
    """Shape and layout of a part's output, for one sample."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool

    def memory(self, rows: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a buffer for so many samples, contiguous as it is sent."""
        shape = (*self.shape[1:], self.shape[0]) if self.channels_last else self.shape
        return torch.empty((rows, *shape), dtype=dtype or self.dtype)

    def packed(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the layout in which it is sent; no copy if it has that already."""
        return (tensor.permute(0, 2, 3, 1) if self.channels_last else tensor).contiguous()

    def unpacked(self, memory: Tensor) -> Tensor:
        """Return the tensor that has arrived."""
        return memory.permute(0, 3, 1, 2) if self.channels_last else memory


@dataclass(frozen=True)
class PartTimes:
    """Seconds of each part for one batch."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


def made_up(input_shape: Sequence[int], rows: int, *, whole_numbers: bool = False) -> Tensor:
    """Return synthetic samples of the right shape, as the engine passes them to networks."""
    if whole_numbers:
        # Any other number might be beyond an embedding.
        return torch.zeros((rows, *input_shape), dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn((rows, *input_shape), generator=generator)
    return samples.permute(0, 3, 1, 2) if samples.ndim == 4 else samples


def forms_of(
    network: PartedNetwork,
    input_shape: Sequence[int],
    *,
    precision: Precision = "fp32",
    whole_numbers: bool = False,
) -> list[Form]:
    """Return the form of each part's output, for inputs that are `whole_numbers` or not.

    Raises:
        SpecError: A part does not return one tensor with one row per sample.
    """
    # As flat buffers will hold the kernels, which decides how outputs lie in memory.
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.eval()
    with torch.no_grad():
        samples = made_up(input_shape, _FEW_ROWS, whole_numbers=whole_numbers)
        values = _Walk(network, samples, precision)
        forms = []
        for name in network.reads:
            output = values.forward(name)
            if not isinstance(output, Tensor) or output.ndim < 1 or len(output) != _FEW_ROWS:
                raise SpecError(
                    f"part '{name}' must return one tensor with one row per sample to be split"
                )
            forms.append(_form(output))
    network.train()
    return forms


def _form(output: Tensor) -> Form:
    last = output.ndim == 4 and output.is_contiguous(memory_format=torch.channels_last)
    return Form(
        shape=tuple(output.shape[1:]),
        dtype=output.dtype,
        channels_last=last and not output.is_contiguous(),
    )


def graph_of(
    network: PartedNetwork, forms: Sequence[Form], *, num_moments: int, wire: str = "fp32"
) -> NetworkGraph:
    """Return the graph of the network's parts, for the placement.

    Args:
        network: What is to be split.
        forms: Of each part's output.
        num_moments: Numbers that the update rule keeps for each weight.
        wire: fp32 or bf16.
    """
    names = list(network.reads)
    found: list[NetworkPart] = []
    holders: dict[int, list[int]] = {}
    for number, (name, sources) in enumerate(network.reads.items()):
        module, form = network.get_submodule(name), forms[number]
        trained = [p for p in module.parameters() if p.requires_grad]
        for parameter in trained:
            holders.setdefault(id(parameter), []).append(number)
        reads = tuple(names.index(source) for source in sources if source in network.reads)
        size = sum(p.numel() for p in trained)
        width = 2 if wire == "bf16" else form.dtype.itemsize
        values = _numel(form.shape)
        found.append(
            NetworkPart(
                name=name,
                reads=reads,
                out_bytes=values * width,
                parameters=size,
                state_bytes=4 * size * (2 + num_moments),
                # Input and output; layers inside keep about as much again.
                sample_bytes=4 * (2 * values + sum(_numel(forms[one].shape) for one in reads)),
                needs_gradient=bool(trained) or any(found[one].needs_gradient for one in reads),
            )
        )
    return NetworkGraph(tuple(found), tied=_tied(holders))


def _numel(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _tied(holders: Mapping[int, Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    groups: list[set[int]] = []
    for numbers in holders.values():
        if len(set(numbers)) < 2:
            continue
        joined = set(numbers)
        for group in [one for one in groups if one & joined]:
            groups.remove(group)
            joined |= group
        groups.append(joined)
    return tuple(tuple(sorted(group)) for group in sorted(groups, key=min))


def time_parts(
    network: PartedNetwork,
    input_shape: Sequence[int],
    *,
    rows: int,
    repeats: int = 3,
    precision: Precision = "fp32",
    whole_numbers: bool = False,
) -> PartTimes:
    """Measure every part on a batch, forward and backward, one after the other; medians."""
    statistics_before = [buffer.clone() for buffer in network.buffers()]
    network.train()
    samples = made_up(input_shape, rows, whole_numbers=whole_numbers)
    forward: list[list[float]] = []
    backward: list[list[float]] = []
    for _ in range(repeats + 1):
        ahead, back = _timed_pass(network, samples, precision)
        forward.append(ahead)
        backward.append(back)
    for buffer, before in zip(network.buffers(), statistics_before, strict=True):
        buffer.copy_(before)
    network.zero_grad(set_to_none=True)
    # The first pass fills caches and is not counted.
    return PartTimes(
        forward_s=tuple(map(statistics.median, zip(*forward[1:], strict=True))),
        backward_s=tuple(map(statistics.median, zip(*backward[1:], strict=True))),
    )


def _timed_pass(
    network: PartedNetwork, samples: Tensor, precision: Precision
) -> tuple[list[float], list[float]]:
    values = _Walk(network, samples, precision, cut=True)
    ahead: list[float] = []
    for name in network.reads:
        begin = time.perf_counter()
        values.forward(name)
        ahead.append(time.perf_counter() - begin)
    back: list[float] = []
    for name in reversed(list(network.reads)):
        output = values.outputs[name]
        gradient = torch.ones_like(output)
        begin = time.perf_counter()
        if output.requires_grad:
            torch.autograd.backward([output], [gradient])
        back.append(time.perf_counter() - begin)
    return ahead, back[::-1]


class _Walk:
    """One pass over the parts; with `cut`, gradients stop between them."""

    def __init__(
        self, network: PartedNetwork, samples: Tensor, precision: Precision, *, cut: bool = False
    ) -> None:
        self._network = network
        self._precision: Precision = precision
        self._cut = cut
        self.outputs: dict[str, Tensor] = {INPUT: samples}
        self.outputs |= {name: one.take(samples) for name, one in network.inputs.items()}

    def forward(self, name: str) -> Tensor:
        read = [self.outputs[source] for source in self._network.reads[name]]
        if self._cut:
            read = [one.clone().detach().requires_grad_(one.requires_grad) for one in read]
            # A layer that writes into its input must not get a leaf.
            read = [one * 1 if one.requires_grad else one for one in read]
        try:
            with autocast(self._precision), drawing(0):
                output = self._network.run_part(name, read)
        except RuntimeError as error:
            raise EngineError(f"part '{name}' failed on made-up samples: {error}") from error
        self.outputs[name] = output
        return output
