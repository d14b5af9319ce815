"""`gapless run`."""

from __future__ import annotations

import atexit
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.cli.output import fitting, write
from gapless.cli.parser import UsageError, flag
from gapless.cli.ranks import is_rank_0
from gapless.cli.requirements import require_writable
from gapless.graphs.switch import is_switched_off
from gapless.scripts import Program, check_runs


if TYPE_CHECKING:
    from argparse import Namespace

    from gapless.cli.parser import Parser
    from gapless.running.captured_objects import CapturedObjects


DETAILS = """
Runs a script as Python would, and after some steps captures where they stand
the modules that its loop calls and the optimizers that it uses: their calls
are launched as CUDA graphs from then on, with the same bits, or run as
written. Everything after the script is the script's. The script needs no
change; output, files and exit code are its own.

One line at the start and one paragraph at the end go to standard error: what
ran as graphs, what that saved and took, and what ran as written and why.

  gapless run train.py --epochs 1
  gapless run -m package.train
  gapless run torchrun --nproc-per-node 2 train.py

With GAPLESS_CAPTURE=off in the environment nothing is captured.

Exit code: that of the script; 2 a mistake in what was asked.
"""


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    parser.usage = "gapless run [options] (SCRIPT | -m MODULE) ARGS..."
    what = parser.add_group("what is run")
    what.add_argument(
        "script",
        nargs="*",
        metavar="SCRIPT ARGS",
        help="file to run, or torchrun, and its arguments",
    )
    what.add_argument(
        "-m", dest="module", metavar="MODULE", help="run a module instead of a file, as python -m"
    )
    said = parser.add_group("what is said")
    said.add_argument("--quiet", action="store_true", help="say nothing of our own")
    said.add_argument(
        "--report", metavar="FILE", help="also write what was captured there, as JSON"
    )
    parser.leave_rest("script", ends_after="-m", unless=())


def run(options: Namespace) -> int:
    """Run the script, and return its exit code."""
    if options.module is None and not options.script:
        raise UsageError("nothing to run: expected a script, or -m and a module")
    program = Program.of(options.script, module=options.module)
    is_off = is_switched_off()
    # These load no torch: what the script sets before it does, such as environment variables, counts.
    from gapless.doctor.session.launcher import is_launcher, launcher_as_module
    from gapless.running.run_captured import run_as_written, run_captured, run_launcher

    is_torchrun = is_launcher(program)
    if not is_torchrun:
        check_runs(program)
    words = _Words(options, name=Path(program.target).name)
    if is_off:
        words.begin("GAPLESS_CAPTURE=off in the environment: {} runs as written")
        return run_as_written(launcher_as_module(program) if is_torchrun else program).code
    if is_torchrun:
        return run_launcher(program, _options_of_workers(options)).code
    # The first that is registered runs last: after everything that the script has to say.
    atexit.register(words.end)
    words.begin("{} runs as by Python, and what pays is captured (GAPLESS_CAPTURE=off: nothing)")
    outcome = run_captured(program)
    words.captured = outcome.captured
    return outcome.ending.code


def _options_of_workers(options: Namespace) -> list[str]:
    quiet = [flag("quiet")] if options.quiet else []
    return quiet if options.report is None else [*quiet, flag("report"), options.report]


class _Words:
    """What is said before and after a script; nothing that goes wrong here changes how it ends.

    Args:
        options: of the command.
        name: of the script.
    """

    def __init__(self, options: Namespace, *, name: str) -> None:
        self._name = name
        # Before the script changes them, or the working folder.
        self._stream = None if options.quiet or not is_rank_0() else sys.stderr
        self._path: Path | None = None
        if options.report is not None:
            require_writable(Path(options.report), flag("report"))
            self._path = Path(options.report).absolute() if is_rank_0() else None
        self.captured: CapturedObjects | None = None

    def begin(self, text: str) -> None:
        self._say(f"gapless run: {text.format(self._name)}\n")

    def end(self) -> None:
        if self.captured is None:
            return
        self._say(self.captured.text())
        if self._path is not None:
            try:
                text = json.dumps(self.captured.as_dict(), indent=2)
                self._path.write_text(f"{text}\n", encoding="utf-8")
            except OSError as error:
                why = error.strerror or error
                self._say(f"gapless run: warning: cannot write {self._path}: {why}\n")

    def _say(self, text: str) -> None:
        if self._stream is not None:
            write(self._stream, fitting(text.rstrip("\n"), self._stream, indent=4) + "\n")
