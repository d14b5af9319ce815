"""The comparison of two trees can fail: a change of one bit anywhere is reported."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from benchmarks.side_by_side import compare, compare_case
from benchmarks.side_by_side_runs import digest_run

from benchmarks import side_by_side


ROOT = Path(__file__).parents[2]
LOSSES = [("losses", f"batch {n}", (1.5 + n).hex()) for n in range(3)]


def test_equal_values_are_counted():
    (row,) = compare({"a": LOSSES}, {"a": list(LOSSES)})

    assert row.difference is None
    assert row.num_values == {"losses": 3}
    assert str(row).split() == ["a", "3", "losses", "equal"]


def test_one_bit_of_a_loss_is_reported():
    other = list(LOSSES)
    other[1] = ("losses", "batch 1", math.nextafter(2.5, 3.0).hex())

    (row,) = compare({"a": LOSSES}, {"a": other})

    assert (
        row.difference == "losses, batch 1: '0x1.4000000000000p+1' became '0x1.4000000000001p+1'"
    )


def test_values_of_one_tree_alone_are_reported():
    assert "'none'" in compare_case("a", LOSSES, LOSSES[:2]).difference
    assert "'none'" in compare_case("a", LOSSES[:2], LOSSES).difference
    assert [row.difference for row in compare({"a": LOSSES}, {"b": LOSSES})] == [
        "only the old tree has values",
        "only the new tree has values",
    ]


def test_values_of_one_name_are_refused():
    with pytest.raises(ValueError, match="several values are named"):
        compare_case("a", LOSSES, [*LOSSES, LOSSES[0]])


@pytest.mark.parametrize(
    ("kind", "folder"),
    [("plan_settings", ""), ("settings", "config.yaml/"), ("meta", "meta.json/"), ("files", "")],
)
def test_settings_of_one_tree_are_noted_and_equal_names_compared(kind, folder):
    """A setting that was removed or renamed is left out, and the line says so."""
    old = [(kind, f"{folder}streams", "3"), (kind, f"{folder}sync_interval", "1")]
    new = [(kind, f"{folder}streams", "3"), (kind, f"{folder}wait_every", "1")]

    row = compare_case("a", old, new)

    assert row.difference is None
    assert row.num_values == {kind: 1}
    assert row.note == (
        f"left out of {kind}: ['sync_interval'] of the old tree, ['wait_every'] of the new one"
    )
    changed = compare_case("a", old, [(kind, f"{folder}streams", "4"), new[1]])
    assert changed.difference.startswith(f"{kind}, {folder}streams")


def write_run(folder, *, wall_seconds=1.0):
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text("plan: gapless\n")
    rows = [{"kind": "train", "loss": 1.5}, {"kind": "epoch", "tokens_per_second": wall_seconds}]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    summary = {
        "plan_settings": {"streams": 3},
        "loss": [1.5],
        "host_waits": {"epoch_end": {"count": 2, "ms": wall_seconds}},
        "wall_seconds": wall_seconds,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    weights = {"a": torch.arange(3.0)}
    safetensors.torch.save_file(weights, folder / "checkpoints" / "final.safetensors")
    state = {"model": weights, "position": {"epoch": 1, "wall_seconds": wall_seconds}}
    torch.save(state, folder / "checkpoints" / "state.pt")


def change_text(old, new):
    def change(path):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


def flip_last_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def nudge_state(path):
    state = torch.load(path)
    state["model"]["a"].view(torch.int32)[2] ^= 1
    torch.save(state, path)


@pytest.mark.parametrize(
    ("name", "change", "kind"),
    [
        ("config.yaml", change_text("gapless", "auto"), "settings"),
        ("metrics.jsonl", change_text("1.5", repr(math.nextafter(1.5, 2))), "metrics"),
        ("summary.json", change_text("1.5", repr(math.nextafter(1.5, 2))), "summary"),
        ("summary.json", change_text('"count": 2', '"count": 3'), "summary"),
        ("summary.json", change_text('"streams": 3', '"streams": 4'), "plan_settings"),
        ("checkpoints/final.safetensors", flip_last_bit, "weights"),
        ("checkpoints/state.pt", nudge_state, "state"),
        ("checkpoints/state.pt", Path.unlink, "state"),
    ],
)
def test_one_bit_of_a_file_is_reported(tmp_path, name, change, kind):
    write_run(tmp_path / "old")
    write_run(tmp_path / "new", wall_seconds=2.0)
    old = digest_run(tmp_path / "old")
    assert compare_case("a", old, digest_run(tmp_path / "new")).difference is None

    change(tmp_path / "new" / name)

    row = compare_case("a", old, digest_run(tmp_path / "new"))
    assert row.difference.startswith(f"{kind}, ")


def test_what_is_broken_on_purpose_is_reported_in_every_case(monkeypatch, capsys, tmp_path):
    def run_both(old, only):
        return ({name: list(LOSSES) for name in "ab"} for _ in range(2))

    monkeypatch.setattr(side_by_side, "run_both", run_both)

    assert side_by_side.main(["--old", "x"]) == 0
    assert capsys.readouterr().out.endswith("2 of 2 cases are equal, 6 values compared\n")
    assert side_by_side.main(["--old", "x", "--break", "--json", str(tmp_path / "a.json")]) == 1
    assert capsys.readouterr().out.count("DIFFERENT: losses, batch 2") == 2
    assert [row["case"] for row in json.loads((tmp_path / "a.json").read_text())] == ["a", "b"]


def test_nothing_compared_is_a_failure(monkeypatch):
    monkeypatch.setattr(side_by_side, "run_both", lambda old, only: ({}, {}))

    assert side_by_side.main(["--old", "x"]) == 1


@pytest.mark.slow
def test_a_tree_is_equal_to_itself(capsys):
    """Both sides of the real comparison run, and the tree that was asked for is loaded."""
    assert side_by_side.main(["--old", str(ROOT), "--only", "plan gapless, cpu"]) == 0
    assert "48 losses, 4 waits, 32 tensors" in capsys.readouterr().out
