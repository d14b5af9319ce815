"""The trees of calls, made quickly: this runs before every replay.

Most calls have a few tensors and plain values as arguments, or one tuple, list or dict of them. Their
tensors are found without a general walk; its nodes are made only if somebody asks for them. The key
of a call is looked up among earlier calls, whose tensors are compared with its own by torch's guards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from gapless.errors import BatchError
from gapless.pipeline.step import Call
from gapless.pipeline.tree.flatten import Tree, flatten, left_alone
from gapless.pipeline.tree.tensor_layout import comparison_with, shape_of


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


# Types of plain values for which equality in Python is enough for one key, within a type.
_SIMPLE: Final = frozenset((int, bool, str, bytes, type(None), torch.dtype, torch.device))

# Keys that are kept at one time.
_MAX_KNOWN = 1_000

# Known layouts of one structure and first shape: each is compared in turn, so a long list would be slow.
_MAX_CANDIDATES = 4

# Replaces the parts of a container of tensors alone: a dict of gradients would make long forms.
_ONLY_TENSORS: Final = frozenset((torch.Tensor,))

# Keys of a dictionary that are not told apart by their types.
_ONLY_TEXTS: Final = frozenset((str,))

# Separates arguments by position from those by name.
_NAMED: Final = "named"


class CallTrees:
    """Makes the trees of one function's calls."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[Callable[..., bool], Hashable]]] = {}
        self._num_known = 0

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        """Return the tree of a call.

        Sync: Does not block the host.
        """
        leaves: list[torch.Tensor] = []
        form = form_of(args, kwargs, leaves)
        call = Call(args, kwargs)
        if form is None:
            try:
                return flatten(call)
            except BatchError:
                return left_alone(call, (*args, *kwargs.values())[0])
        tree = Tree(call, leaves, [], None, form)
        tree.known_key = self._key_of(tree, form)
        return tree

    def _key_of(self, tree: Tree, form: Hashable) -> Hashable:
        place = (form, shape_of(tree.leaves[0]) if tree.leaves else None)
        candidates = self._known.get(place)
        if candidates is None:
            if self._num_known >= _MAX_KNOWN:
                self._known = {}
                self._num_known = 0
            candidates = self._known[place] = []
        for number, (check, key) in enumerate(candidates):
            if check(*tree.leaves):
                if number:
                    candidates.insert(0, candidates.pop(number))
                return key
        key = _Key(tree.key())
        comparison = comparison_with(tree.leaves)
        if comparison is not None:
            candidates.insert(0, (comparison, key))
            self._num_known += 1
            if len(candidates) > _MAX_CANDIDATES:
                candidates.pop()
        return key


class _Key:
    """A key whose hash is known."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Hashable) -> None:
        self._value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or self._value == getattr(other, "_value", other)


def form_of(
    args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[torch.Tensor]
) -> Hashable | None:
    """Return what a call is apart from its tensors, which are added to `leaves`.

    None if it has other parts than tensors, plain values, and flat containers of them.
    """
    form: list[Any] = []
    if not _add_all(args, form, leaves):
        return None
    if kwargs:
        form.extend((_NAMED, *kwargs))
        if not _add_all(kwargs.values(), form, leaves):
            return None
    return tuple(form)


def _add_all(values: Any, form: list[Any], leaves: list[torch.Tensor]) -> bool:
    for value in values:
        type_ = type(value)
        if type_ is torch.Tensor:
            leaves.append(value)
            form.append(type_)
        elif type_ is tuple or type_ is list:
            form.append(type_)
            form.append(len(value))
            if set(map(type, value)) == _ONLY_TENSORS:
                leaves.extend(value)
                form.append(_ONLY_TENSORS)
            elif not _add_flat(value, form, leaves):
                return False
        elif type_ is dict:
            form.append(type_)
            form.append(len(value))
            # 1, True and 1.0 are equal.
            form.extend(value if set(map(type, value)) == _ONLY_TEXTS else map(_name_of, value))
            if set(map(type, value.values())) == _ONLY_TENSORS:
                leaves.extend(value.values())
                form.append(_ONLY_TENSORS)
            elif not _add_flat(value.values(), form, leaves):
                return False
        elif not _add_plain(value, type_, form):
            return False
    return True


def _add_flat(values: Any, form: list[Any], leaves: list[torch.Tensor]) -> bool:
    for value in values:
        type_ = type(value)
        if type_ is torch.Tensor:
            leaves.append(value)
            form.append(type_)
        elif not _add_plain(value, type_, form):
            return False
    return True


def _add_plain(value: Any, type_: type, form: list[Any]) -> bool:
    if type_ in _SIMPLE:
        form.extend((type_, value))
    elif type_ is float:
        form.extend((type_, repr(value)))
    else:
        return False
    return True


def _name_of(name: Any) -> Hashable:
    return name if type(name) is str else (type(name), repr(name))
