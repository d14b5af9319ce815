"""Which fits and steps of Lightning can be captured: what a trainer, a module and an optimizer must be."""

from __future__ import annotations

import dis
import inspect
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gapless.graphs.update_rules import CALL_A_CLOSURE_ONCE, has_hooks, name_of


if TYPE_CHECKING:
    from types import ModuleType


# Called between the beginning of the forward pass and the update, by callbacks and then by the module.
_HOOKS = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)

# What a step does is known of these plugins, not of those that are made from them.
_PRECISIONS = ("Precision", "MixedPrecision", "HalfPrecision", "DoublePrecision")


# What the integration uses of Lightning that is not public, from the trainer on.
_NEEDED = (
    "_data_connector._datahook_selector.get_instance",
    "_logger_connector._progress_bar_metrics",
    "_logger_connector.on_batch_end",
    "_logger_connector.should_reset_tensors",
    "fit_loop._should_accumulate",
    "fit_loop.epoch_loop._build_kwargs",
    "fit_loop.epoch_loop._num_ready_batches_reached",
    "fit_loop.epoch_loop._results._forked_name",
    "fit_loop.epoch_loop._results._get_cache",
    "fit_loop.epoch_loop._results.valid_items",
    "fit_loop.epoch_loop.automatic_optimization._skip_backward",
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.increment_ready",
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.zero_grad.increment_started",
    "fit_loop.epoch_loop.automatic_optimization.output_result_cls.from_training_step_output",
    "fit_loop.epoch_loop.automatic_optimization.run",
    "lightning_module._call_batch_hook",
    "lightning_module._current_fx_name",
    "precision_plugin.train_step_context",
    "strategy.batch_to_device",
)


def objection_to_version(trainer: Any) -> str | None:
    """Return why nothing is known of this version of Lightning, None if what is needed is there."""
    for path in _NEEDED:
        try:
            attrgetter(path)(trainer)
        except AttributeError:
            return f"this version of Lightning has no Trainer.{path}; see which versions are known"
    return None


def framework_of(trainer: Any) -> ModuleType:
    """Return the package that a trainer is of, `lightning.pytorch` or `pytorch_lightning`."""
    for kind in type(trainer).__mro__:
        name, _, rest = kind.__module__.partition(".trainer")
        if kind.__name__ == "Trainer" and rest:
            return import_module(name)
    raise TypeError(f"a {type(trainer).__qualname__} is not a Trainer of Lightning")


def functions_of_hooks(trainer: Any, module: Any, framework: Any) -> dict[str, list[Any]]:
    """Return what is called within a step, by the name of the hook.

    What nobody overrides is left out: it does nothing.
    """
    found: dict[str, list[Any]] = {}
    for name in _HOOKS:
        functions: list[Any] = [
            partial(getattr(callback, name), trainer, module)
            for callback in trainer.callbacks
            if _overrides(callback, name, framework.Callback)
        ]
        if _overrides(module, name, framework.LightningModule):
            functions.append(getattr(module, name))
        if functions:
            found[name] = functions
    name = "configure_gradient_clipping"
    if _overrides(module, name, framework.LightningModule):
        found[name] = [getattr(module, name)]
    return found


def _overrides(target: Any, name: str, base: type) -> bool:
    found = getattr(target, name)
    return getattr(found, "__func__", found) is not getattr(base, name)


def objection_to_fit(trainer: Any, module: Any, framework: Any) -> str | None:
    """Return why no step of a fit can be captured, None if one may be."""
    if not module.automatic_optimization:
        return (
            "it optimizes manually; call gapless.capture on its model and its optimizers in "
            "configure_optimizers"
        )
    loop = trainer.fit_loop.epoch_loop.automatic_optimization
    if not _is_of(framework, type(loop)) or "run" in vars(loop):
        return f"the loop is not Lightning's own, but {type(loop).__qualname__}"
    return _objection_to_parts(trainer, framework)


def _objection_to_parts(trainer: Any, framework: Any) -> str | None:
    strategy, precision = trainer.strategy, trainer.precision_plugin
    if type(strategy) is not framework.strategies.SingleDeviceStrategy:
        return f"its strategy is {type(strategy).__name__}; steps are captured on a single device"
    if type(precision).__name__ not in _PRECISIONS or not _is_of(framework, type(precision)):
        return f"its plugin of precision is {type(precision).__name__}, which is not known here"
    if type(trainer.profiler).__name__ != "PassThroughProfiler":
        return "it is profiled, and a graph has no parts that Lightning's profiler could see"
    return None


def _is_of(framework: Any, kind: type) -> bool:
    return kind.__module__.startswith(f"{framework.__name__}.")


def objection_to_step(module: Any, optimizer: Any, framework: Any) -> str | None:
    """Return why a step cannot be captured as things are now, None if it may be."""
    if type(optimizer) not in CALL_A_CLOSURE_ONCE:
        return f"{name_of(optimizer)}.step() may call its closure more than once"
    if has_hooks(optimizer):
        return f"{name_of(optimizer)}.step() has hooks, which a replay would skip"
    base = framework.LightningModule
    for name, advice in _NOT_OVERRIDDEN.items():
        if _overrides(module, name, base):
            return f"it overrides {name}; {advice}"
    if "log" in vars(module):
        return "its log is an attribute of its own; override it in its class"
    return _objection_to_arguments(module, base)


_NOT_OVERRIDDEN = {
    "optimizer_step": "use a scheduler with interval 'step', or on_train_batch_start",
    "clip_gradients": "override configure_gradient_clipping",
}


def _objection_to_arguments(module: Any, base: type) -> str | None:
    arguments = list(inspect.signature(module.training_step).parameters)
    if "dataloader_iter" in arguments:
        return "training_step takes dataloader_iter, and reads batches itself"
    if len(arguments) > 1 and reads_argument(module.training_step, 1):
        return (
            f"training_step reads {arguments[1]}, another number in every step, which a graph would keep; "
            "do what needs it in on_train_batch_start or on_train_batch_end"
        )
    name = "optimizer_zero_grad"
    if _overrides(module, name, base) and any(
        reads_argument(getattr(module, name), number) for number in (0, 1)
    ):
        return f"{name} reads the epoch or batch_idx, which a graph would keep"
    return None


_LOOK_AT_ALL = frozenset({"locals", "vars", "eval", "exec", "_getframe", "currentframe"})


def reads_argument(method: Any, number: int) -> bool:
    """Return whether a method may read one of its arguments.

    Args:
        method: bound to its object.
        number: of the argument, beginning at 0 after `self`.
    """
    code = getattr(getattr(method, "__func__", None), "__code__", None)
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
