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
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

from gapless.device.torch_gpu import call_on_backward_thread, has_backward_thread
from gapless.graphs.reads.code_kinds import CodeKind, site_of
from gapless.graphs.reads.failed_look import Look
from gapless.graphs.reads.host_run import HostRun, KeptPath
from gapless.graphs.reads.host_state import EveryName, HostState
from gapless.graphs.reads.host_writes import HostWrites
from gapless.graphs.reads.inner_states import RandomStates
from gapless.graphs.reads.plain_values import is_number_like
from gapless.graphs.reads.reach import Reach
from gapless.graphs.reads.read_guards import ReadGuards
from gapless.graphs.reads.run_profile import RunProfile
from gapless.pipeline.tree.containers import container_of


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator
    from types import CodeType

    from gapless.graphs.reads.executed import Executed


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
    reach: Reach
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
        # What was reached when guards were made, as long as these live, and how much code had run by then.
        self._kept: tuple[Reach, weakref.ref[ReadGuards], int] | None = None
        # Kinds of calls whose last run did nothing on the host, and ran known code alone.
        self._only_compute: set[Hashable] = set()
        self._writes = HostWrites(on_device)

    def forget(self) -> None:
        """Let go of what the code has reached."""
        self._kept = None

    @contextmanager
    def _backward_passes_seen(self, profile: RunProfile | None) -> Iterator[None]:
        """Let a profile see hooks and backward functions, which a GPU has on a thread of torch's."""
        if self._device is None or not has_backward_thread(self._device):
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
        reach: Reach = known or self._reach(least_runs=1, skip=skip)
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
            begun.reach = self._reach(least_runs=1, skip=begun.skip)
            differences = list(begun.before.differences(_stored_names(begun.reach)))
            is_of_guards = self._is_of_guards(begun.reach)
        reach = begun.reach
        run.odd = [] if reach is self._kept_reach else list(reach.odd.values())
        changed = begun.states.changed()
        if begun.guards is not None and is_as_before:
            self._newest_guards = begun.guards
            run.only_computed = profile.only_computes and not changed
            # What is compiled in a run is seen by a profiler alone.
            if begun.needs_profile and run.only_computed and not profile.runs_compiled:
                self._only_compute.add((begun.kind, begun.key))
        elif is_of_guards and self._num_complete > 1:
            self._newest = reach
        self._writes.sum_up(run, differences, reach, profile, changed, begun.kind)

    @property
    def _kept_reach(self) -> Reach | None:
        return None if self._kept is None else self._kept[0]

    def _known_now(self, skip: set[int]) -> tuple[ReadGuards | None, Reach | None]:
        """Return guards that hold, and what the code reaches as long as they do; None if it is to be found.

        To find it anew costs some plain calls. It follows from the code and from what stands in the places that
        this reads, which guards compare: a further kind of calls that runs the same code needs no search.
        """
        if self._kept is None:
            return None, None
        reach, reference, num_codes = self._kept
        guards = reference()
        tables = (reach.whole, reach.objects, reach.modules, reach.tensors)
        if (
            guards is None
            or num_codes != len(self._executed)
            or not all(skip.isdisjoint(table) for table in tables)
            or not guards.holds()
        ):
            return None, None
        return guards, reach

    def _is_of_guards(self, reach: Reach) -> bool:
        """Return whether guards would be made for all that the code reaches, and for nothing else."""
        if reach.met_skipped:
            return False
        return not any(each.has_passing for each in self._executed.values())

    def may_wait(self, profiler: Any) -> bool:
        """Return whether a profiler is that of a watch, which may wait while own code runs."""
        if not isinstance(getattr(profiler, "__self__", None), RunProfile):
            return False
        # From Python 3.12 on, to let the only one of all threads wait changes all code that runs.
        is_not_alone = self._device is not None and has_backward_thread(self._device)
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
                guarded = weakref.ref(guards, lambda _: self.forget())
                self._kept = (reach, guarded, len(self._executed))
            return guards

    def let_go(self) -> None:
        """Let go of what the last run has led to, if there will be no guards for it."""
        self._newest = self._newest_guards = None

    @property
    def num_runs(self) -> int:
        """How many runs were watched."""
        return self._num_runs

    def ran(self, code: CodeType) -> bool:
        """Return whether code ran in a watched run, of torch as well."""
        return id(code) in self._executed

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

    def site_of_item(self, key: Any) -> str:
        """Return `file:line` where the user's code that ran sets an item or attribute of this key.

        If none does, the one line that calls a method which puts one; "" if there is none, or more.
        """
        stores = [
            (site_of(executed.code, store.line), store)
            for executed in self._executed.values()
            if executed.kind is CodeKind.USER
            for store in executed.reads.stores
        ]
        by_key = (one for one, store in stores if store.kind in _BY_KEY and store.key == key)
        calls = {one for one, store in stores if store.kind == "call" and store.key in _PUTS}
        return next(by_key, "".join(calls) if len(calls) == 1 else "")

    def _reach(self, *, least_runs: int, skip: set[int]) -> Reach:
        return Reach(self._step, self._executed.values(), least_runs=least_runs, skip=skip)


_BY_KEY = ("attr", "item")
_PUTS = frozenset({"update", "setdefault", "append", "extend", "insert", "add"})


@contextmanager
def _as_before(paths: list[KeptPath]) -> Iterator[None]:
    """Let plain values stand in the body as they stood before the run."""
    # One that cannot be set must not keep the others from being put back.
    with ExitStack() as stack:
        for path in paths:
            stack.callback(path.set, path.get())
            path.set(path.before)
        yield


def _gradients_of(
    tensors: Iterable[torch.Tensor],
) -> list[tuple[torch.Tensor, TensorWeakRef | None]]:
    """Return all that can have a gradient, each with a weak reference to the one that it has."""
    return [
        (tensor, None if tensor.grad is None else TensorWeakRef(tensor.grad))
        for tensor in tensors
        if tensor.is_leaf and tensor.requires_grad
    ]


def _stored_names(reach: Reach) -> Container[str]:
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
