"""Faults that were seen when public scripts ran under the doctor do not come back in other forms."""

from __future__ import annotations

import json
import re
import textwrap

import pytest

from doctor.not_yet import marked, params
from doctor.tables import LOOP
from faults.processes import shared_launcher
from gapless.cli.main import run_command


FEW = ("--warm-up", "2", "--steps", "5")


@pytest.fixture
def launcher():
    """Return a launcher whose processes are gone at the end of the test."""
    shared = shared_launcher()
    yield shared
    shared.stop_all()


@pytest.fixture
def doctor(tmp_path, launcher):
    """Return what runs a script under the doctor: how it ended, and its session."""

    def run(source, *words, name="s.py"):
        (tmp_path / name).write_text(source, encoding="utf-8")
        saved = tmp_path / "a.session"
        done = launcher.run("doctor", *FEW, "--save", saved, *words, name, folder=tmp_path)
        return done, json.loads(saved.read_text()) if saved.exists() else None

    return run


DEATHS = {
    "dies: not at all": "pass",
    "dies: abort": "os.abort()",
    "dies: hang-up": "signal.raise_signal(signal.SIGHUP)",
    "dies: another program": "os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
    "dies: from a thread": "threading.Thread(target=os._exit, args=(3,)).start(); time.sleep(60)",
    "dies: the kernel's hand": "os.kill(os.getpid(), signal.SIGKILL)",
    "dies: a second signal": (
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(1)); signal.raise_signal(signal.SIGTERM)"
    ),
}


@pytest.mark.parametrize("end", params(DEATHS))
def test_a_run_that_is_killed_leaves_its_reports(end, tmp_path, launcher):
    """What was known when the windows were over stands in every file that was asked for."""
    (tmp_path / "s.py").write_text(f"import os, signal, sys, threading, time\n{LOOP}{end}\n")

    launcher.run(
        *("doctor", *FEW, "--save", "s", "--out", "o", "--html", "h", "s.py"),
        folder=tmp_path,
    )

    session = json.loads((tmp_path / "s").read_text())
    assert session["steps"]["wall_ms"]["median"] > 0
    assert [one["site"]["line"] for one in session["findings"] if one["code"] == "GAP001"] == [11]
    assert "GAP001" in (tmp_path / "o").read_text()
    assert "</html>" in (tmp_path / "h").read_text()


SLOW_BATCHES = {
    "batches: a class": """
        class Batches:
            def __iter__(self):
                return self
            def __next__(self):
                time.sleep(0.02)
                return torch.ones(4, 8)
        for step, x in zip(range(60), Batches()):
    """,
    "batches: map": """
        def slow(number):
            time.sleep(0.02)
            return torch.ones(4, 8)
        for x in map(slow, range(60)):
    """,
    "batches: a generator in a bar": """
        def batches():
            for _ in range(60):
                time.sleep(0.02)
                yield torch.ones(4, 8)
        for step, x in enumerate(batches()):
    """,
    "batches: an environment": """
        class Environment:
            def step(self, action):
                time.sleep(0.02)
                return torch.ones(4, 8)
        environment = Environment()
        for action in range(60):
            x = environment.step(action)
    """,
    "batches: a loader, and work on what it gives": """
        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 60
            def __getitem__(self, number):
                time.sleep(0.01)
                return torch.ones(8)
        for x in torch.utils.data.DataLoader(Slow()):
            time.sleep(0.01)
    """,
}
STEP = """\
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MODEL = """\
import time
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("head", params(SLOW_BATCHES))
def test_batches_of_any_iterator_are_timed(head, doctor):
    """The time in which the loop's own iterator makes a batch is that of data, and it is named first."""
    done, session = doctor(MODEL + textwrap.dedent(head).strip() + "\n" + STEP)

    assert done.code == 0, done.err
    data_ms = session["steps"]["data_ms"]
    assert data_ms >= 15
    # The same time has the same figure, in the verdict and in the table.
    said = f"{data_ms:.1f} ms"
    assert re.search(
        rf"LOADER-BOUND: batches take {said} .*\n.* data: [a-z ]+ {said} ", done.err, re.S
    )
    assert ("num_workers" in done.err) == ("DataLoader" in head)
    assert ("Step several environments" in done.err) == ("Environment" in head)
    assert "LOADER-BOUND" in done.err[done.err.index("gapless doctor") :][:1500], done.err


