"""The losses and other values of all steps since the last reset, and their means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gapless.errors import LossError


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


T = TypeVar("T")

_LOSS = "loss"


@dataclass(frozen=True, kw_only=True)
class StepValues:
    """The values of one step.

    Attributes:
        step: number of the `add` that gave them, from 0, since the last `reset`; each `DeferredLoss`
            has numbers of its own.
        values: by name; a value that was given by position is named `loss`.
    """

    step: int
    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class NonFinite:
    """A value that is NaN or infinite.

    Attributes:
        step: number of the `add` that gave it, from 0, since the last `reset`.
        name: of the value; `loss` if it was given by position.
        value: itself.
    """

    step: int
    name: str
    value: float


class LossHistory:
    """The values of all steps that were added, as far as they have been read.

    Attributes:
        is_by_name: values are given by name; else there is one, given by position.
        num_added: steps whose values were added.
        num_read: steps whose values are here.
        num_reported: steps up to the last one that `on_values` was called with.
        columns: the values read, by name.
        weights: of the steps read.
        first_nonfinite: the first value read that is NaN or infinite.
    """

    def __init__(self) -> None:
        self.is_by_name = False
        self.num_added = self.num_read = self.num_reported = 0
        self.columns: dict[str, list[float]] = {_LOSS: []}
        self._names: tuple[str, ...] = (_LOSS,)
        self.weights: list[float] = []
        self.first_nonfinite: NonFinite | None = None

    def in_order(self, values: dict[str, T], *, is_by_name: bool) -> dict[str, T]:
        """Return the values of a step in the order of the first step.

        Raises:
            LossError: they have other names than those of the first step, or no name.
        """
        if not values:
            raise LossError("there is no value to add, expected a loss or values by name")
        if not self.num_added:
            return values
        if is_by_name == self.is_by_name:
            if tuple(values) == self._names:
                return values
            if values.keys() == self.columns.keys():
                return {name: values[name] for name in self._names}
        raise LossError(
            f"the values of this step are {_listed(values, is_by_name)}, but those before are "
            f"{_listed(self.columns, self.is_by_name)}; call reset() before others are added"
        )

    def count(self, names: Iterable[str], *, is_by_name: bool) -> None:
        """Count a step whose values were written; the first one gives their names."""
        if not self.num_added:
            self.columns = {name: [] for name in names}
            self.is_by_name, self._names = is_by_name, tuple(names)
        self.num_added += 1

    def take(self, columns: Sequence[list[float]]) -> None:
        """Add the next steps: a column of each value, and one of weights."""
        start, (*values, weights) = self.num_read, columns
        if self.first_nonfinite is None:
            self.first_nonfinite = self._first_nonfinite(values)
        self.weights[start:] = weights
        for column, new in zip(self.columns.values(), values, strict=True):
            column[start:] = new
        self.num_read = start + len(weights)

    def step(self, number: int) -> StepValues:
        """Return the values of a step that was read."""
        values = {name: column[number] for name, column in self.columns.items()}
        return StepValues(step=number, values=values)

    def mean(self, name: str, *, since: int) -> float:
        """Return the weighted mean of the values of one name that were read; NaN if there are none.

        A value without weight has no part in it, be it finite or not.

        The sum is correctly rounded (`math.fsum` over float64), so that the mean does not depend
        on when or in which portions the values were read.

        Raises:
            LossError: no value has that name.
        """
        if not self.num_added:
            return math.nan
        if name not in self.columns:
            raise LossError(f"no value is named `{name}`; there is {_listed(self.columns, True)}")
        total = _sum(self.weights[since:])
        if not total:
            return math.nan
        pairs = zip(self.columns[name][since:], self.weights[since:], strict=True)
        return _sum([value * weight for value, weight in pairs if weight]) / total

    def _first_nonfinite(self, columns: Sequence[list[float]]) -> NonFinite | None:
        if all(all(map(math.isfinite, column)) for column in columns):
            return None
        return next(
            NonFinite(step=step, name=name, value=value)
            for step, row in enumerate(zip(*columns, strict=True), start=self.num_read)
            for name, value in zip(self.columns, row, strict=True)
            if not math.isfinite(value)
        )


def _sum(numbers: list[float]) -> float:
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # beyond float64, or infinities of both signs
        return sum(numbers)


def _listed(names: Iterable[str], is_by_name: bool) -> str:
    return ", ".join(f"`{name}`" for name in names) if is_by_name else "a loss by position"
