"""Hold what `gapless doctor` finds against the labels of the corpus, on a GPU.

    cd tests && python -m doctor.judge --json FILE --jobs 12 --frameworks [--truth FILE]

Each case runs under the doctor in a process of its own, and as Python runs it where it prints. A
finding of another process is known by its session in JSON alone. `--truth` takes what `doctor.truth`
wrote: then what the profiler saw decides about lines without a label, and what sync debug mode found
stands beside. Cases that FILE holds as right are not run again; `--fresh` runs all.

    cd tests && python -m doctor.judge --static

holds the look at the syntax tree against the labels, with no GPU and without running anything.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from doctor.labels import Case, Wait, all_cases, run_waiting
from gapless.doctor.advice.causes import CODE_OF


SOURCE = Path(__file__).resolve().parents[2] / "src"
# Warm-up and all windows of the doctor fit into these; where it must watch for a time, it has longer.
STEPS = 100
STEPS_WITHOUT_OPTIMIZER = 1500
TIMEOUT_S = 150.0
# What comes this seldom in a window is not a line's own.
SELDOM = 0.05
# Host time that is lost without a wait for the device: a loader, launches, shapes, the collector, and
# the driver that looks for memory, which may be in any line.
COSTS = frozenset(CODE_OF[cause] for cause in ("loader", "launch", "shapes", "gc"))
COSTLY_CALLS = frozenset({"cudaMalloc"})
MISTAKES = {
    "crashed": "the doctor failed, or left no session that can be read",
    "exit code": "the exit code is not the script's",
    "output": "the script printed something else",
    "missed": "a wait was not found",
    "wrong line": "a wait was found on another line",
    "wrong thread": "a wait was found in another thread",
    "count": "a wait was found more or less often than it happens",
    "false alarm": "a line that does not wait was reported",
    "unattributed": "a wait was reported without a line",
    "cost": "a cost was not found",
}


@dataclass(frozen=True)
class Ran:
    """What a script left: its exit code and what it printed."""

    code: int
    stdout: str
    stderr: str = ""


@dataclass(frozen=True)
class Found:
    """A finding of a session; lines are pairs of a file's name and a number."""

    code: str
    lines: tuple[tuple[str, int], ...]
    thread: str
    per_step: float
    certainty: str
    call: str

    @property
    def is_cost(self) -> bool:
        """Whether it is host time and no wait."""
        return self.code in COSTS or self.call in COSTLY_CALLS

    @property
    def text(self) -> str:
        """How it is named in a mistake."""
        at = " / ".join(f"{name}:{line}" for name, line in self.lines) or "no line"
        return f"{self.code} at {at} in {self.thread}, {self.per_step:.2f} a step"

    def is_of(self, wait: Wait) -> bool:
        """Return whether one of its lines is that of a label."""
        return any(wait.covers(Path(name), line) for name, line in self.lines)


def read_findings(session: dict) -> list[Found]:
    """Return the findings of a session as it stands in JSON."""
    found = []
    for one in session["findings"]:
        places = [one.get("site"), one.get("forward")]
        thread = one["thread"] if one["thread"] in ("main", "autograd") else "other"
        found.append(
            Found(
                code=one["code"],
                lines=tuple((Path(at["path"]).name, at["line"]) for at in places if at),
                thread=thread,
                per_step=one["per_step"],
                certainty=one["certainty"],
                call=one.get("call", ""),
            )
        )
    return found


def judge(case: Case, session: dict, *, truth: dict | None = None) -> dict:
    """Return what a session says of each label of a case, and every mistake it makes.

    Without an accelerator nothing can wait for one: the labels are left out.
    """
    if session["device"] == "cpu":
        return {"case": case.name, "labels": [], "harmless": 0, "device": "cpu"} | _verdict([])
    all_found = read_findings(session)
    seen = [one for one in all_found if one.certainty == "seen" and not one.is_cost]
    steps = ((session.get("steps") or {}).get("num_steps")) or 20
    scale = 1.0 if case.has_optimizer else _steps_in_one(case, seen)
    left, mistakes, labels = list(seen), [], []
    waits = [wait for wait in case.waits if wait.is_wait]
    # What belongs to a label is taken away first: what is left may be a label's wrong line.
    for wait in waits:
        left = [one for one in left if not (one.is_of(wait) and one.thread == wait.thread)]
    for wait in waits:
        mine = [one for one in seen if one.is_of(wait) and one.thread == wait.thread]
        count = sum(one.per_step for one in mine) / scale
        kind, text = _mistake(wait, waits, mine, count, left, steps)
        labels.append(
            {
                "label": _name(wait),
                "group": _group(case, wait),
                "required": wait.least > 0,
                "line": bool(mine),
                "code": any(one.code == CODE_OF[wait.cause] for one in mine),
                "right": not kind,
                "sync_debug": _seen_by_sync_debug(wait, truth),
            }
        )
        if kind:
            mistakes.append([kind, text])
    mistakes += [_false_alarm(case, one) for one in left if _counts(one, truth, scale)]
    mistakes += [
        _false_alarm(case, one)
        for one in all_found
        if one.certainty == "surely" and not any(one.is_of(wait) for wait in case.waits)
    ]
    mistakes += [
        ["cost", f"{_name(wait)} was not found"]
        for wait in case.waits
        if not wait.is_wait
        and wait.least > 0
        and not any(one.code == CODE_OF[wait.cause] for one in all_found)
    ]
    return {"case": case.name, "labels": labels, "harmless": len(case.harmless)} | _verdict(
        mistakes
    )


