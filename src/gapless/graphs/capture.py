"""Capture the step of anybody's loop.

step = gapless.capture(step)
for batch in gapless.prefetch(loader, device):
    losses.add(step(batch))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar, overload
from weakref import ref

import torch

from gapless.device.find import find_device
from gapless.errors import CaptureRefused, UserError
from gapless.graphs.captured_step import CapturedStep
from gapless.graphs.graph_cache import memory_share
from gapless.graphs.refusal import Refusal
from gapless.graphs.side_stream import SideStream
from gapless.graphs.snapshot import Snapshot
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.prefetch import prefetch
from gapless.pipeline.step import call_host_part, do_work
from gapless.pipeline.tree import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.device.base import Device
    from gapless.graphs.capture_report import CaptureReport
    from gapless.pipeline.step import SplitStep
    from gapless.records.wait_stats import WaitStats


_PartT = TypeVar("_PartT")

_Step: TypeAlias = "Callable[..., Any] | SplitStep"

# Where an object keeps its captured methods.
_METHODS = "_gapless_captured_methods"


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """How a function is captured."""

    device: Device
    num_warmup: int
    max_graphs: int
    memory_fraction: float
    on_refusal: Literal["eager", "raise"]
    wait_stats: WaitStats | None

    def __post_init__(self) -> None:
        if self.num_warmup < 2:
            raise UserError(
                f"num_warmup is {self.num_warmup}, expected at least 2: the first run makes the "
                "optimizer's state, the second shows whether the step makes it anew"
            )
        if self.max_graphs < 1:
            raise UserError(f"max_graphs is {self.max_graphs}, expected at least 1")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise UserError(
                f"memory_fraction is {self.memory_fraction}, expected a share of the device's "
                "memory above 0 and up to 1"
            )
        if self.on_refusal not in ("eager", "raise"):
            raise UserError(f"on_refusal is {self.on_refusal!r}, expected 'eager' or 'raise'")

    def wrap(self, step: Any, side: SideStream) -> CapturedStep:
        """Return a step that can be captured."""
        return CapturedStep(
            step,
            device=self.device,
            host_waits=HostWaits(self.device, wait_stats=self.wait_stats),
            num_warmup=self.num_warmup,
            max_graphs=self.max_graphs,
            memory_budget_bytes=memory_share(self.device, self.memory_fraction),
            on_side_stream=side.use,
            launch=lambda replay: side.launch(lambda: _own(replay())),
        )


class CapturedFunction:
    """A function that is captured, for a loop that is not ours; made by `capture`.

    In a class it is a method: each object has graphs of its own, which live as long as it.
    """

    def __init__(self, step: Any, settings: _Settings) -> None:
        # Not its attributes: they could be named as ours.
        update_wrapper(self, step, updated=())
        self._settings = settings
        self._device = settings.device
        self._side = SideStream(self._device)
        self._captured = settings.wrap(step, self._side)
        if not self._device.is_accelerator:
            text = "a CPU runs its work itself, there is nothing to launch"
            self.report.refusal = Refusal("cpu", text)

    @property
    def report(self) -> CaptureReport:
        """What is captured, what is not and why; as a text it is one line."""
        return self._captured.report

    def __call__(self, *batches: Any, **named: Any) -> Any:
        """Train on one batch, which is on the device; return what the step returns.

        Tensors come without their graph of gradients, and are the caller's own: the next call
        does not overwrite them.

        Raises:
            TypeError: there is not exactly one argument.
            UserError: the step returned something else than tensors, plain values, tuples,
                lists, mappings and dataclasses of them.
            CaptureRefused: `on_refusal` is "raise", and this batch ran eagerly because it may
                not be captured. It has been trained on.
            Exception: whatever the step raises.

        Sync: Does not block the host, except where a graph is captured ("capture"), and where
            the step does so itself.
        """
        if len(batches) != 1 or named:
            raise TypeError(
                f"{self!r} takes one batch, but got {len(batches)} positional and {len(named)} "
                "named arguments; pass several tensors as one tuple, dict or dataclass"
            )
        batch = batches[0]
        if not self._device.is_accelerator:
            self.report.num_eager += 1
            call_host_part(self._captured.step, batch)
            return _own(do_work(self._captured.step, batch))
        self._side.come_after_runs()
        call_host_part(self._captured.step, batch)
        return self._run(batch)

    def __repr__(self) -> str:
        name = getattr(self, "__qualname__", None) or repr(self._captured.step)
        return f"<captured {name}>"

    def clear(self) -> None:
        """Let go of all graphs and their memory, such as before a step with other work.

        Batches are captured again without another warm-up.

        Sync: Does not block the host.
        """
        self._captured.drop_graphs()
        self._captured.lift_refusal()

    def _run(self, batch: Any) -> Any:
        done = self._captured.run(flatten(batch))
        if done.way != "eager":
            return done.out
        self._raise_refusal()
        return _own(done.out)

    def _raise_refusal(self) -> None:
        refusal = self.report.refusal
        if refusal is not None and self._settings.on_refusal == "raise":
            raise CaptureRefused(f"{self!r} is not captured: {refusal.text}", kind=refusal.kind)

    def capture_ahead(self, batches: Iterable[Any], snapshot: Callable[[], Snapshot]) -> None:
        """Capture the step for these batches, and from here on for no others.

        Args:
            batches: one of each kind.
            snapshot: takes one of what the step changes, on the side stream.

        Raises:
            CaptureRefused: `on_refusal` is "raise", and not all of them are captured.

        Sync: Blocks the host ("capture"); on a CPU nothing is done.
        """
        if not self._device.is_accelerator:
            return
        with self._side.use():
            taken = snapshot()
            trees = prefetch(batches, self._device).trees()
            self._captured.capture_ahead(trees, snapshot=taken, only_these=True)
        self._raise_refusal()

    # --- as a method ---

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> CapturedFunction: ...

    def __get__(self, instance: object | None, owner: type) -> CapturedFunction:
        """Return the captured method of one object."""
        # As Python does: only functions become methods.
        if instance is None or not hasattr(self._captured.step, "__get__"):
            return self
        return _CapturedMethods.of(instance).get(self, instance)

    def bound_to(self, instance: object) -> CapturedFunction:
        """Return a captured function of its own for the method of one object."""
        step: Any = self._captured.step
        return CapturedFunction(step.__get__(instance), self._settings)


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
            found = kept[_METHODS] = cls(instance)
        return found

    def get(self, method: CapturedFunction, instance: object) -> CapturedFunction:
        """Return the captured method of the object, made at its first use."""
        if method not in self._functions:
            self._functions[method] = method.bound_to(instance)
        return self._functions[method]

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Leave graphs out of copies and files of the object."""
        return type(self), ()


