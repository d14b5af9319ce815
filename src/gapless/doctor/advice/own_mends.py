"""Mends in the script's own names, by what it does with a value: a function of the line and of what is around it.

Text and code are for this line: who reads it changes one place. Where no case is known, nothing is
returned, and the mend of the kind holds.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.doctor.advice.causes import Cause

_READS = ("item", "float", "int", "bool", "index", "cpu", "tolist", "format")
_COPIES = ("copy", "pageable copy")
_DRAWS = frozenset({"rand", "randn", "randint", "randperm", "normal"})
_MAKES = _DRAWS | frozenset(
    """
    zeros ones full empty eye arange linspace tensor Tensor FloatTensor LongTensor IntTensor BoolTensor
    """.split()  # noqa: SIM905
)
# Methods of a tensor that people call of a batch before they copy it: each has the same bits on the device.
_OF_A_TENSOR = frozenset(
    """
    long float int bool double half type view reshape flatten squeeze unsqueeze permute transpose t
    contiguous detach clone repeat expand requires_grad_
    """.split()  # noqa: SIM905
)
# They hand out what is there already: a loader's batch, or a part of it.
_HANDS_OUT = frozenset({"next", "__next__", "get", "pop"})
_NO_ENVIRONMENT = re.compile(r"opt|sched|scaler|prof|lr|bar", re.IGNORECASE)
_TAKES_A_SIZE = frozenset(
    {"range", "arange", "zeros", "ones", "full", "expand", "repeat", "split"}
)
_LOGGERS = re.compile(r"^_?(log|logger|logging)$", re.IGNORECASE)
_LOGS = frozenset({"debug", "info", "warning", "error"})
_READING = frozenset({"item", "tolist", "cpu", "numpy", "detach", "float", "int", "bool"})
_ASKS_FOR_NAN = frozenset({"isnan", "isinf", "isfinite", "isneginf", "isposinf"})


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line, and what is around it.

    Attributes:
        statement: that the line is in.
        later: the statements behind it in its block.
        loop: the innermost loop over something around it.
        loader: the name of what that loop goes over, if it has one.
        loader_pins: whether a loader of the file page-locks its batches.
        has_loader: whether the file has one.
    """

    statement: ast.stmt
    later: tuple[ast.stmt, ...] = ()
    loop: ast.For | None = None
    loader: str = ""
    loader_pins: bool = False
    has_loader: bool = False


class Places:
    """Finds the place of each line of a file."""

    def __init__(self, tree: ast.Module) -> None:
        self._found: dict[int, tuple[ast.stmt, tuple[ast.stmt, ...], ast.For | None]] = {}
        self._go_through(tree.body, None)
        loaders = [
            one
            for one in ast.walk(tree)
            if isinstance(one, ast.Call) and ast.unparse(one.func).endswith("DataLoader")
        ]
        self._has_loader = bool(loaders)
        self._pins = any(
            word.arg == "pin_memory" and ast.unparse(word.value) != "False"
            for one in loaders
            for word in one.keywords
        )

    def at(self, line: int) -> Place | None:
        """Return the place of a line; None where no statement is."""
        found = self._found.get(line)
        if found is None:
            return None
        statement, later, loop = found
        return Place(
            statement=statement,
            later=later,
            loop=loop,
            loader=_loader_of(loop),
            loader_pins=self._pins,
            has_loader=self._has_loader,
        )

    def lines_around(self, line: int) -> set[int]:
        """Return the lines of the statement that a line is in; of a block those of its header."""
        statement = self._found[line][0] if line in self._found else None
        return {one for one, (its, _, _) in self._found.items() if its is statement}

    def _go_through(self, body: list[ast.stmt], loop: ast.For | None) -> None:
        for number, one in enumerate(body):
            blocks = [getattr(one, name, None) for name in ("body", "orelse", "finalbody")]
            inner = [block for block in blocks if isinstance(block, list) and block]
            last = one.end_lineno or one.lineno
            if inner:
                last = max(one.lineno, inner[0][0].lineno - 1)
            for line in range(one.lineno, last + 1):
                # Of `if loss.isnan(): break` the condition comes first.
                self._found.setdefault(line, (one, tuple(body[number + 1 :]), loop))
            of_loop = one if isinstance(one, ast.For) else loop
            for block in inner:
                self._go_through(block, of_loop)
            for handler in getattr(one, "handlers", ()):
                self._go_through(handler.body, loop)


