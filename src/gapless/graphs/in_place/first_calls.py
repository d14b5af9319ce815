"""Whether a loop calls the modules that are captured: their children in their place, or nothing at all.

It is asked at the steps of optimizers, of those that are captured if there are any. A module that was called by
then, itself or by a method, is left alone. Otherwise its children are listened to for some steps, and those that
the loop calls are captured. If there are none, the user is told after a hundred steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet, finalize

from torch.optim.optimizer import register_optimizer_step_pre_hook

from gapless.device.torch_private import compiler_counters
from gapless.graphs.step_call import is_within_a_step


if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from gapless.graphs.in_place.captor import CaptorOfModule


# Steps after which children are listened to, and captured, and the user is told.
_LISTENS, _CAPTURES, _TELLS = 2, 5, 100

_NOT_CALLED = (
    f"nothing of it was called in {_TELLS} steps of an optimizer; capture the module that the loop calls, or the "
    "whole step: step = gapless.capture(step)"
)


class FirstCalls:
    """Waits for the first call of each captured module.

    Attributes:
        is_waiting: whether it is to be told of steps of captured optimizers. Of others a hook tells, as long as a
            module waits that was captured without one.
    """

    def __init__(self) -> None:
        self.is_waiting = False
        self._captors: WeakSet[CaptorOfModule] = WeakSet()
        self._without_optimizer: WeakSet[CaptorOfModule] = WeakSet()
        self._hook: RemovableHandle | None = None

    def wait_for(self, captors: Iterable[CaptorOfModule], *, has_optimizer: bool) -> None:
        """Wait for the first calls of modules.

        Args:
            captors: of the modules.
            has_optimizer: whether an optimizer is captured with them, whose steps count.
        """
        for captor in captors:
            if not captor.was_called:
                self._captors.add(captor)
                if not has_optimizer:
                    self._without_optimizer.add(captor)
                captor.is_awaited = True
                finalize(captor, self._look_who_is_left).atexit = False
        self.is_waiting = bool(self._captors)
        if self._without_optimizer and not has_optimizer and self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._before_step)

    def wait_no_more(self, captor: CaptorOfModule) -> None:
        """Leave a module alone: it was called, or whoever has captured it knows what calls it."""
        captor.was_called = True
        self._leave(captor)
        captor.listen_no_more()

    def _leave(self, captor: CaptorOfModule) -> None:
        captor.is_awaited = False
        self._captors.discard(captor)
        self._without_optimizer.discard(captor)
        self._look_who_is_left()

    def _look_who_is_left(self) -> None:
        self.is_waiting = bool(self._captors)
        if not self._without_optimizer:
            self._take_hook_out()

    def _take_hook_out(self) -> None:
        # Torch may be calling it just now, which the last of its hooks alone may be taken out of.
        hooks = self._hook and self._hook.hooks_dict_ref()
        if self._hook is not None and hooks and next(reversed(hooks)) == self._hook.id:
            self._hook.remove()
            self._hook = None

    def note_step(self) -> None:
        """Take note of a step of a captured optimizer."""
        self._take_hook_out()
        for captor in list(self._captors):
            self._note(captor)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._without_optimizer:
            self._take_hook_out()
        if is_within_a_step():
            return
        weights = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for captor in list(self._captors):
            if any(id(weight) in weights for weight in captor.target.parameters()):
                self._note(captor)

    def _note(self, captor: CaptorOfModule) -> None:
        # By compiled code, which tells nobody.
        if captor.was_called:
            self._leave(captor)
            return
        captor.num_steps_before += 1
        if captor.num_steps_before == _LISTENS and not compiler_counters()["frames"]["total"]:
            captor.listen()
        elif captor.num_steps_before == _CAPTURES:
            captor.capture_called_parts()
        elif captor.num_steps_before == _TELLS:
            captor.tell_not_called(_NOT_CALLED)
        if captor.parts or captor.num_steps_before == _TELLS:
            self._leave(captor)


FIRST_CALLS = FirstCalls()
