"""The guard against leaks finds each kind of state that a test can leave behind.

A separate pytest runs tests that leak on purpose; this file looks at what it says about them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from leaks import GUARDS


LEAKS = {
    "thread": "Thread 'left-behind'",
    "process": "Process 'left-behind'",
    "optimizer_hook": "hook (_global_optimizer_pre_hooks",
    "module_hook": "hook (_global_forward_hooks",
    "replaced_function": "replaced function (torch.autograd.backward",
    "shown_warnings": "warnings.showwarning",
    "signal_handler": "signal handler (SIGINT",
    "environment": "environment variable (LEFT_BEHIND: nothing became 'yes')",
    "changed_environment": "environment variable (HOME",
    "search_path": "sys.path",
    "arguments": "sys.argv",
    "folder": "working folder",
    "dtype": "default dtype (torch.float32 became torch.float64)",
    "determinism": "deterministic algorithms (False became True)",
    "attention": "attention by cuDNN",
    "precision": "float32 precision",
    "grad": "grad mode (True became False)",
    "function_mode": "function mode",
    "dispatch_mode": "dispatch mode",
    "cpu_stream": "current stream of the CPU",
}

LEAKS_ON_A_GPU = {
    "gpu_stream": "current stream of the GPU",
    "sync_mode": "CUDA sync debug mode (0 became 2)",
}

# They share one run of the tests that leak.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("leaks")]

# One test for each leak, and a last one that leaks nothing.
FILE = """
import _thread, multiprocessing, os, signal, sys, threading, time, warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gapless
from gapless.device.numerics import set_numerics

CPU = gapless.find_device("cpu")


def test_thread():
    threading.Thread(target=threading.Event().wait, name="left-behind", daemon=True).start()

def test_process():
    multiprocessing.Process(target=time.sleep, args=(60,), name="left-behind", daemon=True).start()

def test_optimizer_hook():
    register_optimizer_step_pre_hook(print)

def test_module_hook():
    torch.nn.modules.module.register_module_forward_hook(print)

def test_replaced_function():
    torch.autograd.backward = print

def test_shown_warnings():
    warnings.showwarning = print

def test_signal_handler():
    signal.signal(signal.SIGINT, print)

def test_environment():
    os.environ["LEFT_BEHIND"] = "yes"

def test_changed_environment():
    os.environ["HOME"] = "/nowhere"

def test_search_path():
    sys.path.append("left-behind")

def test_arguments():
    sys.argv = [*sys.argv, "left-behind"]

def test_folder(tmp_path):
    os.chdir(tmp_path)

def test_dtype():
    torch.set_default_dtype(torch.float64)

def test_determinism():
    set_numerics(CPU, "fp32", deterministic=True)
    torch.backends.cuda.enable_cudnn_sdp(True)

def test_attention():
    set_numerics(CPU, "fp32", deterministic=False)

def test_precision():
    torch.set_float32_matmul_precision("medium")

def test_grad():
    torch.set_grad_enabled(False)

def test_function_mode():
    TorchFunctionMode().__enter__()

def test_dispatch_mode():
    TorchDispatchMode().__enter__()

def test_cpu_stream():
    CPU.set_current_stream(CPU.create_stream())

@pytest.mark.gpu
def test_gpu_stream():
    gpu = gapless.find_device("cuda")
    gpu.set_current_stream(gpu.create_stream())

@pytest.mark.gpu
def test_sync_mode():
    with warnings.catch_warnings(action="ignore"):
        torch.cuda.set_sync_debug_mode("error")

def test_compiler():
    sys.modules.setdefault("torch._inductor.async_compile", sys)
    ThreadPoolExecutor().submit(time.time)

def test_foreign_thread():
    known = threading.Event()

    def run():
        threading.current_thread()
        known.set()
        threading.Event().wait(1.0)

    _thread.start_new_thread(run, ())
    known.wait()

def test_nothing():
    set_numerics(CPU, "fp32", deterministic=False)
    torch.backends.cuda.enable_cudnn_sdp(True)
    thread = threading.Thread(target=time.time)
    thread.start()
    with torch.device("cpu"), CPU.use_stream(CPU.create_stream()):
        torch.ones(1) + 1
"""


def run_leaking_tests(folder, selected):
    """Run tests of `FILE` one after the other; return by name what their guard said."""
    (folder / "test_leaking.py").write_text(FILE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "leaks", "-p", "no:randomly"),
            *("-m", selected, "--junit-xml=found.xml", "test_leaking.py"),
        ],
        check=False,
        cwd=folder,
        env={"PYTHONPATH": ":".join([str(Path(__file__).parent), *sys.path]), "HOME": "/tmp"},
        capture_output=True,
    )
    found = {}
    for case in ET.parse(folder / "found.xml").iter("testcase"):
        said = [part.get("message") for part in case if part.tag in ("failure", "error")]
        found[case.get("name").removeprefix("test_")] = said
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_leaking_tests(tmp_path_factory.mktemp("leaking"), "not gpu")


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_named(found, name):
    """A test that leaves something behind fails once, with what it left."""
    (said,) = found[name]

    assert "the test leaks" in said
    assert LEAKS[name] in said


def test_a_test_that_cleans_up_passes(found):
    """The guard does not fail a test that comes after leaks, nor one that ends what it began."""
    assert found["nothing"] == []


def test_threads_of_torchs_compiler_are_no_leak(found):
    """Torch keeps the threads in which it compiles."""
    assert found["compiler"] == []


def test_threads_that_python_did_not_start_are_no_leak(found):
    """Nobody can wait for their end, such as that of autograd's threads."""
    assert found["foreign_thread"] == []


def test_every_leak_of_the_file_is_looked_at(found):
    """No leaking test is left out of the table above."""
    assert set(found) == {*LEAKS, "compiler", "foreign_thread", "nothing"}


def test_every_guard_is_shown_to_work():
    """Each guard is named in at least one message above."""
    said = " ".join([*LEAKS.values(), *LEAKS_ON_A_GPU.values()])

    assert [guard.name for guard in GUARDS if guard.name not in said] == []


@pytest.mark.gpu
def test_a_leak_on_a_gpu_is_named(tmp_path):
    """A stream that stays current and a debug mode that stays on fail their test."""
    found = run_leaking_tests(tmp_path, "gpu")

    assert set(found) == set(LEAKS_ON_A_GPU)
    for name, text in LEAKS_ON_A_GPU.items():
        assert [text in said for said in found[name]] == [True]
