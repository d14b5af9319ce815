"""Methods of tensors that read on the host without an operator, such as `tolist`.

A function mode sees them. A read of device memory waits, as on a GPU; a read of page-locked memory is
recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from gapless.testing.simulated.allocator import alias
from gapless.testing.simulated.operator_call import replace
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
        handler = None if self._simulation.is_quiet else _HOST_METHODS.get(func)
        if handler is not None:
            return handler(self._simulation, func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _read(simulation: Simulation, func: Any, tensor: torch.Tensor, *args: Any, **kw: Any) -> Any:
    """Read a tensor on the host; wait for it if it is on the device."""
    block = simulation.memory.find(tensor)
    if block is None:
        return func(tensor, *args, **kw)
    name = f"Tensor.{func.__name__}"
    with simulation.quiet():
        if block.kind == "pinned":
            simulation.host_access("read", tensor, block, name)
            return func(tensor, *args, **kw)
        touches = [Touch.of("read", tensor, block)]
        simulation.launch(Work(name, lambda _: None, touches, lane="d2h"))
        simulation.wait(simulation.mark(simulation.current), name)
        # A copy, because the memory may be reused when the tensor is freed.
        return func(alias(tensor, block).clone(), *args, **kw)


def _to_array(
    simulation: Simulation, func: Any, tensor: torch.Tensor, *args: Any, **kw: Any
) -> Any:
    if tensor.requires_grad and not kw.get("force"):
        return func(tensor, *args, **kw)  # torch raises
    return _read(simulation, func, tensor, *args, **kw)


class _ToHost(torch.autograd.Function):
    """A copy to the host that gradients pass through."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, read: Callable[[], torch.Tensor]) -> torch.Tensor:
        return read()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def _to_host(simulation: Simulation, func: Any, tensor: torch.Tensor, *args: Any) -> Any:
    if simulation.memory.find(tensor) is None:
        return func(tensor, *args)
    return _ToHost.apply(tensor, lambda: _read(simulation, func, tensor, *args))


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


def _finish(simulation: Simulation, func: Any, tensor: torch.Tensor) -> Any:
    """Run all queued work, so that direct reads of memory, as in `torch.save`, see values."""
    if simulation.memory.find(tensor) is not None:
        simulation.finish()
    return func(tensor)


def _gather(simulation: Simulation, func: Any, data: Any, *args: Any, **kw: Any) -> Any:
    """Make a tensor of a list; wait for each number on the device, as on a GPU."""
    if isinstance(data, list | tuple):
        data = replace(
            data, lambda tensor: _read(simulation, torch.Tensor.tolist, tensor.detach())
        )
    return func(data, *args, **kw)


def _pin(simulation: Simulation, _: Any, tensor: torch.Tensor, *_args: Any) -> torch.Tensor:
    with simulation.quiet():
        num_bytes = max(1, tensor.numel() * tensor.element_size())
        pinned = simulation.memory.pin(num_bytes)[: tensor.numel() * tensor.element_size()]
        target = pinned.view(tensor.dtype).view(tensor.shape)
    return target.copy_(tensor)


def _is_pinned(simulation: Simulation, _: Any, tensor: torch.Tensor, *_args: Any) -> bool:
    block = simulation.memory.find(tensor)
    return block is not None and block.kind == "pinned"


_HOST_METHODS: dict[Any, Callable[..., Any]] = {
    torch.tensor: _gather,
    torch.as_tensor: _gather,
    torch.Tensor.tolist: _read,
    torch.Tensor.numpy: _to_array,
    torch.Tensor.__array__: _to_array,
    torch.Tensor.__repr__: _read,
    torch.Tensor.__format__: _read,
    torch.Tensor.cpu: _to_host,
    torch.Tensor.__deepcopy__: _deepcopy,
    torch.Tensor.untyped_storage: _finish,
    torch.Tensor.pin_memory: _pin,
    torch.Tensor.is_pinned: _is_pinned,
}
