"""Keep the running statistics of a module in one flat buffer; owned by the replica.

Averaging batch-norm statistics over workers is then one exchange, and saving them one tensor. Only
float buffers move; integers such as `num_batches_tracked` are kept by name, and buffers that torch
does not save are constants and stay out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatBuffers:
    """Move the float32 buffers of a module into one tensor, in the order of registration."""

    def __init__(self, module: nn.Module) -> None:
        self._homes: list[tuple[nn.Module, str, Tensor]] = []
        self.others: dict[str, Tensor] = {}
        """Every other persistent buffer by name, live."""
        found: list[tuple[nn.Module, str, str, Tensor]] = []
        for name, buffer in module.named_buffers():
            path, _, key = name.rpartition(".")
            owner = module.get_submodule(path)
            if key in owner._non_persistent_buffers_set:
                continue
            if buffer.dtype == torch.float32:
                found.append((owner, key, name, buffer))
            else:
                self.others[name] = buffer
        self.named: list[tuple[str, Tensor]] = []
        """Float buffers by name, in the order of the flat tensor."""
        self._flat = torch.empty(sum(buffer.numel() for *_, buffer in found))
        start = 0
        for owner, key, name, buffer in found:
            home = self._flat[start : start + buffer.numel()].view(buffer.shape)
            home.copy_(buffer)
            # `.data` keeps the tensor object, so a buffer that two layers share stays shared.
            buffer.data = home
            self._homes.append((owner, key, home))
            self.named.append((name, home))
            start += buffer.numel()

    @property
    def flat(self) -> Tensor:
        """All float buffers in one; writing to it changes the module.

        A layer that replaced a buffer by assignment, instead of writing into it, is brought back
        first, so the tensor is always current.
        """
        for owner, key, home in self._homes:
            current = owner._buffers[key]
            if current is not None and current.data_ptr() != home.data_ptr():
                home.copy_(current)
                owner._buffers[key] = home
        return self._flat
