"""What changes inside an object that no attribute shows: random numbers, results of caches, versions of tensors."""

from __future__ import annotations

import contextvars
import functools
import random
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gapless.graphs.reads.plain_values import is_plain
from gapless.graphs.reads.value_places import MISSING


if TYPE_CHECKING:
    from collections.abc import Callable


# Larger arrays are not compared before each replay.
_MOST_BYTES = 1 << 16


class Text(str):
    """A text about a state, as against a value that is a string."""

    __slots__ = ()


class _State(NamedTuple):
    text: str
    state: Any


def groups_of(optimizer: torch.optim.Optimizer) -> _State:
    """Return which groups an optimizer has; `load_state_dict` makes them anew."""
    groups = optimizer.param_groups
    return _State(f"{len(groups)} groups", tuple(map(id, groups)))


def about(state: Any) -> Text:
    """Return what is shown for a state."""
    return Text(state.text if isinstance(state, _State) else state)


def inner_state_of(value: Any) -> Callable[[Any], Any] | None:
    """Return a function that reads what changes inside a value, None for other values."""
    for kind, state in _STATES.items():
        if isinstance(value, kind):
            return state
    if isinstance(value, torch.Generator):
        return _generator_state if value.device.type == "cpu" else None
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState):
        return _numpy_state
    return None


def is_small_array(value: Any) -> bool:
    """Return whether a value is an array of numpy that is compared as a whole, such as the bounds of a space."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return False
    return bool(value.nbytes <= _MOST_BYTES) and not value.dtype.hasobject


def content_of(array: Any) -> tuple[Any, ...]:
    """Return all that a read of a small array of numpy shows."""
    flags = array.flags.num
    return array.dtype.str, array.shape, array.strides, flags, array.tobytes()


def state_by(reader: Callable[[], Any]) -> Callable[[Any], _State]:
    """Return what gives a state that a function reads, whatever it is given."""
    return lambda _: _State("its state", reader())


class _HostBytes:
    """The content of a tensor on the host."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HostBytes) and torch.equal(self._tensor, other._tensor)


def _random_state(value: Any) -> _State:
    return _State("random numbers", value.getstate())


def _generator_state(value: Any) -> _State:
    return _State("random numbers", _HostBytes(value.get_state()))


def _numpy_state(value: Any) -> _State:
    bits = getattr(value, "bit_generator", None)
    state = bits.state if bits is not None else value.get_state(legacy=False)
    return _State("random numbers", _flat(state))


def _flat(state: Any) -> Any:
    if isinstance(state, dict):
        return tuple((key, _flat(part)) for key, part in state.items())
    return state.tobytes() if hasattr(state, "tobytes") else state


def _context_value(value: Any) -> _State:
    content = value.get(MISSING)
    return _State("its value", content if is_plain(content) else id(content))


def _cached_calls(value: Any) -> _State:
    info = value.cache_info()
    return _State(f"{info.currsize} results", (info.misses, info.currsize))


def version_of(value: torch.Tensor) -> _State:
    """Return the version of a tensor's content."""
    try:
        version = value._version
    except RuntimeError:
        # Tensors of inference mode have no version.
        return _State("its content", None)
    return _State("its content", version)


_STATES: dict[Any, Callable[[Any], Any]] = {
    random.Random: _random_state,
    contextvars.ContextVar: _context_value,
    functools._lru_cache_wrapper: _cached_calls,
}


class RandomStates:
    """The random numbers of Python, numpy and torch on the host, as of now.

    Args:
        torchs: watch the host generator of torch too.
    """

    def __init__(self, *, torchs: bool) -> None:
        self._torchs = torchs
        self._states = self._now()

    def _now(self) -> dict[str, Any]:
        states: dict[str, Any] = {"random": random.getstate()}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            states["numpy.random"] = _flat(numpy.random.get_state(legacy=False))
        if self._torchs:
            states["torch"] = _HostBytes(torch.get_rng_state())
        return states

    def changed(self) -> list[str]:
        """Return the names of those that are different now."""
        now = self._now()
        return [name for name, state in now.items() if self._states.get(name, state) != state]
