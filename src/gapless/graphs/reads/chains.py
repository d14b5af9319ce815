"""What code names: chains such as `self.config.alpha`, read or stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias


RootKind: TypeAlias = Literal["argument", "global", "cell", "module", "result"]

# A step along a chain: ("attr", name), ("item", constant), ("each", None), any item of a container,
# ("parts", None), any module or tensor of a module, or ("any", begin), any attribute whose name, made at
# run time, begins so.
Link: TypeAlias = tuple[str, Any]


class Chain(NamedTuple):
    """Where a value comes from.

    Attributes:
        kind: what it starts from.
        root: its name there, "" for the result of a call, and for the table of all modules.
        links: attributes and items from there on.
    """

    kind: RootKind
    root: str
    links: tuple[Link, ...] = ()

    def then(self, kind: str, key: Any = None) -> Chain:
        """Return the chain with one more link."""
        if kind == "each" and self.links[-2:] == (("each", None),) * 2:
            return self
        if kind == "each" and self.links[-1:] == (("parts", None),):
            return self
        return Chain(self.kind, self.root, (*self.links, (kind, key)))

    @property
    def last_name(self) -> Any:
        """The last name or item of the chain."""
        return self.links[-1][1] if self.links else self.root

    @property
    def text(self) -> str:
        """The chain as code, such as `self.sizes[0]`."""
        words = [self.root or "(...)"]
        for kind, key in self.links:
            words.append({"attr": f".{key}", "item": f"[{key!r}]"}.get(kind, "[...]"))
        return "".join(words)


class Store(NamedTuple):
    """An instruction that changes something which may outlive the call.

    Attributes:
        kind: "attr", "item", "global", "cell" or "call" (of a method that may change its object).
        bases: chains of the changed object; none for "global" and "cell".
        key: the attribute, item (None if unknown), variable or method.
        line: of the source.
    """

    kind: str
    bases: frozenset[Chain]
    key: Any
    line: int


@dataclass
class CodeReads:
    """What one function names.

    Attributes:
        reads: every chain that is read, and the line of the first time.
        whole: chains whose value is used in another way than by an attribute or a constant item.
        stores: what it may change.
        names: attribute names that it stores, and its constant strings.
        stores_any_name: whether it may store attributes by names that stand nowhere in it.
        given: functions that are called, or given to one, each with all that the call is given.
        called: functions and classes that are called, and the line of the first time.
    """

    reads: dict[Chain, int] = field(default_factory=dict)
    whole: set[Chain] = field(default_factory=set)
    stores: list[Store] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    stores_any_name: bool = False
    given: dict[Chain, set[Chain]] = field(default_factory=dict)
    called: dict[Chain, int] = field(default_factory=dict)

    def take_in(self, others: CodeReads) -> None:
        """Name what a function inside names, too."""
        for mine, theirs in ((self.reads, others.reads), (self.called, others.called)):
            for chain, line in theirs.items():
                mine.setdefault(chain, line)
        self.whole |= others.whole
        self.names |= others.names
        for function, things in others.given.items():
            self.given.setdefault(function, set()).update(things)
        self.stores += [store for store in others.stores if store not in self.stores]


# Methods of containers that change them; a call of one of them reads nothing that a graph keeps.
CHANGING_METHODS = frozenset(
    [
        "append",
        "appendleft",
        "extend",
        "extendleft",
        "insert",
        "remove",
        "pop",
        "popleft",
        "popitem",
        "clear",
        "sort",
        "reverse",
        "rotate",
        "update",
        "setdefault",
        "add",
        "discard",
        "difference_update",
        "intersection_update",
        "fill",
        "put",
        "put_nowait",
        "subtract",
        "__setitem__",
        "__delitem__",
        "__setattr__",
        "write",
        "writelines",
        "send",
        "set",
    ]
)

_MOST_CHAINS = 64


def each_of(chains: frozenset[Chain]) -> frozenset[Chain]:
    """Return what stands for any item of what chains stand for."""
    return frozenset(chain.then("each") for chain in chains)


def not_too_many(chains: Any) -> frozenset[Chain]:
    """Return not too many chains."""
    known: frozenset[Chain] = frozenset(chains)
    if len(known) <= _MOST_CHAINS:
        return known
    return frozenset(sorted(known, key=repr)[:_MOST_CHAINS])
