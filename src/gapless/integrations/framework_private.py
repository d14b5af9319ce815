"""Private names of transformers, Accelerate, Lightning and torch that the integrations use, once each.

Seen in Lightning 2.6.6, Accelerate 1.15 and transformers 5.17, torch 2.11, 2.13 and 2.14.1. What happens
where one is missing stands with each.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


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


# --- Accelerate ---


def prepared_by(accelerator: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the models and optimizers that an Accelerator has prepared.

    It tells nobody. Where a name is missing, none are returned, and nothing is captured.
    """
    return getattr(accelerator, "_models", ()), getattr(accelerator, "_optimizers", ())


def let_scaler_step(prepared: Any) -> None:
    """Let the scaler of a prepared optimizer call the step that the optimizer within has now.

    A scaler's `step` puts back the one that was found when the optimizer was prepared, and with it ends the
    capture. Where the names are missing, it has no effect.
    """
    step = prepared.optimizer.step
    prepared._optimizer_original_step_method = step
    prepared._optimizer_patched_step_method = _noting_calls(prepared, step)


def _noting_calls(prepared: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands for `step` while a scaler calls it, as Accelerate's own function does.

    Captured steps pass over functions of this package, but over those of no other.
    """

    @wraps(step)
    def noting(*args: Any, **kwargs: Any) -> Any:
        prepared._accelerate_step_called = True
        return step(*args, **kwargs)

    return noting


# --- transformers ---

# Functions of `masking_utils` that ask whether a mask may be left out. One that is missing is not answered,
# and reads the mask from the device.
ASK_ABOUT_MASKS = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")


def knows_last_log(trainer: Any) -> bool:
    """Return whether a Trainer knows when it has logged; where it does not, its losses are read as before."""
    return hasattr(trainer, "_globalstep_last_logged")


def steps_since_log(trainer: Any) -> int:
    """Return how many steps a Trainer has made since it logged, by which it divides the sum of losses."""
    num_steps: int = trainer.state.global_step - trainer._globalstep_last_logged
    return num_steps


# --- torch ---


def steps_by_scaler(optimizer: Any) -> bool:
    """Return whether an optimizer unscales gradients itself; where torch does not say so, it does not."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))
