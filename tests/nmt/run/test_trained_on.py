"""What a run was trained on is kept as hashes, and is whole or not there."""

from __future__ import annotations

import pytest

from gapless.nmt.run import trained_on
from gapless.nmt.run.trained_on import (
    add_trained_on,
    begin_trained_on,
    find_trained_on,
    mark_of_trained_on,
    restore_trained_on,
)


OLD, NEW = ["a red book", "a blue pen"], ["two cups"]


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


def restore(path, sources, *, mark, earlier=None, is_unchanged=True):
    return restore_trained_on(path, sources, earlier=earlier, mark=mark, is_unchanged=is_unchanged)


def test_near_copies_are_text_that_was_trained_on(run):
    """Capitals, spaces, forms of characters and what nobody sees make no new sentence."""
    path = run("r", ["红色的书，很大！", "a red  book"])

    assert find_trained_on(path, ["红色的书,很大!", "A\u00a0red book\u200b", "a red pen"]) == [
        0,
        1,
    ]


def test_text_of_a_run_of_an_earlier_version(run, monkeypatch):
    """Its hashes are of sentences with other forms of characters, and are found all the same."""
    with monkeypatch.context() as earlier:
        earlier.setattr(trained_on, "plain", lambda text: text.strip().casefold())
        path = run("r", ["红色的书，很大！", "a red  book"])

    assert find_trained_on(path, ["红色的书，很大！", "A red  book", "a red pen"]) == [0, 1]


def test_text_that_a_killed_run_has_begun_with_is_forgotten(run):
    """Its newest state was saved before; what it goes on with is the text that the state knows."""
    path = run("r", OLD)
    mark = mark_of_trained_on(path)
    add_trained_on(path, NEW)

    assert restore(path, OLD, mark=mark) is None
    assert find_trained_on(path, [*OLD, *NEW]) == [0, 1]


def test_text_that_may_have_been_trained_on_is_kept(run):
    """Where neither text alone is what the state knows, all that was begun with counts."""
    path = run("r", OLD)
    mark = mark_of_trained_on(path)
    add_trained_on(path, NEW)

    assert restore(path, NEW, mark=mark, is_unchanged=False) is None
    assert find_trained_on(path, [*OLD, *NEW]) == [0, 1, 2]


@pytest.mark.parametrize("has_gone_on", [False, True])
def test_text_of_first_weights_is_part_of_what_is_written_anew(run, has_gone_on):
    """As long as their run was not trained on more since: then nobody knows which part it was."""
    first = run("first", OLD)
    path = run("r", NEW, earlier=first)
    mark = mark_of_trained_on(path)
    if has_gone_on:
        add_trained_on(first, ["three cats"])
    (path / "trained_on.bin").unlink()
    told = restore(path, NEW, mark=mark, earlier=first)

    found = find_trained_on(path, [*OLD, *NEW])
    assert found == (None if has_gone_on else [0, 1, 2])
    assert ("cannot tell any more" in str(told)) is has_gone_on
    assert restore(path, NEW, mark=None if has_gone_on else mark, earlier=first) is None
