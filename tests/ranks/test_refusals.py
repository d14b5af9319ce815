"""A mistake in what several ranks are asked to do is one line, said once; all ranks end with it."""

from __future__ import annotations

import shutil
import signal
import socket

import pytest

from ranks.groups import fork_ranks
from ranks.runs import options


pytestmark = pytest.mark.xdist_group("processes: refusals")

# Nobody waits for another that has refused.
LIMIT = 60

# The process may use one core.
ONE_CORE = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"


@pytest.fixture
def refused(fork, tmp_path):
    """Start two ranks that are to be refused; check that no run folder came of it."""

    def call(*arguments, parts, run=tmp_path / "run", **given):
        ended = fork(*arguments, **given).end(limit=LIMIT)
        ended.check_refused(*parts)
        if run:
            assert not run.exists()
        return ended

    return call


@pytest.fixture
def own_folders(tmp_path):
    """Make a working folder for each of two ranks."""
    folders = [tmp_path / "host-0", tmp_path / "host-1"]
    for folder in folders:
        folder.mkdir()
    return folders


def test_settings_that_differ(refused, data, tmp_path):
    """The setting is named, with both values."""
    refused(
        *options(data, tmp_path / "run"),
        more=[["--lr", 0.02], ["--lr", 0.03]],
        parts=("--lr", "0.02", "0.03", "rank 1"),
    )


def test_data_that_nobody_has(refused, tmp_path):
    """One line, not one of each rank."""
    refused(*options("nowhere", tmp_path / "run"), parts=("nowhere",))


@pytest.mark.slow
def test_a_mistake_of_one_rank_where_the_first_only_looks(fork, data, tmp_path):
    """The first leaves without an error, so the other says its own."""
    group = fork(*options(data, tmp_path / "run"), more=[["--dry-run"], ["--device", "abacus"]])
    ended = group.end(limit=LIMIT)

    assert [rank.code for rank in ended.ranks] == [0, 2]
    assert ended.err.count("rank 1: unknown device 'abacus'") == 1, ended.err


@pytest.mark.slow
def test_a_mistake_of_all_that_the_first_rank_sees_late(refused, data, tmp_path):
    """On a host that is slow to import, say: the others leave it to the first, however long it takes."""
    ended = refused(
        *options(data, tmp_path / "run"),
        *("--device", "abacus"),
        before=["import time; time.sleep(3)", ""],
        parts=("abacus",),
    )

    assert ended.ranks[1].err == ""


@pytest.mark.slow
def test_text_that_cannot_be_used(refused, data, tmp_path):
    """Only the rank that prepares it sees it; the other ends as well."""
    text = shutil.copytree(data, tmp_path / "text")
    (text / "train.zh").write_text("ONE LINE\n", encoding="utf-8")

    refused(*options(text, tmp_path / "run"), parts=("train.zh",))


@pytest.mark.slow
def test_an_option_that_does_not_exist(fork, data, tmp_path):
    """Usage is said once, too."""
    group = fork(*options(data, tmp_path / "run"), "--bogus")
    group.until(lambda: group.pid(0) and group.pid(1), what="both ranks")
    # As torchrun does when a rank has ended.
    group.until_gone(0)
    group.send(1, signal.SIGTERM)
    ended = group.end(limit=LIMIT)

    assert ended.ranks[0].code == 2
    assert ended.ranks[1].code in (2, -signal.SIGTERM, 128 + signal.SIGTERM)
    assert ended.err.count("--bogus") == 1, ended.err


@pytest.mark.parametrize("option", ["--config", pytest.param("--resume", marks=pytest.mark.slow)])
def test_a_host_without_the_settings(fork, own_folders, option):
    """One of its ranks says so, with the name of the host and what to do."""
    (own_folders[0] / "run").mkdir()
    (own_folders[0] / "run" / "config.yaml").write_text("device: cpu\n")
    path = "run/config.yaml" if option == "--config" else "run"
    first, second = own_folders
    ended = fork(*("gapless", "train", option, path), cwd=[first, second]).end(limit=LIMIT)

    ended.check_refused(f"{option} {path} is not there on host {socket.gethostname()}", "--device")
    assert ended.errors[0].startswith("gapless: error: rank "), ended.err


@pytest.mark.slow
def test_a_host_without_the_run(launcher, data, fork, own_folders, tmp_path):
    """With the device given rank 0 alone reads the run."""
    begun = options(data, "run", epochs=1)
    fork_ranks(launcher, *begun, folder=tmp_path / "begun", cwd=own_folders).end().check_done()
    resumed = ("gapless", "train", "--resume", "run", "--epochs", 2, "--device", "cpu")

    fork(*resumed, cwd=own_folders).end().check_done()

    assert not (own_folders[1] / "run").exists()


@pytest.mark.slow
def test_a_folder_that_is_a_run(launcher, data, fork, tmp_path):
    """As with one rank: nothing of the run there is lost."""
    run = tmp_path / "run"
    begun = options(data, run, epochs=1)
    fork_ranks(launcher, *begun, folder=tmp_path / "one", world=1).end().check_done()
    before = sorted(path.name for path in run.rglob("*"))

    ended = fork(*begun).end(limit=LIMIT)

    ended.check_refused(run)
    assert sorted(path.name for path in run.rglob("*")) == before


@pytest.mark.slow
def test_fewer_cores_than_ranks(refused, data, tmp_path):
    """Two ranks that compute on one core wait for each other all the time."""
    refused(*options(data, tmp_path / "run"), before=ONE_CORE, parts=("--device cpu", "core", "2"))


def test_a_mistake_of_one_rank_alone(fork, data, tmp_path):
    """As where hosts differ: rank 0 waits for a rank that knows why it will not come."""
    written = tmp_path / "there"
    written.mkdir()
    group = fork(
        *options(data, tmp_path / "run"),
        more=[["--report", written / "a.html"], ["--report", tmp_path / "missing" / "a.html"]],
    )
    ended = group.end(limit=LIMIT)

    ended.check_refused("gapless: error: rank 1: ", "missing")
