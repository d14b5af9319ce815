"""Run scripts in turns in this process: what starts once, torch and the device, is in no turn.

`python -m benchmarks.doctor.turns --rounds 5 --commands '[["a.py", "--x"], ["b.py"]]'` prints a line
for each turn, `[place, what it printed last]`. Every round begins with another script.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import runpy
import sys
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


def main() -> int:
    """Run all in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--uncounted", type=int, default=1)
    parser.add_argument("--commands", type=json.loads, required=True)
    chosen = parser.parse_args()
    places = list(range(len(chosen.commands)))
    for number in range(chosen.uncounted + chosen.rounds):
        first = number % len(places)
        for place in places[first:] + places[:first]:
            said = run_once(chosen.commands[place])
            if number >= chosen.uncounted:
                print(json.dumps([place, said]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
