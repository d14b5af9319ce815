"""What no mode of torch sees, so that it is replaced while a simulated device is entered."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import GROUP_TENSORS, REDUCE_INTERNAL
from gapless.testing.simulated.host_reads import note_read
from gapless.testing.simulated.places import DEVICE, is_on_device
from gapless.testing.simulated.queues import SimulatedStream
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from gapless.testing.simulated.simulation import Simulation


class TorchReplaced:
    """Replaces methods of torch.

    * `Tensor.record_stream`, which refuses a simulated stream.
    * `Tensor._reduce_ex_internal`, after which `torch.save` reads memory directly.
    * `numpy.ctypeslib.as_array`, by which safetensors reads memory at its address.
    * The function by which optimizers group tensors by device, which does not know this one.
    * `torch.cuda.is_current_stream_capturing`, which knows of no simulated capture.

    Args:
        simulation: whose streams and device are known instead.
    """

    def __init__(self, simulation: Simulation) -> None:
        # What torch imports while the device is entered, such as its compiler, keeps these functions for ever.
        self._simulation = weakref.proxy(simulation)
        self._patches = Patches()

    def __enter__(self) -> None:
        put = self._patches.put
        put(torch.Tensor, "record_stream", self._stream_recorder())
        if REDUCE_INTERNAL.is_there:
            put(*REDUCE_INTERNAL, self._reducer())
        if (numpy := sys.modules.get("numpy")) is not None:
            put(numpy.ctypeslib, "as_array", self._array_maker(numpy.ctypeslib.as_array))
        if GROUP_TENSORS.is_there:
            put(*GROUP_TENSORS, self._grouper())
        put(torch.cuda, "is_current_stream_capturing", self._asker())  # noqa: TID251  # torch asks it itself

    def __exit__(self, *_: object) -> None:
        self._patches.take_out()

    def _stream_recorder(self) -> Any:
        before, simulation = torch.Tensor.record_stream, self._simulation

        def record_stream(tensor: torch.Tensor, s: Any) -> None:
            if isinstance(s, SimulatedStream):
                simulation.record_stream(tensor, s)
            else:
                before(tensor, s)

        return record_stream

    def _reducer(self) -> Any:
        before, simulation = REDUCE_INTERNAL.value, self._simulation

        def reduce(tensor: torch.Tensor, protocol: Any) -> Any:
            if not simulation.is_quiet:
                note_read(simulation, tensor, "a copy to a file")
            if is_on_device(simulation, tensor):
                simulation.finish()
            return before(tensor, protocol)

        return reduce

    def _array_maker(self, before: Any) -> Any:
        simulation = self._simulation

        def as_array(obj: Any, shape: Any = None) -> Any:
            array = before(obj, shape)
            if not simulation.is_quiet:
                with simulation.quiet():
                    tensor = simulation.memory.at(array.ctypes.data, array.nbytes)
                if tensor is not None:
                    note_read(simulation, tensor, "numpy.ctypeslib.as_array")
            return array

        return as_array

    def _grouper(self) -> Any:
        before, simulation = GROUP_TENSORS.value, self._simulation

        def group(lists: Any, with_indices: bool = False) -> Any:
            groups: dict[Any, Any] = {}
            for (device, dtype), (parts, indices) in before(lists, with_indices).items():
                first = next(part for part in parts[0] if part is not None)
                place = DEVICE if is_on_device(simulation, first) else device
                groups[place, dtype] = (parts, indices)
            return groups

        return group

    def _asker(self) -> Any:
        simulation = self._simulation
        return lambda: simulation.is_capturing
