"""Watch runs of a step as written: what it reads and what it changes on the host.

A graph repeats what the step does on the device and nothing else. What the step reads from Python
is baked in, so it has to be guarded; what it changes in Python would not happen again. Both are
found while the step runs as written: a profiler sees which code runs, the bytecode of that code
says which names it reads and stores, and what these names lead to is compared before and after.

    reads    guards for everything that the code names: `gapless.graphs.reads.read_guards`
    writes   counters, lists that grow, prints, files, clocks, random numbers of the host
    kept     places that held a tensor of the device before and hold another now, or that every run
             of a kind leaves with the same plain value

Nothing that the step makes is kept alive once the watch is over.
"""

from __future__ import annotations

import dis
import gc
import inspect
import random
import sys
import weakref
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

from gapless.device.torch_gpu import STREAM_TYPES, call_on_backward_thread, has_kernels_of_its_own
from gapless.graphs.reads import torch_readers
from gapless.graphs.reads.c_calls import SUSPECTS, effect_of
from gapless.graphs.reads.code_kinds import (
    CodeKind,
    is_foreign,
    kind_of,
    kind_when_called,
    site_of,
)
from gapless.graphs.reads.code_reads import reads_of
from gapless.graphs.reads.executed import Executed, Observed, is_asked
from gapless.graphs.reads.failed_look import Look
from gapless.graphs.reads.host_state import (
    OTHER_MEMORY,
    Difference,
    EveryName,
    HostState,
    RandomStates,
    Text,
)
from gapless.graphs.reads.kept_reach import KeptReach
from gapless.graphs.reads.made_in_c import ATTRIBUTE_READERS, reads_attributes_in_text
from gapless.graphs.reads.plain_values import (
    is_number_like,
    is_tensor_tree,
    same,
    same_but_tensors,
    shown,
)
from gapless.graphs.reads.reach import Reach
from gapless.graphs.reads.read_guards import ReadGuards
from gapless.graphs.reads.value_places import MISSING, Place, base_of, entries_of, shown_key
from gapless.pipeline.tree.containers import container_of, tensors_inside


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator

    from gapless.graphs.reads.code_reads import Chain, Store
    from gapless.graphs.reads.failed_look import FailedLook
    from gapless.graphs.reads.kept_reach import Reached
    from gapless.graphs.reads.odd_reads import OddRead


@dataclass(frozen=True)
class HostWrite:
    """Something that a run changed or did on the host.

    Attributes:
        name: as the code says it, such as `self.count`, or what was called, such as `print`.
        site: where, as `file:line`.
        before: a short text for the value before the run, "" for a call.
        after: the same after it.
        advice: what to do about it.
    """

    name: str
    site: str
    before: str
    after: str
    advice: str


@dataclass(frozen=True, eq=False)
class KeptPath:
    """A place in which a run has put something that can be put there again after a replay.

    These are other tensors of the device than stood there, or a plain value that every run of a
    kind leaves there, such as `self.num_rows = len(x)`: what it follows from is guarded.

    Attributes:
        place: where.
        name: as the code says it, such as `self.hidden`.
        site: where it is stored, as `file:line`.
        is_plain: whether it is a plain value.
        before: what stood there before the run, if it is a plain value.
    """

    place: Place
    name: str
    site: str
    is_plain: bool = False
    before: Any = None

    def get(self) -> Any:
        """Return what stands there now, None if nothing does."""
        value = self.place.read()
        return None if value is MISSING else value

    def set(self, value: Any) -> None:
        """Put a value there."""
        self.place.write(value)


@dataclass
class HostRun:
    """What one watched run did on the host; complete once the watch is over.

    The first run of a kind of arguments may fill caches and set what is set once; its writes are
    not told. What they change is read by the next runs as it is then.

    Attributes:
        writes: what it changed or did, each once; empty in the first run of a kind.
        kept: places that can be given again after a replay what it has put there.
        is_complete: False if torch compiled something, so that the watch was cut short, or if a
            cache was filled: look once more.
        runs_compiled: whether compiled code ran.
        found_code: whether code ran that no watched run had shown before.
        odd: ways to read that are not followed.
        forward_modes: `file:line` of every derivative in forward mode; "" if the step itself is
            one of torch's.
        got_gradients: tensors whose gradient is another tensor than before.
        failure: an error of the watch itself; what else is here says little then.
    """

    writes: list[HostWrite] = field(default_factory=list)
    kept: list[KeptPath] = field(default_factory=list)
    is_complete: bool = True
    runs_compiled: bool = False
    found_code: bool = False
    odd: list[OddRead] = field(default_factory=list)
    forward_modes: list[str] = field(default_factory=list)
    got_gradients: list[torch.Tensor] = field(default_factory=list)
    failure: FailedLook | None = None


@dataclass
class _Begun:
    """What was seen of a step before a run: what it reaches, and what stood there.

    Attributes:
        kind: of the arguments.
        key: what kind of call it is beside these.
        skip: ids of what the batch is made of.
        guards: that hold, if what the code reaches is known by them.
        reach: what the code reaches; found anew after the run if that may have changed it.
        is_of_guards: whether guards would be made for all of that, and for nothing else.
        before: what stood there.
        gradients: all that can have one, with that which it had.
        states: of random numbers.
        num_known: how much code had run by then.
        profile: sees the run.
        needs_profile: whether it has to.
    """

    kind: Any
    key: Hashable
    skip: set[int]
    guards: ReadGuards | None
    reach: Reach | Reached
    is_of_guards: bool
    before: HostState
    gradients: list[tuple[torch.Tensor, TensorWeakRef | None]]
    states: RandomStates
    num_known: int
    profile: _Profile
    needs_profile: bool


