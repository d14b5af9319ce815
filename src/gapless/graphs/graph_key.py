"""Which graph takes a batch: the key that batches share, and batches that no graph can take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.graphs.mode_guards import modes_of


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

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
