"""Each cause of a wait on a real GPU: found with its line and cause, once; what does not wait is not."""

from __future__ import annotations

import io
import json
import pickle
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gapless.doctor.lines.sites import SitesPass
from gapless.doctor.seen_waits import MARK, MARK_AFTER


pytestmark = pytest.mark.gpu

HERE = Path(__file__).name
SIZE = 1 << 18  # larger than what the driver takes at once, four times over


@pytest.fixture(scope="module")
def d():
    """Tensors on the device and on the host, and what trains."""
    x = torch.rand(SIZE, device="cuda") + 0.5
    weight = nn.Parameter(torch.rand(64, 64, device="cuda"))
    weight.grad = torch.rand_like(weight)
    return SimpleNamespace(
        x=x,
        y=x.clone(),
        one=torch.tensor(1, device="cuda"),
        few=torch.tensor([2, 0, 1], device="cuda"),
        square=torch.eye(8, device="cuda") * 2,
        pinned=torch.rand(SIZE).pin_memory(),
        pageable=torch.rand(SIZE),
        weight=weight,
        side=torch.cuda.Stream(),
    )


def of_scaler(d):
    scaler = torch.amp.GradScaler("cuda", init_scale=1.0)
    optimizer = torch.optim.SGD([d.weight], lr=0.0)
    scaler.scale(d.weight.sum())
    scaler.step(optimizer)


def of_event(d):
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


def of_query(d):
    torch.cuda._sleep(20_000_000)
    event = torch.cuda.Event()
    event.record()
    while not event.query():
        pass


def of_print(d):
    with io.StringIO() as out:
        print(d.few, file=out)


WAITS = {
    "item": ("item", lambda d: d.x[0].item()),
    "float": ("float", lambda d: float(d.one)),
    "int": ("int", lambda d: int(d.one)),
    "bool": ("bool", lambda d: bool(d.one > 0)),
    "in": ("bool", lambda d: d.one in [d.few[0]]),
    "contains": ("bool", lambda d: 1 in d.few),
    "range": ("index", lambda d: range(d.one)),
    "slice": ("index", lambda d: d.x[: d.one]),
    "f-string": ("format", lambda d: f"{d.one:.2f}"),
    "percent": ("format", lambda d: "%.2f" % d.one),  # noqa: UP031  # what is tested
    "print": ("print", of_print),
    "repr": ("print", lambda d: repr(d.few)),
    "cpu": ("cpu", lambda d: d.x.cpu()),
    "to cpu": ("cpu", lambda d: d.x.to("cpu")),
    "copy to host": ("cpu", lambda d: d.pinned.copy_(d.x)),
    "numpy": ("cpu", lambda d: d.x.numpy(force=True)),
    "tolist": ("tolist", lambda d: d.few.tolist()),
    "save": ("save", lambda d: torch.save(d.few, io.BytesIO())),
    "pickle": ("save", lambda d: pickle.dumps(d.few)),
    "copy": ("copy", lambda d: d.pinned.to("cuda")),
    "cuda": ("copy", lambda d: d.pageable.cuda()),
    "copy_": ("copy", lambda d: d.x.copy_(d.pinned)),
    "small copy": ("copy", lambda d: d.pageable[:4].to("cuda")),
    "pageable": ("pageable copy", lambda d: d.pageable.to("cuda", non_blocking=True)),
    "pageable cuda": ("pageable copy", lambda d: d.pageable.cuda(non_blocking=True)),
    "pageable copy_": ("pageable copy", lambda d: d.x.copy_(d.pageable, non_blocking=True)),
    "into pageable": ("pageable copy", lambda d: d.pageable.copy_(d.x, non_blocking=True)),
    "strided": (
        "strided copy",
        lambda d: d.pinned.view(-1, 2)[:, 0].to("cuda", non_blocking=True),
    ),
    "transposed": (
        "strided copy",
        lambda d: d.x.view(512, -1).copy_(d.pinned.view(-1, 512).t(), non_blocking=True),
    ),
    "tensor": ("new tensor", lambda d: torch.tensor([1.0, 2.0], device="cuda")),
    "as_tensor": ("new tensor", lambda d: torch.as_tensor([1.0, 2.0], device="cuda")),
    "new_tensor": ("new tensor", lambda d: d.x.new_tensor([1.0, 2.0])),
    "list index": ("cpu index", lambda d: d.x[[0, 1]]),
    "host index": ("cpu index", lambda d: d.x[torch.tensor([0, 1])]),
    "mask": ("shape", lambda d: d.x[d.x > 1]),
    "nonzero": ("shape", lambda d: d.x.nonzero()),
    "masked_select": ("shape", lambda d: d.x.masked_select(d.x > 1)),
    "unique": ("shape", lambda d: d.few.unique()),
    "one_hot": ("shape", lambda d: nn.functional.one_hot(d.few)),
    "repeat_interleave": ("shape", lambda d: torch.repeat_interleave(d.few, d.few)),
    "equal": ("equal", lambda d: torch.equal(d.x, d.y)),
    "allclose": ("equal", lambda d: torch.allclose(d.x, d.y)),
    "inv": ("linalg", lambda d: torch.linalg.inv(d.square)),
    "validation": (
        "validation",
        lambda d: torch.distributions.Categorical(logits=d.x[:8], validate_args=True),
    ),
    "scaler": ("scaler", of_scaler),
    "clip": (
        "clip",
        lambda d: nn.utils.clip_grad_norm_([d.weight], 1e9, error_if_nonfinite=True),
    ),
    "optimizer": ("optimizer", lambda d: torch.optim.Adafactor([d.weight], lr=0.0).step()),
    "device": ("device", lambda d: torch.cuda.synchronize()),
    "accelerator": ("device", lambda d: torch.accelerator.synchronize()),
    "stream": ("stream", lambda d: torch.cuda.current_stream().synchronize()),
    "plain stream": ("stream", lambda d: torch.accelerator.current_stream().synchronize()),
    "event": ("event", of_event),
    "query": ("query", of_query),
    "empty_cache": ("empty_cache", lambda d: torch.cuda.empty_cache()),
    "pin_memory": ("host allocation", lambda d: d.pageable.pin_memory()),
}


