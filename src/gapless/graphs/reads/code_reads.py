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
from types import CodeType
from typing import TYPE_CHECKING

from gapless.graphs.reads.chains import Chain, each_of, not_too_many
from gapless.graphs.reads.code_calls import GETS, Calls, Scope
from gapless.graphs.reads.operand_stack import (
    BUILDS,
    NO_CONSTANT,
    NULL,
    OF_OPERATOR,
    RESULT,
    TO_ONE,
    UNKNOWN,
    UPDATES,
    OperandStack,
    Value,
    begin_of,
)


if TYPE_CHECKING:
    from gapless.graphs.reads.chains import CodeReads


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
        known = _KNOWN[number] = (dropped, _Follower(code, Scope()).run())
    return known[1]


_OPERATORS = ("COMPARE_OP", "UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_POSITIVE")

_JUMPS_BACK = ("JUMP_BACKWARD", "POP_JUMP_B")
_LIST_TO_TUPLE = 6  # the intrinsic function of Python 3.12
_ENDS = {"RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "RETURN_CONST", "JUMP_FORWARD",
         "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}  # fmt: skip


class _Follower:
    """Follows the instructions of one code object."""

    def __init__(self, code: CodeType, scope: Scope) -> None:
        self._code = code
        self._scope = scope
        self._ops = OperandStack(code.co_firstlineno)
        self._calls = Calls(code, scope, self._ops)
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
            self._ops.values, self._ops.at = [], {}
            was_end = False
            for instruction in instructions:
                was_end = self._follow(instruction, after_end=was_end)
        for constant in self._code.co_consts:
            if isinstance(constant, str) and constant.isidentifier():
                self._ops.out.names.add(constant)

        return self._ops.out

    def _follow(self, at: dis.Instruction, *, after_end: bool) -> bool:
        line = at.positions.lineno if at.positions is not None else None
        self._ops.line = line or self._ops.line
        waiting = self._ops.at.pop(at.offset, None)
        if waiting is not None:
            self._ops.join(waiting, replace=after_end)
        elif after_end:
            self._ops.values = []
        self._apply(at)
        if at.opcode in dis.hasjrel or at.opcode in dis.hasjabs:
            self._ops.remember(at)
        return at.opname in _ENDS

    def _apply(self, at: dis.Instruction) -> None:
        name = at.opname
        method = getattr(self, f"_on_{name.lower()}", None)
        if method is not None:
            method(at)
        elif name in TO_ONE:
            for _ in range(TO_ONE[name]):
                self._ops.use(self._ops.pop())
            self._ops.values.append(OF_OPERATOR if name in _OPERATORS else UNKNOWN)
        elif name in BUILDS:
            self._build(at.arg or 0)
        elif name in UPDATES:
            self._use_into(at)
        else:
            self._ops.by_effect(at)

    def _on_binary_op(self, at: dis.Instruction) -> None:
        if at.argrepr == "[]":
            self._on_binary_subscr(at)
            return
        right, left = self._ops.pop(), self._ops.pop()
        self._ops.use(right)
        self._ops.use(left)
        begin = begin_of(left) if at.argrepr in ("+", "+=", "%", "%=") else ""
        # What `%` fills in is not known.
        begin = begin.partition("%")[0] if at.argrepr.startswith("%") else begin
        self._ops.push(OF_OPERATOR.chains, begin=begin)

    def _on_jump_if_true_or_pop(self, at: dis.Instruction) -> None:
        """Whoever jumps takes the value along."""
        if isinstance(at.argval, int):
            self._ops.at.setdefault(at.argval, list(self._ops.values))
        self._ops.use(self._ops.pop())

    _on_jump_if_false_or_pop = _on_jump_if_true_or_pop

    # --- loads ---

    def _on_load_const(self, at: dis.Instruction) -> None:
        code = at.argval if isinstance(at.argval, CodeType) else None
        self._ops.values.append(Value(constant=at.argval, code=code))

    _on_load_small_int = _on_load_const

    def _on_push_null(self, _at: dis.Instruction) -> None:
        self._ops.values.append(NULL)

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
        self._ops.read(chains)
        self._ops.push(chains, code=self._codes.get(name))

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
        self._ops.values.append(Value(constant=at.argval))

    def _on_load_global(self, at: dis.Instruction) -> None:
        if (at.arg or 0) & 1 and _NULL_FIRST:
            self._ops.values.append(NULL)
        self._on_load_name(at)
        if (at.arg or 0) & 1 and not _NULL_FIRST:
            self._ops.values.append(NULL)

    def _on_load_name(self, at: dis.Instruction) -> None:
        chains = frozenset({Chain("global", at.argval)})
        if at.opname == "LOAD_NAME":
            # Code for `eval` may be given its caller's variables.
            chains |= {Chain("argument", at.argval)}
        self._ops.read(chains)
        self._ops.push(chains)

    def _on_load_attr(self, at: dis.Instruction) -> None:
        if _has_method_flag(at):
            self._on_load_method(at)
            return
        base = self._ops.pop()
        chains = frozenset(chain.then("attr", at.argval) for chain in base.chains)
        self._ops.read(chains)
        if at.argval in GETS:
            # Called later, or by others: with which keys, nobody sees.
            self._ops.out.whole |= base.chains
        self._ops.push(chains)

    def _on_load_method(self, at: dis.Instruction) -> None:
        base = self._ops.pop()
        chains = frozenset(chain.then("attr", at.argval) for chain in base.chains)
        self._ops.push(chains, method=(base.chains, at.argval))
        self._ops.values.append(NULL)

    def _on_load_super_attr(self, at: dis.Instruction) -> None:
        for _ in range(3):
            self._ops.pop()
        self._ops.values.append(OF_OPERATOR)
        if (at.arg or 0) & 1:
            self._ops.values.append(NULL)

    def _on_binary_subscr(self, _at: dis.Instruction) -> None:
        index, base = self._ops.pop(), self._ops.pop()
        self._ops.use(index)
        key = index.constant
        if isinstance(key, str | int):
            chains = frozenset(chain.then("item", key) for chain in base.chains)
            self._ops.read(chains)
        else:
            self._ops.use(base)
            chains = each_of(base.chains)
        self._ops.push(chains)

    # --- stores ---

    def _assign(self, name: str, value: Value) -> None:
        self._locals[name] = not_too_many(self._locals.get(name, frozenset()) | value.chains)
        if value.code is not None:
            self._codes[name] = value.code

    def _on_store_fast(self, at: dis.Instruction) -> None:
        if isinstance(at.argval, tuple):
            if at.opname == "STORE_FAST_LOAD_FAST":
                self._assign(at.argval[0], self._ops.pop())
                self._load(at.argval[1])
                return
            for name in at.argval:
                self._assign(name, self._ops.pop())
        else:
            self._assign(at.argval, self._ops.pop())

    _on_store_fast_store_fast = _on_store_fast_load_fast = _on_store_fast

    def _on_store_deref(self, at: dis.Instruction) -> None:
        value = self._ops.pop()
        if at.argval in self._code.co_freevars:
            self._ops.use(value)
            if at.argval not in self._scope.cells:
                self._ops.store("cell", frozenset(), at.argval)
        else:
            self._assign(at.argval, value)

    def _on_store_global(self, at: dis.Instruction) -> None:
        self._ops.use(self._ops.pop())
        self._ops.store("global", frozenset(), at.argval)

    def _on_store_attr(self, at: dis.Instruction) -> None:
        self._on_delete_attr(at)
        self._ops.use(self._ops.pop())

    def _on_store_subscr(self, at: dis.Instruction) -> None:
        self._on_delete_subscr(at)
        self._ops.use(self._ops.pop())

    def _on_delete_subscr(self, _at: dis.Instruction) -> None:
        index, base = self._ops.pop(), self._ops.pop()
        self._ops.use(index)
        key = None if index.constant is NO_CONSTANT else index.constant
        self._ops.store("item", base.chains, key)

    def _on_delete_attr(self, at: dis.Instruction) -> None:
        self._ops.out.names.add(at.argval)
        self._ops.store("attr", self._ops.pop().chains, at.argval)

    def _on_delete_global(self, at: dis.Instruction) -> None:
        self._ops.store("global", frozenset(), at.argval)

    # --- calls ---

    def _on_kw_names(self, at: dis.Instruction) -> None:
        pass

    _on_precall = _on_kw_names

    def _on_call(self, at: dis.Instruction) -> None:
        arguments = [self._ops.pop() for _ in range(at.arg or 0)][::-1]
        self._calls.call([self._ops.pop(), self._ops.pop()][::-1], arguments, self._enter)

    def _on_call_kw(self, at: dis.Instruction) -> None:
        self._ops.pop()
        self._on_call(at)

    def _on_call_function_ex(self, at: dis.Instruction) -> None:
        arguments = [self._ops.pop() for _ in range(1 + ((at.arg or 0) & 1))][::-1]
        self._calls.call([self._ops.pop(), self._ops.pop()][::-1], arguments, self._enter)

    def _on_make_function(self, at: dis.Instruction) -> None:
        code = self._ops.pop().code
        for flag in (8, 4, 2, 1):
            if (at.arg or 0) & flag:
                value = self._ops.pop()
                if flag != 8:
                    self._ops.use(value)
        self._ops.values.append(Value(code=code))
        # It may be called from anywhere, with anything.
        self._enter(code, [])

    def _on_set_function_attribute(self, _at: dis.Instruction) -> None:
        function = self._ops.pop()
        self._ops.pop()
        self._ops.values.append(function)

    def _enter(self, code: CodeType | None, arguments: list[Value]) -> None:
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
        self._ops.out.take_in(_Follower(code, Scope(cells, given)).run())

    # --- the rest ---

    def _build(self, num: int) -> None:
        values = [self._ops.pop() for _ in range(num)]
        first = values[-1] if values else UNKNOWN
        for value in values:
            self._ops.out.whole.update(value.chains)
        chains: frozenset[Chain] = frozenset().union(*(value.chains for value in values))
        code = next((value.code for value in values if value.code is not None), None)
        self._ops.push(chains, code=code, begin=begin_of(first))

    def _on_build_map(self, at: dis.Instruction) -> None:
        self._build(2 * (at.arg or 0))

    def _on_build_const_key_map(self, at: dis.Instruction) -> None:
        self._build((at.arg or 0) + 1)

    def _on_list_to_tuple(self, _at: dis.Instruction) -> None:
        pass

    def _on_call_intrinsic_1(self, at: dis.Instruction) -> None:
        if at.arg != _LIST_TO_TUPLE:
            self._ops.use(self._ops.pop())
            self._ops.values.append(OF_OPERATOR)

    def _on_format_value(self, at: dis.Instruction) -> None:
        if (at.arg or 0) & 4:
            self._ops.use(self._ops.pop())
        self._ops.use(self._ops.pop())
        self._ops.values.append(UNKNOWN)

    def _use_into(self, at: dis.Instruction) -> None:
        value = self._ops.pop()
        self._ops.use(value)
        depth = at.arg or 1
        if len(self._ops.values) >= depth:
            old = self._ops.values[-depth]
            self._ops.values[-depth] = old._replace(
                chains=not_too_many(old.chains | each_of(value.chains))
            )

    def _on_get_iter(self, _at: dis.Instruction) -> None:
        value = self._ops.pop()
        self._ops.use(value)
        self._ops.push(value.chains)

    _on_get_yield_from_iter = _on_get_iter

    def _on_for_iter(self, _at: dis.Instruction) -> None:
        chains = self._ops.values[-1].chains if self._ops.values else frozenset()
        self._ops.push(each_of(chains))

    def _on_unpack_sequence(self, at: dis.Instruction) -> None:
        value = self._ops.pop()
        self._ops.use(value)
        for _ in range(at.arg or 0):
            self._ops.push(each_of(value.chains))

    def _on_unpack_ex(self, at: dis.Instruction) -> None:
        value = self._ops.pop()
        self._ops.use(value)
        arg = at.arg or 0
        for _ in range((arg & 0xFF) + (arg >> 8) + 1):
            self._ops.push(each_of(value.chains))

    def _on_match_class(self, at: dis.Instruction) -> None:
        names, kind, subject = self._ops.pop(), self._ops.pop(), self._ops.pop()
        self._ops.read(kind.chains)
        given = names.constant if isinstance(names.constant, tuple) else ()
        # Which attributes stand for positions, the class says.
        keys = (*given, "__dict__") if at.arg else given
        chains = frozenset(chain.then("attr", key) for chain in subject.chains for key in keys)
        self._ops.read(chains)
        self._ops.out.whole |= chains
        self._ops.push(chains)

    def _on_before_with(self, _at: dis.Instruction) -> None:
        value = self._ops.pop()
        self._ops.push(frozenset())
        self._ops.push(value.chains | {RESULT})

    def _on_copy(self, at: dis.Instruction) -> None:
        depth = at.arg or 1
        self._ops.values.append(
            self._ops.values[-depth] if len(self._ops.values) >= depth else UNKNOWN
        )

    def _on_swap(self, at: dis.Instruction) -> None:
        depth = at.arg or 2
        if len(self._ops.values) >= depth:
            stack = self._ops.values
            stack[-1], stack[-depth] = stack[-depth], stack[-1]

    def _on_pop_top(self, _at: dis.Instruction) -> None:
        self._ops.pop()

    def _on_import_from(self, at: dis.Instruction) -> None:
        base = self._ops.values[-1] if self._ops.values else UNKNOWN
        chains = frozenset(chain.then("attr", at.argval) for chain in base.chains)
        self._ops.read(chains)
        self._ops.push(chains)

    def _on_import_name(self, at: dis.Instruction) -> None:
        names, level = self._ops.pop().constant, self._ops.pop().constant
        dots = "." * level if isinstance(level, int) else ""
        # `import a.b` gives `a`, and `from a.b import c` looks into `b`.
        is_leaf = bool(names) and isinstance(names, tuple)
        name = dots + at.argval if is_leaf else at.argval.partition(".")[0]
        chains = frozenset({Chain("module", name)})
        self._ops.read(chains)
        self._ops.push(chains)


_LOADS_METHODS_AS_ATTRIBUTES = sys.version_info >= (3, 12)
_NULL_FIRST = "KW_NAMES" in dis.opmap  # 3.11 and 3.12


def _has_method_flag(at: dis.Instruction) -> bool:
    """Return whether an instruction loads an attribute in order to call it."""
    return _LOADS_METHODS_AS_ATTRIBUTES and bool((at.arg or 0) & 1)
