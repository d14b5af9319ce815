"""What is replaced in the whole process is listed, and put back."""

from __future__ import annotations

import ast
import gc
import re
import sys
import threading
import warnings
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import dataloader

from gapless import scripts, unnoticed
from gapless.cli.progress import TrainingProgress
from gapless.device import cuda_waits
from gapless.device.autocast_blocks import at_end_of_block, block_of_autocast
from gapless.doctor.lines.backward_lines import BackwardLinesPass
from gapless.doctor.lines.sites import SitesPass
from gapless.doctor.trace.profiler import TimesPass
from gapless.doctor.watching.step_hooks import StepHooks
from gapless.doctor.watching.step_source import StepSource
from gapless.doctor.watching.torch_import import TorchImport
from gapless.graphs import interludes
from gapless.graphs.compiled_layers import LayerCompiler
from gapless.nmt.run_folder.disk_space import DiskTroubles
from gapless.nmt.run_folder.logs import RunLogs
from gapless.ranks.leaving import errors_end_all
from gapless.ranks.user_process_group import note_holder
from gapless.testing.simulated.simulated_device import SimulatedDevice
from gapless.trials.recorded_batches import RecordedBatches
from gapless.unnoticed import Patches, PatchesWhileAlive
from test_private_names import SRC, chain_of, imports_of


# --- the table ---

# Files that replace something without the helper, and why.
BY_THEMSELVES = {
    "pipeline/loader_worker.py": "in a worker process, which nothing outlives",
    "python_private.py": "likewise",
    "scripts.py": "what Python itself sets when an error ends a program",
}

# Files that write into what `vars` returns, or set attributes by name, for another reason.
OF_OBJECTS = {
    "cli/parser.py": "options",
    "cli/shared_options.py": "options",
    "integrations/attention_masks.py": "masks that it has made",
    "integrations/lightning_logs.py": "of a LightningModule, while its step runs",
    "pipeline/prefetch.py": "of the loader that it stands for",
    "scripts.py": "the module that a program runs in",
    "unnoticed.py": "the helper",
}


def replaced_in(tree):
    """Return the attributes of others' modules and classes that a file sets or removes."""
    imported = imports_of(tree)
    found = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and chain_of(node)[0] in imported
    ]
    found += [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("setattr", "delattr")
        and chain_of(node.args[0])[0] in imported
    ]
    return found


def written_in(tree):
    """Return what a file writes into objects that it has not made, by name."""
    stores = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and ast.unparse(node).startswith("vars(")
    ]
    calls = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr")
    ]
    return stores + calls


def files():
    for path in sorted(SRC.rglob("*.py")):
        yield str(path.relative_to(SRC)), path.read_text(encoding="utf-8")


def test_what_is_replaced_goes_through_the_helper():
    """Whoever sets an attribute of somebody else's module undoes it, or says why not."""
    found = {name for name, text in files() if replaced_in(ast.parse(text))}

    assert found == set(BY_THEMSELVES)


def test_attributes_of_objects_go_through_the_helper():
    """A method that stands in an object is put back as one in a class is; `graphs` has helpers of its own."""
    found = {
        name
        for name, text in files()
        if written_in(ast.parse(text)) and not name.startswith("graphs/")
    }

    assert found == set(OF_OBJECTS)
    assert not [
        name
        for name, text in files()
        if re.search(r"^(from|import) unittest", text, re.M) and not name.startswith("graphs/")
    ]


def test_the_table_names_each_file_that_replaces_something():
    """And no other."""
    using = {name for name, text in files() if re.search(r"\bPatches(WhileAlive)?\b", text)}
    named = re.findall(r"^\* `(.*?)`", unnoticed.__doc__, flags=re.MULTILINE)

    assert sorted(using) == sorted(named)


# --- each is put back ---