def fill(d):
    d.y[d.y > 9] = 1.0


HARMLESS = {
    "pinned": lambda d: d.pinned.to("cuda", non_blocking=True),
    "pinned copy_": lambda d: d.x.copy_(d.pinned, non_blocking=True),
    "converted": lambda d: d.pinned.to("cuda", torch.float64, non_blocking=True),
    "into pinned": lambda d: d.pinned.copy_(d.x, non_blocking=True),
    "small pageable": lambda d: d.pageable[:1024].to("cuda", non_blocking=True),
    "empty": lambda d: d.pageable[:0].to("cuda"),
    "where it is": lambda d: d.x.to("cuda").to(torch.float64),
    "on the device": lambda d: d.x.copy_(d.y),
    "filled under a mask": fill,
    "one_hot with its size": lambda d: nn.functional.one_hot(d.few, 3),
    "device index": lambda d: d.x[d.few],
    "number index": lambda d: d.x[0],
    "repeat_interleave with its size": lambda d: torch.repeat_interleave(
        d.few, d.few, output_size=3
    ),
    "multinomial": lambda d: torch.multinomial(d.x[:8], 2),
    "randperm": lambda d: torch.randperm(64, device="cuda"),
    "equal to itself": lambda d: torch.equal(d.x, d.x),
    "clip": lambda d: nn.utils.clip_grad_norm_([d.weight], 1e9),
    "event": lambda d: torch.cuda.Event().record(),
    "wait on the device": lambda d: d.side.wait_stream(torch.cuda.current_stream()),
    "query once": lambda d: torch.cuda.current_stream().query(),
    "host": lambda d: (d.pageable.sum().item(), d.pageable[:3].tolist(), d.pageable.cpu()),
    "pinned already": lambda d: d.pinned.pin_memory(),
}


