"""The built wheel in an empty environment, which brings torch and nothing of an extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gapless
from gapless.plans import PLANS


ROOT = Path(__file__).parents[1]

# Torch and what torch 2.11 to 2.13 require, with what those require; gapless adds itself alone.
TORCH_BRINGS = {
    *("torch", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "setuptools"),
    *("sympy", "typing-extensions"),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("wheel")]


def run(*command, cwd):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        # Not with PYTHONPATH: that would bring the source tree.
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, ROOT, cwd=folder)
    (path,) = folder.glob("gapless-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel):
    """The folder of an environment's programs, after an install of the wheel alone."""
    folder = wheel.parent
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    programs = folder / "venv" / "bin"
    constraints = ("-c", ROOT / "constraints.txt")
    run(programs / "python", "-m", "pip", "install", "-q", *constraints, wheel, cwd=folder)
    return programs


def test_the_wheel_holds_the_types_and_the_demo_corpus(wheel):
    """Type checkers find the stub of the public names, and the mark that there are types; `train` its text."""
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {"gapless/__init__.py", "gapless/__init__.pyi", "gapless/py.typed"} <= names
    assert "gapless/nmt/data/demo.tsv.gz" in names
    assert [name for name in names if name.startswith("tests")] == []


def test_the_wheel_brings_torch_alone(installed, tmp_path, record_property):
    """No numpy, no tokenizer, no parser: those are extras."""
    listed = json.loads(
        run(installed / "python", "-m", "pip", "list", "--format", "json", cwd=tmp_path)
    )
    names = {item["name"].lower().replace("_", "-") for item in listed}
    record_property("installed", sorted(names))

    # A build of torch for CUDA brings NVIDIA's libraries and triton.
    own = {name for name in names if not name.startswith(("nvidia", "cuda", "triton"))}
    assert own - TORCH_BRINGS == {"gapless", "pip"}


def test_the_installed_core_runs(installed, tmp_path):
    """The program, a loop of one's own and every plan work; a command names its lacking extra."""
    version = run(installed / "gapless", "--version", cwd=tmp_path)
    found = json.loads(
        run(installed / "python", ROOT / "tests" / "core_loops.py", tmp_path, cwd=tmp_path)
    )

    assert version == f"gapless {gapless.__version__}\n"
    assert found["every_plan"] == dict.fromkeys(PLANS, found["own_loop"])
    codes = {name: outcome["code"] for name, outcome in found["commands"].items()}
    assert (codes["verify"], codes["compare"], codes["train"]) == (0, 0, 2)
    assert 'pip install "gapless[nmt]"' in found["commands"]["train"]["err"]