def _verdict(mistakes: list[list[str]]) -> dict:
    return {"right": not mistakes, "mistakes": mistakes}


def _mistake(
    wait: Wait, waits: list[Wait], mine: list[Found], count: float, left: list[Found], steps: int
) -> tuple[str, str]:
    """Return what is wrong with a label, or nothing; a finding of another line is used up."""
    if not mine:
        if wait.least == 0:
            return "", ""
        elsewhere = next((one for one in left if one.is_of(wait)), None)
        if elsewhere:
            left.remove(elsewhere)
            return "wrong thread", f"{_name(wait)}: {elsewhere.text}"
        code = CODE_OF[wait.cause]
        nearby = next(
            (one for one in left if one.code == code and one.thread == wait.thread), None
        )
        if nearby:
            left.remove(nearby)
            return "wrong line", f"{_name(wait)}: {nearby.text}"
        return "missed", _name(wait)
    # Several labels of one line in one thread are counted together.
    here = (wait.path, wait.first_line, wait.last_line, wait.thread)
    same = [
        other
        for other in waits
        if (other.path, other.first_line, other.last_line, other.thread) == here
    ]
    least, most = (float(sum(getattr(one, end) for one in same)) for end in ("least", "most"))
    if least * 0.85 - 1 / steps <= count <= most * 1.15 + 1 / steps:
        return "", ""
    return "count", f"{_name(wait)}: {count:.2f} a step, labelled {least:g} to {most:g}"


