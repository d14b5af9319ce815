"""What a name may hold, as far as a look at the syntax can tell."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Value:
    """One of few kinds of values.

    Attributes:
        kind: one of the names below.
        form: of a tensor: "mask" where it is of booleans; "hint" where only its name says that it is one. Of a module:
            "torch" where it is of torch's own. Of a list: "dict", "tuple". Of the host: "array". Of
            what is unknown: "mask" where it was compared.
        of: of a list, or a loader: what its elements are; of a module: what it returns.
        what: of what is imported, or made by a class of torch: its name, such as "torch.optim.Adam"; of
            functions and classes of the file, and what these make: the function or class.
        parts: of a tuple: what each of its elements is.
    """

    kind: str
    form: str = ""
    of: Value | None = None
    what: object = None
    parts: tuple[Value, ...] = ()

    @property
    def held(self) -> Value:
        """What a list holds; else itself."""
        return self.of if self.kind == "list" and self.of is not None else self


UNKNOWN = Value("unknown")
NONE = Value("none")
HOST = Value("host")  # a number, a string: it never waits
ARRAY = Value("host", "array")  # of numpy
UNKNOWN_MASK = Value("unknown", "mask")  # a comparison of who knows what

TENSOR = Value("tensor")  # a tensor, or most likely one; who knows where
HINT = Value("tensor", "hint")  # only its name says so
HOST_TENSOR = Value("host tensor")
PINNED = Value("pinned")
DEVICE = Value("device")
OUTPUT = Value("output")  # of a model on the device: tensors there, or a structure that holds some
MASK = Value("device", "mask")

DEVICE_NAME = Value("device name")  # may name the GPU
CPU_NAME = Value("cpu name")
ANY_DEVICE_NAME = Value("any device name")

EMPTY = Value("list")
MODULE = Value("module", of=TENSOR)  # not moved, as far as one can see

TENSORS = frozenset(["tensor", "host tensor", "pinned", "device", "output"])
ON_DEVICE = frozenset(["device", "output"])


def tuple_of(parts: list[Value]) -> Value:
    """Return a tuple with these elements."""
    if not parts:
        return EMPTY
    joined = parts[0]
    for one in parts[1:]:
        joined = join(joined, one)
    return Value("list", "tuple", joined, parts=tuple(parts))


def is_host_index(index: Value) -> bool:
    """Whether an index is a list, an array or a tensor of the host, which goes to the device first."""
    if index.kind == "list":
        of = index.of
        return index.form == "" and of is not None and of.kind in ("host", "host tensor")
    return index == ARRAY or index.kind in ("host tensor", "pinned")


def list_of(element: Value | None) -> Value:
    """Return a list, tuple or set whose elements are alike."""
    return Value("list", of=element)


def dict_of(parts: list[Value]) -> Value:
    """Return a dict with the values of all these lists and dicts."""
    of: Value | None = None
    for part in parts:
        if part.of is not None:
            of = part.of if of is None else join(of, part.of)
    return Value("list", "dict", of)


def named(path: str) -> Value:
    """Return what an import binds."""
    return Value("named", what=path)


def element_of(value: Value) -> Value:
    """Return what iterating over a value, or an index, yields."""
    if value.kind == "list":
        return value.of or UNKNOWN
    if value.kind in TENSORS:
        return replace(value, form="mask" if value.form == "mask" else "")
    if value.kind == "host":
        return HOST
    return value if value.kind == "module" else UNKNOWN


def each_of(value: Value) -> Value:
    """Return what a loop over a value goes over: of a dict, its keys."""
    return HOST if value.kind == "list" and value.form == "dict" else element_of(value)


def pairs_of(value: Value) -> Value:
    """Return a list of such values, each behind a name or a number."""
    return list_of(tuple_of([HOST, value]))


def is_mask(index: Value) -> bool:
    """Whether an index chooses elements by booleans, so that their number is known on the device alone."""
    return index.form == "mask" and index.kind in ("device", "output", "tensor")


def join(one: Value, other: Value) -> Value:
    """Return what holds of both: a name has one value on one path, and the other on another."""
    if one is other or one == other:
        return one
    if one.kind == "none" or other.kind == "none":  # a use that None would survive says so itself
        return other if one.kind == "none" else one
    kinds = {one.kind, other.kind}
    if len(kinds) == 1:
        return _join_alike(one, other)
    if kinds == {"device name", "cpu name"}:  # the GPU where there is one
        return DEVICE_NAME
    if kinds <= TENSORS or kinds == {"host", "device"}:
        return TENSOR
    return UNKNOWN


def _join_alike(one: Value, other: Value) -> Value:
    if one.kind in ("list", "module"):
        both = one.of and other.of and join(one.of, other.of)
        what = one.what if one.what == other.what else None
        form = one.form if one.form == other.form else ""
        # Of tuples that are not as long, what both have: a function may return more if it is asked to.
        parts = tuple(map(join, one.parts, other.parts))
        return Value(one.kind, form, both or one.of or other.of, what, parts)
    if one.kind in TENSORS:
        return Value(one.kind, "mask" if one.form == other.form == "mask" else "")
    if one.kind == "named":  # `torch.cuda.FloatTensor if cuda else torch.FloatTensor`
        return next((of for of in (one, other) if str(of.what).startswith("torch.cuda.")), UNKNOWN)
    return HOST if one.kind == "host" else UNKNOWN


def strongest(values: list[Value]) -> Value:
    """Return where an operation on all these is computed: a tensor on the device decides."""
    kinds = {value.held.kind for value in values}
    if not kinds:
        return UNKNOWN
    if "device" in kinds:
        return DEVICE
    if "output" in kinds:
        return OUTPUT
    if "tensor" in kinds:
        return TENSOR
    if kinds <= {"host", "none", "host tensor", "pinned", "list"} and kinds & {
        "host tensor",
        "pinned",
    }:
        return HOST_TENSOR
    return HOST if kinds <= {"host", "none"} else UNKNOWN
