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
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import RUN_BACKWARD, sequence_number
from gapless.device.user_line import UserCode, module_that_runs, short_path
from gapless.records.finding import Site
from gapless.unnoticed import FilterInFront, Patches, unseen


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.doctor.seen_waits import NodeKey, SeenWait

# What `traceback.format_list` writes of a frame.
_FRAME = re.compile(r'\s*File "(?P<path>.*)", line (?P<line>\d+), in (?P<function>.*)')

_LEAVES = "AccumulateGrad"

# What torch says in this mode of an error in a backward pass.
_MESSAGES = r"\s*(Error detected in|No forward pass information|Previous calculation was induced)"


def needs_backward_lines(seen: Iterable[SeenWait]) -> bool:
    """Return whether something waited on a thread of autograd and nobody knows for which line."""
    return any(wait.thread == "autograd" and wait.site is None for wait in seen)


class BackwardLinesPass:
    """Notes which line made each node of the backward passes; a `gapless.doctor.seen_waits.Pass`.

    Attributes:
        notes: what could not be seen, and why; one sentence each.
        lines: for each node, by its name and its place among those of its name in a step, its line.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: dict[NodeKey, Site] = {}
        self._own = UserCode(module_that_runs())
        self._folder = os.getcwd()  # noqa: PTH109  # paths are shortened as text
        self._patches = Patches()
        self._of_step: dict[int, tuple[str, Site | None]] = {}
        self._mode = _AnomalyMode()

    def start(self) -> None:
        """Begin to watch; a step begins. If that fails, nothing is left behind."""
        original = RUN_BACKWARD.value
        if original is None:
            self.notes.append(
                "Forward lines of waits in backward passes are not known: this torch runs its "
                "backward passes in another way."
            )
            return

        @wraps(original)
        def run(roots: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            with unseen:
                self._walk(roots)
                return original(roots, *args, **kwargs)

        try:
            self._patches.put(*RUN_BACKWARD, run)
            self._mode.start(self._patches)
        except BaseException:
            self.stop()
            raise

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
        try:
            self.next_step()
        finally:
            try:
                self._mode.stop()
            finally:
                self._patches.take_out()

    def _walk(self, roots: Sequence[Any]) -> None:
        # Nodes are kept in `known`: torch frees a wrapper that nobody holds, and its address serves another node.
        waiting = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
        known: set[Any] = set()
        while waiting:
            node = waiting.pop()
            if node is None or node in known:
                continue
            known.add(node)
            waiting += [following for following, _ in node.next_functions]
            name = node.name()
            number = None if name.endswith(_LEAVES) else sequence_number(node)
            if number is not None:
                self._of_step[number] = (name, self._site(node.metadata))

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


class _AnomalyMode:
    """Torch's anomaly mode, while the script believes that it is what it has set."""

    def __init__(self) -> None:
        self._wished = (False, True)
        self._set: Callable[..., None] | None = None
        self._messages = FilterInFront(
            "ignore", message=_MESSAGES, applies=lambda: not self._wished[0]
        )

    def start(self, patches: Patches) -> None:
        """Begin; the patches are taken out after `stop`."""
        self._wished = (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
        self._set = set_original = torch.set_anomaly_enabled

        def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
            with unseen:
                set_original(mode, check_nan)  # raises for wrong arguments, as it would without us
                self._wished = (bool(mode), bool(check_nan))
                self._let_torch_note()

        patches.put(torch, "set_anomaly_enabled", set_anomaly_enabled)
        patches.put(torch, "is_anomaly_enabled", lambda: self._wished[0])
        patches.put(torch, "is_anomaly_check_nan_enabled", lambda: self._wished[1])
        self._messages.put_in()
        self._let_torch_note()

    def stop(self) -> None:
        """End; the mode is what the script has set."""
        set_original, self._set = self._set, None
        if set_original is not None:
            set_original(*self._wished)
            self._messages.take_out()

    def _let_torch_note(self) -> None:
        if not self._wished[0] and self._set is not None:
            self._set(True, False)
