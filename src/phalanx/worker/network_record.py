"""Record which named tensor lies where in a checkpoint, and how inputs were prepared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from phalanx.data.dataset import Dataset
from phalanx.engine.layout import Range
from phalanx.engine.state_layout import state_layout_of
from phalanx.records.events import NetworkBuilt
from phalanx.records.tensor_slot import TensorSlot
from phalanx.worker.context import WorkerContext


def record_network(
    context: WorkerContext,
    module: nn.Module,
    dataset: Dataset,
    *,
    original: nn.Module | None = None,
) -> None:
    """Let the chief record the network, so that weights can be named without building it again.

    Args:
        context: Of this worker; all but worker-0 record nothing.
        module: The whole network, before or after its tensors moved into flat buffers.
        dataset: What it is trained on.
        original: The network that the job builds, if `module` is made of its tensors; gives names.
    """
    if context.spec.role != "worker" or context.spec.rank != 0:
        return
    layout = state_layout_of(module)
    tensors = dict(_tensors(module))
    named = {id(one): name for name, one in _tensors(original or module)}
    own = {name: named[id(one)] for name, one in tensors.items()}

    def slots(places: Mapping[str, Range], *, kernels: bool) -> list[TensorSlot]:
        return [
            TensorSlot(
                own[name],
                tuple(tensors[name].shape),
                place.start,
                channels_last=kernels and tensors[name].ndim == 4,
            )
            for name, place in places.items()
        ]

    normalizer, channels = dataset.train.normalizer, len(dataset.statistics.mean)
    context.log.record(
        NetworkBuilt(
            parameters=slots(layout.parameters, kernels=True),
            buffers=slots(layout.buffers, kernels=False),
            input_shape=dataset.input_shape,
            num_outputs=dataset.num_classes,
            scale=normalizer.scale.reshape(-1)[:channels].tolist(),
            shift=normalizer.shift.reshape(-1)[:channels].tolist(),
            class_names=list(dataset.class_names),
            whole_numbers=dataset.has_whole_numbers,
            fields=list(dataset.fields),
            renamed={name: own[name] for name in own if own[name] != name},
        )
    )


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
