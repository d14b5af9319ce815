"""Every private name of torch that the product uses: one each, why, and what happens where it is missing.

A release of torch may take any of them away. Each is looked up here and nowhere else, but for those of
`graphs`, which a list in `tests/test_private_names.py` counts; those of CPython are in
`gapless.python_private`. A test looks each of them up, and another takes each away. All were found in torch
2.13 and 2.14.1, but for those of one torch only, which say so.

Where a name is missing, slower public code runs, or the feature is left out, or refused in one line when it
is asked for: importing this file never fails. Where a frame or nanoseconds matter, a name here is torch's own
object.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections import Counter, defaultdict
from contextlib import nullcontext
from datetime import timedelta
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from gapless.errors import DeviceError
from gapless.python_private import PrivateName


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess
    from types import CellType, CodeType, FunctionType


# In the order of this file.
NAMES: list[PrivateName] = []

_NOWHERE: Any = object()


def _find(path: str) -> Any:
    """Return what a path of torch leads to; `_NOWHERE` if it leads to nothing."""
    value: Any = torch
    names = path.split(".")
    for number, name in enumerate(names[1:], start=2):
        found = getattr(value, name, _NOWHERE)
        if found is _NOWHERE and value is sys.modules.get(".".join(names[: number - 1])):
            try:
                found = import_module(".".join(names[:number]))
            except ImportError:
                return _NOWHERE
        if found is _NOWHERE:
            return _NOWHERE
        value = found
    return value


def _look_up(
    path: str, *, why: str, missing: str, otherwise: Any = None, place: str = "anywhere"
) -> Any:
    """Return what a path of torch leads to, or what stands for it where it is missing."""
    NAMES.append(PrivateName(path, why, missing, place))
    found = _find(path)
    return otherwise if found is _NOWHERE else found


def _note(
    *paths: str, why: str, missing: str, place: str = "anywhere", releases: str = ""
) -> None:
    """Note names that the function below looks up each time that it is called."""
    NAMES.extend(PrivateName(path, why, missing, place, releases) for path in paths)


def _refusal(path: str, use: str) -> Callable[..., NoReturn]:
    """Return what refuses in one line whatever needs a name that is missing."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise DeviceError(
            f"torch {torch.__version__} has no {path}, which {use} needs; use torch 2.11 to 2.14"
        )

    return refuse


def _nothing(*_: Any, **__: Any) -> None:
    return None


class Place(NamedTuple):
    """Where a function of torch is that is replaced for a while.

    Attributes:
        holder: module or class.
        name: of the attribute.
    """

    holder: Any
    name: str

    @property
    def is_there(self) -> bool:
        """Whether this torch has it."""
        return hasattr(self.holder, self.name)

    @property
    def value(self) -> Any:
        """What is there now; None if nothing is."""
        return getattr(self.holder, self.name, None)


def _place(path: str, *, why: str, missing: str, place: str = "anywhere") -> Place:
    NAMES.append(PrivateName(path, why, missing, place))
    holder, _, name = path.rpartition(".")
    return Place(_find(holder), name)


# --- operators and tensors ---

if TYPE_CHECKING:
    from torch._ops import OpOverload as OpOverload
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
else:
    TorchDispatchMode = _look_up(
        "torch.utils._python_dispatch.TorchDispatchMode",
        why="Nothing else sees the copies that a `with` body makes; torch documents the class, not its module.",
        missing="What needs one is refused when it begins.",
        otherwise=type(
            "TorchDispatchMode",
            (),
            {"__init__": _refusal("TorchDispatchMode", "to see the operations of a body")},
        ),
    )
    OpOverload = _look_up(
        "torch._ops.OpOverload",
        why="A dispatch mode sees operators and other callables, and has to distinguish them.",
        missing="No operator is known to give other bits each time.",
        otherwise=type("OpOverload", (), {}),
    )

_note(
    "torch._ops.OpOverload._schema",
    why="It says the name of an operator, its arguments, and which of them it writes.",
    missing="What asks for it is refused when it asks.",
    place="objects",
)


def schema_of(operator: OpOverload) -> Any:
    """Return the schema of an operator.

    Raises:
        DeviceError: this torch does not say.
    """
    try:
        return operator._schema
    except AttributeError:
        _refusal("OpOverload._schema", "to know what an operator writes")()


to_copy: Any = _look_up(
    "torch.ops.aten._to_copy.default",
    why="It is the operator of `Tensor.to`.",
    missing="Copies by `Tensor.to` are not seen.",
)

local_scalar_dense: Any = _look_up(
    "torch.ops.aten._local_scalar_dense.default",
    why="It is the operator of `Tensor.item`.",
    missing="Reads of one value are not seen by operators; torch's warnings and a capture report them.",
)

foreach_copy_: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Any] = _look_up(
    "torch._foreach_copy_",
    why="Losses and gradients are copied in one launch.",
    missing="They are copied one by one.",
    otherwise=lambda targets, sources: [
        target.copy_(source) for target, source in zip(targets, sources, strict=True)
    ],
)

onednn_linear: Any = _look_up(
    "torch.ops.mkldnn._linear_pointwise",
    why="oneDNN multiplies float32 matrices twice as fast on AMD's processors as MKL, which torch takes there.",
    missing="Translations take longer on such a processor.",
)

_note(
    "torch.Tensor._indices",
    "torch.Tensor._values",
    why="The public ones refuse a sparse tensor with duplicate indices, whose bits are compared.",
    missing="A copy without duplicates (coalesced) is compared.",
)


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices and the values of a sparse tensor as they are."""
    if hasattr(tensor, "_indices") and hasattr(tensor, "_values"):
        return tensor._indices(), tensor._values()
    summed = tensor.coalesce()
    return summed.indices(), summed.values()


_note(
    "torch.Tensor._version",
    why="It shows that a batch was changed in place.",
    missing="Changes in place are not noticed.",
)


def version_of(tensor: torch.Tensor) -> int:
    """Return a number that grows with each change in place."""
    return getattr(tensor, "_version", 0)


_storage_use_count: Any = _look_up(
    "torch._C._storage_Use_Count",
    why="It shows when nothing else holds the memory of a batch.",
    missing="Memory of batches is not used again but by torch's allocator, after an event.",
)

_note(
    "torch.UntypedStorage._cdata",
    why="The count of holders asks for the storage by it.",
    missing="As where the count is missing.",
    place="objects",
)


def identity_of(handle: torch.UntypedStorage | torch.Generator) -> int:
    """Return a number that all handles which Python has of one storage, or generator, share."""
    return int(handle._cdata)  # type: ignore[union-attr]


def num_holders(tensor: torch.Tensor) -> int:
    """Return a count that grows with everything that holds this tensor's storage.

    All Python handles of a storage are one object, which torch counts once; so its references
    count as well.
    """
    storage = tensor.untyped_storage()
    return int(_storage_use_count(storage._cdata)) + sys.getrefcount(storage)


def count_of_one_holder() -> int | None:
    """Return `num_holders` of a tensor that nobody else shares; None if torch cannot tell.

    There is no public way to ask.
    """
    try:
        alone = torch.empty(1, device="cpu")
        count = num_holders(alone)
        view = alone[:]
        return count if num_holders(alone) > count and view is not None else None
    except (AttributeError, TypeError):
        return None


def is_storage_held_once(storage: torch.UntypedStorage) -> bool:
    """Return whether nobody else holds a storage; False where torch cannot tell."""
    try:
        return bool(_storage_use_count(storage._cdata) == 1)
    except (AttributeError, TypeError):
        return False


_TensorGuards: Any = _look_up(
    "torch._C._dynamo.guards.TensorGuards",
    why="Torch's compiler compares tensors with those of before in a fraction of the time that Python takes.",
    missing="They are compared one by one.",
)


def tensor_guards(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """Return torch's comparison of others with these tensors; None where it has none, or not for them."""
    if _TensorGuards is None:
        return None
    try:
        sizes = [list(tensor.size()) for tensor in tensors]
        strides = [list(tensor.stride()) for tensor in tensors]
        guards = _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        check: Callable[..., bool] = guards.check
    except (AttributeError, RuntimeError, TypeError, SystemError):
        return None
    return check


