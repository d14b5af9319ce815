"""Private names of torch and CPython: each is there, and none that is missing ends a user's loop."""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from contextlib import nullcontext
from datetime import timedelta
from functools import reduce
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from packaging.specifiers import SpecifierSet
from torch.utils.data import DataLoader

from gapless import python_private
from gapless.device import torch_private
from gapless.errors import DeviceError


OF_TORCH = {one.path: one for one in torch_private.NAMES}
OF_PYTHON = {one.path: one for one in python_private.NAMES}


class Without:
    """A module or class of torch in which a name is missing, at any depth.

    Args:
        value: the module or class.
        names: that lead to what is missing.
    """

    def __init__(self, value, names):
        self._value, self._names = value, names

    def __getattr__(self, name):
        first, *rest = self._names
        if name != first:
            return getattr(self._value, name)
        if not rest:
            raise AttributeError(name)
        return Without(getattr(self._value, name), rest)


@pytest.fixture
def torch_without(monkeypatch):
    """Load `torch_private` anew in a torch in which a name is missing."""

    def load(path):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "torch", Without(torch, path.split(".")[1:]))
            return load_anew(torch_private)

    return load


def load_anew(module):
    """Return another module of the same file."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_anew", module.__file__)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


# --- each name is there ---


def node():
    return (torch.ones(1, requires_grad=True) * 2).grad_fn


def workers_iterator():
    """An iterator of a loader as it is when its workers have been started."""
    loader = DataLoader([1, 2], num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    torch_private.shut_down_of(iterator)()
    return iterator


def scaler():
    return torch.amp.GradScaler("cpu")


def cupti_monitor():
    return import_module(CUPTI_MONITOR.rpartition(".")[0]).CuptiMonitor()


CUPTI_MONITOR = "torch.profiler._cupti.monitor.CuptiMonitor"

# Objects that have a name which their class does not show.
OBJECTS = {
    "torch._ops.OpOverload": lambda: torch.ops.aten.add.Tensor,
    "torch.UntypedStorage": lambda: torch.ones(1).untyped_storage(),
    "torch.nn.Module": lambda: torch.nn.Module(),
    "torch.utils.data.dataloader.DataLoader": lambda: DataLoader([1]),
    "torch.utils.data.dataloader._BaseDataLoaderIter": workers_iterator,
    "torch.utils.data.dataloader._DatasetKind": lambda: torch.utils.data.dataloader._DatasetKind,
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter": workers_iterator,
    "torch.amp.GradScaler": scaler,
    "torch.compile": lambda: torch.compile(node),
    CUPTI_MONITOR: cupti_monitor,
    "multiprocessing.process.BaseProcess": multiprocessing.current_process,
}


def is_there(path):
    holder, _, name = path.rpartition(".")
    if holder in OBJECTS:
        return hasattr(OBJECTS[holder](), name)
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        found = reduce(lambda value, part: getattr(value, part, None), parts[length:], module)
        return found is not None
    return False


@pytest.mark.parametrize("name", torch_private.NAMES, ids=lambda name: name.path)
def test_each_name_is_in_this_torch(name):
    """A release that takes one away fails here, before a user meets it."""
    if name.place == "gpu" and not torch.backends.cuda.is_built():
        return  # builds for the CPU have none of these
    if not SpecifierSet(name.releases).contains(torch.__version__, prereleases=True):
        return
    if name.path.startswith(CUPTI_MONITOR) and importlib.util.find_spec("cupti") is None:
        return  # torch's module imports this package, which torch does not require
    if name.path.startswith("libc10.so"):
        assert torch_private._gpu_trace_flag() is not None
        return

    assert is_there(name.path)


@pytest.mark.parametrize("name", python_private.NAMES, ids=lambda name: name.path)
def test_each_name_is_in_this_python(name):
    """Likewise."""
    assert is_there(name.path)


@pytest.mark.parametrize("table", [torch_private.NAMES, python_private.NAMES])
def test_each_name_stands_once_and_says_why(table):
    """With one sentence of each."""
    assert len({one.path for one in table}) == len(table)
    assert [one.path for one in table if not one.why or not one.missing.endswith(".")] == []


# --- what happens where it is missing ---


def refuses(call):
    """A case in which one line says what is missing."""

    def check(module):
        with pytest.raises(DeviceError, match=r"^torch \S+ has no \S+, which .* needs; use torch"):
            call(module)

    return check


def gives(call, expected):
    def check(module):
        assert call(module) == expected

    return check


def copies_one_by_one(module):
    targets = [torch.zeros(2), torch.zeros(1)]

    module.foreach_copy_(targets, [torch.ones(2), torch.full((1,), 3.0)])

    assert [target.tolist() for target in targets] == [[1.0, 1.0], [3.0]]


def marks_with_the_public_class(module):
    with module.ProfilerMark("mark"):
        assert module.ProfilerMark is torch.profiler.record_function


def calls_at_once(module):
    called = []

    module.call_when_cuda_starts(lambda: called.append(True))

    assert called == [True]


def sums_places(module):
    twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,), check_invariants=True)

    hidden = SimpleNamespace(coalesce=twice.coalesce)

    assert [part.tolist() for part in module.sparse_parts(hidden)] == [[[0]], [3.0]]


def counts_no_holders(module):
    assert module.count_of_one_holder() is None
    assert not module.is_storage_held_once(torch.ones(1).untyped_storage())


def asks_the_public_state(module):
    assert module.scaler_state(SimpleNamespace(is_enabled=lambda: True, state_dict=dict)) == {}


def lets_torch_end_workers(module):
    bare = SimpleNamespace()

    module.tell_workers_to_end(bare)
    module.close_queues(bare)
    module.forget_deaths_of_workers(bare)

    assert module.workers_of(bare) == []
    assert not module.keeps_workers(bare)
    assert module.shut_down_of(bare) is None


def counts_nothing(module):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace())

        assert module.compiler_counters()["stats"]["unique_graphs"] == 0


def ends_a_pass_without_callbacks(module):
    with module.CompileCallbacks(lambda *_: None, lambda *_: None):
        pass


def is_not_there(name):
    def check(module):
        assert not getattr(module, name).is_there

    return check


def is_none(name):
    return gives(lambda module: getattr(module, name), None)


def leaves_the_limit(module):
    """Torch 2.14 has a public name for it too."""
    module.torch = Without(module.torch, ["distributed", "set_timeout"])

    module.set_timeout(BARE, timedelta(seconds=1))


BARE = SimpleNamespace()
LOADER = "torch.utils.data.dataloader"
C10D = "torch.distributed.distributed_c10d"
SETTINGS = {
    path: gives(
        lambda module, shown=shown: shown in module.setting_readers,
        False,
    )
    for shown, name in torch_private._SETTINGS.items()
    for path in [f"torch._C.{name}"]
}

FFT_PLANS = {
    f"torch.{name}": gives(
        lambda module, shown=shown: module.changes_of_fft_plans[
            f"torch.backends.cuda.cufft_plan_cache.{shown}"
        ],
        None,
    )
    for shown, name in (
        ("clear", "_cufft_clear_plan_cache"),
        ("max_size", "_cufft_set_plan_cache_max_size"),
    )
}

MISSING = {
    **SETTINGS,
    **FFT_PLANS,
    "torch.utils._python_dispatch.TorchDispatchMode": refuses(
        lambda module: module.TorchDispatchMode()
    ),
    "torch._ops.OpOverload": gives(
        lambda module: isinstance(torch.ops.aten.add.Tensor, module.OpOverload), False
    ),
    "torch._ops.OpOverload._schema": refuses(lambda module: module.schema_of(BARE)),
    "torch.ops.aten._to_copy.default": is_none("to_copy"),
    "torch.ops.aten._local_scalar_dense.default": is_none("local_scalar_dense"),
    "torch._foreach_copy_": copies_one_by_one,
    "torch.ops.mkldnn._linear_pointwise": is_none("onednn_linear"),
    "torch.Tensor._indices": sums_places,
    "torch.Tensor._values": sums_places,
    "torch.Tensor._version": gives(lambda module: module.version_of(BARE), 0),
    "torch._C._storage_Use_Count": counts_no_holders,
    "torch.UntypedStorage._cdata": gives(lambda module: module.is_storage_held_once(BARE), False),
    "torch._C._dynamo.guards.TensorGuards": gives(
        lambda module: module.tensor_guards([torch.ones(1)]), None
    ),
    "torch._C._dynamo.guards.dict_version": is_none("dict_version"),
    **{
        f"torch.nn.modules.module.{name}": gives(
            lambda module, name=name: name in module.hooks_of_all_modules(), False
        )
        for name in (
            "_global_forward_hooks",
            "_global_forward_pre_hooks",
            "_global_backward_hooks",
            "_global_backward_pre_hooks",
        )
    },
    "torch._C._len_torch_function_stack": refuses(lambda module: module.num_function_modes()),
    "torch._C._len_torch_dispatch_stack": refuses(lambda module: module.num_operator_modes()),
    "torch._C._get_function_stack_at": refuses(lambda module: module.function_mode_at(0)),
    "torch._C._get_dispatch_stack_at": refuses(lambda module: module.operator_mode_at(0)),
    "torch._C._push_on_torch_function_stack": refuses(
        lambda module: module.enter_function_mode(BARE)
    ),
    "torch._C._pop_torch_function_stack": refuses(lambda module: module.leave_function_mode()),
    "torch.overrides._push_mode": refuses(lambda module: module.push_function_mode(BARE)),
    "torch.overrides._pop_mode": refuses(lambda module: module.pop_function_mode()),
    "torch.utils._python_dispatch._push_mode": refuses(
        lambda module: module.push_operator_mode(BARE)
    ),
    "torch.utils._python_dispatch._pop_mode": refuses(lambda module: module.pop_operator_mode()),
    "torch.utils._device.DeviceContext": gives(
        lambda module: isinstance(torch.device("cpu"), module.DeviceContext), False
    ),
    "torch._C.DisableTorchFunction": gives(
        lambda module: module.DisableTorchFunction, nullcontext
    ),
    "torch._C._DisableTorchDispatch": gives(
        lambda module: module.DisableTorchDispatch, nullcontext
    ),
    "torch._C._current_graph_task_id": gives(lambda module: module.current_graph_task(), -1),
    "torch._C._is_multithreading_enabled": gives(
        lambda module: module.is_multithreading_enabled(), True
    ),
    "torch._C._autograd._top_saved_tensors_default_hooks": is_none("saved_tensors_hooks"),
    "torch._C._current_autograd_node": gives(lambda module: module.current_node(), None),
    "torch.autograd._engine_run_backward": is_not_there("RUN_BACKWARD"),
    "torch.autograd.graph.Node._sequence_nr": gives(
        lambda module: module.sequence_number(BARE), None
    ),
    "torch._C._autograd._get_sequence_nr": gives(lambda module: module.next_sequence_number(), 0),
    "torch.autograd.forward_ad._current_level": gives(
        lambda module: module.is_transformed(), False
    ),
    "torch._C._are_functorch_transforms_active": gives(
        lambda module: module.is_transformed(), False
    ),
    "torch.nn.utils.parametrize._cache_enabled": gives(
        lambda module: module.keeps_parametrizations(), False
    ),
    "torch.nn.Module._buffers": gives(lambda module: len(module.MODULE_TENSORS), 2),
    "torch.nn.Module._modules": gives(lambda module: module.MODULE_PARTS, "_modules"),
    "torch.nn.Module._parameters": gives(lambda module: len(module.MODULE_TENSORS), 2),
    "torch.optim.optimizer._global_optimizer_post_hooks": gives(
        lambda module: module.global_post_hooks, {}
    ),
    "torch._C._get_blas_preferred_backend": gives(
        lambda module: list(module.preferred_library_readers),
        ["torch.backends.cuda.preferred_linalg_library()"],
    ),
    "torch._C._get_linalg_preferred_backend": gives(
        lambda module: list(module.preferred_library_readers),
        ["torch.backends.cuda.preferred_blas_library()"],
    ),
    "torch._C._get_sdp_priority_order": is_none("order_of_attention"),
    "torch._fused_sdp_choice": is_none("choose_attention"),
    "torch._C._get_fp32_precision_getter": is_none("get_float32_precision"),
    "torch._C._set_fp32_precision_setter": is_none("set_float32_precision"),
    "torch._C._cuda_getCurrentStream": gives(
        lambda module: module.current_stream_key is module._current_stream_key, True
    ),
    "torch._C._host_emptyCache": gives(
        lambda module: module.empty_host_cache, torch.accelerator.empty_host_cache
    ),
    "torch.cuda._sleep": refuses(lambda module: module.sleep_on_device(1)),
    "torch._C._cuda_endAllocateToPool": refuses(
        lambda module: module.end_allocation_to_pool(0, (0, 1))
    ),
    "torch._C._cuda_releasePool": refuses(lambda module: module.release_pool(0, (0, 1))),
    "torch.cuda._lazy_call": calls_at_once,
    "torch._C._cuda_synchronize": is_not_there("CUDA_SYNCHRONIZE"),
    "torch._C._accelerator_synchronizeDevice": is_not_there("ACCELERATOR_SYNCHRONIZE"),
    "torch._C._cuda_emptyCache": is_not_there("CUDA_EMPTY_CACHE"),
    "torch._C._accelerator_emptyCache": is_not_there("ACCELERATOR_EMPTY_CACHE"),
    "torch._C._cuda_set_sync_debug_mode": is_not_there("SET_SYNC_MODE"),
    "torch._C._cuda_get_sync_debug_mode": is_not_there("GET_SYNC_MODE"),
    "torch._dynamo.callback.callback_handler": ends_a_pass_without_callbacks,
    "torch._dynamo.config.recompile_limit": lambda module: module.allow_recompiles(64),
    **{
        path: gives(
            lambda module: module.compile_by_inductor(BARE, []),
            (None, "this torch has no torch._inductor.compile_fx.compile_fx"),
        )
        for path in ("torch._inductor.compile_fx.compile_fx", "torch._dynamo.exc.RestartAnalysis")
    },
    "torch.nn.Module._compiled_call_impl": gives(
        lambda module: (module.is_compiled_in_place(BARE), module.forget_compiled_call(BARE)),
        (False, None),
    ),
    "torch._dynamo.exc.TorchDynamoException": gives(
        lambda module: module.compiled_or_eager(lambda: 3, failed=print, backend="eager")(), 3
    ),
    "torch.nn.Module._call_impl": gives(lambda module: module.compile_in_place(BARE), None),
    "torch.compile._torchdynamo_orig_callable": gives(
        lambda module: module.module_of_compiled(node), None
    ),
    "torch._inductor.async_compile.maybe_warm_pool": lambda module: (
        module.start_compiling_processes()
    ),
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner.run": gives(
        lambda module: module.kernel_launcher(), None
    ),
    "torch._dynamo.maybe_mark_dynamic": lambda module: module.let_vary(torch.ones(2, 3), -1),
    "torch._compile._disable_dynamo": gives(
        lambda module: module.leave_compiler_out(type("", (), {"__torch_dispatch__": print})), None
    ),
    "torch._dynamo.utils.counters": counts_nothing,
    **{
        path: refuses(lambda module: module.trace_with_dynamo(int, print))
        for path in (
            "torch._dynamo.optimize",
            "torch._dynamo.reset",
            "torch._dynamo.symbolic_convert.InstructionTranslator",
        )
    },
    "torch._C._dynamo.eval_frame.set_code_exec_strategy": lambda module: module.keep_from_compiler(
        refuses
    ),
    "torch._C._dynamo.eval_frame._FrameAction": lambda module: module.keep_from_compiler(refuses),
    "torch._C._dynamo.eval_frame._FrameExecStrategy": lambda module: module.keep_from_compiler(
        refuses
    ),
    "torch._C._get_tracing_state": gives(lambda module: module.is_traced(), None),
    "torch._C._nn._parse_to": refuses(lambda module: module.parse_to("cpu")),
    "torch._C._profiler._RecordFunctionFast": marks_with_the_public_class,
    "torch._C._profiler._ExperimentalConfig": gives(
        lambda module: module.ProfilerSettings(profile_all_threads=True), None
    ),
    "torch.autograd.profiler.profile._prepare_trace": is_not_there("PREPARE_TRACE"),
    "torch._C._autograd._profiler_enabled": gives(
        lambda module: module.is_profiler_enabled(), False
    ),
    "torch.autograd.profiler._is_profiler_enabled": gives(
        lambda module: module.is_profiler_enabled(), False
    ),
    **{
        f"torch.profiler.{name}": gives(lambda module: module.is_cupti_monitored(), False)
        for name in (
            "_cupti_monitor.get_monitor",
            "_cupti.monitor.CuptiMonitor._instance",
            "_cupti.monitor.CuptiMonitor._subscriber",
        )
    },
    f"{LOADER}._BaseDataLoaderIter": is_none("LoaderIterator"),
    f"{LOADER}._MultiProcessingDataLoaderIter": is_none("WorkersIterator"),
    f"{LOADER}._SingleProcessDataLoaderIter": is_none("SingleIterator"),
    f"{LOADER}._SingleProcessDataLoaderIter._next_data": gives(
        lambda module: module.has_next_data(object), False
    ),
    f"{LOADER}._MultiProcessingDataLoaderIter._next_data": gives(
        lambda module: module.has_next_data(None), False
    ),
    f"{LOADER}._BaseDataLoaderIter._next_index": gives(
        lambda module: module.has_next_data(SimpleNamespace(_next_data=0)), False
    ),
    f"{LOADER}._BaseDataLoaderIter._dataset": gives(lambda module: module.dataset_of(BARE), BARE),
    f"{LOADER}._BaseDataLoaderIter._index_sampler": gives(
        lambda module: module.sampler_of(BARE), None
    ),
    f"{LOADER}._BaseDataLoaderIter._num_workers": gives(
        lambda module: module.num_workers_of(BARE), 0
    ),
    f"{LOADER}._BaseDataLoaderIter._prefetch_factor": gives(
        lambda module: module.num_batches_ahead(SimpleNamespace(_num_workers=2)), 0
    ),
    f"{LOADER}._BaseDataLoaderIter._pin_memory": gives(
        lambda module: module.is_pinning(BARE), False
    ),
    f"{LOADER}._BaseDataLoaderIter._dataset_kind": gives(
        lambda module: [
            module.is_over_stream(SimpleNamespace(_dataset=one)) for one in ([1], object())
        ],
        [False, True],
    ),
    f"{LOADER}._DatasetKind.Iterable": gives(
        lambda module: module.is_over_stream(SimpleNamespace(_dataset=[1], _dataset_kind=0)), False
    ),
    f"{LOADER}.DataLoader._iterator": gives(lambda module: module.kept_iterator(BARE), None),
    f"{LOADER}._MultiProcessingDataLoaderIter._shutdown_workers": lets_torch_end_workers,
    **{
        f"{LOADER}._MultiProcessingDataLoaderIter.{name}": lets_torch_end_workers
        for name in (
            *("_persistent_workers", "_workers", "_worker_pids_set", "_shutdown"),
            *("_workers_done_event", "_index_queues", "_worker_result_queue"),
        )
    },
    "torch._C._remove_worker_pids": lambda module: module.forget_deaths_of_workers(
        SimpleNamespace(_worker_pids_set=True)
    ),
    "torch._utils.ExceptionWrapper": is_none("ExceptionWrapper"),
    **{
        f"torch.amp.GradScaler.{name}": asks_the_public_state
        for name in ("_scale", "_init_scale", "_growth_tracker", "_init_growth_tracker")
    },
    f"{C10D}._set_pg_timeout": leaves_the_limit,
    "torch.distributed.ProcessGroupNCCL.Options._timeout": gives(
        lambda module: module.timeout_of(SimpleNamespace(options=BARE)), timedelta(minutes=30)
    ),
    "torch.distributed.ProcessGroup._get_backend": refuses(
        lambda module: module.backend_on(BARE, torch.device("cpu"))
    ),
    "torch.distributed.ProcessGroup._device_types": gives(
        lambda module: module.devices_of(BARE), []
    ),
    f"{C10D}._world.pg_map": gives(lambda module: module.all_groups(), []),
    "torch._C._distributed_c10d.Backend._get_sequence_number_for_group": gives(
        lambda module: module.num_collectives(BARE), 0
    ),
    **{
        f"torch.ops.aten.{name}.default": refuses(
            lambda module, attribute=attribute: getattr(module, attribute)()
        )
        for name, attribute in {
            "_pack_padded_sequence": "pack_padded_sequence",
            "_pack_padded_sequence_backward": "pack_padded_sequence_backward",
            "_pin_memory": "pin_memory",
        }.items()
    },
    "torch._C._VariableFunctions._pad_packed_sequence": refuses(
        lambda module: module.pad_packed_sequence()
    ),
    "torch._neg_view": refuses(lambda module: module.neg_view(torch.ones(1))),
    "torch._C.DispatchKey": is_none("DispatchKey"),
    "torch.Tensor._reduce_ex_internal": is_not_there("REDUCE_INTERNAL"),
    "torch._C._group_tensors_by_device_and_dtype": is_not_there("GROUP_TENSORS"),
    "torch.Tensor._is_zerotensor": gives(lambda module: module.is_zero_tensor(BARE), False),
}


# Names without which `count_waits` is refused when it begins; the last is looked up in a library.
TRACE = [
    *(path for path in OF_TORCH if path.startswith("torch.cuda._gpu_trace.")),
    *("torch._utils.CallbackRegistry", "torch._C._activate_gpu_trace"),
]
FLAG = f"libc10.so:{torch_private.GPU_TRACE_FLAG}"


def test_each_name_has_a_case():
    """Whoever adds a name says what happens without it."""
    assert set(OF_TORCH) == {*MISSING, *TRACE, FLAG}
    assert set(OF_PYTHON) == set(MISSING_OF_PYTHON)


@pytest.mark.parametrize("path", MISSING)
def test_a_torch_without_a_name(path, torch_without):
    """It loads, and does without, or says in one line what is missing once that is asked for."""
    MISSING[path](torch_without(path))


def test_a_monitor_of_this_torch_is_seen_while_it_has_cupti(monkeypatch):
    """It holds the driver's profiling library while it has a subscriber, and not before and after."""
    monitor = SimpleNamespace(_subscriber=None)
    module = SimpleNamespace(CuptiMonitor=SimpleNamespace(_instance=monitor))
    monkeypatch.setitem(sys.modules, CUPTI_MONITOR.rpartition(".")[0], module)

    assert not torch_private.is_cupti_monitored()
    monitor._subscriber = 1
    assert torch_private.is_cupti_monitored()


