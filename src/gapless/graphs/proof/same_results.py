"""Prove that a new graph does what its step does, before it is used.

From one saved state of the device the graph runs, and the step runs twice as written, or more often. What they
leave behind is compared by fingerprints on the device. The last run as written is the one that
counts: training goes on with it, whatever the verdict. The verdict is copied to the host behind
this work, and read when it has arrived; nobody waits for it.

If the step as written does not give the same bits twice (atomic additions in another order, say),
no graph of it can. A step with operators that are known for it runs as written four times, since such
distances have long tails: two runs alone may lie close together by chance. The same goes where the two runs agree, but the step has operators that are known
for it and the replay differs. Then a tensor of the replay may differ in Euclidean norm from that of a run as
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
from gapless.graphs.proof.consent import Alone, Readiness
from gapless.graphs.proof.device_state import DeviceState, unlike
from gapless.graphs.proof.fingerprints import NUM_PROJECTIONS
from gapless.graphs.proof.packing import chunks_of, described, joined_names, regions_of
from gapless.pipeline.tree.flatten import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.device.base import Device
    from gapless.graphs.proof.consent import Consent
    from gapless.graphs.proof.packing import Chunk
    from gapless.pipeline.tree.flatten import Tree


# A copy may lead to this share of the device's memory; what is left is for libraries and fragments.
_MEMORY_FRACTION = 0.8

# See above.
_MOST_TIMES = 10.0
_MOST_OF_CHANGE = 0.1
_FEWEST_ROUNDED = 4.0
_SHARE_ROUNDED = 0.01
_MOST_LAST_BITS = 32.0
_EPS32 = torch.finfo(torch.float32).eps
_MOST_OF_RESULT = 0.01


# Runs as written of a step that may give other bits each time, in its proof.
_NUM_UNSTEADY = 4

_FORM = "the structure, shapes or plain values of what it returns"


class NotProved(GaplessError):  # noqa: N818
    """The memory does not allow a proof; everything is as it was before."""


def prove(
    device: Device,
    state: DeviceState,
    *,
    replay: Callable[[], Any],
    as_written: Callable[[], Any],
    reset: Callable[[], None],
    memory_budget_bytes: int | None = None,
    nondeterministic: Sequence[str] = (),
    consent: Consent | None = None,
    num_written: int | None = None,
    distances: Distances | None = None,
    names: Sequence[str] = (),
    beside_bytes: int = 0,
) -> tuple[Any, Verdict]:
    """Run a graph once and its step twice from one state; return the last result and a verdict.

    What the three calls return is compared as well: trees of tensors and plain values, so they may
    return more than the step does, such as gradients.

    Args:
        device: where they run, on the current stream.
        state: everything that they change on the device and that was there before.
        replay: launches the graph.
        as_written: runs the step.
        reset: puts back what they change in Python; called before each run as written.
        memory_budget_bytes: device memory of the process that the copy may lead to; None: four
            fifths of the device's.
        nondeterministic: operators of the step that may give other bits each time.
        consent: of the ranks that prove the same step.
        num_written: runs as written; None: as `num_runs_of` says. One alone does not show whether the
            step repeats its bits: the replay is then compared with that one.
        distances: of two runs as written, as an earlier verdict found them; None if they had the
            same bits.
        names: of the tensors that the three calls return, in order, for texts.
        beside_bytes: further device memory that has to fit beside the copy.

    Raises:
        NotProved: the copy would need more memory, or the device of a rank does not have it.
        BaseException: what the calls raise; the state is then as it was before.

    Sync: Does not block the host, unless the step does.
    """
    try:
        before = _saved(
            device, state, memory_budget_bytes, consent or Alone(), beside_bytes=beside_bytes
        )
        runs, between = [_Run.of(replay, state, device, names)], list[torch.Tensor]()
        while len(runs) + len(between) <= (num_written or num_runs_of(nondeterministic)):
            if len(runs) > 2:
                # Of these runs the fingerprint is enough; their results would take memory.
                between.append(runs.pop().fingerprint)
            state.restore()
            reset()
            runs.append(_Run.of(as_written, state, device, names))
    except BaseException as error:
        if state.is_saved:
            state.restore()
            reset()
        if isinstance(error, torch.OutOfMemoryError):
            raise _too_large(state) from error
        raise
    finally:
        state.forget()
    return runs[-1].out, Verdict(
        device,
        state.chunks,
        before,
        [*runs, runs[-1]][:3],
        between,
        nondeterministic=nondeterministic,
        distances=distances,
    )


def num_runs_of(nondeterministic: Sequence[str], *, several_ranks: bool = False) -> int:
    """Return how many runs as written show whether a step repeats its bits.

    Args:
        nondeterministic: operators of the step that may give other bits each time.
        several_ranks: whether others run with this one: they may see other operators, but run as often.
    """
    return _NUM_UNSTEADY if nondeterministic or several_ranks else 2


def _saved(
    device: Device,
    state: DeviceState,
    budget: int | None,
    consent: Consent,
    *,
    beside_bytes: int,
) -> torch.Tensor:
    """Save the state on all ranks, or on none; return its fingerprint."""
    try:
        _check_budget(device, state, budget, beside_bytes)
        state.save()
        fingerprint = state.checksum()
    except (NotProved, torch.OutOfMemoryError):
        consent.least(Readiness.NEVER)
        raise
    if consent.least(Readiness.READY) is not Readiness.READY:
        raise NotProved("another rank has no memory for a copy of what the step changes")
    return fingerprint


def _too_large(state: DeviceState) -> NotProved:
    return NotProved(
        f"a copy of the {state.num_bytes:,} bytes that the step changes does not fit in the "
        "device's memory"
    )


def _check_budget(
    device: Device, state: DeviceState, budget: int | None, beside_bytes: int
) -> None:
    total = device.total_memory_bytes()
    if budget is None and total is not None:
        budget = int(total * _MEMORY_FRACTION)
    held = device.reserved_memory_bytes()
    if budget is not None and held + state.num_bytes + beside_bytes > budget:
        beside = f" and {beside_bytes:,} bytes of gradients" if beside_bytes else ""
        raise NotProved(
            f"a copy of the {state.num_bytes:,} bytes that the step changes{beside} must fit in the "
            f"memory budget of {budget:,} bytes, but {held:,} are held"
        )


@dataclass(slots=True)
class _Run:
    """What one run left behind.

    Attributes:
        out: what it returned.
        tree: of what it returned.
        on_host: copies of the tensors in it that are on the host.
        chunks: of those on the device.
        sizes: of their pieces.
        fingerprint: of the state and of these chunks.
        random: the states of random numbers.
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
    ) -> _Run:
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
                    regions += regions_of([_dense(leaf)], [f"{name} ({described(leaf)})"])
            chunks = chunks_of(regions)
            sizes = [[piece.num_bytes for piece in chunk.pieces] for chunk in chunks]
            return cls(out, tree, on_host, chunks, sizes, state.checksum(chunks), random)

    def differences(self, other: _Run) -> list[str]:
        """Return what the host can see to differ from another run."""
        found = unlike(self.random, other.random)
        if not _is_alike(self.tree, other.tree) or self.sizes != other.sizes:
            found.append(_FORM)
        elif not all(map(has_bits_of, self.on_host, other.on_host)):
            found.append("a tensor on the host that it returns")
        return found

    def forget_results(self) -> None:
        """Let go of the memory of its results; what they were stays."""
        key = self.tree.key()
        self.tree = self.tree.map(lambda _: torch.empty(0))
        self.tree.known_key, self.out, self.chunks = key, None, []