dict_version: Callable[[dict[Any, Any]], int] | None = _look_up(
    "torch._C._dynamo.guards.dict_version",
    why="A dictionary that has its version was not written to: torch's compiler looks at that alone.",
    missing="All that is read from a dictionary is compared.",
)

_note(
    "torch.nn.modules.module._global_forward_hooks",
    "torch.nn.modules.module._global_forward_pre_hooks",
    "torch.nn.modules.module._global_backward_hooks",
    "torch.nn.modules.module._global_backward_pre_hooks",
    why="Torch calls these hooks for every module, and there is no public way to see them.",
    missing="A hook for all modules that is registered after a capture is not noticed.",
)


def hooks_of_all_modules() -> dict[str, dict[int, Any]]:
    """Return the tables of hooks that torch calls for every module, by name."""
    entries = vars(torch.nn.modules.module).items()
    return {
        name: table
        for name, table in entries
        if name.startswith("_global_") and isinstance(table, dict)
    }


# --- modes of torch ---

_MODES = "to know which modes are around"

num_function_modes: Callable[[], int] = _look_up(
    "torch._C._len_torch_function_stack",
    why="A mode that sees functions may change what a step does, so a graph holds for those around.",
    missing="Captures are refused.",
    otherwise=_refusal("_len_torch_function_stack", _MODES),
)
num_operator_modes: Callable[[], int] = _look_up(
    "torch._C._len_torch_dispatch_stack",
    why="So may one that sees operators.",
    missing="Captures are refused.",
    otherwise=_refusal("_len_torch_dispatch_stack", _MODES),
)
function_mode_at: Callable[[int], Any] = _look_up(
    "torch._C._get_function_stack_at",
    why="Modes are identified by their classes.",
    missing="Captures are refused where there is a mode.",
    otherwise=_refusal("_get_function_stack_at", _MODES),
)
operator_mode_at: Callable[[int], Any] = _look_up(
    "torch._C._get_dispatch_stack_at",
    why="Modes are identified by their classes.",
    missing="Captures are refused where there is a mode.",
    otherwise=_refusal("_get_dispatch_stack_at", _MODES),
)

_COMPARE = "to compare lists of tensors"

enter_function_mode: Callable[[Any], None] = _look_up(
    "torch._C._push_on_torch_function_stack",
    why="Lists of tensors are compared before each replay in a mode that forbids to compare their values.",
    missing="Captures are refused.",
    otherwise=_refusal("_push_on_torch_function_stack", _COMPARE),
)
leave_function_mode: Callable[[], object] = _look_up(
    "torch._C._pop_torch_function_stack",
    why="The same mode is left again.",
    missing="Captures are refused.",
    otherwise=_refusal("_pop_torch_function_stack", _COMPARE),
)

_LEAVE = "to leave a mode for a while"

push_function_mode: Callable[[Any], None] = _look_up(
    "torch.overrides._push_mode",
    why="What watches a user's step runs outside the modes that the user has entered, and enters them again.",
    missing="A step inside a mode is refused.",
    otherwise=_refusal("torch.overrides._push_mode", _LEAVE),
)
pop_function_mode: Callable[[], Any] = _look_up(
    "torch.overrides._pop_mode",
    why="As `_push_mode`.",
    missing="A step inside a mode is refused.",
    otherwise=_refusal("torch.overrides._pop_mode", _LEAVE),
)
push_operator_mode: Callable[[Any], None] = _look_up(
    "torch.utils._python_dispatch._push_mode",
    why="As that of functions.",
    missing="A step inside a mode is refused.",
    otherwise=_refusal("torch.utils._python_dispatch._push_mode", _LEAVE),
)
pop_operator_mode: Callable[[], Any] = _look_up(
    "torch.utils._python_dispatch._pop_mode",
    why="As that of functions.",
    missing="A step inside a mode is refused.",
    otherwise=_refusal("torch.utils._python_dispatch._pop_mode", _LEAVE),
)
DeviceContext: Any = _look_up(
    "torch.utils._device.DeviceContext",
    why="`torch.set_default_device` is a mode that sees functions, and changes no step that has run.",
    missing="A default device counts as any other mode.",
    otherwise=type("DeviceContext", (), {}),
)

# Both are classes of context managers, whose objects also work until they are deleted.
DisableTorchFunction: Any = _look_up(
    "torch._C.DisableTorchFunction",
    why="Questions about a tensor must not reach the functions that a script has put around its tensors.",
    missing="They reach them.",
    otherwise=nullcontext,
)
DisableTorchDispatch: Any = _look_up(
    "torch._C._DisableTorchDispatch",
    why="Nor may they reach the script's modes of operators.",
    missing="They reach them.",
    otherwise=nullcontext,
)


# --- autograd ---

