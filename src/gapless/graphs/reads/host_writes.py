"""What a watched run has written on the host: which differences are writes, fills or values to be put there again."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.reads.code_kinds import CodeKind, site_of
from gapless.graphs.reads.host_run import HostRun, HostWrite, KeptPath
from gapless.graphs.reads.host_state import OTHER_MEMORY, Difference
from gapless.graphs.reads.inner_states import Text
from gapless.graphs.reads.plain_values import (
    is_number_like,
    is_tensor_tree,
    same,
    same_but_tensors,
    shown,
)
from gapless.graphs.reads.value_places import MISSING, Place, shown_key
from gapless.pipeline.tree.containers import is_object, tensors_inside


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.graphs.reads.chains import Chain, Store
    from gapless.graphs.reads.executed import Executed
    from gapless.graphs.reads.reach import Reach
    from gapless.graphs.reads.run_profile import RunProfile


class HostWrites:
    """Sums up the runs of one step.

    Args:
        on_device: whether a tensor is on the device.
    """

    def __init__(self, on_device: Callable[[torch.Tensor], bool]) -> None:
        self._on_device = on_device
        # By kind of arguments: what its runs have filled, and the plain values they have left.
        self._filled: dict[Any, set[Any]] = {}
        self._left: dict[Any, dict[Any, Any]] = {}

    def sum_up(
        self,
        run: HostRun,
        differences: list[Difference],
        reach: Reach,
        profile: RunProfile,
        random_states: list[str],
        kind: Any,
    ) -> None:
        """Complete a run with what it has written and what can be put there again."""
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
        if not is_tensor_tree(before, self._on_device):
            return False
        # Such as a distribution, of another batch.
        is_another_object = type(before) is type(after) and is_object(after)
        return is_another_object or same_but_tensors(before, after)


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


def _is_left_again(difference: Difference, left: dict[Any, Any]) -> bool:
    """Return whether the last run of the kind has left the same plain value there."""
    place, after = difference.place, difference.after
    if place is None or place.kind in ("class", "context"):
        return False
    is_plain = is_number_like(difference.before) and is_number_like(after)
    return is_plain and same(left.get(place.id, MISSING), after)


def _plain_values_stored(reach: Reach) -> dict[Any, Any]:
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


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Text) else shown(value)


def _advice(difference: Difference) -> str:
    after = difference.after
    if after is OTHER_MEMORY or isinstance(after, torch.nn.Parameter):
        return "write into it with `copy_()`, or change it outside the step"
    if isinstance(after, torch.Tensor):
        return "keep it on the device, or change it in `on_host`"
    if type(after) in (dict, list, set) and not after and type(difference.before) is type(after):
        return "empty the one that there is, by `clear()`"
    return "change it in `on_host`, or outside the step"


class _Stores:
    """Where the code stores what: finds the line for a difference."""

    def __init__(self, reach: Reach) -> None:
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
                if any(value is owner for value in values):
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


def _keys(owner: Any) -> Any:
    return owner if isinstance(owner, dict) else ()
