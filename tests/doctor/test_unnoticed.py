"""A script computes and prints what it does without the doctor; tensors count as those of a device."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import pickle
import signal
import subprocess
import sys
import traceback
import warnings
import weakref
from collections import UserDict
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, IterableDataset, dataloader

from gapless.device import script_tensors
from gapless.doctor import watch
from gapless.doctor.lines.backward_lines import BackwardLinesPass
from gapless.doctor.lines.sites import SitesPass
from gapless.doctor.lines.wait_notes import WaitNotes
from gapless.doctor.trace.profiler import TimesPass
from gapless.doctor.watching.step_hooks import StepHooks
from gapless.doctor.watching.step_source import StepSource
from gapless.doctor.watching.windows import Phases
from gapless.unnoticed import local_names


METHODS = (
    *("item", "tolist", "cpu", "to", "cuda", "copy_", "numpy", "pin_memory"),
    *("__bool__", "__float__", "__complex__", "__int__", "__index__"),
)


@pytest.fixture(autouse=True)
def tensors_are_on_a_device(monkeypatch):
    """Let every tensor be one that the host waits for, and every device another than the host."""
    monkeypatch.setattr(script_tensors, "is_on_accelerator", lambda tensor: True)
    monkeypatch.setattr(script_tensors, "is_accelerator", lambda device: True)


@pytest.fixture
def watched():
    """All that the doctor puts into a process while it looks for waits."""
    hooks = StepHooks(StepSource(), on_step=lambda: None)
    hooks.install()
    sites = SitesPass(marks=True)
    sites.start()
    yield sites
    sites.stop()
    hooks.remove()


BEFORE = {name: getattr(torch.Tensor, name) for name in METHODS}


# What a class shows


def test_a_class_shows_its_own_methods(watched):
    """Tables, comparisons, `pickle` and `inspect` find what they always find."""
    assert [wait.call for wait in watched.waits if wait.cause != "gc"] == []
    for name, method in BEFORE.items():
        assert name in vars(torch.Tensor)
        assert getattr(torch.Tensor, name) is method
        assert getattr(nn.Parameter, name) is method
    assert not inspect.isfunction(torch.Tensor.item)
    assert "torch._C.TensorBase" in repr(torch.Tensor.item)
    assert "def __next__" in inspect.getsource(dataloader._BaseDataLoaderIter.__next__)
    assert torch.autograd.backward.__code__.co_filename.endswith("__init__.py")


def test_a_function_that_is_compared_where_it_is_used_is_the_same(watched):
    """Subclasses ask `func is torch.Tensor.item` whenever they are called."""
    found = []

    class Asks(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            found.extend(name for name in METHODS if func is getattr(torch.Tensor, name))
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(()).as_subclass(Asks)
    found.clear()
    _ = x.item(), float(x), int(x), bool(x), x.tolist(), x.to(torch.float64), x.cpu()

    assert found == ["item", "__float__", "__int__", "__bool__", "tolist", "to", "cpu"]


def test_what_a_script_has_put_in_the_place_of_a_method_is_called_as_before():
    """A mock does not get the tensor, a static function neither."""
    with (
        mock.patch.object(torch.Tensor, "item", return_value=7) as item,
        mock.patch.object(torch.Tensor, "cpu", staticmethod(lambda: 8)),
        mock.patch.object(torch.Tensor, "tolist", lambda self: [9, *self.shape]),
    ):
        sites = SitesPass()
        sites.start()
        x = torch.ones(2)
        assert (x.item(), x.cpu(), x.tolist()) == (7, 8, [9, 2])
        sites.stop()

    item.assert_called_once_with()
    assert [wait.call for wait in sites.waits if wait.cause != "gc"] == ["Tensor.tolist"]


def test_methods_of_subclasses_are_theirs(watched):
    """They call those of the base as ever."""

    class Doubles(torch.Tensor):
        def item(self):
            return 2 * super().item()

        def __float__(self):
            return 3 * super().__float__()

    x = torch.ones(()).as_subclass(Doubles)

    assert (x.item(), float(x), int(x)) == (2, 3, 1)


class Answers(torch.Tensor):
    """Says itself where it is and what it holds."""

    asked: ClassVar[list[str]] = []

    @property
    def is_cpu(self):
        self.asked.append("is_cpu")
        return True

    @property
    def device(self):
        self.asked.append("device")
        return torch.device("cpu")

    def numel(self):
        self.asked.append("numel")
        return 1

    def is_pinned(self, *args):
        self.asked.append("is_pinned")
        return False


def test_no_code_of_a_subclass_is_asked(monkeypatch):
    """What a script computes when somebody asks its tensors is for the script alone."""
    monkeypatch.undo()
    sites = SitesPass()
    sites.start()
    x = torch.ones(2).as_subclass(Answers)
    _ = x[0].item(), x.to("cpu"), x.copy_(torch.ones(2), non_blocking=True), x.tolist()
    with pytest.raises(RuntimeError):
        x.pin_memory()
    sites.stop()

    assert Answers.asked == []


def test_modes_of_the_script_see_no_operation_of_ours(watched):
    """Whether memory is page-locked is an operation to torch."""
    seen = []

    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def pin():
        seen.clear()
        with Sees(), contextlib.suppress(RuntimeError):
            torch.ones(2).pin_memory()
        return list(seen)

    found = pin()
    watched.stop()
    assert found == pin()


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_traces_have_the_lines_of_the_script(watched):
    """A graph of torch.jit says where each operation comes from, and names tensors as the script does."""
    traced = torch.jit.trace(lambda x: x.to(torch.float64).cpu() + 1, torch.ones(2))

    assert Path(__file__).name in str(traced.graph)
    assert "gapless/" not in str(traced.graph).replace(__file__, "")
    assert "%tensor" not in str(traced.graph)


def test_tensors_that_are_not_watched_have_torchs_own_methods(monkeypatch):
    """On the host, in another wait, and after the watch."""
    sites = SitesPass()
    sites.start()
    kept = vars(torch.Tensor)["item"]
    x = torch.ones(())
    assert inspect.ismethod(x.item)
    monkeypatch.setattr(script_tensors, "is_on_accelerator", lambda tensor: False)
    assert inspect.isbuiltin(x.item)
    monkeypatch.undo()
    sites.stop()
    with mock.patch.object(torch.Tensor, "item", kept):
        assert inspect.isbuiltin(x.item)


def test_the_compiler_sees_as_many_frames_as_ever(watched):
    """Where a graph ends, it looks at each function that Python calls."""
    torch._dynamo.reset()
    counters.clear()

    @torch.compile(backend="eager")
    def broken(x):
        return x + x.sum().item()

    broken(torch.ones(2))
    frames = dict(counters["frames"])
    watched.stop()
    torch._dynamo.reset()
    counters.clear()
    broken(torch.ones(2))

    assert frames == dict(counters["frames"])
    torch._dynamo.reset()


# Slots of classes, which C asks

# The functions of a class written in Python, as words from its address on; counts and caches are others.
_FUNCTIONS = (8, 9, 11, *range(15, 20), 25, 27, 28, *range(51, 106))


def functions_of(kind):
    """Return what C finds in a class for numbers, sequences, iteration and so on."""
    words = (ctypes.c_void_p * 106).from_address(id(kind))
    return [words[place] for place in _FUNCTIONS]


def test_c_finds_in_a_class_what_it_always_finds():
    """CPython fills some slots when an attribute is set, and never clears them again."""

    class Fresh(torch.Tensor):
        def __bool__(self):
            return True

    kinds = (torch.Tensor, nn.Parameter, Fresh, dataloader._BaseDataLoaderIter, torch.cuda.Event)
    before = [functions_of(kind) for kind in kinds]
    sites = SitesPass()
    sites.start()
    during = [functions_of(kind) for kind in kinds]
    sites.stop()

    assert during == before
    assert [functions_of(kind) for kind in kinds] == before


# Tracebacks


def frames_of(call):
    """Return the files and functions of the traceback of what a call raises."""
    with pytest.raises((RuntimeError, ValueError)) as raised:
        call()
    return [
        (Path(frame.filename).name, frame.name)
        for frame in traceback.extract_tb(raised.value.__traceback__)
    ][1:]


class Fails(torch.autograd.Function):
    """Has no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no gradient")


