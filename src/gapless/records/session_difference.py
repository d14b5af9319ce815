"""What changed from one session of the doctor to another, for example after a fix."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gapless.records.finding import Finding, Session


@dataclass(frozen=True, kw_only=True)
class SessionDifference:
    """Two sessions, and which of their findings are the same.

    Attributes:
        before: the first session.
        after: the second.
        kept: findings of both, each as it was and as it is; in the order of the first session.
        gone: findings of the first alone.
        new: findings of the second alone.
    """

    before: Session
    after: Session
    kept: tuple[tuple[Finding, Finding], ...]
    gone: tuple[Finding, ...]
    new: tuple[Finding, ...]

    @classmethod
    def of(cls, before: Session, after: Session) -> SessionDifference:
        """Return how two sessions differ.

        A finding is the same if its code and its line are, also where the line has another number or
        stands in another file: then its text says so.
        """
        left = dict(enumerate(before.findings))
        right = dict(enumerate(after.findings))
        same = {}
        for key in (_exactly, _by_text_in_file, _by_text, _by_number):
            for one, other in _paired(left, right, key):
                same[one] = right.pop(other)
                del left[one]
        return cls(
            before=before,
            after=after,
            kept=tuple((before.findings[one], same[one]) for one in sorted(same)),
            gone=tuple(left.values()),
            new=tuple(right.values()),
        )

    @property
    def changed(self) -> tuple[tuple[Finding, Finding], ...]:
        """The findings of both whose cost or count is clearly another one."""
        return tuple(pair for pair in self.kept if _is_changed(*pair))

    @property
    def speedup(self) -> float | None:
        """Time of a step before over that after; None where one of them is not known."""
        if self.before.steps is None or self.after.steps is None:
            return None
        before, now = self.before.steps.wall_ms.median, self.after.steps.wall_ms.median
        # A coarse clock may show no time at all: neither time can be divided by the other.
        return before / now if before and now else None

    @property
    def is_clear(self) -> bool:
        """Whether the times of a step lie apart, so that chance alone does not explain them."""
        if self.before.steps is None or self.after.steps is None:
            return False
        return not self.before.steps.wall_ms.overlaps(self.after.steps.wall_ms)


# Costs that differ by less than a tenth, or by less than these milliseconds, are the same: two runs of
# one script differ as much.
_SAME_SHARE = 0.1
_SAME_MS = 0.05


def _paired(
    left: dict[int, Finding],
    right: dict[int, Finding],
    key: Callable[[Finding], Hashable | None],
) -> list[tuple[int, int]]:
    """Return places of findings that have the same key, the first with the first; None is no key."""
    waiting = _by_key(right, key)
    pairs: list[tuple[int, int]] = []
    for name, places in _by_key(left, key).items():
        pairs += zip(places, waiting.get(name, ()), strict=False)
    return pairs


def _by_key(
    findings: dict[int, Finding], key: Callable[[Finding], Hashable | None]
) -> dict[Hashable, list[int]]:
    """Return the places of findings by their key, in the order of their lines."""
    found = defaultdict(list)
    for place in sorted(findings, key=lambda place: _line_of(findings[place])):
        if (name := key(findings[place])) is not None:
            found[name].append(place)
    return found


def _line_of(finding: Finding) -> int:
    return 0 if finding.site is None else finding.site.line


def _exactly(finding: Finding) -> Hashable:
    return (finding.code, finding.site, finding.call, finding.thread, finding.rank)


def _by_text_in_file(finding: Finding) -> Hashable | None:
    site = finding.site
    if site is None or not site.source:
        return None
    return (finding.code, site.path, site.source, finding.call)


def _by_text(finding: Finding) -> Hashable | None:
    site = finding.site
    return (finding.code, site.source, finding.call) if site and site.source else None


def _by_number(finding: Finding) -> Hashable | None:
    """Where no text is known: by the number of the line, or by the call if there is no line."""
    site = finding.site
    if site is None:
        return (finding.code, finding.call, finding.thread)
    return None if site.source else (finding.code, site.path, site.line, finding.call)


def _is_changed(before: Finding, after: Finding) -> bool:
    pairs = (
        (before.waited_ms, after.waited_ms),
        (before.exposed_ms, after.exposed_ms),
        (before.per_step, after.per_step),
    )
    return any(_differs(*pair) for pair in pairs)


def _differs(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    apart = abs(after - before)
    return apart > _SAME_MS and apart > _SAME_SHARE * max(before, after)
