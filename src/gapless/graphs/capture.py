"""Capture the step of anybody's loop, or its model and its optimizer where they stand.

step = gapless.capture(step)
for batch in gapless.prefetch(loader, device):
    losses.add(step(batch))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

from gapless.device.find import find_device
from gapless.errors import UserError
from gapless.graphs.capture_settings import CaptureSettings
from gapless.graphs.captured_function import CapturedFunction
from gapless.graphs.in_place.capture_in_place import (
    capture_in_place,
    check_in_place,
    is_captured_in_place,
    wait_for_calls,
)
from gapless.graphs.switch import is_switched_off
from gapless.pipeline.step import SplitStep


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gapless.device.base import Device
    from gapless.records.wait_stats import WaitStats


_InPlaceT = TypeVar("_InPlaceT", bound="torch.nn.Module | torch.optim.Optimizer")

_Step: TypeAlias = "Callable[..., Any] | SplitStep"

# In the place of a step where `capture` decorates one.
_NOTHING_YET: Any = object()


class _Options(TypedDict, total=False):
    device: str | torch.device | Device
    num_warmup: int
    max_graphs: int
    on_refusal: Literal["eager", "raise"]
    audit_every: int | None
    compile: bool | Literal["dynamic"]
    steps_per_launch: int | None
    wait_stats: WaitStats | None


# Modules are callable as well: the first that fits is taken.
@overload
def capture(  # type: ignore[overload-overlap]
    step: _InPlaceT, /, **options: Unpack[_Options]
) -> _InPlaceT: ...


@overload
def capture(
    step: torch.nn.Module | torch.optim.Optimizer,
    another: torch.nn.Module | torch.optim.Optimizer,
    /,
    *others: torch.nn.Module | torch.optim.Optimizer,
    **options: Unpack[_Options],
) -> tuple[torch.nn.Module | torch.optim.Optimizer, ...]: ...


@overload
def capture(step: _Step, /, **options: Unpack[_Options]) -> CapturedFunction: ...


@overload
def capture(**options: Unpack[_Options]) -> Callable[[_Step], CapturedFunction]: ...


def capture(
    step: Any = _NOTHING_YET,
    /,
    *others: Any,
    device: str | torch.device | Device = "auto",
    num_warmup: int = 2,
    max_graphs: int = 100,
    on_refusal: Literal["eager", "raise"] = "eager",
    steps_per_launch: int | None = None,
    audit_every: int | None = None,
    compile: bool | Literal["dynamic"] = False,
    wait_stats: WaitStats | None = None,
) -> Any:
    """Let a step, a module or an optimizer run as CUDA graphs, with the same bits or as written.

    - `step = gapless.capture(step)` returns a function that is launched as one graph: forward pass,
      backward pass and update. `@gapless.capture` and `@gapless.capture(device="cuda")` decorate
      functions and methods; each object has graphs of its own.
    - `gapless.capture(model, optimizer)` captures each where it stands, in a loop that stays as it is:
      whatever the loop calls of the model, its backward pass, and `optimizer.step()`.

    There is a graph for each kind of call, by the structure, plain values and shapes of its arguments.
    Each kind runs as written at first, is watched, and then captured; its graph has to give the same
    bits. What is not captured runs as written, and a `CaptureWarning` says why, once for each reason; of a
    module that cannot be captured for a line of its own, parts are captured in its place.
    On a CPU, and with `GAPLESS_CAPTURE=off` in the environment, which is read here, everything does.

    What a step does on the host (printing, counting, Python's random numbers) belongs in a method
    `on_host` of it, or of the object whose method it is, which is called before each call with the same
    arguments. Call schedulers of rates outside. Another optimizer needs a new `capture`. Call a module
    in evaluation under `torch.no_grad()`. What is not captured in place stands in docs/recipes/in_place.md.

    Args:
        step: trains on its arguments, which are on the device, and returns its loss or any
            structure of tensors: a function, a method, a callable object that is no module, or
            a step in two parts. Or a module; or an optimizer.
        others: further modules and optimizers, captured as the first is.
        device: a device or its name.
        num_warmup: watched eager runs of each kind before its capture, behind two plain ones; at least 2.
        max_graphs: graphs at one time, of all kinds of calls together.
        on_refusal: what happens when a call may not be captured: "eager" runs it as written, with
            a warning, "raise" raises `CaptureRefused` after that.
        steps_per_launch: the function then takes a list or tuple of up to so many batches, each as
            the step takes one, and returns the list of what the step returns for each. As many
            batches of equal shapes are launched as one graph; fewer, others, and steps with a
            part on the host one by one. The results are the same.
        audit_every: a graph in use is compared with the step as written once in so many of its
            replays. None: once in 32 at first and in up to 1,000 later, at random places, and after an
            epoch, an evaluation, or a pause. A difference drops the graphs, and a `CaptureWarning` tells it.
        compile: compile layers with `torch.compile` and capture what they launch: layers that repeat one by one,
            a module in which nothing repeats as a whole; of a step those of the modules that its first call
            calls. The bits are those of a loop with the same layers compiled and not captured, which is
            what runs with `GAPLESS_CAPTURE=off`, and on a CPU. True compiles for each shape, which takes
            seconds each; "dynamic" once for all. What cannot be compiled runs eagerly, with a warning.
        wait_stats: where the waits for captures are counted ("capture").

    Returns:
        Of a step a function, whose results lie on the device, in memory of their own, and whose
        `report` says what is captured. Of a module or an optimizer itself; of several their tuple.

    Raises:
        UserError: a setting is out of range, a module or an optimizer gets `steps_per_launch`, or
            one of several is neither.
        DeviceError: the device is unknown or absent.

    Example:
        step = gapless.capture(train_step)
        losses = gapless.DeferredLoss(device)
        for batch in gapless.prefetch(loader, device):
            losses.add(step(batch))
        print(losses.mean(), step.report)

        gapless.capture(model, optimizer)
        for x, y in gapless.prefetch(loader, device):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(gapless.capture_report(model), gapless.capture_report(optimizer))

    Sync: Does not block the host. Later calls block it where a graph is captured ("capture"), and
        where the step does so itself.
    """
    settings = CaptureSettings(
        device=find_device(device),
        num_warmup=num_warmup,
        max_graphs=max_graphs,
        on_refusal=on_refusal,
        wait_stats=wait_stats,
        steps_per_launch=steps_per_launch,
        audit_every=audit_every,
        compile=compile,
        is_off=is_switched_off(),
    )

    for one in (step, *others) if others else ():
        check_in_place(one)
    if is_captured_in_place(step):
        if steps_per_launch is not None:
            raise UserError(
                "capture of a module or an optimizer got `steps_per_launch`, which is for steps; leave it out"
            )
        captured = tuple([capture_in_place(one, settings) for one in (step, *others)])
        wait_for_calls(captured)
        return captured if others else step

    if step is _NOTHING_YET:
        return lambda step: CapturedFunction(step, settings)
    if not (callable(step) or isinstance(step, SplitStep) or hasattr(step, "__get__")):
        raise UserError(
            f"capture got a {type(step).__qualname__}, expected a step, which can be called, a "
            "module or an optimizer"
        )
    return CapturedFunction(step, settings)
