"""`gapless checkpoint`."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture
def run(tiny_run, tmp_path):
    """A run of two epochs, five updates each."""
    return shutil.copytree(tiny_run, tmp_path / "run")


def test_checkpoints_are_listed(gapless, run):
    """Weights of epochs, the best, the final ones and states, each with its updates."""
    done = gapless("checkpoint", "list", run)

    assert (done.code, done.err) == (0, "")
    rows = {line.split()[0]: line for line in done.out.splitlines()}
    assert {"epoch-0001", "epoch-0002", "best", "final", "step-000000010"} <= rows.keys()
    assert len({line.index("  whole") for line in rows.values()}) == 1
    assert "5 updates" in rows["epoch-0001"]
    assert all(line.endswith("  whole") for line in rows.values())


def test_whole_checkpoints_are_verified(gapless, run):
    """One line says so."""
    done = gapless("checkpoint", "verify", run)

    assert (done.code, done.err) == (0, "")
    assert done.out.count("\n") == 1
    assert done.out.endswith("are whole\n")


def test_a_run_without_checkpoints_is_not_whole(gapless, run):
    """There is nothing to go on with."""
    shutil.rmtree(run / "checkpoints")
    done = gapless("checkpoint", "verify", run)

    assert (done.code, done.out, done.err) == (1, f"{run} holds no checkpoint\n", "")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("checkpoints/best/tensors.safetensors", "best: tensors.safetensors holds other bytes"),
        ("checkpoints/epoch-0001/manifest.json", "epoch-0001: manifest.json holds other bytes"),
        ("config.yaml", "config.yaml is not what was saved with step-000000010"),
        ("vocab.spm", "vocab.spm is not what was saved with step-000000010, which is used\n"),
        ("metrics.jsonl", "metrics.jsonl: holds other bytes"),
    ],
)
def test_damage_is_named(gapless, run, name, named):
    """Each damaged file in a line, and the exit code is 1; the list says it as well."""
    data = bytearray((run / name).read_bytes())
    data[len(data) // 2] ^= 1
    (run / name).write_bytes(data)

    done = gapless("checkpoint", "verify", run)

    assert (done.code, done.err) == (1, "")
    assert done.out.count("\n") == 1
    assert named in done.out


def test_a_folder_that_is_no_run(gapless, tmp_path):
    """It is named."""
    gapless("checkpoint", "verify", tmp_path / "absent").check_refused(
        "absent is not a run folder"
    )
    gapless("checkpoint", "lst", tmp_path).check_refused("ACTION", "list", "verify", "'lst'")
