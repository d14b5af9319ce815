"""The pass that finds the forward lines of nodes of a backward pass.

A node of autograd that was written in C++ waits on a thread that has no Python line. In torch's anomaly
mode each node keeps the traceback of the operation that made it; without its check for NaN, the mode
costs host time alone.
"""

from __future__ import annotations

import linecache
import os
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from gapless.doctor.patched_attributes import Patches
from gapless.doctor.user_line import OwnCode, module_that_runs, short_path
from gapless.records.finding import Site


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.doctor.seen import SeenWait
    from gapless.doctor.watched import NodeKey

# What `traceback.format_list` writes of a frame.
_FRAME = re.compile(r'\s*File "(?P<path>.*)", line (?P<line>\d+), in (?P<function>.*)')

_LEAVES = "AccumulateGrad"


def needs_backward_lines(seen: Iterable[SeenWait]) -> bool:
    """Return whether something waited on a thread of autograd and nobody knows for which line."""
    return any(wait.thread == "autograd" and wait.site is None for wait in seen)


class BackwardLinesPass:
    """Notes which line made each node of the backward passes; a `gapless.doctor.seen.Pass`.

    Attributes:
        notes: what could not be seen, and why; one sentence each.
        lines: for each node, by its name and its place among those of its name in a step, its line.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: dict[NodeKey, Site] = {}
        self._own = OwnCode(module_that_runs())
        self._folder = os.getcwd()  # noqa: PTH109  # paths are shortened as text
        self._patches = Patches()
        self._of_step: dict[int, tuple[str, Site | None]] = {}
        self._before: tuple[bool, bool] | None = None

    def start(self) -> None:
        """Begin to watch; a step begins."""
        original = getattr(torch.autograd, "_engine_run_backward", None)
        if original is None:
            self.notes.append(
                "Forward lines of waits in backward passes are not known: this torch runs its "
                "backward passes in another way."
            )
            return

        def _engine_run_backward(roots: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            self._walk(roots)
            return original(roots, *args, **kwargs)

        self._patches.put(torch.autograd, "_engine_run_backward", _engine_run_backward)
        self._before = (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
        if not self._before[0]:
            torch.set_anomaly_enabled(True, False)

    def next_step(self) -> None:
        """Note that one step has ended and the next begins."""
        places: Counter[str] = Counter()
        for _, (name, site) in sorted(self._of_step.items(), key=lambda one: one[0]):
            if site is not None:
                self.lines.setdefault((name, places[name]), site)
            places[name] += 1
        self._of_step.clear()

    def stop(self) -> None:
        """Take everything out again; the last step has ended."""
        self.next_step()
        self._patches.take_out()
        if self._before is not None:
            torch.set_anomaly_enabled(*self._before)
            self._before = None

    def _walk(self, roots: Sequence[Any]) -> None:
        # Nodes are kept while they are walked: their wrappers are what tells them apart.
        waiting = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
        known: set[Any] = set()
        while waiting:
            node = waiting.pop()
            if node is None or node in known:
                continue
            known.add(node)
            waiting += [following for following, _ in node.next_functions]
            name = node.name()
            if not name.endswith(_LEAVES):
                self._of_step[node._sequence_nr()] = (name, self._site(node.metadata))

    def _site(self, metadata: dict[str, Any]) -> Site | None:
        """Return the user's innermost line of the traceback that a node keeps."""
        for text in reversed(metadata.get("traceback_") or []):
            frame = _FRAME.match(text)
            if frame is not None and self._own.owns(frame["path"]):
                line = int(frame["line"])
                return Site(
                    path=short_path(frame["path"], folder=self._folder),
                    line=line,
                    function=frame["function"],
                    source=linecache.getline(frame["path"], line).strip(),
                )
        return None
