"""Private names of transformers, Accelerate, Lightning and torch that the integrations use, once each.

Seen in Lightning 2.6.6, Accelerate 1.15 and transformers 5.17, torch 2.11, 2.13 and 2.14.1. What happens
where one is missing stands with each.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Iterator


# --- Lightning ---


@contextmanager
def logging_from(module: Any, hook: str) -> Iterator[None]:
    """Let Lightning keep what a LightningModule logs in the body as of a hook.

    It files values by the hook that it calls, and a hook that was replayed is called by nobody. Where the
    name is missing, they are filed with those of `training_step`, whose defaults are the same.
    """
    before = getattr(module, "_current_fx_name", None)
    if before is None:
        yield
        return
    module._current_fx_name = hook
    try:
        yield
    finally:
        module._current_fx_name = before


# --- torch ---


def steps_by_scaler(optimizer: Any) -> bool:
    """Return whether an optimizer unscales gradients itself; where torch does not say so, it does not."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))
