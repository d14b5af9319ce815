"""Runs that several tests look at are trained once."""

from __future__ import annotations

import pytest

from translation_at_scale.corpora import pairs, write_folder, write_tsv
from translation_at_scale.harness import SUBWORDS, WORDS, Commands, trained


@pytest.fixture
def gapless(launcher, tmp_path):
    """Run commands of gapless."""
    return Commands(launcher, tmp_path)


@pytest.fixture(scope="session")
def commands_of_session(launcher_of_session, tmp_path_factory):
    return Commands(launcher_of_session, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def word_run(commands_of_session):
    """A run whose tokens are words, half trained: its hypotheses are close to each other."""
    return trained(commands_of_session, "words", *WORDS, "--max-steps", 100)


@pytest.fixture(scope="session")
def subword_run(commands_of_session):
    """A run of subwords with the settings that are chosen."""
    return trained(commands_of_session, "subwords", *SUBWORDS, "--max-steps", 300)


@pytest.fixture
def table(tmp_path):
    """A table of 400 pairs."""
    return write_tsv(tmp_path / "pairs.tsv", pairs(400))


@pytest.fixture
def splits(tmp_path):
    """A folder of 200 training, 20 validation and 20 test pairs."""
    rows = pairs(240)
    return write_folder(tmp_path / "splits", train=rows[:200], val=rows[200:220], test=rows[220:])
