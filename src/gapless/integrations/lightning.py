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
from gapless.errors import CaptureWarning, DeviceError
from gapless.graphs.capture_report import CaptureReport
from gapless.integrations.announcement import announce
from gapless.integrations.lightning_fit import LightningFit
from gapless.integrations.lightning_rules import objection_to_version


if TYPE_CHECKING:
    import torch

    from gapless.device.base import Device


_FRAMEWORKS = ("lightning.pytorch", "pytorch_lightning")

_DOES = (
    "training_step, zero_grad, backward, clipping and the optimizer's step as one CUDA graph for each "
    "kind of batch, with the same bits",
    "self.log in them: the same values at the same steps, made after each step",
)
_DOES_NOT = (
    "steps that read batch_idx, print, count or read values: their forward pass, backward pass and update "
    "are graphs each, and a CaptureWarning says why",
    "manual optimization, several devices, profilers: as written, and a CaptureWarning says why",
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
    and proof. What it logs by `self.log` is logged after each step as Lightning would have. A step that
    cannot be captured as a whole runs as Lightning runs it, with the modules that it calls and its
    optimizer captured in place.

    `gapless.capture_report(module)` says what was captured, and what was not, and why.
    Nothing of it is in checkpoints.

    Args:
        device: a device or its name; "auto": the one that the trainer trains on.
        quiet: do not print what is done and what is not.
    """

    def __init__(
        self, *, device: str | torch.device | Device = "auto", quiet: bool = False
    ) -> None:
        super().__init__()
        self._device = device
        self._quiet = quiet
        self._fit: LightningFit | None = None
        self._report = CaptureReport()

    @property
    def report(self) -> CaptureReport:
        """What was captured of the last module, what was not and why."""
        return self._report if self._fit is None else self._fit.report

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the place of the loop's own step."""
        self._end()
        device, reason = self._device_of(trainer)
        if device is not None:
            self._fit = LightningFit(trainer, pl_module, device)
            reason = self._fit.attach()
        else:
            warnings.warn(CaptureWarning(f"a fit runs as written: {reason}"), stacklevel=2)
        if not self._quiet and trainer.is_global_zero:
            self._quiet = True
            self._announce(reason)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        """Count a step that ran as written because no step of the fit is captured."""
        if self._fit is not None and not self._fit.is_attached:
            self._fit.count_as_written()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the loop its own step back."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the loop its own step back."""
        self._end(has_failed=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the loop its own step back."""
        self._end()

    def _device_of(self, trainer: Any) -> tuple[Device | None, str | None]:
        """Return where a trainer trains, or why nothing can be captured there."""
        reason = objection_to_version(trainer)
        if reason is not None:
            return None, reason
        here = trainer.strategy.root_device
        try:
            device = find_device(here if self._device == "auto" else self._device)
        except DeviceError as error:
            return None, str(error)
        if device.is_accelerator and device.torch_device != here:
            return (
                None,
                f"the trainer trains on {here}, and the callback was given {device.torch_device}",
            )
        return device, None

    def _announce(self, reason: str | None) -> None:
        if reason is None:
            announce("Lightning's Trainer", does=_DOES, does_not=_DOES_NOT)
        else:
            announce("Lightning's Trainer", does=(), does_not=(f"anything in this fit: {reason}",))

    def _end(self, *, has_failed: bool = False) -> None:
        if self._fit is not None:
            self._fit.detach(has_failed=has_failed)
            self._report = self._fit.report
            self._fit = None
