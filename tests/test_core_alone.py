"""The core runs with torch alone: no package of an extra, and no numpy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gapless.cli.requirements import PACKAGES
from gapless.plans import PLANS


ROOT = Path(__file__).parents[1]

IMPORT_NAMES = {"pyyaml": "yaml"}

# What the command line was once made of must not come back unnoticed.
BLOCKED = [*(name for names in PACKAGES.values() for name in names), "rich", "typer", "click"]

WITHOUT_EXTRA = (
    *("train", "translate", "evaluate"),
    *("verify without workload", "compare without workload"),
)

pytestmark = pytest.mark.xdist_group("core alone")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What `core_loops.py` prints where none of those packages can be imported."""
    folder = tmp_path_factory.mktemp("core")
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "core_loops.py", folder, *BLOCKED],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"folder": folder}


def test_the_extras_packages_are_those_of_pyproject():
    """A command checks for what its extra installs, but for what reads names of languages alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {
        extra: {
            IMPORT_NAMES.get(name, name)
            for name in (item.partition(">=")[0] for item in extras[extra])
            # Without it there are plain lines in the place of bars.
            if name != "gapless[cli]"
        }
        for extra in PACKAGES
    }

    checked = {extra: set(packages) for extra, packages in PACKAGES.items()}
    checked["nmt"] |= {"langcodes", "language_data"}
    assert names == checked
    assert [item.partition(">=")[0] for item in project["dependencies"]] == ["torch"]


def test_a_loop_of_ones_own_runs_without_numpy(found):
    """Prefetching, deferred losses and a captured step need torch alone."""
    assert 0.0 < found["own_loop"] < 10.0


def test_every_plan_runs_without_numpy(found):
    """All plans give the loss that the loop of one's own gives."""
    assert found["every_plan"] == dict.fromkeys(PLANS, found["own_loop"])


@pytest.mark.parametrize("name", ["version", "help", "train --help", "plans"])
def test_what_needs_no_training_runs_without_the_extra(found, name):
    """Version, help and the list of plans come in a bare install."""
    outcome = found["commands"][name]

    assert (outcome["code"], outcome["err"]) == (0, "")
    assert outcome["out"]


@pytest.mark.parametrize("name", ["doctor", "doctor --static"])
def test_the_doctor_runs_without_the_extra(found, name):
    """Running a script needs torch alone."""
    outcome, report = found["commands"][name], found["folder"] / "doctor.txt"
    said = f"gapless: report in {report}\n" if name == "doctor" else ""

    assert (outcome["code"], outcome["err"]) == (0, said)
    assert outcome["out"] == ("trained\n" if name == "doctor" else "0 findings in 1 file\n")
    assert "20 steps watched" in report.read_text()


def check_progress_alone(text):
    """Check that standard error has lines of progress, which begin with a time, and nothing else."""
    assert text
    assert [line for line in text.splitlines() if not re.match(r"\d+:\d\d:\d\d  \S", line)] == []


def test_a_workload_is_verified_without_the_extra(found):
    """Bits are compared as with numpy."""
    outcome = found["commands"]["verify"]

    assert outcome["code"] == 0, outcome["err"]
    check_progress_alone(outcome["err"])
    assert "gapless against a plain loop: bit-identical (4 losses, " in outcome["out"]


def test_a_workload_is_compared_without_the_extra(found):
    """In text and in JSON."""
    outcome = found["commands"]["compare"]
    report = json.loads((found["folder"] / "report.json").read_text())

    assert outcome["code"] == 0, outcome["err"]
    check_progress_alone(outcome["err"])
    assert "auto against a plain loop: bit-identical (4 losses, " in outcome["out"]
    assert [row["plan"] for row in report["rows"]] == ["blocking", "auto"]


def test_completion_names_the_extra_that_it_lacks(found):
    """In one line, with how to install it."""
    outcome = found["commands"]["completion"]

    assert (outcome["code"], outcome["out"]) == (2, "")
    assert outcome["err"] == (
        "gapless: error: gapless completion needs the extra cli, of which tqdm, shtab cannot be found; "
        'run pip install "gapless[cli]"\n'
    )


@pytest.mark.parametrize("name", WITHOUT_EXTRA)
def test_a_command_names_the_extra_that_it_lacks(found, name):
    """In one line, with the packages that are missing and how to install them."""
    outcome = found["commands"][name]

    assert (outcome["code"], outcome["out"]) == (2, "")
    assert outcome["err"].startswith(
        f"gapless: error: gapless {name.replace('workload', '--workload')} needs the extra nmt, "
    )
    assert 'pip install "gapless[nmt]"' in outcome["err"]
    assert outcome["err"].count("\n") == 1
