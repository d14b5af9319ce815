"""Convolutions in captured steps and modules, and captures that fail, on one GPU.

Each loop first runs captured, with shapes that no other test has, so that cuDNN meets them for the first time
there; then twice as written, to know whether it repeats its own bits. No process may end with a stream that
still captures.
"""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import sys
import threading
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gapless


pytestmark = [
    pytest.mark.gpu,
    # Torch says where a backward pass finds a graph of gradients that another stream has made.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
]

GPU = torch.device("cuda")

# Steps as written until the verdict on a graph has arrived are fewer, for each loss is read.
STEPS = 16

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
LOADERS = ("tensors", "prefetch", "non_blocking")
FORMS = ("whole", "in place")


@pytest.fixture(autouse=True)
def cudnn_is_restored():
    """Tests choose how cuDNN chooses."""
    before = torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.benchmark = before


# ------------------------------------------------------------------------------- a small ResNet


class BasicBlock(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Sequential()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, width=16, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            BasicBlock(width, width, 1),
            BasicBlock(width, 2 * width, 2),
            BasicBlock(2 * width, 4 * width, 2),
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x):
        out = self.blocks(F.relu(self.bn(self.stem(x))))
        return self.head(out.mean((2, 3)))


# ------------------------------------------------------------------------------- one loop


@dataclass(frozen=True)
class Case:
    """A loop that trains a ResNet.

    Attributes:
        rows: of the batches; a number that no other case has makes shapes new.
        sizes: sides of the images, one for each step, in turns of so many steps.
        last_rows: of the last batch of each epoch, None where it is as large as the others.
        evaluates: whether there is an evaluation after each epoch.
        flips: step before which the flag of cuDNN is turned round, None if never.
        thread_from: step from which on steps run in another thread, None if they never do.
    """

    benchmark: bool
    precision: str = "fp32"
    memory_format: str = "contiguous"
    loader: str = "tensors"
    form: str = "whole"
    rows: int = 8
    width: int = 16
    sizes: tuple[int, ...] = (32,)
    last_rows: int | None = None
    epochs: int = 1
    steps: int = STEPS
    evaluates: bool = False
    flips: int | None = None
    thread_from: int | None = None

    def __str__(self):
        flag = "benchmark" if self.benchmark else "heuristics"
        parts = [flag, self.precision, self.memory_format, self.loader, self.form]
        return "-".join(parts).replace(" ", "_")


@dataclass
class Outcome:
    losses: list[float] = field(default_factory=list)
    evaluated: list[float] = field(default_factory=list)
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    reports: list[Any] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    def same_as(self, other):
        return (
            list(map(repr, self.losses)) == list(map(repr, other.losses))
            and list(map(repr, self.evaluated)) == list(map(repr, other.evaluated))
            and self.state.keys() == other.state.keys()
            and all(bits(self.state[name]).equal(bits(other.state[name])) for name in self.state)
        )


def bits(tensor):
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


def images(case):
    """Return pairs of images and labels on the host, in the order of the loop."""
    draw = torch.Generator().manual_seed(1)
    found = []
    for number in range(case.steps):
        side = case.sizes[number * len(case.sizes) // case.steps]
        is_last = number == case.steps - 1
        rows = case.last_rows if is_last and case.last_rows else case.rows
        x = torch.randn(rows, 3, side, side, generator=draw)
        found.append((x, torch.randint(10, (rows,), generator=draw)))
    return found


def loader_of(case, device, data):
    """Return what an epoch iterates over: pairs that are on the device."""
    if case.loader == "tensors":
        return [(x.to(device), y.to(device)) for x, y in data]
    rows = TensorDataset(torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]))
    # The thread that pins is there only beside a worker.
    loader = DataLoader(
        rows, batch_size=case.rows, num_workers=1, pin_memory=device.type == "cuda"
    )
    if case.loader == "prefetch":
        return gapless.prefetch(loader, device)
    return ((x.to(device, non_blocking=True), y.to(device, non_blocking=True)) for x, y in loader)


