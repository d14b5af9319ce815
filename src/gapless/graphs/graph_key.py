"""Which graph takes a batch: the key that batches share, and batches that no graph can take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.graphs.modes import modes_of
from gapless.graphs.refusal import Refusal


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import torch

    from gapless.device.base import Device
    from gapless.pipeline.tree import Tree


class GraphKeys:
    """The keys of a step's batches: their structure, and the modes in which the step runs.

    Args:
        step: the step itself.
        device: where it runs.
    """

    def __init__(self, step: object, *, device: Device) -> None:
        self._step = step
        self._device = device
        self._modes: list[Callable[[], Hashable]] | None = None

    def of(self, tree: Tree) -> Hashable:
        """Return what batches share if the same graph can take them.

        Sync: Does not block the host.
        """
        if self._modes is None:
            # Not before the first batch: until then names in the step's code may be unbound.
            kind = self._device.torch_device.type
            self._modes = [guard.reader() for guard in modes_of(self._step, device_type=kind)]
        return (tree.key(), *[read() for read in self._modes])


def objection_to_batch(
    tensors: list[torch.Tensor], *, needs_copy: Callable[[torch.Tensor], bool]
) -> Refusal | None:
    """Return why no graph can take a batch, None if one can.

    Args:
        tensors: of the batch.
        needs_copy: says whether a tensor is not on the device.

    Sync: Does not block the host.
    """
    for tensor in tensors:
        if needs_copy(tensor):
            return _is_on_the_host(tensor)
        if tensor.requires_grad:
            return _requires_gradients(tensor)
    return None


def _is_on_the_host(tensor: torch.Tensor) -> Refusal | None:
    return Refusal(
        "batch_on_host",
        f"a batch holds {_named(tensor)}, whose values a graph would keep; move it to the device, "
        "or make it a plain value",
    )


def _requires_gradients(tensor: torch.Tensor) -> Refusal | None:
    return Refusal(
        "batch_requires_grad",
        f"a batch holds {_named(tensor)} that requires gradients, which a graph would not bring "
        "to it; call requires_grad_() in the step",
    )


def _named(tensor: torch.Tensor) -> str:
    return f"a tensor on {tensor.device} ({tensor.dtype}, shape {tuple(tensor.shape)})"