def own_mend(cause: Cause, place: Place) -> tuple[str, str] | None:
    """Return a sentence or two and code, in the script's own names; None where no case is known."""
    header = _header(place.statement)
    if cause in _COPIES:
        return _mend_copy(place, header)
    if cause == "validation":
        return _mend_checks(header)
    if cause not in _READS:
        return None
    return (
        _mend_nan_check(place.statement, header)
        or _mend_log(header)
        or _mend_environment(place, header)
        or _mend_bound(place, header)
        or _mend_early_stop(place)
        or _mend_table(header)
        or _mend_sum(place.statement)
        or _mend_results(place.statement)
    )


def _header(statement: ast.stmt) -> ast.AST:
    """Return what a statement itself computes: of a block, its condition or what it goes over."""
    for name in ("test", "iter"):
        if hasattr(statement, name) and hasattr(statement, "body"):
            found: ast.AST = getattr(statement, name)
            return found
    return statement


def _source_of(loop: ast.For) -> ast.expr:
    """Return what a loop goes over, within what numbers it or shows how far it is."""
    source = loop.iter
    while isinstance(source, ast.Call) and source.args:
        if getattr(source.func, "id", getattr(source.func, "attr", "")) not in (
            *("enumerate", "tqdm", "iter"),
        ):
            break
        source = source.args[0]
    return source


def _loader_of(loop: ast.For | None) -> str:
    source = None if loop is None else _source_of(loop)
    return ast.unparse(source) if isinstance(source, ast.Name | ast.Attribute) else ""


