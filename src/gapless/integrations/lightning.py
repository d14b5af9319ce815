"""Run the steps of Lightning's automatic optimization as CUDA graphs.

    from gapless.integrations.lightning import GaplessCallback

    trainer = L.Trainer(callbacks=[GaplessCallback()], ...)
    trainer.fit(module, loader)

The epoch loop is Lightning's, which asks the loop of automatic optimization for a step. For the time of a fit its
`run` calls one captured function (`gapless.integrations.lightning_step`) and counts. Steps that are not captured
are run as Lightning runs them. The strategy's `batch_to_device` copies batches without a wait.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.device.find import find_device
from gapless.errors import CaptureWarning, DeviceError
from gapless.graphs.capture import capture
from gapless.graphs.capture_report import CaptureReport, summed
from gapless.graphs.in_place.captor import captor_of, left_out, set_captor
from gapless.graphs.in_place.capture_in_place import release
from gapless.graphs.in_place.first_calls import FIRST_CALLS
from gapless.graphs.refusal import Refusal
from gapless.graphs.switch import is_switched_off
from gapless.integrations.announcement import announce
from gapless.integrations.framework_private import logging_from
from gapless.integrations.lightning_logs import LateLogs
from gapless.integrations.lightning_step import (
    LightningStep,
    framework_of,
    objection_to_fit,
    objection_to_step,
    overrides,
)
from gapless.pipeline.batch_mover import BatchMover
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.transfer import shared_lane
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from gapless.device.base import Device


_FRAMEWORKS = ("lightning.pytorch", "pytorch_lightning")

_DOES = (
    "training_step, zero_grad, backward, clipping and the optimizer's step as one CUDA graph for each "
    "kind of batch, with the same bits",
    "self.log in them: the same values at the same steps, made after each step",
)
_DOES_NOT = (
    "steps that read batch_idx, print, count or read values: their modules and their update are graphs "
    "each, and a CaptureWarning says why",
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
    cannot be captured as a whole runs as Lightning runs it, with the module's children and its optimizer
    captured in place.

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
        self._fit: _Fit | None = None
        self._kept = FitReport(None)

    @property
    def report(self) -> CaptureReport:
        """What was captured of the last module, what was not and why."""
        return self._kept.report

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the place of the loop's own step."""
        self._end(has_failed=True)
        self._kept = FitReport.of(pl_module)
        device, refusal = self._device_of(trainer, pl_module)
        if device is not None:
            self._fit = _Fit(trainer, pl_module, device, self._kept)
            self._fit.attach()
        elif refusal is not None:
            self._kept.own.refuse(refusal)
            if refusal.kind == "framework":
                _warn(pl_module, f"runs as written: {refusal.text}")
        if not self._quiet and trainer.is_global_zero:
            self._quiet = True
            none = () if refusal is None else (f"anything in this fit: {refusal.text}",)
            announce("Lightning's Trainer", does=() if none else _DOES, does_not=none or _DOES_NOT)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        """Send on the newest numbers for the progress bar."""
        if self._fit is None:
            self._kept.own.num_eager += 1
        else:
            self._fit.logs.show()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Show the progress bar the numbers of the last batch."""
        if self._fit is not None:
            self._fit.logs.show_all(of_epoch=True)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the loop its own step back."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the loop its own step back."""
        self._end(has_failed=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the loop its own step back."""
        self._end(has_failed=True)

    def _device_of(self, trainer: Any, module: Any) -> tuple[Device | None, Refusal | None]:
        """Return where a trainer trains, or why nothing is captured there."""
        if is_switched_off():
            text = "GAPLESS_CAPTURE=off in the environment: everything runs as written"
            return None, Refusal("off", text)
        here = trainer.strategy.root_device
        try:
            device = find_device(here if self._device == "auto" else self._device)
        except DeviceError as error:
            return None, Refusal("framework", str(error))
        if not device.is_accelerator:
            return None, Refusal("cpu", "a CPU runs its work itself, there is nothing to launch")
        reason = objection_to_fit(trainer, module, framework_of(trainer))
        if device.torch_device != here:
            reason = (
                f"the trainer trains on {here}, and the callback was given {device.torch_device}"
            )
        return (device, None) if reason is None else (None, Refusal("framework", reason))

    def _end(self, *, has_failed: bool = False) -> None:
        fit, self._fit = self._fit, None
        if fit is not None:
            fit.detach(has_failed=has_failed)


class _Fit:
    """Stands in the loop and the strategy of a trainer for one fit.

    Args:
        trainer: that fits.
        module: that it trains.
        device: where it does.
        report: says what became of the steps.
    """

    def __init__(self, trainer: Any, module: Any, device: Device, report: FitReport) -> None:
        self._trainer, self._module, self._device = trainer, module, device
        self._report = report
        self._framework = framework_of(trainer)
        self.logs = LateLogs(trainer, module, device, self._framework.LightningModule.log)
        self._loop = trainer.fit_loop.epoch_loop.automatic_optimization
        self._batches = trainer.fit_loop.epoch_loop.batch_progress
        self._patches = Patches()
        self._mover = BatchMover(
            device,
            host_waits=HostWaits(device),
            lanes=[shared_lane(device)],
            # Copies of pinned memory that a loader fills again are Lightning's hazard as well.
            has_fresh_memory=True,
        )
        # By what a step reads of its trainer; None where it is not captured as a whole. Beside it the
        # callbacks, so that no other one gets the number of one that has gone.
        self._steps: dict[Hashable, tuple[LightningStep | None, list[Any]]] = {}
        self._parts: list[Any] = []

    def attach(self) -> None:
        """Let the loop's steps come here."""
        strategy = self._trainer.strategy
        self._own_batch_to_device = strategy.batch_to_device
        self._own_run = self._loop.run
        self._patches.put(self._loop, "run", self._run)
        # One that moves batches itself decides how.
        hook = "transfer_batch_to_device"
        data, framework = getattr(self._trainer, "datamodule", None), self._framework
        if not overrides(self._module, hook, framework.LightningModule) and (
            data is None or not overrides(data, hook, framework.LightningDataModule)
        ):
            self._patches.put(strategy, "batch_to_device", self._batch_to_device)

    def detach(self, *, has_failed: bool) -> None:
        """Let the loop's steps be its own.

        Args:
            has_failed: whether the fit has raised, so that no number is waited for.

        Sync: Blocks the host, unless it has failed, until the numbers of the last step are there.
        """
        self._patches.take_out()
        self._mover.close()
        for part in self._parts:
            captor = captor_of(part)
            if captor is not None:
                self._report.parts.append(captor.report)
                release(part)
        self._parts = []
        if not has_failed:
            self.logs.show_all()

    # --- what the loops ask for, in this order ---

    def _batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        if device is None and _is_plain(batch):
            batch = self._mover.hand_out(self._mover.stage(batch))
        # It leaves what is on the device already as it is, and calls the hooks.
        return self._own_batch_to_device(batch, device, dataloader_idx)

    def _run(self, optimizer: Any, batch_idx: int, kwargs: Any) -> Any:
        """Do `_AutomaticOptimization.run`, of whose closure and hooks only the counts are left."""
        batches, accumulate = self._batches, self._trainer.accumulate_grad_batches
        num_ready = batches.current.ready
        updates = (
            num_ready % accumulate == 0
            or num_ready == self._trainer.num_training_batches
            or batches.is_last_batch
        )
        step = self._step_of(optimizer)
        if step is None:
            # The progress bar does not wait.
            with self.logs.late():
                return self._own_run(optimizer, batch_idx, kwargs)
        is_first, counts = batch_idx % accumulate == 0, self._loop.optim_progress.optimizer
        if updates:
            counts.step.increment_ready()
        with torch.enable_grad(), logging_from(self._module, "training_step"):
            found = self._run_captured(step, kwargs.values(), is_first=is_first, updates=updates)
        if is_first:
            counts.zero_grad.increment_ready()
            counts.zero_grad.increment_started()
            counts.zero_grad.increment_completed()
        if updates:
            counts.step.increment_completed()
        if accumulate == 1 and isinstance(found, torch.Tensor):
            return {"loss": found}
        read = partial(self._loop.output_result_cls.from_training_step_output, found, accumulate)
        closure = self._framework.loops.optimization.automatic.Closure(read)
        # It warns of None.
        return {} if closure() is None else closure.consume_result().asdict()

    def _run_captured(self, step: LightningStep, args: Any, **options: bool) -> Any:
        batch, *step.rest = args
        with self.logs.noted():
            found, numbers, values = step.captured(batch, **options)
        self.logs.make(numbers, values)
        return found

    # --- which step ---

    def _step_of(self, optimizer: Any) -> LightningStep | None:
        """Return the step as the trainer has it now, None if it is not captured as a whole."""
        trainer = self._trainer
        clip = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        callbacks = tuple(map(id, trainer.callbacks))
        key = (trainer.accumulate_grad_batches, clip, id(optimizer), callbacks)
        if key not in self._steps:
            self._steps[key] = self._new_step(optimizer), list(trainer.callbacks)
        step, _ = self._steps[key]
        if step is not None and not step.is_given_up():
            return step
        self._capture_parts(optimizer)
        return None

    def _new_step(self, optimizer: Any) -> LightningStep | None:
        trainer, module = self._trainer, self._module
        reason = objection_to_step(trainer, module, optimizer, self._framework)
        if reason is not None:
            _warn(module, f"is not captured as a whole: {reason}")
            self._report.own.refuse(Refusal("framework", reason, is_of_call=True))
            return None
        step = LightningStep(trainer, module, optimizer, self._framework, self.logs)
        step.captured = capture(step, device=self._device)
        self._report.parts.append(step.captured.report)
        return step

    def _capture_parts(self, optimizer: Any) -> None:
        """Capture the module's children and its optimizer in place, where Lightning's own step runs."""
        if self._parts:
            return
        self._parts = [
            part
            for part in (optimizer, *_children_with_weights(self._module))
            if captor_of(part) is None
        ]
        for part in self._parts:
            capture(part, device=self._device)
            if isinstance(part, nn.Module):
                FIRST_CALLS.wait_no_more(captor_of(part))


def _children_with_weights(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _children_with_weights(child)
        elif next(child.parameters(), None) is not None:
            yield child


_PLAIN = (str, bytes, int, float, bool, type(None))


def _is_plain(batch: Any) -> bool:
    """Return whether Lightning would move a batch as `gapless.prefetch` does."""
    kind = type(batch)
    if kind is torch.Tensor or kind in _PLAIN:
        return True
    if kind is dict:
        return all(map(_is_plain, batch.values()))
    return kind in (list, tuple) and all(map(_is_plain, batch))


def _warn(module: Any, text: str) -> None:
    name = f"{type(module).__name__}.training_step"
    warnings.warn(CaptureWarning(f"{name} {text}"), stacklevel=2)


class FitReport:
    """What became of the steps of a module in all its fits, for `gapless.capture_report(module)`.

    It stands where a captor stands that captures an object in place, and captures nothing itself.

    Args:
        target: the module.

    Attributes:
        target: as given.
        settings: those of no captor: `gapless.capture` of the object takes its place.
        parts: reports of whatever ran for it; the first has the reasons of the trainer's.
    """

    def __init__(self, target: Any) -> None:
        self.target = target
        self.settings: Any = None
        self.parts: list[CaptureReport] = [CaptureReport()]

    @classmethod
    def of(cls, target: Any) -> FitReport:
        """Return that of a module, made at its first fit.

        A module that the user has captured in place has a report already, which stays there.
        """
        known: Any = captor_of(target)
        if isinstance(known, cls):
            return known
        found = cls(target)
        if known is None:
            set_captor(target, found)
        return found

    @property
    def own(self) -> CaptureReport:
        """What no captured function has written."""
        return self.parts[0]

    @property
    def report(self) -> CaptureReport:
        """One report that says what all say."""
        return summed(self.parts)

    def attach(self) -> None:
        """Do nothing: calls of the object go where they went."""

    def detach(self) -> None:
        """Do nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave reports out of copies and files of the object."""
        return left_out()
