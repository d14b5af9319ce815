"""Python's warnings on several ranks: rank 0 shows each of them once."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.ranks import Ranks


class _Warned(NamedTuple):
    """A warning as it can be sent; two with the same text are one."""

    category: str
    text: str
    file: str
    line: int

    def of_rank(self, rank: int) -> str:
        """Return it in one line that names the rank."""
        return f"rank {rank}: {self.category}: {self.text} ({self.file}:{self.line})"


class RankWarnings:
    """Keeps what other ranks warn of until `gather` lets rank 0 say it; with one rank it does nothing.

    Inside its `with` block rank 0 shows its own warnings at once, as without it. The others keep
    theirs. What is not gathered when the block ends, as after an error, they show themselves.

    Args:
        ranks: of the run.
        say: shows a line on rank 0, above a bar if there is one.
    """

    def __init__(self, ranks: Ranks, *, say: Callable[[str], None]) -> None:
        self._ranks = ranks
        self._say = say
        self._show: Callable[..., None] = warnings.showwarning
        self._patches = Patches()
        self._known: set[_Warned] = set()
        # Shown here where `gather` is not called again, as after an error; by what is sent.
        self._kept: dict[_Warned, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._pid = os.getpid()

    def gather(self) -> None:
        """Let rank 0 say what the others warned of, if it did not say the same.

        Raises:
            RanksError: another rank is gone.

        Sync: With several ranks, blocks the host until all are here, but not on the device.
        """
        if self._ranks.world == 1:
            return
        kept, self._kept = self._kept, {}
        # A pause, or a rank that is still saving its last state would look like one that hangs.
        with self._ranks.pause("warnings", may_be_silent=False):
            of_ranks = self._ranks.agree(list(kept))
        for rank, of_rank in enumerate(of_ranks):
            for warned in of_rank:
                if self._ranks.is_first and warned not in self._known:
                    self._known.add(warned)
                    self._say(warned.of_rank(rank))

    def __enter__(self) -> Self:
        if self._ranks.world > 1:
            self._show = warnings.showwarning
            self._patches.put(warnings, "showwarning", self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._ranks.world == 1:
            return
        self._patches.take_out()
        for arguments, named in self._kept.values():
            self._show(*arguments, **named)
        self._kept = {}

    def _note(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        *arguments: Any,
        **named: Any,
    ) -> None:
        warned = _Warned(category.__name__, str(message), filename, lineno)
        is_new = warned not in self._known
        self._known.add(warned)
        # A warning kept in a forked loader worker would be lost: it shows its own.
        if self._ranks.is_first or os.getpid() != self._pid:
            self._show(message, category, filename, lineno, *arguments, **named)
        elif is_new:
            self._kept[warned] = (message, category, filename, lineno, *arguments), named