def _calls(node: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    """Return name, owner and node of each call in an expression."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            if isinstance(one.func, ast.Attribute):
                yield one.func.attr, ast.unparse(one.func.value), one
            elif isinstance(one.func, ast.Name):
                yield one.func.id, "", one


def _mend_checks(header: ast.AST) -> tuple[str, str] | None:
    """A distribution that is made here checks what it is given."""
    for name, _, call in _calls(header):
        if name[:1].isupper() and not any(one.arg == "validate_args" for one in call.keywords):
            arguments = [ast.unparse(one) for one in (*call.args, *call.keywords)]
            made = f"{ast.unparse(call.func)}({', '.join([*arguments, 'validate_args=False'])})"
            return (
                "Turn the check off once the code works; a NaN is no error there any more.",
                made,
            )
    return None


def _bound_names(statement: ast.AST) -> set[str]:
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return {
        one.id
        for target in targets
        if target is not None
        for one in ast.walk(target)
        if isinstance(one, ast.Name)
    }


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _reads(node: ast.AST) -> bool:
    return any(name in _READING for name, _, _ in _calls(node))


# --- checks for NaN ---

# To put 0.0 in the place of a loss that is NaN would not do: the gradient of torch.where is 0 * NaN, so
# the weights are NaN from then on, and the loss says that all is well.
_STOP = (
    "Read the loss late: a run that diverged stops some steps later, so go back to a checkpoint, not to "
    "its last weights. To skip such a batch and go on, let GradScaler and a fused optimizer leave weights "
    "and state as they are.",
    """\
losses = gapless.DeferredLoss(device, warn_nonfinite=False)
for x, y in loader:
    loss = train_step(x, y)  # without the check
    losses.add(loss)
    losses.latest()  # takes in what has arrived, without a wait
    if losses.first_nonfinite is not None:
        break
losses.drain()
if losses.first_nonfinite is not None:
    raise RuntimeError(f"diverged: {losses.first_nonfinite}")""",
)

_SKIP = (
    "Let GradScaler and a fused optimizer skip the batch on the device: they leave weights and state as "
    "they are where a gradient is not finite. With another optimizer, or for a skip by other rules, the "
    "host must ask.",
    """\
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler(device.type)
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()""",
)


def _mend_nan_check(statement: ast.stmt, header: ast.AST) -> tuple[str, str] | None:
    if not isinstance(statement, ast.If | ast.Assert):
        return None
    asks = any(name in _ASKS_FOR_NAN for name, _, _ in _calls(header))
    test = statement.test
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq):  # `loss != loss`
        asks |= ast.dump(test.left) == ast.dump(test.comparators[0])
    if not asks:
        return None
    return _SKIP if any(isinstance(one, ast.Continue) for one in ast.walk(statement)) else _STOP


# --- values that the host needs ---


def _mend_log(header: ast.AST) -> tuple[str, str] | None:
    for name, owner, call in _calls(header):
        if name in _LOGS and _LOGGERS.match(owner.rpartition(".")[2]) and call.args:
            values = _formatted(call.args[0])
            if values:
                given = ", ".join(_without_read(one) for one in values)
                text = '"' + " ".join(["%s"] * len(values)) + '"'
                return (
                    "The text is made, and the values are read, although the level may be off: give them to "
                    "the logger as arguments, which it formats only if it writes them.",
                    f"{owner}.{name}({text}, {given})",
                )
    return None


def _formatted(text: ast.expr) -> list[ast.expr]:
    if isinstance(text, ast.JoinedStr):
        return [one.value for one in text.values if isinstance(one, ast.FormattedValue)]
    if isinstance(text, ast.Call) and getattr(text.func, "attr", "") == "format":
        return list(text.args)
    return []


def _without_read(node: ast.expr) -> str:
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("item", "tolist", "cpu", "numpy")
    ):
        node = node.func.value
    text = ast.unparse(node)
    return text if text.endswith(".detach()") else f"{text}.detach()"


def _mend_environment(place: Place, header: ast.AST) -> tuple[str, str] | None:
    bound = _bound_names(place.statement)
    for node in (header, *place.later):
        for name, owner, call in _calls(node):
            if name != "step" or not owner or _NO_ENVIRONMENT.search(owner):
                continue
            is_here = node is header and any(map(_reads, call.args))
            if is_here or any(bound & _names(one) for one in call.args):
                return (
                    f"The loop needs this value: {owner}.step runs on the host. One read for each of its "
                    "steps is the least there can be: bring over all that it needs in one tensor, and "
                    "compute what only training needs, such as probabilities and values, without a read.",
                    "",
                )
    return None


def _mend_bound(place: Place, header: ast.AST) -> tuple[str, str] | None:
    bound = _bound_names(place.statement)
    for node in (header, *place.later):
        for part in _bounds(node):
            is_here = node is header and (_reads(part) or not bound)
            if (is_here and part is not node) or bound & _names(part):
                return (
                    "The host needs this number before it can go on, as a bound or a size: keep it on the host "
                    "as well, from before the copy to the device, or use the largest that it can be.",
                    "sizes = lengths.tolist()  # once, before lengths goes to the device",
                )
    return None


def _bounds(node: ast.AST) -> Iterator[ast.AST]:
    """Return the expressions that are bounds of slices, sizes or ranges."""
    for one in ast.walk(node):
        if isinstance(one, ast.Slice):
            yield from (part for part in (one.lower, one.upper) if part is not None)
    for name, _, call in _calls(node):
        if name in _TAKES_A_SIZE:
            yield from (one for one in call.args if not isinstance(one, ast.Constant))


def _mend_early_stop(place: Place) -> tuple[str, str] | None:
    statement = place.statement
    if not isinstance(statement, ast.If) or not any(
        isinstance(one, ast.Break | ast.Return) for one in statement.body
    ):
        return None
    test = ast.unparse(statement.test)
    return (
        "The loop itself depends on it, so the host must know: ask every few steps, or act one step late on "
        "a copy that has arrived meanwhile.",
        f"if step % 10 == 9 and {test}:  # the host waits in every tenth step only\n    break",
    )


def _mend_table(header: ast.AST) -> tuple[str, str] | None:
    """A list of Python's is indexed by a value of the device."""
    for one in ast.walk(header):
        if (
            isinstance(one, ast.Subscript)
            and _reads(one.slice)
            and isinstance(one.value, ast.List)
        ):
            index = next(iter(_calls(one.slice)))[1] or "index"
            return (
                "Keep the table on the device, made once before the loop, and index it there.",
                f"table = torch.tensor({ast.unparse(one.value)}, device=device)  # before the loop\n"
                f"value = table[{index}]",
            )
        if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.ListComp) and _reads(one):
            table = ast.unparse(one.value)
            return (
                "An index may stay on the device, where the table is: index it with the tensor itself; a place "
                "by its value is found by torch.searchsorted.",
                f"{table}[index]  # index: the tensor, not its numbers",
            )
    return None


def _mend_sum(statement: ast.stmt) -> tuple[str, str] | None:
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
        return None
    total = ast.unparse(statement.target)
    for name, owner, _ in _calls(statement.value):
        if name == "item":
            value = ast.unparse(statement.value).replace(f"{owner}.item()", f"{owner}.detach()")
            if isinstance(statement.value, ast.List):
                return (
                    "Keep tensors in the list, and read all of them at once, when they are needed.",
                    f"{total} += {value}  # of the device\n"
                    f"...  # when they are needed\n{total} = torch.stack({total}).tolist()",
                )
            return (
                "Add it up on the device, in its precision, and read the sum once, when it is needed; or read it "
                "late and without a wait with gapless.DeferredLoss.",
                f"{total} += {value}  # a tensor of the device from now on\n"
                f"...  # when it is printed\n{total}.item()",
            )
    return None


