"""A launcher of processes, tiny data, and a run that nothing interrupted."""

from __future__ import annotations

import shutil

import pytest

from faults.processes import Ended
from faults.runs import train_options, write_data
from gapless.cli.main import run_command


@pytest.fixture
def start(launcher, tmp_path):
    """Start `gapless ...` in the folder of the test."""

    def call(*arguments, **options):
        return launcher.start(*arguments, **{"folder": tmp_path, **options})

    return call


@pytest.fixture
def run(launcher, tmp_path):
    """Run `gapless ...` in the folder of the test to its end."""

    def call(*arguments, **options):
        return launcher.run(*arguments, **{"folder": tmp_path, **options})

    return call


@pytest.fixture
def command(capsys, numerics):
    """Run a command that trains nothing in this process."""

    def call(*arguments):
        code = run_command([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder of parallel text. Copy it before you change it."""
    return write_data(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture(scope="session")
def finished(launcher_of_session, data, tmp_path_factory):
    """A run of three epochs that nothing interrupted. Copy it before you change it."""
    folder = tmp_path_factory.mktemp("finished")
    launcher_of_session.run(*train_options(data, folder / "run"), folder=folder).check_done()
    return folder / "run"


@pytest.fixture
def finished_copy(finished, tmp_path):
    """A run of three epochs that may be changed."""
    return shutil.copytree(finished, tmp_path / "copy")
