"""Private names of torch, CPython and frameworks are used in one file each, and nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gapless
from gapless import python_private
from gapless.device import torch_private


SRC = Path(gapless.__file__).parent

# Where a private name is looked up, once, with its reason and with what happens where it is missing.
LOOKED_UP_IN = {
    "device/torch_private.py",  # those of torch
    "python_private.py",  # those of CPython
    "integrations/framework_private.py",  # those of transformers, Accelerate and Lightning
}

# How many uses other files still have. They may only become fewer: write the lower number, or take
# the line out.
STILL: dict[str, int] = {
    "graphs/sharded.py": 1,
    "graphs/replay/batch_changes.py": 1,
    "graphs/reads/batch_reads.py": 2,
    "graphs/in_place/captor.py": 1,
    "graphs/captured_function.py": 1,
    "graphs/proof/capture_failure.py": 1,
    "graphs/capture_settings.py": 1,
    "graphs/reads/code_kinds.py": 5,
    "graphs/reads/code_reads.py": 1,
    "graphs/replay/gradient_graph.py": 2,
    "graphs/modules/gradient_paths.py": 2,
    "graphs/replay/graph_gradients.py": 6,
    "graphs/reads/host_state.py": 8,
    "graphs/reads/inner_states.py": 2,
    "graphs/reads/run_profile.py": 3,
    "graphs/modules/forward_runs.py": 1,
    "graphs/modules/run_again.py": 4,
    "graphs/in_place/module_calls.py": 2,
    "graphs/in_place/module_in_place.py": 3,
    "graphs/reads/module_parts.py": 2,
    "graphs/modules/module_refusals.py": 2,
    "graphs/reads/observation.py": 1,
    "graphs/in_place/optimizer_in_place.py": 2,
    "graphs/proof/packing.py": 2,
    "graphs/updates/rate_outside.py": 2,
    "graphs/reads/arrivals.py": 2,
    "graphs/reads/followed_code.py": 1,
    "graphs/reads/lookups.py": 4,
    "graphs/reads/read_guards.py": 10,
    "graphs/modules/seen_calls.py": 2,
    "graphs/in_place/shared_casts.py": 5,
    "graphs/modules/stand_ins.py": 7,
    "graphs/replay/step_graph.py": 1,
    "graphs/updates/step_replaced.py": 1,
    "graphs/replay/tensor_copies.py": 6,
    "graphs/reads/touched.py": 12,
    "graphs/proof/trial.py": 1,
    "graphs/updates/update_numbers.py": 1,
    "graphs/updates/update_outside.py": 3,
    "graphs/updates/update_rules.py": 4,
    "graphs/reads/value_places.py": 10,
    "graphs/replay/versions.py": 3,
    "graphs/warm_ups.py": 2,
}

# What is no name that anything is looked up by.
TEXTS = {
    "cli/main.py": "_command",  # end of a module's name
    "device/nondeterministic.py": r"_\w+_backward",  # operators
    "doctor/static/torch_names.py": r"torch\._dynamo",  # a module, as scripts name it
    "doctor/trace/chrome_trace.py": "_ptds|_ptsz",  # ends of names of CUDA
    "doctor/lines/wait_cause.py": r"_nll_loss|_tensor(_str)?\.py",  # what tracebacks name
    "integrations/lightning_logs.py": "_step|_epoch",  # ends of names of metrics
    "report/difference_text.py": "_ms",  # end of a key
    "testing/simulated/operator_call.py": "_like",  # end of an operator's name
}

# Of named tuples, whose methods and fields begin so although they are public.
PUBLIC = {"_asdict", "_fields", "_make", "_replace"}

# The names that are looked up, which are somebody else's also where a file has one of the same name.
LOOKED_UP = {one.path.rpartition(".")[2] for one in (*torch_private.NAMES, *python_private.NAMES)}

_PRIVATE = re.compile(r"_(?!_)\w+")
_NAME = re.compile(r"[\w.]+")


def is_private(name):
    return bool(_PRIVATE.fullmatch(name)) and name not in PUBLIC


def chain_of(node):
    """Return the names of `a.b.c`; the first is None where it hangs on something else than a name."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.append(node.id if isinstance(node, ast.Name) else None)
    return names[::-1]