class HostWatch:
    """Watch the runs of one step.

    Args:
        step: the step itself.
        on_device: whether a tensor is on the device; all others are on the host.
        device: where the step runs; None if its backward passes run on the thread that calls it.
        torch_random: watch the host generator of torch; off where the device uses it as well.
    """

    def __init__(
        self,
        step: object,
        *,
        on_device: Callable[[torch.Tensor], bool],
        device: torch.device | None = None,
        torch_random: bool = True,
    ) -> None:
        self._step = step
        self._device = device
        self._on_device = on_device
        self._torch_random = torch_random
        self._executed: dict[int, Executed] = {}
        self._num_runs = 0
        self._num_complete = 0
        # Weakly: batches are not kept.
        self._batch: list[weakref.ref[torch.Tensor]] = []
        # From a run to the guards that are made after it.
        self._newest: Reach | None = None
        self._newest_guards: ReadGuards | None = None
        # What was reached when guards were made, while they hold.
        self._kept: KeptReach | None = None
        # Kinds of calls whose last run did nothing on the host, and ran known code alone.
        self._only_compute: set[Hashable] = set()
        # By kind of arguments: what its runs have filled, and the plain values they have left.
        self._filled: dict[Any, set[Any]] = {}
        self._left: dict[Any, dict[Any, Any]] = {}

    def forget(self) -> None:
        """Let go of what the code has reached."""
        self._kept = None

    @contextmanager
    def _backward_passes_seen(self, profile: _Profile | None) -> Iterator[None]:
        """Let a profile see hooks and backward functions, which a GPU has on a thread of torch's."""
        if self._device is None or not has_kernels_of_its_own(self._device):
            with torch.autograd.set_multithreading_enabled(False):
                yield
            return
        if profile is None:
            yield
            return
        call_on_backward_thread(partial(sys.setprofile, profile.note), self._device)
        try:
            yield
        finally:
            call_on_backward_thread(partial(sys.setprofile, None), self._device)

    @contextmanager
    def watch(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, key: Hashable = None
    ) -> Iterator[HostRun]:
        """Watch the body, which runs the step once; the result is complete after the body.

        Args:
            args: the arguments of this call.
            kwargs: those by name.
            key: what kind of call it is, beside its shapes and plain values.

        Sync: Does not block the host.
        """
        # The profiler would see what a collection runs, and what is noted here is gone soon.
        with _collector_paused():
            run, look = HostRun(), Look(self._step)
            # What objects of the user's raise where they are looked at is none of the loop's.
            with look:
                begun = self._begin(args, kwargs, key, look)
            if look.failure is not None:
                yield run
            else:
                profile = begun.profile
                with (
                    self._backward_passes_seen(profile if begun.needs_profile else None),
                    profile.running() if begun.needs_profile else nullcontext(),
                ):
                    yield run
            if look.failure is None:
                with look:
                    self._end(run, begun)
            run.failure = look.failure
            if run.failure is not None:
                self.let_go()
                self.forget()

    def _begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Hashable, look: Look
    ) -> _Begun:
        """Look at the step before a run."""
        self._num_runs += 1
        skip, tensors, kind = _parts_of_batch((args, kwargs))
        self._batch = [weakref.ref(tensor) for tensor in tensors]
        del tensors
        self.let_go()
        guards, known = self._known_now(skip)
        reach: Reach | Reached = known or self._reach(least_runs=1, skip=skip)
        # Its last run, with the same to be read, ran known code alone, and did nothing but compute.
        needs_profile = known is None or (kind, key) not in self._only_compute
        self._only_compute.discard((kind, key))
        return _Begun(
            kind,
            key,
            skip,
            guards,
            reach,
            # Of all that it leads to, a guard would be made as well.
            is_of_guards=known is not None or self._is_of_guards(reach),
            before=HostState(reach, on_device=self._on_device, skip=skip),
            gradients=_gradients_of(tensor for tensor, _, _ in reach.tensors.values()),
            states=RandomStates(torchs=self._torch_random),
            num_known=len(self._executed),
            profile=_Profile(self._executed, self._num_runs, batch=skip, look=look),
            needs_profile=needs_profile,
        )

    def _end(self, run: HostRun, begun: _Begun) -> None:
        """Look at the step after a run, and say what the run has done."""
        profile, is_of_guards = begun.profile, begun.is_of_guards
        run.is_complete = profile.is_complete
        run.runs_compiled = profile.runs_compiled
        run.forward_modes = list(profile.forward_modes)
        run.found_code = len(self._executed) > begun.num_known
        run.got_gradients = [
            tensor for tensor, had in begun.gradients if tensor.grad is not (had and had())
        ]
        self._num_complete += run.is_complete
        is_as_before = not run.found_code and not profile.found_given
        differences = list(begun.before.differences(_stored_names(begun.reach)))
        if not is_as_before or differences:
            is_as_before = False
            # What only that held is gone when it is searched anew.
            del begun.reach
            begun.reach = self._found_anew(begun.skip)
            differences = list(begun.before.differences(_stored_names(begun.reach)))
            is_of_guards = self._is_of_guards(begun.reach)
        reach = begun.reach
        run.odd = list(reach.odd.values()) if isinstance(reach, Reach) else []
        changed = begun.states.changed()
        if begun.guards is not None and is_as_before:
            self._newest_guards = begun.guards
            if begun.needs_profile and profile.only_computes and not changed:
                self._only_compute.add((begun.kind, begun.key))
        elif is_of_guards and self._num_complete > 1:
            assert isinstance(reach, Reach)
            self._newest = reach
        self._sum_up(run, differences, reach, profile, changed, begun.kind)

    def _known_now(self, skip: set[int]) -> tuple[ReadGuards | None, Reached | None]:
        """Return guards that hold, and what the code reaches as long as they do; None if it is to be found."""
        guards = None if self._kept is None else self._kept.guards(len(self._executed))
        if guards is None or self._kept is None:
            return None, None
        reached = self._kept.as_known(skip)
        return (None, None) if reached is None else (guards, reached)

    def _found_anew(self, skip: set[int]) -> Reach:
        """Return what the code reaches after a run that may have changed it."""
        reach = self._reach(least_runs=1, skip=skip)
        if self._find_functions(reach):
            reach.follow_functions()
        return reach

    def _is_of_guards(self, reach: Reach | Reached) -> bool:
        """Return whether guards would be made for all that the code reaches, and for nothing else."""
        if isinstance(reach, Reach) and reach.met_skipped:
            return False
        return not any(each.has_passing for each in self._executed.values())

    def may_wait(self, profiler: Any) -> bool:
        """Return whether a profiler is that of a watch, which may wait while own code runs."""
        if not isinstance(getattr(profiler, "__self__", None), _Profile):
            return False
        # From Python 3.12 on, to let the only one of all threads wait changes all code that runs.
        is_not_alone = self._device is not None and has_kernels_of_its_own(self._device)
        return is_not_alone or sys.version_info < (3, 12)

    def guards(self, *, carried: Collection[KeptPath] = ()) -> ReadGuards:
        """Return guards for everything that the watched runs read, with the values of now.

        Args:
            carried: places that the caller takes care of. They are not guarded, unless they get
                plain values and the step reads them: then what stood there before the run is.

        Sync: Does not block the host.
        """
        with _collector_paused():
            reach, shared = self._newest, self._newest_guards
            self.let_go()
            if shared is not None and not carried and shared.holds():
                return shared
            if reach is None:
                batch = {id(tensor) for ref in self._batch if (tensor := ref()) is not None}
                reach = self._reach(least_runs=max(1, min(self._num_complete, 2)), skip=batch)
            read = [path for path in carried if path.is_plain and reach.reads(path.place)]
            unread = {path.place.id for path in carried} - {path.place.id for path in read}
            with _as_before(read):
                guards = ReadGuards(reach, on_device=self._on_device, carried=unread)
            self._kept = None
            if not carried and not reach.met_skipped:
                self._kept = KeptReach(reach, guards, len(self._executed))
            return guards

    def let_go(self) -> None:
        """Let go of what the last run has led to, if there will be no guards for it."""
        self._newest = self._newest_guards = None

    @property
    def num_runs(self) -> int:
        """How many runs were watched."""
        return self._num_runs

    def site_of_name(self, names: Collection[str]) -> str | None:
        """Return `file:line` where the user's code that ran names one of these, None if it does not.

        Args:
            names: of attributes, methods or globals.
        """
        for executed in self._executed.values():
            if executed.kind is not CodeKind.USER:
                continue
            for chain, line in executed.reads.reads.items():
                said = {key for kind, key in chain.links if kind == "attr"}
                said |= {chain.root} if chain.kind == "global" else set()
                if said & set(names):
                    return site_of(executed.code, line)
        return None

    def _reach(self, *, least_runs: int, skip: set[int]) -> Reach:
        return Reach(self._step, self._executed.values(), least_runs=least_runs, skip=skip)

    def _find_functions(self, reach: Reach) -> bool:
        """Find the functions whose closures the code reads, if no name leads to them."""
        missing = [
            each
            for each in self._executed.values()
            if each.functions is None
            and id(each.code) not in reach.functions
            and set(each.code.co_freevars) - {"__class__"}
        ]
        for each in missing:
            each.functions = []
        if missing:
            by_code = {id(each.code): each for each in missing}
            for function in gc.get_referrers(*(each.code for each in missing)):
                if isinstance(function, FunctionType):
                    found = by_code[id(function.__code__)].functions
                    assert found is not None
                    found.append(weakref.ref(function))
        return bool(missing)

    # --- what a run did ---

    def _sum_up(
        self,
        run: HostRun,
        differences: list[Difference],
        reach: Reach | Reached,
        profile: _Profile,
        random_states: list[str],
        kind: Any,
    ) -> None:
        filled = self._filled.get(kind)
        is_first = filled is None
        filled = self._filled.setdefault(kind, set())
        left, self._left[kind] = self._left.get(kind, {}), _plain_values_stored(reach)
        stores = _Stores(reach)
        writes: dict[tuple[str, str], HostWrite] = {}

        def note(name: str, site: str, before: str, after: str, advice: str) -> None:
            write = HostWrite(name, site, before, after, advice)
            writes.setdefault((name, site), write)

        # What a place kept before is gone from it, whatever was done to that.
        left_behind = {
            id(tensor)
            for difference in filter(self._is_kept, differences)
            for tensor in tensors_inside(difference.before)
        }
        for difference in differences:
            if id(_changed_object(difference)) in left_behind:
                continue
            name, site = stores.name_and_site(difference)
            if self._is_kept(difference):
                assert difference.place is not None
                run.kept.append(KeptPath(difference.place, name, site))
            elif _is_left_again(difference, left):
                assert difference.place is not None
                was = difference.before
                run.kept.append(KeptPath(difference.place, name, site, is_plain=True, before=was))
            elif difference.is_fill and _key_of(difference) not in filled:
                filled.add(_key_of(difference))
                run.is_complete = False
            else:
                texts = (_text(difference.before), _text(difference.after))
                note(name, site, *texts, _advice(difference))
        for (name, site), advice in profile.effects.items():
            note(name, site, "", "", advice)
        for name in _generators_used(random_states, profile, stores):
            site = profile.random_site if name == "random" else stores.site_of_name(name)
            note(name, site, "", "", "draw random numbers on the device, or in `on_host`")
        run.writes = [] if is_first else list(writes.values())
        if is_first:
            run.is_complete = profile.is_complete

    def _is_kept(self, difference: Difference) -> bool:
        place, before, after = difference.place, difference.before, difference.after
        if place is None or place.kind == "class":
            return False
        if not is_tensor_tree(after, self._on_device):
            return False
        if before is MISSING or before is None:
            # A dictionary that grows is no place to copy to.
            return before is None or place.holder is not None or _is_variable(place)
        return is_tensor_tree(before, self._on_device) and same_but_tensors(before, after)


