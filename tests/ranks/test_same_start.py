"""Which differences between ranks end a run before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.device.find import find_device
from gapless.errors import UserError
from gapless.nmt.run.rank_agreement import check_same_start


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


def said_of(folder, **given):
    ranks = Ranks(None)
    check_same_start(ranks, {"data": folder, **given}, device=find_device("cpu"))
    return ranks.own


@pytest.mark.parametrize(
    ("what", "there", "said"),
    [
        (
            "`lr`",
            "0.03",
            "`lr` is 0.02 on rank 0, but 0.03 on rank 1; start all ranks with the same",
        ),
        ("`plan`", None, "`plan` is 'full' on rank 0, but missing on rank 1"),
        ("gapless", "0.0", "gapless is .*, but 0.0 on rank 1"),
        ("torch", "0.0", "torch is .*, but 0.0 on rank 1"),
        ("the processor", "OTHER", "but OTHER on rank 1; .* set ATEN_CPU_CAPABILITY"),
        ("{folder}/dev.en, as text,", "6 bytes (checksum 0)", "dev.en, as text, is 6 bytes"),
        ("{folder}/train.en, as text,", None, "train.en, as text, is .* but missing on rank 1"),
    ],
)
def test_what_differs_is_named_with_both_values(folder, what, there, said):
    """Settings, libraries, processors and text: each alone would give ranks other weights."""
    given = {"lr": 0.02, "plan": "full", "seed": None}
    other = said_of(folder, **given)
    name = what.format(folder=folder)
    assert other.pop(name)
    if there is not None:
        other[name] = there

    with pytest.raises(UserError, match=said):
        check_same_start(Ranks(other), {"data": folder, **given}, device=find_device("cpu"))


def test_text_is_compared_by_its_content(folder):
    """Two files of one length differ."""
    before = said_of(folder)
    (folder / "dev.en").write_text("DEV.EN")

    assert said_of(folder).items() ^ before.items() != set()


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
        check_same_start(Ranks(other), {"data": folder})


def test_what_no_rank_can_read_is_left_to_who_reads_it(folder, monkeypatch):
    def refused(path, *arguments, **named):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refused)
    check_same_start(Ranks(None), {"data": folder})
