"""The variant in which the model and the optimizer are captured in place."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from gapless.device.torch_private import global_post_hooks
from gapless.graphs.in_place.captor import captor_of
from gapless.graphs.in_place.capture_in_place import capture_report, capture_untold, release
from gapless.graphs.in_place.method_in_place import methods_of
from gapless.graphs.updates.step_replaced import method_in_place_of
from gapless.trials.called_parts import CalledParts, compiles
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gapless.device.base import Device
    from gapless.graphs.capture_report import CaptureReport
    from gapless.records.finding import Finding


_CODES = frozenset(["GAP017"])

# After the capture: steps in which the graphs are to be there, and the last of them without a new one.
_MOST_STEPS = 60
_QUIET_STEPS = 4

# What a captured part has in its own attributes in the place of what its class has.
_ATTRIBUTES = ("forward", "__getstate__", "step")

_MISSING: Any = object()


class CapturedParts:
    """Captures the modules that a step calls and the optimizers that it takes, as `gapless.capture` does.

    Between windows the parts run eagerly; graphs are kept until the end.

    Args:
        device: where the script trains.
    """

    name = "captured in place"
    change = "The model and the optimizer are captured in place: their calls are graphs."
    num_steps_to_recover = 0

    def __init__(self, device: Device) -> None:
        self._device = device
        self._called = CalledParts()
        self._parts: list[_Part] = []
        self._refusal = ""
        self._details: tuple[str, ...] = ()
        self._is_found = False
        self._num_graphs = 0
        self._num_asked = 0
        self._num_quiet = 0

    @property
    def refusal(self) -> str:
        """Why nothing is captured; empty where something may be."""
        if not self._device.is_accelerator:
            return "there is no accelerator, so there is nothing to launch"
        if not self._is_found and compiles():
            return (
                "torch.compile is at work, and to look for what is called would compile it again"
            )
        return self._refusal

    @property
    def details(self) -> tuple[str, ...]:
        """What is captured of each part, and what is not."""
        return self._details or tuple(part.described() for part in self._parts)

    @property
    def is_settled(self) -> bool:
        """Whether graphs are there and no more come; looks for the parts first, and captures them."""
        if not self._is_found:
            self._capture()
            return False
        if self._num_asked >= _MOST_STEPS or self._refusal:
            return True
        self._num_asked += 1
        num_graphs = sum(part.report.num_graphs for part in self._parts)
        is_quiet = num_graphs == self._num_graphs and all(part.is_decided for part in self._parts)
        self._num_graphs = num_graphs
        self._num_quiet = self._num_quiet + 1 if is_quiet else 0
        if self._num_quiet < _QUIET_STEPS and self._num_asked < _MOST_STEPS:
            return False
        self._num_asked = _MOST_STEPS
        if not any(part.is_captured for part in self._parts):
            self._refusal = "; ".join(dict.fromkeys(part.refusal for part in self._parts))
        return True

    def is_for(self, findings: Sequence[Finding]) -> bool:
        """Return whether the device waits for launches."""
        return any(finding.code in _CODES for finding in findings)

    def start(self, step_ended: Callable[[Any], None]) -> None:
        """Let calls be graphs from now on; look for what is called first.

        Sync: Does not block the host. The calls that are captured do.
        """
        self._step_ended = step_ended
        if not self._is_found:
            self._called.start()
        for part in self._parts:
            part.put_in()

    def stop(self) -> None:
        """Let calls run eagerly from now on.

        Sync: Does not block the host.
        """
        self._called.stop()
        for part in self._parts:
            part.take_out()

    def close(self) -> None:
        """Let go of all graphs."""
        self.stop()
        self._details = self.details
        for part in self._parts:
            part.release()
        self._parts = []

    def _capture(self) -> None:
        self._called.stop()
        self._is_found = True
        modules, optimizers = self._called.modules, self._called.optimizers
        targets: list[nn.Module | Optimizer] = [*modules, *optimizers]
        if not optimizers:
            self._refusal = "no optimizer of torch took a step"
        elif any(captor_of(target) is not None for target in targets):
            self._refusal = "the script captures its model or its optimizer itself"
        if self._refusal:
            return
        for target in targets:
            part = _Part(target, self._device, step_ended=lambda one: self._step_ended(one))
            self._parts.append(part)


class _Part:
    """A module or an optimizer that is captured, and runs eagerly for a while now and then.

    Args:
        target: the module or optimizer.
        device: where it is.
        step_ended: called with an optimizer at the end of each of its steps.
    """

    def __init__(
        self, target: nn.Module | Optimizer, device: Device, *, step_ended: Callable[[Any], None]
    ) -> None:
        self._target = target
        names = (*_ATTRIBUTES, *(methods_of(target) if isinstance(target, nn.Module) else ()))
        self._of_eager = _own_attributes(target, names)
        # The trial shows refusals itself: a warning would appear among the script's own output.
        capture_untold(target, device, gives_way=False)
        self._is_in = True
        self._is_over = False
        self._of_notices = Patches()
        self._of_eager_calls = Patches()
        if isinstance(target, Optimizer):
            notifying = method_in_place_of(
                target.step, self._notifying(target.step, step_ended), target
            )
            self._of_notices.put(target, "step", notifying)
        self._captured = _own_attributes(target, names)

    @property
    def report(self) -> CaptureReport:
        """What is captured of it."""
        return capture_report(self._target)

    @property
    def is_captured(self) -> bool:
        """Whether calls are graphs."""
        return self.report.num_replays > 0

    @property
    def is_decided(self) -> bool:
        """Whether calls are graphs, or never will be."""
        return self.is_captured or self.report.forbids_all

    @property
    def refusal(self) -> str:
        """Why no call is a graph, in one line."""
        refusals = self.report.refusals
        why = refusals[0].text if refusals else f"no call was captured in {_MOST_STEPS} steps"
        return f"{type(self._target).__name__}: {why}"

    def described(self) -> str:
        """Return one line on what is captured of it."""
        return f"{type(self._target).__name__}: {str(self.report).splitlines()[0]}"

    def put_in(self) -> None:
        """Let its calls be graphs."""
        self._of_eager_calls.take_out()
        self._is_in = True

    def take_out(self) -> None:
        """Let its calls run eagerly."""
        if self._is_in:
            for name, value in self._of_eager.items():
                # The script may have replaced ours meanwhile, as a scheduler does: to undo it would lose that.
                if vars(self._target).get(name, _MISSING) is not self._captured[name]:
                    continue
                if value is _MISSING:
                    self._of_eager_calls.hide(self._target, name)
                else:
                    self._of_eager_calls.put(self._target, name, value)
        self._is_in = False

    def release(self) -> None:
        """Undo the capture."""
        self._is_over = True
        self._of_eager_calls.take_out()
        self._of_notices.take_out()
        release(self._target)

    def _notifying(
        self, step: Callable[..., Any], step_ended: Callable[[Any], None]
    ) -> Callable[..., Any]:
        """Return a step that notes its end once, whether it is replayed or runs eagerly.

        A graph calls no hooks, and its capture and its proof call some more often: ours are not called in
        between.
        """

        def notifying_step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._is_over:  # a scheduler made during the trial keeps this method for good
                return step(*args, **kwargs)
            with _without_our_hooks():
                result = step(*args, **kwargs)
            step_ended(optimizer)
            return result

        return notifying_step


def _own_attributes(target: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: vars(target).get(name, _MISSING) for name in names}


@contextmanager
def _without_our_hooks() -> Iterator[None]:
    """Let optimizers call none of the hooks that gapless has put on all of them."""
    hooks = global_post_hooks
    ours = {
        number: hook
        for number, hook in hooks.items()
        if getattr(hook, "__module__", "").startswith("gapless.")
    }
    for number in ours:
        del hooks[number]
    try:
        yield
    finally:
        hooks.update(ours)
