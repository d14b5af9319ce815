"""One fit of Lightning: each step is a replay, or Lightning's own with captured parts, or as written.

What `_AutomaticOptimization.run` does for a batch is one captured step here
(`gapless.integrations.lightning_step`). Everything before and after it, such as hooks of batches and
epochs, loggers, checkpoints and validation, is Lightning's.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from gapless.errors import CaptureWarning
from gapless.graphs.capture import capture
from gapless.graphs.capture_settings import is_switched_off
from gapless.graphs.refusal import Refusal
from gapless.integrations.lightning_logs import LoggedCalls
from gapless.integrations.lightning_parts import StepParts
from gapless.integrations.lightning_report import FitReports
from gapless.integrations.lightning_rules import (
    framework_of,
    functions_of_hooks,
    objection_to_fit,
    objection_to_step,
)
from gapless.integrations.lightning_step import LightningStep, StepSettings
from gapless.integrations.lightning_waits import BarNumbers, BatchesWithoutWaits


if TYPE_CHECKING:
    from collections.abc import Hashable

    from gapless.device.base import Device
    from gapless.graphs.capture_report import CaptureReport


# As Lightning says it.
_RETURNED_NONE = "`training_step` returned `None`. If this was on purpose, ignore this warning..."


class LightningFit:
    """Does the steps of one fit.

    Args:
        trainer: that fits.
        module: that it trains.
        device: where it does.
    """

    def __init__(self, trainer: Any, module: Any, device: Device) -> None:
        self._trainer, self._module = trainer, module
        self._device = device
        self._epoch_loop = trainer.fit_loop.epoch_loop
        self._loop = self._epoch_loop.automatic_optimization
        # A function `training_step`, and the names of what it is given.
        self._known_step: Any = None
        self._names: tuple[str, ...] = ()
        self._framework = framework_of(trainer)
        self._logs = LoggedCalls(module, self._framework.LightningModule.log)
        self._reports = FitReports.of(module)
        self._of_optimizers = {id(one): FitReports.of(one) for one in trainer.optimizers}
        self._parts = StepParts(module, self._reports, device)
        self._without_waits: tuple[BarNumbers | BatchesWithoutWaits, ...] = ()
        if device.is_accelerator:
            self._without_waits = (
                BarNumbers(trainer, self._framework, device, self._logs.make_now),
                BatchesWithoutWaits(trainer, module, self._framework, device),
            )
        self._has_begun = bool(self._epoch_loop._results)
        # By what a step reads of its trainer; None where it is not captured as a whole.
        self._steps: dict[Hashable, LightningStep | None] = {}
        # So that no other callback gets the number of one that has gone.
        self._held: list[Any] = []

    @property
    def report(self) -> CaptureReport:
        """What is captured of the module, what is not and why."""
        return self._reports.report

    @property
    def is_attached(self) -> bool:
        """Whether the loop's steps come here."""
        return "run" in vars(self._loop)

    def count_as_written(self) -> None:
        """Count a step that is Lightning's own."""
        self._reports.own.num_eager += 1

    def attach(self) -> str | None:
        """Let the loop's steps come here; return why not, if they do not."""
        refusal = refusal_of_machine(self._device)
        if refusal is None:
            reason = objection_to_fit(self._trainer, self._module, self._framework)
            if reason is None:
                vars(self._loop)["run"] = self._run
                vars(self._epoch_loop)["_build_kwargs"] = self._build_kwargs
                for one in self._without_waits:
                    one.attach()
                return None
            refusal = Refusal("framework", reason)
            self._warn(f"runs as written: {reason}")
        for reports in (self._reports, *self._of_optimizers.values()):
            reports.own.refuse(refusal)
        return refusal.text

    def detach(self, *, has_failed: bool = False) -> None:
        """Let the loop's steps be its own.

        Args:
            has_failed: whether the fit has raised.

        Sync: Blocks the host, unless it has failed, until the numbers of the last step are there.
        """
        vars(self._loop).pop("run", None)
        vars(self._epoch_loop).pop("_build_kwargs", None)
        for one in self._without_waits:
            one.detach(has_failed=has_failed)
        self._parts.release()

    def _build_kwargs(self, kwargs: Any, batch: Any, batch_idx: int) -> Any:
        """Do what `_TrainingEpochLoop._build_kwargs` does, which looks at the signature in every step."""
        step = getattr(self._module.training_step, "__func__", None)
        if step is None or step is not self._known_step:
            loop = self._epoch_loop
            kwargs = type(loop)._build_kwargs(loop, kwargs, batch, batch_idx)
            self._known_step, self._names = step, tuple(kwargs)
            return kwargs
        kwargs.update(zip(self._names, (batch, batch_idx), strict=False))
        return kwargs

    # --- steps ---

    def _run(self, optimizer: Any, batch_idx: int, kwargs: Any) -> dict[str, Any]:
        """Do what `_AutomaticOptimization.run` does."""
        loop = self._loop
        # Averaging of weights looks at batches without training on them. And the first step of all makes
        # the table of results: as long as it is empty, Lightning does not ask for what was logged.
        if loop._skip_backward or not self._has_begun:
            self._has_begun = True
            self.count_as_written()
            self._of_optimizer(optimizer).own.num_eager += 1
            return self._run_as_written(optimizer, batch_idx, kwargs)
        step = self._step_of(optimizer)
        if step is None or step.is_given_up():
            found: dict[str, Any] = self._parts.run(
                lambda: self._run_as_written(optimizer, batch_idx, kwargs),
                optimizer,
                self._of_optimizer(optimizer),
            )
            return found
        accumulate = self._trainer.accumulate_grad_batches
        return self._run_captured(
            step,
            kwargs,
            is_first=batch_idx % accumulate == 0,
            updates=not self._trainer.fit_loop._should_accumulate(),
        )

    def _run_as_written(self, optimizer: Any, batch_idx: int, kwargs: Any) -> dict[str, Any]:
        found: dict[str, Any] = type(self._loop).run(self._loop, optimizer, batch_idx, kwargs)
        return found

    def _run_captured(
        self, step: LightningStep, kwargs: Any, *, is_first: bool, updates: bool
    ) -> dict[str, Any]:
        counts = self._loop.optim_progress.optimizer
        batch, *step.rest = kwargs.values()
        num_replays = step.captured.report.num_replays
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
            step.count_update(is_replay=step.captured.report.num_replays > num_replays)
        if loss is None:
            closure = self._framework.loops.optimization.automatic.Closure
            closure.warning_cache.warn(_RETURNED_NONE)
            return {}
        return {"loss": loss, **extra}

    def _step_of(self, optimizer: Any) -> LightningStep | None:
        """Return the step as the trainer has it now, None if it is not captured as a whole."""
        trainer = self._trainer
        clip = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        callbacks = tuple(map(id, trainer.callbacks))
        key = (trainer.accumulate_grad_batches, clip, id(optimizer), callbacks)
        if key not in self._steps:
            self._held.append(list(trainer.callbacks))
            self._steps[key] = self._new_step(optimizer)
        return self._steps[key]

    def _new_step(self, optimizer: Any) -> LightningStep | None:
        trainer = self._trainer
        reason = objection_to_step(self._module, optimizer, self._framework)
        if reason is not None:
            self._warn(f"is not captured as a whole: {reason}")
            self._reports.own.refuse(Refusal("framework", reason, is_of_call=True))
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
            updates=self._of_optimizer(optimizer).own,
        )
        step.captured = capture(step, device=self._device)
        self._reports.parts.append(step.captured.report)
        return step

    def _of_optimizer(self, optimizer: Any) -> FitReports:
        known = self._of_optimizers
        if id(optimizer) not in known:
            known[id(optimizer)] = FitReports.of(optimizer)
        return known[id(optimizer)]

    def _warn(self, text: str) -> None:
        name = f"{type(self._module).__name__}.training_step"
        warnings.warn(CaptureWarning(f"{name} {text}"), stacklevel=2)


def refusal_of_machine(device: Device) -> Refusal | None:
    """Return why nothing is captured here, whatever the fit; None if something may be."""
    if is_switched_off():
        return Refusal("off", "GAPLESS_CAPTURE=off in the environment: everything runs as written")
    if not device.is_accelerator:
        return Refusal("cpu", "a CPU runs its work itself, there is nothing to launch")
    return None
