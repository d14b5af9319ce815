"""The graphs of a step by their keys, and how many there may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.guards import GuardSet
from gapless.graphs.refusal import Refusal
from gapless.graphs.weight_guards import (
    GradientsInPlace,
    GraphGradients,
    WeightsInPlace,
    gradients_kept_on_failure,
)
from gapless.pipeline.tree import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gapless.device.base import Device, Graph
    from gapless.graphs.weight_guards import Gradients
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.tree import Tree


# What is left is for libraries and fragments.
DEFAULT_MEMORY_FRACTION = 0.8

# Of these torch copies all tensors of one dtype in one launch.
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_COPIED_TOGETHER = frozenset((*_FLOATS, *_INTEGERS))

# Each graph takes memory; more than this are a sign of shapes that hardly come again.
DEFAULT_MAX_GRAPHS = 100


class StepGraph:
    """A step that is captured for one key.

    Args:
        graph: the captured work.
        inputs: the tensors that it reads a batch from.
        out: what the step returned in the capture.
        gradients: what the capture did with them.
        guards: what has to hold before a replay.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        inputs: list[torch.Tensor],
        out: Any,
        gradients: GraphGradients,
        guards: GuardSet,
    ) -> None:
        self.guards = guards
        self._graph = graph
        self._inputs = _Inputs(inputs)
        self._out = out
        self._gradients = gradients

    def replay(self, leaves: list[torch.Tensor]) -> Any:
        """Launch the step on a batch; return what it returns, valid until the next replay.

        Args:
            leaves: tensors of the batch.

        Sync: Does not block the host.
        """
        self._inputs.fill(leaves)
        self._graph.replay()
        self._gradients.hand_out()
        return self._out


class _Inputs:
    """The memory that a graph reads a batch from.

    Args:
        tensors: in that memory.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        # A step may have made its input require gradients, and autograd is not to keep batches.
        targets = [tensor.detach() for tensor in tensors]
        alike: dict[torch.dtype, list[int]] = {}
        for number, target in enumerate(targets):
            if _is_plain(target) and target.dtype in _COPIED_TOGETHER:
                alike.setdefault(target.dtype, []).append(number)
        groups = [group for group in alike.values() if len(group) > 1]
        # One call for what is alone of its dtype: it is copied one by one, but not by Python.
        rest = [number for group in alike.values() if len(group) == 1 for number in group]
        groups += [rest] if rest else []
        together = {number for group in groups for number in group}
        self._groups = [([targets[number] for number in group], group) for group in groups]
        self._alone = [pair for pair in enumerate(targets) if pair[0] not in together]

    def fill(self, sources: list[torch.Tensor]) -> None:
        """Copy the tensors of a batch there."""
        for number, target in self._alone:
            target.copy_(sources[number])
        for targets, numbers in self._groups:
            torch._foreach_copy_(targets, [sources[number] for number in numbers])


def _is_plain(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    return type(tensor) is torch.Tensor and is_dense


class GraphCache:
    """Capture graphs, and keep them by their keys as far as the limits go.

    All graphs share one pool of memory: they never run at the same time.

    Args:
        device: where they run.
        host_waits: the door for the waits that captures are.
        max_graphs: graphs at one time.
        memory_budget_bytes: device memory of the process that captures may lead to; None: four
            fifths of the device's. A graph that is expected to need more, going by the largest so
            far, is not captured; one that turns out to need more is the last.

    Attributes:
        expected: the keys of the examples that were given ahead of a run.
        only_expected: whether other keys are not captured.
    """

    def __init__(
        self,
        device: Device,
        host_waits: HostWaits,
        *,
        max_graphs: int = DEFAULT_MAX_GRAPHS,
        memory_budget_bytes: int | None = None,
    ) -> None:
        self.expected: set[Hashable] = set()
        self.only_expected = False
        self._device = device
        self._host_waits = host_waits
        self._max_graphs = max_graphs
        self._budget = memory_budget_bytes
        if self._budget is None:
            self._budget = memory_share(device, DEFAULT_MEMORY_FRACTION)
        self._largest_bytes = 0
        self._graphs: dict[Hashable, StepGraph] = {}
        self._newest: Graph | None = None

    def __len__(self) -> int:
        return len(self._graphs)

    def get(self, key: Hashable) -> StepGraph | None:
        """Return the graph of a key, None if there is none."""
        return self._graphs.get(key)

    def clear(self) -> None:
        """Let go of all graphs and their memory.

        Sync: Does not block the host.
        """
        self._graphs = {}
        self._newest = None

    def limit(self, key: Hashable) -> Refusal | None:
        """Return why no graph of this key may be captured, None if one may."""
        return self._is_not_expected(key) or self._has_most_graphs() or self._is_over_budget()

    def _is_not_expected(self, key: Hashable) -> Refusal | None:
        if not self.only_expected or key in self.expected:
            return None
        return Refusal("not_ahead", "a batch is of the kind of no example input", is_final=False)

    def _has_most_graphs(self) -> Refusal | None:
        if len(self._graphs) < self._max_graphs:
            return None
        return Refusal(
            "graph_limit",
            f"there are {self._max_graphs} graphs already; pad batches to fewer shapes, or raise "
            "max_graphs",
            is_final=False,
        )

    def _is_over_budget(self) -> Refusal | None:
        held = self._device.reserved_memory_bytes()
        if self._budget is None or held + self._largest_bytes <= self._budget:
            return None
        return Refusal(
            "memory_budget",
            f"the process holds {held:,} bytes and a capture took up to {self._largest_bytes:,}, "
            f"which is over its budget of {self._budget:,}",
            is_final=False,
            name="memory",
        )

    def capture(
        self, key: Hashable, tree: Tree, work: Callable[[Any], Any], *, gradients: Gradients
    ) -> StepGraph:
        """Capture the step for a key; return its graph, which has not run.

        Args:
            key: of the batch.
            tree: a batch in memory that stays; every replay copies its own batch there.
            work: the step.
            gradients: of the weights that the step trains, before the capture.

        Raises:
            RuntimeError: the step does something that cannot be captured; gradients are as before.

        Sync: Blocks the host ("capture").
        """
        outs: list[Any] = []
        reserved_before: list[int] = []

        def queue(_: object) -> None:
            # Read here: torch gives back free memory before a capture begins.
            reserved_before.append(self._device.reserved_memory_bytes())
            # Without its graph of gradients, which would hold on to more of the memory.
            outs.append(flatten(work(tree.value)).map(torch.detach).value)

        with gradients_kept_on_failure(gradients), self._host_waits.blocking("capture"):
            graph = self._device.capture(queue, like=self._newest)
        added = self._device.reserved_memory_bytes() - reserved_before[0]
        self._largest_bytes = max(self._largest_bytes, added)
        self._newest = graph
        made = GraphGradients(gradients)
        weights = WeightsInPlace([weight for weight, _ in gradients])
        self._graphs[key] = StepGraph(
            graph,
            inputs=tree.leaves,
            out=outs[0],
            gradients=made,
            guards=GuardSet([weights, GradientsInPlace(made.expected)]),
        )
        return self._graphs[key]


def memory_share(device: Device, fraction: float) -> int | None:
    """Return a share of a device's memory in bytes; None if it has no memory of its own."""
    total = device.total_memory_bytes()
    return None if total is None else int(total * fraction)
