"""What the optimizers of a step do: captured work has to do the same each time.

A graph holds the numbers and the memory with which it was captured. A learning rate that is a
Python number, an update that a counter on the host leads to, or state that a checkpoint replaced
would silently stay as it was; so a step is watched while it still runs by itself, and its
optimizers' numbers and memory are compared at every replay.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from numbers import Number
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import TensorWeakRef


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator


@dataclass
class Watched:
    """What a body did.

    Attributes:
        calls: ids of the optimizers that it called, in order of the calls.
        schedulers: types of the learning rate schedules that it moved on.
    """

    calls: list[int] = field(default_factory=list)
    schedulers: list[str] = field(default_factory=list)


class Updates:
    """Know the optimizers that a step calls, the weights that it trains, and their numbers now.

    Args:
        needs_copy: says whether a tensor is not on the device, where captured work reads it anew.
    """

    def __init__(self, *, needs_copy: Callable[[torch.Tensor], bool]) -> None:
        self._needs_copy = needs_copy
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._leaves: dict[int, TensorWeakRef] = {}

    @contextmanager
    def watched(self, *, finds_leaves: bool = True) -> Iterator[Watched]:
        """Note what a body does.

        Args:
            finds_leaves: look for the weights behind its backward passes as well, which takes a
                millisecond for a thousand operations.

        Sync: Does not block the host.
        """
        seen = Watched()

        def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
            seen.calls.append(id(optimizer))

        with ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(note).remove)
            for kind in _schedulers():
                step = _noted(kind.step, seen.schedulers)
                stack.enter_context(patch.object(kind, "step", step))
            if finds_leaves:
                stack.enter_context(
                    patch.object(torch.autograd, "backward", self._noting(torch.autograd.backward))
                )
            yield seen

    def settings(self) -> Hashable:
        """Return all numbers of these optimizers that lie on the host, such as a rate.

        Sync: Does not block the host.
        """
        return tuple(
            tuple((name, self._number(value)) for name, value in group.items() if name != "params")
            for group in self._groups()
        )

    def _number(self, value: object) -> Hashable:
        """Return a value that a graph keeps, None for what it does not."""
        if isinstance(value, tuple | list):
            return tuple(map(self._number, value))
        if not isinstance(value, torch.Tensor):
            return value if isinstance(value, Number) else None
        if not self._needs_copy(value):
            return value.data_ptr()
        # Read at once: it is no work of a device.
        return float(value) if value.numel() == 1 else (value.data_ptr(), value._version)

    def memory(self) -> Hashable:
        """Return which weights the optimizers have, and where their state lies.

        Sync: Does not block the host.
        """
        found = [id(weight) for group in self._groups() for weight in group["params"]]
        for optimizer in self._living():
            found += [
                part.data_ptr() if isinstance(part, torch.Tensor) else part is None
                for state in optimizer.state.values()
                for part in (state.values() if isinstance(state, dict) else [state])
            ]
        return tuple(found)

    def state(self) -> Hashable:
        """Return which objects the state is made of: a count on the host is another every step.

        Sync: Does not block the host.
        """
        return tuple(
            id(part)
            for optimizer in self._living()
            for state in optimizer.state.values()
            if isinstance(state, dict)
            for part in state.values()
        )

    def gradients(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Return every weight with the gradient that it has now.

        Weights are those of the optimizers, and those behind the step's backward passes.
        """
        weights = {id(weight): weight for group in self._groups() for weight in group["params"]}
        for key, reference in list(self._leaves.items()):
            leaf = reference()
            if leaf is None:
                del self._leaves[key]
            else:
                weights[id(leaf)] = leaf
        return [(weight, weight.grad) for weight in weights.values()]

    def _noting(self, backward: Callable[..., None]) -> Callable[..., None]:
        def note_and_run(tensors: Any, *args: Any, **kwargs: Any) -> None:
            for leaf in _leaves_behind(tensors):
                self._leaves[id(leaf)] = TensorWeakRef(leaf)
            backward(tensors, *args, **kwargs)

        return note_and_run

    def _living(self) -> Iterator[torch.optim.Optimizer]:
        for reference in self._optimizers.values():
            optimizer = reference()
            if optimizer is not None:
                yield optimizer

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self._living():
            yield from optimizer.param_groups


class Trained:
    """The weights that a graph trains: where they lie, and their gradients.

    Captured work writes to the memory that gradients had in the capture, also when the loop has
    set them to None since.

    Args:
        before: weights and their gradients before the capture; what they have now is what it made.
    """

    def __init__(self, before: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        self._lie = [(weight, weight.data_ptr(), weight.requires_grad) for weight, _ in before]
        self._needed: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._made: list[tuple[torch.Tensor, torch.Tensor]] = []
        for weight, found in before:
            left = weight.grad
            # If one tensor took the place of another, the step began by letting go of the first.
            if found is None or left is None or left is found:
                self._needed.append((weight, found))
            # Kept, also where the step has made use of them: who reads them finds the newest.
            if left is not None and left is not found:
                self._made.append((weight, left))

    def are_in_place(self) -> bool:
        """Return whether the weights lie where they lay, and are (un)frozen as they were."""
        return all(
            weight.data_ptr() == pointer and weight.requires_grad is requires_grad
            for weight, pointer, requires_grad in self._lie
        )

    def have_gradients_in_place(self) -> bool:
        """Return whether a replay finds the gradients that it adds to, or none as then."""
        return all(weight.grad is found for weight, found in self._needed)

    def hand_out(self) -> None:
        """Give the weights the gradients that a replay made."""
        for weight, left in self._made:
            weight.grad = left


def _schedulers() -> Iterator[type[LRScheduler]]:
    """Return the kinds of schedules that have a way of their own to move on."""
    kinds = [LRScheduler]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if "step" in vars(kind):
            yield kind


def _noted(step: Callable[..., None], names: list[str]) -> Callable[..., None]:
    def note_and_run(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        names.append(type(self).__name__)
        step(self, *args, **kwargs)

    return note_and_run


def _leaves_behind(tensors: Any) -> Iterator[torch.Tensor]:
    """Return the weights to which a backward pass from these tensors adds gradients."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    roots = [root for root in roots if isinstance(root, torch.Tensor)]
    yield from (root for root in roots if root.is_leaf and root.requires_grad)
    nodes: list[Any] = [root.grad_fn for root in roots]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor) and leaf.is_leaf:
            yield leaf
        nodes += (parent for parent, _ in node.next_functions)
