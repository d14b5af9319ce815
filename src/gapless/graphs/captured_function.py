"""A function that is captured, for a loop that is not ours."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from functools import partial, update_wrapper
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self, overload
from weakref import ref

import torch

from gapless.graphs.compiled_layers import LayerCompiler
from gapless.graphs.modules.module_refusals import COMPILED_AROUND
from gapless.graphs.objections import objection_to_transforms
from gapless.graphs.quick_call import NOT_ALIKE
from gapless.graphs.reads.stand_in import StandIn
from gapless.graphs.side_stream import SideStream
from gapless.graphs.step_call import DEPTH, is_within_a_step, work_of
from gapless.graphs.step_group import checked_group, is_of_one_shape, work_of_group
from gapless.pipeline.step import call_host_part, do_work, host_part_of
from gapless.pipeline.tree.call_tree import CallTrees


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.capture_settings import CaptureSettings
    from gapless.graphs.captured_step import CapturedStep
    from gapless.pipeline.tree.flatten import Tree


# Where an object keeps its captured methods.
_METHODS = "_gapless_captured_methods"


class CapturedFunction(StandIn):
    """A function that is captured, for a loop that is not ours; made by `capture`.

    It has the function's attributes, but for those that are named as its own. In a class it is a
    method: each object has graphs of its own, which live as long as it.
    """

    def __init__(self, step: Any, settings: CaptureSettings) -> None:
        update_wrapper(self, step, updated=())
        self._settings = settings
        self._is_traced = False
        self._device = settings.device
        self._side = SideStream(self._device)
        self._owner: type | None = None
        self._trees = CallTrees()
        limits = settings.limits()
        self._captured = settings.wrap(
            step, self._side, limits=limits, work=work_of(step), consent=settings.new_consent()
        )
        self._fast_path = self._captured.fast_path
        # A plain function without attributes has no part on the host, which would have to come first.
        self._step = step
        self._may_be_quick = isinstance(step, FunctionType) and settings.steps_per_launch is None
        self._group: CapturedStep | None = None
        if settings.steps_per_launch is not None:
            work = work_of_group(step)
            self._group = settings.wrap(
                step,
                self._side,
                limits=limits,
                work=work,
                report=self.report,
                consent=settings.new_consent(),
            )
        self._layers = LayerCompiler.of(settings.compile, settings.device, self.report)
        self._is_never_captured = settings.forbid(self.report)
        self.stand_for(step)

    @property
    def report(self) -> CaptureReport:
        """What is captured, what is not and why; as a text it is a few lines."""
        if self._is_traced:
            self._captured.report.refuse(COMPILED_AROUND)
        return self._captured.report

    @property
    def is_refused(self) -> bool:
        """Whether calls were refused for good, and there are no graphs."""
        return self._captured.is_refused

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the step, by a graph if there is or can be one; return what it returns.

        Tensors come without their graph of gradients if the step runs a backward pass. The next
        call does not overwrite them, unless the step does.

        Raises:
            CaptureRefused: `on_refusal` is "raise", and this call ran as written because it may
                not be captured.
            Exception: whatever the step raises.

        Sync: Does not block the host, except where a graph is captured ("capture"), and where
            the step does so itself.
        """
        if torch.compiler.is_compiling():
            self._is_traced = True
            return self._call_as_written(args, kwargs)
        quick_call = self._fast_path.call
        if (
            quick_call is not None
            and self._may_be_quick
            and not DEPTH.depth
            and not vars(self._step)
        ):
            out = quick_call(args, kwargs)
            if out is not NOT_ALIKE:
                return out
        if self._owner is not None and args and isinstance(args[0], self._owner):
            # As `Class.method(object, ...)`.
            return self.__get__(args[0], self._owner)(*args[1:], **kwargs)
        with nullcontext() if self._layers is None else self._layers.in_first_call():
            return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._group is not None:
            size = self._settings.steps_per_launch or 1
            return self._call_all(self._group, checked_group(args, kwargs, size=size), size)
        return self._call_one(args, kwargs)

    def __repr__(self) -> str:
        return f"<captured {self._name}>"

    @property
    def _name(self) -> str:
        step = self._captured.step
        while isinstance(step, partial):
            step = step.func
        name = getattr(step, "__qualname__", None) or type(step).__qualname__
        return str(name).rpartition("<locals>.")[2]

    def _must_run_as_written(self) -> bool:
        """Return whether this call is no call to capture; what forbids it is told."""
        if self._is_never_captured or is_within_a_step():
            return True
        objection = objection_to_transforms()
        if objection is None:
            return False
        self._settings.refuse(self.report, objection, self._name)
        return True

    def clear(self) -> None:
        """Let go of all graphs and their memory, such as before a step with other work.

        Batches are captured again without another warm-up.

        Sync: Does not block the host.
        """
        for captured in filter(None, (self._captured, self._group)):
            captured.drop_graphs()
            captured.lift_refusal()

    def _call_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        step = self._captured.step
        if self._must_run_as_written():
            self.report.num_eager += 1
            return self._call_as_written(args, kwargs)
        if host_part_of(step) is not None:
            self._side.come_after_runs()
            call_host_part(step, *args, **kwargs)
        quick_call = self._fast_path.call
        if quick_call is not None:
            out = quick_call(args, kwargs)
            if out is not NOT_ALIKE:
                return out
        return self._run(self._captured, self._trees.of(args, kwargs))

    def _call_as_written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        step = self._captured.step
        call_host_part(step, *args, **kwargs)
        return do_work(step, *args, **kwargs)

    def _call_all(self, group: CapturedStep, batches: Sequence[Any], size: int) -> list[Any]:
        """Do a step for each batch, by one launch if they are as many and alike."""
        tree = None
        if 1 < size == len(batches) and not self._must_run_as_written():
            tree = self._tree_of_group(group, batches)
        if tree is None:
            return [self._call_one((batch,), {}) for batch in batches]
        self._side.come_after_runs()
        before = self.report.num_replays
        try:
            out: list[Any] = self._run(group, tree)
            return out
        finally:
            # A run of the group counted as one step.
            if self.report.num_replays > before:
                self.report.num_replays += size - 1
            else:
                self.report.num_eager += size - 1

    def _tree_of_group(self, group: CapturedStep, batches: Sequence[Any]) -> Tree | None:
        if host_part_of(group.step) is not None:
            self.report.note = "steps with a part on the host are launched one by one"
            return None
        if self.report.is_rest_over:
            group.lift_refusal()
        if self.report.refusals and not group.has_graphs:
            return None
        tree = self._trees.of(tuple(batches), {})
        return tree if is_of_one_shape(tree, len(batches)) else None

    def _run(self, captured: CapturedStep, tree: Tree) -> Any:
        done = captured.run(tree)
        if done.way != "replay":
            self._settings.tell(self.report, self._name)
        return done.out

    # --- as a method ---

    def __set_name__(self, owner: type, name: str) -> None:
        if isinstance(self._captured.step, FunctionType):
            self._owner = owner

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> CapturedFunction: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> CapturedFunction:
        """Return the captured method of one object."""
        step = self._captured.step
        if isinstance(step, classmethod):
            holder = type(instance) if owner is None else owner
            return _CapturedMethods.of(holder).get(self, holder)
        # As Python does: only functions become methods.
        is_method = hasattr(step, "__get__") and not isinstance(step, staticmethod)
        if instance is None or not is_method:
            return self
        return _CapturedMethods.of(instance).get(self, instance)

    def bound_to(self, instance: object) -> CapturedFunction:
        """Return a captured function of its own for the method of one object, or of a class."""
        step: Any = self._captured.step
        of_class = (None, instance) if isinstance(step, classmethod) else (instance,)
        return CapturedFunction(step.__get__(*of_class), self._settings)

    # --- copies ---

    def __copy__(self) -> CapturedFunction:
        """Return a captured function of the same step, with graphs of its own."""
        return CapturedFunction(self._captured.step, self._settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedFunction:
        """Return a captured function of a copy of the step, with graphs of its own."""
        return CapturedFunction(deepcopy(self._captured.step, memo), self._settings)


class _CapturedMethods:
    """The captured methods of one object, kept in its `__dict__`, so that they end with it.

    A table of objects elsewhere would keep them alive, even if it held them weakly: graphs hold
    on to the weights that they train.
    """

    # No `__dict__`, so that nobody looks for modules in here.
    __slots__ = ("_functions", "_owner")

    def __init__(self, owner: object | None = None) -> None:
        self._owner = None if owner is None else ref(owner)
        self._functions: dict[CapturedFunction, CapturedFunction] = {}

    @classmethod
    def of(cls, instance: Any) -> Self:
        """Return those of an object.

        Raises:
            TypeError: the object cannot keep any.
        """
        try:
            kept = vars(instance)
        except TypeError as error:
            raise TypeError(
                f"cannot capture a method of a {type(instance).__qualname__}, whose class has "
                "__slots__ and no __dict__ to keep its graphs in; capture a function"
            ) from error
        found: Self | None = kept.get(_METHODS)
        # A shallow copy of an object has the graphs of the original.
        if found is None or found._owner is None or found._owner() is not instance:
            found = cls(instance)
            if isinstance(instance, type):
                setattr(instance, _METHODS, found)
            else:
                kept[_METHODS] = found
        return found

    def get(self, method: CapturedFunction, instance: object) -> CapturedFunction:
        """Return the captured method of the object, made at its first use."""
        if method not in self._functions:
            self._functions[method] = method.bound_to(instance)
        return self._functions[method]

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Leave graphs out of copies and files of the object."""
        return type(self), ()