@pytest.mark.parametrize("path", TRACE)
def test_a_torch_that_does_not_call_back(path, monkeypatch):
    """Waits that cannot be counted are not counted as none."""
    holder, _, name = path.rpartition(".")
    monkeypatch.delattr(import_module(holder), name)

    with pytest.raises(
        DeviceError, match=r"does not report synchronisations .* cannot be counted"
    ):
        torch_private.gpu_trace()


def test_a_torch_without_the_flag_of_callbacks(monkeypatch):
    """It looks for callbacks always, as it does without us."""
    module = load_anew(torch_private)
    monkeypatch.setattr(module, "GPU_TRACE_FLAG", "no_such_flag")

    assert module._gpu_trace_flag() is None


# --- CPython ---


@pytest.fixture
def python_without(monkeypatch):
    """Load `python_private` anew in a Python in which a name is missing."""

    def load(path):
        holder, *names = path.split(".")
        module = import_module(holder)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, holder, Without(module, names))
            return load_anew(python_private)

    return load


def takes_frames_from_tracebacks(module):
    def above():
        return [module.getframe(), module.getframe(1), module.getframe(2)]

    here = sys._getframe()

    assert above()[1:] == [here, here.f_back]
    assert above()[0].f_code is above.__code__
    with pytest.raises(ValueError, match="not deep enough"):
        module.getframe(10_000)


