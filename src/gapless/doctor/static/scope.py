"""The functions and classes of a file, and how often their code runs."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from gapless.doctor.static.hints import HOST_CLASS, MODULE_CLASS
from gapless.doctor.static.values import (
    ANY_DEVICE_NAME,
    DEVICE_NAME,
    EMPTY,
    HOST,
    MODULE,
    TENSOR,
    UNKNOWN,
    Value,
    dict_of,
    join,
    list_of,
)


# How often code runs. What runs once is not reported.
NEVER = 0  # constructors, and what runs in workers of a loader: their loops do not count either
ONCE = 1
OFTEN = 2

_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_QUIET_METHODS = ("__init__", "__post_init__", "__new__", "setup", "configure_optimizers")
# What such functions do is done for each batch, or a few.
_TAKES_A_STEP = re.compile(r"(^|_)(step|update|learn|optimi[sz]e)(_|$)")
_AROUND_TYPES = frozenset(["torch", "nn", "np", "numpy", "pd", "pathlib", "Optional", "None"])
_ANNOTATED = {
    "Tensor": TENSOR,
    "LongTensor": TENSOR,
    "FloatTensor": TENSOR,
    "BoolTensor": TENSOR,
    "int": HOST,
    "float": HOST,
    "str": HOST,
    "bool": HOST,
    "ndarray": HOST,
    "Path": HOST,
    "dtype": HOST,
    "DataFrame": HOST,
    "Module": MODULE,
    "device": DEVICE_NAME,
}


@dataclass(frozen=True, slots=True)
class Wait:
    """A line at which the host would wait for a GPU."""

    line: int
    cause: str
    call: str
    sure: bool
    function: str


@dataclass(eq=False, repr=False, slots=True)
class Class:
    """A class of the file: its methods, and what its objects' attributes hold."""

    name: str
    bases: tuple[str, ...]
    methods: dict[str, Function] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)
    fields: tuple[str, ...] = ()

    @property
    def is_module(self) -> bool:
        """Whether its objects are modules of torch, as far as one can see."""
        return "forward" in self.methods or any(MODULE_CLASS.search(base) for base in self.bases)

    @property
    def is_on_host(self) -> bool:
        """Whether its methods run on the host, as those of a data set."""
        return any(HOST_CLASS.search(base) for base in (self.name, *self.bases))


@dataclass(eq=False, repr=False, slots=True)
class Function:
    """A function of the file, and what is known of its calls."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    outer: list[dict[str, Value]]
    cls: Class | None = None
    level: int = NEVER
    arguments: dict[str, Value] = field(default_factory=dict)
    defaults: dict[str, Value] = field(default_factory=dict)
    returned: Value | None = None
    waits: dict[int, Wait] = field(default_factory=dict)
    times: int = 0
    is_busy: bool = False
    is_passed_on: bool = False

    @property
    def name(self) -> str:
        """Its name, behind that of its class."""
        return f"{self.cls.name}.{self.node.name}" if self.cls else self.node.name

    def level_by_itself(self) -> int:
        """Return how often it runs where no call is seen: it may be called from any loop."""
        if self.node.name in _QUIET_METHODS or (self.cls is not None and self.cls.is_on_host):
            return NEVER
        return ONCE if self.node.name.startswith("main") else OFTEN

    def trains(self) -> bool:
        """Whether a loop of its own goes backward, and nobody calls it for a few batches at a time."""
        return not _TAKES_A_STEP.search(self.node.name) and any(
            isinstance(one, ast.Attribute) and one.attr == "backward"
            for loop in ast.walk(self.node)
            if isinstance(loop, _LOOPS)
            for one in ast.walk(loop)
        )

    def parameters(self) -> list[ast.arg]:
        """Return those that take a place, without `self`."""
        arguments = [*self.node.args.posonlyargs, *self.node.args.args]
        return arguments[1:] if self._has_self else arguments

    @property
    def _has_self(self) -> bool:
        decorators = [getattr(one, "id", "") for one in self.node.decorator_list]
        return self.cls is not None and "staticmethod" not in decorators

    def note_call(self, given: dict[str, Value], level: int) -> bool:
        """Join what a call passes to what is known; return whether that changed anything."""
        if self.level_by_itself() == NEVER and not self._makes_often():
            level = NEVER
        changed = level > self.level or self.times == 0
        self.level = max(level, self.level)
        for name, value in given.items():
            former = self.arguments.get(name)
            new = value if former is None else join(former, value)
            if new != former:
                self.arguments[name] = new
                changed = True
        return changed

    def _makes_often(self) -> bool:
        """Whether it makes objects that a loop may make again and again: no modules, no data sets."""
        cls = self.cls
        return cls is not None and not (cls.is_module or cls.is_on_host)

    def names_at_start(self) -> dict[str, Value]:
        """Return what its parameters hold when it begins."""
        arguments = self.node.args
        places = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(places) - len(arguments.defaults)) + list(arguments.defaults)
        pairs = [*zip(places, defaults, strict=True)]
        pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        names = {one.arg: self.value_of(one, default) for one, default in pairs}
        names |= {
            name: value for name, value in self.defaults.items() if name not in self.arguments
        }
        if arguments.vararg:
            names[arguments.vararg.arg] = EMPTY
        if arguments.kwarg:
            names[arguments.kwarg.arg] = self.others_given()
        if self._has_self and places:
            names[places[0].arg] = Value("instance", what=self.cls)
        return names

    def others_given(self) -> Value:
        """Return what calls pass by names that no parameter has."""
        own = {one.arg for one in (*self.parameters(), *self.node.args.kwonlyargs)}
        return dict_of(
            [list_of(value) for name, value in self.arguments.items() if name not in own]
        )

    def value_of(self, argument: ast.arg, default: ast.expr | None) -> Value:
        """Return what a parameter holds: what calls pass, what is annotated, or what its default is."""
        given = self.arguments.get(argument.arg)
        if given is not None and given.kind != "unknown":
            return given
        if argument.annotation is not None and (kind := _annotated(argument.annotation)):
            return kind
        if isinstance(default, ast.Constant) and "device" in argument.arg:
            return ANY_DEVICE_NAME
        return UNKNOWN


def _annotated(annotation: ast.expr) -> Value | None:
    """Return what an annotation says: `Tensor | None` is a tensor, `list[Tensor]` nothing that is known."""
    text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    words = set(re.findall(r"\w+", str(text))) - _AROUND_TYPES
    kinds = {_ANNOTATED.get(word) for word in words}
    return kinds.pop() if len(kinds) == 1 else None