current_graph_task: Callable[[], int] = _look_up(
    "torch._C._current_graph_task_id",
    why="A capture cannot be cut inside a backward pass; CUDA's own error would spoil it. -1 outside of one.",
    missing="CUDA's own error spoils the capture, and the step stays eager.",
    otherwise=lambda: -1,
)
is_multithreading_enabled: Callable[[], bool] = _look_up(
    "torch._C._is_multithreading_enabled",
    why="It says whether backward passes of a GPU run on a thread of their own, whose kernels may differ.",
    missing="They are assumed to, which is torch's default.",
    otherwise=lambda: True,
)
_saved_tensors_hooks: Any = _look_up(
    "torch._C._autograd._top_saved_tensors_default_hooks",
    why="`torch.autograd.graph.saved_tensors_hooks` decides what a step keeps for its backward pass.",
    missing="A change of these hooks between two calls is not noticed.",
)
saved_tensors_hooks: Callable[[], Any] | None = (
    None if _saved_tensors_hooks is None else partial(_saved_tensors_hooks, True)
)
current_node: Callable[[], Any] = _look_up(
    "torch._C._current_autograd_node",
    why="Which thread is one of autograd's is known by the node that it is at.",
    missing="Such a thread is not named.",
    otherwise=_nothing,
)
RUN_BACKWARD = _place(
    "torch.autograd._engine_run_backward",
    why="Every backward pass goes through it, by whatever name a script has imported `backward`.",
    missing="Steps are not counted by backward passes, and lines of their waits are not known.",
)

_note(
    "torch.autograd.graph.Node._sequence_nr",
    why="It puts the nodes of a backward pass in the order in which the step has made them.",
    missing="Lines of waits in backward passes are not known.",
)


def sequence_number(node: Any) -> int | None:
    """Return the place of a node of autograd in the order in which nodes were made; None if unknown."""
    ask: Callable[[], int] | None = getattr(node, "_sequence_nr", None)
    return None if ask is None else ask()


next_sequence_number: Callable[[], int] = _look_up(
    "torch._C._autograd._get_sequence_nr",
    why="Nodes that a call has made have this number or a higher one, and gradients are summed in the order of numbers.",
    missing="It is taken for settled.",
    otherwise=lambda: 0,
)

_note(
    "torch.autograd.forward_ad._current_level",
    "torch._C._are_functorch_transforms_active",
    why="Tensors of a transform may have no memory of their own.",
    missing="The transform itself refuses what a capture asks of its tensors.",
)


# What `is_transformed` asks; both run before each replay as well: no call of Python.
level_of_forward_mode: Callable[[], int] = partial(
    getattr, torch.autograd.forward_ad, "_current_level", -1
)
has_transforms: Callable[[], Any] = getattr(torch._C, "_are_functorch_transforms_active", _nothing)


def is_transformed() -> bool:
    """Return whether `torch.func` or a derivative in forward mode is around.

    Tensors may then have no memory of their own.
    """
    return level_of_forward_mode() >= 0 or bool(has_transforms())


_note(
    "torch.nn.utils.parametrize._cache_enabled",
    why="`torch.nn.utils.parametrize.cached` keeps weights from call to call, which a graph would read for ever.",
    missing="The block is not noticed.",
)


# How many blocks of `torch.nn.utils.parametrize.cached` are around. It runs before each replay: no call of Python.
keeps_parametrizations: Callable[[], int] = partial(
    getattr, torch.nn.utils.parametrize, "_cache_enabled", 0
)


# What `torch.nn.Module` keeps its tensors, and the modules within it, in.
MODULE_TENSORS = ("_buffers", "_parameters")
MODULE_PARTS = "_modules"

_note(
    "torch.nn.Module._buffers",
    "torch.nn.Module._modules",
    "torch.nn.Module._parameters",
    why="A tensor of a module is found without running code of the module's class.",
    missing="What an index is made of is not known.",
    place="objects",
)

global_post_hooks: dict[int, Any] = _look_up(
    "torch.optim.optimizer._global_optimizer_post_hooks",
    why="Hooks of gapless are left out while a capture calls an optimizer's step more often than the script does.",
    missing="They are called as often as the capture calls the step.",
    otherwise={},
)


# --- settings ---

_CHANGED = "A change of it between two calls is not noticed."

_SETTINGS = {
    "torch.backends.cudnn.enabled": "_get_cudnn_enabled",
    "torch.backends.cudnn.benchmark": "_get_cudnn_benchmark",
    "torch.backends.cudnn.deterministic": "_get_cudnn_deterministic",
    "flash attention": "_get_flash_sdp_enabled",
    "memory efficient attention": "_get_mem_efficient_sdp_enabled",
    "attention by plain operations": "_get_math_sdp_enabled",
    "cuDNN's attention": "_get_cudnn_sdp_enabled",
    "attention that reduces in half precision": "_get_math_sdp_allow_fp16_bf16_reduction",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        "_get_cublas_allow_fp16_reduced_precision_reduction"
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        "_get_cublas_allow_bf16_reduced_precision_reduction"
    ),
    "torch.backends.cuda.matmul.allow_fp16_accumulation": "_get_cublas_allow_fp16_accumulation",
}

# By the name that a user knows: what decides which kernels a step launches. Torch's public readers take
# microseconds, of which a replay has none to spare.
setting_readers: dict[str, Callable[[], Any]] = {
    shown: reader
    for shown, name in _SETTINGS.items()
    if (
        reader := _look_up(
            f"torch._C.{name}",
            why=f"A graph bakes in {shown}, which is read before each replay.",
            missing=_CHANGED,
        )
    )
    is not None
}

# Torch makes a new object of an enumeration for each answer.
preferred_library_readers: dict[str, Callable[[], Any]] = {
    f"torch.backends.cuda.preferred_{name}_library()": reader
    for name in ("blas", "linalg")
    if (
        reader := _look_up(
            f"torch._C._get_{name}_preferred_backend",
            why=f"A graph bakes in the library of {name}.",
            missing=_CHANGED,
        )
    )
    is not None
}

order_of_attention: Callable[[], Sequence[int]] | None = _look_up(
    "torch._C._get_sdp_priority_order",
    why="A graph bakes in which kernel of attention torch tries first.",
    missing=_CHANGED,
)
choose_attention: Callable[..., Any] | None = _look_up(
    "torch._fused_sdp_choice",
    why="Torch puts attention's kernels in order when it is first asked for one, which would seem a change later.",
    missing="The first use of attention after a capture counts as a change, and the step is captured again.",
)

# Torch has an old and a new setting of it. Where a script has used both, the public reader raises.
get_float32_precision: Any = _look_up(
    "torch._C._get_fp32_precision_getter",
    why="The precision of products is read from the new setting, which includes what the old one says.",
    missing="The old setting is read.",
)
set_float32_precision: Any = _look_up(
    "torch._C._set_fp32_precision_setter",
    why="The new setting is restored as it was.",
    missing="The old setting is restored.",
)


# --- the GPU ---


def _current_stream_key(index: int) -> tuple[int, int, int]:
    stream = torch.cuda.current_stream(index)
    return stream.stream_id, stream.device_index, stream.device_type


