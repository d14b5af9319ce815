"""Waits of which no single call tells: queries in a loop, collectives, steps of optimizers."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from gapless.device.cuda_waits import askable_classes
from gapless.device.waiting_calls import named_like
from gapless.doctor.seen_waits import MARK, MARK_AFTER
from gapless.python_private import getframe
from gapless.unnoticed import unseen


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.doctor.lines.wait_notes import Note, WaitNotes
    from gapless.unnoticed import Patches


# NCCL only tells the device to wait, which takes less.
_MIN_COLLECTIVE_NS = 100_000


def watch_queries(notes: WaitNotes, patches: Patches) -> None:
    """Note each loop that asks an event or a stream until it is done; asking once is no wait."""
    for kind in askable_classes():
        patches.put_method(kind, "query", partial(_asking, kind, notes))


def _asking(
    kind: type, notes: WaitNotes, original: Callable[[Any], bool]
) -> Callable[[Any], bool]:
    spins = Spins(notes, f"{kind.__name__}.query")

    def query(self: Any) -> bool:
        if is_dynamo_compiling():
            return original(self)
        with unseen:
            start_ns = time.perf_counter_ns()
            is_done = original(self)
            spins.asked(self, is_done, start_ns=start_ns)
            return is_done

    return named_like(query, original)


class Spins:
    """Tells loops of queries from queries.

    It is a loop if the same line asks the same event again in the same step, after a "no".
    """

    def __init__(self, notes: WaitNotes, call: str) -> None:
        self._notes = notes
        self._call = call
        # By thread: what was asked last, with the answer "no", and since when; and the note of it.
        self._last: dict[int, tuple[tuple[Any, ...], int, Note | None]] = {}

    def asked(self, what: Any, is_done: bool, *, start_ns: int) -> None:
        """Note an answer, two calls below whoever asks."""
        frame = getframe(2)
        thread = threading.get_ident()
        # By line, not by instruction: Python compiles the condition of a loop twice, and one loop would be two.
        key = (id(what), id(frame.f_code), frame.f_lineno, self._notes.step)
        last, since_ns, note = self._last.pop(thread, (None, start_ns, None))
        if last != key:
            since_ns, note = start_ns, None
        elif note is None:
            note = self._notes.cost("query", self._call, start_ns=since_ns, frame=frame, mark=MARK)
            note.count = 2
        else:
            note.end_ns = time.perf_counter_ns()
            note.count += 1
        if not is_done:
            self._last[thread] = (key, since_ns, note)


def watch_optimizers(notes: WaitNotes) -> Callable[[], None]:
    """Mark each step of an optimizer, which may sort on the device; return what ends this."""

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if notes.are_wanted and not is_dynamo_compiling():
            call = f"{type(optimizer).__name__}.step"
            notes.within("optimizer", call, frame=getframe(1))

    return register_optimizer_step_pre_hook(before).remove


def watch_collectives(notes: WaitNotes, patches: Patches) -> None:
    """Note each wait for a collective that held the host up."""
    if not torch.distributed.is_available():  # noqa: TID251  # in a script of anybody
        return
    work = torch.distributed.Work  # noqa: TID251  # as above
    patches.put_method(work, "wait", partial(_collecting, notes))


def _collecting(notes: WaitNotes, original: Callable[..., Any]) -> Callable[..., Any]:
    def collect(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not notes.are_wanted:
            return original(self, *args, **kwargs)
        state = notes.thread
        state.in_wait, state.heard = True, False
        start_ns = time.perf_counter_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            state.in_wait = False
            if state.heard or time.perf_counter_ns() - start_ns >= _MIN_COLLECTIVE_NS:
                notes.cost(
                    "collective",
                    "Work.wait",
                    start_ns=start_ns,
                    frame=getframe(1),
                    mark=MARK_AFTER if state.heard else "",
                )

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(self, *args, **kwargs)
        with unseen:
            return collect(self, *args, **kwargs)

    return named_like(wait, original)
