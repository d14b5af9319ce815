"""Private names of transformers, Accelerate, Lightning and torch that the integrations use, once each.

Seen in Lightning 2.6.6, Accelerate 1.15, transformers 5.23 and torch 2.13. What happens where one is missing
stands with each.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch


# --- Lightning ---


def files_by_hook(module: Any) -> bool:
    """Return whether Lightning files what a LightningModule logs by the hook that it calls.

    Where the name that `logging_from` sets is missing, nothing is captured, for the reason that this is so.
    """
    return hasattr(module, "_current_fx_name")


@contextmanager
def logging_from(module: Any, hook: str) -> Iterator[None]:
    """Let Lightning keep what a LightningModule logs in the body as of a hook.

    A hook that was replayed is called by nobody.
    """
    before, module._current_fx_name = module._current_fx_name, hook
    try:
        yield
    finally:
        module._current_fx_name = before


def result_of(module: Any, hook: str, name: str) -> Any:
    """Return where Lightning keeps what a LightningModule has logged in a hook; None where it does not say."""
    results = getattr(module.trainer, "_results", None)
    return None if results is None else results.get(f"{hook}.{name}")


def log_again(
    module: Any, hook: str, name: str, value: torch.Tensor, size: Any, kept: Any
) -> bool:
    """Log the next value of what was logged before, without what `log` finds out anew each time.

    Its checks take the host longer than a replay. Where a name is missing, `log` is to be called.

    Args:
        module: the LightningModule.
        hook: within which it logs.
        name: that it logs.
        value: one number.
        size: of the batch, None if Lightning is to find out.
        kept: of `result_of`, after the call before.

    Returns:
        whether it was done: not if anything is otherwise than it was then.
    """
    results: Any = getattr(module.trainer, "_results", None)
    connector: Any = getattr(module.trainer, "_logger_connector", None)
    size_of = getattr(results, "_extract_batch_size", None)
    if size_of is None or not hasattr(connector, "_current_fx"):
        return False
    if results.get(f"{hook}.{name}") is not kept or not kept.is_tensor:
        return False
    if results.dataloader_idx is not None or kept.value.device != value.device:
        return False
    if connector.should_reset_tensors(hook):
        results.reset(metrics=False, fx=hook)
    kept.forward(value.squeeze(), size_of(kept, size, kept.meta))
    kept.has_reset = False
    connector._current_fx = hook
    return True


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