def says_that_no_loader_was_seen(done, session):
    return "no loader was seen" in done.err.lower() and "keeps up" not in done.err


def says_first_what_would_wait(done, session):
    head = done.err[done.err.index("gapless doctor") :].splitlines()[:4]
    return any(re.search(r"1 line would surely wait", line) for line in head)


def splits_the_step(done, session):
    return all(re.search(rf"\b{part}\b", done.err) for part in ("data", "forward", "backward"))


def has_no_idle_counts(done, session):
    counts = [one["per_step"] for one in session["findings"]]
    return all(one is None or one > 0 for one in counts) and "count 0" not in done.err


ON_A_CPU = {
    f"on a CPU: {one.__name__.replace('_', ' ')}": one
    for one in (
        says_that_no_loader_was_seen,
        says_first_what_would_wait,
        splits_the_step,
        has_no_idle_counts,
    )
}


@pytest.mark.parametrize("is_so", params(ON_A_CPU))
def test_a_report_on_a_cpu_says_what_was_seen(is_so, doctor):
    """No loader keeps up where none was seen; what would wait on a GPU stands in the first lines."""
    done, session = doctor(LOOP)

    assert is_so(done, session), done.err


LOADER = MODEL + (
    "data = torch.utils.data.TensorDataset(torch.ones(240, 8))\n"
    "for x, in torch.utils.data.DataLoader(data, batch_size=4):\n"
)


TRIED = {
    "no trial: of a generator": (
        MODEL + "for x in (torch.ones(4, 8) for _ in range(60)):\n",
        "--try",
    ),
    "no trial: captured": (MODEL + "for x in [torch.ones(4, 8)] * 60:\n", "--try=captured"),
    "no trial: recorded": (LOADER, "--try=recorded-batches"),
}


@pytest.mark.parametrize("case", params(TRIED))
def test_no_trial_is_claimed_that_was_not_made(case, doctor):
    """Of a short run without a GPU: what was not tried says why, and nothing says that it was."""
    head, variant = case

    done, session = doctor(head + STEP, variant)

    assert "in all of them" not in " ".join(session["notes"])
    assert all(one["steps_per_second"] or one["refusal"] for one in session["trials"])
    assert session["trials"] or re.search("No variant was (tried|measured)", done.err)


def test_a_cpu_is_not_told_of_page_locked_memory(doctor):
    """Memory of a batch is not "not pinned" where nothing is copied."""
    done, _ = doctor(LOADER + "    x = x.to('cpu')\n" + STEP)

    assert "not pinned" not in done.err


CRASHES = {
    "crash: a key": ("{}['lr']", "KeyError: 'lr'"),
    "crash: an own error": (
        "raise type('Diverged', (Exception,), {})('at 40')",
        "Diverged: at 40",
    ),
    "crash: in torch": ("torch.ones(2) @ torch.ones(3)", "RuntimeError"),
}


@pytest.mark.parametrize("crash", params(CRASHES))
def test_a_traceback_is_the_last_thing_on_the_terminal(crash, doctor):
    """Of a run with steps, too."""
    code, last = crash

    done, _ = doctor(f"{LOOP}    if step == 40:\n        {code}\n")

    assert done.code == 1
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert re.search(rf"\b{re.escape(last)}", lines[-1]), done.err[-1500:]


NO_STEPS = {
    "no step: a module that is not there": f"import no_such_module\n{LOOP}",
    "no step: wrong arguments": (
        f"import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\n"
        f"p.parse_args()\n{LOOP}"
    ),
    "no step: a file that is not there": f"open('no/such/file')\n{LOOP}",
}


@pytest.mark.parametrize("source", params(NO_STEPS))
def test_a_script_that_fails_before_its_first_step_gets_one_line(source, doctor):
    """No list of findings buries what went wrong."""
    done, _ = doctor(source)

    assert done.code in (1, 2)
    assert "GAP0" not in done.err, done.err
    assert len([line for line in done.err.splitlines() if "doctor" in line.lower()]) <= 1, done.err