def _changed_object(difference: Difference) -> Any:
    """Return whose attribute has changed, or what has changed in itself."""
    place = difference.place
    return difference.owner if place is None or place.holder is None else place.holder


def _generators_used(changed: list[str], profile: _Profile, stores: _Stores) -> list[str]:
    """Return the generators that were used; those that are seeded each time end where they began."""
    used = list(changed)
    if profile.draws_random and "random" not in used:
        used.append("random")
    if "numpy.random" not in used and stores.site_of_name("numpy.random", "seed"):
        used.append("numpy.random")
    return used


@contextmanager
def _as_before(paths: list[KeptPath]) -> Iterator[None]:
    """Let plain values stand in the body as they stood before the run."""
    # One that cannot be set must not keep the others from being put back.
    with ExitStack() as stack:
        for path in paths:
            stack.callback(path.set, path.get())
            path.set(path.before)
        yield


def _is_left_again(difference: Difference, left: dict[Any, Any]) -> bool:
    """Return whether the last run of the kind has left the same plain value there."""
    place, after = difference.place, difference.after
    if place is None or place.kind in ("class", "context"):
        return False
    is_plain = is_number_like(difference.before) and is_number_like(after)
    return is_plain and same(left.get(place.id, MISSING), after)


def _plain_values_stored(reach: Reach | Reached) -> dict[Any, Any]:
    """Return what stands in the places that the code stores to, if it is plain."""
    values = {each: reach.places[each].read() for each in reach.stored}
    return {each: value for each, value in values.items() if is_number_like(value)}


