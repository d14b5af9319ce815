"""The guards, the things put back and the verdicts that `guard_mutants.py` takes away, and who notices."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class GuardMutant:
    """A guard, a thing put back, or a verdict, that is taken away.

    Attributes:
        name: what it guards or puts back.
        function: qualified name of the function that it is in.
        code: of a statement or an expression in it, which stands there once.
        instead: the code in its place.
        footgun: name of a case that notices.
        form: of the case.
    """

    name: str
    function: str
    code: str
    instead: str
    footgun: str
    form: str = "step"

    def __str__(self):
        return self.name


def always(name, function, code, footgun, form="step"):
    """Let a comparison always hold."""
    return GuardMutant(name, function, code, "True", footgun, form)


def never(name, function, code, footgun, form="step"):
    """Let a question for a change never find one."""
    return GuardMutant(name, function, code, "False", footgun, form)


def without(name, function, code, footgun, form="step"):
    """Leave a statement out."""
    is_call = isinstance(ast.parse(code).body[0], ast.Expr)
    return GuardMutant(name, function, code, "None" if is_call else "pass", footgun, form)


GUARDS = [
    # --- what a step's code reads ---
    always(
        "settings of torch",
        "GuardRows.hold",
        "list(map(call, self._asked_first)) == self._answers",
        "default dtype",
    ),
    always(
        "rows of plain values",
        "GuardRows.hold",
        "list(map(list, map(call, self._reads))) == self._expected",
        "memory of a weight replaced",
    ),
    always(
        "rows of objects",
        "GuardRows.hold",
        "all(map(all, map(map, repeat(is_), map(call, self._finds), self._found)))",
        "variable of a closure",
    ),
    always(
        "equal values",
        "Check.holds",
        "now is self.expected or (self.by_value and same(self.expected, now))",
        "attribute",
    ),
    without(
        "entries of dictionaries",
        "BulkChecks.add_place",
        "self._table(owner).add(key, check)",
        "global",
    ),
    without(
        "entries of classes",
        "BulkChecks.add_place",
        "self._table(entries).add(key, check)",
        "attribute of a class",
    ),
    without(
        "cells of closures",
        "BulkChecks.add_place",
        "self._reads.append((getattr, owner, 'cell_contents', check))",
        "variable of a closure",
    ),
    without(
        "entries of dictionaries of the user's class",
        "BulkChecks.add_place",
        "self._reads.append((partial(dict.get, owner), key, MISSING, check))",
        "settings with attributes",
    ),
    without(
        "items of lists",
        "BulkChecks.add_place",
        "self._reads.append((getitem, owner, key, check))",
        "item of a list",
    ),
    without(
        "lengths",
        "BulkChecks.add_length",
        "self._lengths.append(container)",
        "list that grows outside",
    ),
    without(
        "keys of dictionaries",
        "BulkChecks.add_keys",
        "self._table(table).keep_keys(keys)",
        "layer appended",
    ),
    without(
        "attributes of functions",
        "BulkChecks.add_attribute",
        "self._reads.append((getattr, owner, name, check))",
        "default argument replaced",
    ),
    without(
        "what is compared by itself",
        "BulkChecks.add",
        "self._singly.append(check.holds_now if holds is None else holds)",
        "tensor on the host",
    ),
    without(
        "what places hold",
        "ReadGuards._add_place",
        "self._checks.add_place(place, check)",
        "attribute",
    ),
    without(
        "methods of objects",
        "ReadGuards._add_module",
        "self._add_place(Place('dict', entries, 'forward', name=f'{name}.forward', site=''))",
        "method of a part replaced",
    ),
    without(
        "parts of modules",
        "ReadGuards._add_module",
        "self._add_place(Place('dict', parts, key, name=shown_name, site='', holder=module))",
        "layer of a sequence replaced",
    ),
    without(
        "which parts modules have",
        "ReadGuards._add_module",
        "self._add_parts(parts, name)",
        "layer appended",
    ),
    without(
        "functions",
        "ReadGuards._add_function",
        "self._checks.add_attribute(function, part, check)",
        "default argument replaced",
    ),
    always("the environment", "ReadGuards._add_container", "data == copy", "environment variable"),
    always(
        "members of sets", "ReadGuards._add_container", "bool(value == members)", "set of names"
    ),
    always(
        "long lists of numbers",
        "ReadGuards._add_sequence",
        "are_same_items(items, value)",
        "long list of numbers",
    ),
    without(
        "lists of tensors",
        "ReadGuards._compare",
        "self.rows.lists(now, before)",
        "tensor in a list",
    ),
    without(
        "tensors",
        "ReadGuards._add_tensor",
        "self._tensors[id(tensor)] = (tensor, name, site)",
        "memory of a buffer replaced",
    ),
    # --- tensors ---
    without(
        "addresses of tensors",
        "TensorForms.compare_in",
        "rows.equal('addresses of tensors', torch.Tensor.data_ptr, self._tensors)",
        "memory of a weight replaced",
    ),
    always(
        "forms of tensors",
        "TensorForms._forms_hold",
        "list(map(_form_of, self._tensors)) != self._forms",
        "frozen weight",
    ),
    # --- hooks and classes ---
    without(
        "empty tables of hooks",
        "HooksAndClasses.compare_in",
        "rows.equal('empty tables of hooks', any, [self._empty])",
        "hook of a part",
    ),
    always(
        "filled tables of hooks",
        "HooksAndClasses._filled_hold",
        "all(_hooks_in(table) == hooks for table, hooks in self._filled)",
        "hook replaced",
    ),
    never(
        "hooks of tensors",
        "HooksAndClasses._are_no_others",
        "self._hooks_now() != self._hooks",
        "hook of a weight",
    ),
    without(
        "classes of modules",
        "HooksAndClasses.compare_in",
        "rows.equal('classes of modules', type, self._modules)",
        "class of a part",
    ),
    # --- weights, gradients and optimizers ---
    always(
        "gradients that are there",
        "GradientsInPlace.check.check",
        "lie_there(gradients)",
        "gradients that add up, and are replaced",
    ),
    never(
        "gradients that are not there",
        "GradientsInPlace.check.check",
        "not _have(*others)",
        "gradient given by the loop",
    ),
    always(
        "hooks of optimizers",
        "UpdateAsCaptured._has_no_hooks",
        "not has_hooks(self._optimizer)",
        "hook of the optimizer",
    ),
    never(
        "numbers and weights of optimizers",
        "UpdateAsCaptured.change",
        "not are_the_same(self._groups, groups)",
        "momentum",
    ),
    never(
        "tensors in the state of optimizers",
        "UpdateAsCaptured.change",
        "not self._has_its_state()",
        "optimizer state loaded",
    ),
    without(
        "memory of the state of optimizers",
        "UpdateAsCaptured.compare_in",
        "rows.equal(name, torch.Tensor.data_ptr, self._in_memory)",
        "memory of the state replaced",
    ),
    without(
        "shapes of kept tensors",
        "StepGuards.__init__",
        "self.rows.hold_too('shapes of kept tensors', [kept.are_alike])",
        "kept tensor of another shape",
    ),
    without(
        "updates",
        "StepGuards.__init__",
        "updates.compare_in(self.rows)",
        "rate",
    ),
    always(
        "identity of tensors in lists",
        "GuardRows.hold",
        "self._lists == self._lists_now",
        "weight taken out",
    ),
]

PUT_BACK = [
    GuardMutant(
        "random numbers of torch and Python",
        "RandomStates.write",
        "setter(left.pop(name))",
        "left.pop(name)",
        "dropout",
    ),
    without("memory", "DeviceState.restore", "chunk.copy_back(copy)", "running mean in place"),
    without("random numbers", "DeviceState.restore", "self.random.write(self._random)", "dropout"),
    without(
        "gradients",
        "PythonSide.restore",
        "weight.grad = gradient",
        "gradients that add up, and are forgotten",
    ),
    without(
        "kept tensors", "PythonSide.restore", "self.kept.reset()", "running mean in a new tensor"
    ),
    without("optimizers", "PythonSide.restore", "objects.restore()", "rate of AdamW"),
    without(
        "counts of optimizers on the host",
        "_OptimizerObjects.restore",
        "tensor.detach().copy_(copy)",
        "rate of AdamW",
    ),
    GuardMutant(
        "Python before each run as written",
        "Trial._proved",
        "side.restore",
        "lambda: None",
        "running mean in a new tensor",
    ),
    without("the spoilt gradients", "Trial._proved", "spoilt.put_back()", "gradients looked at"),
]


def ahead(name, function, code, writes):
    """Leave a statement out, which a capture ahead of a run needs for a step that writes so."""
    return without(name, function, code, writes, "ahead")


AHEAD = [
    ahead(
        "bytes before the first write",
        "FirstWrites.restore",
        "_bytes_of(storage).copy_(copy)",
        "average",
    ),
    ahead("memory before a run", "Snapshot.restore", "self._memory.restore()", "count"),
    ahead(
        "random numbers before a run",
        "Snapshot.restore",
        "self._random.write(self._states)",
        "noise",
    ),
    ahead("Python before a run", "Snapshot.restore", "self._python.restore()", "gradients_kept"),
    ahead("new state of optimizers", "_keep_new_state", "value.zero_()", "nothing"),
]

VERDICTS = [
    always("a proof", "Verdict.holds", "self._known.holds", "patched builtin"),
    always(
        "a proof of a module",
        "VerdictOnCall.holds",
        "not self._leads_elsewhere and all(one.holds for one in self._verdicts())",
        "patched method",
        "in_place",
    ),
    GuardMutant(
        "checksums",
        "Fingerprints._take_one",
        "(words * self._weights[:len(words)]).view(chunk.num_rows, -1).sum(dim=1)",
        "(words * 0).view(chunk.num_rows, -1).sum(dim=1)",
        "patched builtin",
    ),
    GuardMutant(
        "results", "ProofRun.of", "state.checksum(chunks)", "state.checksum()", "patched builtin"
    ),
    GuardMutant(
        "the node of a replay",
        "_Replayed.backward",
        "(None, None, *ctx.graph.backward(ctx.run, given))",
        "(None, None, *[one if one is None else one * 2 for one in ctx.graph.backward(ctx.run, given)])",
        "plain",
        "in_place",
    ),
    GuardMutant(
        "the node of an audit",
        "PassedOn.backward",
        "(None, given[0])",
        "(None, None if given[0] is None else given[0] * 2)",
        "plain",
        "in_place",
    ),
    without(
        "gradients of an audited module",
        "PassedOn.backward",
        "ctx.note_given(given[0])",
        "patched function in a backward pass",
        "in_place",
    ),
    GuardMutant(
        "dropping graphs", "Audits.end_bad", "self.open = None", "return ''", "patched builtin"
    ),
    always(
        "whether an audit is due",
        "AuditTurn.is_due",
        "not has_come or audits._is_off",
        "patched builtin",
    ),
]
