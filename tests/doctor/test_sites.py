"""The lines that wait, found while a script runs: on the CPU, where every tensor counts as a device's."""

from __future__ import annotations

import _thread
import gc
import os
import pickle
import runpy
import sys
import threading
import types
import warnings
from collections import Counter
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch
from torch import nn
from torch.cuda import _gpu_trace
from torch.utils.data import DataLoader

from doctor.labels import read_case, scripts
from gapless.device import cuda_waits, script_tensors
from gapless.doctor.diagnose.done_once import split_done_once
from gapless.doctor.lines import explicit_waits, host_costs, sites as sites_module
from gapless.doctor.lines.sites import SitesPass
from gapless.doctor.lines.wait_cause import cause_of_index
from gapless.doctor.seen_waits import MARK, MARK_AFTER
from gapless.unnoticed import Patches


HERE = Path(__file__).name
TESTS = Path(__file__).parents[1]
SAYS = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:1.)"
NUM_STEPS = 5


@pytest.fixture(autouse=True)
def tensors_are_on_a_device(monkeypatch):
    """Let every tensor be one that the host waits for, and every device another than the host."""
    monkeypatch.setattr(script_tensors, "is_on_accelerator", lambda tensor: True)
    monkeypatch.setattr(script_tensors, "is_accelerator", lambda device: True)


@pytest.fixture
def watching():
    """A pass that is going on, and ends with the test."""
    sites = SitesPass()
    sites.start()
    yield sites
    sites.stop()


def waits_of(sites):
    sites.stop()
    return [wait for wait in sites.waits if wait.cause not in ("gc", "loader")]


def here(text):
    """Return the only line of this file that ends with a comment."""
    lines = Path(__file__).read_text().splitlines()
    (line,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))
    return line


def says_that_it_waits():
    """Warn as torch does when a C++ function has waited: in the frame of who called it."""
    warnings.warn(SAYS, UserWarning, stacklevel=1)


# The corpus


def run_case(name, monkeypatch):
    """Return the case and how often each of its lines was noted, by cause, in a step."""
    path = scripts() / f"{name}.py"
    monkeypatch.setenv("CASE_STEPS", str(NUM_STEPS))
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.syspath_prepend(str(path.parent))
    # Torch's compiler turns it off for the process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sites = SitesPass()
        sites.start()
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            waits = waits_of(sites)
    found = Counter()
    for wait in waits:
        assert wait.site is not None
        # On the CPU an optimizer keeps the number of its steps on the host.
        if wait.call not in ("Adam.step", "AdamW.step"):
            found[Path(wait.site.path).name, wait.site.line, wait.cause] += wait.count
    return read_case(path), found


CASES = (
    "adafactor_reads",
    "amp_scaler_unfused",
    "any_all_in",
    "assert_finite",
    "clip_error_if_nonfinite",
    "custom_function_backward",
    "distributions_validate",
    "executed_source",
    "exit_stack",
    "float_in_dataclass",
    "gan_two_optimizers",
    "greedy_decode_all_done",
    "json_default",
    "lambda_hook",
    "logger_thread",
    "loop_over_tensor",
    "match_statement",
    "module_hooks",
    "nan_guard",
    "properties_that_read",
    "repr_in_messages",
    "state_dict_to_cpu",
    "tensor_hook_nan",
    "tensor_subclass",
    "tolist_predictions",
    "value_in_tensor",
)
# What only torch's warnings on a GPU tell, or only a GPU does.
NEEDS_A_GPU = ("shape", "copy", "new tensor", "cpu index", "equal", "linalg", "device", "stream")


