"""What a training step of Lightning logs: noted while the step runs, logged when it is over.

`self.log` is a call on the host, which a replay skips. So while a captured step runs, a stand-in
notes name, value and options, and the values are among what the step returns. After the
step, replayed or not, the same calls are made with the values of this step.

For `prog_bar=True` Lightning reads the value of each step from the device. Here it gets `prog_bar=False`,
and `trainer.progress_bar_metrics` gets the newest number that has arrived; at the end of an epoch, those of
its last batch.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gapless.integrations.framework_private import log_again, logging_from, result_of
from gapless.pipeline.losses.deferred_loss import DeferredLoss


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.device.base import Device


# Nobody sees a bar change more often.
_SECONDS_BETWEEN_LOOKS = 0.05


@dataclass(slots=True)
class _Form:
    """A call of `self.log` apart from its value.

    Attributes:
        hook: within which it was made.
        name: that it logs.
        other: what is logged, if it is neither a tensor nor a number.
        args: the others by position.
        kwargs: the others by name.
        shown: the name in the progress bar of what Lightning would read in each step, "" if it does not.
        shown_of_epoch: likewise at the end of an epoch.
        options: those that Lightning gets.
        size: of the batch, if the call says it.
        kept: where Lightning keeps what is logged, None until the call was made once.
    """

    hook: str
    name: str
    other: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shown: str = ""
    shown_of_epoch: str = ""
    options: dict[str, Any] | None = None
    size: Any = None
    kept: Any = None

    def is_of(self, hook: str, name: str, other: Any, args: Any, kwargs: Any) -> bool:
        """Return whether a call has this form."""
        return (hook, name, args, kwargs) == (
            self.hook,
            self.name,
            self.args,
            self.kwargs,
        ) and other is self.other


class LateLogs:
    """Stands for `self.log` of one module while a step runs, and makes its calls later.

    Args:
        trainer: that fits.
        module: the LightningModule.
        device: where it trains.
        log_of_framework: the function that `module.log` is if nobody overrides it.
    """

    def __init__(self, trainer: Any, module: Any, device: Device, log_of_framework: Any) -> None:
        self._trainer, self._module, self._device = trainer, module, device
        self._signature = inspect.signature(log_of_framework)
        # What is overridden decides itself what it shows.
        self._is_plain = type(module).log is log_of_framework
        # One object each for all steps: they are among what a captured step reads.
        self._noting, self._making = self._note, self._make_now
        self._hook = "training_step"
        self._forms: list[_Form] = []
        self._numbers: list[int] = []
        self._values: list[Any] = []
        # For the progress bar: what was logged last, and what of it is still being copied.
        self._newest: dict[str, Any] = {}
        self._on_their_way: dict[str, DeferredLoss] = {}
        self._next_look = 0.0

    # --- in a step ---

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note calls in the body, instead of making them; make them if it raises."""
        with self._in_place(self._noting):
            try:
                yield
            except BaseException:
                vars(self._module).pop("log", None)
                self.make(*self.end())
                raise

    def late(self) -> AbstractContextManager[None]:
        """Make calls in the body, but do not let the progress bar wait."""
        return self._in_place(self._making) if self._is_plain else nullcontext()

    @contextmanager
    def _in_place(self, log: Any) -> Iterator[None]:
        kept = vars(self._module)
        before = kept.get("log")
        if before is None or before == self._making:
            kept["log"] = log
        try:
            yield
        finally:
            kept.pop("log", None)
            if before is not None:
                kept["log"] = before

    def begin(self) -> None:
        """Forget what was noted, at the beginning of a step."""
        self._numbers, self._values = [], []
        self._hook = "training_step"

    @contextmanager
    def within(self, hook: str) -> Iterator[None]:
        """Note calls in the body as those of a hook."""
        before, self._hook = self._hook, hook
        try:
            yield
        finally:
            self._hook = before

    def end(self) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        """Return what was noted: the numbers of forms of calls, and the values."""
        numbers, values = tuple(self._numbers), tuple(self._values)
        self.begin()
        return numbers, values

    def _note(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        is_number = isinstance(value, torch.Tensor | int | float)
        self._numbers.append(
            self._number_of(self._hook, name, None if is_number else value, args, kwargs)
        )
        if isinstance(value, torch.Tensor):
            # As of now: what is logged may be changed before the step is over.
            value = value.detach().clone()
        self._values.append(value if is_number else None)

    def _number_of(self, *call: Any) -> int:
        for number, form in enumerate(self._forms):
            if form.is_of(*call):
                return number
        self._forms.append(self._new_form(*call))
        return len(self._forms) - 1

    def _new_form(self, hook: str, name: str, other: Any, args: Any, kwargs: Any) -> _Form:
        form = _Form(hook, name, other, args, kwargs)
        if other is not None or not self._is_plain:
            return form
        bound = self._signature.bind_partial(self._module, name, None, *args, **kwargs)
        options = dict(list(bound.arguments.items())[3:])
        form.size = options.get("batch_size")
        # In a step, what is logged without saying when is logged at each step.
        if options.get("prog_bar") and options.get("on_step") is not False:
            has_epoch = bool(options.get("on_epoch"))
            form.shown = f"{name}_step" if has_epoch else name
            form.shown_of_epoch = f"{name}_epoch" if has_epoch else ""
            form.options = {**options, "prog_bar": False}
        return form

    # --- afterwards ---

    def make(self, numbers: Sequence[int], values: Sequence[Any]) -> None:
        """Make the calls that were noted.

        Sync: Does not block the host, unless Lightning does.
        """
        hook = "training_step"
        for number, value in zip(numbers, values, strict=True):
            form = self._forms[number]
            if form.hook == hook:
                self._make(form, value)
            else:
                with logging_from(self._module, form.hook):
                    self._make(form, value)

    def _make_now(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        is_number = isinstance(value, torch.Tensor | int | float)
        # Lightning knows which hook it calls.
        number = self._number_of("", name, None if is_number else value, args, kwargs)
        before = vars(self._module).pop("log")
        try:
            self._make(self._forms[number], value)
        finally:
            vars(self._module)["log"] = before

    def _make(self, form: _Form, value: Any) -> None:
        module = self._module
        if not self._make_again(form, value):
            if form.options is not None:
                module.log(form.name, value, **form.options)
            else:
                logged = value if form.other is None else form.other
                module.log(form.name, logged, *form.args, **form.kwargs)
            if form.hook and form.other is None and self._is_plain:
                form.kept = result_of(module, form.hook, form.name)
        if form.options is not None:
            self._newest[form.shown] = value.detach() if isinstance(value, torch.Tensor) else value

    def _make_again(self, form: _Form, value: Any) -> bool:
        if form.kept is None or not isinstance(value, torch.Tensor) or value.numel() != 1:
            return False
        return log_again(self._module, form.hook, form.name, value, form.size, form.kept)

    # --- the progress bar ---

    def show(self) -> None:
        """Give the progress bar what has arrived, and send its newest values; wait for the first of each.

        Sync: Does not block the host, but for the first number of each name.
        """
        if not self._newest or perf_counter() < self._next_look:
            return
        self._next_look = perf_counter() + _SECONDS_BETWEEN_LOOKS
        metrics = self._trainer.progress_bar_metrics
        for name, value in self._newest.items():
            if name not in metrics or not isinstance(value, torch.Tensor):
                metrics[name] = float(value)
            else:
                self._look(name, value, metrics)

    def _look(self, name: str, value: torch.Tensor, metrics: dict[str, Any]) -> None:
        on_its_way = self._on_their_way.get(name)
        if on_its_way is None:
            on_its_way = DeferredLoss(self._device, warn_nonfinite=False)
            self._on_their_way[name] = on_its_way
        latest = on_its_way.latest()
        if latest is not None:
            metrics[name] = latest.values["loss"]
        on_its_way.add(value)
        on_its_way.flush()

    def show_all(self, *, of_epoch: bool = False) -> None:
        """Give the progress bar the numbers of the last step.

        Args:
            of_epoch: and the means of the epoch that ends.

        Sync: Blocks the host until they are there.
        """
        if not self._newest:
            return
        metrics = self._trainer.progress_bar_metrics
        metrics.update({name: float(value) for name, value in self._newest.items()})
        self._newest, self._on_their_way = {}, {}
        if of_epoch:
            means = self._trainer.callback_metrics
            for form in self._forms:
                if form.shown_of_epoch in means:
                    metrics[form.shown_of_epoch] = float(means[form.shown_of_epoch])
