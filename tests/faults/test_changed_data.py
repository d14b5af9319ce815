"""Text that changed since a run began is named, and used only if that was asked for."""

from __future__ import annotations

import signal

import pytest

from faults.injected import SLOW
from faults.runs import check_same_run, newest_step, train_options, write_data


pytestmark = pytest.mark.xdist_group("processes: changed data")

SPLITS = {"train": "train", "val": "valid", "test": "test"}


@pytest.fixture
def killed(start, tmp_path):
    """A run with data of its own that was killed."""
    data = write_data(tmp_path / "data")
    process = start(*train_options(data, tmp_path / "run"), before=SLOW)
    process.until(lambda: newest_step(tmp_path / "run") >= 40, what="an update was saved")
    process.send(signal.SIGKILL)
    process.end()
    return tmp_path / "run", data


def change_a_word(path):
    """Change one word to another that the vocabulary has; lengths stay."""
    text = path.read_text()
    word, other = ("red", "big") if path.suffix == ".en" else ("RED", "BIG")
    assert word in text
    path.write_text(text.replace(word, other, 1))


def add_a_line(path):
    for side in ("en", "zh"):
        path = path.with_suffix(f".{side}")
        path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")


CASES = [
    (split, change, side)
    for split in SPLITS
    for change in (change_a_word, add_a_line)
    for side in ("en", "zh")
]


@pytest.mark.parametrize(
    ("split", "change", "side"),
    [
        ("val", change_a_word, "zh"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES),
    ],
)
def test_changed_text_is_named(killed, run, split, change, side):
    """The split that changed is named, with the flag that allows it; then it is used."""
    folder, data = killed
    before = newest_step(folder)
    change(data / f"{split}.{side}")

    refused = run("train", "--resume", folder)
    allowed = run("train", "--resume", folder, "--allow-changed-data")

    refused.check_refused(SPLITS[split], "--allow-changed-data")
    allowed.check_no_traceback()
    if change is change_a_word or split != "train":
        assert allowed.code == 0, allowed.err
        assert newest_step(folder) > before


@pytest.mark.slow
def test_text_that_is_written_anew(killed, run, finished):
    """The same text with another date is the same."""
    folder, data = killed
    for path in data.iterdir():
        path.write_bytes(path.read_bytes())

    run("train", "--resume", folder).check_done()

    check_same_run(folder, finished)