class BadData(IterableDataset):
    """Cannot be read."""

    def __iter__(self):
        raise ValueError("bad sample")
        yield


class BadTensor(torch.Tensor):
    """Cannot be read either."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise ValueError(func.__name__)


def raising():
    return {
        "a read": lambda: torch.ones(2).item(),
        "a condition": lambda: bool(torch.ones(2)),
        "a move": lambda: torch.ones(2).to("nowhere"),
        "a copy": lambda: torch.ones(2).copy_(torch.ones(3)),
        "a subclass": lambda: torch.ones(()).as_subclass(BadTensor).item(),
        "a batch": lambda: next(iter(DataLoader(BadData()))),
        "a backward pass": lambda: Fails.apply(torch.ones((), requires_grad=True)).backward(),
        "a gradient": lambda: torch.autograd.grad(torch.ones(()), torch.ones(())),
    }


@pytest.mark.parametrize("name", raising())
def test_tracebacks_have_no_lines_of_ours(name):
    """They are printed, logged and compared."""
    call = raising()[name]
    expected = frames_of(call)
    hooks = StepHooks(StepSource(), on_step=lambda: None)
    hooks.install()
    sites, lines = SitesPass(), BackwardLinesPass()
    sites.start()
    lines.start()
    try:
        assert frames_of(call) == expected
    finally:
        lines.stop()
        sites.stop()
        hooks.remove()


# Warnings


def warns_once():
    warnings.warn("once", UserWarning, stacklevel=1)


@pytest.mark.parametrize(
    "kind", [SitesPass, BackwardLinesPass, lambda: TimesPass(has_device=False)]
)
def test_a_line_that_has_warned_does_not_warn_again(kind):
    """Python shows a warning of a line once, until filters change; ours are no change."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        warns_once()
        for _ in range(2):
            one = kind()
            one.start()
            warns_once()
            one.stop()
            warns_once()

    assert [str(one.message) for one in seen] == ["once"]


