"""What a proof or an audit has shown: fingerprints of a replay and of runs as written, judged when they arrive.

If the step as written does not give the same bits twice (atomic additions in another order, say),
no graph of it can. A step with operators that are known for it runs as written four times, since such
distances have long tails: two runs alone may lie close together by chance. The same goes where the two
runs agree, but the step has operators that are known for it and the replay differs. Then a tensor of the replay may differ in Euclidean norm from that of a run as
written by the larger of

    10 * d                                                              the runs' own distance
    min(c / 10, max(10 * eps * r * sqrt(max(4, n / 100)), 32 * eps32 * r * sqrt(n)))

where d is the largest distance of two runs as written, and c what the step changed; n, r and eps are
the tensor's number of elements, the root of their mean square and the precision of its dtype, and
eps32 is that of float32. The second line is for tensors in which two runs happen to agree: a few
elements that are rounded the other way, or a last bit in all of them, but never as much as an
update that is missing. Distances are estimated from 16 projections: that two equal spreads differ
tenfold in these happens less than once in 10**10 cases (F distribution, 16 and 16 degrees).

Where no operator of the step is known for other bits, a result that differs between the two runs as
written by more than a hundredth of its norm is no matter of rounding. Something that nobody has seen
decides it, such as a draw in code made in C, and no graph holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gapless.errors import GaplessError
from gapless.graphs.proof.device_state import unlike
from gapless.graphs.proof.fingerprints import NUM_PROJECTIONS
from gapless.graphs.proof.packing import chunks_of, described, joined_names, regions_of_one
from gapless.pipeline.tree.flatten import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.device.base import Device
    from gapless.graphs.proof.device_state import DeviceState
    from gapless.graphs.proof.packing import Chunk
    from gapless.pipeline.tree.flatten import Tree


# See above.
_MOST_TIMES = 10.0
_MOST_OF_CHANGE = 0.1
_FEWEST_ROUNDED = 4.0
_SHARE_ROUNDED = 0.01
_MOST_LAST_BITS = 32.0
_EPS32 = torch.finfo(torch.float32).eps
_MOST_OF_RESULT = 0.01

OTHER_FORM = "the structure, shapes or plain values of what it returns"


@dataclass(slots=True)
class ProofRun:
    """What one run left behind.

    Attributes:
        on_host: copies of the tensors in it that are on the host.
        chunks: of those on the device.
        sizes: of their pieces.
        fingerprint: of the state and of these chunks.
    """

    out: Any
    tree: Tree
    on_host: list[torch.Tensor]
    chunks: list[Chunk]
    sizes: list[list[int]]
    fingerprint: torch.Tensor
    random: dict[str, Any]

    @classmethod
    def of(
        cls,
        call: Callable[[], Any],
        state: DeviceState,
        device: Device,
        names: Sequence[str] = (),
        *,
        sees_random: bool = True,
    ) -> ProofRun:
        """Run and see what it leaves behind."""
        out = call()
        with torch.no_grad(), torch.inference_mode(mode=False):
            tree, random = flatten(out), state.random.read() if sees_random else {}
            on_host, regions = [], []
            for number, leaf in enumerate(tree.leaves, start=1):
                if device.needs_copy(leaf):
                    # A copy to page-locked memory may be under way, so that it cannot be read.
                    if not leaf.is_pinned():
                        on_host.append(leaf.detach().clone())
                else:
                    # Each for itself, so that they are as many if two share memory in one run.
                    name = names[number - 1] if number <= len(names) else f"result {number}"
                    regions += regions_of_one(_dense(leaf), f"{name} ({described(leaf)})")
            chunks = chunks_of(regions)
            sizes = [[piece.num_bytes for piece in chunk.pieces] for chunk in chunks]
            return cls(out, tree, on_host, chunks, sizes, state.checksum(chunks), random)

    def differences(self, other: ProofRun) -> list[str]:
        """Return what the host can see to differ from another run."""
        if other is self:
            return []
        found = unlike(self.random, other.random)
        if not _is_alike(self.tree, other.tree) or self.sizes != other.sizes:
            found.append(OTHER_FORM)
        elif not all(map(has_bits_of, self.on_host, other.on_host)):
            found.append("a tensor on the host that it returns")
        return found

    def forget_results(self) -> None:
        """Let go of the memory of its results; what they were stays."""
        key = self.tree.key()
        self.tree = self.tree.map(lambda _: torch.empty(0, device="cpu"))
        self.tree.known_key, self.out, self.chunks = key, None, []


@dataclass(frozen=True, slots=True)
class Distances:
    """How far two runs as written lie apart, relative to their norms."""

    names: list[str]
    values: torch.Tensor

    def of(self, names: list[str]) -> torch.Tensor:
        """Return those of results: of a part of all by their names, the largest of one name."""
        if names == self.names:
            return self.values
        found: dict[str, torch.Tensor] = {}
        for name, value in zip(self.names, self.values, strict=True):
            found[name] = torch.maximum(value, found.get(name, value))
        none = self.values.new_zeros(())
        return torch.stack([found.get(name, none) for name in names]) if names else self.values[:0]


class AnyVerdict(Protocol):
    """What a proof or an audit has shown, once it has arrived; attributes as of `Verdict`."""

    def arrived(self) -> bool:
        """Return whether the verdict is known, without a wait."""

    @property
    def holds(self) -> bool:
        """Whether the graph does what its step does."""

    @property
    def is_whole(self) -> bool:
        """Whether all was compared that was to be."""

    @property
    def text(self) -> str:
        """What differs, in one line; empty if nothing does."""


class Verdict:
    """What a proof has shown, once it has arrived.

    Args:
        runs: the replay, and the first and the last run as written.
        between: fingerprints of the runs as written between these.
        nondeterministic: operators of the step that may give other bits each time.
    """

    def __init__(
        self,
        device: Device,
        chunks: list[Chunk],
        before: torch.Tensor,
        runs: list[ProofRun],
        between: Sequence[torch.Tensor] = (),
        *,
        nondeterministic: Sequence[str] = (),
        distances: Distances | None = None,
    ) -> None:
        self._nondeterministic = nondeterministic
        self._known_distances = distances
        self._device = device
        self._result: _Result | None = None
        replayed, first, second = runs
        self._differs = replayed.differences(second)
        self._differs_itself = first.differences(second)
        self._parts = _parts_of(chunks)
        self._num_state = len(self._parts)
        prints = [*(run.fingerprint for run in runs), *between]
        if len({len(part) for part in prints}) == 1:
            self._parts += _parts_of(second.chunks)
        else:
            # They return other shapes, which the first and the last show: compare the state alone.
            prints = [part[: self._num_state] for part in prints]
        with torch.no_grad(), torch.inference_mode(mode=False):
            self._num_prints = len(prints)
            found = torch.cat([*prints, before])
            buffer = device.host_buffer(found.nbytes, pinned=True)
            self._arriving = buffer.view(torch.int64).view(found.shape)
            device.copy(self._arriving, found)
        self._done = device.create_event()
        device.record_event(self._done, device.current_stream())

    def arrived(self) -> bool:
        """Return whether the verdict is known."""
        if self._result is None and self._device.query_event(self._done):
            self._result = self._judge()
        return self._result is not None

    @property
    def holds(self) -> bool:
        """Whether the graph does what its step does."""
        return self._known.holds

    @property
    def is_whole(self) -> bool:
        """Whether all was compared that was to be."""
        return True

    @property
    def repeats(self) -> bool:
        """Whether the step as written gives the same bits twice, as far as is known."""
        return self._known.repeats

    @property
    def is_nondeterministic(self) -> bool:
        """Whether operators of the step may give other bits each time."""
        return bool(self._nondeterministic)

    @property
    def text(self) -> str:
        """What differs, in one line; empty if nothing does."""
        return self._known.text

    @property
    def distances(self) -> Distances | None:
        """How far the runs as written lie apart, relative to their norms; None if they repeat."""
        return self._known.distances

    @property
    def _known(self) -> _Result:
        if self._result is None:
            raise GaplessError("the verdict has not arrived; ask arrived() before reading it")
        return self._result

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def _judge(self) -> _Result:
        sizes = [len(self._parts)] * self._num_prints + [self._num_state]
        replayed, *written, before = self._arriving.clone().split(sizes)
        first, last = written[:2]
        changing = torch.stack([run[:, 0] != last[:, 0] for run in written]).any(dim=0)
        unlike_all = torch.stack([run[:, 0] != replayed[:, 0] for run in written]).all(dim=0)
        repeats = not (bool(changing.any()) or self._differs_itself)
        # Runs may agree by chance where the next one would not.
        repeats &= not (self._nondeterministic and bool(unlike_all.any()))
        repeats &= self._known_distances is None
        distances = None
        if not repeats:
            runs = list(map(_projections, written))
            norm = _norm(_projections(last))
            apart = _largest(_norm(run - other) for run, other in combinations(runs, 2))
            names = [part.name for part in self._parts]
            if self._known_distances is not None:
                apart = torch.maximum(apart, self._known_distances.of(names) * norm)
            distances = Distances(names, (apart / norm).nan_to_num(0.0))
            most = _tolerances(
                _projections(last), apart=apart, before=_projections(before), parts=self._parts
            )
            nearest = -_largest(-_norm(_projections(replayed) - run) for run in runs)
            unlike_all &= ~(nearest <= most)
        wrong = [*self._differs, *self._names(unlike_all)]
        # What is not the same twice as written is not asked for of the graph.
        wrong = [name for name in wrong if name not in self._differs_itself]
        # But for what no order of additions changes: something on the host that nobody has seen does.
        wrong += [OTHER_FORM] if OTHER_FORM in self._differs_itself else []
        own = [*self._differs_itself, *self._names(changing)]
        far = [] if self._nondeterministic else self._names(self._far_apart(first, last))
        text = _text(wrong, own, far, repeats=repeats, nondeterministic=self._nondeterministic)
        return _Result(not (wrong or far), repeats, text, distances)

    def _far_apart(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return which results of two runs as written differ by more than rounding."""
        runs = _projections(first), _projections(second)
        found = _norm(runs[0] - runs[1]) > _MOST_OF_RESULT * _norm(runs[1])
        found[: self._num_state] = False
        return found & torch.tensor(
            [part.precision > 0 for part in self._parts], dtype=torch.bool, device="cpu"
        )

    def _names(self, chosen: torch.Tensor) -> list[str]:
        if not bool(chosen.any()):
            return []
        pairs = zip(self._parts, chosen, strict=True)
        return [part.name for part, is_chosen in pairs if bool(is_chosen)]


