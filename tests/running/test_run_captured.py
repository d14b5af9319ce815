"""A script of anybody runs captured: what it leaves is what it leaves under Python."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

import gapless
from gapless.device.torch_private import RUN_BACKWARD
from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.in_place.captor import captor_of
from gapless.graphs.refusal import Refusal
from gapless.running.captured_objects import CapturedObjects
from gapless.running.capturing import Capturing
from gapless.testing import SimulatedDevice
from gapless.trials import called_parts


SRC = Path(gapless.__file__).parents[1]

# A script that knows nothing of gapless; the simulated device is `cpu:1`.
SCRIPT = """
import sys, atexit, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.count = 0

    def forward(self, x):
        if {counts}:
            self.count += 1
        return self.inner(x)

torch.manual_seed(0)
model = Net().to("cpu:1")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
for _ in range(60):
    loss = model(torch.randn(3, 4).to("cpu:1")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
print(__name__, sys.argv, loss.item(), model.count)
atexit.register(print, "the last word", file=sys.stderr)
torch.save([model, model.state_dict(), optimizer.state_dict()], "saved.pt")
{end}
"""

# Lets the device of a script be a simulated one.
SIMULATED = """
import sys
from functools import partial
from gapless.cli.main import main
from gapless.running import run_captured
from gapless.testing import SimulatedDevice

with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
    run_captured.Capturing = partial(run_captured.Capturing, device)
    main(["run", *sys.argv[1:]])
"""


def python(folder, *words, **env):
    """Run Python in a folder; return its exit code, its outputs, and the file that the script wrote."""
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", **env},
    )
    saved = folder / "saved.pt"
    data = saved.read_bytes() if saved.exists() else b""
    saved.unlink(missing_ok=True)
    return ended.returncode, ended.stdout, ended.stderr, data


@pytest.mark.parametrize(
    ("counts", "end"),
    [
        (False, "sys.exit(3)"),
        (True, "raise ValueError('at the end')"),
        (False, "import os, signal; os.kill(os.getpid(), signal.SIGINT)"),
    ],
    ids=["exit", "error_and_refusal", "interrupt"],
)
def test_a_script_leaves_what_it_leaves_under_python(tmp_path, counts, end):
    """Output, exit code, checkpoint and its own errors are the same; ours stand around them."""
    (tmp_path / "train.py").write_text(SCRIPT.format(counts=counts, end=end))
    expected = python(tmp_path, "train.py", "--lr", "-m")
    report = tmp_path / "report.json"

    found = python(tmp_path, "-c", SIMULATED, "--report", "report.json", "train.py", "--lr", "-m")

    assert found[:2] == expected[:2]
    assert found[3] == expected[3]
    assert expected[2] in found[2]
    before, after = found[2].split(expected[2])
    assert before.count("\n") == 1
    assert before.startswith("gapless run: train.py ")
    assert after.startswith("gapless run: ")
    assert "Net" in after
    assert ("as written, Net: train.py" in after) == counts
    objects = {one["name"]: one for one in json.loads(report.read_text())["objects"]}
    assert objects["SGD"]["num_replays"] > 30
    assert objects["Net"]["num_replays"] > 30
    assert ("Net: in its place is captured: `inner`" in after) == counts


def test_a_script_that_uses_no_gpu_is_left_alone(tmp_path):
    """No room that captures is loaded; one line says that there was nothing to launch."""
    script = SCRIPT.format(counts=False, end="print('gapless.graphs.capture' in sys.modules)")
    (tmp_path / "train.py").write_text(script.replace("cpu:1", "cpu"))

    code, out, err, _ = python(tmp_path, "-m", "gapless", "run", "train.py")

    assert (code, out.splitlines()[-1]) == (0, "False")
    assert len(err.splitlines()) == 3
    assert err.endswith(
        "nothing ran as a graph: no GPU was used, and a CPU has nothing to launch\n"
    )


@pytest.mark.parametrize(
    ("words", "env", "num_lines"),
    [
        (["s.py"], {}, 2),
        (["--quiet", "s.py"], {}, 0),
        (["s.py"], {"GAPLESS_CAPTURE": "off"}, 1),
        (["s.py"], {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, 0),
    ],
    ids=["alone", "quiet", "off", "rank_1"],
)
def test_how_much_is_said(tmp_path, words, env, num_lines):
    """One line at the start and one at the end, or less where that is asked for."""
    (tmp_path / "s.py").write_text("print('own')")

    code, out, err, _ = python(tmp_path, "-m", "gapless", "run", *words, **env)

    assert (code, out, len(err.splitlines())) == (0, "own\n", num_lines)
    assert all(line.startswith("gapless run: ") for line in err.splitlines())


@pytest.mark.parametrize(
    ("words", "env", "part"),
    [
        (["missing.py"], {}, "missing.py"),
        ([], {}, "expected a script, or -m and a module"),
        (["s.py"], {"GAPLESS_CAPTURE": "no"}, "GAPLESS_CAPTURE"),
        (["--report", "no/folder", "s.py"], {}, "--report"),
    ],
)
def test_a_mistake_is_one_line_before_the_script_runs(tmp_path, words, env, part):
    """With exit code 2."""
    (tmp_path / "s.py").write_text("print('own')")

    code, out, err, _ = python(tmp_path, "-m", "gapless", "run", *words, **env)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("gapless: error: ")
    assert part in err


@pytest.mark.slow
@pytest.mark.parametrize("is_in_front", [True, False])
def test_ranks_run_the_script_and_the_first_speaks(tmp_path, is_in_front):
    """Whether torchrun starts gapless or gapless starts torchrun."""
    (tmp_path / "s.py").write_text("import os; print(os.environ['RANK'] + __name__)")
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = ["-m", "gapless", "run"]
    words = ["-m", *launcher, *run] if is_in_front else [*run, "-m", *launcher]

    code, out, err, _ = python(tmp_path, *words, "s.py")

    # Two processes write to one pipe: their lines may meet.
    assert (code, Counter(out)) == (0, Counter("0__main__\n1__main__\n"))
    assert err.count("gapless run: ") == 2


def test_a_traceback_has_no_frame_of_ours_between_those_of_the_script(tmp_path):
    """An error within a captured model is shown as without; one of gapless itself keeps its frames."""
    script = SCRIPT.replace("return self.inner(x)", "return fails(x) or self.inner(x)")
    fails = "calls = []\ndef fails(x):\n    calls.append(len(calls) == 40 and 1 / 0)\n\nclass Net"
    text = script.format(counts=False, end="").replace("class Net", fails)
    (tmp_path / "train.py").write_text(text)
    expected = python(tmp_path, "train.py")
    found = python(tmp_path, "-c", SIMULATED, "train.py")

    def own(err):
        return [line for line in err.splitlines() if 'train.py"' in line or "Error" in line]

    assert found[0] == expected[0] == 1
    assert own(found[2]) == own(expected[2])
    assert len(own(expected[2])) > 3
    assert f'"{SRC}' not in found[2]


RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
BEFORE = (
    *(
        "accumulation",
        "clipping",
        "ema",
        "evaluation",
        "gan",
        "in_place",
        "lengths",
        "mixed_precision",
    ),
    *("replay", "schedule", "tbptt"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", BEFORE)
def test_loops_of_all_kinds_print_what_they_print_under_python(tmp_path, name):
    """Losses are printed to the bit, and most calls are graphs."""
    script = str(RECIPES / f"{name}_before.py")
    expected = python(tmp_path, script, "--device", "cpu:1")

    found = python(tmp_path, "-c", SIMULATED, "--report", "r.json", script, "--device", "cpu:1")

    assert found[:2] == expected[:2]
    assert expected[0] == 0
    captured = json.loads((tmp_path / "r.json").read_text())["objects"]
    num_graphs = sum(one["num_replays"] for one in captured)
    assert num_graphs > 0.7 * (num_graphs + sum(one["num_eager"] for one in captured))


# --- in this process ---


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x):
        return self.inner(x)


class Training:
    """A loop that trains a model and steps its optimizer."""

    def __init__(self, device):
        self.at = device.torch_device
        self.model = Net().to(self.at)
        self.optimizer = SGD(self.model.parameters(), lr=0.1)

    def run(self, num_steps):
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            self.model(torch.ones(3, 4, device=self.at)).sum().backward()
            self.optimizer.step()


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


@pytest.fixture
def capturing(device):
    capturing = Capturing(device)
    capturing.start()
    yield capturing
    capturing.end()


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """Forget what other tests have compiled in this process."""
    counters = {"frames": Counter()}
    monkeypatch.setattr(called_parts, "compiler_counters", lambda: counters)
    return counters


def names_of(captured):
    return [name for name, _ in captured.reports]


def test_models_that_come_later_are_captured_and_those_before_may_go(device, capturing):
    """A script that trains one model after the other keeps none of them because of us."""
    first = Training(device)
    first.run(30)
    gone = weakref.ref(first.model)
    del first
    gc.collect()
    assert gone() is None
    Training(device).run(30)

    captured = capturing.end()

    assert names_of(captured) == ["Net", "SGD"] * 2
    assert all(report.num_replays > 0 for _, report in captured.reports)


def test_a_refusal_stands_in_the_paragraph_and_warns_nobody(device, capturing):
    """The script's own warnings are all that it sees."""
    training = Training(device)
    training.model.inner.register_forward_hook(lambda *args: None)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.run(30)
    text = capturing.end().text()

    assert "as written, Net: " in text
    assert "hook" in text


def test_a_loop_that_adds_gradients_itself_is_captured(device, capturing):
    """Without an optimizer of torch backward passes are steps."""
    before = RUN_BACKWARD.value
    model = Net().to(device.torch_device)
    for _ in range(60):
        model.zero_grad()
        model(torch.ones(3, 4, device=device.torch_device)).sum().backward()
        for weight in model.parameters():
            weight.data.add_(weight.grad, alpha=-0.1)

    captured = capturing.end()

    assert names_of(captured) == ["Net"]
    assert captured.reports[0][1].num_replays > 0
    assert RUN_BACKWARD.value is not before


def test_a_network_that_no_optimizer_has_is_captured_as_well(device, capturing):
    """Such as the target network of a critic, or one that is frozen; a loss without weights is none."""
    training, target = Training(device), Net().to(device.torch_device)
    rows, loss = torch.ones(3, 4, device=training.at), nn.MSELoss()
    for _ in range(40):
        with torch.no_grad():
            wanted = target(rows)
        training.optimizer.zero_grad()
        loss(training.model(rows), wanted).backward()
        training.optimizer.step()

    captured = capturing.end()

    assert names_of(captured) == ["Net", "Net", "SGD"]
    assert all(report.num_replays > 0 for _, report in captured.reports)


class Policy(nn.Module):
    """Its loop calls methods of it, and never itself."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def chances(self, x):
        return torch.softmax(self.last(torch.tanh(self.first(x))), dim=-1)


def test_a_model_whose_methods_are_called_is_captured_as_one(device, capturing):
    """Not layer by layer: a graph of one layer launches as much as it saves."""
    policy = Policy().to(device.torch_device)
    optimizer = SGD(policy.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        policy.chances(torch.ones(3, 4, device=device.torch_device)).square().sum().backward()
        optimizer.step()

    captured = capturing.end()

    assert names_of(captured) == ["Policy", "SGD"]
    assert all(report.num_replays > 0 for _, report in captured.reports)


def test_calls_of_ever_new_shapes_are_told_of(device, capturing):
    """A share of 0 % has its reason, although nothing was refused."""
    training = Training(device)
    for number in range(16):
        training.optimizer.zero_grad()
        rows = torch.ones(number // 2 + 1, 4, device=training.at)
        training.model(rows).sum().backward()
        training.optimizer.step()

    text = capturing.end().text()

    assert "as written, Net: no kind of its calls came often enough" in text


def test_accumulated_gradients_belong_to_an_optimizer(device, capturing):
    """Many backward passes before a step put off nothing: the model is captured, and then the optimizer."""
    training = Training(device)
    for _ in range(30):
        for _ in range(4):
            training.model(torch.ones(3, 4, device=training.at)).sum().backward()
        training.optimizer.step()

    assert names_of(capturing.end()) == ["Net", "SGD"]


def test_what_is_refused_for_good_is_let_go_of(device, capturing):
    """Then its calls take what they take without gapless; the paragraph still says why."""
    training = Training(device)
    training.model.inner.register_forward_hook(lambda *args: None)
    training.optimizer = torch.optim.Adam(training.model.parameters())

    training.run(500)

    assert captor_of(training.model) is None
    assert captor_of(training.optimizer) is not None
    captured = capturing.end()
    assert [report.num_steps < 490 for _, report in captured.reports] == [True, False]
    assert "as written, Net: " in captured.text()


def test_steps_of_another_thread_are_not_captured(device, capturing):
    """The loop that began is the one that is looked at."""
    Training(device).run(1)
    other = threading.Thread(target=lambda: Training(device).run(30))
    other.start()
    other.join()

    assert names_of(capturing.end()) == []


@pytest.mark.parametrize("whole", [True, False])
def test_a_script_that_captures_itself_is_left_alone(device, capturing, whole):
    """Its step, or its objects."""
    training = Training(device)
    if whole:
        step = gapless.capture(lambda: training.run(1), device=device)
        for _ in range(30):
            step()
    else:
        gapless.capture(training.optimizer, device=device)
        training.run(30)

    captured = capturing.end()

    assert "captures its" in captured.text()
    assert names_of(captured) == []
    assert not hasattr(training.model, "_gapless_captor")


def test_a_script_that_compiles_is_left_alone(device, capturing, no_compiler):
    """Hooks would let torch compile anew."""
    no_compiler["frames"]["total"] = 1
    Training(device).run(30)

    assert "torch.compile is at work" in capturing.end().text()


def test_a_script_may_end_early(device, capturing):
    """The watch is over with it, and its hooks are out."""
    Training(device).run(5)

    assert "ended within the first" in capturing.end().text()
    assert not nn.modules.module._global_forward_hooks


def test_what_goes_wrong_in_here_is_not_the_scripts(device, capturing, monkeypatch):
    """It goes on as written, and the paragraph says so."""
    monkeypatch.setattr(called_parts.CalledParts, "modules", property(lambda _: 1 / 0))
    Training(device).run(30)

    assert "ZeroDivisionError" in capturing.end().text()


def test_a_paragraph_is_short():
    """Many objects and many refusals are counted."""
    reports = []
    for number in range(20):
        report = CaptureReport(num_replays=9, num_eager=1)
        report.refuse(Refusal("hook", f"hook {number}"))
        reports.append((f"Net{number}", report))

    lines = CapturedObjects(reports=reports).text().splitlines()

    assert len(lines) <= 12
    assert "90% of 200 calls ran as graphs" in lines[0]
    assert "and 14 more" in lines[0]
    assert "and 14 more" in lines[-1]
