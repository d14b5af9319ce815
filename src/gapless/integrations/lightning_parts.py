"""The parts of a step that cannot be captured as a whole: modules and the optimizer, in place.

Lightning's own loop runs then. Which modules `training_step` calls is seen in one step as written: the
outermost ones, with weights, of the LightningModule.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from gapless.graphs.captor import captor_of
from gapless.graphs.capture import capture
from gapless.graphs.in_place import release
from gapless.integrations.lightning_report import FitReports


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from gapless.device.base import Device


# Steps that are looked at, until one has called a module.
_MAX_LOOKS = 3


class StepParts:
    """Runs Lightning's steps with modules and optimizer captured in place.

    Args:
        module: the LightningModule.
        reports: of it.
        device: where it trains.
    """

    def __init__(self, module: nn.Module, reports: FitReports, device: Device) -> None:
        self._module = module
        self._reports = reports
        self._device = device
        self._modules: list[nn.Module] | None = None
        self._num_looks = 0
        self._captured: list[tuple[Any, FitReports]] = []

    def run(self, step: Callable[[], Any], optimizer: Any, reports: FitReports) -> Any:
        """Do a step as Lightning does it; return what it returns.

        Args:
            step: of Lightning.
            optimizer: that it calls.
            reports: of the optimizer.
        """
        self._capture(optimizer, reports)
        if self._modules is None:
            return self._look(step)
        return step()

    def release(self) -> None:
        """Let all parts be what they were; what was captured stays in the reports."""
        for part, reports in self._captured:
            captor = captor_of(part)
            if captor is not None:
                reports.parts.append(captor.report)
                release(part)
            reports.place()
        self._captured = []

    def _look(self, step: Callable[[], Any]) -> Any:
        self._num_looks += 1
        with _outermost_calls(self._module) as found:
            out = step()
        if found or self._num_looks == _MAX_LOOKS:
            self._modules = found
            for module in found:
                self._capture(module, self._reports)
        return out

    def _capture(self, part: Any, reports: FitReports) -> None:
        known = captor_of(part)
        if known is None or isinstance(known, FitReports):
            capture(part, device=self._device)
            self._captured.append((part, reports))


@contextmanager
def _outermost_calls(module: nn.Module) -> Iterator[list[nn.Module]]:
    """Note which of a module and its parts are called in the body, but not within one another."""
    parts = set(map(id, module.modules()))
    found: list[nn.Module] = []
    within: list[nn.Module] = []

    def enter(part: nn.Module, args: Any) -> None:
        if not within and id(part) in parts and part not in found and _has_weights(part):
            found.append(part)
        within.append(part)

    def leave(part: nn.Module, args: Any, out: Any) -> None:
        within.pop()

    with ExitStack() as stack:
        stack.callback(register_module_forward_pre_hook(enter).remove)
        hook = register_module_forward_hook(leave, always_call=True)
        stack.callback(hook.remove)
        yield found


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