current_stream_key: Callable[[int], tuple[int, int, int]] = _look_up(
    "torch._C._cuda_getCurrentStream",
    why="The public function makes an object each time, which takes 4 us.",
    missing="The public function is used.",
    otherwise=_current_stream_key,
    place="gpu",
)
empty_host_cache: Callable[[], None] = _look_up(
    "torch._C._host_emptyCache",
    why="Idle page-locked memory may carry events, of which torch asks at an allocation: an error in a capture.",
    missing="It is left to `torch.accelerator.empty_host_cache`; without that, the capture fails.",
    otherwise=getattr(torch.accelerator, "empty_host_cache", _nothing),
    place="gpu",
)
sleep_on_device: Callable[[int], None] = _look_up(
    "torch.cuda._sleep",
    why="Checks keep a stream busy for a while without any memory.",
    missing="Checks that delay a stream are refused.",
    otherwise=_refusal("torch.cuda._sleep", "to delay a stream"),
)

_RECOVER = "to go on after a capture that has failed"

end_allocation_to_pool: Callable[[int, Any], None] = _look_up(
    "torch._C._cuda_endAllocateToPool",
    why="A capture that could not end leaves torch allocating from its pool.",
    missing="A failed capture ends the program with one line.",
    otherwise=_refusal("_cuda_endAllocateToPool", _RECOVER),
)
release_pool: Callable[[int, Any], None] = _look_up(
    "torch._C._cuda_releasePool",
    why="As `_cuda_endAllocateToPool`.",
    missing="A failed capture ends the program with one line.",
    otherwise=_refusal("_cuda_releasePool", _RECOVER),
)

_note(
    "torch.cuda._lazy_call",
    why="What a script does with a GPU is watched from its first use of one on.",
    missing="The script is assumed to use the GPU at once.",
)


def call_when_cuda_starts(function: Callable[[], None]) -> None:
    """Call a function once CUDA is started; at once if it has been, or if torch does not say."""
    tell: Callable[[Callable[[], None]], None] | None = getattr(torch.cuda, "_lazy_call", None)
    if tell is None:
        function()
    else:
        tell(function)


# By the name that a user knows: what takes plans away from graphs that were captured with them.
changes_of_fft_plans: dict[str, Any] = {
    f"torch.backends.cuda.cufft_plan_cache.{shown}": _look_up(
        f"torch.{name}",
        why="The public method calls it, and is found by no name in the code: a class looks it up.",
        missing="A step that calls the public method is not refused.",
    )
    for shown, name in (
        ("clear", "_cufft_clear_plan_cache"),
        ("max_size", "_cufft_set_plan_cache_max_size"),
    )
}

# --- waits for the GPU ---


def _waiting(name: str) -> Place:
    return _place(
        f"torch._C.{name}",
        why="The public function calls it, by whatever name a script has bound that.",
        missing="Calls of the public function are not noted with their line.",
        place="gpu",
    )


CUDA_SYNCHRONIZE = _waiting("_cuda_synchronize")
ACCELERATOR_SYNCHRONIZE = _waiting("_accelerator_synchronizeDevice")
CUDA_EMPTY_CACHE = _waiting("_cuda_emptyCache")
ACCELERATOR_EMPTY_CACHE = _waiting("_accelerator_emptyCache")

SET_SYNC_MODE = _place(
    "torch._C._cuda_set_sync_debug_mode",
    why="Torch warns of waits while the script believes that the mode is what it has set.",
    missing="Waits that only torch's warnings report are not seen.",
    place="gpu",
)
GET_SYNC_MODE = _place(
    "torch._C._cuda_get_sync_debug_mode",
    why="As `_cuda_set_sync_debug_mode`.",
    missing="Waits that only torch's warnings report are not seen.",
    place="gpu",
)

_note(
    "torch.cuda._gpu_trace.StreamSynchronizationCallbacks",
    "torch.cuda._gpu_trace.EventSynchronizationCallbacks",
    "torch.cuda._gpu_trace.DeviceSynchronizationCallbacks",
    "torch._utils.CallbackRegistry",
    "torch._C._activate_gpu_trace",
    why="Torch calls back before each synchronisation, whoever asks for it.",
    missing="`gapless.count_waits` is refused.",
)


class GpuTrace(NamedTuple):
    """What torch calls before each synchronisation.

    Attributes:
        registries: of callbacks, by what is synchronised.
        everyone: all registries, those of other events too.
        flag: whether torch looks for callbacks; None if it looks for them always.
    """

    registries: dict[str, Any]
    everyone: list[Any]
    flag: ctypes.c_bool | None

    def has_callbacks(self) -> bool:
        """Whether anybody is called back, for other reasons too."""
        return any(one.callback_list for one in self.everyone)


def gpu_trace() -> GpuTrace:
    """Let torch call back before synchronisations; return where callbacks are registered.

    Raises:
        DeviceError: this torch does not report synchronisations.
    """
    try:
        from torch._utils import CallbackRegistry
        from torch.cuda import _gpu_trace

        registries: dict[str, Any] = {
            "stream synchronize": _gpu_trace.StreamSynchronizationCallbacks,
            "event synchronize": _gpu_trace.EventSynchronizationCallbacks,
            "device synchronize": _gpu_trace.DeviceSynchronizationCallbacks,
        }
        everyone = [one for one in vars(_gpu_trace).values() if isinstance(one, CallbackRegistry)]
        torch._C._activate_gpu_trace()
    except (ImportError, AttributeError) as error:
        raise DeviceError(
            f"torch {torch.__version__} does not report synchronisations ({error}), so host "
            "waits cannot be counted; use torch 2.11 or later"
        ) from error
    return GpuTrace(registries, everyone, _gpu_trace_flag())


# Torch sets it at the first activation, and never clears it.
GPU_TRACE_FLAG = "_ZN3c104impl8GPUTrace9haveStateE"

_note(
    f"libc10.so:{GPU_TRACE_FLAG}",
    why="Torch goes on to look for callbacks at each event when nobody counts waits any more, unless it is cleared.",
    missing="It goes on.",
    place="objects",
)


@cache
def _gpu_trace_flag() -> ctypes.c_bool | None:
    """Return torch's flag of whether it calls back, None if this torch has none of that name."""
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        return ctypes.c_bool.in_dll(ctypes.CDLL(str(library)), GPU_TRACE_FLAG)
    except (OSError, ValueError):
        return None


# --- torch's compiler ---

_note(
    "torch._dynamo.callback.callback_handler",
    why="Torch calls back around each compilation, whose seconds are no part of a step.",
    missing="They count as time of the step.",
)


class CompileCallbacks:
    """Calls two functions around each compilation of torch in a `with` body, on any thread.

    Entering it imports the compiler, which takes seconds.

    Args:
        begin: called before.
        end: called after.
    """

    def __init__(self, begin: Callable[..., None], end: Callable[..., None]) -> None:
        self._begin, self._end = begin, end

    def __enter__(self) -> None:
        self._handler = _find("torch._dynamo.callback.callback_handler")
        if self._handler is not _NOWHERE:
            self._handler.register_start_callback(self._begin)
            self._handler.register_end_callback(self._end)

    def __exit__(self, *_: object) -> None:
        if self._handler is not _NOWHERE:
            self._handler.remove_start_callback(self._begin)
            self._handler.remove_end_callback(self._end)


