"""Run the steps of Lightning's automatic optimization as CUDA graphs.

    from gapless.integrations.lightning import GaplessCallback

    trainer = L.Trainer(callbacks=[GaplessCallback()], ...)
    trainer.fit(module, loader)

The loop is Lightning's. What `_AutomaticOptimization.run` does for a batch is one captured step here
(`gapless.integrations.lightning_step`); everything before and after it, such as hooks of batches and epochs,
loggers, checkpoints and validation, is Lightning's own.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gapless.device.find import find_device
from gapless.errors import CaptureWarning
from gapless.graphs.capture import capture
from gapless.graphs.capture_settings import is_switched_off
from gapless.integrations.announcement import announce
from gapless.integrations.lightning_logs import LoggedCalls
from gapless.integrations.lightning_report import LightningReport
from gapless.integrations.lightning_rules import (
    framework_of,
    functions_of_hooks,
    objection_to_fit,
    objection_to_step,
)
from gapless.integrations.lightning_step import LightningStep, StepSettings


if TYPE_CHECKING:
    from collections.abc import Hashable

    import torch

    from gapless.device.base import Device


_FRAMEWORKS = ("lightning.pytorch", "pytorch_lightning")

_DOES = (
    "training_step, zero_grad, backward, clipping and the optimizer's step as one CUDA graph for each "
    "kind of batch, with the same bits",
    "self.log in them: the same values at the same steps, made after each step",
)
_DOES_NOT = (
    "manual optimization, several devices, and steps that read batch_idx, print, count or read values: "
    "they run as written, and the report and a CaptureWarning say why",
    "validation, testing, prediction, callbacks, loggers and checkpoints: they are Lightning's own",
)


def _callback_class() -> Any:
    """Return the `Callback` of the framework that is loaded, or that is installed; of both if both are."""
    loaded = [name for name in _FRAMEWORKS if name in sys.modules]
    installed = (name for name in _FRAMEWORKS if find_spec(name.partition(".")[0]) is not None)
    found = loaded or [next(installed, _FRAMEWORKS[0])]
    bases = tuple(import_module(name).Callback for name in found)
    return bases[0] if len(bases) == 1 else type("Callback", bases, {})


_Callback: Any = _callback_class()


class GaplessCallback(_Callback):
    """Run the training steps of a Lightning `Trainer` as CUDA graphs, with the same bits or as written.

    A step is `training_step`, `zero_grad`, the backward pass, clipping and the optimizer's step, with the
    hooks between them. It is captured as `gapless.capture` captures a step, with the same warm-up, guards
    and proof. What it logs by `self.log` is logged after each step as Lightning would have.

    Nothing of it is in checkpoints. Give it to one trainer.

    Args:
        device: a device or its name; "auto": the one that the trainer trains on.
        quiet: do not print what is done and what is not.

    Attributes:
        report: what was captured in the last fit, and what was not, and why.
    """

    def __init__(
        self, *, device: str | torch.device | Device = "auto", quiet: bool = False
    ) -> None:
        super().__init__()
        self._device = device
        self._quiet = quiet
        self._fit: _Fit | None = None
        self.report = LightningReport()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the place of the loop's own step."""
        self._end()
        self.report = LightningReport()
        device = trainer.strategy.root_device if self._device == "auto" else self._device
        self._fit = _Fit(trainer, pl_module, find_device(device), self.report)
        reason = self._fit.attach()
        if not self._quiet and trainer.is_global_zero:
            self._announce(reason)

    def _announce(self, reason: str | None) -> None:
        self._quiet = True
        if reason is None:
            announce("Lightning's Trainer", does=_DOES, does_not=_DOES_NOT)
        else:
            announce("Lightning's Trainer", does=(), does_not=(f"anything in this fit: {reason}",))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the loop its own step back."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the loop its own step back."""
        self._end()

    def _end(self) -> None:
        if self._fit is not None:
            self._fit.detach()
            self._fit = None


