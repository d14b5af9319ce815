"""What the bytecode of a function names: chains such as `self.config.alpha`, read or stored.

The instructions are followed once, in order, with a stack of what each value may be. A value is
known by chains: where it starts (an argument, a global, a variable of an enclosing function, the
result of a call), and the attributes and items that lead to it. Branches are joined, calls are not
entered, except functions that are defined inside.
"""

from __future__ import annotations

import dis
import sys
import weakref
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal, NamedTuple, TypeAlias


RootKind: TypeAlias = Literal["argument", "global", "cell", "module", "result"]

# A step along a chain: ("attr", name), ("item", constant), ("each", None), any item of a container,
# ("parts", None), any module or tensor of a module, ("any", begin), any attribute whose name, made at
# run time, begins so, or ("super", None), an object whose
# attributes are looked up in its classes.
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
        words = [self.root or ("sys.modules" if self.kind == "module" else "(...)")]
        for kind, key in self.links:
            words.append({"attr": f".{key}", "item": f"[{key!r}]", "super": ""}.get(kind, "[...]"))
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
        results: variables that may hold what a call returned, or what was found behind that.
    """

    reads: dict[Chain, int] = field(default_factory=dict)
    whole: set[Chain] = field(default_factory=set)
    stores: list[Store] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    stores_any_name: bool = False
    given: dict[Chain, set[Chain]] = field(default_factory=dict)
    called: dict[Chain, int] = field(default_factory=dict)
    results: set[str] = field(default_factory=set)


_GETS = ("get", "setdefault")

_STORING = frozenset(Chain("global", name) for name in ("setattr", "delattr", "vars"))

# Methods of modules that return its parts.
_PARTS = frozenset(
    [
        "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules",
        "children", "named_children", "get_submodule", "get_parameter", "get_buffer",
    ]
)  # fmt: skip

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
_MOST_LINKS = 10


# Of code that lives, by its id: to compare code objects takes longer than a look.
_KNOWN: dict[int, tuple[weakref.ref[CodeType], CodeReads]] = {}


def reads_of(code: CodeType) -> CodeReads:
    """Return what a code object names; takes about a millisecond for 100 lines, once.

    Others have the same object: it is not to be changed.
    """
    known = _KNOWN.get(id(code))
    if known is None or known[0]() is not code:
        number = id(code)
        dropped = weakref.ref(code, lambda _: _KNOWN.pop(number, None))
        known = _KNOWN[number] = (dropped, _Follower(code, _Scope()).run())
    return known[1]


def compares_objects(code: CodeType) -> bool:
    """Return whether a code object asks whether two things are the same one, neither of them a constant."""
    before = ""
    for at in dis.get_instructions(code):
        if at.opname == "IS_OP" and before != "LOAD_CONST":
            return True
        if (
            at.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD")
            and at.argval in _IDENTITIES
        ):
            return True
        if at.opname not in ("EXTENDED_ARG", "CACHE", "PRECALL"):
            before = at.opname
    return False


# What tells one object from another: `id`, and `is_` and `is_not` of `operator`.
_IDENTITIES = ("id", "is_", "is_not")


@dataclass
class _Scope:
    """What names of enclosing functions stand for, for a function that is defined inside."""

    cells: dict[str, frozenset[Chain]] = field(default_factory=dict)
    arguments: dict[str, frozenset[Chain]] = field(default_factory=dict)


_NO_CONSTANT: Any = object()


class _Value(NamedTuple):
    chains: frozenset[Chain] = frozenset()
    constant: Any = _NO_CONSTANT
    # Of a text that is made at run time.
    begin: str = ""
    code: CodeType | None = None
    method: tuple[frozenset[Chain], str] | None = None


_UNKNOWN = _Value()
_OPERATORS = ("COMPARE_OP", "UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_POSITIVE")
_NULL = _Value(constant=object())
_RESULT = Chain("result", "")
# An operator of the user's may return an object.
_OF_OPERATOR = _Value(frozenset({_RESULT}))

# How many values an instruction takes from the stack and puts on it, where it is not the number of
# values that the stack loses.
_TO_ONE = dict.fromkeys(("COMPARE_OP", "IS_OP", "CONTAINS_OP"), 2) | {"BINARY_SLICE": 3}
_BUILDS = {"BUILD_TUPLE", "BUILD_LIST", "BUILD_SET", "BUILD_STRING", "BUILD_SLICE"}
_UPDATES = {"LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "LIST_APPEND", "SET_ADD"}
_TO_ONE |= dict.fromkeys(
    (
        "GET_AWAITABLE", "GET_LEN", "UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_NOT",
        "UNARY_POSITIVE", "TO_BOOL", "CONVERT_VALUE", "FORMAT_SIMPLE", "YIELD_VALUE",
    ),
    1,
)  # fmt: skip
_JUMPS_BACK = ("JUMP_BACKWARD", "POP_JUMP_B")
_LIST_TO_TUPLE = 6  # the intrinsic function of Python 3.12
_ENDS = {"RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "RETURN_CONST", "JUMP_FORWARD",
         "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}  # fmt: skip


class _Follower:
    """Follows the instructions of one code object."""

    def __init__(self, code: CodeType, scope: _Scope) -> None:
        self._code = code
        self._scope = scope
        self._out = CodeReads()
        self._line = code.co_firstlineno
        self._stack: list[_Value] = []
        self._at: dict[int, list[_Value]] = {}
        num = code.co_argcount + code.co_kwonlyargcount
        num += bool(code.co_flags & 4) + bool(code.co_flags & 8)
        self._arguments = set(code.co_varnames[:num])
        self._locals: dict[str, frozenset[Chain]] = {}
        self._codes: dict[str, CodeType] = {}

    def run(self) -> CodeReads:
        instructions = list(dis.get_instructions(self._code))
        has_loops = any(at.opname.startswith(_JUMPS_BACK) for at in instructions)
        # Twice: a loop reads what its body has stored, a function inside what is stored after it.
        for _ in range(2 if has_loops or self._code.co_cellvars else 1):
            self._stack, self._at = [], {}
            was_end = False
            for instruction in instructions:
                was_end = self._follow(instruction, after_end=was_end)
        for constant in self._code.co_consts:
            if isinstance(constant, str) and constant.isidentifier():
                self._out.names.add(constant)
        self._out.results |= {
            name
            for name, chains in self._locals.items()
            if any(chain.kind == "result" for chain in chains)
        }
        return self._out

    def _follow(self, at: dis.Instruction, *, after_end: bool) -> bool:
        line = at.positions.lineno if at.positions is not None else None
        self._line = line or self._line
        waiting = self._at.pop(at.offset, None)
        if waiting is not None:
            self._join(waiting, replace=after_end)
        elif after_end:
            self._stack = []
        self._apply(at)
        if at.opcode in dis.hasjrel or at.opcode in dis.hasjabs:
            self._remember(at)
        return at.opname in _ENDS

    def _apply(self, at: dis.Instruction) -> None:
        name = at.opname
        method = getattr(self, f"_on_{name.lower()}", None)
        if method is not None:
            method(at)
        elif name in _TO_ONE:
            for _ in range(_TO_ONE[name]):
                self._use(self._pop())
            self._stack.append(_OF_OPERATOR if name in _OPERATORS else _UNKNOWN)
        elif name in _BUILDS:
            self._build(at.arg or 0)
        elif name in _UPDATES:
            self._use_into(at)
        else:
            self._by_effect(at)

    def _on_binary_op(self, at: dis.Instruction) -> None:
        if at.argrepr == "[]":
            self._on_binary_subscr(at)
            return
        right, left = self._pop(), self._pop()
        self._use(right)
        self._use(left)
        begin = _begin_of(left) if at.argrepr in ("+", "+=", "%", "%=") else ""
        # What `%` fills in is not known.
        begin = begin.partition("%")[0] if at.argrepr.startswith("%") else begin
        self._push(_OF_OPERATOR.chains, begin=begin)

    # --- the stack ---

    def _pop(self) -> _Value:
        return self._stack.pop() if self._stack else _UNKNOWN

    def _remember(self, at: dis.Instruction) -> None:
        target = at.argval
        if isinstance(target, int) and target > at.offset and target not in self._at:
            stack = list(self._stack)
            if at.opname == "FOR_ITER":
                stack = stack[:-2]
            self._at[target] = stack

    def _join(self, other: list[_Value], *, replace: bool) -> None:
        if replace or len(other) != len(self._stack):
            self._stack = list(other)
            return
        self._stack = [
            mine if mine == theirs else _Value(_some(mine.chains | theirs.chains))
            for mine, theirs in zip(self._stack, other, strict=True)
        ]

    def _by_effect(self, at: dis.Instruction) -> None:
        try:
            effect = dis.stack_effect(at.opcode, at.arg, jump=False)
        except ValueError:
            effect = 0
        for _ in range(-effect):
            self._use(self._pop())
        self._stack.extend([_UNKNOWN] * effect)

    def _use(self, value: _Value) -> None:
        """Note that a value is used as a whole."""
        if value.method is not None:
            self._read(value.chains)
        self._out.whole.update(value.chains)

    def _read(self, chains: frozenset[Chain]) -> None:
        for chain in chains:
            if chain.kind != "result" or chain.links:
                self._out.reads.setdefault(chain, self._line)

    def _push(self, chains: frozenset[Chain], **more: Any) -> None:
        chains = _some(chain for chain in chains if len(chain.links) <= _MOST_LINKS)
        self._stack.append(_Value(chains, **more))

    def _on_jump_if_true_or_pop(self, at: dis.Instruction) -> None:
        """Whoever jumps takes the value along."""
        if isinstance(at.argval, int):
            self._at.setdefault(at.argval, list(self._stack))
        self._use(self._pop())

    _on_jump_if_false_or_pop = _on_jump_if_true_or_pop

    # --- loads ---

    def _on_load_const(self, at: dis.Instruction) -> None:
        code = at.argval if isinstance(at.argval, CodeType) else None
        self._stack.append(_Value(constant=at.argval, code=code))

    _on_load_small_int = _on_load_const

    def _on_push_null(self, _at: dis.Instruction) -> None:
        self._stack.append(_NULL)

    def _load(self, name: str) -> None:
        chains = self._locals.get(name, frozenset())
        if name in self._scope.cells:
            chains |= self._scope.cells[name]
        elif name in self._scope.arguments:
            chains |= self._scope.arguments[name]
        elif name in self._arguments:
            chains |= {Chain("argument", name)}
        elif name in self._code.co_freevars:
            chains |= {Chain("cell", name)}
        self._read(chains)
        self._push(chains, code=self._codes.get(name))

    def _on_load_fast(self, at: dis.Instruction) -> None:
        if isinstance(at.argval, tuple):
            for name in at.argval:
                self._load(name)
        else:
            self._load(at.argval)

    _on_load_fast_check = _on_load_fast_and_clear = _on_load_fast_borrow = _on_load_fast
    _on_load_fast_load_fast = _on_load_fast_borrow_load_fast_borrow = _on_load_fast
    _on_load_deref = _on_load_classderef = _on_load_fast

    def _on_load_closure(self, at: dis.Instruction) -> None:
        self._stack.append(_Value(constant=at.argval))

    def _on_load_global(self, at: dis.Instruction) -> None:
        if (at.arg or 0) & 1 and _NULL_FIRST:
            self._stack.append(_NULL)
        self._on_load_name(at)
        if (at.arg or 0) & 1 and not _NULL_FIRST:
            self._stack.append(_NULL)

    def _on_load_name(self, at: dis.Instruction) -> None:
        chains = frozenset({Chain("global", at.argval)})
        if at.opname == "LOAD_NAME":
            # Code for `eval` may be given its caller's variables.
            chains |= {Chain("argument", at.argval)}
        self._read(chains)
        self._push(chains)

    def _on_load_attr(self, at: dis.Instruction) -> None:
        if _has_method_flag(at):
            self._on_load_method(at)
            return
        base = self._pop()
        chains = frozenset(chain.then("attr", at.argval) for chain in base.chains)
        self._read(chains)
        if at.argval in _GETS:
            # Called later, or by others: with which keys, nobody sees.
            self._out.whole |= base.chains
        self._push(chains)

    def _on_load_method(self, at: dis.Instruction) -> None:
        base = self._pop()
        chains = frozenset(chain.then("attr", at.argval) for chain in base.chains)
        self._push(chains, method=(base.chains, at.argval))
        self._stack.append(_NULL)

    def _on_load_super_attr(self, at: dis.Instruction) -> None:
        own, _, _ = self._pop(), self._pop(), self._pop()
        supers = frozenset(chain.then("super") for chain in own.chains)
        chains = frozenset(chain.then("attr", at.argval) for chain in supers)
        self._read(chains)
        is_method = bool((at.arg or 0) & 1)
        self._push(chains, method=(supers, at.argval) if is_method else None)
        if is_method:
            self._stack.append(_NULL)

    def _on_binary_subscr(self, _at: dis.Instruction) -> None:
        index, base = self._pop(), self._pop()
        self._use(index)
        key = index.constant
        if isinstance(key, str | int):
            chains = frozenset(chain.then("item", key) for chain in base.chains)
            self._read(chains)
        else:
            self._use(base)
            chains = _each(base.chains)
        self._push(chains)

    # --- stores ---

    def _assign(self, name: str, value: _Value) -> None:
        self._locals[name] = _some(self._locals.get(name, frozenset()) | value.chains)
        if value.code is not None:
            self._codes[name] = value.code

    def _on_store_fast(self, at: dis.Instruction) -> None:
        if isinstance(at.argval, tuple):
            if at.opname == "STORE_FAST_LOAD_FAST":
                self._assign(at.argval[0], self._pop())
                self._load(at.argval[1])
                return
            for name in at.argval:
                self._assign(name, self._pop())
        else:
            self._assign(at.argval, self._pop())

    _on_store_fast_store_fast = _on_store_fast_load_fast = _on_store_fast

    def _on_store_deref(self, at: dis.Instruction) -> None:
        value = self._pop()
        if at.argval in self._code.co_freevars:
            self._use(value)
            if at.argval not in self._scope.cells:
                self._store("cell", frozenset(), at.argval)
        else:
            self._assign(at.argval, value)

    def _on_store_global(self, at: dis.Instruction) -> None:
        self._use(self._pop())
        self._store("global", frozenset(), at.argval)

    def _on_store_attr(self, at: dis.Instruction) -> None:
        base = self._pop()
        self._use(self._pop())
        self._out.names.add(at.argval)
        self._store("attr", base.chains, at.argval)

    def _on_store_subscr(self, _at: dis.Instruction) -> None:
        index, base = self._pop(), self._pop()
        self._use(index)
        self._use(self._pop())
        key = None if index.constant is _NO_CONSTANT else index.constant
        self._store("item", base.chains, key)

    def _on_delete_subscr(self, _at: dis.Instruction) -> None:
        index, base = self._pop(), self._pop()
        self._use(index)
        key = None if index.constant is _NO_CONSTANT else index.constant
        self._store("item", base.chains, key)

    def _on_delete_attr(self, at: dis.Instruction) -> None:
        self._out.names.add(at.argval)
        self._store("attr", self._pop().chains, at.argval)

    def _on_delete_global(self, at: dis.Instruction) -> None:
        self._store("global", frozenset(), at.argval)

    def _store(self, kind: str, bases: frozenset[Chain], key: Any) -> None:
        store = Store(kind, bases, key, self._line)
        if store not in self._out.stores:
            self._out.stores.append(store)

    # --- calls ---

    def _on_kw_names(self, at: dis.Instruction) -> None:
        pass

    def _on_precall(self, at: dis.Instruction) -> None:
        pass

    def _on_call(self, at: dis.Instruction) -> None:
        arguments = [self._pop() for _ in range(at.arg or 0)][::-1]
        self._call([self._pop(), self._pop()][::-1], arguments)

    def _on_call_kw(self, at: dis.Instruction) -> None:
        self._pop()
        self._on_call(at)

    def _on_call_function_ex(self, at: dis.Instruction) -> None:
        arguments = [self._pop() for _ in range(1 + ((at.arg or 0) & 1))][::-1]
        self._call([self._pop(), self._pop()][::-1], arguments)

    def _call(self, callee: list[_Value], arguments: list[_Value]) -> None:
        method = next((value.method for value in callee if value.method is not None), None)
        if method is not None and method[1] in _GETS:
            self._call_get(callee, method, arguments)
            return
        names = callee[0].chains | callee[1].chains
        for chain in names:
            self._out.called.setdefault(chain, self._line)
        if self._call_by_name(names, arguments) or self._call_getattribute(method, arguments):
            return
        self._give(names, arguments)
        for value in callee:
            self._read(value.chains)
        callee_chains = [chain for chain in names if len(chain.links) < _MOST_LINKS]
        self._enter_callee(callee, arguments)
        result: set[Chain] = {_RESULT}
        # What is called may be a partial that another call has made of it.
        result |= {chain for chain in callee_chains if chain.links[-1:] == (("each", None),)}
        if method is not None:
            if method[1] in CHANGING_METHODS or method[1].endswith("_"):
                self._store("call", method[0], method[1])
            result |= _each(method[0])
            if method[1] in _PARTS:
                result |= {chain.then("parts") for chain in method[0]}
        for value in arguments:
            self._use(value)
            result |= _each(value.chains)
            if value.code is not None:
                self._enter(value.code, [])
        self._push(frozenset(result))

    def _call_getattribute(
        self, method: tuple[frozenset[Chain], str] | None, arguments: list[_Value]
    ) -> bool:
        """Follow a call of `__getattribute__`; say whether it is one that needs to be followed."""
        if method is None or method[1] != "__getattribute__" or not arguments:
            return False
        name = arguments[-1]
        if not isinstance(name.constant, str) and self._code.co_name.startswith("__getattr"):
            # Whoever has asked for the attribute has named it.
            return False
        # Of the object, or of a class that is given the object.
        bases = arguments[0].chains if len(arguments) > 1 else _without_super(method[0])
        self._attribute_by_name(_Value(bases), name)
        return True

    def _give(self, names: frozenset[Chain], arguments: list[_Value]) -> None:
        """Note what a function is given, and the functions that it is given."""
        given = {chain for value in arguments for chain in value.chains}
        for chain in {*names, *given}:
            if given and chain.kind != "result":
                self._out.given.setdefault(chain, set()).update(given)

    def _call_by_name(self, names: frozenset[Chain], arguments: list[_Value]) -> bool:
        """Follow a call of a built-in function that leads to attributes; say whether it is one."""
        first = arguments[0] if arguments else _UNKNOWN
        if names & _STORING:
            name = arguments[1] if len(arguments) > 1 else _UNKNOWN
            self._out.stores_any_name |= not isinstance(name.constant, str)
        if Chain("global", "getattr") in names or Chain("global", "hasattr") in names:
            name = arguments[1] if len(arguments) > 1 else _UNKNOWN
            if Chain("global", "hasattr") in names or len(arguments) > 2:
                # One that is missing may come later.
                name = name._replace(begin="")
            self._attribute_by_name(first, name)
            for default in arguments[2:]:
                self._use(default)
                self._push(self._pop().chains | default.chains)
        elif Chain("global", "vars") in names and arguments:
            self._attribute_by_name(first, _Value(constant="__dict__"))
        elif Chain("global", "super") in names:
            self._call_super(arguments)
        elif any(chain.last_name == "import_module" for chain in names):
            self._read(names)
            self._use(first)
            self._import(first.constant)
        else:
            return False
        return True

    def _import(self, name: Any) -> None:
        """Follow an import; of a name that is made at run time, any module may be meant."""
        known = isinstance(name, str)
        chain = Chain("module", name) if known else Chain("module", "").then("each")
        self._read(frozenset({chain}))
        self._push(frozenset({chain}))

    def _call_super(self, arguments: list[_Value]) -> None:
        """Follow `super()`, whose attributes are those of the object's classes."""
        if arguments:
            bases = arguments[-1].chains
        else:
            own = self._code.co_varnames[:1]
            bases = frozenset(
                chain for name in own for chain in self._scope.arguments.get(name, ())
            ) or frozenset(Chain("argument", name) for name in own)
        chains = frozenset(chain.then("super") for chain in bases)
        self._read(chains)
        self._push(chains)

    def _call_get(
        self,
        callee: list[_Value],
        method: tuple[frozenset[Chain], str],
        arguments: list[_Value],
    ) -> None:
        """Follow a call of `get` and the like, which of a dictionary reads one item."""
        base, name = method
        if name in CHANGING_METHODS:
            self._store("call", base, name)
        for value in callee:
            self._read(value.chains)
        for value in arguments:
            self._use(value)
        key = arguments[0].constant if arguments else None
        if isinstance(key, str | int):
            chains = frozenset(chain.then("item", key) for chain in base)
            self._read(chains)
            self._out.whole |= chains
        else:
            self._out.whole |= base
            chains = _each(base)
        # A default, which for a context variable is the only one.
        for default in arguments:
            chains |= default.chains
        self._push(chains | {_RESULT})

    def _enter_callee(self, callee: list[_Value], arguments: list[_Value]) -> None:
        if callee[0].code is not None:
            # A comprehension is called with its iterator, which stands where `self` would.
            given = arguments if callee[1] is _NULL else [callee[1], *arguments]
            self._enter(callee[0].code, given)
        elif callee[1].code is not None:
            self._enter(callee[1].code, arguments)

    def _attribute_by_name(self, base: _Value, name: _Value) -> None:
        if isinstance(name.constant, str):
            chains = frozenset(chain.then("attr", name.constant) for chain in base.chains)
        else:
            self._use(name)
            chains = frozenset(chain.then("any", name.begin) for chain in base.chains)
        self._read(chains)
        self._push(chains)

    def _on_make_function(self, at: dis.Instruction) -> None:
        code = self._pop().code
        for flag in (8, 4, 2, 1):
            if (at.arg or 0) & flag:
                value = self._pop()
                if flag != 8:
                    self._use(value)
        self._stack.append(_Value(code=code))
        # It may be called from anywhere, with anything.
        self._enter(code, [])

    def _on_set_function_attribute(self, _at: dis.Instruction) -> None:
        function = self._pop()
        self._pop()
        self._stack.append(function)

    def _enter(self, code: CodeType | None, arguments: list[_Value]) -> None:
        """Take in what a function that is defined here names."""
        if code is None or code.co_name == "<module>":
            return
        cells = {}
        for name in code.co_freevars:
            if name in self._scope.cells:
                cells[name] = self._scope.cells[name]
            elif name not in self._code.co_freevars:
                own = self._locals.get(name, frozenset())
                if name in self._scope.arguments:
                    own |= self._scope.arguments[name]
                elif name in self._arguments:
                    own |= {Chain("argument", name)}
                cells[name] = own
        names = code.co_varnames
        given = {
            name: value.chains for name, value in zip(names, arguments, strict=False)
        } or dict.fromkeys(names[: code.co_argcount + code.co_kwonlyargcount], frozenset())
        found = _Follower(code, _Scope(cells, given)).run()
        for chain, line in found.reads.items():
            self._out.reads.setdefault(chain, line)
        self._out.whole |= found.whole
        self._out.names |= found.names
        for chain, line in found.called.items():
            self._out.called.setdefault(chain, line)
        for function, things in found.given.items():
            self._out.given.setdefault(function, set()).update(things)
        self._out.stores += [store for store in found.stores if store not in self._out.stores]

    # --- the rest ---

    def _build(self, num: int) -> None:
        values = [self._pop() for _ in range(num)]
        first = values[-1] if values else _UNKNOWN
        for value in values:
            self._out.whole.update(value.chains)
        chains: frozenset[Chain] = frozenset().union(*(value.chains for value in values))
        code = next((value.code for value in values if value.code is not None), None)
        self._push(chains, code=code, begin=_begin_of(first))

    def _on_build_map(self, at: dis.Instruction) -> None:
        self._build(2 * (at.arg or 0))

    def _on_build_const_key_map(self, at: dis.Instruction) -> None:
        self._build((at.arg or 0) + 1)

    def _on_list_to_tuple(self, _at: dis.Instruction) -> None:
        pass

    def _on_call_intrinsic_1(self, at: dis.Instruction) -> None:
        if at.arg != _LIST_TO_TUPLE:
            self._use(self._pop())
            self._stack.append(_OF_OPERATOR)

    def _on_format_value(self, at: dis.Instruction) -> None:
        if (at.arg or 0) & 4:
            self._use(self._pop())
        self._use(self._pop())
        self._stack.append(_UNKNOWN)

    def _use_into(self, at: dis.Instruction) -> None:
        value = self._pop()
        self._use(value)
        depth = at.arg or 1
        if len(self._stack) >= depth:
            old = self._stack[-depth]
            self._stack[-depth] = old._replace(chains=_some(old.chains | _each(value.chains)))

    def _on_get_iter(self, _at: dis.Instruction) -> None:
        value = self._pop()
        self._use(value)
        self._push(value.chains)

    _on_get_yield_from_iter = _on_get_iter

    def _on_for_iter(self, _at: dis.Instruction) -> None:
        chains = self._stack[-1].chains if self._stack else frozenset()
        self._push(_each(chains))

    def _on_unpack_sequence(self, at: dis.Instruction) -> None:
        value = self._pop()
        self._use(value)
        for _ in range(at.arg or 0):
            self._push(_each(value.chains))

    def _on_unpack_ex(self, at: dis.Instruction) -> None:
        value = self._pop()
        self._use(value)
        arg = at.arg or 0
        for _ in range((arg & 0xFF) + (arg >> 8) + 1):
            self._push(_each(value.chains))

    def _on_match_class(self, at: dis.Instruction) -> None:
        names, kind, subject = self._pop(), self._pop(), self._pop()
        self._read(kind.chains)
        given = names.constant if isinstance(names.constant, tuple) else ()
        # Which attributes stand for positions, the class says.
        keys = (*given, "__dict__") if at.arg else given
        chains = frozenset(chain.then("attr", key) for chain in subject.chains for key in keys)
        self._read(chains)
        self._out.whole |= chains
        self._push(chains)

    def _on_before_with(self, _at: dis.Instruction) -> None:
        value = self._pop()
        self._push(frozenset())
        self._push(value.chains | {_RESULT})

    def _on_copy(self, at: dis.Instruction) -> None:
        depth = at.arg or 1
        self._stack.append(self._stack[-depth] if len(self._stack) >= depth else _UNKNOWN)

    def _on_swap(self, at: dis.Instruction) -> None:
        depth = at.arg or 2
        if len(self._stack) >= depth:
            stack = self._stack
            stack[-1], stack[-depth] = stack[-depth], stack[-1]

    def _on_pop_top(self, _at: dis.Instruction) -> None:
        self._pop()

    def _on_import_from(self, at: dis.Instruction) -> None:
        base = self._stack[-1] if self._stack else _UNKNOWN
        chains = frozenset(chain.then("attr", at.argval) for chain in base.chains)
        self._read(chains)
        self._push(chains)

    def _on_import_name(self, at: dis.Instruction) -> None:
        names, level = self._pop().constant, self._pop().constant
        dots = "." * level if isinstance(level, int) else ""
        # `import a.b` gives `a`, and `from a.b import c` looks into `b`.
        is_leaf = bool(names) and isinstance(names, tuple)
        self._import(dots + at.argval if is_leaf else at.argval.partition(".")[0])


_LOADS_METHODS_AS_ATTRIBUTES = sys.version_info >= (3, 12)
_NULL_FIRST = "KW_NAMES" in dis.opmap  # 3.11 and 3.12


def _has_method_flag(at: dis.Instruction) -> bool:
    """Return whether an instruction loads an attribute in order to call it."""
    return _LOADS_METHODS_AS_ATTRIBUTES and bool((at.arg or 0) & 1)


def _without_super(chains: frozenset[Chain]) -> frozenset[Chain]:
    return frozenset(
        chain._replace(links=chain.links[:-1]) if chain.links[-1:] == (("super", None),) else chain
        for chain in chains
    )


def _begin_of(text: _Value) -> str:
    """Return how a text begins that is made of this one and others; empty if that is not known."""
    return text.constant if isinstance(text.constant, str) else text.begin


def _each(chains: frozenset[Chain]) -> frozenset[Chain]:
    return frozenset(chain.then("each") for chain in chains)


def _some(chains: Any) -> frozenset[Chain]:
    """Return not too many chains."""
    known: frozenset[Chain] = frozenset(chains)
    if len(known) <= _MOST_CHAINS:
        return known
    return frozenset(sorted(known, key=repr)[:_MOST_CHAINS])