@overload
def capture(
    step: _Step,
    /,
    *,
    device: str | torch.device | Device = ...,
    example_inputs: Iterable[Any] | None = ...,
    model: torch.nn.Module | None = ...,
    optimizer: torch.optim.Optimizer | None = ...,
    scaler: torch.amp.GradScaler | None = ...,
    num_warmup: int = ...,
    max_graphs: int = ...,
    memory_fraction: float = ...,
    on_refusal: Literal["eager", "raise"] = ...,
    wait_stats: WaitStats | None = ...,
) -> CapturedFunction: ...


@overload
def capture(
    step: None = None,
    /,
    *,
    device: str | torch.device | Device = ...,
    example_inputs: Iterable[Any] | None = ...,
    model: torch.nn.Module | None = ...,
    optimizer: torch.optim.Optimizer | None = ...,
    scaler: torch.amp.GradScaler | None = ...,
    num_warmup: int = ...,
    max_graphs: int = ...,
    memory_fraction: float = ...,
    on_refusal: Literal["eager", "raise"] = ...,
    wait_stats: WaitStats | None = ...,
) -> Callable[[_Step], CapturedFunction]: ...


def capture(
    step: _Step | None = None,
    /,
    *,
    device: str | torch.device | Device = "auto",
    example_inputs: Iterable[Any] | None = None,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    num_warmup: int = 2,
    max_graphs: int = 100,
    memory_fraction: float = 0.8,
    on_refusal: Literal["eager", "raise"] = "eager",
    wait_stats: WaitStats | None = None,
) -> CapturedFunction | Callable[[_Step], CapturedFunction]:
    """Return a step that is launched as one CUDA graph for each kind of batch.

    Two batches are of one kind if their structure, plain values and shapes are equal. Each kind
    runs eagerly at first, as warm-up, and is then captured. What is not captured runs eagerly, and
    is counted. What the step does on the host (printing, counting, Python's random numbers) is not
    done again by a graph, except for a method `on_host(batch)` of the step. Numbers of torch's
    optimizers are watched; make a rate that changes every step a tensor on the device, fill it in
    place, and call schedulers outside. Modules in training and in evaluation have graphs of their
    own; another optimizer needs a new `capture`.

    Also a decorator, `@gapless.capture` or `@gapless.capture(device="cuda")`, of functions and
    methods. Each object whose method is captured has graphs of its own.

    On a CPU the step always runs eagerly, and nothing is raised: there is nothing to launch.

    Args:
        step: takes one batch on the device, trains on it and returns its loss, or any structure
            of tensors. Adam and AdamW need `capturable=True`.
        device: a device or its name.
        example_inputs: batches, one of each kind: captured now in this order, as far as the
            limits go, without training on them, and no other kinds later. Needs `model` and
            `optimizer` (not NAdam and others whose state does not begin at zero: graphs are then
            captured as batches come).
        model: its weights and buffers are put back after `example_inputs`.
        optimizer: its state is put back.
        scaler: of gradients, put back as well.
        num_warmup: eager runs of each kind before its capture, at least 2.
        max_graphs: graphs at one time.
        memory_fraction: share of the device's memory that the process may hold for a further
            graph to be captured, above 0 and up to 1.
        on_refusal: what happens when a batch may not be captured: "eager" runs it eagerly,
            "raise" raises `CaptureRefused` after that.
        wait_stats: where the waits for captures are counted ("capture").

    Raises:
        UserError: a number is out of range, or there are examples without a model or optimizer.
        DeviceError: the device is unknown or absent.
        BatchError: an example holds something that cannot be moved.
        CaptureRefused: `on_refusal` is "raise", and an example cannot be captured.

    Example:
        step = gapless.capture(train_step)
        losses = gapless.DeferredLoss(device)
        for batch in gapless.prefetch(loader, device):
            losses.add(step(batch))
        print(losses.mean(), step.report)

    Sync: Blocks the host if there are examples ("capture"); otherwise does not.
    """
    settings = _Settings(
        device=find_device(device),
        num_warmup=num_warmup,
        max_graphs=max_graphs,
        memory_fraction=memory_fraction,
        on_refusal=on_refusal,
        wait_stats=wait_stats,
    )

    def made(step: _Step) -> CapturedFunction:
        captured = CapturedFunction(step, settings)
        if example_inputs is not None:
            parts = _needed(model, "model"), _needed(optimizer, "optimizer")
            captured.capture_ahead(example_inputs, lambda: Snapshot(*parts, scaler=scaler))
        return captured

    return made if step is None else made(step)


def _needed(part: _PartT | None, name: str) -> _PartT:
    if part is None:
        raise UserError(
            f"capture with example_inputs got no {name}, expected the model and the optimizer "
            "that the step trains, to put them back after the captures; give both, or no examples"
        )
    return part


def _own(out: Any) -> Any:
    """Return copies of what a step returned, which no replay overwrites."""
    if isinstance(out, torch.Tensor):  # as nearly all steps do; a tree would cost microseconds
        return _copy_of(out)
    tree = flatten(out)
    if tree.unknown:
        raise UserError(
            f"the captured step returned an object of type {type(tree.unknown[0]).__name__}, "
            "expected tensors, plain values, or tuples, lists, mappings and dataclasses of them"
        )
    return tree.map(_copy_of).value


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone() if tensor.requires_grad else tensor.clone()