def _key_of(difference: Difference) -> Any:
    """Return what is filled: an attribute, or a container as a whole."""
    place = difference.place
    if place is None or place.holder is None:
        is_variable = place is not None and _is_variable(place)
        return place.id if is_variable and place is not None else id(difference.owner)
    return place.id


def _is_variable(place: Place) -> bool:
    return place.kind == "cell" or (place.kind == "dict" and "__builtins__" in place.owner)


def _gradients_of(
    tensors: Iterable[torch.Tensor],
) -> list[tuple[torch.Tensor, TensorWeakRef | None]]:
    """Return all that can have a gradient, each with a weak reference to the one that it has."""
    return [
        (tensor, None if tensor.grad is None else TensorWeakRef(tensor.grad))
        for tensor in tensors
        if tensor.is_leaf and tensor.requires_grad
    ]


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Text) else shown(value)


def _advice(difference: Difference) -> str:
    after = difference.after
    if after is OTHER_MEMORY:
        return "write into it with `copy_()`, or change it outside the step"
    if isinstance(after, torch.Tensor):
        return "keep it on the device, or change it in `on_host`"
    return "change it in `on_host`, or outside the step"


def _stored_names(reach: Reach | Reached) -> Container[str]:
    names: set[str] = set()
    for executed in reach.codes.values():
        if executed.kind is CodeKind.USER:
            if executed.reads.stores_any_name or "__dict__" in executed.code.co_names:
                return EveryName()
            names |= executed.reads.names
    return names


def _parts_of_batch(batch: Any) -> tuple[set[int], list[torch.Tensor], Any]:
    """Return the ids of all containers and tensors in a batch, the tensors, and its kind."""
    ids: set[int] = set()
    kind: list[Any] = []
    tensors: list[torch.Tensor] = []
    todo = [batch]
    while todo:
        value = todo.pop()
        if id(value) in ids:
            continue
        if isinstance(value, torch.Tensor):
            ids.add(id(value))
            tensors.append(value)
            kind.append((value.shape, value.dtype))
            continue
        if isinstance(value, nn.Module | torch.optim.Optimizer | type | ModuleType):
            continue
        container = container_of(value)
        if container is not None:
            ids.add(id(value))
            todo += container.parts(value)
            kind.append((type(value), len(container.names(value))))
        else:
            kind.append(value if is_number_like(value) else type(value))
    return ids, tensors, tuple(kind)


