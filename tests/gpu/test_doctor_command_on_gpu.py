"""`gapless doctor` over whole scripts on a real GPU: all windows, one line, times, and an end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gapless
from doctor.tables import LOOP


pytestmark = pytest.mark.gpu

SRC = Path(gapless.__file__).parents[1]

# No optimizer, no loader: the second in which it waits is all that there is.
INFERENCE = """\
import time
import torch
model = torch.nn.Linear(64, 64).cuda()
until = time.monotonic() + 6
while time.monotonic() < until:
    value = model(torch.randn(8, 64, device="cuda")).sum().item()
"""

# What a script has of torch when the doctor has let go of it.
REMAINS = """
from torch.optim import optimizer as of_torch
functions = (torch.Tensor.item, torch.tensor, torch.autograd.backward, torch.cuda.synchronize)
files = [getattr(getattr(one, "__code__", None), "co_filename", "") for one in functions]
print(*[file for file in files if "gapless" in file])
print(len(of_torch._global_optimizer_post_hooks), torch.cuda.get_sync_debug_mode())
"""


@pytest.fixture
def doctor(tmp_path):
    """Return a function that runs the doctor over a script and returns what it said."""

    def run(source, *options):
        (tmp_path / "s.py").write_text(source)
        return subprocess.run(
            [sys.executable, "-m", "gapless", "doctor", *options, "s.py"],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SRC)},
        )

    run.folder = tmp_path
    return run


def session_of(doctor, source, *options):
    """Return the exit code, the session and what the script printed."""
    done = doctor(source, *options, "--format", "json", "--out", "report.json")
    assert "gapless: warning" not in done.stderr, done.stderr
    return done.returncode, json.loads((doctor.folder / "report.json").read_text()), done.stdout


@pytest.mark.parametrize("options", [[], ["--exact"]])
def test_the_line_that_waits_is_found_with_its_cost(doctor, options):
    """One finding, seen once a step on the main thread, with times from the profiler."""
    source = LOOP.replace("range(60)", "range(120)")

    code, session, _ = session_of(doctor, source, *options)

    line = source.splitlines().index("    value = loss.item()") + 1
    reads = [one for one in session["findings"] if one["code"] == "GAP001"]
    assert code == 0
    assert session["step"] == "a call of SGD.step"
    assert [(one["site"]["line"], one["per_step"], one["thread"]) for one in reads] == [
        (line, 1.0, "main")
    ]
    assert reads[0]["certainty"] == "seen"
    assert reads[0]["waited_ms"] > 0
    assert reads[0]["exposed_ms"] is not None
    assert session["steps"]["busy_ms"] > 0
    assert session["timeline"] is not None


def test_a_finding_makes_the_doctor_fail_where_it_was_asked_to(doctor):
    """And only for the codes that were named."""
    assert doctor(LOOP, "--fail-on", "any").returncode == 1
    assert doctor(LOOP, "--fail-on", "GAP001").returncode == 1
    assert doctor(LOOP, "--fail-on", "GAP013").returncode == 0


def test_nothing_remains_when_the_windows_are_over(doctor):
    """The script goes on with torch as it was, but for a hook that does nothing.

    The last window ends within the hooks of an optimizer, of which none can be removed meanwhile.
    """
    code, _, out = session_of(doctor, LOOP.replace("range(60)", "range(90)") + REMAINS)

    assert (code, out) == (0, "\n1 0\n")


def test_without_a_step_seconds_are_watched(doctor):
    """The line is found, and the report says what stands for a step."""
    code, session, _ = session_of(doctor, INFERENCE)

    assert code == 0
    assert any("second" in note for note in session["notes"])
    assert [one["site"]["line"] for one in session["findings"] if one["code"] == "GAP001"] == [6]


def test_a_script_that_is_stopped_has_a_whole_report(doctor):
    """After the last window, not before."""
    code, session, out = session_of(
        doctor, LOOP.replace("range(60)", "range(10**7)") + "print('on')\n", "--stop-after"
    )

    assert (code, out) == (0, "")
    assert session["steps"]["num_steps"] == 20
    assert session["timeline"] is not None


# Each step reads its loss, as most do. The second process has slower batches, or a slower device.
TOGETHER = """\
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).to(device)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if rank == 1 and sys.argv[1] == "batches":
            time.sleep(0.03)
        return torch.full((512,), 0.5)
for x in torch.utils.data.DataLoader(Rows()):
    if rank == 1 and sys.argv[1] == "device" and device.type == "cuda":
        torch.cuda._sleep(50_000_000)
    loss = model(x.to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
dist.destroy_process_group()
"""


@pytest.mark.multi_gpu
@pytest.mark.parametrize(("slow", "says"), [("batches", "its batches"), ("device", "NCCL")])
def test_the_process_that_the_others_wait_for_is_named(tmp_path, slow, says):
    """Though they wait within kernels of NCCL, and read their losses late as well."""
    (tmp_path / "s.py").write_text(TOGETHER)
    done = subprocess.run(
        [sys.executable, "-m", "gapless", "doctor", "--format", "json", "--out", "report.json",
         "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "s.py", slow],
        check=False, capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC), "NCCL_NVLS_ENABLE": "0"},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    verdict = json.loads((tmp_path / "report.json").read_text())["verdict"]
    assert verdict.startswith("STRAGGLER: rank 1 takes ")
    assert says in verdict
