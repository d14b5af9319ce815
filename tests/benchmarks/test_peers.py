"""The comparison with peers: equal work, honest figures, files on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from benchmarks.peers.__main__ import main
from benchmarks.peers.cases import TINY, base32
from benchmarks.peers.flops import model_flops
from benchmarks.peers.profiling import KernelTimes, count_kernels
from benchmarks.peers.race import RowResult
from benchmarks.peers.rows import Row, all_rows
from benchmarks.peers.window import Window
from torch import nn

from gapless.device.find import find_device
from gapless.nmt.run.build import build_model


ROOT = Path(__file__).parents[2]
FRAMEWORKS = {
    "accelerate": "accelerate",
    "accelerate-item": "accelerate",
    "lightning": "pytorch_lightning",
    "lightning-quiet": "pytorch_lightning",
    "seq2seq": "transformers",
}


def tiny_case():
    """A case without dropout, whose losses every row must share, at a rate that learns.

    Gradients are clipped so short that Adam's epsilon counts: otherwise it would not matter to
    Adam whether they are.
    """
    settings = {**TINY, "dropout": 0.0, "warmup": 1, "clip_norm": 1e-5}
    return base32(workers=0, precision="fp32", num_pairs=200, **settings)


def last_loss(name, case, *, steps):
    rows = {row.name: row for row in all_rows(compiled_shapes=1)}
    device = find_device("cpu")
    peer = rows[name].make(case, device)
    peer.setup()
    window = Window(device=device, warmup=1, steps=steps)

    peer.run(window, first=0)

    assert window.seconds > 0
    return window.loss


@pytest.fixture(scope="module")
def plain_loss():
    """The loss after eight steps of the plain loop."""
    return last_loss("plain", tiny_case(), steps=7)


@pytest.mark.parametrize("name", ["plain-50", "blocking", "gapless"])
def test_every_row_trains_the_same_model_on_the_same_batches(plain_loss, name):
    """After eight updates the loss is that of the plain loop."""
    assert last_loss(name, tiny_case(), steps=7) == pytest.approx(plain_loss, abs=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of frameworks about each other and about torch
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_row_of_a_framework_trains_the_same_model(plain_loss, name):
    """Likewise, and in `make check`, which installs them."""
    pytest.importorskip(FRAMEWORKS[name])
    if FRAMEWORKS[name] != "pytorch_lightning":
        # Accelerate refuses settings other than those of the first accelerator of a process.
        state = pytest.importorskip("accelerate.state")
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()

    assert last_loss(name, tiny_case(), steps=7) == pytest.approx(plain_loss, abs=1e-5)


def test_a_window_surrounds_the_timed_steps_only():
    """A profiler is on from the end of the warm-up to the last step."""
    seen = []

    @contextmanager
    def around():
        seen.append("on")
        yield
        seen.append("off")

    window = Window(device=find_device("cpu"), warmup=2, steps=2, around=around)
    for number in range(window.total):
        window.after_step(number)
        seen.append(number)

    assert seen == [0, "on", 1, 2, "off", 3]
    assert window.loss == 3.0


def traced(start, duration, *, name="k", cat="kernel"):
    return {"cat": cat, "ts": start, "dur": duration, "name": name}


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], 0.0),
        ([(0, 1000)], 1.0),
        ([(0, 1000), (500, 1000)], 1.5),
        ([(0, 5000), (1000, 1000), (6000, 1000)], 6.0),
        ([(6000, 1000), (0, 1000)], 2.0),
    ],
)
def test_time_of_kernels_that_overlap_counts_once(intervals, expected):
    """Milliseconds of the union of (start, duration) in microseconds, in any order."""
    times = KernelTimes()

    count_kernels(times, [traced(*interval) for interval in intervals])

    assert times.busy_ms == pytest.approx(expected)
    assert times.num_kernels == len(intervals)


def test_a_collective_is_exposed_where_no_other_kernel_runs():
    """In the order of time; kernels that overlap count once, and copies and waits for GPUs do not count."""
    times = KernelTimes()
    sum_kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [
        traced(20_000, 1000, name=sum_kernel),
        traced(1000, 4000, name=sum_kernel),
        traced(0, 1500),
        traced(2000, 1000),
        traced(2500, 1000),
        traced(4800, 9000),
        traced(1000, 4000, name="copy", cat="gpu_memcpy"),
        traced(22_000, 10, name="ncclDevKernel_AllGather_RING_LL"),
        traced(23_000, 500, name="c10d::symmetric_memory::barrier_kernel(unsigned int**, int)"),
    ]

    count_kernels(times, events)

    assert times.compute_ms == pytest.approx(12.0)
    assert times.collectives == [pytest.approx((4.0, 1.8)), pytest.approx((1.0, 1.0))]


def measured(name, seconds, *, tokens=1000, busy_ms=None):
    row = Row(name=name, title=f"{name} <row>", make=lambda case, device: None)
    rounds = [
        {
            "steps": 10,
            "seconds": value,
            "target_tokens": tokens,
            "loss": 7.0,
            "peak_memory_bytes": 0,
            "held_memory_bytes": 0,
        }
        for value in seconds
    ]
    profile = {} if busy_ms is None else {"kernels_per_step": 5.0, "busy_ms_per_step": busy_ms}
    return RowResult(row=row, rounds=rounds, profile=profile)


NAMES = ("case", "model", "hardware", "versions", "commit", "date", "command", "batches")


@pytest.fixture
def restored_environment(monkeypatch):
    """`main` sets these for the processes that it starts; here it is not a process of its own."""
    for name in ("PYTHONWARNINGS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")


def start_command(*arguments):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
        # A shell that runs tests in the background has its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run_command(*arguments):
    process = start_command(*arguments)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.slow
def test_a_run_that_is_stopped_leaves_its_rounds(tmp_path):
    """Files are whole after every round, and say that there were to be more."""
    options = ["--tiny", "--device", "cpu", "--workers", "0", "--out", str(tmp_path)]
    options += ["--only", "plain", "--warmup", "1", "--steps", "1", "--rounds", "100000"]

    process = start_command(*options)
    try:
        while "round 2 of" not in process.stdout.readline():
            assert process.poll() is None
        facts = json.loads((tmp_path / "peers-base32.json").read_text(encoding="utf-8"))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()

    assert facts["rounds_done"] >= 1
    assert len(facts["rows"][0]["rounds"]) == facts["rounds_done"]
    assert facts["shortened"] == f"{facts['rounds_done']} of 100000 rounds"


def test_counted_arithmetic_is_that_of_every_matrix_product():
    """Each weight of a linear layer counts 6 times a token; attention 12 times width and key."""
    case = tiny_case()
    config, lengths = case.config, np.array([7, 7, 7])
    model = build_model(config, case.vocabs)
    counted = []

    def count(layer, inputs, output):
        counted.append(6 * layer.weight.numel() * inputs[0].shape[:-1].numel())

    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(count)
    ids = torch.full((3, 7), 5)
    model.generator(model(ids, ids, torch.ones(3, 1, 7, dtype=torch.bool)))
    seen_by_the_decoder = 3 * (7 * 7 + 7 * 8 // 2)
    attention = 12 * config.d_model * (3 * 7 * 7 + seen_by_the_decoder)

    assert sum(counted) + attention == model_flops(
        config, tgt_vocab=1000, src_lengths=lengths, tgt_lengths=lengths
    )


def test_operations_of_long_sentences_are_counted():
    """Lengths of pairs are numbers of 16 bits, and their squares are larger."""
    long = {dtype: np.array([400, 9], dtype=dtype) for dtype in (np.int16, np.int64)}
    counted = [
        model_flops(tiny_case().config, tgt_vocab=1000, src_lengths=one, tgt_lengths=one)
        for one in long.values()
    ]

    assert counted[0] == counted[1]


@pytest.mark.slow
def test_the_command_runs_rows_in_processes_and_writes_three_files(
    tmp_path, capsys, restored_environment
):
    """A row out of time is reported, in the JSON too, and the others go on."""
    options = ["--tiny", "--device", "cpu", "--workers", "0", "--out", str(tmp_path)]
    options += ["--rounds", "2", "--warmup", "1", "--steps", "2"]

    done = run_command(*options, "--only", "plain,gapless")
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "peers-base32.json").read_text(encoding="utf-8"))
    plain, gapless = facts["rows"]
    assert [len(row["rounds"]) for row in (plain, gapless)] == [2, 2]
    assert [r["target_tokens"] for r in plain["rounds"]] == [
        r["target_tokens"] for r in gapless["rounds"]
    ]
    assert {name: wait["count"] for name, wait in gapless["host_waits"].items()} == {
        "epoch_end": 1
    }
    assert plain["loader_workers"] == "fork"
    assert "round 2 of 2  plain: 2 steps in " in done.stdout
    assert (tmp_path / "peers-base32.md").read_text(encoding="utf-8") in done.stdout
    ET.parse(tmp_path / "peers-base32.svg")

    assert main([*options, "--only", "plain", "--setup-limit", "0.01", "--time-limit", "0"]) == 1
    facts = json.loads((tmp_path / "peers-base32.json").read_text(encoding="utf-8"))
    assert facts["shortened"] == "0 of 2 rounds"
    table = (tmp_path / "peers-base32.md").read_text(encoding="utf-8")
    assert "\nStopped early: 0 of 2 rounds.\n" in table
    assert facts["rows"][0]["problem"] == "did not finish its set-up in 0 s"
    assert "plain: did not finish its set-up in 0 s" in capsys.readouterr().out
