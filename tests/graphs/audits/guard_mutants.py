"""Delete any guard, and a case tells.

Each mutant changes one piece of code: what a guard compares, what an audit or a proof puts back, or what a
verdict says. It names a case of the page of footguns that notices. Code is found by what it says, wherever it
stands in `gapless.graphs`.

    python -m graphs.audits.guard_mutants [TEXT]    judge all, or those whose name contains a text
"""

from __future__ import annotations

import ast
import contextlib
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from ample_room import AMPLE
from gapless.graphs import account, audit
from graphs.audits.ahead_of_a_run import WRITES, wrong_ahead
from graphs.audits.footgun_classes import FOOTGUNS
from graphs.audits.footguns import EITHER, GUARDED, judged
from graphs.audits.mutants_of_guards import AHEAD, GUARDS, PUT_BACK, VERDICTS
from simulation.judging import give_code
from simulation.mutations import SOURCE, unlike


@cache
def _sources():
    """Return the text of all modules of the room, by their paths."""
    paths = sorted((SOURCE / "graphs").rglob("*.py"))
    return {path: path.read_text(encoding="utf-8") for path in paths}


def _alone(code):
    """Return a statement, or the expression that it consists of."""
    (statement,) = ast.parse(code).body
    return statement.value if isinstance(statement, ast.Expr) else statement


class _Replaced(ast.NodeTransformer):
    """Puts code in the place of equal code in one function."""

    def __init__(self, mutant):
        self.num = 0
        self._function, self._inside = mutant.function, []
        self._code = ast.unparse(_alone(mutant.code))
        self._kind, self._instead = type(_alone(mutant.code)), mutant.instead

    def visit(self, node):
        is_scope = isinstance(node, ast.ClassDef | ast.FunctionDef)
        if is_scope:
            self._inside.append(node.name)
        try:
            if type(node) is self._kind and self._is_meant(node):
                self.num += 1
                return ast.fix_missing_locations(ast.copy_location(_alone(self._instead), node))
            return self.generic_visit(node)
        finally:
            if is_scope:
                self._inside.pop()

    def _is_meant(self, node):
        inside = ".".join(self._inside)
        is_there = inside == self._function or inside.startswith(f"{self._function}.")
        return is_there and ast.unparse(node) == self._code


def places(mutant):
    """Return the modules that have its code, by their paths: trees as they are and with the mutant in them."""
    kind = mutant.function.split(".")[0]
    found = {}
    for path, text in _sources().items():
        if not (f"class {kind}" in text or f"def {kind}" in text):
            continue
        change = _Replaced(mutant)
        new = change.visit(ast.parse(text))
        if change.num:
            assert change.num == 1, f"{mutant}: its code stands {change.num} times in {path}"
            found[path] = ast.parse(text), new
    assert found, f"{mutant}: no `{mutant.code}` in {mutant.function}"
    return found


def changed_code(mutant):
    """Return pairs of codes of functions, as they are and with the mutant in them."""
    return [
        pair
        for path, trees in places(mutant).items()
        for pair in unlike(*(compile(tree, str(path), "exec") for tree in trees))
    ]


@contextlib.contextmanager
def broken(mutant):
    """Let the code of the process be that of a mutant."""
    take_back = give_code(changed_code(mutant))
    try:
        yield
    finally:
        take_back()


@cache
def _case(name):
    """Return a case by its name, of which replays must not differ."""
    (found,) = [one for one in FOOTGUNS if one.name == name]
    return replace(found, expect=GUARDED, expect_of={}) if found.expect == EITHER else found


def _said(mutant, folder):
    if mutant.form == "ahead":
        (writes,) = [one for one in WRITES if one.__name__ == mutant.footgun]
        return wrong_ahead(writes, folder)
    return judged(_case(mutant.footgun), mutant.form, folder)


# What cases say of the code as it is, by name and form.
_known: dict[tuple[str, str], list[str]] = {}


def noticed(mutant, folder):
    """Return what its case says of a mutant and not of the code as it is; nothing if it is not noticed."""
    key = mutant.footgun, mutant.form
    if key not in _known:
        _known[key] = _said(mutant, folder)
    with broken(mutant):
        try:
            said = _said(mutant, folder)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]
    return [words for words in said if words not in _known[key]]


def main(chosen=""):
    """Judge mutants, and print who noticed; return the exit code."""
    vars(account).update(AMPLE)
    audit.DEFAULT_EVERY = None
    mutants = [one for one in (*GUARDS, *PUT_BACK, *AHEAD, *VERDICTS) if chosen in one.name]
    num = 0
    folder = Path(tempfile.mkdtemp())
    for mutant in mutants:
        said = noticed(mutant, folder)
        num += bool(said)
        case = f"{mutant.footgun} ({mutant.form})"
        print(f"| {mutant.name} | {case} | {'; '.join(said)[:120] or 'SURVIVED'} |", flush=True)
    print(f"{num}/{len(mutants)} noticed")
    return 0 if mutants and num == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
