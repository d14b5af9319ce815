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

import gc
import sys
import weakref
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

from gapless.device.torch_gpu import call_on_backward_thread, has_kernels_of_its_own
from gapless.graphs.reads.code_kinds import (
    CodeKind,
    is_foreign,
    site_of,
)
from gapless.graphs.reads.failed_look import Look
from gapless.graphs.reads.host_run import HostRun, HostWrite, KeptPath
from gapless.graphs.reads.host_state import (
    OTHER_MEMORY,
    Difference,
    EveryName,
    HostState,
    RandomStates,
    Text,
)
from gapless.graphs.reads.kept_reach import KeptReach
from gapless.graphs.reads.plain_values import (
    is_number_like,
    is_tensor_tree,
    same,
    same_but_tensors,
    shown,
)
from gapless.graphs.reads.reach import Reach
from gapless.graphs.reads.read_guards import ReadGuards
from gapless.graphs.reads.run_profile import RunProfile
from gapless.graphs.reads.value_places import MISSING, Place, entries_of, shown_key
from gapless.pipeline.tree.containers import container_of, tensors_inside


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator

    from gapless.graphs.reads.code_reads import Chain, Store
    from gapless.graphs.reads.executed import Executed
    from gapless.graphs.reads.kept_reach import Reached


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
    profile: RunProfile
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
    def _backward_passes_seen(self, profile: RunProfile | None) -> Iterator[None]:
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
            profile=RunProfile(self._executed, self._num_runs, batch=skip, look=look),
            needs_profile=needs_profile,
        )

    def _end(self, run: HostRun, begun: _Begun) -> None:
        """Look at the step after a run, and say what the run has done."""
        profile, is_of_guards = begun.profile, begun.is_of_guards
        run.is_complete = profile.is_complete
        run.runs_compiled = profile.runs_compiled
        run.forward_modes = list(profile.host.forward_modes)
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
        if not isinstance(getattr(profiler, "__self__", None), RunProfile):
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
        profile: RunProfile,
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
        for (name, site), advice in profile.host.effects.items():
            note(name, site, "", "", advice)
        for name in _generators_used(random_states, profile, stores):
            site = profile.host.random_site if name == "random" else stores.site_of_name(name)
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


def _generators_used(changed: list[str], profile: RunProfile, stores: _Stores) -> list[str]:
    """Return the generators that were used; those that are seeded each time end where they began."""
    used = list(changed)
    if profile.host.draws_random and "random" not in used:
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