@pytest.mark.parametrize("name", CASES)
def test_labels_of_the_corpus_are_found(name, monkeypatch, capsys):
    """Every line that reads a value is found as often as labelled, with its cause; no other is."""
    case, found = run_case(name, monkeypatch)

    labels = [wait for wait in case.waits if wait.is_wait and wait.cause not in NEEDS_A_GPU]
    for label in labels:
        at = [key for key in found if label.covers(Path(key[0]), key[1])]
        same = [one for one in labels if (one.path, one.line) == (label.path, label.line)]
        count = sum(found[key] for key in at) / NUM_STEPS
        least, most = sum(one.least for one in same), sum(one.most for one in same)
        # A wait in one of ten steps comes once in so few.
        assert least * 0.7 <= count <= most + 2 / NUM_STEPS or label.unsure, (label, found)
        assert {key[2] for key in at} <= {one.cause for one in same}, (label, found)
    step = case.step[1]
    in_the_loop = [key for key in found if key[0] != case.path.name or key[1] >= step]
    unlabelled = [
        key
        for key in in_the_loop
        if not any(wait.covers(Path(key[0]), key[1]) for wait in case.waits)
    ]
    assert unlabelled == []


# Words of a record


def test_a_wait_has_its_line_call_function_and_duration(watching):
    """What is noted is enough to find the line, and to say how long it held the host up."""
    loss = torch.ones(())
    loss.item()  # read here

    (wait,) = waits_of(watching)
    assert (wait.cause, wait.call, wait.thread, wait.step) == ("item", "Tensor.item", "main", 0)
    assert Path(wait.site.path).name == HERE
    assert wait.site.line == here("read here")
    assert wait.site.source == "loss.item()  # read here"
    assert wait.site.function == "test_a_wait_has_its_line_call_function_and_duration"
    assert 0 < wait.end_ns - wait.start_ns < 10**9


def test_waits_belong_to_their_step(watching):
    """Each step has its own number, from 0."""
    loss = torch.ones(())
    for _ in range(3):
        loss.item()
        watching.next_step()

    assert [wait.step for wait in waits_of(watching)] == [0, 1, 2]


def test_a_print_is_one_line_with_one_cause(watching, capsys):
    """All that a print reads counts as the print."""
    print(torch.arange(3.0))

    assert {(wait.cause, wait.call) for wait in waits_of(watching)} == {
        ("print", "Tensor.__repr__")
    }


def test_the_line_of_a_call_over_several_lines_is_that_of_the_call(watching):
    """A reader wants the line with `.item()`, not the one where the expression begins."""
    _ = (
        torch.ones(2).sum().item()  # the call itself
    )

    (wait,) = waits_of(watching)
    assert wait.site.line == here("the call itself")


def test_tensors_on_the_host_make_nobody_wait(monkeypatch):
    """Without a device nothing is noted, whatever is read."""
    monkeypatch.undo()
    sites = SitesPass()
    sites.start()
    x = torch.arange(4.0)
    _ = (
        x[0].item(),
        x.tolist(),
        x.to("cpu"),
        x.cpu(),
        bool(x[0] > 0),
        f"{x}",
        x[x > 1],
        x.numpy(),
    )

    assert waits_of(sites) == []


# Whose line it is


def test_the_line_is_the_users_not_the_librarys(watching, tmp_path, monkeypatch):
    """A library that is installed reads on behalf of the line that calls it; its callback is the user's."""
    library = tmp_path / "site-packages" / "somelib.py"
    library.parent.mkdir()
    library.write_text("def read(x, then=None):\n    return then(x) if then else x.item()\n")
    monkeypatch.syspath_prepend(str(library.parent))
    import somelib

    x = torch.ones(())
    somelib.read(x)  # calls the library
    somelib.read(
        x,
        then=lambda x: x.item(),  # is called by the library
    )

    lines = [(wait.site.line, wait.call) for wait in waits_of(watching)]
    assert lines == [
        (here("calls the library"), "read"),
        (here("is called by the library"), "Tensor.item"),
    ]
    details = [wait.detail for wait in watching.waits if wait.cause == "item"]
    assert details == ["in somelib.py:2", ""]


