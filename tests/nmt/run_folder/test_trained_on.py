"""What a run was trained on is kept as hashes."""

from __future__ import annotations

import pytest

from gapless.nmt.run_folder.trained_on import (
    TRAINED_ON,
    add_trained_on,
    begin_trained_on,
    find_trained_on,
    is_damaged,
)


@pytest.fixture
def run(tmp_path):
    """Return what makes the folder of a run that was trained on sources, and its path."""

    def make(name, sources, *, earlier=None):
        path = tmp_path / name
        path.mkdir()
        begin_trained_on(path, earlier=earlier)
        add_trained_on(path, sources)
        return path

    return make


def test_near_copies_are_text_that_was_trained_on(run):
    """Capitals, spaces, forms of characters and what nobody sees make no new sentence."""
    path = run("r", ["红色的书，很大！", "a red  book"])

    assert find_trained_on(path, ["红色的书,很大!", "A\u00a0red book\u200b", "a red pen"]) == [
        0,
        1,
    ]


def test_text_of_initial_weights_counts(run):
    """A run that goes on with another's weights was trained on the text of both."""
    first = run("first", ["a red book"])

    path = run("r", ["two cups"], earlier=first)

    assert find_trained_on(path, ["a red book", "two cups", "a pen"]) == [0, 1]


def test_a_damaged_file_tells_nothing(run):
    """To know a part would tell the rest from new text wrongly."""
    path = run("r", ["a red book"])
    file = path / TRAINED_ON
    file.write_bytes(b"x" + file.read_bytes()[1:])

    assert is_damaged(path)
    assert find_trained_on(path, ["a red book"]) is None
    assert find_trained_on(run("s", ["two cups"], earlier=path), ["two cups"]) is None
