"""What the code of a step reaches: every place that it names, and what stands there now.

A place is where a name leads to a value: an entry of an object's or a module's dictionary, a
global, a variable of an enclosing function, an item of a list. Nothing of the user's is called to
look there: neither properties nor `__getattr__`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.graphs.reads.arrivals import Arrivals, is_looked_into
from gapless.graphs.reads.code_kinds import CodeKind, is_foreign, site_of
from gapless.graphs.reads.followed_code import FollowedCode
from gapless.graphs.reads.lookups import Lookups
from gapless.graphs.reads.odd_reads import advice_on_arguments, advice_on_call, advice_on_object
from gapless.graphs.reads.value_places import (
    CONTAINERS,
    MISSING,
    Place,
    class_attribute,
    default_of,
    entries_of,
    unwrapped,
)


if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.graphs.reads.chains import Chain, Store
    from gapless.graphs.reads.executed import Executed


_MOST_ROUNDS = 8


class Reach:
    """What code reaches.

    Args:
        step: the step itself.
        executed: the code that ran, by id.
        least_runs: in how many watched runs an argument must have been seen to count.
        skip: ids of objects that are left out, such as the batch.

    Attributes:
        places: where values stand that the code reads or stores, by `Place.id`.
        read: ids of the places that it reads.
        stored: ids of those that it stores to.
        whole: containers that are used as a whole, by id, with name and site.
        objects: objects on the way, with their names, by id.
        modules: modules of torch that are reached, with their names, by id.
        tensors: tensors reached, with name and site, by id.
        compiled: ids of modules whose compiled code runs in place of their own.
        listed: ids of modules of which the code asks for all parameters, buffers or modules.
        states: objects of torch whose methods are named, and arrays of numpy: each with what reads all that
            is compared of it, its name and site.
        functions: functions reached, by id of their code.
        odd: ways to read of the user's code that are not followed.
        codes: all code followed, by id: what ran, and what is followed without having run.
    """

    def __init__(
        self,
        step: object,
        executed: Iterable[Executed],
        *,
        least_runs: int = 1,
        skip: Iterable[int] = (),
    ) -> None:
        self._code = code = FollowedCode(executed)
        self._arrivals = arrivals = Arrivals(code, skip)
        self._lookups = lookups = Lookups(arrivals)
        self.places, self.read, self.stored = arrivals.places, arrivals.read, arrivals.stored
        self.whole, self.objects, self.modules = arrivals.whole, arrivals.objects, arrivals.modules
        self.tensors, self.compiled, self.odd = arrivals.tensors, arrivals.compiled, arrivals.odd
        self.listed, self.states = lookups.listed, arrivals.states
        self.functions, self.codes = code.functions, code.codes
        self._least_runs = least_runs
        # What chains stand for, by id of the code.
        self._memo: dict[int, dict[Chain, list[tuple[Any, str]]]] = {}
        self._root(step)
        self._follow_all()
        self._follow_methods()

    @property
    def met_skipped(self) -> bool:
        """Whether the code came to something that is left out."""
        return self._arrivals.skip.was_met

    def _root(self, step: object) -> None:
        name = getattr(step, "__name__", None) or type(step).__name__
        self._arrivals.note_odd(step, name, advice_on_object(step), "")
        self._arrivals.arrive(step, name, "", in_full=True)
        call = class_attribute(type(step), "__call__")
        if not isinstance(step, FunctionType | MethodType | nn.Module) and call is not None:
            self._code.note_function(unwrapped(call[1]), must_follow=True)

    def _follow_all(self) -> None:
        # The user's own code first: it has the names that people know.
        ran = sorted(self._code.executed.values(), key=lambda each: each.kind is not CodeKind.USER)
        for executed in ran:
            self._code.add(executed)
        self._follow_queue()

    def _follow_queue(self) -> None:
        # Functions found on the way may bind cells of code that was followed before.
        for _ in range(_MOST_ROUNDS):
            while self._code.queue:
                self._follow(self._code.queue.pop(0))
            if not self._code.again:
                break
            self._code.queue = [
                each for key, each in self.codes.items() if key in self._code.again
            ]
        self._code.again = set()

    def _follow_methods(self) -> None:
        # Variables of enclosing functions that these read are found with them alone.
        while self._note_methods():
            self._code.queue = [
                each for key, each in self.codes.items() if key in self._code.again
            ]
            self._follow_queue()

    def _note_methods(self) -> bool:
        """Take note of methods that ran and that no code names, such as `__call__` and `__mul__`.

        Return whether this led to functions that were not known.
        """
        num_known = sum(map(len, self.functions.values()))
        found = (*self.objects.values(), *self.modules.values())
        kinds = {type(value) for value, _ in found} | self._arrivals.functions_of_autograd
        owners = {owner for kind in kinds for owner in type.__getattribute__(kind, "__mro__")}
        for owner in filter(lambda each: not is_foreign(each), owners):
            for key, attribute in list(vars(owner).items()):
                code = getattr(unwrapped(attribute), "__code__", None)
                if code is not None and id(code) in self._code.executed:
                    name = f"{owner.__name__}.{key}"
                    self._arrivals.place("class", owner, key, name, site_of(code, None))
        return sum(map(len, self.functions.values())) > num_known

    def _follow(self, executed: Executed) -> None:
        self._code.again.discard(id(executed.code))
        self._memo.pop(id(executed.code), None)
        self._code.is_blind = id(executed.code) not in self._code.executed
        self._arrivals.is_users = executed.kind is CodeKind.USER
        for chain, line in executed.reads.reads.items():
            values = self._values(executed, chain, line)
            if chain in executed.reads.whole:
                for value, name in values:
                    self._arrivals.use_whole(value, name, site_of(executed.code, line))
                    if issubclass(type(value), Collection) and is_looked_into(type(value)):
                        self._arrivals.use_object_whole(value, name, site_of(executed.code, line))
        for chain in executed.reads.given:
            self._values(executed, chain, executed.reads.reads.get(chain))
        for store in executed.reads.stores:
            self._follow_store(executed, store)
        for chain, line in executed.reads.called.items() if self._arrivals.is_users else ():
            for value, name in self._values(executed, chain, line):
                self._arrivals.note_odd(
                    value, name, advice_on_call(value), site_of(executed.code, line)
                )
                advice = advice_on_arguments(value)
                if advice is not None and self._is_given_an_object(executed, chain, line):
                    self._arrivals.note_odd(value, name, advice, site_of(executed.code, line))

    def _is_given_an_object(self, executed: Executed, function: Chain, line: int) -> bool:
        """Return whether a function is given an object that lasts, whose attributes it may read.

        What another call has returned is taken for made in this one.
        """
        return any(
            entries_of(value) is not None
            and not isinstance(value, (torch.Tensor, FunctionType, type, *CONTAINERS))
            for chain in executed.reads.given.get(function, ())
            if chain.kind != "result" and ("each", None) not in chain.links
            for value, _ in self._values(executed, chain, line)
        )

    def _follow_store(self, executed: Executed, store: Store) -> None:
        """Take note of where a value is stored: whoever stores another there has to be seen."""
        site = site_of(executed.code, store.line)
        owners = [
            (value, name)
            for chain in store.bases
            for value, name in self._values(executed, chain, store.line)
            if id(value) not in self._arrivals.skip and not isinstance(value, torch.Tensor)
        ]
        self._arrivals.is_store = True
        if store.kind == "global":
            self._arrivals.place("dict", executed.names, store.key, store.key, site)
        for value, name in owners:
            if store.kind == "attr":
                self._lookups.attribute(value, store.key, name, site)
            elif store.kind == "item" and isinstance(store.key, str | int):
                self._lookups.item_of(value, store.key, name, site)
        self._arrivals.is_store = False

    def reads(self, place: Place) -> bool:
        """Return whether the code reads a place, or what it is a part of as a whole."""
        wholes = (id(place.owner), id(place.holder))
        return place.id in self.read or any(whole in self.whole for whole in wholes)

    def values_of(self, executed: Executed, chain: Chain) -> list[Any]:
        """Return what a chain stands for."""
        return [value for value, _ in self._values(executed, chain, None)]

    def _values(self, executed: Executed, chain: Chain, line: int | None) -> list[tuple[Any, str]]:
        memo = self._memo.setdefault(id(executed.code), {})
        found = memo.get(chain)
        if found is None:
            memo[chain] = []
            site = site_of(executed.code, line)
            found = memo[chain] = list(self._new_values(executed, chain, line, site))
            for value, name in found if self._arrivals.is_users else ():
                advice = advice_on_object(value)
                if advice is not None and not executed.is_passing(chain, value):
                    self._arrivals.note_odd(value, name, advice, site)
        return found

    def _new_values(
        self, executed: Executed, chain: Chain, line: int | None, site: str
    ) -> Iterator[tuple[Any, str]]:
        if not chain.links:
            yield from self._roots(executed, chain, site)
            return
        base = chain._replace(links=chain.links[:-1])
        kind, key = chain.links[-1]
        for value, name in self._values(executed, base, line):
            if id(value) in self._arrivals.skip:
                continue
            if kind == "attr":
                found = self._lookups.attribute(value, key, name, site)
            elif kind == "item":
                found = self._lookups.item_of(value, key, name, site)
            elif kind == "any":
                found = self._lookups.any_attribute(value, key or "", name, site)
            elif kind == "parts":
                found = self._lookups.parts_of(value, name)
                self.listed.update(id(part) for part, _ in found if isinstance(part, nn.Module))
            else:
                found = self._lookups.each(value, name, site)
            yield from found
        yield from self._led_to(executed, chain, site)

    def _led_to(self, executed: Executed, chain: Chain, site: str) -> Iterator[tuple[Any, str]]:
        """Return what objects led to that are gone."""
        led = executed.led.get((chain.root, chain.links))
        if led is not None:
            for value in led.alive(self._least_runs):
                if id(value) not in self._arrivals.skip:
                    name = self._arrivals.name_of(value) or chain.text
                    self._arrivals.arrive(value, name, site)
                    yield value, name

    def _roots(self, executed: Executed, chain: Chain, site: str) -> Iterator[tuple[Any, str]]:
        name = chain.root
        if chain.kind == "argument" or chain.kind == "result":
            yield from self._observed(executed, name, site)
        elif executed.kind is CodeKind.MODULE:
            return
        elif chain.kind == "module":
            yield from self._lookups.imported(name, executed.names.get("__package__"), site)
        elif chain.kind == "cell":
            for function in self.functions.get(id(executed.code), []):
                cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
                for free, cell in cells:
                    if free == name:
                        yield from self._arrivals.place("cell", cell, None, name, site)
        else:
            yield from self._lookups.of_global(executed.names, name, site)

    def _observed(self, executed: Executed, name: str, site: str) -> Iterator[tuple[Any, str]]:
        """Return what an argument was seen to be, and its default."""
        observed = executed.observed.get(name)
        seen = observed.alive(self._least_runs) if observed is not None else []
        given = self._code.given.get((id(executed.code), name), {})
        for value in {id(each): each for each in (*seen, *given.values())}.values():
            if id(value) not in self._arrivals.skip:
                shown = name or type(value).__name__
                if executed.kind is not CodeKind.USER:
                    shown = self._arrivals.name_of(value) or shown
                self._arrivals.arrive(value, shown, site)
                yield value, shown
        for function in self.functions.get(id(executed.code), []) if name else ():
            default = default_of(function, name)
            if default is not MISSING:
                self._arrivals.arrive(default, name, site)
                yield default, name
