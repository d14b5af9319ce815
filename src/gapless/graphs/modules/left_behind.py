"""What a call of a module leaves on the module, such as `self.distribution = Normal(mean, std)`.

Such tensors are outputs like those that are returned: the loop may ask the distribution for a loss, whose
gradients go through the call. What the call itself reads of an earlier one is no output, and is refused.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.graphs.modules.module_refusals import keeps_unknown
from gapless.graphs.reads.addresses import address_of
from gapless.graphs.refusal import Refused
from gapless.graphs.replay.results import rebuilt
from gapless.graphs.step_call import cannot_return
from gapless.pipeline.tree.containers import containers_in, tensors_inside
from gapless.pipeline.tree.flatten import flatten


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

    def outputs(self, out: Any) -> Outputs:
        """Return all that a call has left, which has just returned `out`."""
        return Outputs(out, [path.get() for path in self.paths])

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

    Attributes:
        returned: what it has returned.
        leaves: the tensors in all of it, each once.
        unknown: what in it nobody looks into.
    """

    def __init__(self, out: Any, left: list[Any]) -> None:
        tree = flatten((out, left))
        known: dict[int, int] = {}
        self.returned = out
        self._value = tree.value
        self._numbers = [known.setdefault(id(leaf), len(known)) for leaf in tree.leaves]
        self.leaves = list({id(leaf): leaf for leaf in tree.leaves}.values())
        self.unknown = tree.unknown

    def made_of(self, leaves: Sequence[torch.Tensor]) -> tuple[Any, list[Any]]:
        """Return what was returned and what was left, with other tensors."""
        values: tuple[Any, list[Any]] = rebuilt(
            self._value, iter([leaves[number] for number in self._numbers])
        )
        return values

    def detached(self) -> Outputs:
        """Return the same without graphs of gradients."""
        return Outputs(*self.made_of([leaf.detach() for leaf in self.leaves]))

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