HOLDERS = [
    *(torch, torch._C, torch.autograd, torch.cuda, warnings, sys, threading),
    *(torch.nn.Module, torch.optim.Optimizer),
    *(torch.Tensor, torch.cuda.Event, torch.cuda.Stream, dist.ProcessGroup, dist.Work),
    *(dataloader._BaseDataLoaderIter, torch.autograd.profiler.profile),
    *(dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter),
]


# Torch's compiler replaces it when it is imported.
OF_TORCH = {"manual_seed"}


def state():
    return [dict(vars(holder)) for holder in HOLDERS]


def changes(before):
    """Return what is another object than before, and what is new in a class."""
    found = set()
    for holder, then, now in zip(HOLDERS, before, state(), strict=True):
        names = set(then) | (set(now) if isinstance(holder, type) else set())
        found |= {
            f"{holder.__name__}.{name}"
            for name in names
            if then.get(name, None) is not now.get(name, None) and name not in OF_TORCH
        }
    return found


@contextmanager
def kept_block():
    block = block_of_autocast()
    try:
        yield
    finally:
        del block


@contextmanager
def waits_for_the_end():
    at_end_of_block(int)
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def holds_graphs():
    class Holder:
        def drop_graphs(self):
            pass

    holder = Holder()
    note_holder(holder)
    try:
        yield
    finally:
        del holder
        gc.collect()


@contextmanager
def audited():
    class Audited:
        pass

    one = Audited()
    with pytest.MonkeyPatch.context() as patch:
        # Graphs of other tests may still be there, which need the same patches.
        audited = PatchesWhileAlive(interludes._note_modes_and_states)
        patch.setattr(interludes, "_audited", audited)
        interludes.note_interludes_for(one)
        try:
            yield
        finally:
            del one


@contextmanager
def hears_of_reads():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_waits, "_sync_mode", lambda _: nullcontext())
        with cuda_waits._reads_reported_to(print):
            yield


@contextmanager
def open_logs(tmp_path):
    logs = RunLogs(tmp_path, troubles=DiskTroubles())
    try:
        yield
    finally:
        logs.close()


@contextmanager
def watched(one):
    one.start()
    try:
        yield
    finally:
        one.stop()


@contextmanager
def counted_steps():
    hooks = StepHooks(StepSource(), on_step=int)
    hooks.install()
    try:
        yield
    finally:
        hooks.remove()


@contextmanager
def recorded():
    batches = RecordedBatches()
    batches.start(print)
    try:
        yield
    finally:
        batches.stop()


@contextmanager
def tells_nothing():
    scripts._tell_nothing_once()
    try:
        yield
    finally:
        sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)


PULSE = SimpleNamespace(fail=None)

