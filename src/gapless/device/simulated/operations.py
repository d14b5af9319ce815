"""Turn torch operations into queued work.

While a simulated device is entered, a dispatch mode sees every operation of the thread. One that
touches device memory is queued on the current stream and returns at once, with results of the
right shape and no values yet; autograd and optimizers need not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.device.simulated.core import Touch, Work
from gapless.device.simulated.memory import alias


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gapless.device.simulated.core import Simulation
    from gapless.device.simulated.races import Kind
    from gapless.device.simulated.timeline import Lane


_aten = torch.ops.aten
_Shape = tuple[Any, ...]


@dataclass(frozen=True)
class _Signature:
    """What an operator's schema says about its arguments and results."""

    written: tuple[tuple[int, str], ...]
    is_view: bool
    returns_values: bool
    is_random: bool
    depends_on_values: bool
    is_allocation: bool


@cache
def _signature(func: torch._ops.OpOverload) -> _Signature:
    schema = func._schema
    written = tuple(
        (at, argument.name)
        for at, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    is_view = not written and any(result.alias_info is not None for result in schema.returns)
    values = any("Tensor" not in str(result.type) for result in schema.returns)
    tags = func.tags
    return _Signature(
        written=written,
        is_view=is_view,
        returns_values=values,
        is_random=torch.Tag.nondeterministic_seeded in tags,
        depends_on_values=torch.Tag.dynamic_output_shape in tags
        or torch.Tag.data_dependent_output in tags,
        is_allocation=func.name().partition("::")[2].startswith(("empty", "new_empty")),
    )


def _tensors(value: Iterable[Any]) -> Iterator[torch.Tensor]:
    for part in value:
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, (list, tuple)):
            yield from _tensors(part)


def _replace(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_replace(part, change) for part in value)
    return value


@dataclass
class _Call:
    """One operation with its arguments."""

    func: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.func)

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        return [*_tensors(self.args), *_tensors(tuple(self.kwargs.values()))]

    @cached_property
    def written(self) -> list[torch.Tensor]:
        return list(_tensors(self.written_arguments()))

    def written_arguments(self) -> list[Any]:
        return [
            self.args[at] if at < len(self.args) else self.kwargs.get(name)
            for at, name in _signature(self.func).written
        ]

    def with_tensors(self, change: Callable[[torch.Tensor], Any]) -> _Call:
        kwargs = {key: _replace(value, change) for key, value in self.kwargs.items()}
        return _Call(self.func, _replace(self.args, change), kwargs)

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    def on_meta(self) -> _Call:
        """Return the call over tensors that have shapes only."""
        call = self.with_tensors(_as_meta)
        if call.kwargs.get("device") is not None:
            call.kwargs["device"] = torch.device("meta")
        return call

    def key(self) -> _Shape:
        return (self.func, _hashable(self.args), _hashable(tuple(self.kwargs.items())))


def _hashable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, value.size(), value.stride())
    if isinstance(value, list | tuple):
        return tuple(_hashable(part) for part in value)
    return (type(value), value)


