"""A script runs in a process of gapless as it does in one of Python: all that it can see and say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from faults.processes import environment
from gapless.errors import UserError
from gapless.scripts import Program, check_runs


# Runs a program as `python PROGRAM` does.
RUN = """
import sys
from gapless.scripts import Program, leave, run_program, wait_for_threads

words = sys.argv[1:]
if words[0] == "-m":
    program = Program(target=words[1], is_module=True, arguments=tuple(words[2:]))
else:
    program = Program(target=words[0], arguments=tuple(words[1:]))
ending = run_program(program)
wait_for_threads()
leave(ending.code)
"""

# Says all that Python has set for a script.
ASK = """
import sys, __main__
for name in sorted(vars(__main__)):
    if name not in ("sys", "__main__", "__builtins__", "__loader__", "__annotations__", "name"):
        print(name, repr(getattr(__main__, name)).split(" at 0x")[0])
print(type(__loader__).__name__, __builtins__)
print(sys.argv, sys.path[0], sys.orig_argv[1:], __annotations__)
"""


@pytest.fixture
def both(tmp_path):
    """Return a function that runs a program by Python and by us, in one folder, and compares."""
    runner = tmp_path / "runner" / "run.py"
    runner.parent.mkdir()
    runner.write_text(RUN)
    work = tmp_path / "work"
    work.mkdir()

    def run(*words, flags=()):
        done = [
            subprocess.run(
                [sys.executable, *flags, *before, *words],
                check=False,
                capture_output=True,
                text=True,
                cwd=work,
                env=environment(),
            )
            for before in ([], [runner])
        ]
        plain, ours = ((one.returncode, one.stdout, one.stderr) for one in done)
        assert ours == plain
        return plain

    run.folder, run.runner = work, runner
    return run


@pytest.mark.parametrize("target", ["s.py", "./s.py", "sub/../s.py", "link.py", "sub/inner.py"])
def test_a_file_has_the_path_and_the_folder_that_python_gives_it(both, target):
    """However it is named, and where it leads through a link."""
    (both.folder / "sub").mkdir()
    (both.folder / "s.py").write_text(ASK)
    (both.folder / "sub" / "inner.py").write_text(ASK)
    (both.folder / "link.py").symlink_to("sub/inner.py")

    code, out, _ = both(target, "a", "--b")

    assert (code, f"['{target}', 'a', '--b']" in out) == (0, True)


def test_a_file_in_another_encoding_runs(both):
    """In Latin-1, and it says so."""
    latin = "# coding: latin-1\nprint(ascii('\xe9'))\n".encode("latin-1")
    (both.folder / "latin.py").write_bytes(latin)

    assert both("latin.py")[1] == "'\\xe9'\n"


@pytest.mark.parametrize("name", ["app", "s.pyc", "app.zip"])
def test_what_is_no_source_is_refused(tmp_path, name):
    """A package is run by its name."""
    (tmp_path / "app").mkdir()
    for other in ("s.pyc", "app.zip"):
        (tmp_path / other).touch()

    with pytest.raises(
        UserError, match="expected a file of source code; name one, or a package by -m"
    ):
        check_runs(Program(target=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["python3", "x.py"], "leave python3 out, and name x.py itself"),
        (["accelerate", "launch", "x.py"], "accelerate launch -m gapless run SCRIPT"),
        (["absent.py"], "name a script, or a module by -m"),
    ],
)
def test_a_command_in_the_place_of_a_script_is_refused_with_what_works(words, advice):
    """What runs a script is no script."""
    with pytest.raises(UserError, match=advice):
        check_runs(Program.of(words))


def test_modules_run_as_by_dash_m(both):
    """A module of a package, which is imported first; and what is missing is said in Python's words."""
    (both.folder / "pack").mkdir()
    (both.folder / "pack" / "__init__.py").write_text("import sys\nprint(sys.argv[0])\n")
    (both.folder / "pack" / "train.py").write_text(ASK)

    assert both("-m", "pack.train", "x")[0] == 0
    assert both("-m", "pack")[0] == 1
    assert both("-m", "pack.missing")[0] == 1
    assert both("-m", "missing.train")[0] == 1


