"""`gapless train --resume-if-there`: one command that begins a run, and goes on with it."""

from __future__ import annotations

import contextlib
import json
import shutil

import pytest
import torch

from cli.conftest import TINY
from gapless.checkpoint import CheckpointStore, RunLock, pack
from gapless.cli.main import run_command
from gapless.device.numerics import numerics_restored


FLAGS = ["--run-dir", "r", "--resume-if-there", *TINY, "--beam", "1", "--average", "1"]


@pytest.fixture
def train(gapless, tiny_data):
    """Train in folder `r`, as a launcher would start it again and again."""

    def call(*flags):
        return gapless("train", "--data", tiny_data, *FLAGS, *flags)

    return call


@pytest.fixture(scope="module")
def folder_of_begun(tiny_data, tmp_path_factory):
    """A folder with the run `r` of one epoch, with seed 3."""
    folder = tmp_path_factory.mktemp("begun")
    flags = ["--data", str(tiny_data), *FLAGS, "--epochs", "1", "--seed", "3"]
    with numerics_restored(), contextlib.chdir(folder):
        assert run_command(["train", *flags]) == 0
    return folder


@pytest.fixture
def begun(folder_of_begun, tmp_path):
    """The folder of that run, in the test's own folder."""
    shutil.copytree(folder_of_begun, tmp_path, dirs_exist_ok=True)
    return tmp_path / "r"


def epochs_logged(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if line["kind"] == "epoch"]


def test_it_begins_and_goes_on(train, begun):
    """The same command; the second time it trains no epoch again."""
    second = train("--epochs", "2", "--seed", "3")

    assert second.code == 0, second.err
    assert epochs_logged(begun) == [1, 2]
    assert "10 updates" in second.out


def test_settings_of_a_file_that_has_changed(gapless, tiny_data, tmp_path):
    """They count for the run that is there as flags do; flags win, and what the file leaves out stays."""
    file = tmp_path / "c.yaml"

    def train(text, *flags):
        settings = f"data: {tiny_data}\nrun_dir: elsewhere\n{text}"
        file.write_text(settings, encoding="utf-8")
        return gapless("train", "--config", file, *FLAGS, *flags)

    train("epochs: 1\nlr: 0.01\nmax_steps: 99\nseed: 3\n")
    again = train("epochs: 1\nlr: 0.01\nmax_steps: 99\nseed: 3\n")
    changed = train("epochs: 3\nlr: 0.001\nmax_steps: null\n", "--epochs", "2")
    refused = train("seed: 4\n")

    assert (again.code, changed.code) == (0, 0), again.err + changed.err
    assert "changed" not in again.out
    line = next(line for line in changed.out.splitlines() if line.startswith("changed"))
    assert line.split(maxsplit=1)[1] == "epochs 1 -> 2, lr 0.01 -> 0.001"
    assert epochs_logged(tmp_path / "r") == [1, 2]
    refused.check_refused("--seed is 4, but the run began with 3")


def test_a_run_that_had_saved_nothing_begins_anew(train, begun):
    """What it had written is removed; a run with other settings may take its place."""
    shutil.rmtree(begun / "checkpoints")
    (begun / "summary.json").unlink()
    again = train("--epochs", "1", "--seed", "4")

    assert again.code == 0, again.err
    assert "seed: 4" in (begun / "config.yaml").read_text()
    assert epochs_logged(begun) == [1]
    assert len(list((begun / "tensorboard").iterdir())) == 1


def test_results_are_never_removed(train, begun):
    """A run that has ended, and whose states somebody has removed, is refused as it is."""
    for path in (begun / "checkpoints").glob("step-*"):
        shutil.rmtree(path)
    shutil.rmtree(begun / "checkpoints" / "best", ignore_errors=True)
    (begun / "summary.json").unlink()
    before = sorted(begun.rglob("*"))

    train("--epochs", "2", "--seed", "3").check_refused("holds no state")
    assert sorted(begun.rglob("*")) == before


def test_a_run_that_was_killed_while_it_made_its_folder(train, tmp_path):
    """It has left no more than begun files: the run begins, and they go."""
    run = tmp_path / "r"
    run.mkdir()
    (run / "lock").touch()
    (run / ".config.yaml.4711.tmp").write_text("epo")

    begun = train("--epochs", "1")

    assert begun.code == 0, begun.err
    assert [path.name for path in run.glob(".*")] == []


def test_settings_that_are_lost(train, begun):
    """A run whose states keep its settings goes on without their file."""
    (begun / "config.yaml").unlink()

    again = train("--epochs", "2", "--seed", "3")

    assert again.code == 0, again.err
    assert epochs_logged(begun) == [1, 2]


@pytest.mark.parametrize("has_folder", [True, False], ids=["an empty folder", "no folder"])
def test_checkpoints_on_a_disk_that_is_not_there(train, gapless, begun, tmp_path, has_folder):
    """They are named, and nothing of the run is removed: with the disk it goes on."""
    disk, away = tmp_path / "disk", tmp_path / "away"
    (begun / "summary.json").unlink()
    (begun / "checkpoints").replace(away)
    if has_folder:
        disk.mkdir()
    (begun / "checkpoints").symlink_to(disk)
    before = sorted(begun.rglob("*"))

    more = ["is empty"] if has_folder else []
    again = train("--epochs", "2", "--seed", "3")
    again.check_refused("checkpoints is a link to", "mounting", *more)
    gapless("train", "--resume", "r", "--epochs", "2").check_refused("checkpoints is a link to")
    gapless("checkpoint", "verify", "r").check_refused("checkpoints is a link to")

    assert sorted(begun.rglob("*")) == before
    away.replace(disk)
    assert train("--epochs", "2", "--seed", "3").code == 0
    assert epochs_logged(begun) == [1, 2]


def test_states_of_another_program(gapless, train, begun):
    """What a loop of one's own has saved is whole, and no run of gapless train."""
    for path in (begun / "checkpoints").iterdir():
        shutil.rmtree(path)
    store = CheckpointStore(begun / "checkpoints")
    store.save(7, *pack({"model": {"weight": torch.ones(2)}, "position": (1, 2), "metrics": {}}))

    train("--epochs", "2", "--seed", "3").check_refused(
        "step-000000007 is no state of gapless train", "numerics"
    )
    gapless("translate", "r", "--checkpoint", "step-000000007", "a").check_refused(
        "step-000000007"
    )
    assert gapless("checkpoint", "verify", "r").code == 0


def test_another_folder_is_left_alone(train, tmp_path):
    """What holds no run is refused, as by any new run."""
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "metrics.jsonl").write_text("mine\n")

    train().check_refused("run folder r is not empty")
    assert (tmp_path / "r" / "metrics.jsonl").read_text() == "mine\n"


def test_a_run_under_way_is_left_alone(train, tmp_path):
    """It may have saved nothing yet: its lock says that it is there."""
    run = tmp_path / "r"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 1\n")
    with RunLock(run / "lock"):
        train().check_refused("is being written by")

    assert (run / "config.yaml").read_text() == "seed: 1\n"


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ([], ["--resume-if-there", "--run-dir"]),
        (["--run-dir", "r", "--dry-run"], ["--dry-run", "leave out --resume-if-there"]),
        (["--resume", "r"], ["leave out --resume-if-there"]),
    ],
    ids=["no folder", "dry run", "resume"],
)
def test_what_it_does_not_go_with(gapless, flags, parts):
    """Each is one line."""
    gapless("train", "--resume-if-there", *flags).check_refused(*parts)
