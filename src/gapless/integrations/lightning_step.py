"""One training step of Lightning's automatic optimization as one function, and which can be captured.

It does what Lightning's loop, strategy and plugin of precision do on the device, in the same order:
`training_step`, `zero_grad`, the backward pass, clipping and the update. Hooks that the module or a callback
overrides are called where Lightning calls them.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.updates.update_rules import CALL_A_CLOSURE_ONCE, has_hooks, name_of
from gapless.integrations.framework_private import files_by_hook, steps_by_scaler


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from gapless.integrations.lightning_logs import LateLogs


# Called between the beginning of the forward pass and the update, by callbacks and then by the module.
_HOOKS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")

# What a step does is known of these plugins, not of those that are made from them.
_PRECISIONS = ("Precision", "MixedPrecision", "HalfPrecision", "DoublePrecision")


class LightningStep:
    """Does one step of a LightningModule; takes a batch as `training_step` does.

    Args:
        trainer: that fits, with the settings of now.
        module: the LightningModule.
        optimizer: its optimizer.
        framework: of the trainer.
        logs: notes what the step logs.

    Attributes:
        rest: arguments of `training_step` after its batch, which do not matter.
        captured: the step as it is called.
    """

    def __init__(
        self,
        trainer: Any,
        module: Any,
        optimizer: torch.optim.Optimizer,
        framework: Any,
        logs: LateLogs,
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._precision = trainer.precision_plugin
        self._scaler = getattr(self._precision, "scaler", None)
        self._accumulate = trainer.accumulate_grad_batches
        self._clip_value = trainer.gradient_clip_val
        self._clip_algorithm = trainer.gradient_clip_algorithm
        self._logs = logs
        self._hooks = {
            name: list(_functions_of(name, trainer, module, framework)) for name in _HOOKS
        }
        clips = "configure_gradient_clipping"
        is_own = overrides(module, clips, framework.LightningModule)
        self._configured_clipping = getattr(module, clips) if is_own else None
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

    def __call__(self, batch: Any, *, is_first: bool, updates: bool) -> Any:
        """Do the step.

        Args:
            batch: on the device.
            is_first: whether gradients are let go of.
            updates: whether the weights are updated.

        Returns:
            what `training_step` returned, and what was logged.
        """
        logs = self._logs
        logs.begin()
        with self._precision.train_step_context():
            returned = self._module.training_step(batch, *self.rest)
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if is_first:
            self._module.optimizer_zero_grad(0, 0, self._optimizer)
        has_loss = False
        if isinstance(loss, torch.Tensor):
            has_loss = True
            # A copy of now, as Lightning's: callbacks may write to it, and an update to what it is of.
            copied = loss.detach().clone()
            returned = {**returned, "loss": copied} if loss is not returned else copied
            # As Lightning does with what `training_step` returns.
            self._backward(loss / self._accumulate)
        if updates:
            self._update(has_loss=has_loss)
        return returned, *logs.end()

    def _hook(self, name: str, *args: Any) -> None:
        functions = self._hooks[name]
        if functions:
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
        if has_loss and not steps_by_scaler(self._optimizer):
            self._scaler.unscale_(self._optimizer)
        self._before_update()
        if has_loss:
            self._scaler.step(self._optimizer)
            self._scaler.update()

    def _before_update(self) -> None:
        self._hook("on_before_optimizer_step", self._optimizer)
        value, algorithm = self._clip_value, self._clip_algorithm
        if self._configured_clipping is not None:
            with self._logs.within("configure_gradient_clipping"):
                self._configured_clipping(
                    self._optimizer, gradient_clip_val=value, gradient_clip_algorithm=algorithm
                )
        elif value is not None and value > 0:
            # As the plugins' `main_params`, which would be guarded with all that is in the groups.
            weights = [one for group in self._optimizer.param_groups for one in group["params"]]
            if algorithm is not None and str(getattr(algorithm, "value", algorithm)) == "value":
                torch.nn.utils.clip_grad_value_(weights, clip_value=value)
            else:
                torch.nn.utils.clip_grad_norm_(weights, value)


def framework_of(trainer: Any) -> ModuleType:
    """Return the package that a trainer is of, `lightning.pytorch` or `pytorch_lightning`."""
    for kind in type(trainer).__mro__:
        name, _, rest = kind.__module__.partition(".trainer")
        if kind.__name__ == "Trainer" and rest:
            return import_module(name)
    raise TypeError(f"a {type(trainer).__qualname__} is not a Trainer of Lightning")


def overrides(target: Any, name: str, base: type) -> bool:
    """Return whether an object has another method of a name than a class of Lightning's."""
    found = getattr(target, name)
    return getattr(found, "__func__", found) is not getattr(base, name)


def _functions_of(name: str, trainer: Any, module: Any, framework: Any) -> Iterator[Any]:
    """Yield what is called for a hook. What nobody overrides is left out: it does nothing."""
    for callback in trainer.callbacks:
        if overrides(callback, name, framework.Callback):
            yield partial(getattr(callback, name), trainer, module)
    if overrides(module, name, framework.LightningModule):
        yield getattr(module, name)


# --- which fits and steps can be captured ---