_note(
    "torch._dynamo.config.recompile_limit",
    why="Layers share compiled code, for all their shapes, which are more than torch allows for.",
    missing="What is more than torch allows for runs eagerly.",
)


def allow_recompiles(most: int) -> None:
    """Let torch compile one function for this many signatures."""
    config = _find("torch._dynamo.config")
    if hasattr(config, "recompile_limit"):
        config.recompile_limit = most


_note(
    "torch._inductor.compile_fx.compile_fx",
    "torch._dynamo.exc.RestartAnalysis",
    why="What torch's own compiler cannot compile runs eagerly, and one line says why.",
    missing="Layers run eagerly, and one line says why.",
)


def compile_by_inductor(graph: Any, inputs: Sequence[Any]) -> tuple[Any, str]:
    """Compile a graph as `torch.compile` does by default; return the code, and why there is none, "" if there is."""
    compile_it, begin_anew = map(
        _find, ("torch._inductor.compile_fx.compile_fx", "torch._dynamo.exc.RestartAnalysis")
    )
    if compile_it is _NOWHERE or begin_anew is _NOWHERE:
        return None, "this torch has no torch._inductor.compile_fx.compile_fx"
    try:
        return compile_it(graph, inputs), ""
    except begin_anew:
        raise
    except Exception as error:
        return None, first_line(error)


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, or its class."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_note(
    "torch._dynamo.exc.TorchDynamoException",
    why="What torch's compiler fails at runs eagerly, and one line says why.",
    missing="Its error is the loop's.",
)


def compiled_or_eager(
    function: Callable[..., Any], *, failed: Callable[[str], None], **options: Any
) -> Callable[..., Any]:
    """Compile a function as `torch.compile` does; from the first error of the compiler on it runs eagerly.

    Args:
        function: that is to be compiled.
        failed: is told the first line of that error.
        **options: of `torch.compile`.
    """
    now = torch.compile(function, **options)

    @wraps(now)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal now
        try:
            return now(*args, **kwargs)
        except Exception as error:
            of_compiler = _find("torch._dynamo.exc.TorchDynamoException")
            if now is function or of_compiler is _NOWHERE or not isinstance(error, of_compiler):
                raise
            reason = first_line(error)
        # An error of the function's own is what the caller gets.
        out = function(*args, **kwargs)
        now = function
        failed(reason)
        return out

    return call


_note(
    "torch.nn.Module._compiled_call_impl",
    "torch.nn.Module._call_impl",
    why="`nn.Module.compile()` compiles none of torch's own classes, such as `nn.TransformerEncoderLayer` (2.13).",
    missing="Layers are not compiled.",
)


def is_compiled_in_place(module: torch.nn.Module) -> bool:
    """Return whether somebody has compiled a module's calls."""
    return getattr(module, "_compiled_call_impl", None) is not None


def compile_in_place(module: torch.nn.Module, **options: Any) -> None:
    """Compile a module's calls, as `module.compile()` does, of torch's own classes too: see `compiled_or_eager`."""
    if not hasattr(module, "_call_impl"):
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    module._compiled_call_impl = compiled_or_eager(call, **options)


_note(
    "torch.compile._torchdynamo_orig_callable",
    why="What a compiled method of a module reads of it is guarded, though torch runs other code for it.",
    missing="It is compared by audits alone.",
)


def module_of_compiled(function: FunctionType) -> torch.nn.Module | None:
    """Return the module whose method a function that torch has compiled stands for; None if it is no such."""
    method = vars(function).get("_torchdynamo_orig_callable")
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def forget_compiled_call(module: torch.nn.Module) -> None:
    """Undo `module.compile()`."""
    if is_compiled_in_place(module):
        module._compiled_call_impl = None


_note(
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner.run",
    why="Kernels that torch's compiler makes add atomically, and no operator's name tells.",
    missing="A step of which compiled kernels do not repeat their bits is refused.",
    place="gpu",
)


def kernel_launcher() -> Any:
    """Return the class whose `run` launches a kernel that torch has compiled for a GPU; None if there is none so far."""
    if "torch._inductor.runtime.triton_heuristics" not in sys.modules:
        return None
    found = _find("torch._inductor.runtime.triton_heuristics.CachingAutotuner")
    return found if hasattr(found, "run") else None


def adds_atomically(kernel: Any) -> bool:
    """Return whether a kernel that is launched there adds atomically."""
    told = getattr(kernel, "inductor_meta", None) or {}
    source = getattr(getattr(kernel, "fn", None), "src", "")
    return bool(told.get("atomic_add_found")) or "atomic_add" in str(source)


_note(
    "torch._inductor.async_compile.maybe_warm_pool",
    why="The processes that compile kernels are there when the first one is needed, which would be compiled in this one.",
    missing="Torch starts them when it compiles first.",
)


def start_compiling_processes() -> None:
    """Start the processes that compile kernels for a GPU, unless they run."""
    start = _find("torch._inductor.async_compile.maybe_warm_pool")
    if start is not _NOWHERE:
        start()


_note(
    "torch._dynamo.maybe_mark_dynamic",
    why="The first shape of a layer is compiled for all, rather than for itself and then once more.",
    missing="Torch compiles for the first shape alone, and anew for all when the second one comes.",
)


def let_vary(tensor: torch.Tensor, dim: int) -> None:
    """Let what is compiled next take this tensor with other sizes of a dimension; a view's memory as well."""
    mark = _find("torch._dynamo.maybe_mark_dynamic")
    if mark is not _NOWHERE:
        mark(tensor, dim % tensor.dim())
        if tensor._base is not None:
            mark(tensor._base, dim % tensor._base.dim())


_note(
    "torch._dynamo.utils.counters",
    why="They say how much was compiled so far; no compiler is imported to ask.",
    missing="Compilations are not counted.",
)


def compiler_counters() -> Any:
    """Return torch.compile's counters, by their group and their name; all are 0 where it was not used."""
    found = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return defaultdict(Counter) if found is None else found


_note(
    "torch._compile._disable_dynamo",
    why="A mode of ours calls operators without loading torch's compiler, which takes seconds.",
    missing="The first operator loads it.",
)


def leave_compiler_out(mode: type) -> None:
    """Let operators in a mode load no compiler, as long as nobody else has loaded it."""
    # Torch keeps there by what it calls a handler in whose frames nothing is compiled.
    handler = getattr(vars(mode).get("__torch_dispatch__"), "__wrapped__", None)
    if handler is None:
        return
    if "torch._dynamo" not in sys.modules:
        handler.__dynamo_disable = handler
    elif vars(handler).get("__dynamo_disable") is handler:
        del handler.__dynamo_disable


