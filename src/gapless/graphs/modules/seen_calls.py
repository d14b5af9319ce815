"""What calls of a module as written show, and the backward passes behind them.

A graph of the backward pass reads the gradients of the outputs, so it has to be known which outputs
get one from the loop, and how it lies in memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gapless.device.torch_private import next_sequence_number
from gapless.graphs.modules.gradient_paths import (
    GradientPaths,
    PassedOn,
    edges_behind,
)
from gapless.graphs.modules.left_behind import LeftBehind
from gapless.graphs.modules.module_refusals import (
    BACKWARD_WITHIN,
    CHANGES_INPUT,
    CREATE_GRAPH,
    SECOND_BACKWARD,
    gradient_outside,
    hooks_within,
    puts_into_input,
)
from gapless.graphs.reads.module_parts import weights_within
from gapless.graphs.reads.value_places import put_on
from gapless.graphs.replay.batch_changes import layout_of
from gapless.graphs.replay.versions import version_of
from gapless.pipeline.tree.containers import containers_in
from gapless.pipeline.tree.flatten import flatten
from gapless.pipeline.tree.tensor_layout import misalignment


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.graphs.modules.backward_settings import Settings
    from gapless.graphs.modules.forward_runs import Runs
    from gapless.graphs.modules.left_behind import Outputs
    from gapless.graphs.reads.host_watch import HostWatch
    from gapless.graphs.refusal import Refusal
    from gapless.pipeline.tree.flatten import Tree


_MOST_SEEN = 1_000


class Layout(NamedTuple):
    """How a gradient lies in memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    misalignment: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """Return that of a tensor."""
        size, stride = tuple(tensor.size()), tuple(tensor.stride())
        return cls(size, stride, tensor.dtype, misalignment(tensor))


@dataclass(frozen=True)
class Given:
    """What one backward pass was given.

    Attributes:
        layouts: of the gradients of the outputs, None for those that got none.
        settings: torch's, in it, as `Settings.now` returns them; None if no output has a gradient.
    """

    layouts: tuple[Layout | None, ...]
    settings: tuple[Any, ...] | None


@dataclass
class SeenCalls:
    """What calls of one kind as written have shown.

    Attributes:
        objections: why no graph can take such a call.
        given: the gradients of the outputs in the last backward pass, None before the first.
        form: of the outputs.
        left: where the calls leave tensors, as far as that is known.
        watched: how many calls had been watched when there was nothing more to be seen.
        is_stale: whether calls have done something else since.
        num_unheard: calls whose outputs were let go of without a backward pass.
    """

    weights: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    objections: list[Refusal] = field(default_factory=list)
    given: Given | None = None
    form: Any = None
    left: LeftBehind = field(default_factory=LeftBehind)
    watched: int = -1
    is_stale: bool = False
    num_unheard: int = 0
    # Alive as long as a backward pass of a call may come.
    waiting: list[weakref.ref[Any]] = field(default_factory=list)

    def count_unheard(self) -> None:
        """Count calls whose outputs were let go of."""
        waiting = [one for one in self.waiting if one() is not None]
        self.num_unheard += len(self.waiting) - len(waiting)
        self.waiting = waiting

    def object(self, refusals: Sequence[Refusal]) -> None:
        """Add reasons that are not there yet."""
        self.objections += [one for one in refusals if one not in self.objections]


class CallsSeen:
    """What calls of a module as written show, of each kind."""

    def __init__(self, runs: Runs, watch: HostWatch) -> None:
        self._runs, self._module = runs, runs.module
        self._watch = watch
        self._seen: dict[Any, SeenCalls] = {}

    def of(self, tree: Tree) -> SeenCalls:
        """Return what calls of one kind have shown."""
        # Other parameters may stand in the module for a while.
        weights = [(id(one), one.requires_grad) for one in weights_within(self._module)]
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        return self._seen.setdefault((tree.key(), tuple(weights)), SeenCalls())

    def have_backward(self) -> bool:
        """Return whether a backward pass follows calls of any kind."""
        return any(one.given is not None and any(one.given.layouts) for one in self._seen.values())

    def observed(self, tree: Tree) -> Any:
        """Run a call as written, and see what its backward pass is given."""
        seen, call = self.of(tree), tree.value
        seen.count_unheard()
        if seen.watched == self._watch.num_runs:
            return self._runs.as_written(call.args, call.kwargs)
        before, gradients = _states_of(tree.leaves), self._gradients()
        for refusal in hooks_within(self._module):
            self._runs.report.refuse(refusal)
        seen.is_stale = False
        since = next_sequence_number()
        out = self._runs.as_written(call.args, call.kwargs)
        outputs = seen.left.outputs(out, tree.leaves)
        outs = outputs.leaves
        form = [(leaf.shape, leaf.dtype, leaf.requires_grad) for leaf in outs]
        if form != seen.form:
            seen.form, seen.given, seen.num_unheard = form, None, 0
        leaves = [leaf for leaf in outs if leaf.requires_grad]
        inputs = [leaf for leaf in tree.leaves if leaf.requires_grad]
        paths = GradientPaths.of(leaves, inputs, since=since)
        seen.object(gradient_outside(paths))
        # Nor have the containers among the arguments other tensors.
        now = flatten(tree.value).leaves
        is_as_before = len(now) == len(tree.leaves) and all(map(is_, now, tree.leaves))
        if before != _states_of(tree.leaves):
            seen.object([CHANGES_INPUT])
        elif not is_as_before:
            name = _new_name(tree.value, set(map(id, tree.leaves)))
            seen.object([puts_into_input(name, self._watch.site_of_item(name))])
        if gradients != self._gradients():
            seen.object([BACKWARD_WITHIN])
        seen.weights = [weakref.ref(weight) for weight in paths.weights]
        if leaves:
            passed_on, note = _note_gradients(outputs, seen, self._runs.settings)
            seen.waiting.append(note)
            out = out if passed_on is None else seen.left.put(passed_on)
        else:
            seen.given = Given((None,) * len(outs), None)
        return out

    def _gradients(self) -> list[tuple[int, int] | None]:
        gradients = [weight.grad for weight in weights_within(self._module)]
        return [None if one is None else (id(one), one._version) for one in gradients]


