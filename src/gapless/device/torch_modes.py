"""Modes of torch that see functions or operators, and may change what they do. Those of gapless are left out."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import _pop_mode as _pop_function_mode, _push_mode as _push_function_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import (
    _pop_mode as _pop_dispatch_mode,
    _push_mode as _push_dispatch_mode,
)


if TYPE_CHECKING:
    from collections.abc import Iterator


def kinds_of_modes() -> tuple[Any, ...]:
    """Return the classes of the modes around, and the device where one chooses it."""
    if not (torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()):
        return ()
    return tuple(
        [mode.device if isinstance(mode, DeviceContext) else type(mode) for mode in _modes()]
    )


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
    functions = [_pop_function_mode() for _ in range(torch._C._len_torch_function_stack())]
    operators = [_pop_dispatch_mode() for _ in range(torch._C._len_torch_dispatch_stack())]
    return functions, operators


def _push_all(functions: list[Any], operators: list[Any]) -> None:
    for mode in reversed(functions):
        _push_function_mode(mode)
    for mode in reversed(operators):
        _push_dispatch_mode(mode)


def _modes() -> list[Any]:
    of_c = torch._C
    functions = map(of_c._get_function_stack_at, range(of_c._len_torch_function_stack()))
    operators = map(of_c._get_dispatch_stack_at, range(of_c._len_torch_dispatch_stack()))
    return [mode for mode in (*functions, *operators) if not _is_own(mode)]


def _watches(mode: Any) -> bool:
    return not (_is_own(mode) or isinstance(mode, DeviceContext))


def _is_own(mode: Any) -> bool:
    # They come and go, and what operations compute is the same.
    return type(mode).__module__.startswith("gapless.")
