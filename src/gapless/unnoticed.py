"""Patch a running program for a while, without effect on what it does: attributes, methods, warnings.

What is patched in the whole process, by which file, and until when. All go through `Patches`, which undoes itself:

* `device/autocast_blocks.py`: `torch.clear_autocast_cache`, until nobody keeps a block or waits for its end
* `ranks/user_process_group.py`: `ProcessGroup.shutdown`, until the last object that holds graphs is gone
* `graphs/interludes.py`: `nn.Module.train`, `state_dict` and `load_state_dict`, while graphs may be audited
* `graphs/compiled_layers.py`: `nn.Module.__call__`, in the first call of a step whose layers are to be compiled
* `graphs/reads/beside_compiled.py`: what launches the kernels of torch's compiler, in a watched run of compiled code
* `ranks/leaving.py`: `sys.excepthook`, while the ranks are joined
* `nmt/run_folder/logs.py`: `threading.excepthook`, while the logs of a run are open
* `cli/progress.py`: `warnings.showwarning`, while a bar is drawn
* `scripts.py`: `sys.excepthook`, until Python has shown the interrupt that ends the script
* `unnoticed.py`: what Python calls when filters of warnings change, while a filter stays in front
* `doctor/watching/torch_import.py`: what loads torch, until it is loaded or nobody waits for it
* `doctor/watching/step_hooks.py`: `DataLoader`'s `__next__`, backward passes, `CUDAGraph.replay`, the step that was asked for
* `device/sync_warnings.py`: what shows a warning, while somebody hears torch's warnings of waits
* `device/waiting_calls.py`: methods of `Tensor` and functions that wait, in a window of the doctor
* `doctor/lines/explicit_waits.py`: queries, `Work.wait`, in a window
* `doctor/lines/host_costs.py`: `DataLoader`'s `__next__`, in a window
* `doctor/lines/sites.py`: torch's mode of warnings, in a window
* `doctor/lines/backward_lines.py`: backward passes and the anomaly mode, in a window
* `doctor/lines/step_parts.py`: the engine of backward passes, for the steps that are split;
* `doctor/trace/profiler.py`: the start of torch's profiler, while ours runs
* `integrations/attention_masks.py`: what transformers asks about masks and captures, while a captured model of it lives
* `integrations/batches.py`: Accelerate's `send_to_device`, while an Accelerator or Trainer lives that is captured
* `integrations/lightning.py`: `run` of a trainer's loop and `batch_to_device` of its strategy, while a fit runs
* `running/capturing.py`: backward passes, until an optimizer takes a step or they have been counted
* `trials/captured_parts.py`: `step` of captured optimizers, and what a capture has put in objects while they run eagerly
* `trials/recorded_batches.py`: what iterators of `DataLoader` get batches from, while a variant runs
* `testing/simulated/patches.py`: what no mode of torch sees, while a simulated device is entered

Not through it: `pipeline/loader_worker.py` prepares a worker process, which nothing outlives;
`graphs` replaces `torch.autograd.backward`, `grad` and steps in its watched runs, and restores them itself.
What is no attribute is restored by the code that sets it: handlers of signals, `gc.callbacks`, `sys.meta_path`,
hooks and modes of torch.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import warnings
import weakref
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock
from types import (
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, Self

from gapless.python_private import FILTERS_CHANGED


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, FrameType, TracebackType


_NOT_ITS_OWN = object()

# What binds to an object as methods do. Programs also replace methods by objects that do not bind.
_METHODS: tuple[type, ...] = (
    FunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
)

_HERE = Path(__file__).parent
_STAND_IN_FILES = (
    __file__,
    *(
        str(_HERE / "device" / file)
        for file in ("sync_warnings.py", "waiting_calls.py", "script_tensors.py")
    ),
    str(_HERE / "graphs" / "interludes.py"),
    *(str(_HERE / room) + os.sep for room in ("doctor", "running", "trials")),
)


class Patches:
    """Replaces attributes until `take_out`, or until the end of a `with` block.

    Args:
        keeps_others: whether a patch that somebody else has put over ours stays. Otherwise everything is
            restored as it was before.

    Attributes:
        are_in: whether an attribute is replaced now.
    """

    def __init__(self, *, keeps_others: bool = True) -> None:
        self._keeps_others = keeps_others
        self._undo = ExitStack()
        self.are_in = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.take_out()

    def put(self, holder: Any, name: str, value: Any) -> None:
        """Replace an attribute; one that the holder inherits is shadowed.

        Args:
            holder: class, module or object. An object's attribute is written into its `__dict__`, past a
                `__setattr__` of its class. Or a dict, for example that of a module's parameters.
            name: of the attribute or entry.
            value: its new value.
        """
        self._note(holder, name, value)
        _set(holder, name, value)

    def hide(self, holder: Any, name: str) -> None:
        """Take an attribute of the holder's own away, so that the one that it inherits is there."""
        self._note(holder, name, _NOT_ITS_OWN)
        _set(holder, name, _NOT_ITS_OWN)

    def _note(self, holder: Any, name: str, ours: Any) -> None:
        # Before anything is replaced: an interrupt may come at any line.
        before = _own(holder).get(name, _NOT_ITS_OWN)
        self.are_in = True
        self._undo.callback(self._put_back, holder, name, before, ours)

    def _put_back(self, holder: Any, name: str, before: Any, ours: Any) -> None:
        if not self._keeps_others or _own(holder).get(name, _NOT_ITS_OWN) is ours:
            _set(holder, name, before)

    def put_method(
        self,
        owner: Any,
        name: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
        *,
        is_for: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        """Let calls of a method on objects go through another one; the class shows what it had.

        Where a program has put something in the place of the method that is none, it stays.

        Args:
            owner: class that has the method.
            name: of the method.
            make: takes the method, and returns a function that takes the object first.
            is_for: whether the other method is for an object just now.
        """
        shown = getattr(owner, name)
        held = next(vars(one)[name] for one in owner.__mro__ if name in vars(one))
        is_ours = isinstance(held, StandIn)
        if is_ours or isinstance(held, _METHODS) or type(held).__name__ == "instancemethod":
            method = make(held.method if is_ours else shown)
            self.put(owner, name, StandIn(held, shown, method, is_for))

    def take_out(self) -> None:
        """Put back what was there."""
        self.are_in = False
        # All of it, also where one of them raises.
        self._undo.close()


def _own(holder: Any) -> Mapping[str, Any]:
    return holder if type(holder) is dict else vars(holder)


def _set(holder: Any, name: str, value: Any) -> None:
    """Write an attribute that is the holder's own, or take it away."""
    own: Any = _own(holder)
    if not isinstance(holder, type | ModuleType):
        if value is _NOT_ITS_OWN:
            own.pop(name, None)
        else:
            own[name] = value
    elif value is not _NOT_ITS_OWN:
        setattr(holder, name, value)
    elif name in own:
        delattr(holder, name)


class PatchesWhileAlive:
    """Patches that stay as long as one of the objects lives that need them.

    Args:
        put: puts them in.
    """

    def __init__(self, put: Callable[[Patches], None]) -> None:
        self._put = put
        self._patches = Patches()
        self._needing: set[weakref.ref[Any]] = set()
        # An object may be freed in any thread, and in the midst of what follows.
        self._changing = RLock()

    @property
    def living(self) -> list[Any]:
        """The objects that need them and are not gone."""
        found = [reference() for reference in list(self._needing)]
        return [one for one in found if one is not None]

    def need(self, one: object) -> None:
        """Put the patches in, if they are not, for as long as an object lives."""
        with self._changing:
            self._needing.add(weakref.ref(one, self._gone))
            if not self._patches.are_in:
                self._put(self._patches)

    def _gone(self, reference: weakref.ref[Any]) -> None:
        with self._changing:
            self._needing.discard(reference)
            if not self._needing:
                self._patches.take_out()


class StandIn:
    """Stands for a method in a class: objects have another one, while the class shows its own.

    So `Tensor.item` is what it always was, for tables by function, for `pickle`, `inspect` and for
    whoever keeps it.

    Args:
        held: what the class or one of its bases had before.
        shown: what the class showed.
        method: takes the object first.
        is_for: whether an object has the method; all others have what they always had.
    """

    __slots__ = ("held", "is_for", "method", "shown")

    def __init__(
        self,
        held: Any,
        shown: Any,
        method: Callable[..., Any],
        is_for: Callable[[Any], bool],
    ) -> None:
        self.held = held
        self.shown = shown
        self.method = method
        self.is_for = is_for

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self.shown
        if self.is_for(instance):
            return MethodType(self.method, instance)
        return self.held.__get__(instance, owner)


def is_stand_in(frame: FrameType) -> bool:
    """Whether a frame is of a wrapper between the program and what it calls."""
    return is_stand_in_file(frame.f_code.co_filename)


def is_stand_in_file(path: str) -> bool:
    """Whether a file holds such wrappers; `gapless.device.user_line` decides whose code the others are."""
    return path.startswith(_STAND_IN_FILES)


def below_stand_ins(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the program that called a wrapper, at or below a frame."""
    while frame is not None and not is_stand_in(frame):
        frame = frame.f_back
    while frame is not None and is_stand_in(frame):
        frame = frame.f_back
    return frame


class _Unseen:
    """A context that leaves its function out of the tracebacks of what is raised in it."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if error is not None:
            error.__traceback__ = _without_stand_ins(error.__traceback__)


# A function that does all of its work in this context is in no traceback.
unseen = _Unseen()


def _without_stand_ins(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and is_stand_in(trace.tb_frame):
        trace = trace.tb_next
    return trace


def local_names(frame: FrameType) -> dict[str, Any]:
    """Return a copy of the local names of a frame, which keeps none of its objects alive afterwards."""
    names = frame.f_locals
    found = dict(names)
    # Before Python 3.13 a function keeps what was asked for; three of us and it know of it.
    if sys.version_info < (3, 13) and _is_function(frame.f_code) and sys.getrefcount(names) <= 3:
        for name in found:
            if name in frame.f_code.co_varnames:
                del names[name]
    return found


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


def is_of_signal_handler(error: BaseException) -> bool:
    """Whether a handler of a signal has raised this, which the program awaits wherever it is."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    handler = getattr(handler, "func", handler)  # of `functools.partial`
    handler = getattr(handler, "__func__", handler)
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)


_in_front: list[FilterInFront] = []
_patches_of_warnings = Patches()


def _stay_in_front() -> None:
    for name in FILTERS_CHANGED:
        _patches_of_warnings.put(warnings, name, _then_come_first(getattr(warnings, name)))


def _then_come_first(change: Callable[[], None]) -> Callable[[], None]:
    def changed() -> None:
        change()
        for one in tuple(_in_front):
            one.come_first()

    return changed


@contextmanager
def no_line_warns_anew() -> Iterator[None]:
    """Let changes of filters in the body, as of libraries that it imports, count for new warnings alone."""
    with Patches() as patches:
        for name in FILTERS_CHANGED:
            patches.put(warnings, name, lambda: None)
        yield


class FilterInFront:
    """A filter of warnings before those of the program, which go on to apply to all others.

    It stays in front when the program changes its own. `warnings.filterwarnings` lets each line warn
    anew of what it has warned of once; this does not.

    Args:
        action: "always", "ignore" and so on.
        message: begin of the warnings, as a pattern.
        module: that they are to be in, as a pattern.
        applies: whether it filters just now.
    """

    def __init__(
        self,
        action: str,
        *,
        message: str = "",
        module: str = "",
        applies: Callable[[], bool] = lambda: True,
    ) -> None:
        self._match = [_Match(pattern, self._is_on) for pattern in (message, module)]
        self._item: Any = (action, self._match[0], Warning, self._match[1], 0)
        self._applies = applies
        self._is_in = False
        self._lists: list[list[Any]] = []

    def __enter__(self) -> None:
        self.put_in()

    def __exit__(self, *_: object) -> None:
        self.take_out()

    def put_in(self) -> None:
        """Begin to filter."""
        if not _in_front:
            _stay_in_front()
        _in_front.append(self)
        self._is_in = True
        self.come_first()

    def come_first(self) -> None:
        """Go to the front of the filters that hold now."""
        filters: Any = warnings.filters
        if not filters or filters[0] is not self._item:
            self._take_out_of(filters)
            filters.insert(0, self._item)
        if not any(one is filters for one in self._lists):
            self._lists.append(filters)

    def take_out(self) -> None:
        """Go out of every list of filters. Copies that are not known hold it, without effect."""
        if self._is_in:
            _in_front.remove(self)
        self._is_in = False
        if not _in_front:
            _patches_of_warnings.take_out()
        for filters in [*self._lists, warnings.filters]:
            self._take_out_of(filters)
        self._lists.clear()

    def _is_on(self) -> bool:
        return self._is_in and self._applies()

    def _take_out_of(self, filters: Any) -> None:
        filters[:] = [one for one in filters if one is not self._item]


class _Match:
    """A pattern of a filter that matches nothing while the filter is off."""

    def __init__(self, pattern: str, is_on: Callable[[], bool]) -> None:
        self._pattern = re.compile(pattern, re.IGNORECASE)
        self._is_on = is_on

    def match(self, text: str) -> object:
        """Return a match, or None: what a filter of warnings asks."""
        return self._pattern.match(text) if self._is_on() else None

    def __reduce__(self) -> Any:
        # Some send the filters to other processes.
        return re.compile, ("(?!)",)
