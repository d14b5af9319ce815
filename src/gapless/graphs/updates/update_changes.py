"""What a graph keeps of an optimizer whose update it has captured, and whether it still holds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from numbers import Number
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import dict_version
from gapless.graphs.reads.addresses import lie_as_now
from gapless.graphs.reads.read_tables import versions_of
from gapless.graphs.reads.same_tensors import are_the_same
from gapless.graphs.updates.update_rules import HOOKS, has_hooks, tables_of_hooks
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from gapless.graphs.reads.guard_rows import GuardRows, Row


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
        parts = [part for state in self._states for part in state.values()]
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        # Loops that move a state to the host and back keep its tensors, with other memory.
        self._in_memory = list(filter(has_address, tensors))
        self._lie_still = lie_as_now(self._in_memory)

    def compare_in(self, rows: GuardRows) -> None:
        """Let rows say whether there is no difference."""
        if _Unwritten.can_say(self._optimizer):
            unwritten = _Unwritten(self._optimizer, lambda: self.change() is None)
            unwritten.compare_in(rows, with_state=True)
            if self._in_memory:
                name = "memory of the state of optimizers"
                rows.equal(name, torch.Tensor.data_ptr, self._in_memory)
        else:
            rows.hold_too("optimizers", [lambda: self.change() is None])

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
        """Return whether there are the same tensors in its state."""
        return are_the_same(self._states, list(self._optimizer.state.values()))

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

    def compare_in(self, rows: GuardRows) -> None:
        """Let rows say whether there are no others."""
        if _Unwritten.can_say(self._optimizer):
            unwritten = _Unwritten(self._optimizer, lambda: self.change() is None)
            unwritten.compare_in(rows, with_state=False)
        else:
            rows.hold_too("weights of optimizers", [lambda: self.change() is None])

    def change(self) -> UpdateChange | None:
        """Return that there are others, None if there are not.

        Sync: Does not block the host.
        """
        weights = [group["params"] for group in self._optimizer.param_groups]
        if are_the_same(self._weights, weights):
            return None
        return UpdateChange(self._optimizer, "its weights", "some", "others")


class _Unwritten:
    """Whether nobody has written to the groups, lists of weights and state of an optimizer, nor replaced them.

    Args:
        optimizer: one of torch's own.
        is_as_captured: asked where somebody has.
    """

    def __init__(self, optimizer: Optimizer, is_as_captured: Callable[[], bool]) -> None:
        self._optimizer = optimizer
        self._is_as_captured = is_as_captured
        self._with_state = False
        self._hooks: list[Any] = []
        self._groups: list[Any] = []
        self._tables: list[Any] = []
        self._lists: list[Any] = []
        self._lists_before: list[Any] = []
        self._rows: list[Row] = []

    @staticmethod
    def can_say(optimizer: Optimizer) -> bool:
        """Return whether there are versions of all dictionaries of an optimizer."""
        tables = [*optimizer.param_groups, optimizer.state, *optimizer.state.values()]
        return versions_of(tables) is not None

    def compare_in(self, rows: GuardRows, *, with_state: bool) -> None:
        """Let rows compare its groups and which weights are in them, and its state and hooks if asked for."""
        self._with_state = with_state
        self._look()
        again = self._is_as_good
        parts: tuple[str, ...] = ("param_groups", "state")
        if with_state:
            parts += HOOKS
            of_hooks = rows.equal(
                "hooks of optimizers", any, [self._hooks], otherwise=self._has_no_hooks
            )
            of_hooks.expected = [False]
        self._of_groups = rows.equal("groups of optimizers", id, self._groups, otherwise=again)
        of_tables = rows.equal(
            "tables of optimizers", dict_version or id, self._tables, otherwise=again
        )
        # Since the update was captured the step may have gone on to write to them: they are read once.
        of_tables.expected = [_NO_VERSION] * len(self._tables)
        self._rows = [
            self._of_groups,
            of_tables,
            rows.same(
                "parts of optimizers", getattr, repeat(self._optimizer), parts, repeat(None),
                otherwise=again,
            ),
        ]  # fmt: skip
        rows.lists(self._lists, self._lists_before, otherwise=again)

    def _has_no_hooks(self) -> bool:
        return not has_hooks(self._optimizer)

    def _is_as_good(self) -> bool:
        if not self._is_as_captured():
            return False
        self._look()
        self._of_groups.columns = (self._groups,)
        for row in self._rows:
            row.renew()
        return True

    def _look(self) -> None:
        """Look at what there is now."""
        optimizer = self._optimizer
        self._groups = optimizer.param_groups
        self._tables[:] = self._groups
        if self._with_state:
            self._tables += [optimizer.state, *optimizer.state.values()]
            self._hooks[:] = tables_of_hooks(optimizer)
        self._lists[:] = [group["params"] for group in self._groups]
        self._lists_before[:] = map(list, self._lists)


_NO_VERSION = -1


def _comparable(value: object) -> object:
    """Return numbers, and what stands for other objects."""
    if isinstance(value, tuple | list):
        return tuple(map(_comparable, value))
    return value if isinstance(value, Number | str) else id(value)
