"""What `import gapless` offers, and what it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gapless


INIT = Path(gapless.__file__)


def test_the_stub_and_the_module_name_the_same_things():
    """Type checkers read `__init__.pyi`: it takes every public name from its home."""
    imports = [
        node
        for node in ast.parse(INIT.with_suffix(".pyi").read_text()).body
        if isinstance(node, ast.ImportFrom)
    ]
    stub = {alias.asname: node.module for node in imports for alias in node.names}
    renamed = [alias for node in imports for alias in node.names if alias.name != alias.asname]

    assert stub == gapless._HOME
    assert renamed == []


@pytest.mark.parametrize("name", gapless.__all__)
def test_a_public_name_is_the_one_of_its_home(name):
    """What `gapless` hands out is what the module that defines it has under the same name."""
    home = import_module(gapless._HOME.get(name, "gapless"))

    assert getattr(gapless, name) is getattr(home, name)


def test_a_name_that_is_not_there():
    """The error is Python's own."""
    with pytest.raises(AttributeError, match="module 'gapless' has no attribute 'nothing'"):
        _ = gapless.nothing


def test_importing_gapless_loads_nothing_else():
    """Neither torch nor a module of gapless is loaded before one of its names is used."""
    code = "import sys, gapless; print(*(n for n in sys.modules if n.startswith(('gapless', 'torch'))))"

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(INIT.parents[1])},
    )

    assert done.stdout == "gapless\n"


NAMES = """
BatchError CaptureRefused CaptureWarning DeferredLoss DeviceError EpochRecord ForbiddenWaitError
GaplessError LossError NonFiniteLossError PLANS PeerLostError Plan PlanError RanksDifferError SplitStep
StepLoss StepValues TrainLoop UserError WaitStats Workload __version__
allow_waits capture capture_report compare_plans count_waits find_device forbid_waits prefetch release run_epoch
verify_plan
"""


def test_public_names_are_those_written_down():
    """A name that is added, removed or renamed has to be written down here as well."""
    assert sorted(NAMES.split()) == sorted(dir(gapless))
