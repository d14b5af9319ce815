"""What the command line loads before a command runs, and what it says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gapless as package
from gapless.cli.main import COMMANDS


SRC = str(Path(package.__file__).parents[1])

# Runs commands one after the other and prints which modules are there that are no part of Python.
LOADS = """
import sys
at_start = set(sys.modules)
from gapless.cli.main import run_command
for arguments in {commands}:
    assert run_command(arguments) == 0
new = {{name.partition(".")[0] for name in set(sys.modules) - at_start}}
print("loaded", *sorted(new - set(sys.stdlib_module_names)))
"""


def test_help_and_version_load_nothing_but_gapless():
    """Neither torch nor any other package is imported for the help of any command."""
    commands = [
        [],
        ["--version"],
        ["--help"],
        ["-h"],
        ["plans"],
        ["explain", "GAP001"],
    ]
    commands += [[name, "--help"] for name in COMMANDS]

    done = subprocess.run(
        [sys.executable, "-c", LOADS.format(commands=commands)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": SRC},
    )

    assert done.stdout.splitlines()[-1] == "loaded gapless"
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_help_lists_every_command(gapless, arguments):
    """No command at all is no mistake either."""
    outcome = gapless(*arguments)

    assert (outcome.code, outcome.err) == (0, "")
    for name in COMMANDS:
        assert f"\n  {name} " in outcome.out


def test_the_version_is_printed(gapless):
    """With the name of the program, as other tools do."""
    outcome = gapless("--version")

    assert (outcome.code, outcome.out) == (0, f"gapless {package.__version__}\n")


# The program that main ends: what threads of torch would be told.
THREADS = """
import os, sys
from gapless.cli.main import main
try:
    main(["--version"])
except SystemExit:
    print([os.environ.get(name) for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")])
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["1000", None]),
        ({"GOMP_SPINCOUNT": "7"}, ["7", None]),
        ({"OMP_WAIT_POLICY": "active"}, [None, "active"]),
    ],
)
def test_threads_of_torch_soon_sleep(given, expected):
    """They would keep other programs, and each other, from the cores; who says otherwise is heard."""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}

    done = subprocess.run(
        [sys.executable, "-c", THREADS],
        capture_output=True,
        text=True,
        check=True,
        env={**environment, "PYTHONPATH": SRC, **given},
    )

    assert done.stdout.splitlines()[-1] == str(expected)


# Runs a command that prints Chinese, and the name of a folder that is no text.
PRINTS = """
from gapless.cli import main
main._run = lambda arguments: print("红 r\\udcff") or 0
main.main([])
"""


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", rb"\u7ea2 r\udcff"), ("utf-8", b"\xe7\xba\xa2 r\\udcff")]
)
def test_text_that_an_output_cannot_take(encoding, shown):
    """It is shown as escapes, in a line as ever: no translation, and no name, ends a command."""
    environment = {**os.environ, "PYTHONPATH": SRC, "PYTHONIOENCODING": encoding}

    ended = subprocess.run(
        [sys.executable, "-c", PRINTS], env=environment, capture_output=True, check=False
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, shown + b"\n", b"")


def test_a_folder_that_is_gone(tmp_path):
    """Libraries of torch would end the process with lines of theirs."""
    gone = (
        "import os, sys; os.rmdir(os.getcwd()); from gapless.cli.main import main; main(['plans'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", gone],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": SRC},
        capture_output=True,
        text=True,
        check=False,
    )

    expected = "gapless: error: the current folder is gone; change to one that exists\n"
    assert (ended.returncode, ended.stderr) == (2, expected)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("is_buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "command",
    [
        *("plans", "explain GAP001", "completion bash", f"doctor --static {__file__}"),
        *("", "--version", "train --help", "train --dry-run --max-steps 1"),
    ],
)
def test_an_output_that_is_full(command, is_buffered, launcher, tmp_path):
    """A disk without room for what was asked for is one line of error, however Python writes."""
    unbuffered = (
        "import io, sys\n"
        'raw = open(1, "wb", buffering=0, closefd=False)\n'
        'sys.stdout = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)'
    )
    with Path("/dev/full").open("wb") as full:
        ended = launcher.run(
            *command.split(),
            folder=tmp_path,
            stdout=full,
            before="" if is_buffered else unbuffered,
        )

    assert ended.code == 2
    assert ended.err.startswith("gapless: error: standard output: No space left on device")
    assert ended.err.count("\n") == 1


# A Ctrl-C while a module is loaded.
INTERRUPTS = """
import runpy, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["plans"]
runpy.run_module("gapless", run_name="__main__")
"""


@pytest.mark.parametrize(
    "module", ["gapless.cli.main", "gapless.cli.parser", "gapless.cli.plans_command"]
)
def test_an_interrupt_of_the_start_leaves_no_traceback(module):
    """Modules that are loaded before any handler is there are no place for one."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTS.format(module=module)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC},
    )

    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr in ("", "gapless: error: interrupted\n")


def test_the_installed_command_starts_where_an_interrupt_is_met():
    """It is what `python -m gapless` does."""
    settings = tomllib.loads((Path(SRC).parent / "pyproject.toml").read_text("utf-8"))

    assert settings["project"]["scripts"] == {"gapless": "gapless.__main__:main"}