def test_a_framework_used_from_a_checkout_is_no_code_of_the_user(watching, tmp_path, monkeypatch):
    """Where a framework lies does not matter."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").touch()
    (tmp_path / "accelerate" / "reads_for_you.py").write_text("def read(x):\n    x.item()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "accelerate", raising=False)
    from accelerate import reads_for_you

    reads_for_you.read(torch.ones(()))  # calls the framework

    (wait,) = waits_of(watching)
    assert wait.site.line == here("calls the framework")
    del sys.modules["accelerate"], sys.modules["accelerate.reads_for_you"]


def test_a_thread_without_a_line_of_the_user_keeps_its_name(watching):
    """What a library's own thread reads has a thread and a call, but no line."""
    thread = threading.Thread(target=torch.ones(()).item, name="reader")
    thread.start()
    thread.join()

    (wait,) = waits_of(watching)
    assert (wait.site, wait.thread, wait.call) == (None, "reader", "Tensor.item")


# Torch's warnings


def test_a_warning_makes_a_record_of_the_line_that_waited(watching):
    """An operation that nobody has wrapped is found by what torch says."""
    says_that_it_waits()

    (wait,) = waits_of(watching)
    assert Path(wait.site.path).name == HERE
    assert wait.end_ns is None


def test_a_warning_inside_a_wrapped_call_is_the_calls(watching):
    """One wait is one record."""

    class Warns(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            says_that_it_waits()
            return super().__torch_function__(func, types, args, kwargs or {})

    torch.ones(()).as_subclass(Warns).item()
    found = [wait.call for wait in waits_of(watching)]

    assert found[-1:] == ["Tensor.item"]
    assert found.count("Tensor.item") == 1


@pytest.mark.parametrize(
    "mute",
    [
        lambda: warnings.simplefilter("ignore"),
        lambda: warnings.filterwarnings("error"),
        lambda: warnings.resetwarnings(),  # as the script would find it then
    ],
    ids=["ignored", "errors", "forgotten"],
)
def test_filters_of_the_script_neither_mute_nor_raise(watching, mute):
    """What the script does with warnings holds for all but torch's on waits, now and afterwards."""
    with warnings.catch_warnings():
        mute()
        for _ in range(3):
            says_that_it_waits()
        assert len(waits_of(watching)) == 3
        assert not any("synchronizing" in str(one) for one in warnings.filters)


def test_a_script_that_records_warnings_sees_none_of_ours(watching):
    """`catch_warnings(record=True)` and `pytest.warns` get what they would get without us."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        says_that_it_waits()
        warnings.warn("the script's own", UserWarning, stacklevel=1)

    assert [str(one.message) for one in seen] == ["the script's own"]
    assert len(waits_of(watching)) == 1


def test_the_scripts_own_showwarning_goes_on_to_work(watching):
    """It gets its own warnings, and keeps its place afterwards."""
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: seen.append(str(message))
        says_that_it_waits()
        warnings.warn("the script's own", UserWarning, stacklevel=1)

    assert seen == ["the script's own"]
    assert len(waits_of(watching)) == 1


def test_filters_that_were_put_back_do_not_end_the_watch():
    """A block that began before the watch takes its filters with it when it ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sites = SitesPass()
        with warnings.catch_warnings():
            sites.start()
        sites.next_step()
        says_that_it_waits()

        assert len(waits_of(sites)) == 1


def test_a_warning_on_another_thread_is_that_threads(watching):
    """Warnings come where the wait was."""
    thread = threading.Thread(target=says_that_it_waits, name="copier")
    thread.start()
    thread.join()

    (wait,) = waits_of(watching)
    assert wait.thread == "copier"


def test_what_backward_replays_is_not_its_line(watching):
    """Torch tells of waits of its backward threads when `.backward()` ends; their line is not known."""

    def _engine_run_backward():
        warnings.warn(SAYS, UserWarning, stacklevel=1)

    _engine_run_backward()

    (wait,) = waits_of(watching)
    assert (wait.site, wait.thread, wait.call) == (None, "autograd", "Tensor.backward")


def test_a_warning_of_a_wrapped_call_names_the_scripts_line(watching):
    """The script's output says the same as without us."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.ones((), requires_grad=True).__float__()  # converted here

    for one in seen:  # torch says so once in a process
        assert (Path(one.filename).name, one.lineno) == (HERE, here("converted here"))


# Explicit waits


@pytest.fixture
def stubs(monkeypatch):
    """Functions of CUDA that do nothing, counted; made before a pass begins."""
    called = Counter()

    def stub(name, result=None):
        def function(*_):
            called[name] += 1
            return result

        return function

    for name in ("_cuda_synchronize", "_accelerator_synchronizeDevice", "_cuda_emptyCache"):
        monkeypatch.setattr(torch._C, name, stub(name), raising=False)
    for kind in (torch.cuda.Stream, torch.cuda.Event):
        monkeypatch.setattr(kind, "synchronize", stub(kind.__name__))
    return called


def made(kind):
    """Return an object of a class of CUDA, without CUDA."""
    return types.SimpleNamespace(
        **{
            name: held.__get__(object(), kind)
            for name, held in vars(kind).items()
            if name in ("query", "synchronize")
        }
    )


def test_synchronisation_is_found_however_it_is_called(stubs):
    """Of the device, a stream and an event; a name that was bound early leads to the same function."""
    early = torch._C._accelerator_synchronizeDevice
    sites = SitesPass()
    sites.start()
    torch._C._cuda_synchronize()
    torch._C._accelerator_synchronizeDevice(0)
    made(torch.cuda.Stream).synchronize()
    made(torch.cuda.Event).synchronize()
    torch._C._cuda_emptyCache()

    assert [(wait.cause, wait.call) for wait in waits_of(sites)] == [
        ("device", "torch.cuda.synchronize"),
        ("device", "torch.accelerator.synchronize"),
        ("stream", "Stream.synchronize"),
        ("event", "Event.synchronize"),
        ("empty_cache", "torch.cuda.empty_cache"),
    ]
    assert stubs.total() == 5
    assert torch._C._accelerator_synchronizeDevice is early


def answers(monkeypatch, *given):
    """Return an event whose queries are answered so, in a pass that has begun."""
    left = list(given)
    monkeypatch.setattr(torch.cuda.Event, "query", lambda self: left.pop(0))
    sites = SitesPass()
    sites.start()
    return sites, made(torch.cuda.Event)


def test_a_loop_of_queries_is_one_wait_with_its_count(monkeypatch):
    """It lasts from the first query to the last."""
    sites, event = answers(monkeypatch, False, False, False, True)
    while not event.query():  # spins
        pass

    (wait,) = waits_of(sites)
    assert (wait.cause, wait.count, wait.site.line) == ("query", 4, here("spins"))
    assert wait.end_ns > wait.start_ns


def test_asking_once_a_step_is_no_wait(monkeypatch):
    """The same line that asks the same event in the next step does not wait for it."""
    sites, event = answers(monkeypatch, False, False, True, True)
    for _ in range(4):
        event.query()
        sites.next_step()

    assert waits_of(sites) == []


def test_a_collective_that_holds_the_host_up_is_found(tmp_path, watching, monkeypatch):
    """Work of a group on the host is waited for; work that is done is not."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the group replaces it for good
    monkeypatch.setattr(explicit_waits, "_MIN_COLLECTIVE_NS", 0)
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        work = dist.all_reduce(torch.ones(1 << 22), async_op=True)
        work.wait()  # collected
        monkeypatch.setattr(explicit_waits, "_MIN_COLLECTIVE_NS", 10**12)
        work.wait()
    finally:
        dist.destroy_process_group()

    (wait,) = (wait for wait in waits_of(watching) if wait.cause == "collective")
    assert (wait.call, wait.site.line) == ("Work.wait", here("collected"))


# Host costs


def test_each_batch_of_a_loader_is_noted_at_the_loop(watching):
    """The time until it came, and how the loader is set up."""
    for _ in DataLoader(torch.zeros(6, 2), batch_size=2):  # the loop
        pass
    watching.stop()

    waits = [wait for wait in watching.waits if wait.cause == "loader"]
    assert [wait.site.line for wait in waits] == [here("the loop")] * 3
    assert {wait.detail for wait in waits} == {"no workers"}


def test_a_collection_that_the_script_asks_for_has_its_line(watching, monkeypatch):
    """One that comes by itself could come anywhere: it has none."""
    monkeypatch.setattr(host_costs, "_MIN_PAUSE_NS", 0)
    gc.collect()  # collects
    circles = [[] for _ in range(10_000)]
    watching.stop()

    assert len(circles) == 10_000
    found = {(wait.call, wait.site and wait.site.line) for wait in watching.waits}
    assert ("gc.collect", here("collects")) in found
    assert ("collection of generation 0", None) in found
    assert all(line in (None, here("collects")) for _, line in found)


def test_a_collection_in_a_thread_without_python_is_noted_too(watching, monkeypatch):
    """Threads of autograd run Python only where a hook does."""
    monkeypatch.setattr(host_costs, "_MIN_PAUSE_NS", 0)
    (collected,) = (one for one in gc.callbacks if one.__name__ == "_called")
    _thread.start_new_thread(collected, ("stop", {"generation": 7}))
    until = monotonic() + 60.0
    wanted = ("collection of generation 7", None)
    # The collector itself may have run before.
    while wanted not in {(one.call, one.site) for one in watching.waits} and monotonic() < until:
        sleep(0.001)
    watching.stop()

    assert wanted in {(one.call, one.site) for one in watching.waits}


# Scripts are not disturbed


def state():
    """Return all that a pass replaces."""
    holders = [torch.Tensor, torch._C, torch.cuda.Stream, torch.cuda.Event, warnings]
    holders += [torch.utils.data.dataloader._BaseDataLoaderIter]
    holders += [torch._C._distributed_c10d.Work]
    return [dict(vars(holder)) for holder in holders], list(warnings.filters), list(gc.callbacks)


def test_everything_is_taken_out_again():
    """Attributes are the same objects as before, twice in a row."""
    before = state()
    for _ in range(2):
        sites = SitesPass(marks=True)
        sites.start()
        assert "item" in vars(torch.Tensor)
        sites.stop()

    assert "item" not in vars(torch.Tensor)  # it is inherited
    after = state()
    assert before[1:] == after[1:]
    for old, new in zip(before[0], after[0], strict=True):
        assert old.keys() == new.keys()
        assert [
            name for name in old if old[name] is not new[name] and name != "__warningregistry__"
        ] in (
            [],
            ["_filters_version"],
        )


def test_what_somebody_else_has_replaced_since_stays(monkeypatch):
    """Another tool's replacement is not undone."""

    class Holder:
        value = 1

    patches = Patches()
    patches.put(Holder, "value", 2)
    Holder.value = 3
    patches.take_out()

    assert Holder.value == 3


def test_a_wrapper_that_a_script_has_kept_notes_nothing_afterwards(watching):
    """It goes on to work."""
    kept = torch.ones(()).item
    watching.stop()

    assert kept() == 1.0
    assert waits_of(watching) == []


def test_marks_are_in_the_trace_before_each_wait(monkeypatch):
    """Each names the place of its wait in the list; one of a warning comes behind it."""
    monkeypatch.setattr(host_costs, "_MIN_PAUSE_NS", 10**12)  # or pauses would be in the list
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        sites = SitesPass(marks=True)
        sites.start()
        torch.ones(()).item()
        says_that_it_waits()
        torch.ones(3).tolist()
        waits = waits_of(sites)

    names = [event.name for event in profiler.events() if event.name.startswith("gapless")]
    assert [wait.call for wait in waits][::2] == ["Tensor.item", "Tensor.tolist"]
    assert sorted(names) == sorted([f"{MARK}0", f"{MARK_AFTER}1", f"{MARK}2"])


def test_compiled_functions_stay_whole():
    """Wrapped methods in a function that must be one graph do not break it."""

    @torch.compile(fullgraph=True, backend="eager")
    def function(x, y, i):
        x = x.to(torch.float64).to("cpu")
        x[0] = 1
        z = x[i] + y.cpu().to(y)
        return z.copy_(y) * 2

    sites = SitesPass()
    sites.start()
    try:
        result = function(torch.zeros(3), torch.ones(()), torch.tensor(1))
    finally:
        sites.stop()
    torch._dynamo.reset()

    assert result == 2.0


def test_torch_func_works(watching):
    """Its tensors stand for others, and have no values of their own."""
    found = torch.func.vmap(lambda x: x[0] * x.to(torch.float64).sum())(torch.ones(3, 2))

    assert found.tolist() == [2.0, 2.0, 2.0]


def test_a_default_device_is_still_the_default(watching):
    """`torch.device` as a context is such a mode."""
    with torch.device("meta"):
        assert torch.tensor([1.0]).device.type == "meta"


def test_a_method_of_a_tensor_can_be_sent_to_another_process(watching):
    """It is found there by its name."""
    sent = pickle.dumps(torch.ones(()).item)

    assert pickle.loads(sent)() == 1.0


def test_a_copy_to_the_host_that_does_not_block_is_no_wait(watching, monkeypatch):
    """Torch takes page-locked memory for it."""
    monkeypatch.setattr(script_tensors, "is_accelerator", lambda device: False)
    torch.ones(3).to("cpu", non_blocking=True)
    torch.ones(3).to("cpu")  # blocks

    assert [wait.site.line for wait in waits_of(watching)] == [here("blocks")]


def test_a_forked_process_reports_nothing(watching):
    """A child of the script has the wrappers, but nobody reads its notes."""
    torch.ones(()).item()
    child = os.fork()
    if child == 0:
        torch.ones(()).item()
        os._exit(len(waits_of(watching)))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert code == 1


def test_a_wrong_call_has_torchs_own_error(watching):
    """Arguments that we do not know are torch's to judge."""
    x = torch.ones(2)
    for call in (lambda: x.cuda(colour=1), lambda: x.to(colour=1), lambda: x.copy_(1, 2, 3)):
        with pytest.raises(TypeError, match=r"(colour|copy_\(\))"):
            call()

    assert x.copy_(other=torch.zeros(2), non_blocking=True).tolist() == [0, 0]


def test_an_error_of_the_call_reaches_the_script(watching):
    """And the next wait is noted as ever."""
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements"):
        torch.ones(2).item()
    torch.ones(()).item()

    assert [wait.call for wait in waits_of(watching)] == ["Tensor.item"] * 2


# Torch's callbacks


@pytest.fixture
def fires(monkeypatch):
    """Fire a callback as torch would before it waits."""
    monkeypatch.setattr(torch._C, "_activate_gpu_trace", lambda: None, raising=False)

    def fire(kind, *args):
        getattr(_gpu_trace, f"{kind}SynchronizationCallbacks").fire_callbacks(*args)  # fires

    return fire


def test_callbacks_find_the_line_before_it_waits(fires):
    """Also for events and devices, and where no Python is: they take the place of warnings."""
    sites = SitesPass(exact=True)
    sites.start()
    fires("Stream", 7)
    fires("Event", 8)
    fires("Device")
    thread = threading.Thread(
        target=_gpu_trace.EventSynchronizationCallbacks.fire_callbacks, args=(1,)
    )
    thread.start()
    thread.join()
    torch.ones(()).item()
    waits = waits_of(sites)

    assert [wait.cause for wait in waits] == ["unknown", "event", "device", "event", "item"]
    assert [wait.site and wait.site.line for wait in waits[:2]] == [here("fires")] * 2
    assert {wait.call for wait in waits[:3]} == {"fire_callbacks"}  # what the line calls here
    assert waits[3].site is None
    assert sites.notes == []


def test_callbacks_are_gone_afterwards_and_warnings_were_left_alone(fires):
    registries = (
        _gpu_trace.StreamSynchronizationCallbacks,
        _gpu_trace.EventSynchronizationCallbacks,
        _gpu_trace.DeviceSynchronizationCallbacks,
    )
    filters = list(warnings.filters)
    sites = SitesPass(exact=True)
    sites.start()
    assert [len(one.callback_list) for one in registries] == [1, 1, 1]
    assert list(warnings.filters) == filters
    sites.stop()

    assert [len(one.callback_list) for one in registries] == [0, 0, 0]


def test_a_torch_without_callbacks_is_watched_by_its_warnings(monkeypatch):
    """And a note says so."""
    monkeypatch.delattr(torch._C, "_activate_gpu_trace", raising=False)
    sites = SitesPass(exact=True)
    sites.start()
    says_that_it_waits()

    assert len(waits_of(sites)) == 1
    assert len(sites.notes) == 1


# The mode of CUDA


@pytest.fixture
def mode(monkeypatch, sync_debug_mode):
    monkeypatch.setattr(cuda_waits, "is_capturing", lambda: False)
    return sync_debug_mode


def test_torch_warns_while_sites_are_watched(mode):
    """And no longer."""
    sites = SitesPass()
    sites.start()
    assert mode == [1]
    sites.stop()

    assert mode == [0]


def test_the_script_believes_in_its_own_mode(mode):
    """It sets errors for a part of its step; between them torch warns all the same."""
    sites = SitesPass()
    sites.start()
    torch.cuda.set_sync_debug_mode("error")
    assert (mode, torch.cuda.get_sync_debug_mode()) == ([2], 2)
    torch.cuda.set_sync_debug_mode("default")
    assert (mode, torch.cuda.get_sync_debug_mode()) == ([1], 0)
    torch.cuda.set_sync_debug_mode("error")
    sites.stop()

    assert (mode, torch.cuda.get_sync_debug_mode()) == ([2], 2)


@pytest.mark.parametrize(("action", "count"), [("default", 1), ("always", 3), ("ignore", 0)])
def test_a_script_that_wants_the_warnings_gets_them(mode, action, count):
    """It has set the mode itself, and its filters say how often it is told."""
    mode[0] = 1
    sites = SitesPass()
    sites.start()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        for _ in range(3):
            says_that_it_waits()
    sites.stop()

    assert [str(one.message) for one in seen] == [SAYS] * count
    assert {one.filename for one in seen} <= {__file__}
    assert mode == [1]


def test_a_script_that_makes_errors_of_the_warnings_gets_them(mode):
    """At the line that waits, and without a line of ours in the traceback."""
    mode[0] = 1
    sites = SitesPass()
    sites.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="synchronizing") as raised:
            says_that_it_waits()
    sites.stop()

    assert [Path(str(one.path)).name for one in raised.traceback] == [HERE, HERE]


