"""A second opinion on a step: what TorchDynamo names as read and written, beside what gapless does.

TorchDynamo follows a step's Python in another way, frame by frame. Its graphs are thrown away: what it would
compare before it used one again are reads, and its side effects are writes. It is private to torch and stops
at much of what steps do, so nothing rests on it.
"""

from __future__ import annotations

import builtins
import collections
import re
import warnings
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.compare.plain_loop import move
from gapless.compare.take_steps import require_batches
from gapless.device.numerics import seed_generators
from gapless.device.torch_private import trace_with_dynamo
from gapless.graphs.reads.code_kinds import FOREIGN_PACKAGES, CodeKind, is_foreign, kind_of
from gapless.graphs.reads.host_watch import HostWatch
from gapless.graphs.reads.value_places import HOOK_TABLES, entries_of, tables_of
from gapless.pipeline.loaders import EpochOf, end_kept_workers
from gapless.pipeline.step import SplitStep, call_host_part
from gapless.records.verification import SecondOpinion


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.compare.settings import RunSettings
    from gapless.compare.workload import WorkloadFunction
    from gapless.device.base import Device
    from gapless.device.torch_private import DynamoFrame


# Arguments of functions inside show in two runs.
_NUM_WATCHED = 2

# What leads from an object to a part of it with a name of its own, in the sources of TorchDynamo.
_KEYS = ("member", "index", "idx")

_OF_FUNCTIONS = ("__code__", "__closure__", "__defaults__", "__kwdefaults__")
_OF_CLASSES = ("__class__", "__dict__", "__mro__", "__func__", "fget")
# A module's own tables, whose entries are compared.
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
# Variables of TorchDynamo's own: what a call returned at which it stopped, and modules of functions.
_RESULT, _MODULE = "___stack", "__import_"

# Parts of names that code does not say.
_UNSAID = (None, "cell_contents", "__dict__", *_OF_MODULES)

_NOTHING: Any = object()


def opinion_on_workload(make: WorkloadFunction, settings: RunSettings) -> SecondOpinion:
    """Build a workload anew, and compare what is named of its step on its first batch.

    Args:
        make: builds the workload.
        settings: seed and device.

    Raises:
        UserError: there are no batches.
        Exception: whatever the workload raises.

    Sync: May block the host, as moving a batch and the step do.
    """
    settings.set_numerics(compares=True)
    seed_generators(settings.seed)
    device = settings.device
    workload = make(device.torch_device)
    step: Any = workload.step
    with device.allow_waits():
        try:
            with EpochOf(workload.batches, 1) as epoch:
                batches = [move(batch, device.torch_device) for batch in epoch]
        finally:
            end_kept_workers(workload.batches)
        require_batches(len(batches), done=0)
        call_host_part(step, *batches)
        return second_opinion(step, *batches, device=device)


def second_opinion(step: Any, *args: Any, device: Device) -> SecondOpinion:
    """Run a step twice as gapless watches it and once under TorchDynamo, and compare what they name.

    The step trains, so it must be one that is not needed any more.

    Args:
        step: a function, or an object with `forward` and `backward`.
        args: its arguments, on the device.
        device: where it runs.

    Raises:
        Exception: whatever the step raises as written.

    Sync: Does not block the host, unless the step does.
    """

    def call(seen: Callable[[Any], Any]) -> None:
        if isinstance(step, SplitStep):
            seen(step.backward)(seen(step.forward)(*args))
        else:
            seen(step)(*args)

    watch = HostWatch(
        step,
        on_device=lambda tensor: not device.needs_copy(tensor),
        device=device.torch_device,
        torch_random=device.random_state() is not None,
    )
    written: set[str] = set()
    for _ in range(_NUM_WATCHED):
        with watch.watch(args, {}) as run:
            call(lambda part: part)
        written |= {write.name for write in run.writes} | {path.name for path in run.kept}
    ours = _Ours(watch.guards().named())
    theirs = _Theirs(ours, args)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            failures = trace_with_dynamo(call, theirs.note)
    except Exception as error:  # of a step that runs as written, so it is TorchDynamo's
        failures = [f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0]}"]
    said = {part for name in written for part in _words_in(name)}
    return SecondOpinion(
        both=tuple(sorted(theirs.both)),
        only_dynamo=tuple(sorted(theirs.others)),
        only_gapless=tuple(sorted(ours.not_met())),
        of_updates=tuple(sorted(theirs.of_updates)),
        of_libraries=tuple(sorted(theirs.of_libraries)),
        written=tuple(sorted(written)),
        written_only_by_dynamo=tuple(
            sorted(name for name, word in theirs.written.items() if word not in said)
        ),
        failures=tuple(failures),
    )