@dataclass(frozen=True, slots=True)
class Distances:
    """How far two runs as written lie apart, relative to their norms.

    Attributes:
        names: of the results.
        values: for each of them, on the host.
    """

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


class Comparison:
    """Compares what a graph gives with what the step as written gives, each as it comes.

    Nothing is saved or put back.

    Args:
        device: where both are.
        names: of the results, in order, for texts.
        nondeterministic: operators that may give other bits each time.
        distances: of two runs as written, as of `prove`.
    """

    def __init__(
        self,
        device: Device,
        *,
        names: Sequence[str] = (),
        nondeterministic: Sequence[str] = (),
        distances: Distances | None = None,
    ) -> None:
        self._device = device
        self._names = names
        self._nondeterministic = nondeterministic
        self._distances = distances
        self._replayed: _Run | None = None

    def take_replayed(self, results: Any) -> None:
        """Take what the graph gives: a tree of tensors, which is not held.

        Sync: Does not block the host.
        """
        self._replayed = self._run_of(results)
        self._replayed.forget_results()

    def verdict_on(self, written: Any) -> Verdict:
        """Return a verdict on what the step as written gives.

        Sync: Does not block the host.
        """
        assert self._replayed is not None
        run = self._run_of(written)
        return Verdict(
            self._device,
            [],
            run.fingerprint[:0],
            [self._replayed, run, run],
            nondeterministic=self._nondeterministic,
            distances=self._distances,
        )

    def _run_of(self, results: Any) -> _Run:
        state = DeviceState([], self._device)
        try:
            run = _Run.of(lambda: results, state, self._device, self._names, sees_random=False)
        finally:
            state.forget()
        # Strides and alignment of gradients depend on who holds them.
        run.tree.known_key = (run.tree.structure(), tuple(map(_form, run.tree.leaves)))
        return run


