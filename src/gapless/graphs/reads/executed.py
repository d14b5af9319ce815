"""Code that ran, what it ran with, and what its names led to while it ran."""

from __future__ import annotations

import collections
import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gapless.graphs.reads.value_places import (
    MISSING,
    PLAIN_DESCRIPTORS,
    Place,
    base_of,
    class_attribute,
    entries_of,
    tables_of,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType

    from gapless.graphs.reads.chains import Chain, CodeReads, Link
    from gapless.graphs.reads.code_kinds import CodeKind


# Longer containers are not looked into.
_MOST_PARTS = 1_000


@dataclass
class Observed:
    """Objects that were seen in one role, without keeping them alive if weak references can be made.

    Attributes:
        runs: by id of the object: a weak reference, and in which watched runs it was seen.
        given: ids of those that were there before a run that has shown them.
    """

    runs: dict[int, tuple[Callable[[], Any], set[int]]] = field(default_factory=dict)
    given: set[int] = field(default_factory=set)

    @property
    def has_passing(self) -> bool:
        """Whether an object lives that one run alone has shown, and that was not there before it."""
        return any(
            len(runs) == 1 and key not in self.given and ref() is not None
            for key, (ref, runs) in self.runs.items()
        )

    def alive(self, least: int) -> list[Any]:
        """Return the objects that still live, and were there before a run or seen in so many."""
        found = [
            (ref(), key in self.given or len(runs) >= least)
            for key, (ref, runs) in self.runs.items()
        ]
        return [value for value, is_kept in found if value is not None and is_kept]

    def is_passing(self, value: object) -> bool:
        """Return whether one run alone has shown one of the objects, and may have made it."""
        _, runs = self.runs[id(value)]
        return len(runs) == 1 and not self.is_given(value)

    def is_given(self, value: object) -> bool:
        """Return whether an object was there before a run that has shown it.

        Of what the collector does not know, such as arrays of numbers, nobody knows when it was made.
        """
        return id(value) in self.given and gc.is_tracked(value)


@dataclass
class Executed:
    """A function's code that ran, and what it ran with.

    Attributes:
        code: of the function.
        names: its globals.
        reads: what it names.
        kind: who wrote it.
        observed: by argument (`""`: what calls returned to it), the objects seen.
        led: by argument and links, the objects to which it led; objects that a step makes for
            itself are gone when one asks them.

    """

    code: CodeType
    names: dict[str, Any]
    reads: CodeReads
    kind: CodeKind
    observed: dict[str, Observed] = field(default_factory=dict)
    led: dict[tuple[str, tuple[Link, ...]], Observed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        paths: dict[str, set[tuple[Link, ...]]] = {}
        for chain in (*self.reads.reads, *(base for s in self.reads.stores for base in s.bases)):
            known = paths.setdefault(chain.root, set())
            known.update(chain.links[:end] for end in range(1, len(chain.links) + 1))
        self._paths = {root: sorted(known, key=len) for root, known in paths.items()}
        # Each path with the one that is a link shorter.
        self._steps = {
            root: [(longer, longer[:-1], *longer[-1]) for longer in known]
            for root, known in self._paths.items()
        }

    def is_passing(self, chain: Chain, value: object) -> bool:
        """Return whether one run alone has shown an object where a chain begins, and may have made it."""
        if chain.kind not in ("argument", "result"):
            return False
        shown = [each for (root, _), each in self.led.items() if root == chain.root]
        shown += filter(None, [self.observed.get(chain.root)])
        known = [each for each in shown if id(value) in each.runs]
        if not known or not all(each.is_passing(value) for each in known):
            return False
        return not self._is_held_by_given(chain, value)

    def _is_held_by_given(self, chain: Chain, value: object) -> bool:
        """Return whether a chain leads to an object through one that was there before a run."""
        for end in range(len(chain.links)):
            begin = chain.links[:end]
            observed = (
                self.led.get((chain.root, begin)) if begin else self.observed.get(chain.root)
            )
            given = [] if observed is None else filter(observed.is_given, observed.alive(1))
            for owner in given:
                found = self.parts_of(chain.root, owner, begin)
                if any(part is value for links, part in found if links == chain.links):
                    return True
        return False

    def parts_of(
        self, root: str, value: Any, links: tuple[Link, ...] = ()
    ) -> Iterator[tuple[tuple[Link, ...], Any]]:
        """Return what the code finds behind an argument, or `""` for a result, with its links.

        No code of the user's is run.

        Args:
            root: the argument.
            value: that stands there, or behind the links.
            links: from the root to the value.
        """
        found: dict[tuple[Link, ...], list[Any]] = {links: [value]}
        for longer, shorter, kind, key in self._steps.get(root, ()):
            bases = found.get(shorter)
            if not bases or longer in found:
                continue
            parts = [part for base in bases for part in _parts_at(base, kind, key)]
            found[longer] = parts
            if len(longer) > len(links):
                for part in parts:
                    yield longer, part

    def parts_returned(self, value: Any, name: str) -> Iterator[tuple[str, tuple[Link, ...], Any]]:
        """Return what the code finds behind what the getter of a property has returned.

        Yields the argument that it began with, or `""` for a result, the links and the object. Of which
        object it is an attribute, nobody sees: each that may be counts.

        Args:
            value: that came.
            name: of the property.
        """
        for root, paths in self._paths.items():
            for links in paths:
                if links[-1] == ("attr", name):
                    yield root, links, value
                    for longer, part in self.parts_of(root, value, links):
                        yield root, longer, part

    @property
    def has_passing(self) -> bool:
        """Whether an object lives that was seen in some role in one run alone, and was made in it."""
        return any(each.has_passing for each in (*self.observed.values(), *self.led.values()))


def _parts_at(value: Any, kind: str, key: Any) -> list[Any]:
    """Return what stands at an attribute or item, or all items, as far as no code is run."""
    if kind == "attr":
        entries = entries_of(value)
        if entries is not None and key in entries:
            return [entries[key]]
        for table in tables_of(value):
            if key in table:
                return [table[key]]
        found = class_attribute(type(value), key)
        if found is not None and isinstance(found[1], PLAIN_DESCRIPTORS):
            part = Place("slot", value, found[1], name="", site="").read()
            return [] if part is MISSING else [part]
        return []
    if kind == "item":
        place = Place("item", value, key, name="", site="")
        is_known = isinstance(value, list | tuple | dict | collections.deque)
        part = place.read() if is_known else MISSING
        return [] if part is MISSING else [part]
    if kind == "each":
        return list(_items_of(value))
    if kind == "any":
        tables = (entries_of(value), *tables_of(value))
        return [part for table in tables if table is not None for part in table.values()]
    return []


def _items_of(value: Any) -> Iterable[Any]:
    """Return the items of a container that is not too long."""
    base = base_of(value)
    if base is None or base.__len__(value) > _MOST_PARTS:
        return ()
    items: Iterable[Any] = base.values(value) if base is dict else base.__iter__(value)
    return items
