"""Why a step is not captured: a value with a kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


RefusalKind: TypeAlias = Literal[
    "cpu",  # a CPU has nothing to launch
    "unknown_batch",  # the batch is of a kind that cannot be taken apart
    "batch_on_host",  # a tensor of the batch is not on the device
    "batch_requires_grad",  # a tensor of the batch requires gradients
    "optimizer_calls_differ",  # two runs of the step call other optimizers
    "scheduler",  # the step calls a learning rate scheduler
    "replaced_state",  # the optimizer makes its state anew, or counts on the host
    "host_read",  # the step reads a value of the device
    "too_many_keys",  # hardly any two batches are of one kind
    "too_many_changes",  # what graphs bake in changes too often
    "not_ahead",  # the batch is of the kind of no example
    "graph_limit",  # there are as many graphs as may be
    "memory_budget",  # the next graph would need more memory than it may
    "capture_failed",  # the step does something that cannot be captured
    "cannot_restore",  # the optimizer cannot be put back after captures ahead of a run
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a step, or a further kind of batch, is not captured.

    Attributes:
        kind: for code.
        text: for people, in one line.
        is_final: False if the reason may be gone when graphs have been dropped or the step has
            been measured again; it is then tried anew.
    """

    kind: RefusalKind
    text: str
    is_final: bool = True

    def __str__(self) -> str:
        return self.text


def host_read(site: str, *, is_final: bool = True) -> Refusal:
    """Refuse a step that reads a value of the device.

    Args:
        site: file and line of the read.
        is_final: False if later runs of the step may not read there.
    """
    return Refusal("host_read", f"{site} makes the host wait for the device", is_final)
