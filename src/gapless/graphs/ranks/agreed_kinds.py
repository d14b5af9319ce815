"""Which kinds of calls several ranks have agreed on: to capture them, or not to."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gapless.graphs.entry import Entry


class AgreedKinds:
    """The kinds that are settled, in the order in which they were, which is that of all ranks.

    A kind has another hash on each rank, so that ranks name it by its place in this order.

    Args:
        num_warmup: calls of a kind before ranks ask each other about it.
    """

    def __init__(self, num_warmup: int) -> None:
        self._num_warmup = num_warmup
        self._settled: list[Entry] = []

    def __len__(self) -> int:
        return len(self._settled)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the settled kinds."""
        yield from self._settled

    @property
    def captured(self) -> set[int]:
        """The places of the kinds that were captured."""
        return {place for place, entry in enumerate(self._settled) if entry.agreed == "captured"}

    def num_asked(self, entry: Entry) -> int:
        """Count a call without a graph; return how many there were after the warm-up, if positive."""
        entry.num_without_graph += 1
        return entry.num_without_graph - self._num_warmup

    def settle(self, entry: Entry, *, is_captured: bool) -> None:
        """Ask no more about a kind."""
        if entry.agreed is None:
            self._settled.append(entry)
        entry.agreed = "captured" if is_captured else "not captured"

    def open_again(self, places: Collection[int]) -> list[Entry]:
        """Let ranks ask again about the kinds at these places; return them.

        They need no other warm-up.
        """
        found = [entry for at, entry in enumerate(self._settled) if at in places]
        self._settled = [entry for entry in self._settled if entry not in found]
        for entry in found:
            entry.agreed, entry.is_changed = None, False
            entry.num_without_graph = self._num_warmup
        return found
