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
    from collections.abc import Callable, Iterator


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
    num_functions = torch._C._len_torch_function_stack()
    num_operators = torch._C._len_torch_dispatch_stack()
    functions = [_pop_function_mode() for _ in range(num_functions)]
    operators = [_pop_dispatch_mode() for _ in range(num_operators)]
    _push(functions, _push_function_mode, all_of_them=False)
    _push(operators, _push_dispatch_mode, all_of_them=False)
    try:
        yield
    finally:
        for _ in range(torch._C._len_torch_function_stack()):
            _pop_function_mode()
        for _ in range(torch._C._len_torch_dispatch_stack()):
            _pop_dispatch_mode()
        _push(functions, _push_function_mode)
        _push(operators, _push_dispatch_mode)


def _push(modes: list[Any], push: Callable[[Any], None], *, all_of_them: bool = True) -> None:
    for mode in reversed(modes):
        if all_of_them or not _watches(mode):
            push(mode)


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
