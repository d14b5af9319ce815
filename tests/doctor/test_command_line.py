"""What `gapless doctor` promises on the command line: every entry of `command_line.toml`."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from doctor.tables import files_of, read_command_line
from faults.processes import Ended, Launcher, environment, shared_launcher
from gapless.cli.doctor_command import EXCLUDES
from gapless.cli.main import run_command


TABLE = read_command_line()


LOOKS = [
    run for run in TABLE["run"] if run["argv"][0] == "explain" or run["argv"][1] == "--static"
]
RUNS = [
    pytest.param(run, marks=[pytest.mark.slow] * (run.get("needs") == "torchrun"))
    for run in TABLE["run"]
    if run not in LOOKS and run.get("needs") != "gpu"
]
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"

# The first line of a report as text.
_REPORT = re.compile(r"^gapless doctor", re.MULTILINE)


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """A shell starts its background processes with SIGINT ignored, and so do they theirs."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture
def launcher():
    """Return a launcher whose processes are gone at the end of the test."""
    shared = shared_launcher()
    yield shared
    shared.stop_all()


def write_files(run: dict, folder: Path) -> None:
    for name, text in files_of(run).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def check_run(run: dict, folder: Path, launcher: Launcher, *, real: bool) -> None:
    """Run an entry and hold what it did against what it must."""
    folder = folder / "work"
    folder.mkdir()
    write_files(run, folder)
    stdin = folder.parent / "stdin"
    stdin.write_text(run.get("stdin", ""))
    with stdin.open("rb") as file:
        done = launcher.run(*run["argv"], folder=folder, stdin=file, real=real)
    _check_texts(run, done)
    _check_files(run, folder)
    if "plain" in run:
        _check_as_python(run, folder, done)


def _check_texts(run: dict, done) -> None:
    assert done.code == run["exit"], done.err
    assert [text for text in run.get("stdout", []) if text not in done.out] == []
    assert [text for text in run.get("stderr", []) if text not in done.err] == []
    assert [text for text in run.get("output", []) if text not in done.out + done.err] == []
    assert [text for text in run.get("not_stdout", []) if text in done.out] == []
    assert [text for text in run.get("not_stderr", []) if text in done.err] == []
    assert done.out == run.get("stdout_is", done.out)
    if "reports" in run:
        assert len(_REPORT.findall(done.err)) == run["reports"], done.err


def _check_files(run: dict, folder: Path) -> None:
    assert [name for name in run.get("writes", []) if not (folder / name).stat().st_size] == []
    assert [name for name in run.get("not_writes", []) if (folder / name).exists()] == []
    texts = [(folder / name).read_text() for name in run.get("writes", [])]
    for hidden in run.get("not_in_files", []):
        assert [text for text in texts if hidden in text] == []
    for key in run.get("json_keys", []):
        assert key in json.loads(texts[0])


def _check_as_python(run: dict, folder: Path, done) -> None:
    plain = subprocess.run(
        [sys.executable, *run["plain"]],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        input=run.get("stdin", ""),
        env=environment(),
    )
    said, report = split_report(done.err)
    if not said and report.endswith(plain.stderr):  # the report comes before what ended the script
        said, report = plain.stderr, report.removesuffix(plain.stderr)
    assert (done.code, done.out) == (plain.returncode, plain.stdout)
    assert said == plain.stderr
    assert len(_REPORT.findall(report)) <= 1
    if run.get("traceback"):
        assert "Traceback (most recent call last)" in said
        assert "gapless" not in said.replace(str(folder), "")


def split_report(err: str) -> tuple[str, str]:
    """Return what the script wrote to standard error, and what follows from the report on."""
    found = _REPORT.search(err)
    return (err[: found.start()], err[found.start() :]) if found else (err, "")


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_a_run_is_as_promised(run, tmp_path, launcher):
    """Exit code, outputs and files, and all that Python itself would have said and done."""
    # Without torch a new process is quicker than a copy of one that has it.
    check_run(run, tmp_path, launcher, real=run.get("needs") != "torch")