def defined_in(tree):
    """Return all names that a file itself gives to attributes, functions, classes and slots."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
            found |= texts_of(tree, node.id) if node.id == "__slots__" else set()
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            chain = chain_of(node)
            found |= {chain[1]} if chain[0] in ("self", "cls") and len(chain) == 2 else set()
    return found


def texts_of(tree, target):
    assigned = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(one, ast.Name) and one.id == target for one in node.targets)
    ]
    return {
        part.value
        for value in assigned
        for part in ast.walk(value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def imports_of(tree):
    """Return the names in a file that stand for modules and names of others."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("gapless"):
            found |= {one.asname or one.name for one in node.names}
    return found


def private_uses(text, *, no_names="(?!)"):
    """Return the line and the name of each use of somebody else's private name."""
    tree = ast.parse(text)
    own, imported = defined_in(tree) - LOOKED_UP, imports_of(tree)
    for_types = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in ast.walk(node)
    }
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = []
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            chain = chain_of(node)
            start = 2 if chain[0] in ("self", "cls") else 1
            is_theirs = chain[0] in imported
            private = [
                name
                for name in chain[start:]
                if is_private(name) and (is_theirs or name not in own)
            ]
            if private:
                found.append((node.lineno, ".".join(one or "?" for one in chain)))
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("gapless"):
            names = [f"{node.module}.{one.name}" for one in node.names]
            found += [
                (node.lineno, name) for name in names if any(map(is_private, name.split(".")))
            ]
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names if not one.name.startswith("gapless")]
            found += [
                (node.lineno, name) for name in names if any(map(is_private, name.split(".")))
            ]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_name = _NAME.fullmatch(node.value) and node.value not in own
            if (
                is_name
                and not re.fullmatch(no_names, node.value)
                and any(map(is_private, node.value.split(".")))
            ):
                found.append((node.lineno, f'"{node.value}"'))
    return sorted(found)


def uses_by_file():
    """Return the uses of each file of the product that has some."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        name = str(path.relative_to(SRC))
        if name not in LOOKED_UP_IN:
            text = path.read_text(encoding="utf-8")
            found[name] = private_uses(text, no_names=TEXTS.get(name, "(?!)"))
    return {name: uses for name, uses in found.items() if uses}


def test_private_names_are_looked_up_in_one_file():
    """A name that a release may take away is found by reading one file, not fifty."""
    elsewhere = uses_by_file()
    counts = {name: len(uses) for name, uses in elsewhere.items()}

    more = [
        f"{name}:{line} {what}"
        for name, uses in elsewhere.items()
        if counts[name] > STILL.get(name, 0)
        for line, what in uses
    ]
    assert more == [], "look them up in " + " or ".join(sorted(LOOKED_UP_IN))
    assert counts == STILL, "a file has fewer than the list says: write the lower number"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch\ntorch._C._sleep()", ["torch._C._sleep"]),
        ("import torch\ncore = torch._C\ncore._sleep()", ["torch._C", "core._sleep"]),
        ("from torch._utils import Wrapper", ["torch._utils.Wrapper"]),
        ("from torch.cuda import _gpu_trace as trace", ["torch.cuda._gpu_trace"]),
        ("import torch._dynamo", ["torch._dynamo"]),
        ("def f(iterator):\n    return iterator._workers", ["iterator._workers"]),
        ("getattr(iterator, '_workers', ())", ['"_workers"']),
        ("patches.put(holder, '_next_data', f)", ['"_next_data"']),
        ("sys.modules.get('torch._dynamo.utils')", ['"torch._dynamo.utils"']),
        ("import sys\nsys._getframe(1)", ["sys._getframe"]),
        ("next(x)._version", ["?._version"]),
        ("class A:\n    def f(self):\n        self._it._x", ["self._it._x"]),
        (
            "class A:\n    def f(self):\n        self._x = 1\n    def g(self, other):\n        other._x",
            [],
        ),
        ("class A:\n    __slots__ = ('_x',)\n    def g(self, other):\n        other._x", []),
        ("import torch\n_C = 1\ntorch._C.f", ["torch._C.f"]),
        ("pair._replace(a=1)", []),
        ("'_not a name'", []),
        ("from gapless.doctor import _x", []),
        ("if TYPE_CHECKING:\n    from _typeshed import X", []),
    ],
)
def test_what_counts_as_a_use(code, expected):
    """By attribute, by import and by text; a file's own attributes are no use."""
    assert [what for _, what in private_uses(code)] == expected


def test_texts_that_are_no_names_are_there():
    """The list of exceptions has none for which there is no text."""
    unused = [
        name
        for name, pattern in TEXTS.items()
        if private_uses((SRC / name).read_text(encoding="utf-8"))
        == private_uses((SRC / name).read_text(encoding="utf-8"), no_names=pattern)
    ]

    assert unused == []
