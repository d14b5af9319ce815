"""One training step of Lightning's automatic optimization as one function, which can be captured.

It does what `_AutomaticOptimization.run` does on the device, in the same order: `training_step`,
`zero_grad`, the backward pass, clipping and the update. Hooks that the module or a callback overrides are
called where Lightning calls them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.graphs.capture_report import CaptureReport
    from gapless.integrations.lightning_logs import LoggedCalls


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What a step reads of its trainer.

    Attributes:
        accumulate: batches that share an update.
        clip_value: as of `Trainer(gradient_clip_val=)`.
        clip_algorithm: as of `Trainer(gradient_clip_algorithm=)`.
        result_of: Lightning's reader of what `training_step` returned.
        hooks: by name of a hook, the functions to call there.
    """

    result_of: Any
    accumulate: int
    clip_value: float | None
    clip_algorithm: Any
    hooks: dict[str, list[Any]]


class LightningStep:
    """Does one step of a LightningModule; takes a batch as `training_step` does.

    Args:
        module: the LightningModule.
        optimizer: its optimizer.
        precision: the plugin of the trainer.
        settings: of the trainer.
        logs: notes what the step logs.
        updates: where updates are counted.

    Attributes:
        rest: arguments of `training_step` after its batch, which do not matter.
        captured: the step as it is called.
    """

    def __init__(
        self,
        module: Any,
        optimizer: torch.optim.Optimizer,
        *,
        precision: Any,
        settings: StepSettings,
        logs: LoggedCalls,
        updates: CaptureReport,
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._precision = precision
        self._settings = settings
        self._logs = logs
        self._updates = updates
        self._scaler = getattr(precision, "scaler", None)
        self.rest: Sequence[Any] = ()
        self.captured: Any = None
        self._is_given_up = False
        # What is named in warnings.
        self.__qualname__ = f"{type(module).__name__}.training_step"

    def is_given_up(self) -> bool:
        """Return whether it is not to be captured as a whole any more; its graphs are gone then.

        Sync: Does not block the host.
        """
        report = self.captured.report
        if not self._is_given_up and report.refusals:
            is_too_rare = report.forbids_all and 2 * report.num_replays < report.num_steps
            self._is_given_up = is_too_rare or self.captured.is_refused
            if self._is_given_up:
                reasons = list(report.refusals)
                self.captured.clear()
                report.refusals[:] = reasons
        return self._is_given_up

    def count_update(self, *, is_replay: bool) -> None:
        """Count an update in the report of the optimizer."""
        if is_replay:
            self._updates.num_replays += 1
        else:
            self._updates.num_eager += 1

    def __call__(self, batch: Any, *, is_first: bool, updates: bool) -> Any:
        """Do the step.

        Args:
            batch: on the device.
            is_first: whether gradients are let go of.
            updates: whether the weights are updated.

        Returns:
            the loss, the other entries of what `training_step` returned, and what was logged.
        """
        logs, module = self._logs, self._module
        logs.begin()
        with torch.enable_grad():
            with self._precision.train_step_context():
                returned = module.training_step(batch, *self.rest)
            result = self._settings.result_of(returned, self._settings.accumulate)
            if is_first:
                self._hook("on_before_zero_grad", self._optimizer)
                module.optimizer_zero_grad(0, 0, self._optimizer)
            if result.closure_loss is not None:
                self._backward(result.closure_loss)
        if updates:
            self._update(has_loss=result.closure_loss is not None)
        return result.loss, result.extra, *logs.end()

    def _hook(self, name: str, *args: Any) -> None:
        functions = self._settings.hooks.get(name)
        if not functions:
            return
        with self._logs.within(name):
            for function in functions:
                function(*args)

    def _backward(self, loss: torch.Tensor) -> None:
        # The order of `Strategy.backward` and of the plugins of precision.
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        self._hook("on_before_backward", loss)
        self._module.backward(loss)
        self._hook("on_after_backward")

    def _update(self, *, has_loss: bool) -> None:
        if self._scaler is None:
            self._before_update()
            self._optimizer.step()
            return
        if has_loss and not getattr(self._optimizer, "_step_supports_amp_scaling", False):
            self._scaler.unscale_(self._optimizer)
        self._before_update()
        if has_loss:
            self._scaler.step(self._optimizer)
            self._scaler.update()

    def _before_update(self) -> None:
        self._hook("on_before_optimizer_step", self._optimizer)
        settings = self._settings
        clip = self._settings.hooks.get("configure_gradient_clipping")
        if clip:
            with self._logs.within("configure_gradient_clipping"):
                clip[0](
                    self._optimizer,
                    gradient_clip_val=settings.clip_value,
                    gradient_clip_algorithm=settings.clip_algorithm,
                )
        elif settings.clip_value is not None and settings.clip_value > 0:
            self._clip(settings.clip_value, settings.clip_algorithm)

    def _clip(self, value: float, algorithm: Any) -> None:
        # As the plugins' `main_params`, which would be guarded with all that is in the groups.
        weights = [one for group in self._optimizer.param_groups for one in group["params"]]
        if algorithm is not None and str(getattr(algorithm, "value", algorithm)) == "value":
            torch.nn.utils.clip_grad_value_(weights, clip_value=value)
        else:
            torch.nn.utils.clip_grad_norm_(weights, value)
