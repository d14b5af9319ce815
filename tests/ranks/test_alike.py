"""Which differences between ranks end a run before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.errors import UserError
from gapless.nmt.run.alike import check_alike


class Ranks:
    """Two ranks, of which the other says what is given."""

    world = 2

    def __init__(self, other):
        self.own, self._other = None, other

    def agree(self, value):
        self.own = value
        return [value, self._other or value]


@pytest.fixture
def folder(tmp_path):
    for name in ("train.en", "train.de", "dev.en", "test_2016.de.gz", "log", "model.bin"):
        (tmp_path / name).write_text(name)
    return tmp_path


def said_of(folder):
    ranks = Ranks(None)
    check_alike(ranks, {"data": folder})
    return ranks.own


def test_all_files_of_text_are_compared_and_no_others(folder):
    """Output may go into the folder of the text while the ranks start."""
    compared = [name.split(",")[0] for name in said_of(folder) if name.endswith("as text,")]
    assert sorted(Path(name).name for name in compared) == [
        "dev.en",
        "test_2016.de.gz",
        "train.de",
        "train.en",
    ]


def test_a_file_that_one_rank_cannot_read_is_named(folder, monkeypatch):
    other, opened = said_of(folder), Path.open

    def refused(path, *arguments, **named):
        if path.name == "train.en":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(
        UserError, match=r"train.en, as text, is not readable \(Permission denied\)"
    ):
        check_alike(Ranks(other), {"data": folder})


def test_what_no_rank_can_read_is_left_to_who_reads_it(folder, monkeypatch):
    def refused(path, *arguments, **named):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refused)
    check_alike(Ranks(None), {"data": folder})
