"""Numbers that are still on their way from the device, and what is computed of them.

A late number stands where a script has read a number. It says that it is a float, or an int. Adding,
multiplying and rounding it gives another late number; everything else forces it: the host waits
until it is there, as the script as written would have done at the read.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self


if TYPE_CHECKING:
    from collections.abc import Callable


# A larger int may be too large for a float, and computing with it may raise.
_LARGEST_INT = 1 << 62


class Arrivals(Protocol):
    """Where late numbers are waited for."""

    def computed(
        self, kind: type[LateNumber], operation: Callable[..., Any], operands: tuple[Any, ...]
    ) -> LateNumber:
        """Return a late number that is computed of others when they are there."""

    def force(self, late: LateNumber, use: str) -> None:
        """Wait for a number, and note who needed it."""

    def text_of(self, late: LateNumber, write: Callable[[Any], str]) -> str:
        """Return a number as a text, or what stands for it in texts that are written later."""


class LateNumber:
    """A number that is not there yet.

    Computed numbers are those of Python, in the same order of operations: the same bits.

    Calling the class converts, as `type(x)(y)` does.

    Attributes:
        reads: where it is waited for.
        operation: computes it from the operands; None for one that is read, and once it is there.
        operands: numbers, late or not; none once it is there.
        number: None until it is there.
        is_small: whether its cube is no larger than a float can be.
    """

    __slots__ = ("__weakref__", "is_small", "number", "operands", "operation", "reads")

    # Of the number.
    kind: ClassVar[type[float | int]] = float

    reads: Arrivals
    operation: Callable[..., Any] | None
    operands: tuple[Any, ...]
    number: Any
    is_small: bool

    def __new__(cls, *args: Any) -> Any:
        """Return what the class that it says it is of makes of a value."""
        return cls.kind(*args)

    @classmethod
    def made(
        cls,
        reads: Arrivals,
        operation: Callable[..., Any] | None = None,
        operands: tuple[Any, ...] = (),
        *,
        is_small: bool = False,
    ) -> Self:
        """Return a late number."""
        late = object.__new__(cls)
        late.is_small = is_small
        late.reads, late.operation, late.operands, late.number = reads, operation, operands, None
        return late

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind

    def forced(self, use: str) -> Any:
        """Return the number.

        Args:
            use: what forces it, as "compares".

        Sync: Blocks the host until the number is there.
        """
        if self.number is None:
            self.reads.force(self, use)
        return self.number

    def compute(self) -> None:
        """Take the number from the operands, which are there."""
        assert self.operation is not None
        self.number = self.operation(*map(plain, self.operands))
        self.operation, self.operands = None, ()

    # --- conversions ---

    def __float__(self) -> float:
        return float(self.forced("converts"))

    def __int__(self) -> int:
        return int(self.forced("converts"))

    def __bool__(self) -> bool:
        return bool(self.forced("branches on"))

    def __hash__(self) -> int:
        return hash(self.forced("hashes"))

    def __complex__(self) -> complex:
        return complex(self.forced("converts"))

    def __str__(self) -> str:
        return self.reads.text_of(self, str)

    def __repr__(self) -> str:
        return self.reads.text_of(self, repr)

    def __format__(self, form: str) -> str:
        # Whatever the number is, a form that does not fit raises here.
        format(self.kind(), form)
        return self.reads.text_of(self, lambda number: format(number, form))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.kind, (self.forced("saves"),)

    def __copy__(self) -> LateNumber:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LateNumber:
        return self

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.kind, name):  # numpy and others ask for what no number has
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {name!r}")
        return getattr(self.forced(f"uses {name} of"), name)

    # --- in the hands of numpy and torch ---

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        return np.asarray(self.forced("makes an array of"), dtype=dtype)

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        values = [forced(value, "computes with") for value in args]
        return getattr(function, method)(*values, **kwargs)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch with the number in the place of the late one."""
        return function(*without_late(args), **without_late(kwargs or {}))

    # --- computed late ---

    def __add__(self, other: Any) -> Any:
        return _late(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _late(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return _late(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _late(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return _late(operator.mul, self, other, may_be=_stays_small(self, other))

    def __rmul__(self, other: Any) -> Any:
        return _late(operator.mul, other, self, may_be=_stays_small(self, other))

    def __truediv__(self, other: Any) -> Any:
        # Whether it raises shows at once.
        divisor = forced(other, "divides by")
        is_safe = _is_number(divisor) and divisor != 0
        return _late(operator.truediv, self, divisor, kind=float, may_be=is_safe)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.forced("divides by")

    def __pow__(self, other: Any) -> Any:
        is_safe = self.is_small and type(other) is int and other in (2, 3)
        return _late(operator.pow, self, other, kind=self.kind, may_be=is_safe)

    def __neg__(self) -> Any:
        return _late(operator.neg, self, kind=self.kind)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _late(abs, self, kind=self.kind)

    def __round__(self, digits: Any = None) -> Any:
        if type(digits) is int and 0 <= digits < 100:
            return _late(round, self, digits, kind=self.kind)
        return round(self.forced("rounds"), digits)


class LateFloat(LateNumber):
    """A late number of kind float."""

    __slots__ = ()


class LateInt(LateNumber):
    """A late number of kind int."""

    __slots__ = ()

    kind: ClassVar[type[float | int]] = int

    def __index__(self) -> int:
        return operator.index(self.forced("indexes by"))


def late_of(kind: type) -> type[LateNumber]:
    """Return the class of late numbers of a kind."""
    return LateInt if kind is int else LateFloat


def is_late(value: object) -> bool:
    """Return whether a value is a late number, whatever it says it is."""
    return issubclass(type(value), LateNumber)


def plain(value: Any) -> Any:
    """Return a number that is there as Python's own; other values as they are."""
    return value.number if is_late(value) else value


def forced(value: Any, use: str) -> Any:
    """Return a late number as Python's own; other values as they are.

    Sync: Blocks the host until the number is there.
    """
    return value.forced(use) if is_late(value) else value


def without_late(value: Any, use: str = "hands torch") -> Any:
    """Return lists, tuples and dictionaries with Python's own numbers in the place of late ones.

    Sync: Blocks the host until these are there.
    """
    if is_late(value):
        return value.forced(use)
    if type(value) in (list, tuple):
        return type(value)([without_late(each, use) for each in value])
    if isinstance(value, dict):
        return {key: without_late(each, use) for key, each in value.items()}
    return value


def _is_number(value: Any) -> bool:
    """Return whether arithmetic with it cannot raise."""
    if type(value) is int:
        return bool(-_LARGEST_INT < value < _LARGEST_INT)
    return type(value) in (float, bool) or is_late(value)


def _stays_small(one: LateNumber, other: Any) -> bool:
    """Return whether a product can be no int that is too large for a float."""
    numbers = (one, other)
    if any((value.kind if is_late(value) else type(value)) is float for value in numbers):
        return True
    return all(not is_late(value) or value.operation is None for value in numbers)


def _late(
    operation: Callable[..., Any], *operands: Any, kind: type | None = None, may_be: bool = True
) -> Any:
    """Return what an operation gives: late, if an operand is late, and nothing can be raised."""
    if not may_be or not all(map(_is_number, operands)):
        return operation(*[forced(value, "computes with") for value in operands])
    if all(not is_late(value) or value.number is not None for value in operands):
        return operation(*map(plain, operands))
    if kind is None:
        kinds = {value.kind if is_late(value) else type(value) for value in operands}
        kind = float if float in kinds else int
    reads: Arrivals = next(value.reads for value in operands if is_late(value))
    return reads.computed(late_of(kind), operation, operands)


def _comparison(compare: Callable[[Any, Any], Any]) -> Any:
    def method(self: LateNumber, other: Any) -> Any:
        return compare(self.forced("compares"), forced(other, "compares"))

    return method


def _binary(compute: Callable[[Any, Any], Any]) -> Any:
    def method(self: LateNumber, other: Any) -> Any:
        return compute(self.forced("computes with"), forced(other, "computes with"))

    return method


def _reflected(compute: Callable[[Any, Any], Any]) -> Any:
    def method(self: LateNumber, other: Any) -> Any:
        return compute(other, self.forced("computes with"))

    return method


def _unary(compute: Callable[[Any], Any]) -> Any:
    def method(self: LateNumber) -> Any:
        return compute(self.forced("computes with"))

    return method


def _fill_in(names: tuple[str, ...], make: Callable[[Any], Any], source: Any = operator) -> None:
    for name in names:
        setattr(LateNumber, f"__{name}__", make(getattr(source, f"__{name}__")))


_fill_in(("lt", "le", "eq", "ne", "gt", "ge"), _comparison)
_fill_in(("floordiv", "mod", "matmul"), _binary)
for _name, _compute in {
    "rfloordiv": operator.floordiv,
    "rmod": operator.mod,
    "rpow": operator.pow,
    "divmod": divmod,
    "rdivmod": divmod,
}.items():
    _make = _reflected if _name.startswith("r") else _binary
    setattr(LateNumber, f"__{_name}__", _make(_compute))
for _name in ("floor", "ceil", "trunc"):
    setattr(LateNumber, f"__{_name}__", _unary(getattr(math, _name)))
for _name in ("and", "or", "xor", "lshift", "rshift"):
    _compute = getattr(operator, f"__{_name}__")
    setattr(LateInt, f"__{_name}__", _binary(_compute))
    setattr(LateInt, f"__r{_name}__", _reflected(_compute))
setattr(LateInt, "__invert__", _unary(operator.invert))  # noqa: B010  # as the others