def _steps_in_one(case: Case, seen: list[Found]) -> float:
    """Return how many of a case's steps make one of the session's, where no optimizer tells it.

    Only the proportions of the counts of such a case can be judged.
    """
    ratios = []
    for wait in case.waits:
        count = sum(one.per_step for one in seen if one.is_of(wait) and one.thread == wait.thread)
        if wait.is_wait and wait.least > 0 and count:
            ratios.append(count * 2 / float(wait.least + wait.most))
    return sorted(ratios)[len(ratios) // 2] if ratios else 1.0


def _false_alarm(case: Case, one: Found) -> list[str]:
    if not one.lines:
        return ["unattributed", one.text]
    for line in case.harmless:
        if any(
            name == line.path.name and line.first_line <= at <= line.last_line
            for name, at in one.lines
        ):
            return ["false alarm", f"{one.text}, which is harmless: {line.reason}"]
    return ["false alarm", f"{one.text}, which has no label"]


def _counts(one: Found, truth: dict | None, scale: float) -> bool:
    """Return whether a finding without a label is a mistake: the profiler did not see it either."""
    if one.per_step / scale <= SELDOM:
        return False
    places = {f"{name}:{line}" for name, line in one.lines} or {"unattributed"}
    known = (truth or {}).get("unlabelled", [])
    return not any(wait["line"] in places and wait["thread"] == one.thread for wait in known)


def _seen_by_sync_debug(wait: Wait, truth: dict | None) -> bool:
    for label in (truth or {}).get("labels", []):
        if label["label"] == _name(wait):
            return label["sync_debug_found"]
    return wait.in_sync_debug


def _name(wait: Wait) -> str:
    return f"{wait.path.name}:{wait.line} {wait.cause} in {wait.thread}"


def _group(case: Case, wait: Wait) -> str:
    if case.apart:
        return case.apart
    return {"main": "main thread", "autograd": "autograd", "other": "other threads"}[wait.thread]


def judge_run(case: Case, ran: Ran, plain: Ran, session: str | None, truth: dict | None) -> dict:
    """Return the verdict on a whole run: the script's own result first, then its session."""
    mistakes = []
    if ran.code != plain.code:
        last = (ran.stderr.strip().splitlines() or [""])[-1]
        mistakes.append(["exit code", f"{ran.code} in place of {plain.code}: {last}"])
    if _shape(ran.stdout) != _shape(plain.stdout):
        mistakes.append(["output", _first_difference(_shape(ran.stdout), _shape(plain.stdout))])
    try:
        found = judge(case, json.loads(session or ""), truth=truth)
    except (ValueError, KeyError, TypeError) as error:
        last = (ran.stderr.strip().splitlines() or ["no session was written"])[-1]
        mistakes.append(["crashed", f"{last} ({type(error).__name__}: {error})"])
        return {"case": case.name, "labels": [], "harmless": 0} | _verdict(mistakes)
    return found | _verdict(mistakes + found["mistakes"])


def _shape(text: str) -> list[str]:
    """Return the words of an output without its numbers and devices, which differ between runs.

    Where lines of a tensor end hangs on its numbers as well.
    """
    text = re.sub(r",\s+device='\w+(:\d+)?'", "", text)
    text = re.sub(r"[-+]?(\d[\d.]*(e[-+]?\d+)?|nan|inf)", "#", text)
    return text.split()


def _first_difference(ran: list[str], plain: list[str]) -> str:
    for here, there in zip(ran, plain, strict=False):
        if here != there:
            return f"{here[:80]!r} in place of {there[:80]!r}"
    return f"{len(ran)} words in place of {len(plain)}"


def run(command: list[str], *, folder: Path, steps: int, **environment: str) -> Ran:
    """Run a command; what takes longer than the limit has no exit code that a script can have."""
    # Of this tree, wherever it is run from, and whether it is installed or not.
    path = [str(SOURCE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    settings = {
        "CASE_STEPS": str(steps),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    } | environment
    try:
        done = subprocess.run(
            [sys.executable, *command],
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=folder,
            env=os.environ | settings,
        )
    except subprocess.TimeoutExpired:
        return Ran(code=-1000, stdout="", stderr=f"over {TIMEOUT_S:.0f} s")
    return Ran(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def run_case(case: Case, *, truth: dict | None, steps: int | None) -> dict:
    """Run a case under the doctor, and as it is where it prints; return the verdict."""
    begin = time.perf_counter()
    steps = steps or (STEPS if case.has_optimizer else STEPS_WITHOUT_OPTIMIZER)
    with tempfile.TemporaryDirectory() as name:
        folder, session = Path(name), Path(name) / "session.json"
        options = ["--format", "json", "--out", str(session)]
        doctor = ["-m", "gapless", "doctor", *options, str(case.path)]
        ran = run(doctor, folder=folder, steps=steps)
        plain = Ran(code=0, stdout="")
        if "print(" in case.path.read_text() or ran.stdout.strip():
            # What it prints mostly hangs on the device in nothing but numbers.
            plain = run([str(case.path)], folder=folder, steps=steps, CUDA_VISIBLE_DEVICES="")
            if _shape(ran.stdout) != _shape(plain.stdout):
                plain = run([str(case.path)], folder=folder, steps=steps)
        text = session.read_text() if session.exists() else None
    if ran.stdout.startswith("skipped:"):
        return {"case": case.name, "right": True, "skipped": ran.stdout.strip(), "labels": []}
    verdict = judge_run(case, ran, plain, text, truth)
    return verdict | {"seconds": round(time.perf_counter() - begin, 1)}


def run_all(
    cases: list[Case], file: Path, *, jobs: int, truth: dict[str, dict], steps: int | None = None
) -> list[dict]:
    """Run all cases that a file does not hold as right; return all results."""
    return run_waiting(
        cases,
        file,
        lambda case: run_case(case, truth=truth.get(case.name), steps=steps),
        jobs=jobs,
    )


def judge_static(cases: list[Case], session: dict) -> list[dict]:
    """Return what a look at the syntax of all cases says of their labels and of other lines."""
    found = read_findings(session)
    results = []
    for case in cases:
        mistakes, labels = [], []
        files = {case.path.name} | {line.path.name for line in (*case.waits, *case.harmless)}
        here = [one for one in found if {name for name, _ in one.lines} & files]
        for wait in case.waits:
            mine = {one.certainty for one in here if one.is_of(wait)}
            wanted = {"surely": {"surely"}, "maybe": {"surely", "maybe"}}.get(wait.static)
            if wait.least == 0 and wait.static == "maybe":
                wanted = None
            right = wanted is None or bool(mine & wanted)
            labels.append(
                {
                    "label": _name(wait),
                    "group": f"static {wait.static}",
                    "required": wanted is not None,
                    "line": bool(mine),
                    "code": any(
                        one.code == CODE_OF[wait.cause] for one in here if one.is_of(wait)
                    ),
                    "right": right,
                    "sync_debug": False,
                }
            )
            if not right:
                said = " and ".join(sorted(mine)) or "nothing"
                mistakes.append(["missed", f"{_name(wait)}: {said}, not {wait.static}"])
        mistakes += [
            _false_alarm(case, one)
            for one in here
            if one.certainty == "surely" and not any(one.is_of(wait) for wait in case.waits)
        ]
        row = {"case": case.name, "labels": labels, "harmless": len(case.harmless)}
        results.append(row | _verdict(mistakes))
    return results


def look_at_syntax(cases: list[Case]) -> list[dict]:
    """Run `gapless doctor --static` once over the whole corpus and judge what it says."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "session.json"
        options = ["--static", "--format", "json", "--out", str(out)]
        labels = [label for case in cases for label in (*case.waits, *case.harmless)]
        files = {case.path for case in cases} | {label.path for label in labels}
        command = ["-m", "gapless", "doctor", *options, *sorted(map(str, files))]
        ran = run(command, folder=Path(name), steps=STEPS)
        if not out.exists():
            raise SystemExit(f"gapless doctor --static left no session: {ran.stderr[-500:]}")
        return judge_static(cases, json.loads(out.read_text()))


def say(results: list[dict]) -> str:
    """Return every mistake in a line of its own, then a table of the groups, then the counts."""
    lines = [
        f"{one['case']}: {kind}: {text}"
        for one in results
        for kind, text in one.get("mistakes", [])
    ]
    lines += [f"{one['case']}: {one['skipped']}" for one in results if "skipped" in one]
    labels = [label for one in results for label in one["labels"] if label["required"]]
    groups = sorted({label["group"] for label in labels})
    head = ("", "labels", "right", "line found", "same code", "sync debug mode")
    lines += ["", _row(head)]
    for group in [*groups, "all"]:
        mine = [label for label in labels if group in ("all", label["group"])]
        counts = [sum(label[key] for label in mine) for key in ("right", "line", "code")]
        seen = sum(label["sync_debug"] for label in mine)
        lines.append(_row((group, len(mine), *counts, seen)))
    kinds = Counter(kind for one in results for kind, _ in one.get("mistakes", []))
    lines += ["", *(f"{number} x {kind}: {MISTAKES[kind]}" for kind, number in kinds.items())]
    harmless = sum(one.get("harmless", 0) for one in results)
    skipped = sum("skipped" in one for one in results)
    right = sum(one["right"] for one in results) - skipped
    lines.append(
        f"{right} of {len(results) - skipped} cases are right, with {len(labels)} lines that wait and "
        f"{harmless} that only look so; {skipped} were skipped."
    )
    if without := sum(one.get("device") == "cpu" for one in results):
        lines.append(f"{without} cases ran without an accelerator: no wait of theirs was judged.")
    return "\n".join(lines)


def _row(cells: tuple) -> str:
    return f"{cells[0]!s:16}" + "".join(f"{cell!s:>16}" for cell in cells[1:])


def main() -> int:
    """Judge the corpus; return 0 if everything is right, 2 if there is no accelerator to judge on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("judge.json"))
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--frameworks", action="store_true", help="those of frameworks as well")
    parser.add_argument("--truth", type=Path, help="what doctor.truth wrote")
    parser.add_argument("--steps", type=int, help="steps of each case")
    parser.add_argument("--fresh", action="store_true", help="run what was right as well")
    parser.add_argument("--static", action="store_true", help="judge the look at the syntax tree")
    chosen = parser.parse_args()
    apart = ["frameworks"] if chosen.frameworks or chosen.only else []
    cases = [case for case in all_cases() if case.apart in ("", *apart)]
    cases = [case for case in cases if chosen.only in case.name]
    if chosen.static:
        results = look_at_syntax(cases)
    else:
        if chosen.fresh:
            chosen.json.unlink(missing_ok=True)
        truth = json.loads(chosen.truth.read_text()) if chosen.truth else []
        by_name = {one["case"]: one for one in truth}
        results = run_all(cases, chosen.json, jobs=chosen.jobs, truth=by_name, steps=chosen.steps)
    print(say(results))
    if any(one.get("device") == "cpu" for one in results):
        return 2
    return 0 if all(one["right"] for one in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
