"""Fail a test that leaves the process in another state than it found it.

State of the process is shared by all tests: a thread, a hook or a flag that one of them leaves behind
changes what the next one sees. `no_leaks` looks at that state before and after every test, says what
is different, and puts back what it can, so that only the test that leaks fails.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils import _python_dispatch

from float32_settings import float32_settings, set_float32_settings
from gapless.device.find import find_device


if TYPE_CHECKING:
    from collections.abc import Callable


# A thread or process that was told to end may take this long.
_SECONDS_TO_END = 2.0

# Its threads help with copies of host memory from the first large one on.
_KEPT_POOL = "gapless-copy"

# Set by pytest itself; by torch's compiler, and by Lightning when it is loaded, for the rest of the process.
_OTHERS_VARIABLES = ("PYTEST_", "TORCHINDUCTOR_", "TRITON_", "PYTORCH_NVML_")

_HOOKS: dict[str, dict[Any, Any]] = {
    name: getattr(holder, name)
    for holder in (modules, optimizers)
    for name in dir(holder)
    if name.startswith("_global_") and isinstance(getattr(holder, name), dict)
}

# But SIGCHLD: torch handles it from the first loader with workers on.
_SIGNALS = [number for number in signal.Signals if number is not signal.SIGCHLD]

# Functions that code may replace for a while.
_REPLACEABLE = [
    (threading, "excepthook"),
    (sys, "excepthook"),
    (sys, "unraisablehook"),
    (torch.autograd, "backward"),
    (torch.Tensor, "backward"),
    (torch.optim.Optimizer, "step"),
]


@dataclass(frozen=True)
class Guard:
    """One part of the process' state.

    Attributes:
        name: what a failure calls it.
        look: returns its value now, as a new object.
        put_back: takes what `look` returned, and makes it so again.
    """

    name: str
    look: Callable[[], Any]
    put_back: Callable[[Any], None]


def _set_environment(values):
    for name in set(os.environ) - set(values):
        if not name.startswith(_OTHERS_VARIABLES):
            del os.environ[name]
    os.environ.update(values)


def _environment():
    return {
        name: value for name, value in os.environ.items() if not name.startswith(_OTHERS_VARIABLES)
    }


def _set_hooks(values):
    for name, hooks in _HOOKS.items():
        hooks.clear()
        hooks.update(values[name])


def _set_replaceable(values):
    for holder, name in _REPLACEABLE:
        setattr(holder, name, values[f"{holder.__name__}.{name}"])


def _signal_handlers():
    return {number.name: signal.getsignal(number) for number in _SIGNALS}


def _set_signal_handlers(values):
    for number in _SIGNALS:
        # None is a handler that Python did not install, and cannot.
        if values[number.name] not in (None, signal.getsignal(number)):
            signal.signal(number, values[number.name])


def _sync_debug_mode():
    return torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0


def _set_sync_debug_mode(mode):
    torch.cuda.set_sync_debug_mode(mode)


def _gpu_stream():
    """Return the current stream of the GPU; None if it is the default one, or there is no GPU."""
    if not torch.cuda.is_initialized():
        return None
    stream = torch.cuda.current_stream()
    return None if stream == torch.cuda.default_stream() else stream


def _set_gpu_stream(stream):
    torch.cuda.set_stream(torch.cuda.default_stream() if stream is None else stream)


def _function_modes():
    return list(torch.overrides._get_current_function_mode_stack())


def _exit_function_modes(modes):
    while len(_function_modes()) > len(modes):
        torch.overrides._pop_mode()


def _dispatch_modes():
    return list(_python_dispatch._get_current_dispatch_mode_stack())


def _exit_dispatch_modes(modes):
    while len(_dispatch_modes()) > len(modes):
        _python_dispatch._pop_mode()


GUARDS = [
    Guard("hook", lambda: {name: dict(hooks) for name, hooks in _HOOKS.items()}, _set_hooks),
    Guard(
        "replaced function",
        lambda: {f"{at.__name__}.{name}": getattr(at, name) for at, name in _REPLACEABLE},
        _set_replaceable,
    ),
    Guard("signal handler", _signal_handlers, _set_signal_handlers),
    Guard("environment variable", _environment, _set_environment),
    Guard(
        "sys.path", lambda: list(sys.path), lambda path: sys.path.__setitem__(slice(None), path)
    ),
    Guard(
        "sys.argv", lambda: list(sys.argv), lambda argv: sys.argv.__setitem__(slice(None), argv)
    ),
    Guard("working folder", os.getcwd, os.chdir),
    Guard("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Guard(
        "deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    Guard(
        "attention by cuDNN",
        torch.backends.cuda.cudnn_sdp_enabled,
        torch.backends.cuda.enable_cudnn_sdp,
    ),
    Guard(
        "float32 precision",
        float32_settings,
        set_float32_settings,
    ),
    Guard("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Guard("function mode", _function_modes, _exit_function_modes),
    Guard("dispatch mode", _dispatch_modes, _exit_dispatch_modes),
    Guard(
        "current stream of the CPU",
        lambda: find_device("cpu").current_stream(),
        lambda stream: find_device("cpu").set_current_stream(stream),
    ),
    Guard("current stream of the GPU", _gpu_stream, _set_gpu_stream),
    Guard("CUDA sync debug mode", _sync_debug_mode, _set_sync_debug_mode),
]


def _running():
    """Return what runs beside the test: threads, and processes that `multiprocessing` started."""
    return [*threading.enumerate(), *multiprocessing.active_children()]


def _belongs_to_compiler(one):
    """Whether torch's compiler, or its progress bars, keep it for the rest of the process."""
    maker = getattr(one, "_target", None) or type(one)
    name = getattr(maker, "__module__", None) or ""
    # Pools of gapless have names of their own.
    is_of_a_pool = name.startswith("concurrent.futures") and "gapless" not in one.name
    has_compiled = "torch._inductor.async_compile" in sys.modules
    return name.startswith(("torch.", "tqdm")) or (is_of_a_pool and has_compiled)