def watched(call, d, **settings):
    """Return what a pass notes of a call that has been made before, with work queued in front."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(d)
        torch.cuda.synchronize()
        torch.cuda._sleep(1_000_000)
        sites = SitesPass(**settings)
        sites.start()
        try:
            call(d)
        finally:
            sites.stop()
    torch.cuda.synchronize()
    return [wait for wait in sites.waits if wait.cause != "gc"]


@pytest.mark.parametrize("exact", [False, True], ids=["warnings", "exact"])
@pytest.mark.parametrize("name", WAITS)
def test_each_cause_is_found_with_its_line(name, exact, d):
    """All that a line waits for has one cause and is on that line, in this file."""
    cause, call = WAITS[name]
    waits = watched(call, d, exact=exact)

    assert {wait.cause for wait in waits} == {cause}, waits
    assert {Path(wait.site.path).name for wait in waits} == {HERE}
    assert {wait.thread for wait in waits} == {"main"}
    assert len({wait.site.line for wait in waits}) == 1


@pytest.mark.parametrize("exact", [False, True], ids=["warnings", "exact"])
@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_not_wait_is_not_noted(name, exact, d):
    """Calls that look as if they waited."""
    assert watched(HARMLESS[name], d, exact=exact) == []


def test_an_event_of_any_kind_of_device_is_seen_exactly(d):
    """Torch warns of no wait for an event; its callbacks come for each."""

    def call(d):
        event = torch.Event("cuda")
        event.record()
        event.synchronize()

    assert [wait.cause for wait in watched(call, d, exact=True)] == ["event"]


@pytest.mark.parametrize("exact", [False, True], ids=["warnings", "exact"])
def test_a_hook_of_the_backward_pass_has_its_own_line(exact, d):
    """It runs on a thread of autograd."""

    def hook(grad):
        grad.sum().item()

    def call(d):
        y = d.x[:8].clone().requires_grad_() * 2
        y.register_hook(hook)
        y.sum().backward()

    (wait,) = watched(call, d, exact=exact)
    assert (wait.thread, wait.cause) == ("autograd", "item")
    assert wait.site.source == "grad.sum().item()"


@pytest.mark.parametrize("exact", [False, True], ids=["warnings", "exact"])
def test_a_node_of_the_backward_pass_is_not_the_line_of_backward(exact, d):
    """The gradient of a boolean index waits on a thread of autograd, where no Python is."""
    mask = d.x[:64] > 1

    def call(d):
        d.x[:64].clone().requires_grad_()[mask].sum().backward()

    waits = watched(call, d, exact=exact)
    inside = [wait for wait in waits if wait.thread == "autograd"]
    assert inside
    assert {wait.site for wait in inside} == {None}
    assert {wait.cause for wait in waits if wait.thread == "main"} == {"shape"}


def test_a_wait_on_another_thread_has_its_name(d):
    """Torch warns on the thread that waited."""

    def call(d):
        thread = threading.Thread(target=lambda: d.x.nonzero(), name="other")
        thread.start()
        thread.join()

    (wait,) = watched(call, d)
    assert (wait.thread, wait.cause) == ("other", "shape")
    assert Path(wait.site.path).name == HERE


def test_capture_and_compiled_functions_work(d):
    """A graph can be captured and a function compiled while sites are watched."""
    compiled = torch.compile(lambda x: x.to(torch.float64) * x[0], fullgraph=True, backend="eager")
    static, graph = d.x[:8].clone(), torch.cuda.CUDAGraph()
    sites = SitesPass()
    sites.start()
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _ = static.to(torch.float64) * 2
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            doubled = static.to(torch.float64) * 2
        graph.replay()
        found = compiled(static)
    finally:
        sites.stop()
    torch._dynamo.reset()

    assert torch.equal(doubled, static.double() * 2)
    assert torch.equal(found, static.double() * static[0])


def test_the_mode_and_torchs_functions_are_as_before(d):
    """A script that has set the mode itself keeps it."""
    core = torch._C
    before = core._cuda_set_sync_debug_mode, core._cuda_get_sync_debug_mode, core._cuda_synchronize
    for mode in (0, 2):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            sites = SitesPass()
            sites.start()
            assert torch.cuda.get_sync_debug_mode() == mode
            sites.stop()
            assert torch.cuda.get_sync_debug_mode() == mode
        finally:
            torch.cuda.set_sync_debug_mode(0)

    now = core._cuda_set_sync_debug_mode, core._cuda_get_sync_debug_mode, core._cuda_synchronize
    assert all(old is new for old, new in zip(before, now, strict=True))


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_each_mark_stands_by_the_call_that_blocks(d, tmp_path):
    """A wrapped wait blocks behind its mark; one that torch warns of blocked before it.

    The number of a mark is the place of its wait: a pause of the collector has a place, and no mark.
    """
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        sites = SitesPass(marks=True)
        sites.start()
        d.one.item()
        d.x.nonzero()
        sites.stop()
    file = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(file))
    events = sorted(json.loads(file.read_text())["traceEvents"], key=lambda one: one.get("ts", 0))
    names = [
        one["name"]
        for one in events
        if one.get("ph") == "X"
        and not one.get("cat", "").startswith("gpu")
        and (one["name"].startswith((MARK, MARK_AFTER)) or "StreamSynchronize" in one["name"])
    ]

    item, shape = (place for place, wait in enumerate(sites.waits) if wait.cause != "gc")
    assert names[:2] == [f"{MARK}{item}", "cudaStreamSynchronize"]
    assert names[2:4] == ["cudaStreamSynchronize", f"{MARK_AFTER}{shape}"]
