"""Capture an object where it stands: the very object stays in the loop, and its calls are graphs.

    gapless.capture(model, optimizer)
    ...
    print(gapless.capture_report(optimizer))
    gapless.release(optimizer)

What captures an object is kept by it (`gapless.graphs.in_place.captor`); how is said in a file for each kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch.nn import Module
from torch.optim import Optimizer

from gapless.errors import UserError
from gapless.graphs.capture_settings import CaptureSettings
from gapless.graphs.in_place.captor import captor_of, set_captor
from gapless.graphs.in_place.first_calls import FIRST_CALLS
from gapless.graphs.in_place.module_in_place import ModuleInPlace
from gapless.graphs.in_place.optimizer_in_place import OptimizerInPlace
from gapless.graphs.switch import is_switched_off


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.device.base import Device
    from gapless.graphs.capture_report import CaptureReport


_T = TypeVar("_T")

# How objects of a class are captured.
_CAPTORS: dict[type, Any] = {Module: ModuleInPlace, Optimizer: OptimizerInPlace}


def is_captured_in_place(target: object) -> bool:
    """Return whether `gapless.capture` captures an object where it stands."""
    return isinstance(target, tuple(_CAPTORS))


def capture_in_place(target: _T, settings: CaptureSettings) -> _T:
    """Let the calls of an object be graphs from now on; return the object.

    If it is captured in this way already, nothing changes.

    Sync: Does not block the host.
    """
    known = captor_of(target)
    if known is not None:
        if known.settings == settings:
            return target
        release(target)
    (make,) = [make for kind, make in _CAPTORS.items() if isinstance(target, kind)]
    captor = make(target, settings)
    captor.attach()
    set_captor(target, captor)
    return target


def capture_untold(target: _T, device: Device, *, gives_way: bool = True) -> _T:
    """Let the calls of an object be graphs from now on; its report alone says what is refused.

    Args:
        target: the object.
        device: where it is.
        gives_way: whether parts of a module are captured where the whole cannot be.

    Sync: Does not block the host.
    """
    settings = CaptureSettings(
        device=device, is_off=is_switched_off(), is_told=False, gives_way=gives_way
    )
    return capture_in_place(target, settings)


def wait_for_calls(targets: Sequence[Any]) -> None:
    """Let modules be called in what follows, or the user be told that they are not.

    Args:
        targets: captured together; steps of the optimizers among them count.

    Sync: Does not block the host.
    """
    captors = [captor_of(target) for target in targets]
    modules = [one for one in captors if isinstance(one, ModuleInPlace) and one.is_capturing]
    FIRST_CALLS.wait_for(modules, has_optimizer=len(modules) < len(captors))


def release(target: _T) -> _T:
    """Undo `gapless.capture` of an object; return the object.

    Its graphs and their memory are let go of. Nothing happens to one that is not captured.

    Raises:
        UserError: such objects cannot be captured.

    Sync: Does not block the host.
    """
    check_in_place(target)
    inner = _within(target)
    captor = captor_of(inner)
    if captor is not None:
        captor.detach()
        set_captor(inner, None)
    return target


def capture_report(target: object) -> CaptureReport:
    """Return what is captured of an object, what is not and why.

    `num_replays + num_eager` is the number of its calls since `gapless.capture`.

    Raises:
        UserError: the object is not captured.

    Sync: Does not block the host.
    """
    check_in_place(target)
    captor = captor_of(_within(target))
    if captor is None:
        kind = type(target).__qualname__
        raise UserError(
            f"capture_report got a {kind} that is not captured, expected one that is; call "
            "gapless.capture first"
        )
    report: CaptureReport = captor.report
    return report


def _within(target: Any) -> Any:
    """Return the optimizer within an optimizer that is not captured itself, such as Accelerate's."""
    while captor_of(target) is None and isinstance(vars(target).get("optimizer"), Optimizer):
        target = vars(target)["optimizer"]
    return target


def check_in_place(target: object) -> None:
    """Check that `gapless.capture` captures an object where it stands.

    Raises:
        UserError: it is of another kind.
    """
    if not is_captured_in_place(target):
        kinds = " or ".join([f"a torch {kind.__name__}" for kind in _CAPTORS])
        raise UserError(
            f"got a {type(target).__qualname__}, expected {kinds}, which is captured where it stands"
        )
