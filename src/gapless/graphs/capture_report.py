"""What is captured and what is not, in words."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch


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
        num_graphs: captures made, one for each shape of batch.
        num_replays: steps that ran as a graph.
        num_eager: steps that did not.
        seconds: time spent capturing; the device stood still for it.
        refusal: why no further shape is captured, None if nothing stands against it. What is
            captured already is still launched as a graph.
        note: what else is worth knowing, None if there is nothing.
    """

    num_graphs: int = 0
    num_replays: int = 0
    num_eager: int = 0
    seconds: float = 0.0
    refusal: str | None = None
    note: str | None = None

    def __str__(self) -> str:
        """Return one line: what ran as a graph, what did not, and why."""
        done = (
            f"captured {self.num_graphs} shapes in {self.seconds:.1f} s, "
            f"{self.num_replays} steps replayed, {self.num_eager} run as written"
        )
        if self.refusal is not None:
            done = f"{done}; no further shape: {self.refusal}"
        return done if self.note is None else f"{done}; {self.note}"


def refusal_of(error: RuntimeError) -> str:
    """Return the line of the step that forbids a capture, and what it does."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_TORCH, _ENGINE))]
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}: " if own else ""
    what = str(error).splitlines()[0]
    hint = next((hint for sign, hint in _HINTS.items() if sign in what), "")
    return where + what + hint


def objection_to(
    tensors: list[torch.Tensor], *, needs_copy: Callable[[torch.Tensor], bool]
) -> str | None:
    """Return why a graph could not take this batch, None if it can.

    Args:
        tensors: of the batch.
        needs_copy: says whether a tensor is not on the device.
    """
    for tensor in tensors:
        if needs_copy(tensor):
            return (
                f"a batch holds {_named(tensor)}, whose values a graph would keep; move it to the "
                "device, or make it a plain value"
            )
        if tensor.requires_grad:
            return (
                f"a batch holds {_named(tensor)} that requires gradients, which a graph would not "
                "bring to it; call requires_grad_() in the step"
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