class _Stores:
    """Where the code stores what: finds the line for a difference."""

    def __init__(self, reach: Reach | Reached) -> None:
        self._reach = reach
        self._stores: dict[Any, list[tuple[Executed, Store]]] = {}
        for executed in reach.codes.values():
            if executed.kind is CodeKind.USER:
                for store in executed.reads.stores:
                    key = store.key if store.kind in ("attr", "global", "cell") else None
                    self._stores.setdefault((store.kind, key), []).append((executed, store))

    def name_and_site(self, difference: Difference) -> tuple[str, str]:
        """Return the name and line under which the user's code changes something."""
        place = difference.place
        if place is not None and place.kind == "cell":
            return self._first("cell", place.name) or (place.name, place.site)
        if place is not None and place.holder is None and "__builtins__" in _keys(place.owner):
            return self._first("global", place.key) or (place.name, place.site)
        if place is not None and place.holder is not None:
            key = place.key if isinstance(place.key, str) else place.key.__name__
            found = self._of("attr", key, place.holder)
            if found is not None:
                return found
        return self._of_container(difference, place)

    def _of_container(self, difference: Difference, place: Place | None) -> tuple[str, str]:
        owner = difference.owner
        found = self._of("item", None, owner)
        if found is not None and place is not None:
            return f"{found[0]}[{shown_key(place.key)}]", found[1]
        found = found or self._of("call", None, owner)
        if found is not None:
            return found
        return difference.name, difference.site or self._mention(owner)

    def _first(self, kind: str, key: Any) -> tuple[str, str] | None:
        for executed, store in self._stores.get((kind, key), []):
            return str(key), site_of(executed.code, store.line)
        return None

    def _of(self, kind: str, key: Any, owner: Any) -> tuple[str, str] | None:
        """Return the first store to an object, else the first with the same key."""
        other = None
        for executed, store in self._stores.get((kind, key), []):
            site = site_of(executed.code, store.line)
            for chain in sorted(store.bases, key=repr):
                values = self._reach.values_of(executed, chain)
                if any(value is owner or _data_of(value) is owner for value in values):
                    return self._named(chain, key), site
            if key is not None and other is None:
                base = min(store.bases, key=repr, default=None)
                other = (self._named(base, key), site) if base is not None else (key, site)
        return other

    @staticmethod
    def _named(chain: Chain, key: Any) -> str:
        return chain.text if key is None else f"{chain.text}.{key}"

    def _mention(self, owner: Any) -> str:
        """Return the first line that names an object."""
        for executed in self._reach.codes.values():
            if executed.kind is CodeKind.USER:
                for chain, line in executed.reads.reads.items():
                    if any(value is owner for value in self._reach.values_of(executed, chain)):
                        return site_of(executed.code, line)
        return ""

    def site_of_name(self, name: str, function: str = "") -> str:
        """Return the first line that names something of a package, such as `numpy.random`.

        Args:
            name: of the package.
            function: which of its functions; "" for any that draws.
        """
        words = name.split(".")
        for executed in self._reach.codes.values():
            if executed.kind is not CodeKind.USER:
                continue
            for chain, line in executed.reads.reads.items():
                keys = [key for _, key in chain.links]
                if function and chain.last_name != function:
                    continue
                root = executed.names.get(chain.root)
                if not isinstance(root, ModuleType) or root.__name__ not in (name, words[0]):
                    continue
                is_named = root.__name__ == name or words[1:] == keys[: len(words) - 1]
                if is_named and (len(words) > 1 or any(map(_draws, keys))):
                    return site_of(executed.code, line)
        return ""


