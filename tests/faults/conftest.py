"""A launcher of processes, tiny data, and a run that nothing interrupted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from faults.runs import train_options, write_data


# Of the tests with processes, one in so many is run by `make test`; `make check` runs the others.
_ONE_IN = 5


def pytest_collection_modifyitems(items):
    folder = f"{Path(__file__).parent}{os.sep}"
    own = [item for item in items if str(item.path).startswith(folder)]
    quick = [item for item in own if item.get_closest_marker("slow") is None]
    for number, item in enumerate(sorted(quick, key=lambda item: item.nodeid)):
        if number % _ONE_IN:
            item.add_marker(pytest.mark.slow)


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