CASES = {
    "autocast_blocks": (kept_block, {"torch.clear_autocast_cache"}),
    "autocast_blocks, at the end": (waits_for_the_end, {"torch.clear_autocast_cache"}),
    "user_process_group": (holds_graphs, {"ProcessGroup.shutdown"}),
    "interludes": (
        audited,
        {
            *("Module.train", "Module.state_dict", "Module.load_state_dict"),
            *("Optimizer.state_dict", "Optimizer.load_state_dict"),
        },
    ),
    "compiled_layers": (
        lambda: LayerCompiler(device=None, is_dynamic=False, report=None).in_first_call(),
        {"Module.__call__"},
    ),
    "sync_warnings": (hears_of_reads, {"warnings._showwarnmsg"}),
    "leaving": (lambda: errors_end_all(PULSE), {"sys.excepthook"}),
    "progress": (TrainingProgress, {"warnings.showwarning"}),
    "scripts": (tells_nothing, {"sys.excepthook"}),
    "step_hooks": (
        counted_steps,
        {"_BaseDataLoaderIter.__next__", "torch.autograd._engine_run_backward"},
    ),
    "sites": (
        lambda: watched(SitesPass()),
        {"Tensor.item", "Tensor.to", "_BaseDataLoaderIter.__next__", "warnings._showwarnmsg"},
    ),
    "backward_lines": (
        lambda: watched(BackwardLinesPass()),
        {"torch.autograd._engine_run_backward", "torch.set_anomaly_enabled"},
    ),
    "profiler": (lambda: watched(TimesPass(has_device=False)), {"profile._prepare_trace"}),
    "recorded_batches": (
        recorded,
        {
            "_SingleProcessDataLoaderIter._next_data",
            "_MultiProcessingDataLoaderIter._next_data",
        },
    ),
    "simulated/patches": (
        SimulatedDevice,
        {"Tensor.record_stream", "torch._C._group_tensors_by_device_and_dtype"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_replaced_is_put_back(case):
    """The process is as before: the same objects, and no new attribute in a class."""
    make, expected = CASES[case]
    before = state()

    with make():
        during = changes(before)

    assert expected <= during
    assert changes(before) == set()


@pytest.mark.parametrize("case", CASES)
def test_what_was_replaced_is_put_back_after_an_error(case):
    """Whatever ends the body."""
    make, _ = CASES[case]
    before = state()

    with pytest.raises(KeyboardInterrupt), make():
        raise KeyboardInterrupt

    assert changes(before) == set()


@pytest.mark.parametrize(
    ("make", "start", "stop"),
    [
        (SitesPass, SitesPass.start, SitesPass.stop),
        (BackwardLinesPass, BackwardLinesPass.start, BackwardLinesPass.stop),
        (lambda: StepHooks(StepSource(), on_step=int), StepHooks.install, StepHooks.remove),
        (RecordedBatches, lambda one: one.start(print), RecordedBatches.stop),
    ],
)
def test_what_fails_to_begin_leaves_nothing_behind(make, start, stop, monkeypatch):
    """What it had replaced before is put back, whichever of its patches fails."""
    before, put, num_left = state(), unnoticed.Patches.put, 0

    def failing_put(*args):
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise AttributeError
        put(*args)

    monkeypatch.setattr(unnoticed.Patches, "put", failing_put)
    num_failed = 0
    while True:
        num_left, one = num_failed, make()
        try:
            start(one)
        except AttributeError:
            assert changes(before) == set(), num_failed
            num_failed += 1
        else:
            stop(one)
            break
    assert num_failed > 1
    assert changes(before) == set()


def test_patches_know_classes_objects_and_what_is_inherited():
    """They are put back in reverse, also where a body raises or one of them cannot be put back."""

    class Base:
        def step(self):
            return "base"

    class Slow(Base):
        def __setattr__(self, name, value):
            raise AssertionError("the class of an object is not asked")

    one = Slow()
    vars(one)["step"] = lambda: "own"
    with pytest.raises(ZeroDivisionError), Patches() as patches:
        patches.put(Slow, "step", lambda _: "shadow")
        assert one.step() == "own"
        patches.hide(one, "step")
        assert one.step() == "shadow"
        patches.put(one, "step", lambda: "first")
        patches.put(one, "step", lambda: "second")
        assert one.step() == "second"
        raise ZeroDivisionError
    assert one.step() == "own"
    assert Slow().step() == "base"
    assert "step" not in vars(Slow)

    class Once(type):
        def __setattr__(cls, name, value):
            if name in vars(cls):
                raise TypeError("no more")
            super().__setattr__(name, value)

    class Kept(metaclass=Once):
        pass

    patches = Patches()
    patches.put(one, "step", lambda: "ours")
    patches.put(Kept, "name", 1)
    type.__setattr__(Kept, "other", 0)
    with pytest.raises(TypeError):
        patches.put(Kept, "other", 2)
    patches.take_out()
    assert one.step() == "own"
    assert "name" not in vars(Kept)


@pytest.mark.parametrize("keeps_others", [True, False])
def test_what_somebody_else_has_put_over_ours(keeps_others):
    """It stays, or all is as it was before; so too for entries of a table and what has been deleted."""
    module, table = torch.nn.Linear(2, 2), {"weight": "own"}

    class Kind:
        gone = "own"

    with Patches(keeps_others=keeps_others) as patches:
        patches.put(module, "step", "ours")
        patches.put(table, "weight", "ours")
        patches.put(table, "new", "ours")
        patches.put(Kind, "gone", "ours")
        patches.put(Kind, "new", "ours")
        assert (module.step, table["weight"], Kind.new) == ("ours", "ours", "ours")
        module.step = table["weight"] = Kind.gone = "theirs"
        del Kind.new

    found = vars(module).get("step"), table["weight"], Kind.gone
    assert found == (("theirs",) * 3 if keeps_others else (None, "own", "own"))
    assert "new" not in table
    assert not hasattr(Kind, "new")


def test_patches_stay_as_long_as_somebody_needs_them():
    """The last of them may be freed in the midst of whatever; who comes later has them again."""
    places = SimpleNamespace(name="before")
    patches = PatchesWhileAlive(lambda patches: patches.put(places, "name", "ours"))

    class Needs:
        pass

    one, other = Needs(), Needs()
    for each in (one, other, one):
        patches.need(each)
    assert patches.living in ([one, other], [other, one])
    del one, each
    gc.collect()
    assert places.name == "ours"
    other = None
    gc.collect()
    assert places.name == "before"

    last = Needs()
    patches.need(last)
    assert places.name == "ours"


def test_logs_of_a_run_put_the_hook_of_threads_back(tmp_path):
    """Whether it could be opened or not."""
    before = threading.excepthook
    with open_logs(tmp_path):
        assert threading.excepthook is not before
    assert threading.excepthook is before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLogs, "_open_board", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            RunLogs(tmp_path, troubles=DiskTroubles())
    assert threading.excepthook is before


def test_what_loads_torch_is_put_back(monkeypatch):
    """A script may ask whether there is a torch, and never import it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    waiting = TorchImport(lambda: None)
    spec = waiting.find_spec("torch")
    assert "exec_module" in vars(spec.loader)

    waiting.remove()

    assert "exec_module" not in vars(spec.loader)
    assert waiting not in sys.meta_path


def test_a_hook_that_somebody_has_put_on_top_stays():
    """And an error after the ranks have parted is told as without them."""
    told = []
    own, sys.excepthook = sys.excepthook, lambda *error: told.append(error)
    try:
        with errors_end_all(PULSE):
            ours = sys.excepthook
            sys.excepthook = theirs = lambda *error: ours(*error)

        assert sys.excepthook is theirs
        theirs(ValueError, ValueError("late"), None)
    finally:
        sys.excepthook = own
    assert len(told) == 1


def test_graphs_are_dropped_before_a_group_ends(monkeypatch):
    """Of each object that lives then, and only until the last one is gone."""
    dropped, ended = [], []
    monkeypatch.setattr(dist.ProcessGroup, "shutdown", lambda group: ended.append(group))

    class Holder:
        def drop_graphs(self):
            dropped.append(self)

    class Group:
        _device_types = ()

    one, other = Holder(), Holder()
    note_holder(one)
    note_holder(other)
    note_holder(one)
    dist.ProcessGroup.shutdown(Group())
    assert sorted(map(id, dropped)) == sorted(map(id, (one, other)))

    dropped.clear()
    del one
    gc.collect()
    dist.ProcessGroup.shutdown(Group())
    assert dropped == [other]

    dropped.clear()
    del other
    gc.collect()
    dist.ProcessGroup.shutdown(Group())
    assert dropped == []
    assert len(ended) == 3


def test_blocks_of_autocast_are_told_apart():
    """Also where nobody has kept the one before, and in whatever order they are let go."""
    with torch.autocast("cpu", torch.bfloat16):
        one = block_of_autocast()
        assert block_of_autocast() is one
        called = []
        at_end_of_block(lambda: called.append("end"))
        assert called == []
    assert called == ["end"]
    with torch.autocast("cpu", torch.bfloat16):
        other = block_of_autocast()
        assert other is not one
        del one
        assert block_of_autocast() is other
        with torch.autocast("cpu", torch.float16):
            assert block_of_autocast() is other
    assert block_of_autocast() is not other