def _mend_results(statement: ast.stmt) -> tuple[str, str] | None:
    """A list gets what each step has brought over."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr not in ("append", "extend") or len(call.args) != 1:
        return None
    names = [name for name, _, _ in _calls(call.args[0])]
    is_number = getattr(getattr(call.args[0], "func", None), "attr", "") == "item"
    end = "tolist" if "tolist" in names or is_number else "cpu" if "cpu" in names else ""
    if not end:
        return None
    results = ast.unparse(call.func.value)
    return (
        "Keep results on the device, and bring them over in one copy after the loop.",
        f"{results}.append({_without_read(call.args[0])})\n...  # after the loop\n"
        f"{results} = torch.{'stack' if is_number else 'cat'}({results}).{end}()",
    )


# --- copies to the device ---


def _mend_copy(place: Place, header: ast.AST) -> tuple[str, str] | None:
    for name, owner, call in _calls(header):
        if name not in ("to", "cuda") or not isinstance(call.func, ast.Attribute):
            continue
        where = ast.unparse(call.args[0]) if name == "to" and call.args else "device"
        # What else `to` is told, such as a dtype.
        more = [
            *map(ast.unparse, call.args[1:] if name == "to" else ()),
            *(ast.unparse(one) for one in call.keywords if one.arg != "non_blocking"),
        ]
        root = _root_of(call.func.value)
        if isinstance(root, ast.Call):
            return _mend_made(root, owner, where, more)
        if place.loader and place.loop is not None and not place.loader_pins:
            loop = place.loop
            prefetched = f"gapless.prefetch({place.loader}, {where})"
            source = _in_place_of(prefetched, _source_of(loop), ast.unparse(loop.iter))
            return (
                f"Let {place.loader} page-lock its batches, pin_memory=True, and copy with non_blocking=True; "
                "or let gapless.prefetch do both, ahead of the loop.",
                f"for {ast.unparse(loop.target)} in {source}:  # and no copy in the loop",
            )
        if place.loader_pins and not isinstance(root, ast.BinOp):
            batch = ast.unparse(root)
            copied = f"{batch}.to({', '.join([where, *more, 'non_blocking=True'])})"
            first = "" if batch == owner else " before anything is computed of it"
            return (
                f"The loader page-locks its batches already: copy with non_blocking=True{first}.",
                _in_place_of(copied, root, owner),
            )
    return None


def _root_of(node: ast.expr) -> ast.expr:
    """Return what a chain of methods and indices begins with: the batch, or a call that makes a tensor."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _OF_A_TENSOR
        ):
            node = node.func.value
        else:
            return node


def _in_place_of(new: str, old: ast.expr, text: str, behind: str = "") -> str:
    return text.replace(ast.unparse(old), new, 1) + behind


def _mend_made(root: ast.Call, owner: str, where: str, more: list[str]) -> tuple[str, str] | None:
    """Return the mend of what a call of this line has made."""
    path = ast.unparse(root.func)
    name = path.rpartition(".")[2]
    if name in _MAKES:
        sentence, code = _mend_made_here(root, name, where)
        moved = f".to({', '.join(more)})" if more else ""
        return sentence, _in_place_of(code, root, owner, moved)
    if path.startswith("torch."):
        return (
            "It was made on the host in this step, so nothing can have page-locked it: do it once before "
            "the loop if it does not change; else fill one page-locked buffer again and again.",
            "buffer = torch.empty(shape, pin_memory=True)  # before the loop\n"
            f"buffer.copy_({owner})\nx = buffer.to({', '.join([where, *more])}, non_blocking=True)",
        )
    if name in _HANDS_OUT:
        return None
    return (
        f"If {path} makes it anew each time, let it make it on the device; if it never changes, copy it once, "
        "before the loop.",
        "",
    )


def _mend_made_here(made: ast.Call, name: str, where: str) -> tuple[str, str]:
    arguments = [ast.unparse(one) for one in (*made.args, *made.keywords)]
    by_class = {"Tensor": "float32", "FloatTensor": "float32", "LongTensor": "int64"}
    if name in by_class or name == "tensor":
        dtype = [f"dtype=torch.{by_class[name]}"] if name in by_class else []
        return (
            "Make it outside of the loop if it does not change; else on the device at once, which is one copy "
            "and a wait as well, but no second tensor.",
            f"torch.tensor({', '.join([*arguments, *dtype, f'device={where}'])})",
        )
    sentence = "Make it on the device at once: nothing is copied then."
    if name in _DRAWS:
        sentence += " The numbers are others: they are drawn by the device's generator."
    return sentence, f"{ast.unparse(made.func)}({', '.join([*arguments, f'device={where}'])})"
