"""Whether gradients that are differentiated themselves are summed in the same order from call to call.

Autograd runs first what was recorded last, and counts records for each thread. On a GPU a backward pass with
`create_graph=True` records on a thread of autograd. If that records more in a call than the loop does, it
overtakes the loop's numbers after some calls, and from then on sums have another order, and other bits. A replay
records nothing: what was captured before would keep the old order for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.device.torch_private import next_sequence_number, sequence_number


if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


@dataclass
class RecordNumbers:
    """The numbers of what one run recorded.

    Attributes:
        begin: the next of the loop's thread when the run began.
        end: the next of it when the run had ended.
        of_autograd: the highest that a thread of autograd gave; -1 if it recorded nothing.
    """

    begin: int = 0
    end: int = 0
    of_autograd: int = -1

    def add(self, gradients: Iterable[torch.Tensor | None]) -> None:
        """Look at gradients that a backward pass has made."""
        for gradient in gradients:
            node = None if gradient is None else gradient.grad_fn
            if gradient is not None and node is not None and _is_by_autograd(gradient):
                self.of_autograd = max(self.of_autograd, sequence_number(node) or 0)

    def begin_run(self) -> None:
        """Note where the loop's thread stands."""
        self.begin = next_sequence_number()

    def end_run(self) -> None:
        """Note where the loop's thread stands now."""
        self.end = next_sequence_number()

    def are_settled(self, before: RecordNumbers | None) -> bool:
        """Return whether no thread will overtake the other, by what an earlier run has recorded."""
        if self.of_autograd < 0:
            return True
        if before is None or before.of_autograd < 0:
            return False
        by_loop, by_autograd = self.begin - before.begin, self.of_autograd - before.of_autograd
        # All of this run's records of autograd are later than those of the run before.
        if before.of_autograd >= self.end:
            return by_autograd >= by_loop
        return self.of_autograd < self.begin and by_loop >= by_autograd


def _is_by_autograd(gradient: torch.Tensor) -> bool:
    # A backward pass on the CPU runs, and records, on the thread that calls it.
    return gradient.device.type != "cpu"
