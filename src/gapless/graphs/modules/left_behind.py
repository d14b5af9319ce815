"""What a call of a module leaves on the module, such as `self.distribution = Normal(mean, std)`.

Such tensors are outputs like those that are returned: the loop may ask the distribution for a loss, whose
gradients go through the call. What the call itself reads of an earlier one is no output, and is refused.
"""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.graphs.modules.module_refusals import keeps_unknown
from gapless.graphs.reads.addresses import address_of
from gapless.graphs.refusal import Refused
from gapless.graphs.replay.results import rebuilt
from gapless.graphs.step_call import cannot_return
from gapless.pipeline.tree.containers import containers_in, tensors_inside
from gapless.pipeline.tree.flatten import flatten
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from gapless.graphs.reads.host_run import KeptPath
    from gapless.graphs.reads.touched import TouchWatch


@dataclass(frozen=True)
class LeftBehind:
    """The places in which each call of one kind leaves tensors of its own."""

    paths: tuple[KeptPath, ...] = ()

    def are(self, paths: Sequence[KeptPath]) -> bool:
        """Return whether these are the places."""
        return [path.place.id for path in self.paths] == [path.place.id for path in paths]

    def outputs(self, out: Any, arguments: Sequence[torch.Tensor]) -> Outputs:
        """Return all that a call on these tensors has left, which has just returned `out`."""
        return Outputs(out, [path.get() for path in self.paths], arguments)

    def put(self, values: tuple[Any, list[Any]]) -> Any:
        """Put what `Outputs.made_of` has made into the places; return what the call returns."""
        out, left = values
        for path, value in zip(self.paths, left, strict=True):
            path.set(value)
        return out

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let the places hold after the body what they held before it."""
        before = [path.get() for path in self.paths]
        try:
            yield
        finally:
            self.put((None, before))

    @contextmanager
    def unread(self, look: TouchWatch) -> Iterator[None]:
        """Check that a run in the body, at which `look` looks, does not read what earlier ones left.

        Raises:
            Refused: it does.
        """
        found = [(path, one) for path in self.paths for one in tensors_inside(path.get())]
        yield
        read = set(map(address_of, look.read))
        for path, tensor in found:
            if address_of(tensor) in read:
                raise Refused(keeps_unknown(path.name, path.site))


class Outputs:
    """What a call has returned and left behind; a tensor that is there twice is one output.

    An argument that it gives back as it is, as policies do with the action, is none: after a replay it is
    the argument of that call.

    Attributes:
        returned: what it has returned.
        leaves: the tensors in all of it, each once.
        unknown: what in it nobody looks into.
    """

    def __init__(self, out: Any, left: list[Any], arguments: Sequence[torch.Tensor]) -> None:
        tree = flatten((out, left))
        self.returned = out
        self._value = tree.value
        self.unknown = tree.unknown
        # Such as `self.last = out.detach()` beside the output itself.
        wanted = {_memory_of(leaf): leaf for leaf in tree.leaves if leaf.requires_grad}
        given = {id(one): number for number, one in enumerate(arguments) if not one.requires_grad}
        self._arguments = arguments
        sources = [
            leaf if leaf.requires_grad or id(leaf) in given else wanted.get(_memory_of(leaf), leaf)
            for leaf in tree.leaves
        ]
        self._are_detached = [
            one is not leaf for one, leaf in zip(sources, tree.leaves, strict=True)
        ]
        self.leaves = list({id(leaf): leaf for leaf in sources if id(leaf) not in given}.values())
        places = {id(leaf): number for number, leaf in enumerate(self.leaves)}
        # Arguments stand behind all outputs.
        places |= {key: len(self.leaves) + number for key, number in given.items()}
        self._numbers = [places[id(leaf)] for leaf in sources]
        self._are_leaves = self._numbers == list(range(len(self.leaves)))

    def made_of(
        self, leaves: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor] | None = None
    ) -> tuple[Any, list[Any]]:
        """Return what was returned and what was left, with other tensors; None: with its own arguments."""
        found = leaves
        if not self._are_leaves:
            parts = [*leaves, *(self._arguments if arguments is None else arguments)]
            pairs = zip(self._numbers, self._are_detached, strict=True)
            found = [
                parts[one].detach() if is_detached else parts[one] for one, is_detached in pairs
            ]
        values: tuple[Any, list[Any]] = rebuilt(self._value, iter(found))
        return values

    def detached(self) -> Outputs:
        """Return the same without graphs of gradients."""
        twin = copy(self)
        twin.leaves = [leaf.detach() for leaf in self.leaves]
        twin._value = self.made_of(twin.leaves)
        twin.returned = twin._value[0]
        return twin

    def names(self) -> list[str]:
        """Return a name for each tensor in all of it."""
        return [f"output {number + 1}" for number in self._numbers]

    def check_each_once(self) -> None:
        """Check that no object is there twice: it would be two after a replay.

        Raises:
            Refused: one is.
        """
        seen: set[int] = set()
        for container in containers_in(self._value):
            if id(container) in seen and not isinstance(container, tuple):
                raise Refused(cannot_return(container))
            seen.add(id(container))


def _memory_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what two tensors share that are the same elements of one memory."""
    if not has_address(tensor):
        return (id(tensor),)
    layout = tensor.storage_offset(), tuple(tensor.size()), tensor.stride()
    return address_of(tensor), tensor.dtype, *layout
