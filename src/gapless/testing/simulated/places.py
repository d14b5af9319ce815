"""Where tensors are, and how users move them: `.to`, `.cuda`, `.cpu`, `device=`, `Tensor.device`.

To torch all memory here is the CPU's, and its CPU tensors have no index. So one index of the CPU means the
simulated device and another one the host: torch copies a tensor that is asked for at an index, and the
operator that it calls names the index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.testing.simulated.operator_call import replace, tensors_in


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.testing.simulated.simulation import Simulation


HOST = torch.device("cpu", 0)
DEVICE = torch.device("cpu", 1)


def place_named(name: Any) -> torch.device:
    """Return `DEVICE` or `HOST` for what users write as a device, or another device.

    `cuda` is the simulated device, as a number is.
    """
    if isinstance(name, int):
        return DEVICE
    device = torch.device(name)
    if device.type == "cuda" or device == DEVICE:
        return DEVICE
    return HOST if device.type == "cpu" else device


def is_on_device(simulation: Simulation, tensor: torch.Tensor) -> bool:
    """Whether a tensor is in device memory."""
    block = simulation.memory.find(tensor)
    return block is not None and block.kind == "device"


def with_place(simulation: Simulation, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments whose device is named so that operators know it."""
    place = place_named(kwargs["device"])
    if place == HOST and not any(is_on_device(simulation, part) for part in tensors_in(args)):
        return kwargs  # the host's own work stays as it is written
    return {**kwargs, "device": place}


class _Move(torch.autograd.Function):
    """A copy between host and device, whose gradients are copied back.

    Torch's own would leave them where they are, as both places are the CPU's.
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, source: torch.device, options: dict[str, Any]
    ) -> torch.Tensor:
        ctx.source, ctx.place = source, options["device"]
        return tensor.to(**options)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Move.apply(grads[0], ctx.place, {"device": ctx.source}), None, None


def _to(simulation: Simulation, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    options = _options(simulation, tensor, args, kwargs)
    is_there = is_on_device(simulation, tensor)
    place = options.get("device")
    if place not in (None, HOST, DEVICE):
        return func(tensor, *args, **kwargs)
    if place is None or (place == DEVICE) == is_there:
        options.pop("device", None)
        return func(tensor, **options)
    if tensor.layout is not torch.strided:
        raise NotImplementedError(f"{tensor.layout} tensors are not simulated")
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Move.apply(tensor, DEVICE if is_there else HOST, options)
    return func(tensor, **options)


def _options(
    simulation: Simulation, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of `to`, of whichever form, by name."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    options: dict[str, Any] = {"dtype": tensor.dtype, **given}
    flags = iter(("non_blocking", "copy"))
    for value in (*args, options.pop("other", None)):
        if isinstance(value, bool):
            options[next(flags)] = value
        elif isinstance(value, torch.dtype):
            options["dtype"] = value
        elif isinstance(value, torch.Tensor):
            options["device"] = DEVICE if is_on_device(simulation, value) else HOST
            options["dtype"] = value.dtype
        elif value is not None:
            options["device"] = value
    if "device" in options:
        options["device"] = place_named(options["device"])
    return options


def _to_device(
    simulation: Simulation, _: Any, tensor: torch.Tensor, device: Any = None, *args: Any, **kw: Any
) -> Any:
    return _to(simulation, torch.Tensor.to, tensor, DEVICE, *args, **kw)


def _to_host(simulation: Simulation, _: Any, tensor: torch.Tensor, **kw: Any) -> Any:
    return _to(simulation, torch.Tensor.to, tensor, HOST, **kw)


def _device_of(simulation: Simulation, func: Any, tensor: torch.Tensor) -> Any:
    return DEVICE if is_on_device(simulation, tensor) else func(tensor)


def _index_of(simulation: Simulation, func: Any, tensor: torch.Tensor) -> Any:
    return 1 if is_on_device(simulation, tensor) else func(tensor)


def _tensor_of(simulation: Simulation, func: Any, data: Any, *args: Any, **kw: Any) -> Any:
    """Make a tensor of a list or an array: on the host first, then where it is wanted.

    As on a GPU, the host waits for each number on the device, and for the copy to the device.
    """
    dtype = next((part for part in args if isinstance(part, torch.dtype)), kw.pop("dtype", None))
    named = [part for part in args if part is not None and not isinstance(part, torch.dtype)]
    device = named[0] if named else kw.pop("device", None)
    needs_grad, pinned = kw.pop("requires_grad", False), kw.pop("pin_memory", False)
    if isinstance(data, torch.Tensor):
        if func is torch.tensor:
            data, kw["copy"] = data.detach(), True
        tensor = _to(simulation, torch.Tensor.to, data, device, dtype, **kw)
    else:
        tensor = func(_with_numbers(simulation, data), dtype=dtype, **kw)
        place = place_named(torch.get_default_device() if device is None else device)
        tensor = _to(simulation, torch.Tensor.to, tensor, place)
    if pinned:
        tensor = tensor.pin_memory()
    return tensor.requires_grad_() if needs_grad else tensor


def _new_tensor(
    simulation: Simulation, func: Any, like: torch.Tensor, data: Any, **kw: Any
) -> Any:
    device = kw.pop("device", None) or _device_of(simulation, torch.Tensor.device.__get__, like)
    kw["dtype"] = kw.get("dtype") or like.dtype
    return _tensor_of(simulation, torch.tensor, data, device=device, **kw)


def _with_numbers(simulation: Simulation, data: Any) -> Any:
    """Return nested lists with the values of their tensors."""
    if not isinstance(data, list | tuple):
        return data

    def values(tensor: torch.Tensor) -> Any:
        if not is_on_device(simulation, tensor):
            return tensor
        return _to_host(simulation, torch.Tensor.cpu, tensor.detach()).tolist()

    return replace(data, values)


PLACE_METHODS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _to_device,
    torch.Tensor.cpu: _to_host,
    torch.Tensor.device.__get__: _device_of,
    torch.Tensor.get_device: _index_of,
    torch.Tensor.new_tensor: _new_tensor,
    torch.tensor: _tensor_of,
    torch.as_tensor: _tensor_of,
    torch.asarray: _tensor_of,
}
