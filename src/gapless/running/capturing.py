"""Captures the modules and optimizers of a running script, after a beginning that is watched.

Nothing is in the process before the script uses a GPU; then a hook that hears of steps of optimizers. An optimizer
that is new to it is left alone for a few steps: memory settles in them, and torch.compile has begun its work if
the script asks for that. Then the modules are noted that the loop calls, for some steps more, and captured.
An optimizer that comes later, as of the next model of a comparison, is treated alike. Before the first step of an
optimizer backward passes are counted as well: some loops add gradients to weights themselves.
"""

from __future__ import annotations

import os
import threading
import weakref
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from gapless.doctor.watching.torch_import import TorchImport
from gapless.running.captured_objects import CapturedObjects
from gapless.unnoticed import Patches, is_of_signal_handler


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Module
    from torch.optim import Optimizer

    from gapless.device.base import Device
    from gapless.graphs.capture_report import CaptureReport
    from gapless.trials.called_parts import CalledParts


# Steps of an optimizer that are left alone, and steps of all optimizers that are watched then: more than a
# discriminator takes for one of its generator.
_NUM_BEFORE = 2
_NUM_WATCHED = 8

# Backward passes without a step of any optimizer, after which they count as steps.
_NUM_WITHOUT_OPTIMIZER = 20

# Calls after which an object that is refused for good is let go of: to ask whether it may be captured takes time
# in each of them.
_NUM_REFUSED = 300

# Scripts that make an optimizer for each of many tasks have models that go as quickly.
_MOST_WATCHES = 10


