"""Tensors that a step keeps from call to call, such as `self.h = h.detach()`.

A graph reads them from memory of its own and leaves the new ones there. Before a replay, what the
place holds is copied to where the graph reads; after it, the place gets a copy of what the graph
left. An object that each call puts there anew, and whose tensors it was not seen to read, such as a policy's
distribution, may be of another kind before a replay. So the place always holds tensors that nobody overwrites, as in the step as written; those that
share memory share it in the copies too. Places that every run leaves with the same plain value get
it too.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any

from gapless.graphs.reads.addresses import address_of
from gapless.graphs.replay.tensor_copies import TensorCopies
from gapless.pipeline.tree.containers import is_object
from gapless.pipeline.tree.flatten import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence

    import torch

    from gapless.graphs.reads.host_run import KeptPath
    from gapless.pipeline.tree.flatten import Tree


class KeptTensors:
    """The places of a step that hold other tensors after each call.

    Args:
        paths: of these places.
        on_device: says whether a tensor lies where graphs can read it.
        read: addresses of what the step was seen to read.
    """

    def __init__(
        self,
        paths: Sequence[KeptPath],
        *,
        on_device: Callable[[torch.Tensor], bool],
        read: Container[int] | None = None,
    ) -> None:
        self.paths = list(paths)
        self._plain = [(path, path.get()) for path in paths if path.is_plain]
        self._paths = [path for path in paths if not path.is_plain]
        self._before: list[Tree] = [flatten(path.get()) for path in self._paths]
        self.objection = next(
            (
                path
                for path, tree in zip(self._paths, self._before, strict=True)
                if tree.unknown or not all(map(on_device, tree.leaves))
            ),
            None,
        )
        self._are_read = [
            not is_object(tree.value)
            or read is None
            or any(address_of(leaf) in read for leaf in tree.leaves)
            for tree in self._before
        ]
        self._inputs: list[torch.Tensor] = []
        self._static: list[Any] = []
        self._left: list[KeptPath] = []
        self._updated: list[tuple[KeptPath, list[torch.Tensor]]] = []
        self._plain_after: list[Any] = []
        self._keys: list[Hashable] = []

    def __bool__(self) -> bool:
        return bool(self.paths)

    def reset(self) -> None:
        """Put back what the places held when this object was made."""
        for path, tree in zip(self._paths, self._before, strict=True):
            path.set(tree.value)
        for path, value in self._plain:
            path.set(value)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that the places held when this object was made."""
        return [leaf for tree in self._before for leaf in tree.leaves]

    def begin_capture(self) -> None:
        """Let the step read memory that stays in its place."""
        leaves = {id(leaf): leaf for leaf in self.tensors()}
        copies = dict(zip(leaves, TensorCopies(list(leaves.values())).make(), strict=True))
        for path, tree in zip(self._paths, self._before, strict=True):
            static = tree.map(lambda leaf: copies[id(leaf)])
            self._static.append(static.value)
            path.set(static.value)
            if path in self._read():
                self._inputs += static.leaves
                self._keys.append(tree.key())

    def end_capture(self, outside: Iterable[torch.optim.Optimizer]) -> None:
        """Note what the captured step left in the places.

        Args:
            outside: optimizers whose updates a replay calls: what they keep, they keep themselves.
        """
        of_updates = {id(owner) for optimizer in outside for owner in _owners_in(optimizer)}
        for path, static in zip(self._paths, self._static, strict=True):
            if path.get() is static and id(path.place.owner) in of_updates:
                self._updated.append((path, [leaf.detach() for leaf in flatten(static).leaves]))
            else:
                self._left.append(path)
        self._static = []
        self._plain_after = [path.get() for path, _ in self._plain]

    def _read(self) -> list[KeptPath]:
        return list(compress(self._paths, self._are_read))

    def left(self) -> list[Any]:
        """Return what the step has left in the places where it keeps tensors, until `reset`."""
        return [path.get() for path in self._left]

    def are_alike(self) -> bool:
        """Return whether the places hold tensors of the kinds that the graph was captured with.

        Where a plain value will be put, anything may stand.
        """
        return [flatten(path.get()).key() for path in self._read()] == self._keys

    def fill(self) -> None:
        """Copy what the places hold to where the graph reads it.

        Sync: Does not block the host.
        """
        leaves = [leaf for path in self._read() for leaf in flatten(path.get()).leaves]
        for target, source in zip(self._inputs, leaves, strict=True):
            target.detach().copy_(source)

    def fill_updated(self) -> None:
        """Copy what an update outside of the graph has left to where the rest of it reads it.

        Sync: Does not block the host.
        """
        for path, targets in self._updated:
            for target, source in zip(targets, flatten(path.get()).leaves, strict=True):
                target.copy_(source)

    def hand_out(self, values: Sequence[Any]) -> None:
        """Put copies of what the graph left into the places, and the plain values.

        Args:
            values: the copies, of what `left` returned.

        Sync: Does not block the host.
        """
        for path, value in zip(self._left, values, strict=True):
            path.set(value)
        for (path, _), value in zip(self._plain, self._plain_after, strict=True):
            path.set(value)


def _owners_in(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    """Return the dictionaries in which an optimizer keeps what it has."""
    yield from (vars(optimizer), optimizer.state, *optimizer.param_groups)
    yield from (state for state in optimizer.state.values() if isinstance(state, dict))


def place_of(path: Any) -> str:
    """Return the name and line of a place."""
    return f"{path.name} ({path.site})"
