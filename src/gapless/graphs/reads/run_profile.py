"""The profiler of a watched run: which code runs, with what, and which functions made in C it calls."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from contextlib import contextmanager
from types import CodeType, FrameType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.device.torch_gpu import STREAM_TYPES
from gapless.graphs.reads import torch_readers
from gapless.graphs.reads.code_kinds import CodeKind, kind_when_called
from gapless.graphs.reads.code_reads import reads_of
from gapless.graphs.reads.executed import Executed, Observed
from gapless.graphs.reads.host_effects import MOST_FRAMES_BETWEEN, HostEffects
from gapless.graphs.reads.value_places import base_of, entries_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.graphs.reads.failed_look import Look


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
    for chain in (*followed, *changed):
        if chain.kind == "argument":
            executed.observed.setdefault(chain.root, Observed())
    return executed


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


class RunProfile:
    """Sees which code runs, with what, and which functions made in C it calls.

    Args:
        executed: the code that has run so far, by id; what runs is added.
        number: of the run.
        batch: ids of the containers and tensors of its batch. That an argument was one of them says
            nothing about other calls.

    Attributes:
        is_complete: False once torch has begun to compile.
        host: what it did there.
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
        # Until the run is over, what no weak reference can be made to.
        self._held: dict[int, _Held] = {}
        self._other: Any = None
        # What was seen in a role for the first time.
        self._new: list[tuple[Observed, int]] = []
        self._young: set[int] = set()
        self._long: set[tuple[int, ...]] = set()

        # Those around the run, by id; held until it is over, so that no other gets their ids.
        self._around: dict[int, FrameType] = {}
        self.host = HostEffects(self._around)

    @property
    def only_computes(self) -> bool:
        """Whether the run did nothing on the host that was seen, and nothing was compiled in it."""
        return self.is_complete and not self.host

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
            self._around = self.host.around = {}
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
        if not self.is_complete:
            # Torch has begun to compile on the loop's thread; backward passes, on another, go on with it.
            sys.setprofile(None)
            return
        if self._other is not None:
            self._other(frame, event, arg)
        if self._look.failure is not None:
            return
        try:
            kind = self._kind(frame)
            if event == "c_call":
                if kind in _WITH_EFFECTS:
                    self.host.note_c_call(frame, arg)
            elif event == "call":
                self._note_call(frame, kind)
            elif event == "return" and kind is CodeKind.USER:
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
            self.host.note_act(frame)
        elif kind is CodeKind.READING:
            # Torch's own code may: checkpointing asks for the state of the generator.
            self.host.note_act(frame, 1, advice=torch_readers.ADVICE)
        elif kind is CodeKind.FORWARD_MODE:
            self.host.note_forward_mode(frame)
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
        if executed.observed:
            values = frame.f_locals
            for name, observed in executed.observed.items():
                if name in values and not self._is_known(observed, values[name]):
                    self._observe(observed, values[name])
                    self._observe_parts(executed, name, values[name])

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
            for root, links, part in executed.parts_returned(value, code.co_name):
                self._observe(executed.led.setdefault((root, links), Observed()), part)

    def _nearest(self, frame: FrameType | None) -> Executed | None:
        """Return the code that is followed behind a few frames of libraries, such as of contextlib."""
        for _ in range(MOST_FRAMES_BETWEEN):
            if frame is None or id(frame) in self._around:
                return None
            executed = self._executed.get(id(frame.f_code))
            if executed is not None:
                return executed
            frame = frame.f_back
        return None

    def _observe_parts(self, executed: Executed, root: str, value: Any) -> None:
        for links, part in executed.parts_of(root, value):
            self._observe(executed.led.setdefault((root, links), Observed()), part)

    def _observe(self, observed: Observed, value: Any, depth: int = _OBSERVED_DEPTH) -> None:
        # Its type is asked, not the class that it names: what is raised here, the user's code gets.
        is_tuple = issubclass(type(value), tuple)
        if is_tuple or type(value) in _CONTAINERS:
            # Whoever hands it on uses it as a whole; its items stand for it.
            most = _MOST_OBSERVED_ITEMS if depth == _OBSERVED_DEPTH else _MOST_OBSERVED_INSIDE
            if (tuple.__len__(value) if is_tuple else len(value)) <= most and depth:
                base = base_of(value)
                for part in dict.values(value) if base is dict else base.__iter__(value):
                    self._observe(observed, part, depth - 1)
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
            if entries_of(value) is not None or hasattr(type(value), "__slots__"):
                # One for all roles: nobody else is to hold it.
                held = self._held.setdefault(id(value), _Held(value))
                held.roles.append(observed)
                observed.runs[id(value)] = (held, {self._number})


if hasattr(_eval_frame, "skip_code"):
    # The profiler's own code is called while compiled code runs.
    _eval_frame.skip_code(RunProfile.note.__code__)
