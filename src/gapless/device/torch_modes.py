"""Modes of torch that see functions or operators, and may change what they do. Those of gapless are left out."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from gapless.device.torch_private import (
    DeviceContext,
    function_mode_at,
    num_function_modes,
    num_operator_modes,
    operator_mode_at,
    pop_function_mode,
    pop_operator_mode,
    push_function_mode,
    push_operator_mode,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def kinds_of_modes() -> tuple[Any, ...]:
    """Return the classes of the modes around, and the device where one chooses it."""
    if not (num_function_modes() or num_operator_modes()):
        return ()
    return tuple(
        [mode.device if isinstance(mode, DeviceContext) else type(mode) for mode in _modes()]
    )


def readers_of_modes() -> list[Callable[[], Any]]:
    """Return functions, not of Python, whose answers are the same as long as the modes around are."""
    return [
        num_function_modes,
        num_operator_modes,
        *[partial(function_mode_at, place) for place in range(num_function_modes())],
        *[partial(operator_mode_at, place) for place in range(num_operator_modes())],
    ]


def watching_modes() -> list[Any]:
    """Return the modes around that see functions or operators; that of a default device does not."""
    return list(filter(_watches, _modes()))


@contextmanager
def outside_watching_modes() -> Iterator[None]:
    """Leave the modes that see functions or operators for the body."""
    functions, operators = _pop_all()
    _push_all(
        [mode for mode in functions if not _watches(mode)],
        [mode for mode in operators if not _watches(mode)],
    )
    try:
        yield
    finally:
        _pop_all()
        _push_all(functions, operators)


def _pop_all() -> tuple[list[Any], list[Any]]:
    """Leave all modes of functions and of operators; return them, the innermost first."""
    functions = [pop_function_mode() for _ in range(num_function_modes())]
    operators = [pop_operator_mode() for _ in range(num_operator_modes())]
    return functions, operators


def _push_all(functions: list[Any], operators: list[Any]) -> None:
    for mode in reversed(functions):
        push_function_mode(mode)
    for mode in reversed(operators):
        push_operator_mode(mode)


def _modes() -> list[Any]:
    functions = map(function_mode_at, range(num_function_modes()))
    operators = map(operator_mode_at, range(num_operator_modes()))
    return [mode for mode in (*functions, *operators) if not _is_own(mode)]


def _watches(mode: Any) -> bool:
    return not (_is_own(mode) or isinstance(mode, DeviceContext))


def _is_own(mode: Any) -> bool:
    # They come and go, and what operations compute is the same.
    return type(mode).__module__.startswith("gapless.")