def _new_name(value: Any, known: set[int]) -> Any:
    """Return the name of a tensor that is new in mappings and objects of a call, None if it has none."""
    named = (
        container if isinstance(container, Mapping) else getattr(container, "__dict__", {})
        for container in containers_in(value)
    )
    return next(
        (
            name
            for container in named
            for name, part in container.items()
            if isinstance(part, torch.Tensor) and id(part) not in known
        ),
        None,
    )


def _states_of(leaves: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Return what shows that a call has changed its arguments."""
    return [
        (version_of(leaf), leaf.requires_grad, layout_of(leaf), *_attributes_of(leaf))
        for leaf in leaves
    ]


def _attributes_of(tensor: torch.Tensor) -> tuple[tuple[str, int], ...]:
    return tuple((name, id(value)) for name, value in put_on(tensor).items())


def _note_gradients(
    out: Outputs, seen: SeenCalls, settings: Settings
) -> tuple[Any, weakref.ref[Any]]:
    """Note what the backward pass of a call is given.

    Returns:
        What the call has returned and left behind, None if it is as it was; and what is gone once no
        backward pass can come.
    """
    leaves = out.leaves
    places: dict[Any, list[int]] = {}
    for number, leaf in enumerate(leaves):
        if leaf.grad_fn is not None:
            places.setdefault(leaf.grad_fn, []).append(number)
    numbers = [leaf.output_nr for leaf in leaves]
    num_leaves = len(leaves)
    behind = _behind_others(leaves)
    # Nothing below holds a leaf or a node: torch's nodes hold their hooks, and nobody would let go.
    found: dict[int, Layout] = {}
    # A pass for some outputs and another one for others read the same memory.
    passes: set[int] = set()

    def note_one(place: int, gradient: torch.Tensor | None) -> None:
        if gradient is not None and gradient.layout is torch.strided:
            found[place] = Layout.of(gradient)

    def note(node_places: list[int], gradients: tuple[torch.Tensor | None, ...]) -> None:
        passes.add(torch._C._current_graph_task_id())
        seen.object([CREATE_GRAPH] * torch.is_grad_enabled())
        seen.object([SECOND_BACKWARD] * (len(passes) > 1))
        for place in node_places:
            if place not in behind:
                note_one(place, gradients[numbers[place]])
        layouts = tuple([found.get(place) for place in range(num_leaves)])
        seen.given = Given(layouts, settings.now())

    for node, node_places in places.items():
        node.register_prehook(
            lambda gradients, node_places=node_places: note(node_places, gradients)
        )
    if not behind:
        return None, weakref.ref(note)
    # Of the loop's gradient alone, before those of the call itself are added to it.
    passed_on = [
        PassedOn.apply(partial(note_one, place), leaf) if place in behind else leaf
        for place, leaf in enumerate(leaves)
    ]
    return out.made_of(passed_on), weakref.ref(note)


def _behind_others(leaves: Sequence[torch.Tensor]) -> set[int]:
    """Return the numbers of outputs of which others were computed, as logits beside a loss are.

    Gradients come to them within the call as well.
    """
    numbers = {
        (leaf.grad_fn, leaf.output_nr): number
        for number, leaf in enumerate(leaves)
        if leaf.grad_fn is not None
    }
    edges = edges_behind([node for node, _ in numbers])
    return {numbers[edge] for _, _, edge in edges if edge in numbers}
