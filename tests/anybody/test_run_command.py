"""`gapless run` runs scripts that nobody edited as Python does: same output, exit code and files."""

from __future__ import annotations

import functools
import io
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from anybody.harness import marked


PROGRAMS = Path(__file__).parent / "programs"
SRC = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Program:
    """A script with its arguments, as a user types them after `python`."""

    name: str
    command: list[str]
    stdin: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self):
        return self.name


RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}

RUNS = [
    Program("classifier", ["classifier.py", "--epochs", "2", "--out", "saved", "--lr=0.02"]),
    Program("workers", ["classifier.py", "--epochs", "1", "--workers", "2"]),
    Program("help_of_the_script", ["classifier.py", "--help"]),
    Program("wrong_argument", ["classifier.py", "--epochs", "two"]),
    Program("ppo", ["ppo.py", "7"]),
    Program("pinn", ["pinn.py"]),
    Program("gan", ["gan.py"]),
    Program("word_model", ["word_model.py"]),
    Program("text_from_a_pipe", ["word_model.py"], stdin="a rose is a rose is a rose . " * 20),
    Program("lbfgs", ["lbfgs.py"]),
    Program("exit_code", ["stops.py", "3"]),
    Program("exit_code_of_zero", ["stops.py", "0"]),
    Program("exception", ["fails.py"]),
    Program("sibling", ["sibling.py"]),
    Program("module", ["-m", "pkg.train", "first", "--second"]),
    Program("rank_of_two", ["ranks.py"], env=RANK),
    Program("logs_and_warnings", ["writes.py"]),
]


@dataclass
class Ended:
    code: int
    out: str
    err: str
    files: dict[str, bytes]


def run(folder, program, *prefix, **env):
    """Run the program in the folder; return what it left, and take its files away again."""
    before = files_in(folder)
    ended = subprocess.run(
        [sys.executable, *prefix, *program.command],
        cwd=folder,
        input=program.stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", **program.env, **env},
    )
    written = {name: data for name, data in files_in(folder).items() if name not in before}
    for name in written:
        (folder / name).unlink()
    return Ended(ended.returncode, ended.stdout, ended.stderr, written)


def files_in(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


@functools.cache
def is_there():
    """Whether gapless has the command."""
    command = [sys.executable, "-m", "gapless", "run", "--help"]
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    return subprocess.run(command, capture_output=True, env=env, check=False).returncode == 0


@pytest.fixture
def folder(tmp_path):
    if not is_there():
        pytest.fail("gapless has no command `run`")
    return shutil.copytree(PROGRAMS, tmp_path / "programs")


def the_same(one, two):
    """Whether two files hold the same: bit for bit, or the same tensors under the same names."""
    if one == two:
        return True
    try:
        first, second = (torch.load(io.BytesIO(data)) for data in (one, two))
    except Exception:
        return False
    return type(first) is type(second) and equal(first, second)


def equal(one, two):
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and one.equal(two)
    if isinstance(one, dict):
        return list(one) == list(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(equal, one, two))
    return one == two


def own_words(err):
    """Return a script's standard error without the frames of gapless and of `runpy`."""
    frame = r'  File "[^"]*(?:/gapless/|runpy)[^"]*", line \d+, in .*\n(?:    .*\n)*'
    return re.sub(frame, "", err)


def words_of_gapless(err, own):
    """Return what stands around the script's own words, as lines."""
    err = own_words(err)
    assert own in err, f"{own!r} is not in {err!r}"
    if not own:
        return err.splitlines(), []
    before, _, after = err.partition(own)
    return before.splitlines(), after.splitlines()


def check_same(expected, found):
    assert found.code == expected.code, found.err[-3000:]
    assert found.out == expected.out
    assert sorted(found.files) == sorted(expected.files)
    other = [
        name for name in expected.files if not the_same(expected.files[name], found.files[name])
    ]
    assert other == []


def named(programs, test):
    return [pytest.param(one, id=one.name, marks=marked(f"{test}-{one}")) for one in programs]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("program", named(RUNS, "run"))
def test_a_script_runs_as_it_does_by_python(folder, program):
    """Same output, exit code, files and own errors; one line before, and one paragraph after.

    Of several ranks the first alone says them.
    """
    expected = run(folder, program)
    found = run(folder, program, "-m", "gapless", "run")

    check_same(expected, found)
    before, after = words_of_gapless(found.err, own_words(expected.err))
    said = [*before, *after]
    if program.env:
        # Rank 0 speaks for all.
        assert said == []
        return
    assert said[0].startswith("gapless"), said
    paragraph = [line.strip() for line in said[1:]]
    while paragraph and not paragraph[-1]:
        paragraph.pop()
    while paragraph and not paragraph[0]:
        paragraph.pop(0)
    assert "" not in paragraph, "more than one paragraph"
    assert paragraph or expected.files == {}, "nothing was said of a run that trained"
    assert len(paragraph) <= 12


OFF = [one for one in RUNS if one.name in ("gan", "exception", "module")]


@pytest.mark.slow
@pytest.mark.parametrize("program", named(OFF, "off"))
def test_a_variable_switches_it_off(folder, program):
    """Then nothing is captured, and at most one line is said."""
    expected = run(folder, program)
    found = run(folder, program, "-m", "gapless", "run", GAPLESS_CAPTURE="off")

    check_same(expected, found)
    before, after = words_of_gapless(found.err, own_words(expected.err))
    assert len([line for line in [*before, *after] if line.strip()]) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("missing.py", marks=marked("run-missing.py"))])
def test_a_script_that_is_not_there(folder, name):
    """One line says so, and the exit code is 2."""
    found = run(folder, Program("missing", [name]), "-m", "gapless", "run")

    assert found.code == 2
    errors = [line for line in found.err.splitlines() if line.startswith("gapless: error: ")]
    assert len(errors) == 1
    assert name in errors[0]


@pytest.mark.slow
@pytest.mark.parametrize("num", [pytest.param(2, marks=marked("run-torchrun"))])
def test_under_torchrun(folder, num):
    """`torchrun -m gapless run script.py` runs the script in each rank."""
    prefix = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num}"]
    program = Program("ranks", ["ranks.py"])
    expected = run(folder, program, *prefix)
    found = run(folder, program, *prefix, "-m", "gapless", "run")

    assert sorted(found.out.splitlines()) == sorted(expected.out.splitlines())
    assert found.code == expected.code == 0
    assert sorted(found.files) == sorted(expected.files)
    assert all(the_same(expected.files[name], found.files[name]) for name in expected.files)
