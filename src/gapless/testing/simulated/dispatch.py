"""Turn torch operations into queued work.

While a simulated device is entered, a dispatch mode sees every operation of the thread. An operation
on device memory is queued on the current stream. It returns at once, with results of the right shape
that have no values yet, so autograd and optimizers work unchanged.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import (
    DispatchKey,
    TorchDispatchMode,
    is_zero_tensor,
    pack_padded_sequence,
    pack_padded_sequence_backward,
    pin_memory,
    to_copy,
)
from gapless.device.waiting_operations import is_direct
from gapless.testing.simulated.allocator import alias
from gapless.testing.simulated.operator_call import (
    Call,
    UnpredictableError,
    is_any,
    replace,
    tensors_in,
)
from gapless.testing.simulated.places import DEVICE, HOST, is_on_device
from gapless.testing.simulated.simulation import Touch, Work


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.testing.simulated.history import Kind
    from gapless.testing.simulated.simulation import Simulation


_aten = torch.ops.aten

_PINNING = (_aten.is_pinned.default, pin_memory)

# Limit of remembered predictions: calls whose arguments hold a new number each time add up.
_MAX_PREDICTIONS = 10_000


@cache
def _is_composite(func: Any) -> bool:
    """Whether an operator is made of others for all devices, such as `Tensor.to`."""
    try:
        return bool(func.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd))
    except (AttributeError, RuntimeError):
        return False  # one of torch's own, which has no kernels


class QueueOperations(TorchDispatchMode):
    """Queue operations on device memory; run others on the host, and record what they do.

    Args:
        simulation: where work is queued and recorded.
    """

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile what runs on the device, as it does on a real one."""
        return True

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation
        self._memory = simulation.memory
        self._predictions: dict[tuple[Any, ...], tuple[Any, list[torch.Tensor]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = Call(func, args, kwargs or {})
        simulation = self._simulation
        if simulation.is_quiet:
            return call.run()
        is_inference = torch.is_inference_mode_enabled() or any(
            tensor.is_inference() for tensor in call.tensors
        )
        if is_inference and _is_composite(func):
            # Torch decomposes a composite operator itself, but not in inference mode.
            with self:
                return func.decompose(*args, **(kwargs or {}))
        # This is below autograd and autocast, so nothing else has to be switched off.
        simulation.is_quiet = True
        try:
            return self._take(call)
        finally:
            simulation.is_quiet = False

    def _take(self, call: Call) -> Any:
        kinds = {block.kind for block in map(self._memory.find, call.tensors) if block}
        if call.signature.changes_metadata:
            return self._change_metadata(call) if kinds else call.run()
        if call.func in _PINNING:
            is_question = call.func is _aten.is_pinned.default
            return "pinned" in kinds if is_question else self._pinned(call.args[0])
        if call.signature.is_factory:
            return self._make(call, is_there="device" in kinds)
        if "device" not in kinds:
            return self._on_host(call) if kinds else call.run()
        if call.func is _aten.copy_.default:
            return self._copy(call)
        if "pinned" in kinds:
            raise RuntimeError(
                f"{call.name} mixes device memory and host memory, which no GPU can do; "
                "copy one to the other first"
            )
        return self._on_device(call)

    def _make(self, call: Call, *, is_there: bool) -> Any:
        """Run a factory, or an operator that copies to a device.

        Args:
            call: the operator.
            is_there: its arguments are in device memory.
        """
        if call.device is not None and call.device.type != "cpu":
            return call.run()
        place = self._place_of(call, is_there=is_there)
        if call.func is to_copy and (place == DEVICE) != is_there:
            return self._move(call, to_device=place == DEVICE)
        return self._on_device(call) if place == DEVICE else self._make_on_host(call)

    def _place_of(self, call: Call, *, is_there: bool) -> torch.device:
        """Return where the result of a factory is, `DEVICE` or `HOST`."""
        if call.device in (DEVICE, HOST):
            return call.device
        if not call.tensors:
            # Torch itself makes it, for a function that it was called with tensors of the device.
            inputs = tensors_in(self._simulation.calling)
            is_there = any(is_on_device(self._simulation, tensor) for tensor in inputs)
        return DEVICE if is_there else HOST

    def _make_on_host(self, call: Call) -> torch.Tensor:
        is_pinned = call.kwargs.get("pin_memory", False)
        if is_pinned:
            call.kwargs["pin_memory"] = False
        made: torch.Tensor = call.run()
        return self._pinned(made) if is_pinned else made

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in page-locked memory."""
        return self._place_like(tensor, self._memory.pin).copy_(tensor)

    def _move(self, call: Call, *, to_device: bool) -> torch.Tensor:
        """Copy to the other side, into memory that is made for it."""
        shape, non_blocking = self._predict(call)[0], call.kwargs.get("non_blocking", False)
        if to_device:
            target = self._allocate_like(shape)
        elif non_blocking:
            target = self._place_like(shape, self._memory.pin)  # as torch does
        else:
            target = torch.empty_strided(
                shape.size(), shape.stride(), dtype=shape.dtype, device="cpu"
            )
        copy = Call(_aten.copy_.default, (target, call.args[0], non_blocking), {})
        self._copy_across(copy, to_device=to_device)
        return target

    def _on_device(self, call: Call) -> Any:
        if call.func in _DECOMPOSITIONS:
            return self._decompose(call)
        call = self._with_indices(call)
        if call.waits:
            return self._run_now(call, is_wait=True)
        if call.signature.returns_no_tensors:
            return call.run()  # for example whether two shapes are equal
        try:
            outputs = self._outputs(call)
        except UnpredictableError:
            serialised = self._simulation.checker.report.serialised
            serialised[call.name] = serialised.get(call.name, 0) + 1
            return self._run_now(call, is_wait=False)
        if call.signature.is_allocation:
            return outputs
        if call.waits_for_mask:
            self._simulation.wait(self._simulation.mark(self._simulation.current), call.name)
        self._queue(call, outputs)
        return outputs

    def _decompose(self, call: Call) -> Any:
        self._simulation.is_quiet = False
        try:
            with self:
                return _DECOMPOSITIONS[call.func](*call.args, **call.kwargs)
        finally:
            self._simulation.is_quiet = True

    def _change_metadata(self, call: Call) -> Any:
        """Return a view, or change what a tensor is a view of: no work for the device."""
        if call.func is _aten.resize_.default:
            self._make_room(call.args[0], tuple(call.args[1]))
        return call.run()

    def _on_host(self, call: Call) -> Any:
        """Run on the host at once, and record accesses to page-locked memory."""
        for tensor in call.tensors:
            block = self._memory.find(tensor)
            if block is not None:
                kind: Kind = "write" if is_any(tensor, call.written) else "read"
                self._simulation.host_access(kind, tensor, block, call.name)
        return call.run()

    def _queue(self, call: Call, outputs: Any) -> None:
        late, touches = self._by_address(call)
        fresh = [tensor for tensor in tensors_in([outputs]) if not is_any(tensor, call.written)]
        targets = [self._taken("write", tensor, touches) for tensor in fresh]

        def keep(result: Any) -> None:
            values = [value for value in tensors_in([result]) if not is_any(value, late.written)]
            for target, value in zip(targets, values, strict=True):
                target.copy_(value)

        if call.signature.is_random:
            work = Work(call.name, lambda state: keep(late.run_from(state)), touches)
            work.draw = late.draw
        else:
            work = Work(call.name, lambda _: keep(late.run()), touches)
        self._simulation.launch(work)

    def _outputs(self, call: Call) -> Any:
        """Return the call's results, without values.

        Raises:
            UnpredictableError: their shapes depend on values.
        """
        aliased, outputs = call.signature.aliased, call.signature.outputs
        if call.draws_by_value:
            raise UnpredictableError(call.name)
        if not outputs and all(aliased):
            return _written_results(call)
        shapes, sizes = self._predict(call)
        if outputs:
            for tensor, size in zip(call.written, sizes, strict=True):
                self._resize_output(tensor, size)
            return _written_results(call)
        if len(aliased) == 1:
            return replace(shapes, self._allocate_like)
        written = iter(call.written)
        return tuple(
            next(written) if is_aliased else replace(part, self._allocate_like)
            for part, is_aliased in zip(shapes, aliased, strict=True)
        )

    def _predict(self, call: Call) -> tuple[Any, list[torch.Tensor]]:
        key = call.key()
        if key not in self._predictions:
            if len(self._predictions) >= _MAX_PREDICTIONS:
                self._predictions.clear()
            self._predictions[key] = call.predict()
        return self._predictions[key]

    def _allocate_like(self, shape: torch.Tensor) -> torch.Tensor:
        return self._place_like(shape, self._simulation.allocate)

    def _place_like(
        self, shape: torch.Tensor, allocate: Callable[[int], torch.Tensor]
    ) -> torch.Tensor:
        pairs = zip(shape.size(), shape.stride(), strict=True)
        count = 1 + sum((size - 1) * stride for size, stride in pairs)
        storage = allocate(max(1, count) * shape.element_size()).untyped_storage()
        return torch.empty(0, dtype=shape.dtype, device="cpu").set_(
            storage, 0, shape.size(), shape.stride()
        )

    def _resize_output(self, tensor: torch.Tensor, size: torch.Tensor) -> None:
        """Give an `out` argument the shape of the result, as torch does for an empty tensor."""
        if tensor.size() != size.size():
            self._make_room(tensor, tuple(size.size()))
            tensor.resize_(size.size())

    def _make_room(self, tensor: torch.Tensor, size: tuple[int, ...]) -> None:
        """Move a tensor to a larger block if needed; simulated memory cannot grow in place."""
        shape = torch.empty(size, dtype=tensor.dtype, device="meta")
        held = tensor.untyped_storage().nbytes() // tensor.element_size()
        if shape.numel() + tensor.storage_offset() <= held:
            return
        room, kept = self._allocate_like(shape), tensor.numel()
        if kept:
            start = room.view(-1)[:kept].view(tensor.shape)
            copy = Call(_aten.copy_.default, (start, tensor), {})
            self._queue(copy, start)
        tensor.set_(room.untyped_storage(), 0, room.size(), room.stride())

    def _by_address(self, call: Call) -> tuple[Call, list[Touch]]:
        """Return the call by address, as a kernel runs it, holding no memory; and its accesses."""
        touches: list[Touch] = []

        def change(tensor: torch.Tensor) -> torch.Tensor:
            if is_zero_tensor(tensor):
                return tensor  # a zero of forward-mode derivatives has no memory
            if call.signature.reads_shapes_only:
                return torch.empty_strided(
                    tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu"
                )
            is_written = is_any(tensor, call.written)
            if not tensor.dim() and not is_written and self._memory.find(tensor) is None:
                return tensor.clone()  # the value of a host scalar is an argument of the kernel
            return self._taken("write" if is_written else "read", tensor, touches)

        return call.with_tensors(change), touches

    def _taken(self, kind: Kind, tensor: torch.Tensor, touches: list[Touch]) -> torch.Tensor:
        """Return a tensor by address, and note the access to it."""
        block = self._memory.find(tensor) or self._memory.adopt(tensor)
        touches.append(Touch.of(kind, tensor, block))
        return alias(tensor, block)

    def _run_now(self, call: Call, *, is_wait: bool) -> Any:
        """Run once everything queued on the stream is done, and return values."""
        simulation = self._simulation
        late, touches = self._by_address(call)
        results: list[Any] = []
        simulation.launch(Work(call.name, lambda _: results.append(late.run()), touches))
        mark = simulation.mark(simulation.current)
        if is_wait:
            simulation.wait(mark, call.name)
        else:
            simulation.run_alone(mark, call.name)
        return replace(results[0], lambda value: self._to_device(value, call.name))

    def _to_device(self, value: torch.Tensor, what: str) -> torch.Tensor:
        tensor, touches = self._allocate_like(value), list[Touch]()
        target = self._taken("write", tensor, touches)
        self._simulation.launch(Work(what, lambda _: _copy_values(target, value), touches))
        return tensor

    def _copy(self, call: Call) -> torch.Tensor:
        target: torch.Tensor = call.args[0]
        source: torch.Tensor = call.args[1]
        ends = self._memory.find(target), self._memory.find(source)
        to_device, from_device = (end is not None and end.kind == "device" for end in ends)
        if to_device and from_device:
            self._queue(call, target)
        else:
            self._copy_across(call, to_device=to_device)
        return target

    def _copy_across(self, call: Call, *, to_device: bool) -> None:
        """Copy between host and device; a copy engine does it if the host side is page-locked."""
        simulation = self._simulation
        target, source = call.args[:2]
        if target.numel() == 0:
            return  # as on a GPU: nothing is launched, and nobody waits
        host, device = (source, target) if to_device else (target, source)
        is_blocking = not call.kwargs.get("non_blocking", len(call.args) > 2 and call.args[2])
        by_engine = self._memory.find(host) is not None and is_direct(
            source, target, to_device=to_device
        )
        touches = list[Touch]()
        there = self._taken("write" if to_device else "read", device, touches)
        name = "copy H2D" if to_device else "copy D2H"
        if by_engine:
            moved = self._taken("read" if to_device else "write", host, touches)
        elif to_device:
            self._host_access("read", host, name)
            moved = host.clone()  # the host reads pageable memory before the call returns
            num_bytes = host.numel() * host.element_size()
            if not is_blocking and num_bytes > simulation.pageable_limit_bytes:
                # It goes through a small buffer of the driver, once queued work is done.
                simulation.wait(simulation.mark(simulation.current), f"pageable {name}")
        else:
            moved, is_blocking = torch.empty_like(host), True
        ends = (there, moved) if to_device else (moved, there)
        simulation.launch(
            Work(name, lambda _: _copy_values(*ends), touches, lane="h2d" if to_device else "d2h")
        )
        if is_blocking:
            simulation.wait(simulation.mark(simulation.current), f"blocking {name}")
        if not by_engine and not to_device:
            # The host itself writes pageable memory.
            self._host_access("write", host, name)
            host.copy_(moved)

    def _with_indices(self, call: Call) -> Call:
        """Copy indices of the host to the device; the host waits for it, as on a GPU."""
        found = [index for index in call.indices if index.dim() and not self._memory.find(index)]
        if not found:
            return call
        indices = replace(
            call.args[1],
            lambda index: self._to_device(index, "copy H2D") if is_any(index, found) else index,
        )
        call = Call(call.func, (call.args[0], indices, *call.args[2:]), call.kwargs)
        if not (call.waits or call.waits_for_mask):
            self._simulation.wait(self._simulation.mark(self._simulation.current), call.name)
        return call

    def _host_access(self, kind: Kind, tensor: torch.Tensor, what: str) -> None:
        block = self._memory.find(tensor)
        if block is not None:
            self._simulation.host_access(kind, tensor, block, what)


def _copy_values(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def _written_results(call: Call) -> Any:
    """Return the results of a call that only writes to its arguments: those arguments."""
    found, count = call.written_arguments(), len(call.signature.aliased)
    if not count:
        return None
    return found[0] if count == 1 else tuple(found[:count])


# --- operators that take some of their arguments on the host, as a GPU's do: packed sequences ---


def _pack(
    padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join the sequences step by step; the sizes of the steps stay on the host."""
    on_host = torch.zeros(padded.shape, device=HOST)
    sizes = pack_padded_sequence(on_host, lengths, batch_first)[1]
    steps = padded.transpose(0, 1) if batch_first else padded
    parts = [steps[number, :size] for number, size in enumerate(sizes.tolist())]
    return torch.cat(parts), sizes


def _pack_backward(
    grad: torch.Tensor, shape: list[int], sizes: torch.Tensor, batch_first: bool
) -> torch.Tensor:
    first, second, *rest = shape
    padded = grad.new_zeros([second, first, *rest] if batch_first else shape)
    start = 0
    for number, size in enumerate(sizes.tolist()):
        padded[number, :size].copy_(grad[start : start + size])
        start += size
    return padded.transpose(0, 1) if batch_first else padded


_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    pack_padded_sequence: _pack,
    pack_padded_sequence_backward: _pack_backward,
}
