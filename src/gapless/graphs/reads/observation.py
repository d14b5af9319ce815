"""What an eager run of a step does that a graph could not repeat.

Before a step is captured, its eager runs are watched: whether a backward pass runs, what that trains, and whether the
host reads a value of the device. `gapless.graphs.refusal` says which of these a graph could not repeat.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.user_line import hide_folder


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.device.base import Device
    from gapless.graphs.reads.weight_guards import KnownWeights


# Code of `graphs` calls on behalf of the step.
hide_folder(Path(__file__).parents[1])


@dataclass
class Observation:
    """What one eager run did.

    Attributes:
        host_reads: file:line of every read of a value of the device.
        reads_of_step: those of them that no optimizer's `step()` made.
        ran_backward: whether a backward pass ran.
    """

    host_reads: list[str] = field(default_factory=list)
    reads_of_step: list[str] = field(default_factory=list)
    ran_backward: bool = False


@contextmanager
def observed(
    device: Device,
    weights: KnownWeights,
    *,
    is_updating: Callable[[], bool],
    sees_reads: bool,
) -> Iterator[Observation]:
    """Watch the body, an eager run of a step; what is returned is complete after the body.

    Args:
        device: where the step runs.
        weights: those that the step trains are added.
        is_updating: says whether an optimizer's `step()` runs.
        sees_reads: whether to look for reads of values of the device.

    Sync: Does not block the host.
    """
    seen = Observation()
    backward, grad, thread = torch.autograd.backward, torch.autograd.grad, get_ident()

    def note_read(site: str) -> None:
        seen.host_reads.append(site)
        if not is_updating():
            seen.reads_of_step.append(site)

    def note_and_run(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if is_of_the_step_in(thread):
            seen.ran_backward = True
            weights.add_leaves_behind(tensors)
        backward(tensors, *args, **kwargs)

    def note_and_return(*args: Any, **kwargs: Any) -> Any:
        if is_of_the_step_in(thread):
            seen.ran_backward = True
        return grad(*args, **kwargs)

    with (
        _replaced(torch.autograd, "backward", note_and_run),
        _replaced(torch.autograd, "grad", note_and_return),
        device.watch_reads(note_read) if sees_reads else nullcontext(),
    ):
        yield seen


# --- functions of torch that are replaced while a step is watched ---

# Torch has hooks for optimizers, but tells nobody of the tensors from which a backward pass starts:
# hooks of gradients have to be put on weights that are known. A mode that sees every operation would make compiled code run
# in another way than in the capture. So these functions are replaced in the watched runs only.


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Put a value in an attribute's place in the body, and the attribute back after it."""
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def is_of_the_step_in(thread: int) -> bool:
    """Whether what happens here belongs to the step that a thread runs.

    Backward passes run in threads of autograd, which all loops share.
    """
    return get_ident() == thread or torch._C._current_graph_task_id() != -1
