"""What is compared before a replay, in rows: a function of C, what it is asked of, and what it returned.

Python reads and compares a thing in 50 to 300 ns; C does so with many in 5 to 50 ns each. So all things of
one kind stand in one row, and only where a row has changed does Python look at what became of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from operator import call, is_
from typing import TYPE_CHECKING, Any

from gapless.graphs.reads.same_tensors import (
    OtherTensorError,
    allow_comparisons,
    are_the_same,
    forbid_comparisons,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.graphs.reads.read_check import Check


def _is_no_better() -> bool:
    return False


@dataclass(slots=True, eq=False)
class Row:
    """One function, and what it returned of each of some things.

    Attributes:
        name: of what is compared.
        function: to be called with one of each column; it is C's, or rare.
        columns: its arguments.
        expected: what it returned.
        otherwise: called where it returns something else: whether that is as good. If so, it makes the row
            expect it from then on.
    """

    name: str
    function: Callable[..., Any]
    columns: tuple[Iterable[Any], ...]
    expected: list[Any]
    otherwise: Callable[[], bool] = _is_no_better

    def read(self) -> list[Any]:
        """Return what there is now."""
        return list(map(self.function, *self.columns))

    def renew(self) -> None:
        """Expect what there is now."""
        self.expected = self.read()


class Asked:
    """What rows know of each other that are asked in several places.

    Attributes:
        num_calls: how often they were asked whether they hold.
        num_changes: how often some of them expected something else from then on.
    """

    num_calls = 0
    num_changes = 0


class GuardRows:
    """Rows that hold together.

    Args:
        asked: of rows that are compared here and elsewhere; None: there are none.

    Attributes:
        asked: as given.
    """

    def __init__(self, asked: Asked | None = None) -> None:
        self.asked = Asked() if asked is None else asked
        self._num_changes = -1
        self._first: list[Row] = []
        self._equal: list[Row] = []
        self._same: list[Row] = []

        # Lists of tensors, as they are, as they were, and what is asked where these differ.
        self._lists_now: list[Sequence[Any]] = []
        self._lists: list[Sequence[Any]] = []
        self._otherwise: list[Callable[[], bool]] = []

    # --- what is compared ---

    def equal(
        self,
        name: str,
        function: Callable[..., Any],
        *columns: Iterable[Any],
        otherwise: Callable[[], bool] = _is_no_better,
    ) -> Row:
        """Compare numbers, and other plain values, by `==`; what there is now is expected."""
        row = Row(name, function, columns, [], otherwise)
        row.renew()
        self._equal.append(row)
        return row

    def ask_first(
        self, name: str, readers: Sequence[Callable[[], Any]], *, otherwise: Callable[[], bool]
    ) -> Row:
        """Compare what functions return, and all else only if that is as expected."""
        row = Row(name, call, (readers,), [], otherwise)
        row.renew()
        self._first.append(row)
        return row

    def hold_too(self, name: str, functions: Iterable[Callable[[], bool]]) -> None:
        """Ask functions, each of which says whether something is as it was."""
        asked = list(functions)
        if asked:
            self._equal.append(Row(name, call, (asked,), [True] * len(asked)))

    def same(
        self,
        name: str,
        function: Callable[..., Any],
        *columns: Iterable[Any],
        otherwise: Callable[[], bool] = _is_no_better,
    ) -> Row:
        """Compare objects by `is`; those that there are now are expected."""
        row = Row(name, function, columns, [], otherwise)
        row.renew()
        self._same.append(row)
        return row

    def checked(
        self,
        name: str,
        function: Callable[..., Any],
        *columns: Iterable[Any],
        checks: Sequence[Check],
    ) -> Row:
        """Compare objects by `is`, and ask the check of each that is another one."""
        row = Row(name, function, columns, [check.expected for check in checks])

        def otherwise() -> bool:
            now = row.read()
            known = zip(checks, row.expected, now, strict=True)
            if not all(one is before or check.holds(one) for check, before, one in known):
                return False
            # These very objects were found to be as good.
            row.expected = now
            return True

        row.otherwise = otherwise
        self._same.append(row)
        return row

    def lists(
        self,
        now: Sequence[Any],
        before: list[Any],
        *,
        otherwise: Callable[[], bool] = _is_no_better,
    ) -> None:
        """Compare lists of tensors, each of which equals itself alone, with what was in them."""
        self._lists_now.append(now)
        self._lists.append(before)
        self._otherwise.append(otherwise)

    def add_all(self, others: GuardRows) -> None:
        """Compare what others compare; rows are shared."""
        self._first += others._first
        self._equal += others._equal
        self._same += others._same

        self._lists_now += others._lists_now
        self._lists += others._lists
        self._otherwise += others._otherwise

    # --- before a replay ---

    def hold(self) -> bool:
        """Return whether all is as it was.

        Sync: Does not block the host.
        """
        asked = self.asked
        asked.num_calls += 1
        if asked.num_changes != self._num_changes:
            self._gather()
        try:
            are_the_first = list(map(call, self._asked_first)) == self._answers
        except RuntimeError:  # there are fewer modes, and no answer about one that is gone
            are_the_first = False
        try:
            if not (
                are_the_first
                and list(map(list, map(call, self._reads))) == self._expected
                and all(map(all, map(map, repeat(is_), map(call, self._finds), self._found)))
            ):
                asked.num_changes += 1
                if not ((are_the_first or self._first_hold()) and self._rows_hold()):
                    return False

        except Exception:
            # A thing is gone, or an object of the user's raises where it is compared.
            return False
        if not self._lists:
            return True
        # As `are_the_same`, one call less.
        forbid_comparisons()
        try:
            if self._lists == self._lists_now:
                return True
        except OtherTensorError:
            pass
        finally:
            allow_comparisons()
        asked.num_changes += 1
        return self._lists_hold()

    def _gather(self) -> None:
        """Gather what all rows read and expect: one expression of C compares it, where nothing has changed."""
        self._num_changes = self.asked.num_changes
        self._asked_first = list(chain.from_iterable(row.columns[0] for row in self._first))
        self._answers = list(chain.from_iterable(row.expected for row in self._first))
        equal = [row for row in self._equal if row.expected]
        self._reads = [partial(map, row.function, *row.columns) for row in equal]
        self._expected = [row.expected for row in equal]
        same = [row for row in self._same if row.expected]
        self._finds = [partial(map, row.function, *row.columns) for row in same]
        self._found = [row.expected for row in same]

    def _first_hold(self) -> bool:
        return all(row.otherwise() for row in self._first)

    def _rows_hold(self) -> bool:
        """Compare one row after the other, and ask what else is as good."""
        for row in self._equal:
            if row.read() != row.expected and not row.otherwise():
                return False
        return all(
            all(map(is_, row.read(), row.expected)) or row.otherwise() for row in self._same
        )

    def _lists_hold(self) -> bool:
        """Return whether each list is as it was, or what is there is as good."""
        pairs = zip(self._lists, self._lists_now, self._otherwise, strict=True)
        return all(are_the_same(before, now) or otherwise() for before, now, otherwise in pairs)

    def parts(self) -> dict[str, Callable[[], object]]:
        """Return functions that read and compare each row, by what it compares."""
        found: dict[str, Callable[[], object]] = {}
        for row in (*self._first, *self._equal, *self._same):
            name, number = row.name, 2
            while name in found:
                name, number = f"{row.name} ({number})", number + 1
            found[name] = row.read
        found["lists of tensors"] = self._lists_hold
        return found
