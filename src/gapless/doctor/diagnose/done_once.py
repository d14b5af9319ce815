"""Tells what a script does once from what its loop does, where no step says it. No torch.

Without a step all that is known of a line is when it held the host up. What a script does before and
after its loop is done at one moment: a copy of the model's weights, a result that is printed. A loop
comes back to its lines, over a good part of the watched time or very often.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from gapless.doctor.seen_waits import SeenWait

# Of so many moments the watched time is made.
_NUM_MOMENTS = 10

# So many waits are a loop, however short.
_LEAST_OF_A_LOOP = 20

# One call waits for each number that it prints, for each tensor that it saves or moves.
_OFTEN_IN_ONE_CALL = ("print", "save")
_OFTEN_IN_THEM = ("Module.to", "Module.cuda", "Module.cpu", "Module.load_state_dict")


def split_done_once(
    waits: Sequence[SeenWait], *, watched_ns: int
) -> tuple[list[SeenWait], list[SeenWait]]:
    """Return the waits of lines that a script comes back to, and those of lines that it runs once.

    A wait counts where it ends: the first one of a line may last as long as all the work that was queued.

    Args:
        waits: of all lines.
        watched_ns: the time in which they were seen.
    """
    by_line: dict[Hashable, list[SeenWait]] = defaultdict(list)
    for wait in waits:
        by_line[_line(wait)].append(wait)
    once = {line for line, its in by_line.items() if _is_done_once(its, watched_ns)}
    return (
        [wait for wait in waits if _line(wait) not in once],
        [wait for wait in waits if _line(wait) in once],
    )


def say_done_once(waits: Sequence[SeenWait]) -> str:
    """Return a sentence that names the lines of waits that are no findings."""
    lines = list(dict.fromkeys(map(_name, waits)))
    number = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
    return (
        f"{number} held the host up at one moment of the watched time only, which is what a script does "
        f"once, and no finding: {', '.join(lines)}."
    )


def _is_done_once(waits: Sequence[SeenWait], watched_ns: int) -> bool:
    ends = [wait.start_ns if wait.end_ns is None else wait.end_ns for wait in waits]
    is_one_moment = (max(ends) - min(ends)) * _NUM_MOMENTS < watched_ns
    return is_one_moment and sum(map(_may_be_a_turn, waits)) < _LEAST_OF_A_LOOP


def _may_be_a_turn(wait: SeenWait) -> bool:
    """Whether many waits of this cause come from a loop, and not from one call."""
    return wait.cause not in _OFTEN_IN_ONE_CALL and wait.call not in _OFTEN_IN_THEM


def _line(wait: SeenWait) -> Hashable:
    """Return what waits of one line have in common; without a line, what was called."""
    if wait.site is None:
        return wait.cause, wait.call
    return wait.site.path, wait.site.line


def _name(wait: SeenWait) -> str:
    return f"an unknown line ({wait.call})" if wait.site is None else str(wait.site)
