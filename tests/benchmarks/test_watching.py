"""The benchmark of watched calls: without a GPU, it counts CPU seconds of tiny models."""

from __future__ import annotations

import json

import pytest
from benchmarks.watching import LENGTHS, main


def test_a_model_is_watched_and_captured_for_each_kind(tmp_path, capsys):
    """Each kind ends with a replay, and has a line."""
    file = tmp_path / "found.json"

    assert main(["--only", "lstm", "--form", "step", "--device", "cpu", "--json", str(file)]) == 0

    found = json.loads(file.read_text(encoding="utf-8"))["lstm, step"]
    assert [kind["replays"] for kind in found["kinds"]] == [True] * len(LENGTHS)
    assert len(found["plain"]) == len(LENGTHS)
    first, *lines = capsys.readouterr().out.splitlines()
    assert json.loads(first)["model"] == "lstm"
    assert len(lines) == len(LENGTHS)


@pytest.mark.slow
def test_the_trainer_is_captured_where_it_stands(tmp_path):
    """Its own step is called as its loop calls it; each shape is a kind."""
    file = tmp_path / "found.json"
    arguments = ["--only", "trainer", "--form", "module", "--device", "cpu", "--json", str(file)]

    assert main(arguments) == 0

    found = json.loads(file.read_text(encoding="utf-8"))["trainer, module"]
    assert [kind["replays"] for kind in found["kinds"]] == [True] * len(LENGTHS)
