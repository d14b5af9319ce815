"""Trainings of changing shapes, with and without gapless, judged from outside."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from benchmarks.changing_shapes import data, summary
from benchmarks.changing_shapes.__main__ import main
from benchmarks.changing_shapes.loops import AS_WRITTEN, marks_of


def run_of(variant, seconds, losses="a", **others):
    """Return a run that took so many seconds at its steps 1, 2 and so on."""
    return {
        "loop": "encoder",
        "lengths": "padded",
        "variant": variant,
        "marks": dict(enumerate(seconds, start=1)),
        "hashes": dict.fromkeys(range(1, len(seconds) + 1), losses),
        **others,
    }


def test_marks_are_about_sixty_and_end_with_the_last_step():
    marks = marks_of(2_000)
    assert 50 <= len(marks) <= 80
    assert marks[0] == 1
    assert marks[-1] == 2_000
    assert {200, 1_500} <= set(marks)


def test_a_cost_beyond_a_tenth_and_five_seconds_is_told_at_its_worst_mark():
    written = [run_of(AS_WRITTEN, [1.0, 2.0, 3.0, 4.0]), run_of(AS_WRITTEN, [1.0, 2.1, 3.0, 4.0])]
    captured = [run_of("step", [1.0, 8.5, 8.6, 8.7])]

    row = summary.judged(written, captured, 4)

    assert row["worst_at"] == 2
    assert row["worst_s"] == pytest.approx(8.5 - 1.1 * 2.05 - 5.0)
    assert row["spread_s"] == pytest.approx(0.1)
    assert not row["holds"]
    assert row["last_quarter"] == pytest.approx(0.1)
    assert row["bits"] == "same"


def test_other_bits_are_told_unless_they_differ_as_written():
    one, other = run_of(AS_WRITTEN, [1.0]), run_of(AS_WRITTEN, [1.0], losses="b")
    assert summary.judged([one], [other], 1)["bits"] == "OTHER BITS"
    assert summary.judged([one, other], [other], 1)["bits"] == "as written they differ"


def test_packed_rows_hold_every_sentence_once_and_tell_them_apart():
    rows = data.sentences(12, data.TINY)

    batch = data.collated(rows, "packed", data.TINY)

    assert int((batch["attention_mask"] > 0).sum()) == sum(map(len, rows))
    assert len(batch["input_ids"]) < len(rows)
    assert sum(int(mask.max()) for mask in batch["attention_mask"]) == len(rows)


def test_bucketed_batches_have_few_lengths():
    batches = data.batches_of("bucketed", 64, data.GPU)
    lengths = {data.collated(rows, "bucketed", data.GPU)["input_ids"].shape[1] for rows in batches}
    assert all(length % 8 == 0 for length in lengths)


@pytest.mark.slow
def test_one_command_trains_with_and_without_and_prints_a_table(tmp_path, capsys):
    """On the simulated device, with the same bits; a plot is written."""
    file, picture = tmp_path / "shapes.jsonl", tmp_path / "shapes.svg"
    arguments = ["--device", "simulated", "--tiny", "--runs", "1", "--only", "encoder"]
    arguments += ["--variants", "step", "--steps", "8", "30"]

    assert main([*arguments, "--json", str(file), "--plot", str(picture)]) == 0

    runs = [json.loads(text) for text in file.read_text().splitlines()]
    assert [run["variant"] for run in runs] == [AS_WRITTEN, "step"]
    for run in runs:
        assert list(run["marks"])[-1] == "30"
        assert all(a <= b for a, b in pairwise(run["marks"].values()))
    printed = capsys.readouterr().out
    assert printed.count("encoder, padded, step") == 2
    assert "OTHER BITS" not in printed
    assert picture.read_text().count("<polyline") == 3


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["accelerate", "trainer"])
def test_loops_of_frameworks_train_with_and_without(loop, tmp_path):
    """On a CPU, where nothing is captured; each logs losses of the same bits."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    file = tmp_path / "shapes.jsonl"
    arguments = ["--device", "cpu", "--tiny", "--runs", "1", "--only", loop, "--steps", "20"]

    assert main([*arguments, "--json", str(file)]) == 0

    written, captured = (json.loads(text) for text in file.read_text().splitlines())
    assert written["hashes"] == captured["hashes"]
    assert len(set(written["hashes"].values())) == 3