@dataclass(frozen=True, slots=True)
class _Part:
    """What is known of one row of a fingerprint, without its memory."""

    name: str
    count: int
    precision: float


def _parts_of(chunks: list[Chunk]) -> list[_Part]:
    parts = []
    for chunk in chunks:
        size, precision = chunk.dtype.itemsize, _precision(chunk.dtype)
        parts += [
            _Part(piece.region.name, piece.num_bytes // size, precision) for piece in chunk.pieces
        ]
    return parts


@dataclass(frozen=True, slots=True)
class _Result:
    """What a verdict says."""

    holds: bool
    repeats: bool
    text: str
    distances: Distances | None


def _text(
    wrong: list[str],
    own: list[str],
    far: list[str],
    *,
    repeats: bool,
    nondeterministic: Sequence[str],
) -> str:
    if far:
        return (
            "two runs as written from one state differ by more than rounding, so that something unseen "
            f"decides what it computes: {joined_names(far)}"
        )
    parts = []
    if wrong:
        parts.append(f"a replay gives other bits than the step as written: {joined_names(wrong)}")
    if not repeats:
        does = "does not" if own else "need not"
        by = f" ({joined_names(nondeterministic)})" if nondeterministic else ""
        names = f": {joined_names(own)}" if own else ""
        parts.append(f"the step as written {does} give the same bits twice{by}{names}")
        if not wrong:
            parts.append("a replay differs no more than that")
    return "; ".join(parts)


# --- distances ---


def _largest(distances: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the largest of some distances, by piece."""
    return torch.stack(list(distances)).amax(dim=0)


def _tolerances(
    written: torch.Tensor, *, apart: torch.Tensor, before: torch.Tensor, parts: list[_Part]
) -> torch.Tensor:
    """Return how far it may be; see the module's text for the formula."""
    counts = torch.tensor([part.count for part in parts], dtype=torch.float64, device="cpu")
    precision = torch.tensor([part.precision for part in parts], dtype=torch.float64, device="cpu")
    norm = _norm(written)
    rounded = (counts * _SHARE_ROUNDED).clamp(min=_FEWEST_ROUNDED)
    few = _MOST_TIMES * precision * norm * (rounded / counts).sqrt()
    last_bits = _MOST_LAST_BITS * precision.clamp(max=_EPS32) * norm
    change = torch.full_like(norm, torch.inf)
    change[: len(before)] = _norm(written[: len(before)] - before)
    agreed = torch.minimum(_MOST_OF_CHANGE * change, torch.maximum(few, last_bits))
    return torch.maximum(_MOST_TIMES * apart, agreed)


def _projections(found: torch.Tensor) -> torch.Tensor:
    return found[:, 1:].contiguous().view(torch.float64)


def _norm(projections: torch.Tensor) -> torch.Tensor:
    """Return the estimated Euclidean norm of what these are projections of."""
    return (projections.square().sum(dim=1) / NUM_PROJECTIONS).sqrt()


def _precision(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.finfo(dtype).eps
    return 0.0


# --- what runs return ---


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor without gaps."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        return tensor
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


def _is_alike(tree: Tree, other: Tree) -> bool:
    """Whether two results are the same but for the values of tensors and of unknown objects."""
    if list(map(type, tree.unknown)) != list(map(type, other.unknown)):
        return False
    if not tree.unknown:
        return tree.key() == other.key()
    return list(map(form_of, tree.leaves)) == list(map(form_of, other.leaves))


def form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the form of a tensor, however it lies in memory."""
    return tensor.shape, tensor.dtype


def has_bits_of(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one shape have the same bits; those that are not dense always do.

    Sync: Blocks the host if they are on the device.
    """
    if tensor.layout is not torch.strided:
        return True
    return torch.equal(_bits(tensor), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return _dense(tensor).reshape(-1).view(torch.uint8)