def _draws(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(
        ("rand", "normal", "bernoulli", "multinomial", "manual_seed", "seed", "set_rng")
    )


def _data_of(value: Any) -> Any:
    """Return the dictionary in which a mapping of Python's library keeps its items."""
    return (entries_of(value) or {}).get("data", MISSING) if is_foreign(type(value)) else MISSING


def _keys(owner: Any) -> Any:
    return owner if isinstance(owner, dict) else ()


# --- the profiler ---


_NOT_OBSERVED: tuple[type, ...] = (
    str, bytes, int, float, complex, type(None), MethodType, *STREAM_TYPES
)  # fmt: skip
_CONTAINERS = (list, tuple, dict, set)
# Of a container, and of one inside it.
_MOST_OBSERVED_ITEMS = 10_000
_MOST_OBSERVED_INSIDE = 100
_OBSERVED_DEPTH = 4


_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_set_eval_frame: Any = getattr(_eval_frame, "set_eval_frame", None)


_READERS = {function.__name__ for function in (*ATTRIBUTE_READERS, isinstance)}


def _is_observed(value: Any) -> bool:
    """Return whether attributes of a value may lead on: of tensors those that users have given."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return isinstance(value, nn.Parameter) or bool(entries_of(value))
    return not issubclass(kind, _NOT_OBSERVED)


def _ids_of_young() -> set[int]:
    """Return the ids of objects that are new to the collector: while it is paused, of all new ones."""
    return set(map(id, gc.get_objects(generation=0)))


def _executed(frame: FrameType, code: CodeType, kind: CodeKind) -> Executed:
    """Return what is known of code that runs for the first time."""
    executed = Executed(code, frame.f_globals, reads_of(code), kind)
    followed = [chain for chain in executed.reads.reads if chain.links]
    changed = [chain for store in executed.reads.stores for chain in store.bases]
    readers = [each for each in executed.reads.given if each.last_name in _READERS]
    handed = [chain for reader in readers for chain in executed.reads.given[reader]]
    for chain in (*followed, *changed, *handed):
        if chain.kind == "argument":
            executed.observed.setdefault(chain.root, Observed())
    return executed


_RANDOM_OF_PYTHON = random.random.__self__  # type: ignore[attr-defined]

# Code that waits in the middle for whoever takes its values.
_STOPS_MIDWAY = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _begins(at: dis.Instruction) -> bool:
    return at.opname == "RESUME" and at.arg == 0


def _yields(at: dis.Instruction) -> bool:
    return at.opname == "YIELD_VALUE"


# What functions made in C do counts where these call them, perhaps for the user.
_WITH_EFFECTS = (CodeKind.USER, CodeKind.LIBRARY, CodeKind.SILENT)

_ALL_EVENTS = frozenset(["call", "return", "c_call"])


# Of code in files, by its id, while it lives.
_KINDS: dict[int, tuple[weakref.ref[CodeType], CodeKind]] = {}


def _kind_when_called(code: CodeType, names: dict[str, Any]) -> CodeKind:
    known = _KINDS.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    kind = kind_when_called(code, names)
    # The kind of other code, made at run time, is that of where it runs.
    if not code.co_filename.startswith("<"):
        number = id(code)
        _KINDS[number] = (weakref.ref(code, lambda _: _KINDS.pop(number, None)), kind)
    return kind


def _told_of(kind: CodeKind) -> frozenset[str]:
    """Return the events that say something about code of a kind."""
    if kind is CodeKind.USER:
        return _ALL_EVENTS
    if kind in _WITH_EFFECTS:
        return frozenset(["c_call"])
    return frozenset() if kind in (CodeKind.TORCH, CodeKind.OWN) else frozenset(["call"])


# Decorators and functions that stand in for the one that is called.
_MOST_FRAMES_BETWEEN = 6

_LEAVE_OUT = "let it stand in `on_host`, or leave it out of the step"


def _holds_plain(value: Any, depth: int = _OBSERVED_DEPTH) -> bool:
    """Return whether a container holds settings, rather than what is large."""
    if len(value) > _MOST_OBSERVED_INSIDE:
        return False
    return all(
        (depth > 0 and _holds_plain(part, depth - 1))
        if type(part) in _CONTAINERS
        else is_number_like(part) or isinstance(part, FunctionType | type)
        for part in (value.values() if isinstance(value, dict) else value)
    )


class _Held:
    """Takes the place of a weak reference to an object that allows none."""

    def __init__(self, value: object) -> None:
        self._value = value
        self.key = id(value)
        # Where it was seen in the run that has shown it first.
        self.roles: list[Observed] = []

    def __call__(self) -> object:
        return self._value

    @property
    def is_alone(self) -> bool:
        """Whether nobody else holds the object."""
        return sys.getrefcount(self._value) <= _HELD_ALONE


_HELD_ALONE = 2


def can_be_called(profiler: Any) -> bool:
    """Return whether a profiler of this thread, if there is one, can be told of what is seen here.

    One that is made in C cannot. It is paused instead, as `cProfile`'s before Python 3.12, or the
    step is refused; see `graphs/refusal.py:objection_to_profiler`.
    """
    return profiler is None or callable(profiler)


class _Profile:
    """Sees which code runs, with what, and which functions made in C it calls.

    Args:
        executed: the code that has run so far, by id; what runs is added.
        number: of the run.
        batch: ids of the containers and tensors of its batch. That an argument was one of them says
            nothing about other calls.

    Attributes:
        is_complete: False once torch has begun to compile.
        effects: name and site of what functions did on the host, with advice.
        forward_modes: sites of derivatives in forward mode.
        random_site: where the first random number of Python was drawn, "" if none was.
        draws_random: whether the generator that all share was used; one that is seeded each time
            ends where it began.
        runs_compiled: whether compiled code has run.
    """

    def __init__(
        self, executed: dict[int, Executed], number: int, *, batch: set[int], look: Look
    ) -> None:
        self._executed = executed
        self._number = number
        self._batch = batch
        self._look = look
        self._kinds: dict[int, tuple[CodeType, CodeKind]] = {}
        # Of code by id, what has to be told of its frames; nothing of most of torch's.
        self._told: dict[int, frozenset[str]] = {}
        self.is_complete = True
        self.runs_compiled = False
        self.effects: dict[tuple[str, str], str] = {}
        self.forward_modes: dict[str, None] = {}
        self.random_site = ""
        self.draws_random = False
        # Until the run is over, what no weak reference can be made to.
        self._held: dict[int, _Held] = {}
        self._other: Any = None
        # What was seen in a role for the first time.
        self._new: list[tuple[Observed, int]] = []
        self._young: set[int] = set()
        self._long: set[tuple[int, ...]] = set()
        # Of instructions, by code and kind.
        self._offsets: dict[tuple[int, Callable[[dis.Instruction], bool]], set[int]] = {}
        # Those around the run, by id; held until it is over, so that no other gets their ids.
        self._around: dict[int, FrameType] = {}

    @property
    def only_computes(self) -> bool:
        """Whether the run did nothing on the host that was seen, and ran no compiled code."""
        acts = self.effects or self.forward_modes or self.random_site
        return self.is_complete and not self.runs_compiled and not acts

    @property
    def found_given(self) -> bool:
        """Whether the run has shown an object for the first time that was there before it."""
        return any(
            key in observed.given and key in observed.runs and observed.runs[key][0]() is not None
            for observed, key in self._new
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """See what the body runs on this thread."""
        self._young = _ids_of_young()
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            self._around[id(frame)] = frame
            frame = frame.f_back
        self._other = sys.getprofile()
        paused = None if can_be_called(self._other) else self._other
        if paused is not None:
            paused.disable()
            self._other = None
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(self._other)
            if paused is not None:
                paused.enable()
            self._around = {}
            for held in self._held.values():
                if held.is_alone:
                    for observed in held.roles:
                        del observed.runs[held.key]
            self._held = {}
            made = _ids_of_young() - self._young
            for observed, key in self._new:
                if key not in made:
                    observed.given.add(key)

    def note(self, frame: FrameType, event: str, arg: Any) -> None:
        """Take what Python tells a profile function."""
        told = self._told.get(id(frame.f_code))
        # Called some hundred thousand times a run: it calls nothing where there is nothing to be noted.
        if told is not None and event not in told and self._other is None:
            return
        if not self.runs_compiled or _set_eval_frame is None:
            self._note_event(frame, event, arg)
            return
        # Or the compiler would compile what follows.
        callback = _set_eval_frame(None)
        try:
            self._note_event(frame, event, arg)
        finally:
            _set_eval_frame(callback)

    def _note_event(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._other is not None:
            self._other(frame, event, arg)
        if self._look.failure is not None:
            return
        try:
            kind = self._kind(frame)
            if event == "c_call":
                if kind in _WITH_EFFECTS:
                    self._note_c_call(frame, arg)
            elif event == "call":
                self._note_call(frame, kind)
            elif event == "return" and kind is CodeKind.USER:
                if not frame.f_code.co_flags & _STOPS_MIDWAY or not self._is_at(frame, _yields):
                    # Before its end, a generator has no more than it will have had.
                    self._note_locals(frame)
                self._note_return(frame, arg)
        except Exception as error:
            # What a profile function raises, the code that it watches gets.
            self._look.note(error)

    def _kind(self, frame: FrameType) -> CodeKind:
        known = self._kinds.get(id(frame.f_code))
        if known is None:
            known = self._kinds[id(frame.f_code)] = (
                frame.f_code,
                _kind_when_called(frame.f_code, frame.f_globals),
            )
            self._told[id(frame.f_code)] = _told_of(known[1])
        return known[1]

    def _note_call(self, frame: FrameType, kind: CodeKind) -> None:
        if kind is CodeKind.USER or kind is CodeKind.MODULE:
            self._note_code(frame, frame.f_code, kind)
        elif kind is CodeKind.ACTING:
            self._note_act(frame)
        elif kind is CodeKind.READING:
            # Torch's own code may: checkpointing asks for the state of the generator.
            self._note_act(frame, 1, advice=torch_readers.ADVICE)
        elif kind is CodeKind.FORWARD_MODE:
            self._note_forward_mode(frame)
        elif kind is CodeKind.COMPILED:
            self.runs_compiled = True
        elif kind is CodeKind.COMPILER:
            self.runs_compiled = True
            self.is_complete = False
            sys.setprofile(self._other)

    def _note_code(self, frame: FrameType, code: CodeType, kind: CodeKind) -> None:
        executed = self._executed.get(id(code))
        if executed is None and not code.co_flags & inspect.CO_OPTIMIZED:
            # `eval` of a text makes its code anew each time.
            path = code.co_filename
            known = [each for each in self._executed.values() if each.code == code]
            executed = next((each for each in known if each.code.co_filename == path), None)
        if executed is None:
            if self._is_in_import(frame):
                return
            executed = self._executed[id(code)] = _executed(frame, code, kind)
        if executed.observed and not self._goes_on(frame):
            values = frame.f_locals
            for name, observed in executed.observed.items():
                if name in values and not self._is_known(observed, values[name]):
                    self._observe(observed, values[name])
                    self._observe_parts(executed, name, values[name])

    def _goes_on(self, frame: FrameType) -> bool:
        """Return whether the call of a generator is not its first: its arguments are those of that one."""
        return bool(frame.f_code.co_flags & _STOPS_MIDWAY) and not self._is_at(frame, _begins)

    def _is_at(self, frame: FrameType, of_kind: Callable[[dis.Instruction], bool]) -> bool:
        """Return whether a frame is at an instruction of a kind."""
        code = frame.f_code
        found = self._offsets.get((id(code), of_kind))
        if found is None:
            found = {at.offset for at in dis.get_instructions(code) if of_kind(at)}
            self._offsets[id(code), of_kind] = found
        return frame.f_lasti in found

    def _is_known(self, observed: Observed, value: Any) -> bool:
        """Return whether a long container was seen in a role before, as when a loop gives it to a function."""
        if type(value) not in _CONTAINERS or len(value) <= _MOST_OBSERVED_INSIDE:
            return False
        # Another one may stand where one that is gone stood.
        parts = value.values() if isinstance(value, dict) else value
        key = (id(observed), hash(tuple(map(id, parts))))
        is_known = key in self._long
        self._long.add(key)
        return is_known

    def _is_in_import(self, frame: FrameType | None) -> bool:
        """Return whether code runs since a module is being imported."""
        while frame is not None and id(frame) not in self._around:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return False

    def _note_return(self, frame: FrameType, value: Any) -> None:
        code, caller = frame.f_code, frame.f_back
        if code.co_name == "__init__" and code.co_argcount:
            # The call of a class returns what it has made.
            value = frame.f_locals.get(code.co_varnames[0])
        if caller is None or not _is_observed(value):
            return
        executed = self._nearest(caller)
        if executed is not None:
            self._observe(executed.observed.setdefault("", Observed()), value)
            self._observe_parts(executed, "", value)
            asked = frame.f_locals.get(code.co_varnames[1]) if is_asked(code) else None
            for root, links, part in executed.parts_returned(value, code, asked):
                self._observe(executed.led.setdefault((root, links), Observed()), part)

    def _nearest(self, frame: FrameType | None) -> Executed | None:
        """Return the code that is followed behind a few frames of libraries, such as of contextlib."""
        for _ in range(_MOST_FRAMES_BETWEEN):
            if frame is None or id(frame) in self._around:
                return None
            executed = self._executed.get(id(frame.f_code))
            if executed is not None:
                return executed
            frame = frame.f_back
        return None

    def _note_locals(self, frame: FrameType) -> None:
        """Take note of what objects lead to that functions made in C have returned."""
        executed = self._executed.get(id(frame.f_code))
        if executed is not None and executed.follows(""):
            values = frame.f_locals
            # Not what an enclosing function holds: it would be searched as if a call had returned it.
            for name in executed.reads.results:
                if name in values and _is_observed(values[name]):
                    self._observe_parts(executed, "", values[name])

    def _observe_parts(self, executed: Executed, root: str, value: Any) -> None:
        for links, part in executed.parts_of(root, value):
            self._observe(executed.led.setdefault((root, links), Observed()), part)

    def _observe(self, observed: Observed, value: Any, depth: int = _OBSERVED_DEPTH) -> None:
        # Its type is asked, not the class that it names: what is raised here, the user's code gets.
        is_tuple = issubclass(type(value), tuple)
        if is_tuple or type(value) in _CONTAINERS:
            # No weak reference leads to it; its items stand for it.
            is_outermost = depth == _OBSERVED_DEPTH
            most = _MOST_OBSERVED_ITEMS if is_outermost else _MOST_OBSERVED_INSIDE
            if (tuple.__len__(value) if is_tuple else len(value)) <= most and depth:
                base = base_of(value)
                for part in dict.values(value) if base is dict else base.__iter__(value):
                    self._observe(observed, part, depth - 1)
            if not is_outermost or is_tuple or not _holds_plain(value):
                return
        if not _is_observed(value) or id(value) in self._batch:
            return
        known = observed.runs.get(id(value))
        if known is not None and known[0]() is value:
            known[1].add(self._number)
            return
        observed.given.discard(id(value))
        self._new.append((observed, id(value)))
        try:
            observed.runs[id(value)] = (weakref.ref(value), {self._number})
        except TypeError:
            # Such as a SimpleNamespace; entries without attributes need no guard.
            is_container = type(value) in _CONTAINERS
            if is_container or entries_of(value) is not None or hasattr(type(value), "__slots__"):
                # One for all roles: nobody else is to hold it.
                held = self._held.setdefault(id(value), _Held(value))
                held.roles.append(observed)
                observed.runs[id(value)] = (held, {self._number})

    def _note_c_call(self, frame: FrameType, function: Any) -> None:
        name = getattr(function, "__name__", None)
        if name in SUSPECTS:
            effect = effect_of(function)
            site = self._user_site(frame) if effect is not None else None
            if effect is not None and site is not None:
                self.effects.setdefault((effect, site), _LEAVE_OUT)
        elif name in torch_readers.IN_C:
            read = torch_readers.shown_reader(function)
            site = self._user_site(frame) if read is not None else None
            if read is not None and site is not None:
                self.effects.setdefault((read, site), torch_readers.ADVICE)
        elif name == "format" and reads_attributes_in_text(function):
            site = self._user_site(frame)
            if site is not None:
                self.effects.setdefault(("str.format", site), "name the attribute")
        elif isinstance(getattr(function, "__self__", None), random.Random):
            self.random_site = self.random_site or self._user_site(frame) or ""
            self.draws_random |= function.__self__ is _RANDOM_OF_PYTHON and bool(self.random_site)

    def _note_act(
        self,
        frame: FrameType,
        num_between: int = _MOST_FRAMES_BETWEEN,
        *,
        advice: str = _LEAVE_OUT,
    ) -> None:
        """Note a function of torch or of this package, if the user's code has called it."""
        owner = frame.f_locals.get("self")
        name = frame.f_code.co_name
        shown_name = f"torch.{name}" if owner is None else f"{type(owner).__name__}.{name}"
        caller = frame.f_back
        for _ in range(num_between):
            if caller is None or id(caller) in self._around:
                return
            if kind_of(caller.f_code, caller.f_globals) is CodeKind.USER:
                site = site_of(caller.f_code, caller.f_lineno)
                self.effects.setdefault((shown_name, site), advice)
                return
            caller = caller.f_back

    def _note_forward_mode(self, frame: FrameType | None) -> None:
        """Note the user's line behind a derivative in forward mode."""
        while frame is not None and id(frame) not in self._around:
            if kind_of(frame.f_code, frame.f_globals) is CodeKind.USER:
                self.forward_modes.setdefault(site_of(frame.f_code, frame.f_lineno))
                return
            frame = frame.f_back
        self.forward_modes.setdefault("")

    def _user_site(self, frame: FrameType | None) -> str | None:
        """Return the user's line behind a call, None if it is torch's or this package's."""
        while frame is not None and id(frame) not in self._around:
            kind = kind_of(frame.f_code, frame.f_globals)
            if kind is CodeKind.USER:
                return site_of(frame.f_code, frame.f_lineno)
            if kind is not CodeKind.LIBRARY:
                return None
            frame = frame.f_back
        return None


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running others' code in the body, as if the body did."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


if hasattr(_eval_frame, "skip_code"):
    # The profiler's own code is called while compiled code runs.
    _eval_frame.skip_code(_Profile.note.__code__)
