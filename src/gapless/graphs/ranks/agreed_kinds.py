"""Which kinds of calls several ranks have agreed on: to capture them, or not to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator


class AgreedKinds:
    """The kinds that are settled, in the order in which they were, which is that of all ranks.

    A kind has another hash on each rank, so that ranks name it by its place in this order.

    Args:
        num_warmup: calls of a kind before ranks ask each other about it.
    """

    def __init__(self, num_warmup: int) -> None:
        self._num_warmup = num_warmup
        # By the hash of a kind: a kind may hold every plain value of its batch.
        self._num_calls: Counter[int] = Counter()
        # The kind if it was captured, None if not.
        self._settled: dict[int, Hashable | None] = {}
        self._changed: set[int] = set()

    def __contains__(self, kind: Hashable) -> bool:
        return hash(kind) in self._settled

    def __len__(self) -> int:
        return len(self._settled)

    def __iter__(self) -> Iterator[tuple[int, Hashable | None]]:
        """Yield the hash of each settled kind, and the kind if it was captured."""
        yield from self._settled.items()

    @property
    def captured(self) -> set[int]:
        """The places of the kinds that were captured."""
        return {place for place, kind in enumerate(self._settled.values()) if kind is not None}

    def num_asked(self, kind: Hashable) -> int:
        """Count a call without a graph; return how many there were after the warm-up, if positive."""
        self._num_calls[hash(kind)] += 1
        return self._num_calls[hash(kind)] - self._num_warmup

    def settle(self, kind: Hashable, *, is_captured: bool) -> None:
        """Ask no more about a kind."""
        self._settled[hash(kind)] = kind if is_captured else None

    def is_changed(self, kind: Hashable) -> bool:
        """Whether a call was not what was captured, since ranks agreed on its kind."""
        return hash(kind) in self._changed

    def note_change(self, kind: Hashable) -> None:
        """Note that a call was not what was captured."""
        self._changed.add(hash(kind))

    def open_again(self, places: Collection[int]) -> list[int]:
        """Let ranks ask again about the kinds at these places; return their hashes.

        They need no other warm-up.
        """
        numbers = [number for at, number in enumerate(self._settled) if at in places]
        for number in numbers:
            del self._settled[number]
            self._changed.discard(number)
            self._num_calls[number] = self._num_warmup
        return numbers