@pytest.mark.parametrize("run", LOOKS, ids=lambda run: run["name"])
def test_what_runs_no_script_is_as_promised(run, tmp_path, monkeypatch, capsys):
    """A look at files, and an explanation, end in a process of the tests as in one of their own."""
    monkeypatch.chdir(tmp_path)
    write_files(run, tmp_path)

    code = run_command(run["argv"])

    _check_texts(run, Ended(code, *capsys.readouterr()))
    _check_files(run, tmp_path)


def test_ranks_that_cannot_meet_run_all_the_same(tmp_path, launcher):
    """The script's exit code stays, and one line says what happened."""
    (tmp_path / "s.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "file").write_text("")

    done = launcher.run(
        *("doctor", "s.py"),
        folder=tmp_path,
        real=True,
        RANK=0,
        LOCAL_RANK=0,
        LOCAL_WORLD_SIZE=2,
        GAPLESS_DOCTOR_RANKS=tmp_path / "file" / "ranks",
    )

    assert done.code == 3
    assert "reports for itself alone" in done.err


@pytest.mark.slow
def test_torchrun_may_start_the_doctor(tmp_path, launcher):
    """One report from both ranks that way round, too."""
    source = files_of({"files": {"s.py": "import os\nLOOP\nprint('rank', os.environ['RANK'])\n"}})
    (tmp_path / "s.py").write_text(source["s.py"])
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "gapless", "doctor"]

    done = subprocess.run(
        [sys.executable, *command, "s.py"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )

    assert sorted(done.stdout.split()) == ["0", "1", "rank", "rank"]
    assert len(_REPORT.findall(done.stderr)) == 1
    assert "2 processes" in done.stderr


def test_reports_go_where_they_were_meant_to_go(tmp_path, launcher):
    """Also where the script changes its folder or its standard error, or writes at its very end."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "s.py").write_text(
        "import atexit, io, os, sys\n"
        "atexit.register(lambda: print('at the end', file=sys.__stderr__))\n"
        "os.chdir('elsewhere')\n"
        "sys.stderr = io.StringIO()\n"
    )

    done = launcher.run("doctor", "--save", "a.session", "s.py", folder=tmp_path, real=True)

    assert (tmp_path / "a.session").exists()
    said, report = split_report(done.err)
    assert said == "at the end\n"
    assert report


def test_a_script_that_trains_in_a_process_of_its_own_is_told_where_to_look(tmp_path, launcher):
    """Its steps are not seen, and the report says why."""
    (tmp_path / "s.py").write_text(
        "import torch, torch.multiprocessing as mp\n"
        "if __name__ == '__main__':\n"
        "    child = mp.get_context('fork').Process(target=print, args=('child',))\n"
        "    child.start()\n"
        "    child.join()\n"
    )

    done = launcher.run("doctor", "s.py", folder=tmp_path)

    assert (done.code, done.out) == (0, "child\n")
    assert "No step was seen" in done.err
    assert "Processes that the script starts" in done.err


def test_a_script_that_is_stopped_leaves_no_worker_of_its_loader(tmp_path, launcher):
    """Its blocks are left as by sys.exit(0), and its handlers of atexit run."""
    source = files_of({"files": {"s.py": "LOOP"}})["s.py"]
    loader = (
        "import atexit\n"
        "atexit.register(print, 'at the end')\n"
        "loader = torch.utils.data.DataLoader(range(10**6), num_workers=1)\n"
        "try:\n"
        "  for _ in loader:\n"
    )
    before, after = source.split("for step in range(60):\n")
    end = "except Exception:\n  print('caught')\nfinally:\n  print('cleaned')\nprint('on')\n"
    (tmp_path / "s.py").write_text(f"{before}{loader}{after}{end}")

    words = ["--stop-after", "--warm-up", "1", "--steps", "2"]
    done = launcher.run("doctor", *words, "s.py", folder=tmp_path)

    assert (done.code, done.out) == (0, "cleaned\nat the end\n"), done.err
    assert "a call of SGD.step" in done.err


def test_a_process_that_the_script_forks_reports_nothing(tmp_path, launcher):
    """It ends as the script's own processes do."""
    (tmp_path / "s.py").write_text(
        "import os, sys\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )

    done = launcher.run("doctor", "--save", "a.session", "s.py", folder=tmp_path, real=True)

    assert (done.code, done.out) == (0, "3\n")
    assert len(_REPORT.findall(done.err)) == 1


def test_a_thread_may_train_after_the_end_of_the_main_one(tmp_path, launcher):
    """Python waits for it, and so does the report."""
    loop = files_of({"files": {"s.py": "LOOP"}})["s.py"]
    body = "".join(f"    {line}\n" for line in loop.splitlines())
    (tmp_path / "s.py").write_text(
        f"import threading\ndef train():\n{body}threading.Thread(target=train).start()\n"
    )

    done = launcher.run("doctor", "s.py", folder=tmp_path)

    assert (done.code, done.out) == (0, "")
    assert "20 steps watched" in done.err


def test_two_sessions_are_compared(tmp_path, launcher, monkeypatch, capsys):
    """What is new counts for --fail-on; nothing is run."""
    monkeypatch.chdir(tmp_path)
    Path("s.py").write_text(files_of({"files": {"s.py": "LOOP"}})["s.py"])
    launcher.run("doctor", "--save", "before", "s.py", folder=tmp_path)
    shutil.copy("before", "after")

    words = ["--diff", "before", "after", "--fail-on", "any"]
    code = run_command(["doctor", *words])

    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "before: s.py" in out


def test_a_file_that_is_no_session_is_refused(tmp_path, capsys):
    """In one line that names it."""
    path = tmp_path / "a"
    path.write_text("{}")

    assert run_command(["doctor", "--diff", str(path), str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"{path} is not a session" in err


def test_a_report_that_cannot_be_written_changes_nothing_for_the_script(tmp_path, launcher):
    """It is told in one line below the report; the exit code is the script's."""
    (tmp_path / "s.py").write_text("import os\nos.mkdir('report')\nraise SystemExit(4)\n")

    done = launcher.run("doctor", "--out", "report", "s.py", folder=tmp_path, real=True)

    assert done.code == 4
    assert done.err.splitlines()[0].startswith("gapless doctor")
    assert done.err.count("gapless: warning") == 1
    assert f"gapless: warning: cannot write {tmp_path / 'report'}: Is a directory" in done.err


@pytest.mark.parametrize("entry", TABLE["refused"], ids=lambda entry: entry["name"])
def test_mistakes_are_refused_before_the_script_begins(entry, tmp_path, monkeypatch, capsys):
    """One line that names the thing; nothing is run, nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").write_text("open('ran', 'w')\n")

    code = run_command(entry["argv"])

    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert [name for name in entry["names"] if name not in err] == []
    assert [path.name for path in tmp_path.iterdir()] == ["s.py"]


VALUES = {
    "--step": ["loader"],
    "--warm-up": ["3"],
    "--steps": ["4"],
    "--save": ["a.session"],
    "--html": ["a.html"],
    "--perfetto": ["a.json"],
    "--diff": ["a", "b"],
    "--format": ["json"],
    "-m": ["module"],
}


@pytest.mark.parametrize("pair", EXCLUDES, ids=" ".join)
def test_options_that_exclude_each_other_are_refused(pair, capsys):
    """The line names both."""
    given = [word for flag in sorted(pair) for word in (flag, *VALUES.get(flag, []))]

    assert run_command(["doctor", *given]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert [flag for flag in pair if flag not in err] == []


def test_the_judge_and_the_page_know_the_same_exclusions():
    """Those of the table of promises are among ours; the page shows exactly ours."""
    ours = {frozenset(pair) for pair in EXCLUDES}
    promised = {frozenset(entry["flags"]) for entry in TABLE["excludes"]}
    rows = re.findall(r"^\| `(-[\w-]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    shown = {
        frozenset((flag, other))
        for flag, others in rows
        for other in re.findall(r"`(.+?)`", others)
    }

    assert promised - ours == set()
    assert shown == ours