class Warns(torch.Tensor):
    """Warns of its callers."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.item:
            warnings.warn("is read", DeprecationWarning, stacklevel=2)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_warnings_of_callers_are_those_of_the_scripts_lines(watched):
    """Filters by module match, and each line is told of once."""
    x = torch.ones(()).as_subclass(Warns)
    with warnings.catch_warnings(record=True) as seen:
        warnings.resetwarnings()
        warnings.filterwarnings("default", module=__name__.replace(".", "[.]"))
        for _ in range(2):
            x.item()  # one line
            x.item()  # another line
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module=__name__.replace(".", "[.]"))
        with pytest.raises(DeprecationWarning):
            x.item()

    assert [one.filename for one in seen] == [__file__] * 2
    assert seen[0].lineno + 1 == seen[1].lineno


def test_names_bound_early_change_filters_as_ever():
    """What a script makes an error is one, and no wait is."""
    ignore, always = warnings.simplefilter, warnings.filterwarnings
    sites = SitesPass()
    sites.start()
    with warnings.catch_warnings():
        ignore("error")
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)
        with pytest.raises(UserWarning, match="own"):
            warnings.warn("the script's own", UserWarning, stacklevel=1)
    assert (warnings.simplefilter, warnings.filterwarnings) == (ignore, always)
    sites.stop()

    assert [wait.cause for wait in sites.waits if wait.cause != "gc"] == ["unknown"]


def test_filters_that_a_script_keeps_have_no_effect_afterwards(watched):
    """It may have copied them, or send them to another process."""
    kept = list(warnings.filters)
    sent = pickle.dumps(kept)
    watched.stop()
    with warnings.catch_warnings(record=True) as seen:
        for filters in (kept, pickle.loads(sent)):
            warnings.filters[:] = [*filters[:2], ("ignore", None, Warning, None, 0)]
            warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)

    assert seen == []


# The anomaly mode


def fails_backward():
    with pytest.raises(RuntimeError, match="no gradient"):
        Fails.apply(torch.ones((), requires_grad=True)).backward()


def test_the_anomaly_mode_is_the_scripts():
    """It begins and ends blocks in it whenever it likes, and is told of errors only there."""
    lines = BackwardLinesPass()
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        lines.start()
        with pytest.warns(UserWarning, match="Error detected"):
            fails_backward()
    assert not torch.is_anomaly_enabled()
    with warnings.catch_warnings(record=True) as seen:
        fails_backward()
    block = torch.autograd.set_detect_anomaly(True)
    with block:
        assert (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) == (True, True)
        lines.stop()
        assert torch.is_anomaly_enabled()

    assert not torch.is_anomaly_enabled()
    assert seen == []


# The import of torch


def test_a_script_may_ask_for_torch_before_it_imports_it(tmp_path):
    """It gets the loader that it always gets, and is watched all the same."""
    script = tmp_path / "asks.py"
    script.write_text(
        "import importlib.util, sys\n"
        "loader = importlib.util.find_spec('torch').loader\n"
        "print(type(loader).__name__, loader.is_package('torch'), 'torch' in sys.modules)\n"
        "import torch\n"
        "print(type(torch.__loader__).__name__, vars(torch.__loader__).keys())\n"
        "print(any('gapless' in type(one).__module__ for one in sys.meta_path))\n"
        "import gapless.doctor\n"
        "for _ in range(3):\n"
        "    gapless.doctor.step()\n"
    )
    report = tmp_path / "report"
    done = subprocess.run(
        [sys.executable, "-m", "gapless", "doctor", "--out", report, script],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines() == [
        "SourceFileLoader True False",
        "SourceFileLoader dict_keys(['name', 'path'])",
        "False",
    ]
    assert "did not import torch" not in report.read_text()


# Batches


class Lazy(Mapping):
    """Reads its values when somebody asks for them."""

    def __getitem__(self, key):
        raise AssertionError("nobody has asked for it")

    def __iter__(self):
        raise AssertionError("nobody has asked for it")

    def __len__(self):
        raise AssertionError("nobody has asked for it")


def odd_batches():
    endless = []
    endless.append(endless)
    return [
        Lazy(),
        endless,
        torch.ones(2).as_subclass(BadTensor),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        UserDict(x=torch.ones(5)),
    ]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_no_code_of_the_script_runs_for_the_shapes_of_its_batches(watched):
    """A batch may be anything."""
    batches = odd_batches()
    data = DataLoader(batches, batch_size=None, collate_fn=lambda one: one)

    assert [a is b for a, b in zip(data, batches, strict=True)] == [True] * len(batches)
    assert watched.shapes.num_batches == len(batches)


# Signals, recursion and the life of objects


class TooLateError(Exception):
    """Raised by a handler of a signal."""


def raise_too_late(*_):
    raise TooLateError


@pytest.fixture
def alarm():
    """Let SIGUSR1 raise, wherever the script is."""
    former = signal.signal(signal.SIGUSR1, raise_too_late)
    yield lambda *_, **__: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, former)


@pytest.mark.parametrize(
    ("holder", "name", "call"),
    [
        (WaitNotes, "begin", lambda x: x.item()),
        (script_tensors, "is_accelerator", lambda x: x.to("cpu")),
    ],
    ids=["a note", "a question"],
)
def test_a_signal_in_our_own_work_reaches_the_script(
    watched, alarm, monkeypatch, holder, name, call
):
    """And the next wait is noted as ever."""
    x = torch.ones(())
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, alarm)
        with pytest.raises(TooLateError):
            call(x)
    x.item()
    watched.stop()

    assert [wait.call for wait in watched.waits if wait.cause == "item"] == ["Tensor.item"]


def test_a_signal_at_the_end_of_a_step_reaches_the_script(alarm, monkeypatch):
    """The doctor gives up; the script does what it does about the signal."""
    monkeypatch.setattr(Phases, "step_ended", alarm)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    with watch(), pytest.raises(TooLateError):
        optimizer.step()


def test_what_goes_wrong_in_a_note_is_not_the_scripts(watched, monkeypatch):
    """A recursion that is deep enough for the script may be too deep for us."""

    def too_deep(*_, **__):
        raise RecursionError

    monkeypatch.setattr(WaitNotes, "begin", too_deep)

    assert torch.ones(()).item() == 1.0


def test_a_look_at_names_keeps_no_object_alive():
    """Python itself keeps all local names of a function that was looked at, until it returns."""

    def function():
        x = torch.ones(2)
        gone = weakref.ref(x)
        kept = local_names(sys._getframe())
        assert kept["x"] is x
        del x, kept
        return gone()

    assert function() is None


def test_a_look_at_names_leaves_those_that_a_script_holds():
    """`locals()` of a function is one dictionary, which the script may have kept."""

    def function(a, b=2):
        arguments = locals()
        local_names(sys._getframe())
        return arguments["a"], arguments["b"]

    assert function(1) == (1, 2)
