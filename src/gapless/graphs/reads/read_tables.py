"""Dictionaries that a step reads: nearly all of them are as they were, and one look says so.

A module has some ten dictionaries, most of them empty for ever. An empty one is still empty; one that has
something in it was not written to as long as it has its version. Only a dictionary that was written to is
read again.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import compress, count, repeat
from operator import call, is_, ne
from typing import TYPE_CHECKING, Any

from gapless.device.torch_private import dict_version
from gapless.graphs.reads.plain_values import same
from gapless.graphs.reads.value_places import MISSING


if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.graphs.reads.guard_rows import GuardRows
    from gapless.graphs.reads.read_check import Check


# A dictionary that was written to before two of so many calls is read at each; but not if more than a few are
# written to at once, as those of all modules are by `eval()`.
_NEAR = 3
_FEW = 8

_NO_VERSION = -1

# The order of an OrderedDict changes without a new version; other classes may show what they like.
_WITH_VERSIONS = (dict, defaultdict)


def versions_of(tables: list[Any]) -> list[int] | None:
    """Return a version for each of some dictionaries; None where one of them has none that can be trusted."""
    if dict_version is None or not all(type(table) in _WITH_VERSIONS for table in tables):
        return None
    return list(map(dict_version, tables))


class Table:
    """What is compared of one dictionary.

    Args:
        entries: the dictionary, of Python's own class or an OrderedDict.

    Attributes:
        entries: as given.
        keys: of the entries that are compared.
        checks: of what stands there.
        order: all keys, where their order is compared as well.
    """

    def __init__(self, entries: dict[Any, Any]) -> None:
        self.entries = entries
        self.keys: list[Any] = []
        self.checks: list[Check] = []
        self.order: list[Any] | None = None
        self._found: list[Any] = []

    def add(self, key: Any, check: Check) -> None:
        """Compare an entry, or that there is none."""
        self.keys.append(key)
        self.checks.append(check)
        self._found.append(check.expected)

    def keep_keys(self, keys: list[Any]) -> None:
        """Compare all keys, which are plain, and their order."""
        self.order = keys

    def hold(self) -> bool:
        """Read it, and return whether what is compared is as it was."""
        if self.order is not None and not same(self.order, list(self.entries)):
            return False
        now = list(map(self.entries.get, self.keys, repeat(MISSING)))
        if all(map(is_, now, self._found)):
            return True
        if not all(check.holds(one) for check, one in zip(self.checks, now, strict=True)):
            return False
        # These very objects were found to be as good.
        self._found = now
        return True


class Tables:
    """Many dictionaries, compared at once.

    Globals of a script are written to between any two steps: `loss` is one of them. Dictionaries that are
    written to so often are read each time, which costs less than to find out which of all they are.

    Args:
        tables: what is compared of each.
        rows: where they are compared.
    """

    def __init__(self, tables: Iterable[Table], rows: GuardRows) -> None:
        tables = list(tables)
        self._asked = rows.asked
        self._empty = [table for table in tables if not table.entries]
        self._empty_entries = [table.entries for table in self._empty]
        self._quiet: list[Table] = []
        self._quiet_entries: list[Any] = []
        # At which call a quiet one was last seen to be written to.
        self._written: list[int] = []
        self._entries: list[Any] = []
        self._keys: list[Any] = []
        self._checks: list[Check] = []
        self._ordered: list[Table] = []
        rows.equal("empty dictionaries", any, [self._empty_entries], otherwise=self._filled_hold)
        self._versions = rows.equal(
            "dictionaries", dict_version or id, self._quiet_entries, otherwise=self._written_hold
        )
        self._in_order = rows.equal("order of keys", call, [])
        self._read = rows.checked(
            "dictionaries that are written to", dict.get, self._entries, self._keys,
            repeat(MISSING), checks=self._checks,
        )  # fmt: skip
        for table in tables:
            if table.entries:
                self._add(table)

    def _add(self, table: Table) -> None:
        """Read a dictionary when it has another version, or each time if it has no versions."""
        if type(table.entries) in _WITH_VERSIONS and dict_version is not None:
            self._quiet.append(table)
            self._quiet_entries.append(table.entries)
            self._versions.expected.append(_NO_VERSION)
            self._written.append(-_NEAR)
        else:
            self._read_each_time(table)

    def _read_each_time(self, table: Table) -> None:
        if table.order is not None:
            self._ordered.append(table)
            self._in_order.columns = ([one.hold for one in self._ordered],)
            self._in_order.expected = [True] * len(self._ordered)
            return
        self._entries += [table.entries] * len(table.keys)
        self._keys += table.keys
        self._checks += table.checks
        self._read.expected += [check.expected for check in table.checks]

    def _filled_hold(self) -> bool:
        """Read those that were empty and are not any more."""
        filled = [table for table in self._empty if table.entries]
        if not all(table.hold() for table in filled):
            return False
        self._empty = [table for table in self._empty if not table.entries]
        self._empty_entries[:] = [table.entries for table in self._empty]
        for table in filled:
            self._add(table)
        return True

    def _written_hold(self) -> bool:
        """Read those that were written to since they were last read, and know them by their new versions."""
        versions, before = self._versions.read(), self._versions.expected
        written = list(compress(count(), map(ne, versions, before)))
        for number in written:
            if not self._quiet[number].hold():
                return False
        again = [number for number in written if before[number] != _NO_VERSION]
        self._versions.expected = versions
        if len(again) <= _FEW:
            self._read_at_each_call(again)
        return True

    def _read_at_each_call(self, written: list[int]) -> None:
        """Read those at each call that are written to and were so a few calls ago."""
        now = self._asked.num_calls
        near = [number for number in written if now - self._written[number] < _NEAR]
        for number in written:
            self._written[number] = now
        for number in reversed(near):
            self._read_each_time(self._quiet.pop(number))
            for of_quiet in (self._quiet_entries, self._versions.expected, self._written):
                del of_quiet[number]
