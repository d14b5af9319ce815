"""What a graph keeps of an optimizer whose update it has captured, and whether it still holds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from numbers import Number
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import dict_version
from gapless.graphs.reads.addresses import lie_as_now
from gapless.graphs.reads.read_tables import versions_of
from gapless.graphs.reads.same_tensors import are_the_same
from gapless.graphs.updates.update_rules import HOOKS, has_hooks, tables_of_hooks
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Collection

    from torch.optim import Optimizer

    from gapless.graphs.reads.guard_rows import GuardRows, Row


# Numbers without which an update has fewer operations.
_LEFT_OUT_AT_ZERO = ("weight_decay",)


@dataclass(frozen=True)
class UpdateChange:
    """What is no longer as a graph has captured it.

    Attributes:
        before: its value in the capture, in short.
        is_number: whether it is a number of the optimizer. If so, the update can go on outside
            (`Updates.number_changed`); if not, it can be captured anew.
    """

    optimizer: Optimizer
    name: str
    before: str
    after: str
    is_number: bool = False


class UpdateAsCaptured:
    """What a graph keeps of an optimizer: which weights it has, and what its update reads, if that is inside.

    If it is outside, `zero_grad()` is inside.

    Args:
        optimizer: one of torch's own, with the state with which it is captured.
        is_inside: whether the update is.
        but: numbers that the graph does not read.
    """

    def __init__(
        self, optimizer: Optimizer, *, is_inside: bool, but: Collection[str] = ()
    ) -> None:
        self._optimizer = optimizer
        self._is_inside = is_inside
        # What `step` reads; schedulers keep numbers of their own beside these.
        names = optimizer.defaults if is_inside else ()
        self._names = [name for name in names if name not in but]
        self._may_be_zero = [name for name in but if name in _LEFT_OUT_AT_ZERO]
        self._groups = [(list(params), *numbers) for params, *numbers in self._read()]
        self._states = list(map(dict, self._states_now()))
        parts = [part for state in self._states for part in state.values()]
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        # Loops that move a state to the host and back keep its tensors, with other memory.
        self._in_memory = list(filter(has_address, tensors))
        self._lie_still = lie_as_now(self._in_memory)
        # What is there now, as rows look at it.
        self._hooks: list[Any] = []
        self._groups_now: list[Any] = []
        self._tables: list[Any] = []
        self._lists: list[Any] = []
        self._lists_before: list[Any] = []
        self._rows: list[Row] = []

    def compare_in(self, rows: GuardRows) -> None:
        """Let rows say whether there is no difference."""
        tables = [*self._optimizer.param_groups, self._optimizer.state, *self._states_now()]
        if versions_of(tables) is None:
            rows.hold_too("optimizers", [lambda: self.change() is None])
            return
        # As long as nobody has written to groups, lists of weights and state, nor replaced them, all is well.
        self._look()
        again = self._is_as_good
        parts: tuple[str, ...] = ("param_groups", "state")
        if self._is_inside:
            parts += HOOKS
            of_hooks = rows.equal(
                "hooks of optimizers", any, [self._hooks], otherwise=self._has_no_hooks
            )
            of_hooks.expected = [False]
        self._of_groups = rows.equal("groups of optimizers", id, self._groups_now, otherwise=again)
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
        if self._in_memory:
            name = "memory of the state of optimizers"
            rows.equal(name, torch.Tensor.data_ptr, self._in_memory)

    def change(self) -> UpdateChange | None:
        """Return the first difference, None if there is none."""
        if self._is_inside and has_hooks(self._optimizer):
            return self._changed("its hooks", "none", "some")
        try:
            groups = self._read()
        except KeyError:
            return self._first()
        if not are_the_same(self._groups, groups) or not self._has_its_state():
            return self._first()
        if not self._lie_still():
            return self._changed("the memory of its state", "some", "other")
        return None

    def _read(self) -> list[tuple[Any, ...]]:
        """Return the weights and the numbers of each group, and of those that it does not read whether they are zero."""
        names = ("params", *self._names)
        return [
            (*[group[name] for name in names], *[group[name] == 0 for name in self._may_be_zero])
            for group in self._optimizer.param_groups
        ]

    def _states_now(self) -> list[Any]:
        return list(self._optimizer.state.values()) if self._is_inside else []

    def _has_its_state(self) -> bool:
        """Return whether there are the same tensors in its state."""
        return are_the_same(self._states, self._states_now())

    def _has_no_hooks(self) -> bool:
        return not has_hooks(self._optimizer)

    def _is_as_good(self) -> bool:
        if self.change() is not None:
            return False
        self._look()
        self._of_groups.columns = (self._groups_now,)
        for row in self._rows:
            row.renew()
        return True

    def _look(self) -> None:
        """Look at what there is now."""
        optimizer = self._optimizer
        self._groups_now = optimizer.param_groups
        self._tables[:] = self._groups_now
        if self._is_inside:
            self._tables += [optimizer.state, *optimizer.state.values()]
            self._hooks[:] = tables_of_hooks(optimizer)
        self._lists[:] = [group["params"] for group in self._groups_now]
        self._lists_before[:] = map(list, self._lists)

    def _first(self) -> UpdateChange:
        groups = self._optimizer.param_groups
        for group, (_, *numbers) in zip(groups, self._groups, strict=False):
            for name, before in zip(self._names, numbers, strict=False):
                after = group.get(name)
                if _comparable(after) != _comparable(before):
                    return self._changed(name, str(before), str(after), is_number=True)
            for name, was_zero in zip(self._may_be_zero, numbers[len(self._names) :], strict=True):
                after = group.get(name)
                if (after == 0) is not was_zero:
                    return self._changed(name, "zero" if was_zero else "not zero", str(after))
        weights = [_comparable(params) for params, *_ in self._groups]
        if [_comparable(group["params"]) for group in groups] != weights:
            return self._changed("its weights", "some", "others")
        return self._changed("its state", "some tensors", "others")

    def _changed(
        self, name: str, before: str, after: str, *, is_number: bool = False
    ) -> UpdateChange:
        return UpdateChange(self._optimizer, name, before, after, is_number=is_number)


_NO_VERSION = -1


def _comparable(value: object) -> object:
    """Return numbers, and what stands for other objects."""
    if isinstance(value, tuple | list):
        return tuple(map(_comparable, value))
    return value if isinstance(value, Number | str) else id(value)
