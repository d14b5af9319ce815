"""A thing that is compared before each replay, and how a change of it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.graphs.reads.plain_values import is_scalar_of_numpy, is_value, same, shown
from gapless.graphs.reads.value_places import MISSING


if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Change:
    """Something that is no longer as it was.

    Attributes:
        name: as the code says it, such as `self.alpha`.
        site: where the code reads it, `file:line`; "" if that is not known.
        before: a short text for the value that the guards were made with.
        after: the same for the value now.
        is_memory: whether an object, a tensor or its memory is another, rather than a plain value.
    """

    name: str
    site: str
    before: str
    after: str
    is_memory: bool


class Shown(str):
    """What is shown for a state that is no value."""

    __slots__ = ()


@dataclass(slots=True)
class Check:
    """One thing to compare.

    Attributes:
        read: returns what there is now.
        expected: what there was.
        name: of it.
        site: where the code reads it.
        is_memory: as of `Change`.
        by_value: whether an equal value is as good.
    """

    read: Callable[[], Any]
    expected: Any
    name: str
    site: str
    is_memory: bool
    by_value: bool

    def holds(self, now: Any) -> bool:
        """Return whether a value is as good as what there was."""
        return now is self.expected or (self.by_value and same(self.expected, now))

    def holds_now(self) -> bool:
        """Return whether what there is now is as good as what there was."""
        return self.holds(self.read())

    def change(self) -> Change | None:
        """Return how it has changed, None if it has not."""
        now = self.read()
        if self.holds(now):
            return None
        before, after = _shown(self.expected), _shown(now)
        if before == after:
            is_part = before.startswith("its ")
            after = f"other {before[4:]}" if is_part else f"another {type(now).__name__}"
        return Change(self.name, self.site, before, after, self.is_memory)


def check_of(
    read: Callable[[], Any],
    expected: Any,
    *,
    name: str,
    site: str = "",
    is_memory: bool | None = None,
) -> Check:
    """Return a check of a thing, equal values of which are as good if it is a plain value."""
    by_value = True
    if is_memory is None:
        by_value = is_value(expected) or is_scalar_of_numpy(expected)
        is_memory = not by_value and expected is not MISSING
    return Check(read, expected, name, site, is_memory, by_value)


def check_of_length(container: Any, name: str, site: str = "") -> Check:
    """Return a check of how many items a container has."""
    return check_of(
        lambda: Shown(f"{len(container)} items"), Shown(f"{len(container)} items"), name=name,
        site=site, is_memory=False,
    )  # fmt: skip


def _shown(value: Any) -> str:
    if isinstance(value, Shown):
        return str(value)
    return shown(value)
