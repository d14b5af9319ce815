"""The mutants by what they are about, in words that no move and no new name changes.

`concepts.toml` has an entry for each ordering operation: its concept, where it was when the list
began, and where it is now. The old place is never changed. The present place is found anew after
a move by `python -m simulation.mutants --remap`, or written by hand. Where two operations became
one, the second is `joined` to the first and has no place of its own.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from pathlib import Path


FILE = Path(__file__).with_name("concepts.toml")

_HEAD = """\
# What each ordering operation is for: `concept` in words, `was` where it stood when this list
# began (file: function: code, and which of several equal ones) or "new", and where it is now.
# An operation that became one with another names that one instead: `joined`.
# `noticed_in` is a scenario that fails without the operation.
# Never change `was`. After a move: python -m simulation.mutants --remap
# A new operation, or one that its scenario no longer misses: python -m simulation.mutants --search
"""


@dataclass(frozen=True, order=True)
class Place:
    """Where an operation is.

    Attributes:
        module: path relative to `src/gapless`.
        function: qualified name of the function that it is in.
        code: of the operation, as `ast.unparse` writes it.
        ordinal: 1 for the first of equal code in that function, and so on.
    """

    module: str
    function: str
    code: str
    ordinal: int

    def __str__(self):
        nth = f" ({self.ordinal})" if self.ordinal > 1 else ""
        return f"{self.module}: {self.function}: {self.code}{nth}"


@dataclass(frozen=True)
class Concept:
    """What one ordering operation is for.

    Attributes:
        name: of the concept, in words.
        was: the place when the list began, "new" for what came later.
        place: the present one; None if it is joined.
        joined: name of the concept whose operation does the work of this one as well.
        noticed_in: name of a scenario that fails without it; None if none was found yet.
    """

    name: str
    was: str
    place: Place | None = None
    joined: str | None = None
    noticed_in: str | None = None


def read(path=FILE):
    """Return all concepts, in the order of the file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["operation"]
    return [
        Concept(
            name=entry["concept"],
            was=entry["was"],
            place=None if "joined" in entry else Place(*(entry[key] for key in _PLACE)),
            joined=entry.get("joined"),
            noticed_in=entry.get("noticed_in"),
        )
        for entry in entries
    ]


_PLACE = [field.name for field in fields(Place)]


def write(concepts, path=FILE):
    """Write all concepts; what is read back is equal."""
    path.write_text("\n".join([_HEAD, *map(_entry, concepts)]), encoding="utf-8")


def _entry(concept):
    place = {"joined": concept.joined} if concept.place is None else vars(concept.place)
    values = {"concept": concept.name, "was": concept.was, **place}
    if concept.noticed_in is not None:
        values["noticed_in"] = concept.noticed_in
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["[[operation]]", *lines, ""])


def by_place(concepts):
    """Return the concepts of each present place: one of its own, then those joined to it."""
    found = {concept.place: [concept] for concept in concepts if concept.place is not None}
    owners = {owners[0].name: owners for owners in found.values()}
    for concept in concepts:
        if concept.joined in owners:
            owners[concept.joined].append(concept)
    return found


# What has to be equal for an operation to be the same, strictest first.
_SAME = [
    lambda place: (Path(place.module).name, place.function, place.code, place.ordinal),
    lambda place: (place.function, place.code, place.ordinal),
    lambda place: (place.function.split(".")[-1], place.code, place.ordinal),
    lambda place: (place.code,),
]


def remap(concepts, places):
    """Find the new places of operations that were moved and have the same code as before.

    Returns:
        All concepts, with new places where there is no doubt; then those that stay lost.
    """
    own = [concept for concept in concepts if concept.place is not None]
    lost = [concept for concept in own if concept.place not in places]
    free = sorted(set(places) - {concept.place for concept in own})
    found = {}
    for same in _SAME:
        pairs = _only_pairs(lost, free, same)
        found.update(pairs)
        lost = [concept for concept in lost if concept.name not in found]
        free = [place for place in free if place not in found.values()]
    moved = [
        replace(concept, place=found.get(concept.name, concept.place)) for concept in concepts
    ]
    return moved, lost


def _only_pairs(lost, free, same):
    """Return the new place of each concept that is alone with one place that is the same."""
    groups = defaultdict(lambda: ([], []))
    for concept in lost:
        groups[same(concept.place)][0].append(concept)
    for place in free:
        groups[same(place)][1].append(place)
    return {
        owners[0].name: candidates[0]
        for owners, candidates in groups.values()
        if len(owners) == len(candidates) == 1
    }


def likely(concept, places, *, count=3):
    """Return the free places whose function and code are most like those of a lost concept."""

    def likeness(place):
        texts = (f"{at.function}: {at.code}" for at in (concept.place, place))
        return difflib.SequenceMatcher(None, *texts).ratio()

    return sorted(places, key=likeness, reverse=True)[:count]
