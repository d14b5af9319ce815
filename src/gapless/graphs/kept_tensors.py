"""Tensors that a step keeps from call to call, such as `self.h = h.detach()`.

A graph reads them from memory of its own and leaves the new ones there. Before a replay, what the
place holds is copied to where the graph reads; after it, the place gets a copy of what the graph
left. So the place always holds tensors that nobody overwrites, as in the step as written. Places
that every run leaves with the same plain value get it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.pipeline.tree import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from gapless.graphs.host_watch import KeptPath
    from gapless.pipeline.tree import Tree


class KeptTensors:
    """The places of a step that hold other tensors after each call.

    Args:
        paths: of these places.
        on_device: says whether a tensor lies where graphs can read it.
    """

    def __init__(
        self, paths: Sequence[KeptPath], *, on_device: Callable[[torch.Tensor], bool]
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
        self._inputs: list[torch.Tensor] = []
        self._after: list[Tree] = []
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
        for path, tree in zip(self._paths, self._before, strict=True):
            static = tree.map(_copy)
            self._inputs += static.leaves
            self._keys.append(tree.key())
            path.set(static.value)

    def end_capture(self) -> None:
        """Note what the captured step left in the places."""
        self._after = [flatten(path.get()) for path in self._paths]
        self._plain_after = [path.get() for path, _ in self._plain]

    def are_alike(self) -> bool:
        """Return whether the places hold tensors of the kinds that the graph was captured with.

        Where a plain value will be put, anything may stand.
        """
        return [flatten(path.get()).key() for path in self._paths] == self._keys

    def fill(self) -> None:
        """Copy what the places hold to where the graph reads it.

        Sync: Does not block the host.
        """
        leaves = [leaf for path in self._paths for leaf in flatten(path.get()).leaves]
        for target, source in zip(self._inputs, leaves, strict=True):
            target.detach().copy_(source)

    def hand_out(self) -> None:
        """Put copies of what the graph left into the places, and the plain values.

        Sync: Does not block the host.
        """
        for path, tree in zip(self._paths, self._after, strict=True):
            path.set(tree.map(_copy).value)
        for (path, _), value in zip(self._plain, self._plain_after, strict=True):
            path.set(value)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def place_of(path: Any) -> str:
    """Return the name and line of a place."""
    return f"{path.name} ({path.site})"