def _words_in(name: str) -> list[str]:
    """Return the last two parts of what code writes to, such as `net` and `mean` of `self.net.mean`."""
    return re.findall(r"[^.\[\]'\"]+", name)[-2:]


class _Ours:
    """What guards compare.

    Args:
        named: as `ReadGuards.named` returns it.
    """

    def __init__(self, named: dict[tuple[Any, ...], str]) -> None:
        # A cell is its own place.
        self._named = {
            place[:2] if place[0] == "cell" else place: name for place, name in named.items()
        }
        self._met: set[tuple[Any, ...]] = set()

    def has(self, places: list[tuple[Any, ...]]) -> bool:
        """Return whether one of these is compared; it counts as met."""
        found = [place for place in places if place in self._named]
        self._met.update(found)
        return bool(found)

    def not_met(self) -> set[str]:
        """Return the names that nobody asked for."""
        return {name for place, name in self._named.items() if place not in self._met}


class _Theirs:
    """What TorchDynamo names, sorted by who else does.

    Args:
        ours: what guards compare.
        batch: arguments of the step.
    """

    def __init__(self, ours: _Ours, batch: tuple[Any, ...]) -> None:
        self._ours = ours
        self._batch = {id(one) for one in batch}
        self.both: set[str] = set()
        self.others: set[str] = set()
        self.of_updates: set[str] = set()
        self.of_libraries: set[str] = set()
        self.written: dict[str, str] = {}

    def note(self, frame: DynamoFrame) -> None:
        """Sort what a frame reads and writes."""
        values = _Values(frame)
        for source in frame.read:
            name, places = _name_of(source), values.places_of(source)
            held_by = [values.of(one) for one in _chain_of(source)]
            method = held_by[0].__func__ if isinstance(held_by[0], MethodType) else None
            if not places or self._batch & set(map(id, held_by)):
                continue
            if self._ours.has(places):
                self.both.add(name)
            elif _is_of_an_update(source, values):
                self.of_updates.add(name)
            elif values.is_of_a_library or any(map(_is_of_a_library, [*held_by, method])):
                self.of_libraries.add(name)
            else:
                self.others.add(name)
        for source in frame.written:
            is_result = _root_of(source).startswith(_RESULT)
            if not is_result and not _is_of_an_update(source, values):
                self.written[_name_of(source)] = _word_of(source)


def _name_of(source: Any) -> str:
    try:
        return str(source.name if isinstance(source.name, str) else source.name())
    except NotImplementedError:
        # A cell of the function's own stands in no expression.
        return _root_of(source)


def _chain_of(source: Any) -> Iterator[Any]:
    """Return a source and those that it is reached by."""
    while source is not None:
        yield source
        source = getattr(source, "base", None)


def _root_of(source: Any) -> str:
    """Return the name of the variable that leads to a source, "" if it is none."""
    *_, root = _chain_of(source)
    return str(getattr(root, "local_name", None) or getattr(root, "global_name", ""))


