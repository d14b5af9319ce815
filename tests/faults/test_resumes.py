"""A run that was killed goes on as if nothing had been, or says in one line why it cannot."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from faults.injected import SLOW
from faults.resumes import MISHAPS, RESUMES, Copy
from faults.runs import (
    UPDATES,
    check_same_run,
    differences,
    newest_step,
    tensors_in,
    train_options,
)


pytestmark = pytest.mark.xdist_group("processes: resumes")


@pytest.fixture(scope="session")
def killed(launcher_of_session, data, tmp_path_factory):
    """A run that was killed after update 60, with three states, and its data."""
    folder = tmp_path_factory.mktemp("killed")
    run = folder / "run"
    process = launcher_of_session.start(*train_options(data, run), folder=folder, before=SLOW)
    process.until(lambda: newest_step(run) >= 60, what="update 60 was saved")
    process.send(signal.SIGKILL)
    process.end()
    return run


@pytest.fixture
def copy(killed, data, tmp_path):
    return Copy(
        shutil.copytree(killed, tmp_path / "moved"), shutil.copytree(data, tmp_path / "data")
    )


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.is_quick else pytest.mark.slow)
        for case in RESUMES
    ],
)
def test_a_resume(copy, run, finished, case):
    """In another folder than it began in, it ends with the same bits, and says what it has to."""
    newest = copy.states[-1].name
    case.change(copy)

    ended = run("train", "--resume", copy.run, "--data", copy.data, *case.more, before=case.before)

    said = [part.format(newest=newest) for part in case.says]
    if case.is_refused:
        ended.check_refused(*said)
        return
    ended.check_done()
    assert [part for part in said if part not in ended.out + ended.err] == []
    if not said and not case.more:
        assert ended.err == ""
    if case.ends_equal:
        found = differences(copy.run, finished)
        assert [text for text in found if case.keeps_record or "its history" not in text] == []
    else:
        assert newest_step(copy.run) == 3 * UPDATES


def test_a_damaged_state_is_named_by_all_who_look(copy, run):
    """By those who list, among the whole ones, and by those who verify."""
    MISHAPS["flipped"](copy.states[-1])

    listed, verified = (run("checkpoint", what, copy.run) for what in ("list", "verify"))

    assert [path for path in copy.states if path.name not in listed.out] == []
    assert copy.states[-1].name in verified.out + verified.err
    assert (listed.code, verified.code) == (0, 1)


@pytest.mark.slow
def test_a_finished_run_is_trained_further(finished_copy, run, start):
    """Once it goes on it has no final weights, though it is killed; then it gets new ones."""
    final = finished_copy / "checkpoints" / "final"
    old = tensors_in(final)
    process = start("train", "--resume", finished_copy, "--epochs", 4, before=SLOW)
    process.until(lambda: newest_step(finished_copy) > 3 * UPDATES, what="it trained further")
    process.send(signal.SIGKILL)
    process.end()

    assert not final.exists()
    run("translate", finished_copy, "--checkpoint", "final", "x").check_refused("final")
    run("train", "--resume", finished_copy).check_done()
    assert tensors_in(final) != old


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_finished_run_stays_finished(finished_copy, run, finished, is_lost):
    """Resuming what is done changes nothing; lost final weights are made again."""
    if is_lost:
        shutil.rmtree(finished_copy / "checkpoints" / "final")

    run("train", "--resume", finished_copy).check_done()

    check_same_run(finished_copy, finished)


@pytest.mark.slow
@pytest.mark.parametrize("mishap", ["flipped", "deleted"])
def test_the_mean_at_the_end_of_a_run(run, finished_copy, mishap):
    """A run that is to make a mean over what is left is refused before it trains."""
    MISHAPS[mishap](finished_copy / "checkpoints" / "epoch-0002")

    ended = run("train", "--resume", finished_copy, "--epochs", 4, "--average", 4)

    ended.check_refused("epoch-0002")
    assert newest_step(finished_copy) == 3 * UPDATES


@pytest.mark.slow
def test_a_run_folder_whose_name_is_no_text(copy, run, finished, tmp_path):
    """A run goes on and is verified under any name; TensorBoard alone cannot write there."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xffn"))
    copy.run.rename(folder)

    run("train", "--resume", folder).check_done()

    run("checkpoint", "verify", folder).check_done()
    # The reader of safetensors takes no such name.
    check_same_run(folder.rename(tmp_path / "run"), finished)