@pytest.fixture
def talking_mode(mode, monkeypatch):
    """A mode of which torch says once in a process what it is, whoever sets it."""
    said = []

    def set_mode(level):
        mode[0] = level
        if torch.is_warn_always_enabled() or not said:
            warnings.warn("Synchronization debug mode is a prototype", UserWarning, stacklevel=1)
        if not torch.is_warn_always_enabled():
            said.append(level)

    monkeypatch.setattr(torch._C, "_cuda_set_sync_debug_mode", set_mode)
    return mode


def test_what_torch_says_of_the_mode_is_for_the_script(talking_mode):
    """Torch says it once in a process, and the script may be the first to set the mode."""
    sites = SitesPass()
    sites.start()
    with pytest.warns(UserWarning, match="prototype"):
        torch.cuda.set_sync_debug_mode("warn")
    sites.stop()


def test_a_script_that_sets_no_mode_hears_nothing_of_it(talking_mode):
    """Neither when sites are watched nor when they no longer are; a mode set later is told of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sites = SitesPass()
        sites.start()
        sites.stop()

    assert talking_mode == [0]
    with pytest.warns(UserWarning, match="prototype"):
        torch.cuda.set_sync_debug_mode("warn")


# Modules of the device that lie in no class


def test_a_linear_layer_that_moves_makes_as_many_copies_as_it_has_tensors(monkeypatch):
    """`Module.to` goes through the same method."""
    monkeypatch.setattr(script_tensors, "is_on_accelerator", lambda tensor: False)
    sites = SitesPass()
    sites.start()
    nn.Linear(2, 2).to("cpu")

    assert [(wait.cause, wait.detail) for wait in waits_of(sites)] == [
        ("copy", "16 bytes"),
        ("copy", "8 bytes"),
    ]


@pytest.mark.parametrize("name", ["to", "cuda", "cpu", "load_state_dict"])
def test_a_module_that_moves_is_called_as_what_is_done_once_knows_it(name, monkeypatch):
    """It waits for each of its tensors, which is no loop."""
    layer = nn.Linear(2, 2)
    found = {key: torch.ones_like(value) for key, value in layer.state_dict().items()}
    own = {value.data_ptr() for value in layer.state_dict().values()}
    is_moved = {
        "to": lambda tensor: False,
        "cuda": lambda tensor: False,
        "cpu": lambda tensor: True,
        "load_state_dict": lambda tensor: tensor.data_ptr() in own,
    }
    monkeypatch.setattr(script_tensors, "is_on_accelerator", is_moved[name])
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, device=None: self.clone())
    sites = SitesPass()
    sites.start()
    getattr(layer, name)(*{"to": ["cpu"], "load_state_dict": [found]}.get(name, []))

    waits = waits_of(sites)
    assert len(waits) == 2
    _, once = split_done_once(waits * 20, watched_ns=3600 * 10**9)
    assert once == waits * 20


def test_a_watch_that_cannot_begin_leaves_nothing_behind(monkeypatch):
    """The script goes on unwatched."""

    def fails(notes, patches):
        raise AttributeError("this torch has no such thing")

    monkeypatch.setattr(sites_module, "watch_queries", fails)
    before = dict(vars(torch.Tensor)), list(warnings.filters), list(gc.callbacks)
    with pytest.raises(AttributeError, match="no such thing"):
        SitesPass().start()

    assert before == (dict(vars(torch.Tensor)), list(warnings.filters), list(gc.callbacks))


class Masked:
    """Notes why it would wait when it is indexed."""

    def __init__(self):
        self.__dict__["mask"] = torch.ones(3, dtype=torch.bool)

    def __getitem__(self, index):
        CAUSES.append(cause_of_index(sys._getframe(1)))
        return self

    def __matmul__(self, _):
        return self

    def __setitem__(self, index, value):
        CAUSES.append(cause_of_index(sys._getframe(1)))


CAUSES = []


def sets(x, index):
    x[index] = 1


def adds(x, index):
    x[index] @= 1


MASK = torch.ones(3, dtype=torch.bool)
INDICES = {
    "a comparison": ("shape", lambda x: x[torch.ones(2) > 0]),
    "a mask by name": ("shape", lambda x: x[:, MASK]),
    "a mask of an object": ("shape", lambda x: x[x.mask]),
    "a mask turned round": ("shape", lambda x: x[~MASK]),
    "masks joined": ("shape", lambda x: x[MASK & MASK]),
    "a function of masks": ("shape", lambda x: x[torch.isnan(torch.ones(2))]),
    "a list of masks": ("shape", lambda x: x[[True, False]]),
    "a list": ("cpu index", lambda x: x[[0, 1]]),
    "a tensor made here": ("cpu index", lambda x: x[torch.tensor([0, 1])]),
    "a number": ("index", lambda x: x[0]),
    "a range": ("index", lambda x: x[1:2]),
    "a setting": ("shape", lambda x: sets(x, MASK)),
    "a sum": ("shape", lambda x: adds(x, MASK)),
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_is_told_by_the_line_that_uses_it(name):
    """By what its names stand for, or by its syntax."""
    cause, use = INDICES[name]
    CAUSES.clear()
    x = Masked()
    use(x)

    assert set(CAUSES) == {cause}


def test_shapes_of_batches_are_counted(watching):
    """Of tensors in tuples, lists and mappings; their values are not read."""
    lengths = [3, 5, 3, 7]
    rows = [{"x": [torch.zeros(number)], "y": number} for number in lengths]

    for _ in DataLoader(rows, batch_size=None):
        pass

    assert (watching.shapes.num_batches, watching.shapes.num_shapes) == (4, 3)
