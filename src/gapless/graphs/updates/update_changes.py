"""What a graph keeps of an optimizer whose update it has captured, and whether it still holds."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Number
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.reads.addresses import lie_as_now
from gapless.graphs.reads.read_tables import are_unwritten, versions_of
from gapless.graphs.reads.same_tensors import are_the_same
from gapless.graphs.updates.update_rules import has_hooks


if TYPE_CHECKING:
    from torch.optim import Optimizer


@dataclass(frozen=True)
class UpdateChange:
    """What is no longer as a graph has captured it.

    Attributes:
        optimizer: whose update is inside.
        name: of what has changed.
        before: its value in the capture, in short.
        after: its value now.
        is_number: whether it is a number of the optimizer. If so, the update can go on outside
            (`Updates.number_changed`); if not, it can be captured anew.
    """

    optimizer: Optimizer
    name: str
    before: str
    after: str
    is_number: bool = False


class UpdateAsCaptured:
    """What a graph keeps of an optimizer that is inside.

    Args:
        optimizer: one of torch's own, with the state with which it is captured.
        is_rate_filled: its rates are no part of it.
    """

    def __init__(self, optimizer: Optimizer, *, is_rate_filled: bool) -> None:
        self._optimizer = optimizer
        # What `step` reads; schedulers keep numbers of their own beside these.
        self._names = [name for name in optimizer.defaults if name != "lr" or not is_rate_filled]
        self._read = itemgetter("params", *self._names)
        self._groups = [
            (list(params), *numbers)
            for params, *numbers in map(self._read, optimizer.param_groups)
        ]
        self._states = [dict(state) for state in optimizer.state.values()]
        self._know_tables()
        parts = [part for state in self._states for part in state.values()]
        # Loops that move a state to the host and back keep its tensors, with other memory.
        self._lie_still = lie_as_now([part for part in parts if isinstance(part, torch.Tensor)])

    def change(self) -> UpdateChange | None:
        """Return the first difference, None if there is none.

        Sync: Does not block the host.
        """
        if has_hooks(self._optimizer):
            return self._changed("its hooks", "none", "some")
        try:
            groups = list(map(self._read, self._optimizer.param_groups))
        except KeyError:
            return self._first()
        if not are_the_same(self._groups, groups) or not self._has_its_state():
            return self._first()
        if not self._lie_still():
            return self._changed("the memory of its state", "some", "other")
        return None

    def _has_its_state(self) -> bool:
        """Return whether there are the same tensors in its state; nobody looks at a table that has its version."""
        if self._optimizer.state is self._table and are_unwritten(self._tables, self._versions):
            return True
        if not are_the_same(self._states, list(self._optimizer.state.values())):
            return False
        self._know_tables()
        return True

    def _know_tables(self) -> None:
        self._table = self._optimizer.state
        self._tables: list[Any] = [self._table, *self._table.values()]
        self._versions = versions_of(self._tables)

    def _first(self) -> UpdateChange:
        groups = self._optimizer.param_groups
        for group, (_, *numbers) in zip(groups, self._groups, strict=False):
            for name, before in zip(self._names, numbers, strict=True):
                after = group.get(name)
                if _comparable(after) != _comparable(before):
                    return self._changed(name, str(before), str(after), is_number=True)
        weights = [_comparable(params) for params, *_ in self._groups]
        if [_comparable(group["params"]) for group in groups] != weights:
            return self._changed("its weights", "some", "others")
        return self._changed("its state", "some tensors", "others")

    def _changed(
        self, name: str, before: str, after: str, *, is_number: bool = False
    ) -> UpdateChange:
        return UpdateChange(self._optimizer, name, before, after, is_number=is_number)


class WeightsAsCaptured:
    """Which weights an optimizer had whose update is outside: `zero_grad()` is inside.

    Args:
        optimizer: one of torch's own, as it is captured.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._weights = [list(group["params"]) for group in optimizer.param_groups]

    def change(self) -> UpdateChange | None:
        """Return that there are others, None if there are not.

        Sync: Does not block the host.
        """
        weights = [group["params"] for group in self._optimizer.param_groups]
        if are_the_same(self._weights, weights):
            return None
        return UpdateChange(self._optimizer, "its weights", "some", "others")


def _comparable(value: object) -> object:
    """Return numbers, and what stands for other objects."""
    if isinstance(value, tuple | list):
        return tuple(map(_comparable, value))
    return value if isinstance(value, Number | str) else id(value)
