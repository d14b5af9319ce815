"""Dictionaries that a step reads: nearly all of them are as they were, and one look says so.

A module has some ten dictionaries, most of them empty for ever. An empty one is still empty; one that has
something in it was not written to as long as it has its version. Only a dictionary that was written to is
read again.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import compress, count
from operator import call, ne
from typing import TYPE_CHECKING, Any

from gapless.device.torch_private import dict_version


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


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


def are_unwritten(tables: list[Any], versions: list[int] | None) -> bool:
    """Return whether dictionaries are known not to have been written to since they had these versions.

    Sync: Does not block the host.
    """
    return dict_version is not None and list(map(dict_version, tables)) == versions


class Tables:
    """Many dictionaries, compared at once.

    Globals of a script are written to between any two steps: `loss` is one of them. Dictionaries that are
    written to so often are read each time, which costs less than to find out which of all they are.

    Args:
        tables: each dictionary, of Python's own class or an OrderedDict, with a function that reads it and
            returns whether what is compared of it is as it was.
    """

    def __init__(self, tables: Iterable[tuple[dict[Any, Any], Callable[[], bool]]]) -> None:
        self._num_calls = 0
        self._empty: list[tuple[dict[Any, Any], Callable[[], bool]]] = []
        self._empty_tables: list[dict[Any, Any]] = []
        self._quiet_tables: list[dict[Any, Any]] = []
        self._quiet: list[Callable[[], bool]] = []
        self._versions: list[int] = []
        # At which call a quiet one was last seen to be written to.
        self._written: list[int] = []
        self._restless: list[Callable[[], bool]] = []
        for table, holds in tables:
            if table:
                self._add(table, holds)
            else:
                self._empty.append((table, holds))
                self._empty_tables.append(table)

    def hold(self) -> bool:
        """Return whether what is compared of them is as it was.

        Sync: Does not block the host.
        """
        self._num_calls += 1
        if any(self._empty_tables) and not self._filled_hold():
            return False
        if dict_version is not None:
            versions = list(map(dict_version, self._quiet_tables))
            if versions != self._versions and not self._written_hold(versions):
                return False
        return all(map(call, self._restless))

    def _add(self, table: dict[Any, Any], holds: Callable[[], bool]) -> None:
        """Read a dictionary when it has another version, or each time if it has no versions."""
        if type(table) in _WITH_VERSIONS and dict_version is not None:
            self._quiet_tables.append(table)
            self._quiet.append(holds)
            self._versions.append(_NO_VERSION)
            self._written.append(-_NEAR)
        else:
            self._restless.append(holds)

    def _filled_hold(self) -> bool:
        """Read those that were empty and are not any more."""
        filled = [(table, holds) for table, holds in self._empty if table]
        if not all(holds() for _, holds in filled):
            return False
        self._empty = [(table, holds) for table, holds in self._empty if not table]
        self._empty_tables = [table for table, _ in self._empty]
        for table, holds in filled:
            self._add(table, holds)
        return True

    def _written_hold(self, versions: list[int]) -> bool:
        """Read those that were written to since they were last read, and know them by their new versions."""
        written = list(compress(count(), map(ne, versions, self._versions)))
        for number in written:
            if not self._quiet[number]():
                return False
        again = [number for number in written if self._versions[number] != _NO_VERSION]
        self._versions = versions
        if len(again) <= _FEW:
            self._read_at_each_call(again)
        return True

    def _read_at_each_call(self, written: list[int]) -> None:
        """Read those at each call that are written to and were so a few calls ago."""
        near = [number for number in written if self._num_calls - self._written[number] < _NEAR]
        for number in written:
            self._written[number] = self._num_calls
        for number in reversed(near):
            self._restless.append(self._quiet.pop(number))
            for of_quiet in (self._quiet_tables, self._versions, self._written):
                del of_quiet[number]