def test_a_module_that_fails_has_a_traceback_without_frames_of_others(both, tmp_path):
    """Python itself shows those of `runpy`, which say nothing of the script."""
    (both.folder / "train.py").write_text("def f():\n    1 / 0\nf()\n")

    done = subprocess.run(
        [sys.executable, tmp_path / "runner" / "run.py", "-m", "train"],
        check=False,
        capture_output=True,
        text=True,
        cwd=both.folder,
        env=environment(),
    )

    assert done.returncode == 1
    assert done.stderr.count("  File ") == 2
    assert "runpy" not in done.stderr


def test_a_file_of_the_script_shadows_a_module_that_we_have_loaded(both):
    """As it would shadow that of the standard library, or anybody's."""
    for name in ("dataclasses", "traceback", "signal"):
        (both.folder / f"{name}.py").write_text("mine = True\n")
    (both.folder / "s.py").write_text(
        "import dataclasses, signal\nprint(dataclasses.mine, signal.mine)\nimport os, sys, io\n"
    )

    assert both("s.py")[:2] == (0, "True True\n")


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.exit(-2)\n",
        "import sys\nsys.exit(256)\n",
        "import sys\nsys.exit(True)\n",
        "import sys\nsys.exit(['a', 1])\n",
        "import sys\nsys.exit(0.0)\n",
        "import sys\nsys.exit(2**70)\n",
        "import sys\nsys.exit(-2**70)\n",
        "import sys\nsys.stderr = None\nsys.exit('lost?')\n",
        "import sys\nclass T:\n    def __str__(self):\n        1 / 0\nsys.exit(T())\n",
        "class E(SystemExit):\n    pass\nraise E(3)\n",
        "import sys\nsys.excepthook = None\n1 / 0\n",
        "import sys\ndel sys.excepthook\n1 / 0\n",
        "import sys\ndef hook(*seen):\n    raise KeyError('hook')\nsys.excepthook = hook\n1 / 0\n",
        "import sys\nsys.excepthook = lambda *seen: print('hook', seen[0])\n1 / 0\n",
        "import sys\nsys.excepthook = lambda *seen: sys.exit(9)\n1 / 0\n",
        "import atexit, sys\natexit.register(lambda: print(type(sys.last_value)))\n1 / 0\n",
        "import atexit, sys\natexit.register(lambda: print(sys.excepthook))\nraise KeyboardInterrupt\n",
        "raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])\n",
        "import threading\nthreading.Thread(target=lambda: 1 / 0, name='t').start()\n",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "ThreadPoolExecutor(2).submit(print, 'in the pool')\n",
        "import os, sys\nif os.fork() == 0:\n    print('child')\n    sys.exit(0)\nos.wait()\n",
        "import sys\nprint('half', end='')\nsys.stdout.close()\n",
        "import warnings\nwarnings.warn('careful')\n",
        "from __future__ import annotations\nx: nothing = 1\nprint(__annotations__)\n",
        "assert False, 'no'\n",
        "x = (\n",
    ],
)
def test_a_script_ends_as_it_does_under_python(both, source):
    """The same exit code and the same words, to the letter."""
    (both.folder / "s.py").write_text(source)

    both("s.py")


def test_a_script_may_come_through_a_pipe(both):
    """As `<(...)` of a shell gives one."""
    (both.folder / "s.sh").write_text(
        """for run in "$@"; do "$PYTHON" $run <(echo 'print(1, __name__)'); done"""
    )
    done = subprocess.run(
        ["bash", "s.sh", "", both.runner],
        cwd=both.folder,
        env={**environment(), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("1 __main__\n" * 2, "")


def test_flags_of_python_hold(both):
    """Such as -O, which leaves assertions out, and -P, which puts no folder into the path."""
    (both.folder / "s.py").write_text("import sys\nassert False\nprint(sys.path)\n")

    assert both("s.py", flags=["-O", "-P"])[0] == 0