class Capturing:
    """Captures what a script trains, in the thread that takes the first step.

    Whatever goes wrong in here is kept; the script goes on, and nothing more is captured.

    Args:
        device: where the script trains; None: where its weights are, once it uses a GPU.
    """

    def __init__(self, device: Device | None = None) -> None:
        self._device = device
        self._pid = os.getpid()
        self._import: TorchImport | None = None
        self._hook: Any = None
        self._thread: int | None = None
        self._has_torch = self._is_over = False
        self._why_nothing = self._problem = ""
        self._num_steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._done: WeakSet[Module | Optimizer] = WeakSet()
        self._reports: list[tuple[str, CaptureReport]] = []
        # Of those that are captured now: the place of the report.
        self._captured: dict[weakref.ref[Module | Optimizer], int] = {}
        self._num_as_written = 0
        self._called: CalledParts | None = None
        self._num_watches = self._num_watched = self._num_backward = 0
        self._of_backward = Patches()
        self._import_s = 0.0

    @property
    def is_in_its_process(self) -> bool:
        """Whether this is the process in which it began, and no child that the script has forked."""
        return os.getpid() == self._pid

    def start(self) -> None:
        """Begin once the script has imported torch."""
        self._import = TorchImport(self._torch_is_there)

    def end(self) -> CapturedObjects:
        """Take all hooks out, and return what was captured; the script has ended."""
        self._is_over = True
        if self._import is not None:
            self._import.remove()
        if self._called is not None:
            self._called.stop()
        self._of_backward.take_out()
        if self._hook is not None:
            self._hook.remove()
        for reference, place in self._captured.items():
            self._renew_report(reference(), place)
        return CapturedObjects(
            reports=self._reports,
            why_nothing="" if self._reports else self._why_nothing or self._what_was_missing(),
            problem=self._problem,
        )

    def _what_was_missing(self) -> str:
        if not self._has_torch:
            return "the script did not import torch"
        if self._hook is None:
            return "no GPU was used, and a CPU has nothing to launch"
        if not self._num_steps and not self._num_watched:
            return "no optimizer of torch took a step, and few backward passes ran"
        return f"the script ended within the first {_NUM_BEFORE + _NUM_WATCHED} steps, which are watched"

    def _torch_is_there(self) -> None:
        from gapless.device.torch_gpu import call_when_gpu_is_used

        self._has_torch = True
        if self._device is not None:
            self._begin()
        else:
            call_when_gpu_is_used(self._begin)

    def _begin(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from gapless.device.torch_private import RUN_BACKWARD
        from gapless.doctor.watching.step_hooks import telling_backward

        if self._is_over or self._hook is not None:
            return
        self._hook = register_optimizer_step_post_hook(self._after_step)
        if RUN_BACKWARD.is_there:
            run = telling_backward(RUN_BACKWARD.value, self._after_backward)
            self._of_backward.put(*RUN_BACKWARD, run)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._of_backward.are_in:
            self._of_backward.take_out()
        if optimizer in self._done:  # which runs as written: a graph calls no hooks
            self._num_as_written += 1
            if self._num_as_written % 100 == 0:
                self._guarded(self._let_go_of_refused)
        elif not self._is_over:
            self._guarded(partial(self._step_ended, optimizer))

    def _after_backward(self) -> None:
        if not self._is_over:
            self._guarded(self._backward_ended)

    def _guarded(self, function: Callable[[], None]) -> None:
        if not self._is_of_the_loop():
            return
        try:
            function()
        except Exception as error:
            self._give_up(problem=f"{type(error).__name__}: {error}")
            if is_of_signal_handler(error):
                raise

    def _is_of_the_loop(self) -> bool:
        """Whether a step is one that the loop takes, in its thread and process."""
        import torch

        if torch.compiler.is_compiling() or not self.is_in_its_process:
            return False
        self._thread = self._thread or threading.get_ident()
        return threading.get_ident() == self._thread

    def _step_ended(self, optimizer: Optimizer) -> None:
        """Note a step of an optimizer that is not captured."""
        num = self._num_steps[optimizer] = self._num_steps.get(optimizer, 0) + 1
        if self._called is not None:
            self._num_watched += 1
            if self._num_watched == _NUM_WATCHED:
                self._capture()
        elif num >= _NUM_BEFORE:
            self._watch()

    def _backward_ended(self) -> None:
        """Note a backward pass as long as no optimizer has taken a step."""
        self._num_backward += 1
        if self._num_backward == _NUM_WITHOUT_OPTIMIZER:
            self._watch()
        elif self._num_backward == _NUM_WITHOUT_OPTIMIZER + _NUM_WATCHED:
            self._of_backward.take_out()
            if self._called is not None:
                self._capture()

    def _watch(self) -> None:
        """Begin to note what the loop calls, unless it is to be left alone."""
        begin = perf_counter()
        # Only now: a script that uses no GPU is to load none of it.
        from gapless.device.torch_gpu import has_made_graphs
        from gapless.graphs.step_call import is_within_a_step
        from gapless.trials.called_parts import CalledParts, compiles

        self._import_s += perf_counter() - begin
        if compiles():
            self._give_up("torch.compile is at work, and what it compiled depends on hooks")
        elif is_within_a_step() or (not self._reports and has_made_graphs()):
            self._give_up("the script captures its step itself")
        elif self._num_watches == _MOST_WATCHES:
            self._give_up()
        else:
            self._num_watches += 1
            self._num_watched = 0
            self._called = CalledParts()
            self._called.start()

    def _capture(self) -> None:
        """Capture what the loop has called."""
        begin = perf_counter()
        from gapless.graphs.account import account_of
        from gapless.graphs.in_place.captor import captor_of
        from gapless.graphs.in_place.capture_in_place import capture_report, capture_untold

        self._import_s += perf_counter() - begin
        assert self._called is not None
        called, self._called = self._called, None
        called.stop()
        targets: list[Module | Optimizer] = [*called.modules, *called.optimizers]
        new = [target for target in targets if target not in self._done]
        if any(captor_of(target) is not None for target in new):
            self._give_up("the script captures its model or its optimizer itself")
            return
        self._done.update(new)
        for target in new:
            device = self._device or _device_of(target)
            if device is not None:
                account_of(device).charge(self._import_s)
                self._import_s = 0.0
                capture_untold(target, device)
                self._captured[weakref.ref(target)] = len(self._reports)
                self._reports.append((type(target).__name__, capture_report(target)))
        if not self._reports:
            self._why_nothing = "no weights of an optimizer are on the GPU"

    def _let_go_of_refused(self) -> None:
        """Undo captures that have come to nothing and never will."""
        from gapless.graphs.in_place.capture_in_place import release

        for reference, place in list(self._captured.items()):
            target = reference()
            report = self._renew_report(target, place)
            has_graphs = report.num_graphs > 0
            has_parts = bool(report.in_its_place)
            is_refused = report.forbids_all_for_good and not (has_graphs or has_parts)
            if target is None or (is_refused and report.num_eager >= _NUM_REFUSED):
                del self._captured[reference]
                if target is not None:
                    release(target)

    def _renew_report(self, target: Module | Optimizer | None, place: int) -> CaptureReport:
        """Return the report of an object as it is now: methods that were called since have theirs."""
        from gapless.graphs.in_place.captor import captor_of
        from gapless.graphs.in_place.capture_in_place import capture_report

        name, report = self._reports[place]
        if target is not None and captor_of(target) is not None:
            report = capture_report(target)
            self._reports[place] = (name, report)
        return report

    def _give_up(self, why: str = "", *, problem: str = "") -> None:
        """Leave the script alone from now on; what is captured stays captured."""
        self._is_over = True
        self._why_nothing, self._problem = why or problem, problem
        self._of_backward.take_out()
        if self._called is not None:
            self._called.stop()


def _device_of(target: Any) -> Device | None:
    """Return the GPU on which a module's or an optimizer's weights are; None if they are on none."""
    from gapless.device.find import find_device

    groups = (
        [{"params": target.parameters()}] if hasattr(target, "parameters") else target.param_groups
    )
    weight = next((one for group in groups for one in group["params"]), None)
    if weight is None or weight.device.type != "cuda":
        return None
    return find_device(weight.device)