_note(
    "torch._dynamo.optimize",
    "torch._dynamo.reset",
    "torch._dynamo.symbolic_convert.InstructionTranslator",
    why="TorchDynamo says what it reads and writes of Python in a step; a second opinion beside the watched runs.",
    missing="There is no second opinion, and one line says so.",
)


class DynamoFrame(NamedTuple):
    """A part of a function that TorchDynamo has traced, up to where its graph ends.

    Attributes:
        code: of the function.
        scope: the locals "L" and the globals "G", in which the names of sources are expressions.
        closure: the cells of the function, by name.
        read: sources that its guards compare.
        written: sources that its side effects change.
    """

    code: CodeType
    scope: dict[str, dict[str, Any]]
    closure: dict[str, CellType]
    read: list[Any]
    written: list[Any]


def trace_with_dynamo(
    run: Callable[[Callable[[Any], Any]], object], note: Callable[[DynamoFrame], None]
) -> list[str]:
    """Run functions once under TorchDynamo, whose graphs run as they are, and note each frame.

    Args:
        run: called with what puts a function under TorchDynamo; what it does is done.
        note: called with each frame that has a graph, before this graph runs.

    Returns:
        Why graphs end early, the first line of each reason.

    Raises:
        DeviceError: this torch does not say what a frame reads.
        Exception: whatever `run` or TorchDynamo raises.
    """
    optimize, reset = _find("torch._dynamo.optimize"), _find("torch._dynamo.reset")
    translator = _find("torch._dynamo.symbolic_convert.InstructionTranslator")
    if _NOWHERE in (optimize, reset, translator):
        _refusal("torch._dynamo.optimize", "a second opinion")()

    def keep(graph: Any, _: Any) -> Any:
        running = translator.current_tx()
        code, cells = running.f_code, running.closure or ()
        note(
            DynamoFrame(
                code=code,
                scope={"L": dict(running.f_locals), "G": running.f_globals},
                closure=dict(zip(code.co_freevars, cells, strict=False)),
                read=[guard.originating_source for guard in running.output.guards],
                written=list(getattr(running.output.side_effects, "mutated_sources", ())),
            )
        )
        return graph.forward

    reset()
    counters = compiler_counters()
    before = Counter(counters["graph_break"])
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        # Numbers are constants, which are compared, and no inputs of a graph.
        with _find("torch._dynamo.config").patch(specialize_float=True, specialize_int=True):
            run(optimize(keep))
    finally:
        logging.disable(level)
        reset()
    reasons = Counter(counters["graph_break"]) - before
    return sorted({reason.strip().splitlines()[0] for reason in reasons})


_note(
    "torch._C._dynamo.eval_frame.set_code_exec_strategy",
    "torch._C._dynamo.eval_frame._FrameAction",
    "torch._C._dynamo.eval_frame._FrameExecStrategy",
    why="The compiler skips a replaced method, which it would else trace at each graph break.",
    missing="It looks at it.",
)


def keep_from_compiler(function: Callable[..., Any]) -> None:
    """Let torch's compiler pass over a function; where a graph ends, it looks at all that are called."""
    frames = _find("torch._C._dynamo.eval_frame")
    parts = ("set_code_exec_strategy", "_FrameAction", "_FrameExecStrategy")
    if all(hasattr(frames, part) for part in parts):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


def _is_traced() -> object:
    is_tracing: Callable[[], bool] = _find("torch.jit.is_tracing")
    return is_tracing() or None


is_traced: Callable[[], object] = _look_up(
    "torch._C._get_tracing_state",
    why="What `torch.jit.trace` records has the names and lines of the functions that it goes through.",
    missing="The public question is asked, which takes longer.",
    otherwise=_is_traced,
)


parse_to: Callable[..., tuple[Any, ...]] = _look_up(
    "torch._C._nn._parse_to",
    why="The arguments of `Tensor.to` are read as torch reads them.",
    missing="Calls of `Tensor.to` are not noted with their line.",
    otherwise=_refusal("_parse_to", "to see what `Tensor.to` does"),
)


# --- torch's profiler ---

# A context manager with the text of the mark.
ProfilerMark: Any = _look_up(
    "torch._C._profiler._RecordFunctionFast",
    why="It marks a call in the trace in a fraction of the time of `record_function`, and not on the device's lane.",
    missing="`record_function` is used.",
    otherwise=torch.profiler.record_function,
)
ProfilerSettings: Any = _look_up(
    "torch._C._profiler._ExperimentalConfig",
    why="It is the only option by which torch records waits for events, and all threads.",
    missing="They are not recorded.",
    otherwise=_nothing,
)
PREPARE_TRACE = _place(
    "torch.autograd.profiler.profile._prepare_trace",
    why="Torch runs one profiler at a time; ours stops before one of the script starts.",
    missing="The profiler that starts first loses its events.",
)

_note(
    "torch._C._autograd._profiler_enabled",
    "torch.autograd.profiler._is_profiler_enabled",
    why="Where a profiler runs already, no other is started.",
    missing="The one that runs loses its events.",
)
_note(
    "torch.profiler._cupti_monitor.get_monitor",
    why="So does this one of torch's, which holds the driver's profiling library too.",
    missing="Torch's profiler says so itself.",
    releases=">=2.13,<2.14",
)
_CUPTI_MONITOR = "torch.profiler._cupti.monitor"
_note(
    f"{_CUPTI_MONITOR}.CuptiMonitor._instance",
    f"{_CUPTI_MONITOR}.CuptiMonitor._subscriber",
    why="So does this one, which holds that library while it has a subscriber.",
    missing="Torch's profiler says so itself.",
    place="objects",
    releases=">=2.14",
)


