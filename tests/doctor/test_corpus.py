"""The cases of the corpus run; on a GPU, their labels are what the profiler says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from doctor.labels import all_cases, read_case
from doctor.truth import blocking_calls, judge, read_trace, run_all, say


TESTS = Path(__file__).parents[1]
CASE = """
for step in range(20):  # step
    loss.item()  # waits: item
    x.to("cuda", non_blocking=True)  # waits: pageable copy, unseen
    y.backward()
    y = z[mask]  # waits: shape, in autograd
    print("no label")
"""


@pytest.mark.slow
def test_every_case_runs_on_the_cpu():
    """A script that does not run judges nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "doctor.every_case"],
        check=False,
        capture_output=True,
        text=True,
        cwd=TESTS,
        env=os.environ | {"CASE_STEPS": "4", "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.slow
def test_labels_are_what_the_profiler_says(tmp_path):
    """Every labelled line has its blocking calls, and no other line has any."""
    cases = [case for case in all_cases() if not case.apart]

    results = run_all(cases, tmp_path / "truth.json", jobs=min(12, os.cpu_count() or 1))

    assert all(one["right"] for one in results), say(results)


def call(name, ts, *, tid=1, dur=5, **args):
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "ts": ts,
        "tid": tid,
        "dur": dur,
        "args": args,
    }


def mark(line, ts, *, tid=1):
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"corpus-line case.py:{line}",
        "ts": ts,
        "tid": tid,
        "dur": 1,
    }


def operation(name, ts, *, tid, sequence):
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "ts": ts,
        "tid": tid,
        "dur": 10,
        "args": {"Sequence number": sequence},
    }


def copy(correlation, *, nbytes, name="Memcpy HtoD (Pageable -> Device)"):
    return {
        "ph": "X",
        "cat": "gpu_memcpy",
        "name": name,
        "ts": 0,
        "tid": 7,
        "dur": 1,
        "args": {"correlation": correlation, "bytes": nbytes},
    }


def steps_of_the_case(extra=()):
    """Return the trace of 20 steps of `CASE` as the profiler would write it."""
    events = []
    for step in range(20):
        at = 1000 * step
        events += [
            mark(2, at),
            mark(3, at + 100),
            call("cudaMemcpyAsync", at + 110, correlation=10 * step),
            call("cudaStreamSynchronize", at + 120),
            mark(4, at + 200),
            call("cudaMemcpyAsync", at + 210, correlation=10 * step + 1),
            call("cudaLaunchKernel", at + 220),
            copy(10 * step, nbytes=4, name="Memcpy DtoH (Device -> Pageable)"),
            copy(10 * step + 1, nbytes=1 << 20),
            mark(5, at + 300),
            operation(
                "autograd::engine::evaluate_function: IndexBackward0",
                at + 310,
                tid=2,
                sequence=step,
            ),
            call("cudaStreamSynchronize", at + 315, tid=2),
            mark(6, at + 400),
            operation("aten::index", at + 410, tid=1, sequence=step),
            mark(7, at + 500),
            *(one | {"ts": at + one["ts"]} for one in extra),
        ]
    return read_trace(events)


@pytest.fixture
def case(tmp_path):
    path = tmp_path / "case.py"
    path.write_text(CASE)
    return read_case(path)


def test_a_copy_and_its_wait_are_one_wait():
    """`.item()` copies and then waits; a pageable copy that nothing follows waits by itself."""
    found = [kind for _, kind in blocking_calls(steps_of_the_case())]

    assert found[:3] == ["stream", "pageable", "stream"]
    assert len(found) == 60


def test_right_labels_are_right(case):
    """Waits of Python, of staged copies and of nodes of the backward pass find their lines."""
    found = judge(case, steps_of_the_case(), main=1, sync_debug={"case.py:3": 20})

    assert found["right"], found
    assert [one["found"] for one in found["labels"]] == [1, 1, 1]
    assert [one["sync_debug_found"] for one in found["labels"]] == [True, False, False]


def test_a_wait_without_a_label_is_named(case):
    """It is never dropped."""
    trace = steps_of_the_case([call("cudaDeviceSynchronize", 510)])

    found = judge(case, trace, main=1, sync_debug={})

    assert not found["right"]
    assert [(one["line"], one["kinds"]) for one in found["unlabelled"]] == [
        ("case.py:7", {"device": 1 * 9})
    ]


def test_a_label_without_a_wait_is_named(case, tmp_path):
    """A line that does not wait is not labelled as if it did."""
    case.path.write_text(CASE.replace('print("no label")', "x.cpu()  # waits: cpu"))

    found = judge(read_case(case.path), steps_of_the_case(), main=1, sync_debug={})

    assert [one["right"] for one in found["labels"]] == [True, True, True, False]