class QueueOperations(TorchDispatchMode):
    """Queue what touches device memory; let the rest run on the host, and watch it.

    Args:
        simulation: where work is queued and recorded.
    """

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation
        self._memory = simulation.memory
        self._shapes: dict[_Shape, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = _Call(func, args, kwargs or {})
        simulation = self._simulation
        if simulation.is_quiet:
            return call.run()
        # Below autograd and autocast already: nothing else has to be switched off.
        simulation.is_quiet = True
        try:
            return self._take(call)
        finally:
            simulation.is_quiet = False

    def _take(self, call: _Call) -> Any:
        signature = _signature(call.func)
        if signature.is_view:
            return call.run()
        kinds = {block.kind for block in map(self._memory.find, call.tensors) if block}
        if "device" not in kinds:
            return self._on_host(call) if kinds else call.run()
        if call.func is _aten.copy_.default:
            return self._copy(call)
        if "pinned" in kinds:
            raise RuntimeError(
                f"{call.name} mixes device memory and host memory, which no GPU can do; "
                "copy one to the other first"
            )
        if signature.returns_values or signature.depends_on_values:
            return self._run_now(call, "wait")
        return self._queue(call, signature)

    def _on_host(self, call: _Call) -> Any:
        """Run on the host at once, and record what it does to page-locked memory."""
        written = {id(tensor) for tensor in call.written}
        for tensor in call.tensors:
            block = self._memory.find(tensor)
            if block is not None:
                kind: Kind = "write" if id(tensor) in written else "read"
                self._simulation.host_access(kind, tensor, block, call.name)
        return call.run()

    def _queue(self, call: _Call, signature: _Signature) -> Any:
        outputs = self._outputs(call)
        if outputs is None:
            serialised = self._simulation.checker.report.serialised
            serialised[call.name] = serialised.get(call.name, 0) + 1
            return self._run_now(call, None)
        if signature.is_allocation:
            return outputs
        late, touches = self._by_address(call)
        fresh = [tensor for tensor in _tensors([outputs]) if not _is_any(tensor, call.written)]
        targets = [self._alias(tensor) for tensor in fresh]
        touches += [self._touch("write", tensor) for tensor in fresh]
        replaced = {id(tensor) for tensor in late.written}
        draw, state = _random_draw(late) if signature.is_random else (None, None)

        def run() -> None:
            result = _with_generator(state, late.run) if state is not None else late.run()
            values = [value for value in _tensors([result]) if id(value) not in replaced]
            for target, value in zip(targets, values, strict=True):
                target.copy_(value)

        self._simulation.launch(Work(call.name, run, touches, draw=draw))
        return outputs

    def _outputs(self, call: _Call) -> Any:
        """Return what the call will return, without values; None if that cannot be foreseen."""
        written = call.written
        returns = call.func._schema.returns
        if written and all(result.alias_info is not None for result in returns):
            return _written_results(call)
        try:
            key = call.key()
            if key not in self._shapes:
                self._shapes[key] = call.on_meta().run()
            shapes = self._shapes[key]
        except (NotImplementedError, TypeError):
            return None
        if len(returns) == 1:
            return _replace(shapes, self._allocate_like)
        aliased = iter(written)
        return tuple(
            next(aliased) if result.alias_info else _replace(part, self._allocate_like)
            for part, result in zip(shapes, returns, strict=True)
        )

    def _allocate_like(self, shape: torch.Tensor) -> torch.Tensor:
        pairs = zip(shape.size(), shape.stride(), strict=True)
        count = 1 + sum((size - 1) * stride for size, stride in pairs)
        num_bytes = max(1, count) * shape.element_size()
        storage = self._simulation.allocate(num_bytes).untyped_storage()
        return torch.empty(0, dtype=shape.dtype).set_(storage, 0, shape.size(), shape.stride())

    def _by_address(self, call: _Call) -> tuple[_Call, list[Touch]]:
        """Return the call as a kernel makes it, holding no memory, and what it touches."""
        written = call.written
        touches = []

        def change(tensor: torch.Tensor) -> torch.Tensor:
            is_written = _is_any(tensor, written)
            if self._memory.find(tensor) is None and not tensor.dim() and not is_written:
                return tensor.clone()  # a host scalar: its value is an argument of the kernel
            touches.append(self._touch("write" if is_written else "read", tensor))
            return self._alias(tensor)

        return call.with_tensors(change), touches

    def _alias(self, tensor: torch.Tensor) -> torch.Tensor:
        return alias(tensor, self._memory.find(tensor) or self._memory.adopt(tensor))

    def _touch(self, kind: Any, tensor: torch.Tensor) -> Touch:
        return Touch.of(kind, tensor, self._memory.find(tensor) or self._memory.adopt(tensor))

    def _run_now(self, call: _Call, wait: str | None) -> Any:
        """Run when everything queued on the stream is done, as a host that waits does."""
        simulation = self._simulation
        late, touches = self._by_address(call)
        results: list[Any] = []
        simulation.launch(Work(call.name, lambda: results.append(late.run()), touches))
        mark = simulation.mark(simulation.current)
        if wait is not None:
            simulation.wait(mark, call.name)
        else:
            simulation.queues.run_until(mark)
            simulation.raise_failure()
        return _replace(results[0], self._to_device)

    def _to_device(self, value: torch.Tensor) -> torch.Tensor:
        if not value.numel():
            return value
        tensor = self._allocate_like(value)
        self._alias(tensor).copy_(value)
        return tensor

    def _copy(self, call: _Call) -> torch.Tensor:
        target: torch.Tensor = call.args[0]
        source: torch.Tensor = call.args[1]
        non_blocking = bool(call.args[2]) if len(call.args) > 2 else False
        non_blocking = bool(call.kwargs.get("non_blocking", non_blocking))
        ends = [self._memory.find(target), self._memory.find(source)]
        to_device, from_device = (end is not None and end.kind == "device" for end in ends)
        if to_device and (from_device or (ends[1] is None and not source.dim())):
            self._queue(call, _signature(call.func))
            return target
        touches, read, write = [], source.clone(), target
        if ends[1] is not None:
            touches.append(Touch.of("read", source, ends[1]))
            read = alias(source, ends[1])
        if ends[0] is not None:
            touches.append(Touch.of("write", target, ends[0]))
            write = alias(target, ends[0])
        name = "copy H2D" if to_device else "copy D2H"
        lane: Lane = "h2d" if to_device else "d2h"
        simulation = self._simulation
        simulation.launch(Work(name, lambda: _copy_values(write, read), touches, lane=lane))
        # Memory that is not page-locked is written by the host itself, when the copy is done.
        if not non_blocking or ends[0] is None:
            simulation.wait(simulation.mark(simulation.current), f"blocking {name}")
        return target


def _copy_values(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def _is_any(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    return any(tensor is other for other in others)


def _written_results(call: _Call) -> Any:
    """Return what a call that only writes to its arguments returns: those arguments."""
    found = call.written_arguments()
    returns = call.func._schema.returns
    if not returns:
        return ()
    return found[0] if len(returns) == 1 else tuple(found[: len(returns)])


def _as_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _random_draw(call: _Call) -> tuple[Callable[[], None], list[torch.Tensor]]:
    """Return a function that takes the call's random numbers, and where it notes the state.

    A GPU takes them when the work is launched. How many are taken depends on the shapes alone.
    """
    state: list[torch.Tensor] = []

    def draw() -> None:
        state[:] = [torch.get_rng_state()]
        call.with_tensors(torch.ones_like).run()

    return draw, state


def _with_generator(state: list[torch.Tensor], run: Callable[[], Any]) -> Any:
    now = torch.get_rng_state()
    torch.set_rng_state(state[0])
    try:
        return run()
    finally:
        torch.set_rng_state(now)
