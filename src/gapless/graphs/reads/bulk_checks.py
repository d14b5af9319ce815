"""What is compared before each replay, many things at a time.

All of one kind are read at once and compared by identity, and only what is another object is looked at by
value: see `gapless.graphs.reads.guard_rows`.
"""

from __future__ import annotations

import collections
import gc
from functools import partial
from operator import call, getitem
from typing import TYPE_CHECKING, Any

from gapless.graphs.reads.plain_values import same
from gapless.graphs.reads.read_tables import Table, Tables
from gapless.graphs.reads.value_places import MISSING


if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from gapless.graphs.reads.guard_rows import GuardRows
    from gapless.graphs.reads.read_check import Change, Check
    from gapless.graphs.reads.value_places import Place


# Dictionaries that show their entries without code of the user's, in an order that they keep.
_TABLES = (dict, collections.OrderedDict)

_SEQUENCES = (list, tuple, collections.deque)


class BulkChecks:
    """All that is compared, in the order in which it was added: the first change is told of.

    Strong references are held to all that is compared, and to what it stands in.
    """

    def __init__(self) -> None:
        self._all: list[Check] = []
        self._tables: dict[int, Table] = {}
        # Functions of C with two arguments, and what they are expected to return.
        self._reads: list[tuple[Callable[[Any, Any], Any], Any, Any, Check]] = []

        self._lengths: list[Sized] = []
        self._singly: list[Callable[[], bool]] = []

    def __len__(self) -> int:
        return len(self._all)

    def first_change(self, begin: int = 0) -> Change | None:
        """Return the first change of what was added, from the given number on; None without one."""
        changes = (check.change() for check in self._all[begin:])
        return next((change for change in changes if change is not None), None)

    # --- what is compared ---

    def tell(self, check: Check) -> None:
        """Tell of a change of what is compared elsewhere."""
        self._all.append(check)

    def add(self, check: Check, holds: Callable[[], bool] | None = None) -> None:
        """Compare a thing by itself.

        Args:
            check: what is told of a change.
            holds: says whether there is none, where that is sooner known than by the check.
        """
        self._all.append(check)
        self._singly.append(check.holds_now if holds is None else holds)

    def add_place(self, place: Place, check: Check) -> None:
        """Compare what stands in a place, with all that is read from the same thing."""
        kind, owner, key = place.kind, place.owner, place.key
        is_there = check.expected is not MISSING
        if kind == "class":
            entries = _entries_of_class(owner)
            if entries is None:
                self._reads.append((vars(owner).get, key, MISSING, check))
            else:
                self._table(entries).add(key, check)
        elif kind == "cell" and is_there:
            self._reads.append((getattr, owner, "cell_contents", check))
        elif kind == "slot" and is_there:
            self._reads.append((key.__get__, owner, type(owner), check))
        elif kind in ("dict", "item") and type(owner) in _TABLES:
            self._table(owner).add(key, check)
        elif kind in ("dict", "item") and isinstance(owner, dict):
            # Not the user's `get`.
            self._reads.append((partial(dict.get, owner), key, MISSING, check))
        elif kind == "item" and type(owner) in _SEQUENCES and is_there:
            self._reads.append((getitem, owner, key, check))
        else:
            self._singly.append(check.holds_now)
        self._all.append(check)

    def add_keys(self, table: Any, keys: list[Any], check: Check) -> None:
        """Compare the keys of a dictionary, which are plain, and their order."""
        if type(table) in _TABLES:
            self._table(table).keep_keys(keys)
            self._all.append(check)
        else:
            self.add(check, lambda: same(keys, list(table)))

    def add_attribute(self, owner: Any, name: str, check: Check) -> None:
        """Compare an attribute that runs no code of the user's."""
        self._all.append(check)
        self._reads.append((getattr, owner, name, check))

    def add_length(self, container: Sized, check: Check) -> None:
        """Compare how many items a container has."""
        self._all.append(check)
        self._lengths.append(container)

    def _table(self, entries: dict[Any, Any]) -> Table:
        if id(entries) not in self._tables:
            self._tables[id(entries)] = Table(entries)
        return self._tables[id(entries)]

    # --- comparisons ---

    def compare_in(self, rows: GuardRows) -> None:
        """Let rows say, together, whether all is as it was."""
        if self._tables:
            Tables(self._tables.values(), rows)
        if self._lengths:
            rows.equal("lengths", len, self._lengths)
        rows.hold_too("one by one", self._singly)
        if self._reads:
            functions, firsts, seconds, checks = zip(*self._reads, strict=True)
            rows.checked("other places", call, functions, firsts, seconds, checks=checks)


def _entries_of_class(kind: type) -> dict[str, Any] | None:
    """Return the dictionary that a class shows in `vars`, which alone has a version; None if it is not found."""
    found = gc.get_referents(vars(kind))
    return found[0] if len(found) == 1 and type(found[0]) is dict else None