def train(case, device, *, captured):
    """Run the loop, with captures or as written."""
    torch.backends.cudnn.benchmark = case.benchmark
    torch.manual_seed(0)
    memory_format, dtype = FORMATS[case.memory_format], PRECISIONS[case.precision]
    model = ResNet(case.width).to(device=device, memory_format=memory_format)
    scales = case.precision == "fp16"
    # After an overflow an update is skipped: only a fused one does so without a wait.
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, fused=True if scales else None
    )
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=scales)
    autocast = (
        nullcontext
        if dtype is None
        else functools.partial(torch.autocast, device.type, dtype=dtype)
    )

    def step(x, y):
        x = x.contiguous(memory_format=memory_format)
        optimizer.zero_grad()
        with autocast():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    done = Outcome()
    with recorded_warnings() as told:
        if captured and case.form == "whole":
            step = gapless.capture(step, device=device)
        elif captured:
            gapless.capture(model, optimizer, device=device)
        data = images(case)
        for _ in range(case.epochs):
            run_epoch(case, device, data, step, done)
            if case.evaluates:
                model.eval()
                with torch.no_grad():
                    for x, y in data:
                        x = x.to(device).contiguous(memory_format=memory_format)
                        done.evaluated.append(F.cross_entropy(model(x), y.to(device)).item())
                model.train()
        if captured:
            parts = (model, optimizer)
            done.reports = (
                [step.report]
                if case.form == "whole"
                else [gapless.capture_report(one) for one in parts]
            )
    done.warned = [str(one.message) for one in told if one.category is gapless.CaptureWarning]
    done.state = {name: one.detach().cpu() for name, one in model.state_dict().items()}
    for number, one in enumerate(optimizer.state.values()):
        done.state[f"momentum {number}"] = one["momentum_buffer"].detach().cpu()
    return done


def run_epoch(case, device, data, step, done):
    for number, (x, y) in enumerate(loader_of(case, device, data)):
        if number == case.flips:
            torch.backends.cudnn.benchmark = not case.benchmark
        if case.thread_from is not None and number >= case.thread_from:
            in_a_thread(lambda x=x, y=y: done.losses.append(step(x, y).item()))
        else:
            done.losses.append(step(x, y).item())


def in_a_thread(call):
    """Run a call in a new thread; raise here what it raises there."""
    raised = []

    def run():
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


class recorded_warnings(warnings.catch_warnings):  # noqa: N801  # as what it is
    """Records warnings of captures; all others are as before."""

    def __init__(self):
        super().__init__(record=True)

    def __enter__(self):
        told = super().__enter__()
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", gapless.CaptureWarning)
        return told


def judge(run, *, must_replay=False, device=GPU):
    """Run a loop captured, then as written; assert what holds for all loops.

    Args:
        run: takes `captured`, returns an `Outcome`.
        must_replay: whether a loop that repeats its bits has to be replayed.
        device: where it runs.
    """
    found = run(captured=True)
    nothing_captures(device)
    first, second = run(captured=False), run(captured=False)
    repeats = first.same_as(second)
    if repeats and not found.same_as(first):
        repeats = run(captured=False).same_as(first)  # twice may have been luck
    assert [len(found.losses), len(found.evaluated)] == [len(first.losses), len(first.evaluated)]
    if not repeats:
        assert found.losses == pytest.approx(first.losses, rel=0.1, abs=0.1)
    else:
        assert found.same_as(first), list(zip(found.losses, first.losses, strict=True))
        told_or_replayed(found)
        if must_replay and device.type == "cuda":
            replayed = [one.num_replays for one in found.reports]
            assert all(replayed), [*map(str, found.reports)]
    one_line_each(found)


def told_or_replayed(found):
    for report in found.reports:
        refusals = [one.text for one in report.refusals]
        assert report.num_replays or refusals or report.note, report


def one_line_each(found):
    """No reason is more than a line, or a trace, or said twice."""
    texts = [one.text for report in found.reports for one in report.refusals] + found.warned
    assert [text for text in texts if "\n" in text.strip() or "Traceback" in text] == []
    assert len(set(found.warned)) == len(found.warned)