class _Fit:
    """Does the steps of one fit.

    Args:
        trainer: that fits.
        module: that it trains.
        device: where it does.
        report: to write to.
    """

    def __init__(self, trainer: Any, module: Any, device: Device, report: LightningReport) -> None:
        self._trainer, self._module = trainer, module
        self._device = device
        self._report = report
        self._loop = trainer.fit_loop.epoch_loop.automatic_optimization
        self._framework = framework_of(trainer)
        self._logs = LoggedCalls(module, self._framework.LightningModule.log)
        # By what a step reads of its trainer; None where it runs as written.
        self._steps: dict[Hashable, LightningStep | None] = {}

    def attach(self) -> str | None:
        """Let the loop's steps come here; return why not, if they do not."""
        trainer = self._trainer
        reason = reason_of_machine(self._device)
        if reason is None:
            reason = objection_to_fit(trainer, self._module, self._framework)
            if reason is not None:
                self._warn(reason)
        if reason is None:
            vars(self._loop)["run"] = self._run
        else:
            self._report.refuse(reason)
        return reason

    def detach(self) -> None:
        """Let the loop's steps be its own."""
        vars(self._loop).pop("run", None)

    # --- steps ---

    def _run(self, optimizer: Any, batch_idx: int, kwargs: Any) -> dict[str, Any]:
        """Do what `_AutomaticOptimization.run` does."""
        loop = self._loop
        # The callback of weight averaging says so, where it looks at batches without training on them.
        step = None if loop._skip_backward else self._step_of(optimizer)
        if step is None or step.is_refused:
            self._report.num_as_written += 1
            found: dict[str, Any] = type(loop).run(loop, optimizer, batch_idx, kwargs)
            return found
        accumulate = self._trainer.accumulate_grad_batches
        return self._run_captured(
            step,
            kwargs,
            is_first=batch_idx % accumulate == 0,
            updates=not self._trainer.fit_loop._should_accumulate(),
        )

    def _run_captured(
        self, step: LightningStep, kwargs: Any, *, is_first: bool, updates: bool
    ) -> dict[str, Any]:
        counts = self._loop.optim_progress.optimizer
        batch, *rest = kwargs.values()
        step.rest = rest
        if updates:
            counts.step.increment_ready()
        with self._logs.noted():
            loss, extra, numbers, values = step.captured(batch, is_first=is_first, updates=updates)
        if is_first:
            counts.zero_grad.increment_ready()
            counts.zero_grad.increment_started()
            counts.zero_grad.increment_completed()
        self._logs.make(numbers, values)
        if updates:
            counts.step.increment_completed()
        return {} if loss is None else {"loss": loss, **extra}

    def _step_of(self, optimizer: Any) -> LightningStep | None:
        """Return the step as the trainer has it now, None if it runs as written."""
        trainer = self._trainer
        callbacks = tuple(map(id, trainer.callbacks))
        clip = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        key = (trainer.accumulate_grad_batches, clip, id(optimizer), callbacks)
        if key not in self._steps:
            self._steps[key] = self._new_step(optimizer)
        return self._steps[key]

    def _new_step(self, optimizer: Any) -> LightningStep | None:
        trainer = self._trainer
        reason = objection_to_step(self._module, optimizer, self._framework)
        if reason is not None:
            self._warn(reason)
            self._report.refuse(reason)
            return None
        settings = StepSettings(
            result_of=self._loop.output_result_cls.from_training_step_output,
            accumulate=trainer.accumulate_grad_batches,
            clip_value=trainer.gradient_clip_val,
            clip_algorithm=trainer.gradient_clip_algorithm,
            hooks=functions_of_hooks(trainer, self._module, self._framework),
        )
        step = LightningStep(
            self._module,
            optimizer,
            precision=trainer.precision_plugin,
            settings=settings,
            logs=self._logs,
        )
        step.captured = capture(step, device=self._device)
        self._report.steps.append(step.captured.report)
        return step

    def _warn(self, reason: str) -> None:
        text = f"{type(self._module).__name__} is trained as written: {reason}"
        warnings.warn(CaptureWarning(text), stacklevel=2)


def reason_of_machine(device: Device) -> str | None:
    """Return why nothing is captured here, whatever the fit; None if something may be."""
    if is_switched_off():
        return "GAPLESS_CAPTURE=off in the environment"
    if not device.is_accelerator:
        return "a CPU runs its work itself, there is nothing to launch"
    return None