@marked("paths")
def test_a_path_is_written_one_way(tmp_path, launcher):
    """From another folder, by a path that leads up: of what was run and of what was looked at."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "train.py").write_text(
        f"import beside\n{LOOP}    print(loss)\n    beside.put(loss)\n"
    )
    (tmp_path / "b" / "beside.py").write_text("def put(x):\n    return float(x.sum())\n")

    launcher.run(*("doctor", *FEW, "--save", "a.session", "../b/train.py"), folder=tmp_path / "a")

    session = json.loads((tmp_path / "a" / "a.session").read_text())
    paths = {one["site"]["path"] for one in session["findings"] if one["site"]}
    assert len(paths) == len({path.rpartition("/")[2] for path in paths}) > 0, paths


QUIET = """\
import logging
import torch
logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    loss = model(torch.randn(4, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.debug("loss %s", loss.detach())
"""


@marked("a log that is off, in a run")
def test_a_log_that_is_off_is_no_finding_of_a_run(doctor):
    """An argument of a message that is not written is the cure."""
    _, session = doctor(QUIET)

    assert session["findings"] == []


EVALUATES_FIRST = """\
import torch
device = torch.device("cuda")
model = torch.nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def save(path):
    torch.save(model.state_dict(), path)
def evaluate(loader):
    with torch.no_grad():
        return [model(x.to(device)).cpu() for x in loader]
def penalty(x):
    scale = x.square().sum().item()
    return x * scale
def train(loader):
    for x in loader:
        x = x.to(device)
        loss = penalty(model(x)).mean()
        loss.backward()
        optimizer.step()
        print(loss.item())
for epoch in range(9):
    train([])
    evaluate([])
    save("a")
"""
# The lines of the step, of what it calls, of evaluation and of saving.
PARTS = ([15, 19], [11], [9], [6])


def looked_at(tmp_path, capsys, files, *words):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    run_command(["doctor", "--static", *words, str(tmp_path)])
    return capsys.readouterr().out


@marked("order: the step")
def test_the_step_comes_first(tmp_path, capsys):
    """Then what it calls, then evaluation, then saving."""
    out = looked_at(tmp_path, capsys, {"train.py": EVALUATES_FIRST}, "--format", "json")

    lines = [one["site"]["line"] for one in json.loads(out)["findings"]]
    ranks = [next(rank for rank, part in enumerate(PARTS) if line in part) for line in lines]

    assert set(lines) >= {15, 19, 11, 9}
    assert ranks == sorted(ranks), lines


@marked("order: files")
def test_files_are_in_order_of_their_steps(tmp_path, capsys):
    """Evaluation in the first file stands after the step in the last one."""
    files = {
        "a_eval.py": "def score(model, loader):\n    return [model(x).cpu() for x in loader]\n",
        "z_train.py": EVALUATES_FIRST,
    }

    findings = json.loads(looked_at(tmp_path, capsys, files, "--format", "json"))["findings"]

    first = findings[0]["site"]
    assert first["path"].endswith("z_train.py")
    assert first["line"] in PARTS[0]


@marked("order: no cost")
def test_no_cost_is_claimed_where_none_was_measured(tmp_path, capsys):
    """A look at files has no costliest line."""
    assert "costliest" not in looked_at(tmp_path, capsys, {"train.py": EVALUATES_FIRST})


@marked("order: a summary")
def test_many_findings_have_a_summary_by_file(tmp_path, capsys):
    """Beyond forty a reader sees first which file has how many."""
    files = {
        f"part{number}.py": EVALUATES_FIRST + "    print(model.weight)\n" * (20 + number)
        for number in range(3)
    }

    lines = looked_at(tmp_path, capsys, files).splitlines()

    for name in files:
        assert [one for one in lines[:30] if re.search(rf"{name}\b(?!:\d).*\d", one)], lines[:30]


RANKS = """\
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def batches():
    for _ in range(60):
        time.sleep(0.03 * (rank == 0))
        yield torch.ones(4, 8)
for x in batches():
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", params({"ranks: slow batches": RANKS}))
def test_the_slowest_rank_is_named(program, tmp_path, launcher):
    """With what it costs the others."""
    (tmp_path / "s.py").write_text(program)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    done = launcher.run("doctor", *FEW, *words, "s.py", folder=tmp_path, real=True)

    assert done.code == 0, done.err
    assert "STRAGGLER" in done.err, done.err
    assert re.search(r"rank 0\b", done.err, re.IGNORECASE), done.err
