"""One torch operation with its arguments: what it reads, writes and returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import OpOverload, schema_of
from gapless.testing.simulated.allocator import with_bits_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


# Arguments that CPU kernels write although their schemas do not say so: the position of the flag
# that turns the write on, and the positions of what is written.
_ALSO_WRITTEN = {"aten::native_batch_norm": (5, (3, 4))}

# Kernels that read a value on the host, although no tag of theirs says so.
_HOST_READERS = ("aten::_linalg_check_errors",)

# How many random numbers these draw depends on values, so they cannot be drawn at the launch.
_DRAWS_BY_VALUE = (
    "aten::poisson",
    "aten::binomial",
    "aten::_standard_gamma",
    "aten::_sample_dirichlet",
    "aten::rrelu",
)

_MASKS = (torch.bool, torch.uint8)

_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class UnpredictableError(Exception):
    """The results' shapes are not known before the call has run."""


@dataclass(frozen=True)
class Signature:
    """What an operator's schema and tags say about its arguments and results.

    Attributes:
        name: the operator and its overload, as reports print it.
        operator: its name without the overload, such as `aten::index`.
        written: arguments that it writes, as (position, name).
        outputs: names of `out` arguments.
        aliased: of each result, whether it is an argument, or a view of one.
        changes_metadata: it returns a view, or changes what a tensor is a view of.
        returns_no_tensors: its results are plain values.
        is_random: it draws random numbers.
        reads_values: it returns values of tensors to the host.
        has_size_by_values: the shape of its result depends on values.
        is_allocation: it returns memory without content.
        is_factory: it makes a tensor on the device that it is given.
        reads_shapes_only: its result depends on the shapes of tensors, not on their values.
    """

    name: str
    operator: str
    written: tuple[tuple[int, str], ...]
    outputs: tuple[str, ...]
    aliased: tuple[bool, ...]
    changes_metadata: bool
    returns_no_tensors: bool
    is_random: bool
    reads_values: bool
    has_size_by_values: bool
    is_allocation: bool
    is_factory: bool
    reads_shapes_only: bool