class Verdict:
    """What a proof has shown, once it has arrived.

    Args:
        device: where the runs were.
        chunks: of the state.
        before: the fingerprint of the saved state.
        runs: the replay, and the first and the last run as written.
        between: fingerprints of the runs as written between these.
        nondeterministic: operators of the step that may give other bits each time.
        distances: as of `prove`.
    """

    def __init__(
        self,
        device: Device,
        chunks: list[Chunk],
        before: torch.Tensor,
        runs: list[_Run],
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
        """Return whether the verdict is known.

        Sync: Does not block the host.
        """
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
        wrong += [_FORM] if _FORM in self._differs_itself else []
        own = [*self._differs_itself, *self._names(changing)]
        far = [] if self._nondeterministic else self._names(self._far_apart(first, last))
        text = _text(wrong, own, far, repeats=repeats, nondeterministic=self._nondeterministic)
        return _Result(not (wrong or far), repeats, text, distances)

    def _far_apart(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return which results of two runs as written differ by more than rounding."""
        runs = _projections(first), _projections(second)
        found = _norm(runs[0] - runs[1]) > _MOST_OF_RESULT * _norm(runs[1])
        found[: self._num_state] = False
        return found & torch.tensor([part.precision > 0 for part in self._parts], dtype=torch.bool)

    def _names(self, chosen: torch.Tensor) -> list[str]:
        if not bool(chosen.any()):
            return []
        pairs = zip(self._parts, chosen, strict=True)
        return [part.name for part, is_chosen in pairs if bool(is_chosen)]


@dataclass(frozen=True, slots=True)
class _Part:
    """What is known of one row of a fingerprint, without its memory.

    Attributes:
        name: of the tensor.
        count: of its elements.
        precision: of their dtype.
    """

    name: str
    count: int
    precision: float


def _parts_of(chunks: list[Chunk]) -> list[_Part]:
    return [
        _Part(
            piece.region.name,
            piece.num_bytes // chunk.dtype.itemsize,
            _precision(chunk.dtype),
        )
        for chunk in chunks
        for piece in chunk.pieces
    ]


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
    counts = torch.tensor([part.count for part in parts], dtype=torch.float64)
    precision = torch.tensor([part.precision for part in parts], dtype=torch.float64)
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
    return tensor.resolve_conj().resolve_neg().contiguous()


def _is_alike(tree: Tree, other: Tree) -> bool:
    """Whether two results are the same but for the values of tensors and of unknown objects."""
    if list(map(type, tree.unknown)) != list(map(type, other.unknown)):
        return False
    if not tree.unknown:
        return tree.key() == other.key()
    return list(map(_form, tree.leaves)) == list(map(_form, other.leaves))


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
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
