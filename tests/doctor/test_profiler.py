"""The profiler's pass: what it records on a machine without a GPU, and what it says where it cannot."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from gapless.doctor.seen_waits import MARK
from gapless.doctor.trace.chrome_trace import node_around
from gapless.doctor.trace.cupti import injected_tool, reason_in
from gapless.doctor.trace.profiler import TimesPass


def step(weight):
    (weight * torch.ones(3)).sum().backward()


@pytest.fixture(scope="module")
def recorded():
    """Three steps, a mark of a wait in the second one."""
    weight = torch.ones(3, requires_grad=True)
    measured = TimesPass(has_device=False)
    measured.start()
    step(weight)
    measured.next_step()
    with torch._C._profiler._RecordFunctionFast(f"{MARK}4"):
        pass
    step(weight)
    measured.next_step()
    step(weight)
    measured.stop()
    return measured


def test_steps_and_marks_are_in_the_trace(recorded):
    """The beginnings of all steps and the end of the last, in the trace's time."""
    trace = recorded.trace

    assert recorded.num_steps == 3
    assert len(trace.steps) == 4
    assert list(trace.steps) == sorted(trace.steps)
    (mark,) = trace.marks
    assert (mark.place, mark.thread) == (4, threading.get_native_id())
    assert trace.steps[1] < mark.start_us < trace.steps[2]


def test_the_clock_of_the_host_is_joined_with_the_traces(recorded):
    """A time of perf_counter_ns at a step is that step's time."""
    for us, ns in zip(recorded.trace.steps, recorded._step_ns, strict=True):
        assert recorded.trace.to_us(ns) == pytest.approx(us, abs=2000)


def test_nodes_of_the_backward_pass_are_found_by_time(recorded):
    """With the sequence number that leads to the forward pass."""
    trace = recorded.trace
    (node, *_) = [one for one in trace.operations[trace.main] if one.node == "MulBackward0"]

    found = node_around(trace, thread=trace.main, at_us=(node.start_us + node.end_us) / 2)

    assert found == node
    assert found.sequence is not None


def test_nothing_of_the_profiler_stays_installed(recorded):
    """Neither the profiler nor the look for others."""
    assert not torch._C._autograd._profiler_enabled()
    name = torch.autograd.profiler.profile._prepare_trace.__qualname__
    assert name == "profile._prepare_trace"


def test_a_profiler_that_runs_already_is_named_and_left_alone():
    """There is no trace then, and the script's own profiler keeps its events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        measured = TimesPass(has_device=False)
        measured.start()
        torch.ones(3).exp()
        measured.stop()

    assert measured.trace is None
    assert "torch.profiler in the script is profiling" in measured.notes[0]
    assert "aten::exp" in {event.key for event in own.key_averages()}


def test_a_profiler_that_the_script_starts_takes_over():
    """Ours ends before, so that the script's keeps its events."""
    measured = TimesPass(has_device=False)
    measured.start()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(3).exp()
        measured.next_step()
    measured.stop()

    assert measured.trace is None
    assert "began to profile itself" in measured.notes[0]
    assert "aten::exp" in {event.key for event in own.key_averages()}


@pytest.mark.parametrize("text", [b"{", b"{}", b'{"traceEvents": [{"ph": "X"}]}'])
def test_a_trace_that_cannot_be_read_is_said_to_be_missing(text):
    """The report has everything else."""
    measured = TimesPass(has_device=False)
    measured.start()
    measured.stop()
    measured._text = text

    assert measured.trace is None
    assert "trace cannot be read" in measured.notes[0]


def test_a_device_of_which_nothing_was_recorded_is_said_to_be_missing():
    """Where CUPTI gives nothing, lines have no times."""
    measured = TimesPass(has_device=False)
    measured.start()
    measured.stop()
    measured._has_device = True
    measured._said.append("ERROR: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    assert measured.trace.works == ()
    assert "administrators" in measured.notes[0]


def test_what_others_write_to_stderr_meanwhile_is_not_lost():
    """The profiler's own lines are kept back; those of the script are written."""
    code = (
        "import os, sys\n"
        "from gapless.doctor.trace.cupti import profiler_output\n"
        "said = []\n"
        "with profiler_output(said):\n"
        "    os.write(2, b'USDT:2026-01-31 12:00:00 17:17 Some.cpp:52] profiler_start\\n')\n"
        "    print('mine', file=sys.stderr, flush=True)\n"
        "print(said[0])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )

    assert done.stderr == "mine\n"
    assert done.stdout.endswith("profiler_start\n")


def test_tools_that_hold_the_driver_are_named():
    """By the library that they load, or by what they set."""
    assert injected_tool(["/opt/libc.so.6", "/opt/libToolsInjection64.so"], {}) == "Nsight Systems"
    assert "libmine.so" in injected_tool([], {"CUDA_INJECTION64_PATH": "/opt/libmine.so"})
    assert injected_tool(["/lib/libcupti.so.13"], {}) == ""


def test_why_the_driver_gave_nothing_is_said():
    """From the profiler's own words."""
    assert "another profiler holds CUPTI" in reason_in(
        [
            "ERROR:... cuptiSubscribe failed with CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"
        ]
    )
    assert "administrators" in reason_in(["CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"])
    assert reason_in(["nothing of interest"]) == ""
