"""A launcher of processes, tiny data, and a run of two ranks that nothing interrupted."""

from __future__ import annotations

import pytest

from faults.runs import write_data
from ranks.groups import fork_ranks


@pytest.fixture
def fork(launcher, tmp_path):
    """Start ranks without torchrun, in a folder of the test."""

    def call(*arguments, name="ranks", **options):
        return fork_ranks(launcher, *arguments, folder=tmp_path / name, **options)

    return call


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder of parallel text. Copy it before you change it."""
    return write_data(tmp_path_factory.mktemp("data") / "text")