def _word_of(source: Any) -> str:
    """Return by which name code writes there; of a module's table, by that of the module."""
    keys = [key for one in _chain_of(source) if (key := _key_of(one)) not in _UNSAID]
    return str(keys[0] if keys else _root_of(source))


def _key_of(source: Any) -> Any:
    """Return by what a source stands in its base, None if it is the base seen in another way."""
    return next((getattr(source, name) for name in _KEYS if hasattr(source, name)), None)


class _Values:
    """What the sources of a frame lead to, while the frame is traced.

    Args:
        frame: that is traced.

    Attributes:
        is_of_a_library: whether its code is.
    """

    def __init__(self, frame: DynamoFrame) -> None:
        self._frame = frame
        self._known: dict[str, Any] = {}
        self.is_of_a_library = kind_of(frame.code, frame.scope["G"]) is not CodeKind.USER

    def of(self, source: Any) -> Any:
        """Return what a source leads to; `_NOTHING` if that cannot be said."""
        name = _name_of(source)
        if name not in self._known:
            try:
                # Their names are expressions.
                self._known[name] = eval(name, dict(self._frame.scope))
            except Exception:
                self._known[name] = _NOTHING
        return self._known[name]

    def places_of(self, source: Any) -> list[tuple[Any, ...]]:
        """Return what guards may call this; empty for arguments and for what a call has returned."""
        base, key = getattr(source, "base", None), _key_of(source)
        if _root_of(source).startswith(_RESULT):
            return []
        if base is None:
            if hasattr(source, "global_name"):
                is_own = source.global_name.startswith(_MODULE)
                names = id(self._frame.scope["G"])
                return [] if is_own else [("dict", names, source.global_name)]
            cell = self._frame.closure.get(getattr(source, "local_name", ""))
            return [] if cell is None else [("cell", id(cell))]
        if key is None or key in _OF_CLASSES:
            return self.places_of(base)
        if _key_of(base) in HOOK_TABLES:
            return self.places_of(base)
        if _key_of(base) == "__dict__" or type(base).__name__ == "TypeDictSource":
            base = base.base
        return _places_in(self.of(base), key)


def _places_in(owner: Any, key: Any) -> list[tuple[Any, ...]]:
    """Return what guards may call an entry, item or attribute of an object."""
    if isinstance(owner, CellType):
        return [("cell", id(owner))]
    if isinstance(owner, dict | MappingProxyType):
        return [("dict", id(owner), key), ("whole", id(owner))]
    if isinstance(owner, list | tuple | collections.deque | set):
        from_end = key - len(owner) if isinstance(key, int) else key
        return [("item", id(owner), key), ("item", id(owner), from_end), ("whole", id(owner))]
    if isinstance(owner, FunctionType) and key in _OF_FUNCTIONS:
        return [("function", id(owner))]
    if isinstance(owner, nn.Module) and key in _OF_MODULES:
        return [("module", id(owner))]
    tables = [table for table in (entries_of(owner), *tables_of(owner)) if table is not None]
    found: list[tuple[Any, ...]] = [("dict", id(table), key) for table in tables]
    for kind in (owner if isinstance(owner, type) else type(owner)).__mro__:
        found.append(("class", id(kind), key))
        if key in vars(kind):
            found.append(("slot", id(owner), vars(kind)[key]))
    return found


def _is_of_an_update(source: Any, values: _Values) -> bool:
    """Return whether this is a gradient, or of an optimizer: both have guards of their own."""
    return any(
        _key_of(one) == "grad" or isinstance(values.of(one), torch.optim.Optimizer)
        for one in _chain_of(source)
    )


def _is_of_a_library(value: Any) -> bool:
    """Return whether what stands in a value is taken not to be replaced."""
    if value is vars(builtins):
        return True
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in FOREIGN_PACKAGES
    if isinstance(value, FunctionType | BuiltinFunctionType):
        return str(value.__module__).partition(".")[0] in FOREIGN_PACKAGES
    return isinstance(value, type) and is_foreign(value)
