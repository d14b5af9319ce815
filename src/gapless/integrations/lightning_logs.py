"""What a training step of Lightning logs: noted while the step runs, logged when it is over.

`self.log` is a call on the host, which a replay skips. So while a captured step runs, what stands in
its place notes name, value and options, and the values are among what the step returns. After the
step, replayed or not, the same calls are made with the values of this step.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# Arguments of `log` by position, after name and value, that stand before `batch_size`.
_NUM_BEFORE_BATCH_SIZE = 9


@dataclass(slots=True)
class _Form:
    """A call of `self.log` apart from its value.

    Attributes:
        hook: within which it was made.
        name: that it logs.
        other: what is logged, if it is neither a tensor nor a number.
        args: the others by position.
        kwargs: the others by name.
        result: where Lightning keeps what is logged there, None until the call was made once.
    """

    hook: str
    name: str
    other: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None

    def is_of(self, hook: str, name: str, other: Any, args: Any, kwargs: Any) -> bool:
        """Return whether a call has this form."""
        return (hook, name, args, kwargs) == (
            self.hook,
            self.name,
            self.args,
            self.kwargs,
        ) and other is self.other


class LoggedCalls:
    """Notes the calls of `self.log` of one module, and makes them later.

    Args:
        module: the LightningModule.
        log_of_framework: the function that `module.log` is if nobody overrides it.
    """

    def __init__(self, module: Any, log_of_framework: Any) -> None:
        self._module = module
        self._is_plain = type(module).log is log_of_framework
        # One object for all steps: it is among what a captured step reads.
        self._in_place = self._note
        self._hook = "training_step"
        self._forms: list[_Form] = []
        self._numbers: list[int] = []
        self._values: list[Any] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note calls in the body, instead of making them; make them if it raises."""
        kept = vars(self._module)
        kept["log"] = self._in_place
        try:
            yield
        except BaseException:
            self.make_now()
            raise
        finally:
            kept.pop("log", None)

    def make_now(self) -> None:
        """Make the calls that are noted so far, for whoever asks for metrics within a step.

        That is work of the host, so such a step is not captured as a whole.
        """
        if not self._numbers:
            return
        kept = vars(self._module)
        in_place, numbers, values = kept.pop("log", None), self._numbers, self._values
        self._numbers, self._values = [], []
        try:
            self.make(numbers, values)
        finally:
            if in_place is not None:
                kept["log"] = in_place

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
        other = None if is_number else value
        self._numbers.append(self._number_of(self._hook, name, other, args, kwargs))
        if isinstance(value, torch.Tensor):
            # As of now: what is logged may be changed before the step is over.
            value = value.detach().clone()
        self._values.append(value if is_number else None)

    def _number_of(self, *call: Any) -> int:
        for number, form in enumerate(self._forms):
            if form.is_of(*call):
                return number
        self._forms.append(_Form(*call))
        return len(self._forms) - 1

    # --- afterwards ---

    def make(self, numbers: Sequence[int], values: Sequence[Any]) -> None:
        """Make the calls that were noted.

        Sync: Does not block the host, unless Lightning does.
        """
        if not numbers:
            return
        module = self._module
        before = module._current_fx_name
        try:
            for number, value in zip(numbers, values, strict=True):
                form = self._forms[number]
                if not self._make_again(form, value):
                    self._make_as_written(form, value)
        finally:
            module._current_fx_name = before

    def _make_as_written(self, form: _Form, value: Any) -> None:
        module, results = self._module, self._module.trainer._results
        module._current_fx_name = form.hook
        logged = value if form.other is None else form.other
        module.log(form.name, logged, *form.args, **form.kwargs)
        if self._is_plain and results is not None:
            form.result = results.get(f"{form.hook}.{form.name}")

    def _make_again(self, form: _Form, value: Any) -> bool:
        """Make a call that was made before, without what Lightning finds out each time.

        Returns:
            whether it was made: not if anything is otherwise than it was then.
        """
        result = form.result
        if result is None or not isinstance(value, torch.Tensor) or value.numel() != 1:
            return False
        if len(form.args) > _NUM_BEFORE_BATCH_SIZE:
            return False
        trainer = self._module.trainer
        results, connector = trainer._results, trainer._logger_connector
        if results.get(f"{form.hook}.{form.name}") is not result or not result.is_tensor:
            return False
        if results.dataloader_idx is not None or result.value.device != value.device:
            return False
        if connector.should_reset_tensors(form.hook):
            results.reset(metrics=False, fx=form.hook)
        size = results._extract_batch_size(result, form.kwargs.get("batch_size"), result.meta)
        result.forward(value.squeeze(), size)
        result.has_reset = False
        connector._current_fx = form.hook
        return True