def nothing_captures(device=GPU):
    """The device works on as if nobody had captured anything."""
    if device.type != "cuda":
        return
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.synchronize()
    x = torch.ones(8, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        x += 1
    assert not torch.cuda.is_current_stream_capturing()
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [3.0] * 8


# ------------------------------------------------------------------------------- loops with convolutions


def cases():
    """Return all ways but the memory formats, which come in turns: 36 cases."""
    found = []
    for number, (benchmark, precision, loader, form) in enumerate(
        itertools.product((True, False), PRECISIONS, LOADERS, FORMS)
    ):
        # Every format meets every value of the other four.
        turn = number + number // 2 + number // 6 + number // 18
        found.append(
            Case(
                benchmark=benchmark,
                precision=precision,
                memory_format=list(FORMATS)[turn % 2],
                loader=loader,
                form=form,
                rows=5 + number,
            )
        )
    return found


def train_on_gpu(case):
    judge(functools.partial(train, case, GPU), must_replay=must_replay(case))


def must_replay(case):
    """In plain precision, in one thread, nothing has a reason to run as written."""
    is_plain = case.precision == "fp32" and case.loader != "non_blocking"
    return is_plain and case.flips is case.thread_from is None


@pytest.mark.parametrize("case", cases(), ids=str)
def test_a_resnet_trains_to_the_bits_of_its_loop(case):
    """Where the loop repeats its own bits; it raises nothing in any case, and one line says why."""
    train_on_gpu(case)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("benchmark", [True, False], ids=["benchmark", "heuristics"])
def test_a_last_batch_that_is_smaller(benchmark, form):
    """Its shape comes once in an epoch, first when the others are replayed."""
    train_on_gpu(
        Case(benchmark, form=form, rows=50, last_rows=29, epochs=4, steps=8, loader="prefetch")
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("benchmark", [True, False], ids=["benchmark", "heuristics"])
def test_an_evaluation_between_epochs(benchmark, form):
    """Other kernels of BatchNorm, without gradients; the flag stays as it is."""
    train_on_gpu(
        Case(
            benchmark,
            form=form,
            rows=51,
            epochs=3,
            steps=8,
            evaluates=True,
            memory_format="channels_last",
        )
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("benchmark", [True, False], ids=["benchmark", "heuristics"])
def test_images_that_change_their_size_in_the_middle(benchmark, precision, form):
    """New plans of cuDNN after a capture, twice, and back to the first size."""
    train_on_gpu(
        Case(
            benchmark,
            precision=precision,
            form=form,
            rows=52,
            sizes=(32, 48, 40, 32),
            steps=28,
        )
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("benchmark", [True, False], ids=["benchmark first", "heuristics first"])
def test_a_flag_that_is_turned_round_in_the_middle(benchmark, form):
    """After the capture; plans may be others from there on, in the loop as written as well."""
    train_on_gpu(Case(benchmark, form=form, rows=53, flips=8))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("thread_from", [2, 8])
@pytest.mark.parametrize("benchmark", [True, False], ids=["benchmark", "heuristics"])
def test_a_loop_that_goes_on_in_another_thread(benchmark, thread_from, form):
    """CuDNN keeps its plans by thread: those of the first steps are not there where it captures."""
    train_on_gpu(Case(benchmark, form=form, rows=54 + thread_from, thread_from=thread_from))


def in_a_process_of_its_own(options):
    """Run a case in this process and print what happened: called by a fresh one."""
    case = Case(**options)
    judge(functools.partial(train, case, GPU), must_replay=must_replay(case))
    print("all is as written")


@pytest.mark.parametrize(
    "options",
    [
        {"benchmark": True, "width": 64},
        {"benchmark": True, "form": "in place", "precision": "bf16"},
        {"benchmark": True, "precision": "fp16", "memory_format": "channels_last"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_a_script_that_begins_with_a_captured_loop(options):
    """Nothing in its process has called cuDNN before."""
    script = (
        f"import json, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import test_convolutions\n"
        f"test_convolutions.in_a_process_of_its_own(json.loads({json.dumps(options)!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["all is as written"]), (
        done.stderr[-3000:]
    )


# ------------------------------------------------------------------------------- captures that fail

# What a loop as written may do, and a capture may not, or what was never done before the captured call. Each
# gets the step's tensor, and its results are not used: the loop computes the same however often it is done.


def while_capturing(call):
    """Do something only where the current stream captures: for the first time there."""

    def act(x):
        if torch.cuda.is_current_stream_capturing():
            call(x)

    return act


def raising(error):
    def act(x):
        raise error

    return act


def new_fft_plan(x):
    torch.backends.cuda.cufft_plan_cache.clear()
    torch.fft.rfft(x.detach().flatten(1).float())


def new_size_of_fft(x):
    torch.fft.fft2(x.detach().float().repeat(1, 1, 1, 3))


def convolve_anew(x):
    """A convolution of a shape that nothing else has, with a plan that is searched for."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        F.conv2d(x.detach(), torch.ones(7, x.shape[1], 3, 3, device=x.device, dtype=x.dtype))


def square(x):
    flat = x.detach().flatten(1)[:, :8].float()
    return flat.T @ flat + 8 * torch.eye(flat.shape[1], device=x.device)


def use_the_default_stream(x):
    with torch.cuda.stream(torch.cuda.default_stream()):
        x.detach() * 2


def leave_a_stream_unjoined(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.detach() * 2


def wait_for_an_event(x):
    torch.cuda.current_stream().record_event().synchronize()


def copy_from_pageable(x):
    torch.arange(100_003.0).to(x.device)


def end_the_capture(x):
    """Somebody's own graph within the step."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.detach() + 1


FAULTS = {
    "a new plan of cuFFT in every step": new_fft_plan,
    "a new size for cuFFT": while_capturing(new_size_of_fft),
    "a new convolution": while_capturing(convolve_anew),
    "cholesky": lambda x: torch.linalg.cholesky(square(x)),
    "solve_ex": lambda x: torch.linalg.solve_ex(square(x), square(x)),
    "eigh while capturing": while_capturing(lambda x: torch.linalg.eigh(square(x))),
    "svd while capturing": while_capturing(lambda x: torch.linalg.svd(square(x))),
    "a matrix product of a new type": while_capturing(
        lambda x: square(x).double() @ square(x).double()
    ),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "synchronize while capturing": while_capturing(lambda x: torch.cuda.synchronize()),
    "an event": wait_for_an_event,
    "an event while capturing": while_capturing(wait_for_an_event),
    "a read while capturing": while_capturing(lambda x: x.sum().item()),
    "a pinned allocation": lambda x: torch.empty(4_000_037, pin_memory=True),
    "a pinned allocation while capturing": while_capturing(
        lambda x: torch.empty(9_000_011, pin_memory=True)
    ),
    "a copy of pageable memory": while_capturing(copy_from_pageable),
    "an empty cache": lambda x: torch.cuda.empty_cache(),
    "an empty cache while capturing": while_capturing(lambda x: torch.cuda.empty_cache()),
    "the default stream": while_capturing(use_the_default_stream),
    "a stream that is not joined": while_capturing(leave_a_stream_unjoined),
    "a graph of one's own": while_capturing(end_the_capture),
    "an exception": while_capturing(raising(RuntimeError("not while capturing"))),
    "an exception without an end": while_capturing(raising(StopIteration())),
    "an assertion": while_capturing(raising(AssertionError("no\nsecond line"))),
    "an error of its own": while_capturing(raising(KeyError("key"))),
}


class InBackward(torch.autograd.Function):
    """Its backward pass does something: in the thread of autograd."""

    @staticmethod
    def forward(ctx, x, act):
        ctx.act = act
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.act(gradient)
        return gradient, None


class Plain:
    """Its forward pass does something, in the model's own lines."""

    @staticmethod
    def apply(x, act):
        act(x)
        return x


PLACES = {"forward": Plain, "backward": InBackward}


class FaultyModel(nn.Module):
    def __init__(self, act, place):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.head = nn.Linear(8, 10)
        self.act, self.place = act, place

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = self.place.apply(x, self.act)
        return self.head(F.relu(self.conv2(x)).mean((2, 3)))


def train_faulty(act, place, form, device, *, captured, steps=12):
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    model = FaultyModel(act, place).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = images(Case(False, rows=6, sizes=(12,), steps=steps))

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    done = Outcome()
    with recorded_warnings() as told:
        if captured and form == "whole":
            step = gapless.capture(step, device=device)
        elif captured:
            gapless.capture(model, optimizer, device=device)
        for x, y in data:
            done.losses.append(step(x.to(device), y.to(device)).item())
            if device.type == "cuda":
                assert not torch.cuda.is_current_stream_capturing()
        if captured:
            done.reports = [step.report if form == "whole" else gapless.capture_report(model)]
    done.warned = [str(one.message) for one in told if one.category is gapless.CaptureWarning]
    done.state = {name: one.detach().cpu() for name, one in model.state_dict().items()}
    return done


def nothing(x):
    """Do what every capture may."""


def judge_faulty(act, place, form, device=GPU):
    judge(functools.partial(train_faulty, act, PLACES[place], form, device), device=device)
    # Another capture in the same process works after that.
    after = train_faulty(nothing, Plain, "whole", device, captured=True)
    if device.type == "cuda":
        assert after.reports[0].num_replays, after.reports[0]
    nothing_captures(device)


# All in the forward pass, and some in autograd's thread.
PLACED = [
    *((fault, "forward") for fault in FAULTS),
    *((fault, "backward") for fault in list(FAULTS)[::3]),
    *((fault, "backward") for fault in ("an exception", "synchronize while capturing")),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("fault", "place"), dict.fromkeys(PLACED))
def test_a_loop_goes_on_after_a_capture_that_failed(fault, place, form):
    """As it is written; no stream captures any more, and the next graph works."""
    judge_faulty(FAULTS[fault], place, form)


def another_thread_synchronizes(stop):
    while not stop.is_set():
        torch.cuda.synchronize()


def another_thread_allocates(stop):
    sizes = itertools.cycle(range(1 << 20, 1 << 25, 1 << 20))
    while not stop.is_set():
        torch.empty(next(sizes), device=GPU).fill_(1)
        torch.cuda.current_stream().synchronize()


def another_thread_empties_caches(stop):
    while not stop.is_set():
        torch.empty(1 << 24, device=GPU).fill_(1)
        torch.cuda.empty_cache()


def another_thread_pins(stop):
    sizes = itertools.cycle(range(1 << 16, 1 << 22, 1 << 16))
    while not stop.is_set():
        torch.empty(next(sizes)).pin_memory().to(GPU, non_blocking=True)
        torch.cuda.current_stream().synchronize()


def another_thread_convolves(stop):
    torch.backends.cudnn.benchmark = True
    rows = itertools.count(1)
    weight = torch.ones(4, 3, 3, 3, device=GPU)
    while not stop.is_set():
        x = torch.ones(next(rows) % 60 + 1, 3, 20, 20, device=GPU)
        F.conv2d(x, weight).sum().item()


OTHER_THREADS = [
    another_thread_synchronizes,
    another_thread_allocates,
    another_thread_empties_caches,
    another_thread_pins,
    another_thread_convolves,
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("work", OTHER_THREADS, ids=lambda work: work.__name__)
def test_another_thread_works_on_the_device_meanwhile(work, form):
    """The loop gets no error, and its bits; the other thread at most one that says what was captured.

    CUDA refuses `torch.cuda.synchronize()` in every thread while one captures, and torch's sync debug
    mode refuses other waits: a known limit, which the changelog names.
    """
    stop, raised = threading.Event(), []

    def run():
        try:
            # Its own stream: the default one would wait for the loop's.
            with torch.cuda.stream(torch.cuda.Stream()):
                work(stop)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        found = train_faulty(nothing, Plain, form, GPU, captured=True)
    finally:
        stop.set()
        thread.join()

    refused = ("when stream is capturing", "synchronizing CUDA operation")
    assert all(any(text in str(error) for text in refused) for error in raised), raised
    nothing_captures()
    plain = train_faulty(nothing, Plain, form, GPU, captured=False)
    assert found.same_as(plain), list(zip(found.losses, plain.losses, strict=True))
    told_or_replayed(found)
    one_line_each(found)


@pytest.mark.parametrize("form", FORMS)
def test_a_script_reads_and_waits_after_a_capture_that_failed(form):
    """In the very step that failed: what stands behind the call in the loop works."""
    act = while_capturing(lambda x: torch.cuda.synchronize())
    torch.manual_seed(0)
    model = FaultyModel(act, Plain).to(GPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if form == "whole":
        step = gapless.capture(step, device=GPU)
    else:
        gapless.capture(model, optimizer, device=GPU)
    for _ in range(8):
        loss = step(torch.ones(4, 3, 12, 12, device=GPU))
        nothing_captures()
        assert loss.isfinite().item()
        assert torch.empty(1000, pin_memory=True).is_pinned()
        assert torch.fft.rfft(torch.ones(64, device=GPU))[0].real.item() == 64.0
        assert torch.rand(3, device=GPU).sum().item() > 0.0
