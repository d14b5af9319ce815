"""A damaged run folder is never used without a word: it falls back, or refuses in one line."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from checkpoint.damage import flip, truncate
from faults.injected import SLOW
from faults.run_damage import run_cases
from faults.runs import check_same_run, checkpoints, newest_step, train_options


pytestmark = pytest.mark.xdist_group("processes: run damage")


@pytest.fixture(scope="session")
def killed(launcher_of_session, data, tmp_path_factory):
    """A run that was killed after update 60, with three states."""
    folder = tmp_path_factory.mktemp("killed")
    process = launcher_of_session.start(
        *train_options(data, folder / "run"), folder=folder, before=SLOW
    )
    process.until(lambda: newest_step(folder / "run") >= 60, what="update 60 was saved")
    process.send(signal.SIGKILL)
    process.end()
    return folder / "run"


@pytest.fixture
def copy(killed, tmp_path):
    return shutil.copytree(killed, tmp_path / "run")


@pytest.mark.slow
def test_every_kind_of_damage(launcher, tmp_path):
    """A sample of the cases of `python -m faults.run_damage`, from every file of a run."""
    _, wrong = run_cases([launcher], tmp_path, 24, report=lambda *_, **__: None)

    assert wrong == []


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_state_before_is_used(copy, run, finished, count):
    """Damaged states are named in one line each, and the run ends with the same bits."""
    damaged = checkpoints(copy)[-count:]
    for name in damaged:
        flip(copy / "checkpoints" / name / "tensors.safetensors", -1, 0)

    listed = run("checkpoint", "list", copy)
    verified = run("checkpoint", "verify", copy)
    resumed = run("train", "--resume", copy)

    resumed.check_done()
    check_same_run(copy, finished)
    for name in damaged:
        assert [line for line in (resumed.out + resumed.err).splitlines() if name in line] != []
        assert [line for line in verified.out.splitlines() + verified.errors if name in line] != []
        assert name in listed.out
        assert name in (copy / "errors.log").read_text(encoding="utf-8")
    assert verified.code == 1
    assert "Traceback" not in verified.err + listed.err + resumed.err


def test_no_state_is_whole(copy, run):
    """Where no state is whole a resume says so in one line."""
    for name in checkpoints(copy):
        truncate(copy / "checkpoints" / name / "meta.json", 3)

    ended = run("train", "--resume", copy)

    ended.check_refused("whole")


def test_a_whole_run_is_verified(finished_copy, run):
    """A run that nothing happened to is whole, and each of its checkpoints is listed."""
    verified, listed = (
        run("checkpoint", "verify", finished_copy),
        run("checkpoint", "list", finished_copy),
    )

    verified.check_done()
    listed.check_done()
    for name in [*checkpoints(finished_copy), "best", "final"]:
        assert name in listed.out


@pytest.mark.parametrize(
    "what", ["absent", *(pytest.param(w, marks=pytest.mark.slow) for w in ("a file", "no run"))]
)
@pytest.mark.parametrize("command", ["list", "verify"])
def test_what_is_no_run(run, tmp_path, command, what):
    """Another folder, a file or nothing is refused in one line."""
    path = tmp_path / "what"
    if what == "a file":
        path.write_text("no run")
    elif what == "no run":
        path.mkdir()

    run("checkpoint", command, path).check_refused("what")


def more_lines(path):
    path.write_text(path.read_text() + '{"kind": "train", "step": 99999, "loss": 0.0}\n')


def torn_line(path):
    path.write_text(path.read_text() + '{"kind": "trai')


def rubbish(path):
    path.write_bytes(path.read_bytes() + b"\xff\xfe\0\n[]\n3\n")


def lost_half(path):
    truncate(path, path.stat().st_size // 2)


def lost_newline(path):
    truncate(path, path.stat().st_size - 1)


def changed_loss(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3]["loss"] = 0.5
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def emptied(path):
    path.write_text("")


def deleted(path):
    path.unlink()


def replaced(path):
    path.unlink()
    path.mkdir()


def piped(path):
    path.unlink()
    os.mkfifo(path)


AFTER_THE_SAVED = [more_lines, torn_line, rubbish]
IN_THE_SAVED = [lost_half, lost_newline, changed_loss, emptied, deleted, replaced, piped]


@pytest.mark.parametrize(
    "damage",
    [torn_line, *(pytest.param(one, marks=pytest.mark.slow) for one in (more_lines, rubbish))],
)
def test_a_record_with_more_than_was_saved(copy, run, finished, damage):
    """What was written after the state is written again: the record is that of an unbroken run."""
    damage(copy / "metrics.jsonl")

    run("train", "--resume", copy).check_done()

    check_same_run(copy, finished)


@pytest.mark.parametrize(
    "damage",
    [
        changed_loss,
        *(pytest.param(d, marks=pytest.mark.slow) for d in IN_THE_SAVED if d is not changed_loss),
    ],
)
def test_a_damaged_record(copy, run, finished, damage):
    """A record that lost or changed what was saved is named; never is a line lost in silence."""
    damage(copy / "metrics.jsonl")

    ended = run("train", "--resume", copy)

    ended.check_no_traceback()
    if ended.code:
        ended.check_refused("metrics.jsonl")
    else:
        if "metrics.jsonl" not in ended.out + ended.err:
            check_same_run(copy, finished)
        assert newest_step(copy) == newest_step(finished)


@pytest.mark.parametrize("name", ["config.yaml", "vocab.src.words.txt"])
@pytest.mark.parametrize(
    "damage",
    [lost_half, pytest.param(deleted, marks=pytest.mark.slow)],
    ids=lambda one: one.__name__,
)
def test_settings_and_words(copy, run, finished, name, damage):
    """Lost settings and vocabularies are named or restored, and no other run comes of it."""
    damage(copy / name)

    ended = run("train", "--resume", copy)

    ended.check_no_traceback()
    if ended.code:
        ended.check_refused(name)
    else:
        check_same_run(copy, finished)