def kills_itself(module):
    def kill(number, what):
        raise SystemExit(number, what)

    module.os.kill = kill

    with pytest.raises(SystemExit) as ended:
        module.exit_now(3)
    assert ended.value.args == (module.os.getpid(), module.signal.SIGKILL)


def finds_modules_by_importlib(module):
    for name in ("json.tool", "unittest"):
        found, spec, code = module.details_of_module(name, ImportError)

        expected = python_private.details_of_module(name, ImportError)
        assert (found, spec.origin, code) == (expected[0], expected[1].origin, expected[2])
    for name in ("no_such_module", "json"):
        with pytest.raises(ImportError, match="No module named"):
            module.details_of_module(name, ImportError)


def leaves_queues_alone(module):
    from multiprocessing.queues import Queue

    before = Queue.__dict__["_on_queue_feeder_error"]
    try:
        module.report_what_queues_drop(lambda *_: None)
    finally:
        Queue._on_queue_feeder_error = before


def has_no_folder(module):
    import multiprocessing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "current_process", SimpleNamespace)

        assert module.temporary_folder() is None


MISSING_OF_PYTHON = {
    "sys._getframe": takes_frames_from_tracebacks,
    "sys._current_frames": gives(lambda module: module.current_frames(), {}),
    "threading._DummyThread": gives(lambda module: isinstance(BARE, module.DummyThread), False),
    "threading._shutdown": gives(lambda module: module.wait_for_threads(), None),
    "os._exit": kills_itself,
    "atexit._run_exitfuncs": gives(lambda module: module.run_exit_functions(), None),
    "multiprocessing.process.BaseProcess._config": has_no_folder,
    "runpy._Error": gives(lambda module: module.ModuleError, ImportError),
    "runpy._get_module_details": finds_modules_by_importlib,
    "warnings._showwarnmsg": is_none("SHOW_WARNING"),
    "warnings._filters_mutated": gives(lambda module: module.FILTERS_CHANGED, ()),
    "multiprocessing.queues.Queue._on_queue_feeder_error": leaves_queues_alone,
}


@pytest.mark.parametrize("path", MISSING_OF_PYTHON)
def test_a_python_without_a_name(path, python_without):
    """Likewise."""
    MISSING_OF_PYTHON[path](python_without(path))