def is_profiler_enabled() -> bool:
    """Return whether a profiler of torch runs in this process."""
    of_core = getattr(torch._C._autograd, "_profiler_enabled", _nothing)
    return bool(of_core() or getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def is_cupti_monitored() -> bool:
    """Return whether torch's CUPTI monitor runs in this process. It is not imported to ask."""
    monitor: Any = sys.modules.get("torch.profiler._cupti_monitor")
    ask: Callable[[], Any] = getattr(monitor, "get_monitor", _nothing)
    if ask() is not None:
        return True
    of_process = getattr(sys.modules.get(_CUPTI_MONITOR), "CuptiMonitor", None)
    its_monitor = getattr(of_process, "_instance", None)
    return getattr(its_monitor, "_subscriber", None) is not None


# --- loaders ---

_LOADER = "torch.utils.data.dataloader"

LoaderIterator: Any = _look_up(
    f"{_LOADER}._BaseDataLoaderIter",
    why="Every batch of a loader of torch comes from `__next__` of such an iterator.",
    missing="Loaders are not watched.",
)
WorkersIterator: Any = _look_up(
    f"{_LOADER}._MultiProcessingDataLoaderIter",
    why="It is made by hand, so that workers are ended where it fails half-way.",
    missing="`iter` of the loader makes it; workers of one that fails half-way end with the process.",
)
SingleIterator: Any = _look_up(
    f"{_LOADER}._SingleProcessDataLoaderIter",
    why="Recorded batches replace those that it would make.",
    missing="No trial with recorded batches is made.",
)

# What the two kinds of iterators get a batch from, with its index or without.
NEXT_DATA = "_next_data"

_note(
    f"{_LOADER}._SingleProcessDataLoaderIter._next_data",
    f"{_LOADER}._MultiProcessingDataLoaderIter._next_data",
    f"{_LOADER}._BaseDataLoaderIter._next_index",
    why="Recorded batches replace those that would be made, one for one.",
    missing="No trial with recorded batches is made.",
)
_note(
    f"{_LOADER}._BaseDataLoaderIter._dataset",
    f"{_LOADER}._BaseDataLoaderIter._index_sampler",
    f"{_LOADER}._BaseDataLoaderIter._num_workers",
    f"{_LOADER}._BaseDataLoaderIter._prefetch_factor",
    f"{_LOADER}._BaseDataLoaderIter._pin_memory",
    why="They identify a loader, and a report describes it by them.",
    missing="The iterator identifies its loader; a report says that it has no workers.",
    place="objects",
)
_note(
    f"{_LOADER}._BaseDataLoaderIter._dataset_kind",
    f"{_LOADER}._DatasetKind.Iterable",
    why="A data set without indices gives batches until it ends.",
    missing="A data set without a length counts as one without indices.",
    place="objects",
)


def has_next_data(kind: Any) -> bool:
    """Return whether iterators of a class get their batches where recorded ones can take their place."""
    return hasattr(kind, NEXT_DATA) and hasattr(kind, "_next_index")


def next_index_of(iterator: Any) -> Callable[[], Any]:
    """Return what takes the next index away; it raises StopIteration where there is none."""
    take: Callable[[], Any] = iterator._next_index
    return take


def is_over_stream(iterator: Any) -> bool:
    """Return whether an iterator's data set has no indices."""
    stream = _find(f"{_LOADER}._DatasetKind.Iterable")
    kind = getattr(iterator, "_dataset_kind", _NOWHERE)
    if stream is _NOWHERE or kind is _NOWHERE:
        return not hasattr(dataset_of(iterator), "__len__")
    return bool(kind == stream)


def dataset_of(iterator: Any) -> Any:
    """Return the data set of a loader's iterator; the iterator itself where that is not known."""
    return getattr(iterator, "_dataset", iterator)


def sampler_of(iterator: Any) -> Any:
    """Return what gives a loader's iterator its indices; None where that is not known."""
    return getattr(iterator, "_index_sampler", None)


def num_workers_of(iterator: Any) -> int:
    """Return how many processes make the batches of an iterator."""
    return int(getattr(iterator, "_num_workers", 0) or 0)


def num_batches_ahead(iterator: Any) -> int:
    """Return how many batches the workers of an iterator make before they are asked for."""
    return num_workers_of(iterator) * (getattr(iterator, "_prefetch_factor", 0) or 0)


def is_pinning(iterator: Any) -> bool:
    """Return whether the batches of an iterator are page-locked."""
    return bool(getattr(iterator, "_pin_memory", False))


_note(
    f"{_LOADER}.DataLoader._iterator",
    why="A loader keeps the iterator of persistent workers there; there is no public way to end them.",
    missing="They end with the process.",
    place="objects",
)


def kept_iterator(loader: Any) -> Any:
    """Return the iterator that a loader keeps from epoch to epoch; None if there is none."""
    return getattr(loader, "_iterator", None)


def keep_iterator(loader: Any, iterator: Any) -> None:
    """Let a loader keep an iterator from epoch to epoch; None for none."""
    loader._iterator = iterator


_note(
    f"{_LOADER}._MultiProcessingDataLoaderIter._shutdown_workers",
    why="Torch ends workers when their iterator is freed, which an error that is held puts off.",
    missing="They end when the iterator is freed.",
)
_note(
    f"{_LOADER}._MultiProcessingDataLoaderIter._persistent_workers",
    f"{_LOADER}._MultiProcessingDataLoaderIter._workers",
    f"{_LOADER}._MultiProcessingDataLoaderIter._worker_pids_set",
    f"{_LOADER}._MultiProcessingDataLoaderIter._shutdown",
    f"{_LOADER}._MultiProcessingDataLoaderIter._workers_done_event",
    f"{_LOADER}._MultiProcessingDataLoaderIter._index_queues",
    f"{_LOADER}._MultiProcessingDataLoaderIter._worker_result_queue",
    why="Workers are asked to end, and killed if they do not: torch waits five seconds for each, or for ever.",
    missing="They are killed where they are known, or left to torch.",
    place="objects",
)
_note(
    "torch._C._remove_worker_pids",
    why="A worker's death raises where a batch is read, and not in whatever the main thread does just then.",
    missing="It raises there.",
)


def shut_down_of(iterator: Any) -> Callable[[], None] | None:
    """Return what ends the workers of an iterator as torch does; None if it has none."""
    found: Callable[[], None] | None = getattr(iterator, "_shutdown_workers", None)
    return found


def keeps_workers(iterator: Any) -> bool:
    """Return whether the workers of an iterator live from epoch to epoch."""
    return bool(getattr(iterator, "_persistent_workers", False))


def workers_of(iterator: Any) -> list[BaseProcess]:
    """Return the worker processes of an iterator that were started."""
    return list(getattr(iterator, "_workers", ()))


def forget_deaths_of_workers(iterator: Any) -> None:
    """Let torch raise nothing when the signal of a worker's death comes."""
    if getattr(iterator, "_worker_pids_set", False):
        getattr(torch._C, "_remove_worker_pids", _nothing)(id(iterator))
        iterator._worker_pids_set = False


def note_shut_down(iterator: Any) -> None:
    """Keep an iterator that is freed from ending workers that are ended elsewhere."""
    iterator._shutdown = True


def tell_workers_to_end(iterator: Any) -> None:
    """Tell the worker processes of an iterator to end when they have made what they are at."""
    done = getattr(iterator, "_workers_done_event", None)
    if done is not None:
        done.set()
    for queue in getattr(iterator, "_index_queues", ()):
        queue.put(None)


def close_queues(iterator: Any) -> None:
    """Close the queues between an iterator and its workers, who are gone."""
    queues = list(getattr(iterator, "_index_queues", ()))
    results = getattr(iterator, "_worker_result_queue", None)
    for queue in [*queues, *([] if results is None else [results])]:
        queue.cancel_join_thread()
        queue.close()


# In the place of a batch it raises, where the batch is read, what the worker has raised.
ExceptionWrapper: Any = _look_up(
    "torch._utils.ExceptionWrapper",
    why="An error of a worker that cannot hand a batch over is sent as torch sends all others.",
    missing="The worker ends, and the loader says so.",
)


# --- scalers of losses ---

_note(
    "torch.amp.GradScaler._scale",
    "torch.amp.GradScaler._init_scale",
    "torch.amp.GradScaler._growth_tracker",
    "torch.amp.GradScaler._init_growth_tracker",
    why="`state_dict` waits for the device to read two numbers.",
    missing="`state_dict` is used.",
    place="objects",
)

# What `state_dict` calls one of the two numbers.
GROWTH_TRACKER = "_growth_tracker"


def scaler_state(scaler: torch.amp.GradScaler) -> dict[str, Any]:
    """Return what `state_dict` does, with the numbers that are on the device still there.

    Sync: Does not block the host, where torch has the names that this needs.
    """
    if not scaler.is_enabled():
        return {}
    names = ("_scale", "_init_scale", "_growth_tracker", "_init_growth_tracker")
    if not all(hasattr(scaler, name) for name in names):
        return scaler.state_dict()
    tracker = scaler._growth_tracker
    return {
        "scale": scaler._init_scale if scaler._scale is None else scaler._scale,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        GROWTH_TRACKER: scaler._init_growth_tracker if tracker is None else tracker,
    }


# --- process groups ---

_C10D = "torch.distributed.distributed_c10d"

# Of torch, for groups on the host.
_USUAL_LIMIT = timedelta(minutes=30)

_note(
    f"{_C10D}._set_pg_timeout",
    why="A group connects within a limit, and has none afterwards.",
    missing="It keeps the limit within which it connects.",
)
_note(
    "torch.distributed.ProcessGroupNCCL.Options._timeout",
    why="Torch warns where the limit of NCCL's options is not that of the group.",
    missing="It warns; and a wait for ranks of a user's group ends after torch's usual limit.",
    place="gpu",
)
_note(
    "torch.distributed.ProcessGroup._get_backend",
    "torch.distributed.ProcessGroup._device_types",
    why="Which library a group uses on a device is asked of the backend of that device.",
    missing="Ranks of a user's group are refused.",
)
_note(
    f"{_C10D}._world.pg_map",
    why="Collectives of all groups are counted, to see which a step makes.",
    missing="Collectives are not counted.",
)
_note(
    "torch._C._distributed_c10d.Backend._get_sequence_number_for_group",
    why="A backend counts its collectives by itself.",
    missing="Collectives are not counted.",
)


def set_timeout(group: Any, limit: timedelta) -> None:
    """Give a process group another limit for its collectives."""
    # Public since torch 2.14, which warns of the private name on every rank.
    change = _find("torch.distributed.set_timeout")
    if change is _NOWHERE:
        change = _find(f"{_C10D}._set_pg_timeout")
    if change is not _NOWHERE:
        change(limit, group)


def set_timeout_of_options(options: Any, limit: timedelta) -> None:
    """Give the options of a process group to be a limit for its collectives."""
    options._timeout = limit


def timeout_of(backend: Any) -> timedelta:
    """Return the limit of a backend's collectives."""
    found: timedelta | None = getattr(backend.options, "_timeout", None)
    return _USUAL_LIMIT if found is None else found


def backend_on(group: Any, device: torch.device) -> Any:
    """Return the backend of a process group on a device.

    Raises:
        RuntimeError: it has none.
        DeviceError: this torch does not say.
    """
    ask = getattr(group, "_get_backend", None)
    if ask is None:
        _refusal("ProcessGroup._get_backend", "to use a script's own process group")()
    return ask(device)


def devices_of(group: Any) -> list[torch.device]:
    """Return the device types on which a process group works; none where torch does not say."""
    return list(getattr(group, "_device_types", ()))


def all_groups() -> list[Any]:
    """Return the process groups of this process."""
    world = _find(f"{_C10D}._world")
    return list(getattr(world, "pg_map", ()))


def num_collectives(backend: Any) -> int:
    """Return how many collectives a backend has begun; 0 where it does not say.

    Raises:
        RuntimeError: it cannot count.
    """
    return int(getattr(backend, "_get_sequence_number_for_group", lambda: 0)())


# --- the simulated device ---

_KIT = "The simulated device is refused where it meets it."


def _missing_operator(name: str) -> Any:
    return _refusal(name, "the simulated device")


pack_padded_sequence: Any = _look_up(
    "torch.ops.aten._pack_padded_sequence.default",
    why="A GPU takes the lengths of packed sentences on the host, and so does the simulated one.",
    missing=_KIT,
    otherwise=_missing_operator("_pack_padded_sequence"),
)
pack_padded_sequence_backward: Any = _look_up(
    "torch.ops.aten._pack_padded_sequence_backward.default",
    why="As `_pack_padded_sequence`.",
    missing=_KIT,
    otherwise=_missing_operator("_pack_padded_sequence_backward"),
)
pad_packed_sequence: Any = _look_up(
    "torch._C._VariableFunctions._pad_packed_sequence",
    why="As `_pack_padded_sequence`, in the other direction.",
    missing=_KIT,
    otherwise=_missing_operator("_pad_packed_sequence"),
)
pin_memory: Any = _look_up(
    "torch.ops.aten._pin_memory.default",
    why="It is the operator of `Tensor.pin_memory`, which the simulated device does by itself.",
    missing=_KIT,
    otherwise=_missing_operator("_pin_memory"),
)
neg_view: Callable[[torch.Tensor], torch.Tensor] = _look_up(
    "torch._neg_view",
    why="A tensor may be the negative of what its memory holds, which its alias must be too.",
    missing=_KIT,
    otherwise=_missing_operator("_neg_view"),
)
DispatchKey: Any = _look_up(
    "torch._C.DispatchKey",
    why="An operator that is made of others is known by one of its keys.",
    missing="No operator is assumed to be.",
)
REDUCE_INTERNAL = _place(
    "torch.Tensor._reduce_ex_internal",
    why="`torch.save` reads memory directly after it, when the simulated device must be done.",
    missing=_KIT,
)
GROUP_TENSORS = _place(
    "torch._C._group_tensors_by_device_and_dtype",
    why="Optimizers group tensors by it, and it does not know the simulated device.",
    missing="Optimizers run one tensor at a time there.",
)

_note(
    "torch.Tensor._is_zerotensor",
    why="A tensor of zeros may have no memory.",
    missing="Every tensor is assumed to have memory.",
)


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is zeros without memory."""
    return bool(getattr(tensor, "_is_zerotensor", _nothing)())
