"""Methods of tensors that read on the host without an operator, such as `tolist`.

A function mode carries them out in place of torch: from simulated memory, once queued work is done, with a wait as on
a GPU; a read of page-locked memory is recorded. So it is no second `gapless.device.waiting_calls`, which tells a
listener of a call and lets torch do it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from gapless.device.torch_private import pad_packed_sequence
from gapless.testing.simulated.allocator import alias
from gapless.testing.simulated.places import DEVICE, PLACE_METHODS, is_on_device, with_place
from gapless.testing.simulated.simulation import Touch, Work


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.testing.simulated.simulation import Simulation


class WatchHost(TorchFunctionMode):
    """Handle the methods of tensors that read on the host without an operator.

    Args:
        simulation: where reads are recorded.
    """

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        simulation, kwargs = self._simulation, kwargs or {}
        if simulation.is_quiet:
            return func(*args, **kwargs)
        handler = _HANDLERS.get(func)
        if handler is not None:
            return handler(simulation, func, *args, **kwargs)
        if kwargs.get("device") is not None:
            kwargs = with_place(simulation, args, kwargs)
        before, simulation.calling = simulation.calling, args
        try:
            return func(*args, **kwargs)
        finally:
            simulation.calling = before


def note_read(simulation: Simulation, tensor: torch.Tensor, name: str) -> None:
    """Note that the host reads the memory of a tensor; wait for it if it is on the device.

    Args:
        simulation: that the tensor may be of.
        tensor: any.
        name: of what reads it.
    """
    block = simulation.memory.find(tensor)
    if block is None:
        return
    with simulation.quiet():
        if block.kind == "pinned":
            simulation.host_access("read", tensor, block, name)
            return
        touches = [Touch.of("read", tensor, block)]
        simulation.launch(Work(name, lambda _: None, touches, lane="d2h"))
        simulation.wait(simulation.mark(simulation.current), name)


def _to_dlpack(
    simulation: Simulation, func: Any, tensor: torch.Tensor, *args: Any, **kw: Any
) -> Any:
    """Hand page-locked memory out: who takes it reads it without a word."""
    block = simulation.memory.find(tensor)
    if block is not None and block.kind == "pinned":
        note_read(simulation, tensor, "Tensor.__dlpack__")
    return func(tensor, *args, **kw)


def _read(simulation: Simulation, func: Any, tensor: torch.Tensor, *args: Any, **kw: Any) -> Any:
    """Read a tensor on the host; wait for it if it is on the device."""
    block = simulation.memory.find(tensor)
    if block is None:
        return func(tensor, *args, **kw)
    note_read(simulation, tensor, f"Tensor.{func.__name__}")
    with simulation.quiet():
        if block.kind == "pinned":
            return func(tensor, *args, **kw)
        # A copy, because the memory may be reused when the tensor is freed.
        return func(alias(tensor, block).clone(), *args, **kw)


def _to_array(
    simulation: Simulation, func: Any, tensor: torch.Tensor, *args: Any, **kw: Any
) -> Any:
    if tensor.requires_grad and not kw.get("force"):
        return func(tensor, *args, **kw)  # torch raises
    return _read(simulation, func, tensor, *args, **kw)


def _deepcopy(
    simulation: Simulation, func: Any, tensor: torch.Tensor, memo: dict[int, Any]
) -> Any:
    """Copy on the device, as torch does on a GPU, not through host memory."""
    block = simulation.memory.find(tensor)
    if block is None or id(tensor) in memo or not tensor.is_leaf:
        return func(tensor, memo)
    twin = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    twin.grad = None if tensor.grad is None else tensor.grad.clone()
    memo[id(tensor)] = twin
    return twin


def _one_hot(
    simulation: Simulation, func: Any, tensor: torch.Tensor, num_classes: int = -1
) -> Any:
    """Ask for no values if the size is known; torch checks them on a CPU only."""
    if num_classes <= 0 or not is_on_device(simulation, tensor):
        return func(tensor, num_classes)
    shape = (*tensor.shape, num_classes)
    zeros = torch.zeros(shape, dtype=torch.int64, device=DEVICE)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


def _pad_packed(
    simulation: Simulation,
    func: Any,
    data: torch.Tensor,
    sizes: torch.Tensor,
    batch_first: bool,
    padding: float,
    total: int,
) -> Any:
    """Pad packed sequences; their lengths stay on the host, where torch itself writes them."""
    if not is_on_device(simulation, data):
        return func(data, sizes, batch_first, padding, total)
    with simulation.quiet():
        on_host = torch.zeros(data.shape, device="cpu")
        shape, lengths = func(on_host, sizes, batch_first, padding, total)
    padded = data.new_full(shape.shape, padding)
    steps = padded.transpose(0, 1) if batch_first else padded
    start = 0
    for number, size in enumerate(sizes.tolist()):
        steps[number, :size] = data[start : start + size]
        start += size
    return padded, lengths


_HANDLERS: dict[Any, Callable[..., Any]] = {
    **PLACE_METHODS,
    torch.Tensor.tolist: _read,
    torch.Tensor.numpy: _to_array,
    torch.Tensor.__array__: _to_array,
    torch.Tensor.__dlpack__: _to_dlpack,
    torch.Tensor.__repr__: _read,
    torch.Tensor.__format__: _read,
    torch.Tensor.__deepcopy__: _deepcopy,
    torch.nn.functional.one_hot: _one_hot,
    pad_packed_sequence: _pad_packed,
}