@cache
def signature_of(func: OpOverload) -> Signature:
    """Return what is known about an operator."""
    schema, tags = schema_of(func), func.tags
    operator = schema.name
    plain_name = operator.partition("::")[2]
    written = tuple(
        (at, argument.name)
        for at, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    aliased = tuple(result.alias_info is not None for result in schema.returns)
    return Signature(
        name=str(func),
        operator=operator,
        written=written,
        outputs=tuple(argument.name for argument in schema.arguments if argument.is_out),
        aliased=aliased,
        changes_metadata=(not written and any(aliased)) or torch.Tag.inplace_view in tags,
        returns_no_tensors=bool(schema.returns)
        and not any("Tensor" in str(result.type) for result in schema.returns),
        is_random=torch.Tag.nondeterministic_seeded in tags,
        reads_values=torch.Tag.data_dependent_output in tags or operator in _HOST_READERS,
        has_size_by_values=torch.Tag.dynamic_output_shape in tags,
        is_allocation=plain_name.startswith(("empty", "new_empty")),
        is_factory=any(argument.name == "device" for argument in schema.arguments),
        reads_shapes_only=plain_name.startswith("new_") or plain_name.endswith("_like"),
    )


def tensors_in(value: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists and tuples."""
    for part in value:
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, (list, tuple)):
            yield from tensors_in(part)


def replace(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return nested lists and tuples with every tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([replace(part, change) for part in value])
    return value


def is_any(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    """Whether a tensor is one of several."""
    return any(tensor is other for other in others)


@dataclass
class Call:
    """One operation with its arguments."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    signature: Signature = field(init=False)
    # Computed on first use; not by `cached_property`, whose lock costs time on every call.
    _tensors: list[torch.Tensor] | None = None
    _written: list[torch.Tensor] | None = None

    def __post_init__(self) -> None:
        self.signature = signature_of(self.func)

    @property
    def name(self) -> str:
        """The operator and its overload, as reports print it."""
        return self.signature.name

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments."""
        if self._tensors is None:
            self._tensors = [*tensors_in(self.args), *tensors_in(tuple(self.kwargs.values()))]
        return self._tensors

    @property
    def written(self) -> list[torch.Tensor]:
        """The arguments that are written."""
        if self._written is None:
            self._written = self._find_written()
        return self._written

    def _find_written(self) -> list[torch.Tensor]:
        found = list(tensors_in(self.written_arguments()))
        if self.signature.operator in _ALSO_WRITTEN:
            flag, places = _ALSO_WRITTEN[self.signature.operator]
            found += tensors_in([self.args[at] for at in places if self.args[flag]])
        return found

    def written_arguments(self) -> list[Any]:
        """Return the arguments that are written according to the schema."""
        return [
            self.args[at] if at < len(self.args) else self.kwargs.get(name)
            for at, name in self.signature.written
        ]

    @property
    def generator(self) -> torch.Generator:
        """The generator of its random numbers."""
        values = (*self.args, *self.kwargs.values())
        found = [value for value in values if isinstance(value, torch.Generator)]
        return found[0] if found else torch.default_generator

    @property
    def device(self) -> torch.device | None:
        """The device that it names."""
        found: torch.device | None = self.kwargs.get("device")
        return found

    @property
    def indices(self) -> list[torch.Tensor]:
        """The tensors that it indexes with."""
        is_indexing = self.signature.operator in _INDEXING
        return list(tensors_in(self.args[1])) if is_indexing else []

    @property
    def draws_by_value(self) -> bool:
        """Whether the count of random numbers that it takes depends on values."""
        return self.signature.operator.startswith(_DRAWS_BY_VALUE)

    @property
    def waits(self) -> bool:
        """Whether the host waits for values, either to return them or to learn a size."""
        if self.signature.operator == "aten::index":
            return self._has_mask()
        if self.signature.has_size_by_values:
            return self.kwargs.get("output_size") is None
        return self.signature.reads_values

    @property
    def waits_for_mask(self) -> bool:
        """Whether it writes through a mask, whose elements a GPU counts on the host first."""
        if "index_put" not in self.name or not self._has_mask():
            return False
        return bool(self.args[2].dim())  # a single number needs no count

    def _has_mask(self) -> bool:
        return any(index.dtype in _MASKS for index in self.indices)

    def with_tensors(self, change: Callable[[torch.Tensor], Any]) -> Call:
        """Return the same call with every tensor changed."""
        kwargs = {key: replace(value, change) for key, value in self.kwargs.items()}
        return Call(self.func, replace(self.args, change), kwargs)

    def run(self) -> Any:
        """Run the operation."""
        return self.func(*self.args, **self.kwargs)

    def draw(self) -> torch.Tensor:
        """Take its random numbers; return the generator's state before.

        A GPU takes them when the work is launched. How many it takes depends on shapes only, so
        the operation runs once on other values.
        """
        state = self.generator.get_state()
        self.with_tensors(_stand_in).run()
        return state

    def run_from(self, state: torch.Tensor) -> Any:
        """Run with the random numbers that follow a state; leave the generator as it is."""
        now = self.generator.get_state()
        self.generator.set_state(state)
        try:
            return self.run()
        finally:
            self.generator.set_state(now)

    def predict(self) -> tuple[Any, list[torch.Tensor]]:
        """Return the call's results and `out` arguments as tensors without memory.

        The operation runs on other values. Meta kernels would be cheaper, but their strides, and
        the results that they omit, differ from those of the CPU's kernels.

        Raises:
            UnpredictableError: the results depend on values.
            Exception: the arguments do not fit together.
        """
        try:
            call = self.with_tensors(_stand_in)
            result = call.run_from(call.generator.get_state())
        except Exception as error:  # due to the arguments, or to the other values
            call = self.with_tensors(_as_meta)
            result = call.run_on_meta(error)
        outputs = [call.kwargs[name] for name in self.signature.outputs]
        return replace(result, _as_meta), [_as_meta(tensor) for tensor in tensors_in(outputs)]

    def run_on_meta(self, reason: Exception) -> Any:
        """Run on tensors that have shapes only, since running on values failed.

        Args:
            reason: how it failed; raised again if the arguments do not fit together.
        """
        kwargs = {
            key: torch.device("meta") if isinstance(value, torch.device) else value
            for key, value in self.kwargs.items()
            if not isinstance(value, torch.Generator)
        }
        try:
            return self.func(*self.args, **kwargs)
        except (NotImplementedError, TypeError):
            raise UnpredictableError(self.name) from reason
        except Exception:
            raise reason from None  # the CPU's own message
        finally:
            # Its traceback leads here: until a collection, it would hold what the step computed.
            del reason

    def key(self) -> tuple[Any, ...]:
        """Return everything that the results' shapes depend on."""
        values = (self.args, tuple(self.kwargs.items()), torch.is_grad_enabled())
        return (self.func, _hashable(values))


def _hashable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        bits = (value.is_conj(), value.is_neg())
        return ("tensor", value.dtype, value.size(), value.stride(), bits)
    if isinstance(value, (list, tuple)):
        return tuple([_hashable(part) for part in value])
    return (type(value), value)


def _as_meta(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        raise NotImplementedError(f"{tensor.layout} tensors are not simulated")
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same layout: ones, which most kernels take, or zeros as indices."""
    value = float(tensor.is_floating_point() or tensor.is_complex())
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
    values = torch.full((count,), value, dtype=tensor.dtype, device="cpu")
    return with_bits_of(tensor, values.as_strided(tensor.size(), tensor.stride()))
