"""A run folder that is gone or no folder any more, and data and caches that cannot be read."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from faults.injected import SLOW
from faults.processes import LIMIT_OF_FAULTS
from faults.runs import check_same_run, newest_step, train_options, write_data


pytestmark = pytest.mark.xdist_group("processes: lost folders")


def replace_by_file(folder):
    shutil.rmtree(folder)
    folder.write_text("no folder")


def rename(folder):
    folder.rename(folder.with_name("elsewhere"))


HOW = [shutil.rmtree, rename, replace_by_file]


def at_once(do, folder):
    """Do something to a folder that a process writes to meanwhile."""
    for _ in range(20):
        try:
            return do(folder)
        except OSError:
            continue
    pytest.fail(f"{folder} resists")


@pytest.mark.parametrize(
    ("do", "workers"),
    [
        (HOW[0], 0),
        *(pytest.param(do, 2, marks=pytest.mark.slow) for do in HOW),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_run_folder_that_is_gone(start, data, tmp_path, do, workers):
    """The run ends in one line that names the folder, and makes no new one in its place."""
    run = tmp_path / "run"
    process = start(*train_options(data, run, epochs=50, workers=workers), before=SLOW)
    process.until(lambda: newest_step(run) >= 20, what="an update was saved")

    at_once(do, run)
    ended = process.end(limit=LIMIT_OF_FAULTS + 60)

    ended.check_refused(run)
    assert not (run / "config.yaml").exists()


@pytest.mark.slow
def test_a_folder_that_may_not_be_changed(start, run, data, finished, tmp_path):
    """A folder in which nothing can be made ends the run with its name; then it goes on."""
    folder = tmp_path / "run"
    process = start(*train_options(data, folder, workers=2), before=SLOW)
    process.until(lambda: newest_step(folder) >= 20, what="an update was saved")
    locked = subprocess.run(["chattr", "+i", folder / "checkpoints"], capture_output=True)
    if locked.returncode:
        pytest.skip("chattr may not make a folder unchangeable here")
    try:
        ended = process.end(limit=LIMIT_OF_FAULTS + 60)
    finally:
        subprocess.run(["chattr", "-i", folder / "checkpoints"], check=True)

    ended.check_refused(folder, "Operation not permitted")
    run("train", "--resume", folder).check_done()
    check_same_run(folder, finished)


@pytest.mark.parametrize(
    "name", ["train.en", *(pytest.param(n, marks=pytest.mark.slow) for n in ("val.zh", "test.en"))]
)
def test_data_that_is_gone(run, tmp_path, name):
    """A resumed run names the file of its data that is not there any more."""
    data = write_data(tmp_path / "data")
    run(*train_options(data, tmp_path / "run", epochs=1)).check_done()
    (data / name).unlink()

    run("train", "--resume", tmp_path / "run", "--epochs", 2).check_refused(name.split(".")[0])


@pytest.mark.slow
def test_data_that_is_gone_while_a_run_trains(start, data, finished, tmp_path):
    """Data is read once: a run that has begun needs its files no more."""
    own = shutil.copytree(data, tmp_path / "data")
    process = start(*train_options(own, tmp_path / "run", workers=2), before=SLOW)
    process.until(lambda: newest_step(tmp_path / "run") >= 20, what="an update was saved")
    shutil.rmtree(own)

    process.end().check_done()

    check_same_run(tmp_path / "run", finished)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a file", "not writable", "full of rubbish"])
def test_a_cache_that_cannot_be_used(run, data, finished, tmp_path, what):
    """A cache only saves time: without one a run trains all the same, or says what is wrong."""
    cache = tmp_path / "own-cache"
    if what == "a file":
        cache.write_text("no folder")
    elif what == "not writable":
        cache = "/proc/self/cache"
    else:
        cache.mkdir()
        (cache / "gapless").write_text("no folder")

    ended = run(*train_options(data, tmp_path / "run"), XDG_CACHE_HOME=cache)

    if ended.code:
        ended.check_refused("cache")
    else:
        check_same_run(tmp_path / "run", finished)


def test_a_run_folder_whose_name_is_no_text(run, data, finished, tmp_path):
    """A run trains, goes on and translates under any name; TensorBoard alone cannot write there."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xffn"))

    run(*train_options(data, folder, epochs=2)).check_done()
    run("train", "--resume", folder, "--epochs", "3").check_done()

    run("checkpoint", "verify", folder).check_done()
    # The reader of safetensors takes no such name.
    check_same_run(folder.rename(tmp_path / "run"), finished)
