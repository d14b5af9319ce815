"""What is captured and what is not, in words."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.refusal import Refusal


if TYPE_CHECKING:
    from collections.abc import Callable


# What changed, and what to do about it.
NUMBERS = (
    "numbers of the optimizer have changed {} times, and captured work keeps those it has; make "
    "the learning rate a tensor on the device, and fill it in place"
)
MEMORY = (
    "weights or optimizer state have been replaced, or (un)frozen, {} times, and captured work "
    "keeps those it has; copy new values into them"
)
GRADIENTS = (
    "gradients are not those that captured work adds to, {} times; call zero_grad() in the step, "
    "or with set_to_none=False"
)

_TORCH = str(Path(torch.__file__).parent)
_ENGINE = str(Path(__file__).parents[1])


@dataclass(kw_only=True)
class CaptureReport:
    """What is captured, and what is not.

    Attributes:
        num_graphs: graphs captured, those that were captured anew included.
        num_replays: steps that ran as a graph.
        num_eager: steps that ran eagerly.
        seconds: time spent capturing, during which the device is idle.
        refusal: why nothing more is captured, None if nothing forbids it. Graphs that exist are
            still replayed.
        note: what else is worth knowing, None if there is nothing.
    """

    num_graphs: int = 0
    num_replays: int = 0
    num_eager: int = 0
    seconds: float = 0.0
    refusal: Refusal | None = None
    note: str | None = None

    def __str__(self) -> str:
        """Return one line: what ran as a graph, what ran eagerly, and why."""
        done = (
            f"captured {_count(self.num_graphs, 'graph')} in {self.seconds:.1f} s, "
            f"{_count(self.num_replays, 'step')} replayed, {self.num_eager} ran eagerly"
        )
        if self.refusal is not None:
            done = f"{done}; no further graph: {self.refusal.text}"
        return done if self.note is None else f"{done}; {self.note}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the refusal is its text."""
        refusal = None if self.refusal is None else self.refusal.text
        return {**vars(self), "refusal": refusal}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def refusal_of(error: RuntimeError) -> Refusal:
    """Name the line of the step that cannot be captured, and what it does."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_TORCH, _ENGINE))]
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}: " if own else ""
    what = str(error).splitlines()[0]
    hint = next((hint for sign, hint in _HINTS.items() if sign in what), "")
    return Refusal("capture_failed", where + what + hint)


def objection_to(
    tensors: list[torch.Tensor], *, needs_copy: Callable[[torch.Tensor], bool]
) -> Refusal | None:
    """Return why no graph can take this batch, None if one can.

    Args:
        tensors: of the batch.
        needs_copy: says whether a tensor is not on the device.
    """
    for tensor in tensors:
        if needs_copy(tensor):
            return Refusal(
                "batch_on_host",
                f"a batch holds {_named(tensor)}, whose values a graph would keep; move it to the "
                "device, or make it a plain value",
            )
        if tensor.requires_grad:
            return Refusal(
                "batch_requires_grad",
                f"a batch holds {_named(tensor)} that requires gradients, which a graph would not "
                "bring to it; call requires_grad_() in the step",
            )
    return None


def _named(tensor: torch.Tensor) -> str:
    return f"a tensor on {tensor.device} ({tensor.dtype}, shape {tuple(tensor.shape)})"


# What torch and CUDA say, and what it means for a step.
_HINTS = {
    "called a synchronizing CUDA operation": " (the host reads a value there, which makes it wait)",
    "uncaptured work": " (a loss of an earlier backward pass is still held; let go of it)",
    "capturable": " (give the optimizer capturable=True)",
}
