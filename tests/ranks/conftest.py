"""A launcher of processes, tiny data, and a run of two ranks that nothing interrupted."""

from __future__ import annotations

import json

import pytest

from faults.runs import write_data
from ranks import group_program
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


@pytest.fixture(scope="session")
def of_ranks(launcher_of_session, tmp_path_factory):
    """What each of two ranks found in all cases of `group_program.py` that they live through."""
    folder = tmp_path_factory.mktemp("group") / "ranks"
    arguments = [group_program.__file__, "cpu", *group_program.LIVING]
    ended = fork_ranks(launcher_of_session, *arguments, folder=folder).end()
    ended.check_done()
    assert ended.err == ""
    return [json.loads(rank.out) for rank in ended.ranks]
