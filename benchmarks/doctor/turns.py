"""Run scripts in turns in this process: what starts once, torch and the device, is in no turn.

Each line of stdin is a case: JSON with `rounds`, of which `uncounted` first ones do not count, `commands`, such as
`[["a.py", "--x"], ["b.py"]]`, and words of `gapless doctor` where a run of it follows. A line is printed for each
case: what each command printed last, round by round, and the session of the doctor. Every round begins with
another script.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any


def run_once(command: list[str]) -> dict[str, Any]:
    """Run a script as Python would; return what the last line says that it prints, which is JSON."""
    script, *_ = command
    sys.argv, sys.path[0] = list(command), str(Path(script).parent)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(script, run_name="__main__")
    # What a script leaves is not freed in the turn of another one.
    gc.collect()
    said: dict[str, Any] = json.loads(printed.getvalue().splitlines()[-1])
    return said


def run_doctor_here(words: list[str]) -> dict[str, Any]:
    """Run the doctor in this process; return its session."""
    from gapless.cli.main import run_command

    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        out = Path(name) / "session.json"
        run_command(["doctor", "--format", "json", "--out", str(out), *words])
        session: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    gc.collect()
    return session


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Run the commands of a case in turns, and the doctor."""
    commands = case["commands"]
    turns: list[list[dict[str, Any]]] = [[] for _ in commands]
    places = list(range(len(commands)))
    for number in range(case["uncounted"] + case["rounds"]):
        first = number % len(places)
        for place in places[first:] + places[:first]:
            said = run_once(commands[place])
            if number >= case["uncounted"]:
                turns[place].append(said)
    return {"turns": turns, "session": run_doctor_here(case["doctor"]) if case["doctor"] else None}


def main() -> None:
    """Run all cases, until stdin ends."""
    for line in sys.stdin:
        print(json.dumps(run_case(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