def objection_to_fit(trainer: Any, module: Any, framework: Any) -> str | None:
    """Return why no step of a fit can be captured, None if one may be."""
    if not module.automatic_optimization:
        return (
            "it optimizes manually; call gapless.capture on its model and its optimizers in "
            "configure_optimizers"
        )
    if not files_by_hook(module):
        return "this version of Lightning does not say which hook logs"
    strategy, precision = trainer.strategy, trainer.precision_plugin
    if type(strategy) is not framework.strategies.SingleDeviceStrategy:
        return f"its strategy is {type(strategy).__name__}; steps are captured on a single device"
    if type(precision).__name__ not in _PRECISIONS or not is_of(framework, type(precision)):
        return f"its plugin of precision is {type(precision).__name__}, which is not known here"
    loop = trainer.fit_loop.epoch_loop.automatic_optimization
    if not is_of(framework, type(loop)):
        return (
            f"its loop of automatic optimization is {type(loop).__name__}, which is not known here"
        )
    if type(trainer.profiler).__name__ != "PassThroughProfiler":
        return "it is profiled, and a graph has no parts that Lightning's profiler could see"
    averaging = framework.callbacks.StochasticWeightAveraging
    if any(isinstance(one, averaging) for one in trainer.callbacks):
        return (
            "StochasticWeightAveraging lets steps be without a backward pass; use WeightAveraging"
        )
    return None


def is_of(framework: Any, kind: type) -> bool:
    """Return whether a class is the framework's own."""
    return kind.__module__.startswith(f"{framework.__name__}.")


def objection_to_step(trainer: Any, module: Any, optimizer: Any, framework: Any) -> str | None:
    """Return why a step cannot be captured as things are now, None if it may be."""
    if type(optimizer) not in CALL_A_CLOSURE_ONCE:
        return f"{name_of(optimizer)}.step() may call its closure more than once"
    if has_hooks(optimizer):
        return f"{name_of(optimizer)}.step() has hooks, which a replay would skip"
    base = framework.LightningModule
    if overrides(module, "optimizer_step", base):
        return "it overrides optimizer_step; let a scheduler set the rate of each step"
    if overrides(module, "clip_gradients", base):
        return "it overrides clip_gradients; override configure_gradient_clipping"
    if "log" in vars(module):
        return "its log is an attribute of its own; override it in its class"
    reason = _objection_to_hooks(trainer, module, framework)
    return reason or _objection_to_arguments(module, base)


_METRICS = frozenset({"callback_metrics", "logged_metrics", "progress_bar_metrics"})


def _objection_to_hooks(trainer: Any, module: Any, framework: Any) -> str | None:
    # Lightning calls it after `training_step`, in which gradients are gone and made anew already.
    name = "on_before_zero_grad"
    bases = [(one, framework.Callback) for one in trainer.callbacks]
    for one, base in [*bases, (module, framework.LightningModule)]:
        if overrides(one, name, base):
            return (
                f"{type(one).__name__} overrides {name}; do what it does in on_train_batch_start"
            )
    for name in _HOOKS:
        for function in _functions_of(name, trainer, module, framework):
            if _reads_metrics(getattr(function, "func", function)):
                return f"{name} reads the trainer's metrics; do that in on_train_batch_end"
    return None


def _objection_to_arguments(module: Any, base: type) -> str | None:
    arguments = list(inspect.signature(module.training_step).parameters)
    if "dataloader_iter" in arguments:
        return "training_step takes dataloader_iter, and reads batches itself"
    if len(arguments) > 1 and reads_argument(module.training_step, 1):
        return (
            f"training_step reads {arguments[1]}, another number in every step, which a graph would keep; "
            "do what needs it in on_train_batch_start or on_train_batch_end"
        )
    if _reads_metrics(module.training_step):
        return "training_step reads the trainer's metrics; do that in on_train_batch_end"
    name = "optimizer_zero_grad"
    if overrides(module, name, base) and any(
        reads_argument(getattr(module, name), number) for number in (0, 1)
    ):
        return f"{name} reads the epoch or batch_idx, which a graph would keep"
    return None


def _code_of(method: Any) -> Any:
    return getattr(getattr(method, "__func__", None), "__code__", None)


def _reads_metrics(method: Any) -> bool:
    """Return whether a method's code names the trainer's metrics, which are those of the step before."""
    code = _code_of(method)
    return code is not None and not _METRICS.isdisjoint(code.co_names)


_LOOK_AT_ALL = frozenset({"locals", "vars", "eval", "exec", "currentframe"})


def reads_argument(method: Any, number: int) -> bool:
    """Return whether a method may read one of its arguments.

    Args:
        method: bound to its object.
        number: of the argument, beginning at 0 after `self`.
    """
    code = _code_of(method)
    # A wrapper hands its arguments on.
    if code is None or number + 1 >= code.co_argcount:
        return True
    name = code.co_varnames[number + 1]
    if name in code.co_cellvars or _LOOK_AT_ALL.intersection(code.co_names):
        return True
    return any(
        name == one.argval or (isinstance(one.argval, tuple) and name in one.argval)
        for one in dis.get_instructions(code)
        if "LOAD_FAST" in one.opname
    )