def _still_running(before):
    """Return the names of what was started and does not end."""
    # A dummy stands for a thread that Python did not start, such as autograd's, and cannot be joined.
    started = [
        one
        for one in _running()
        if one not in before
        and not _belongs_to_compiler(one)
        and not one.name.startswith(_KEPT_POOL)
        and not isinstance(one, threading._DummyThread)
    ]
    for one in started:
        one.join(_SECONDS_TO_END)
    return [f"{type(one).__name__} {one.name!r}" for one in started if one.is_alive()]


def _difference(before, after):
    """Return what is different, in words."""
    if not isinstance(before, dict):
        return f"{_shown(before)} became {_shown(after)}"
    names = [*before, *(name for name in after if name not in before)]
    return ", ".join(
        f"{name}: {_shown(before.get(name))} became {_shown(after.get(name))}"
        for name in names
        if not _same(before.get(name), after.get(name))
    )


def _same(before, after):
    """Whether two states are equal; a stream of CUDA is neither equal to nothing nor unequal."""
    return before is after or (before is not None and after is not None and before == after)


def _shown(value):
    if isinstance(value, list):
        return str([_shown(one) for one in value])
    return "nothing" if value is None else repr(value)


@pytest.fixture(autouse=True)
def no_leaks():
    """Fail a test that changed the state of the process, and name what it left behind."""
    running, before = _running(), [guard.look() for guard in GUARDS]
    yield
    leaks = _still_running(running)
    for guard, found in zip(GUARDS, before, strict=True):
        now = guard.look()
        if not _same(found, now):
            leaks.append(f"{guard.name} ({_difference(found, now)})")
            guard.put_back(found)
    if leaks:
        pytest.fail(f"the test leaks: {'; '.join(leaks)}", pytrace=False)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item):
    """Fail a test that replaced how warnings are shown.

    Not part of `no_leaks`, because pytest itself puts this back when the test's body has ended.
    """
    before = warnings.showwarning
    result = yield
    if warnings.showwarning is not before:
        pytest.fail("the test leaks: warnings.showwarning", pytrace=False)
    return result
