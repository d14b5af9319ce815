"""Hold the labels of the corpus against the profiler's list of blocking runtime calls, on a GPU.

    cd tests && python -m doctor.truth --json FILE --jobs 12

Each case runs in a process of its own under `torch.profiler`. A trace function marks, in the
profiler's own clock and thread, which line of the corpus' files is being run; a blocking call belongs
to the last mark before it. A call of a C++ node of the backward pass belongs to the line of the
forward operation with the same sequence number. Cases that FILE holds as right are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch

from doctor.labels import Case, all_cases, read_case, run_waiting


BLOCKING = {
    "cudaStreamSynchronize": "stream",
    "cuStreamSynchronize": "stream",
    "cudaEventSynchronize": "event",
    "cuEventSynchronize": "event",
    "cudaDeviceSynchronize": "device",
    "cuCtxSynchronize": "device",
    "cudaMemcpy": "copy",
    "cudaMemcpy2D": "copy",
    "cudaFree": "free",
    "cuMemRelease": "free",
    "cuMemUnmap": "free",
    "cudaHostAlloc": "host allocation",
    "cudaMallocHost": "host allocation",
    "cudaHostRegister": "host allocation",
    "cudaFreeHost": "host allocation",
}
STAGED = ("cudaMemcpyAsync", "cudaMemcpy2DAsync")
# The driver stages what is not larger without waiting for the device.
STAGED_WITHOUT_WAIT_BYTES = 64 * 1024
WARM_UP = 10
# What comes seldom in the window is the allocator's or a library's own, not the line's.
SELDOM = 0.05
MARK = "corpus-line "
# Before the line of a mark that a return from a call leads back to: the line has not begun anew.
BACK = "~"


@dataclass
class Trace:
    """What a case left: marks of lines, runtime calls, copies and autograd's operations."""

    marks: dict[int, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    calls: list[dict] = field(default_factory=list)
    copies: dict[int, dict] = field(default_factory=dict)
    forward: list[dict] = field(default_factory=list)
    backward: list[dict] = field(default_factory=list)


@dataclass(frozen=True)
class Site:
    """Where a blocking call belongs: "file:line", or "" where nobody knows, and the thread."""

    line: str
    thread: str


def read_trace(events: list[dict]) -> Trace:
    """Sort the events of a Chrome trace of `torch.profiler`."""
    trace = Trace()
    for event in events:
        if event.get("ph") != "X":
            continue
        kind, name, args = event.get("cat", ""), event["name"], event.get("args", {})
        if name.startswith(MARK):
            trace.marks[event["tid"]].append((event["ts"], name.removeprefix(MARK)))
        elif kind in ("cuda_runtime", "cuda_driver"):
            trace.calls.append(event)
        elif kind == "gpu_memcpy":
            trace.copies[args.get("correlation")] = event
        elif kind == "cpu_op" and "Sequence number" in args:
            is_backward = name.startswith("autograd::engine::evaluate_function")
            (trace.backward if is_backward else trace.forward).append(event)
    for marks in trace.marks.values():
        marks.sort()
    trace.calls.sort(key=lambda call: call["ts"])
    return trace


def window(trace: Trace, step: str) -> tuple[float, float, int]:
    """Return the beginning and end of the steps after warm-up, in us, and their number.

    Raises:
        ValueError: the line of the step ran too seldom.
    """
    times = sorted(ts for marks in trace.marks.values() for ts, line in marks if line == step)
    if len(times) < WARM_UP + 2:
        raise ValueError(f"{step} ran {len(times)} times; at least {WARM_UP + 2} are needed.")
    return times[WARM_UP], times[-1], len(times) - 1 - WARM_UP


def blocking_calls(trace: Trace) -> list[tuple[dict, str]]:
    """Return the runtime calls that make the host wait, with their kind, in order of time."""
    found = []
    by_thread: dict[int, list[dict]] = defaultdict(list)
    for call in trace.calls:
        by_thread[call["tid"]].append(call)
    for calls in by_thread.values():
        for call, following in zip(calls, [*calls[1:], None], strict=True):
            if call["name"] in BLOCKING:
                found.append((call, BLOCKING[call["name"]]))
            elif call["name"] in STAGED and _is_staged(trace, call):
                # Followed by a wait for its stream, both are one wait.
                waits = following is not None and BLOCKING.get(following["name"]) == "stream"
                if not waits:
                    found.append((call, "pageable"))
    return sorted(found, key=lambda one: one[0]["ts"])


def _is_staged(trace: Trace, call: dict) -> bool:
    copy = trace.copies.get(call.get("args", {}).get("correlation"))
    if copy is None or "Pageable" not in copy["name"]:
        return False
    large = copy.get("args", {}).get("bytes", 0) > STAGED_WITHOUT_WAIT_BYTES
    return large or "DtoH" in copy["name"]


def site_of(trace: Trace, call: dict, *, main: int, autograd: set[int]) -> Site:
    """Return the line that a call belongs to, and its thread."""
    tid = call["tid"]
    thread = "main" if tid == main else "autograd" if tid in autograd else "other"
    line = _line_at(trace, tid, call["ts"])
    node = next((op for op in trace.backward if _holds(op, call)), None)
    if node is not None and not _marked_inside(trace, node, call):
        line = _forward_line(trace, node["args"]["Sequence number"])
    return Site(line=line, thread=thread)


def _line_at(trace: Trace, tid: int, ts: float) -> str:
    marks = trace.marks.get(tid, [])
    place = bisect_right(marks, (ts, "\uffff")) - 1
    return marks[place][1].removeprefix(BACK) if place >= 0 else ""


def _holds(op: dict, call: dict) -> bool:
    return op["tid"] == call["tid"] and op["ts"] <= call["ts"] <= op["ts"] + op["dur"]


def _marked_inside(trace: Trace, node: dict, call: dict) -> bool:
    """Return whether Python ran in a node before a call, and still does."""
    inside = [
        line for ts, line in trace.marks.get(node["tid"], []) if node["ts"] <= ts <= call["ts"]
    ]
    return bool(inside) and inside[-1].removeprefix(BACK) != ""


def _forward_line(trace: Trace, sequence: int) -> str:
    lines = [
        _line_at(trace, op["tid"], op["ts"])
        for op in trace.forward
        if op["args"]["Sequence number"] == sequence
    ]
    return next((line for line in lines if line), "")


def judge(case: Case, trace: Trace, *, main: int, sync_debug: Counter[str]) -> dict:
    """Return what the profiler says of each label, and of the lines without one."""
    begin, end, steps = window(trace, f"{case.step[0].name}:{case.step[1]}")
    autograd = {op["tid"] for op in trace.backward} - {main}
    counts: Counter[Site] = Counter()
    microseconds: Counter[Site] = Counter()
    kinds: dict[Site, Counter[str]] = defaultdict(Counter)
    for call, kind in blocking_calls(trace):
        if begin <= call["ts"] < end:
            site = site_of(trace, call, main=main, autograd=autograd)
            counts[site] += 1
            microseconds[site] += call["dur"]
            kinds[site][kind] += 1
    runs = Counter(
        line for marks in trace.marks.values() for ts, line in marks if begin <= ts < end
    )
    labels, left = [], set(counts)
    for wait in (wait for wait in case.waits if wait.is_wait):
        covered = {
            site
            for site in counts
            if site.thread == wait.thread and site.line and wait.covers(*_place(site.line))
        }
        same = [
            other
            for other in case.waits
            if (other.path, other.line, other.thread) == (wait.path, wait.line, wait.thread)
        ]
        left -= covered
        count = sum(counts[site] for site in covered) / steps
        if wait.cause == "query":
            lines = range(wait.first_line, wait.last_line + 1)
            count = sum(runs[f"{wait.path.name}:{line}"] for line in lines) / steps
        least, most = sum(one.least for one in same), sum(one.most for one in same)
        labels.append(
            {
                "label": f"{wait.path.name}:{wait.line} {wait.cause} in {wait.thread}",
                "expected": [float(least), float(most)],
                "found": count,
                "us_a_step": sum(microseconds[site] for site in covered) / steps,
                "kinds": dict(sum((kinds[site] for site in covered), Counter())),
                "unsure": wait.unsure,
                "right": least * 0.85 - 1 / steps <= count <= most * 1.15 + 1 / steps,
                "sync_debug_expected": wait.in_sync_debug,
                "sync_debug_found": any(wait.covers(*_place(line)) for line in sync_debug),
            }
        )
    unlabelled = [
        {
            "line": site.line or "unattributed",
            "thread": site.thread,
            "found": counts[site] / steps,
            "us_a_step": microseconds[site] / steps,
            "kinds": dict(kinds[site]),
        }
        for site in left
        if counts[site] / steps > SELDOM
    ]
    right = all(one["right"] for one in labels) and not unlabelled
    return {
        "case": case.name,
        "right": right,
        "steps": steps,
        "labels": labels,
        "unlabelled": unlabelled,
        "sync_debug": dict(sync_debug),
    }


def _place(line: str) -> tuple[Path, int]:
    name, _, number = line.rpartition(":")
    return Path(name), int(number)


class Marker:
    """Marks in the profiler's trace which line of the corpus each thread is at."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}{os.sep}"
        self._mark = torch._C._profiler._RecordFunctionFast

    def install(self) -> None:
        """Trace this thread, threads that begin later, and autograd's; not processes forked off."""
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        if torch.cuda.is_available():
            seed = torch.zeros(1, device="cuda", requires_grad=True)
            seed.register_hook(lambda _: sys.settrace(self.trace))
            (seed * 2).sum().backward()
        os.register_at_fork(after_in_child=lambda: (threading.settrace(None), sys.settrace(None)))

    def trace(self, frame, event, _):
        """Be the trace function: of frames of the corpus alone."""
        if not frame.f_code.co_filename.startswith(self._folder):
            return None
        begins = frame.f_lineno == frame.f_code.co_firstlineno
        self._set(frame, back="" if begins else BACK)
        return self._local

    def _local(self, frame, event, _):
        if event == "return":
            self._set(frame.f_back, back=BACK)
        else:
            self._set(frame, back="")
        return self._local

    def _set(self, frame, *, back: str) -> None:
        with self._mark(MARK + back + self.line_of(frame)):
            pass

    def line_of(self, frame) -> str:
        """Return the innermost line of the corpus at or above a frame, or nothing."""
        while frame is not None and not frame.f_code.co_filename.startswith(self._folder):
            frame = frame.f_back
        if frame is None:
            return ""
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def run_case(path: Path, out: Path) -> None:
    """Run one case in this process as Python would, under the profiler, and judge it."""
    case, marker = read_case(path), Marker(path.parent)
    sync_debug: Counter[str] = Counter()

    def note(message, *_args, **_more):
        if "synchronizing CUDA operation" in str(message):
            sync_debug[marker.line_of(sys._getframe(1))] += 1

    warnings.showwarning = note
    warnings.simplefilter("always")
    settings = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.init()
        # Where a script makes errors of warnings, those of this mode would end it.
        if 'simplefilter("error")' not in path.read_text():
            torch.cuda.set_sync_debug_mode("warn")
    sys.argv, sys.path[0] = [str(path)], str(path.parent)
    with torch.profiler.profile(activities=activities, experimental_config=settings) as profiler:
        marker.install()
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            sys.settrace(None)
            threading.settrace(None)
            if torch.cuda.is_available():
                if torch.cuda.get_sync_debug_mode():
                    torch.cuda.set_sync_debug_mode("default")
                torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    sync_debug.pop("", None)
    found = judge(case, read_trace(events), main=threading.get_native_id(), sync_debug=sync_debug)
    out.write_text(json.dumps(found))


def truth_of(case: Case, *, timeout_s: float = 240) -> dict:
    """Run a case in a process of its own; return what was found, or what went wrong as "error"."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "doctor.truth", "--case", str(case.path)]
        try:
            done = subprocess.run(
                [*command, "--json", str(out)],
                check=False,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                cwd=Path(__file__).parents[1],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        except subprocess.TimeoutExpired:
            return {"case": case.name, "right": False, "error": f"over {timeout_s:.0f} s"}
        if done.returncode or not out.exists():
            return {"case": case.name, "right": False, "error": done.stderr[-2000:]}
        return json.loads(out.read_text())


def run_all(cases: list[Case], file: Path, *, jobs: int) -> list[dict]:
    """Run all cases that a file does not hold as right; return all results."""
    return run_waiting(cases, file, truth_of, jobs=jobs)


def say(results: list[dict]) -> str:
    """Return what is wrong, one line each, and the counts."""
    lines = []
    for one in results:
        lines += (
            [f"{one['case']}: {one['error'].strip().splitlines()[-1]}"] if "error" in one else []
        )
        for label in one.get("labels", []):
            if not label["right"]:
                doubt = " (was unsure)" if label["unsure"] else ""
                lines.append(
                    f"{one['case']}: {label['label']}: {label['found']:.2f} a step, labelled "
                    f"{label['expected']}{doubt}; {label['kinds']}"
                )
            if (
                label["right"]
                and label["found"]
                and (label["sync_debug_expected"] != label["sync_debug_found"])
            ):
                seen = "saw" if label["sync_debug_found"] else "did not see"
                lines.append(f"{one['case']}: {label['label']}: sync debug mode {seen} it")
        for line in one.get("unlabelled", []):
            lines.append(
                f"{one['case']}: {line['line']} in {line['thread']} has no label, "
                f"but {line['found']:.2f} waits a step; {line['kinds']}"
            )
    right = sum(one["right"] for one in results)
    return "\n".join([*lines, f"{right} of {len(results)} cases are as labelled."])


def main() -> int:
    """Run one case here (`--case`), or all in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--case", type=Path)
    parser.add_argument("--only", default="", help='cases whose name holds this: "frameworks/"')
    chosen = parser.parse_args()
    if chosen.case:
        try:
            run_case(chosen.case.resolve(), chosen.json)
        except (Exception, SystemExit):
            traceback.print_exc()
            return 1
        return 0
    cases = [case for case in all_cases() if chosen.only in case.name]
    if not chosen.only:
        cases = [case for case in cases if not case.apart]
    results = run_all(cases, chosen.json, jobs=chosen.jobs)
    print(say(results))
    return 0 if all(one["right"] for one in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
