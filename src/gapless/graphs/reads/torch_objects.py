"""What torch's own objects hold that a step's calls of them read: scalers, schedules, optimizers.

Their methods are torch's, which nobody follows. So they are compared by what they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Callable


_PLAIN = (int, float, str, type(None))
_READERS_OF_OPTIMIZERS = ("state_dict", "__getstate__", "__repr__", "__str__")


def reader_of_method(value: Any, name: str) -> Callable[[], Any] | None:
    """Return what reads all that a method of an object depends on, None if others look after it.

    Args:
        value: the object.
        name: of the method.
    """
    if isinstance(value, torch.amp.GradScaler):
        return lambda: _of_scaler(value)
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler) and name != "step":
        names = ("_last_lr",) if name == "get_last_lr" else tuple(vars(value))
        return lambda: _numbers_of(value, names)
    if isinstance(value, torch.optim.Optimizer) and name in _READERS_OF_OPTIMIZERS:
        return lambda: [_numbers_of_group(group) for group in value.param_groups]
    return None


def _of_scaler(scaler: torch.amp.GradScaler) -> Any:
    numbers = {name: value for name, value in vars(scaler).items() if isinstance(value, _PLAIN)}
    # One that is not enabled has none.
    states = getattr(scaler, "_per_optimizer_states", {})
    return numbers, [(key, state["stage"].name) for key, state in states.items()]


def _numbers_of(value: Any, names: tuple[str, ...]) -> Any:
    found = {name: vars(value).get(name) for name in names}
    return {name: _plain(part) for name, part in found.items()}


def _numbers_of_group(group: dict[str, Any]) -> Any:
    found = {key: list(part) if type(part) is tuple else part for key, part in group.items()}
    return {key: _plain(part) for key, part in found.items() if key != "params"}


def _plain(value: Any) -> Any:
    """Return a plain value, or a list of such; None for anything else."""
    if isinstance(value, list):
        return list(value) if all(isinstance(part, _PLAIN) for part in value) else None
    return value if isinstance(value, _PLAIN) else None
