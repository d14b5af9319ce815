"""What the cases of this folder are written in: a place to run in, and how results are compared.

A case is one function: a loop as users write it. It gets a `Place`, which stands for the machine (CPU,
simulated device or GPU) and is either the reference or the product. The reference moves each batch
with `.to(device, non_blocking=True)` and waits for it, and reads each loss with `.item()`: a plain loop
without any hazard. The product is `gapless.prefetch` and `gapless.DeferredLoss`. What the loop returns
must be equal bit for bit.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import hashlib
import inspect
import math
import random
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

import gapless
from gapless import testing


if TYPE_CHECKING:
    from collections.abc import Callable


CPU, SIMULATED, GPU = "cpu", "simulated", "gpu"
EVERYWHERE = (CPU, SIMULATED, GPU)
REAL = (CPU, GPU)
DEVICES = (SIMULATED, GPU)

SAME = "the same as the plain loop, bit for bit"
HOLDS = "what the loop asserts holds"


@dataclass(frozen=True)
class Case:
    """One loop of a user, and what is expected of it.

    Attributes:
        name: of the loop's function.
        theme: name of the file.
        sentence: what users do.
        devices: where the case makes sense.
        verdict: `SAME` or `HOLDS`.
        holds_plainly: whether the reference passes the loop's own assertions too.
        loop: takes a `Place`; returns what is compared.
    """

    name: str
    theme: str
    sentence: str
    devices: tuple[str, ...]
    verdict: str
    holds_plainly: bool
    loop: Callable[[Place], Any]

    def __str__(self):
        return f"{self.theme}-{self.name}"


CASES: list[Case] = []


def case(sentence, *, devices=EVERYWHERE, verdict=SAME, holds_plainly=True):
    """Register the function as a case."""

    def register(loop):
        theme = loop.__module__.rsplit(".", 1)[-1]
        name = loop.__name__
        assert name not in {known.name for known in CASES if known.theme == theme}, name
        CASES.append(Case(name, theme, sentence, devices, verdict, holds_plainly, loop))
        return loop

    return register


def form_case(name, theme, sentence, make, *, devices=EVERYWHERE, num_batches=5):
    """Register a case that keeps every batch that `make(place, number)` returns to the end."""

    def loop(place):
        kept = []
        for batch in place.prefetch(make(place, number) for number in range(num_batches)):
            place.busy()
            kept.append(batch)
        return kept

    CASES.append(Case(name, theme, sentence, devices, SAME, True, loop))


# ---------------------------------------------------------------------------------- places


class Place:
    """Where a loop runs: a machine, as reference or with the product.

    Attributes:
        kind: "cpu", "simulated" or "gpu".
        is_reference: whether batches and losses take the plain way.
        torch_device: what the loop gives to `.to(...)` and `device=`.
        device: what the loop gives to gapless.
        scheduler: of the simulated device, or None.
    """

    kind = CPU
    scheduler = None

    def __init__(self, *, is_reference):
        self.is_reference = is_reference
        self.torch_device = torch.device("cpu")
        self.device = "cpu"
        self.tiny, self.medium, self.large = 12, 4_100, 40_000

    def __enter__(self):
        torch.manual_seed(11)
        random.seed(12)
        return self

    def __exit__(self, *failure):
        return None

    def prefetch(self, loader, **options):
        if self.is_reference:
            return PlainPrefetch(loader, self, **options)
        return gapless.prefetch(loader, self.device, **options)

    def losses(self, **options):
        if self.is_reference:
            return PlainLosses(**options)
        return gapless.DeferredLoss(self.device, **options)

    def count_waits(self):
        if self.is_reference:
            return contextlib.nullcontext(SimpleNamespace(count=0))
        return gapless.count_waits(self.device)

    def sizes(self):
        """Return numbers of float32 elements that are treated differently."""
        return (self.tiny, self.medium, self.large)

    def numbers(self, number, *shape, dtype=torch.float32):
        """Return values on the host that differ from batch to batch and within a batch."""
        count = math.prod(shape)
        values = torch.arange(count, dtype=torch.float32) % 251 + 1000 * number + 1
        return values.reshape(shape).to(dtype)

    def pinned(self, tensor):
        """Return a copy in page-locked memory, or the tensor where there is none."""
        return tensor

    def moved(self, tensor):
        return tensor.to(self.torch_device, non_blocking=True)

    def scalar(self, value, dtype=torch.float32):
        """Return a number on the device, computed there."""
        return self.moved(torch.tensor(value, dtype=dtype)).clone()

    def busy(self):
        """Queue long work on the current stream."""

    def settle(self):
        """Wait until the device is idle."""

    def stream(self):
        return None

    def on(self, stream):
        del stream
        return contextlib.nullcontext()

    def current(self):
        return None

    def order(self, later, earlier):
        """Let the stream `later` wait for what is queued on the stream `earlier`."""

    def record_stream(self, tensor, stream):
        pass

    def bytes_of(self, tensor):
        flat = tensor.cpu().as_strided((tensor.numel(),), (1,))
        return flat.view(torch.uint8).numpy().tobytes()


class SimulatedPlace(Place):
    """The simulated device. Its reference is a CPU that copies what is moved."""

    kind = SIMULATED

    def __init__(self, *, is_reference, scheduler="asap", seed=0):
        super().__init__(is_reference=is_reference)
        self.tiny, self.medium, self.large = 12, 2_050, 16_000
        self.scheduler = scheduler
        self._context = (
            _CopyingTo()
            if is_reference
            else testing.SimulatedDevice(scheduler=scheduler, seed=seed)
        )

    def __enter__(self):
        super().__enter__()
        self.device = self._context.__enter__()
        if not self.is_reference:
            self.torch_device = self.device.torch_device
        return self

    def __exit__(self, *failure):
        return self._context.__exit__(*failure)

    def races(self):
        return [] if self.is_reference else list(self.device.report.races)

    def pinned(self, tensor):
        if self.is_reference or not tensor.numel():
            return tensor
        buffer = self.device.host_buffer(tensor.numel() * tensor.element_size(), pinned=True)
        return buffer.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def busy(self):
        if not self.is_reference:
            self.device.delay(self.device.current_stream(), 1.0)

    def settle(self):
        if not self.is_reference:
            self.device.synchronize_stream(self.device.current_stream())

    def stream(self):
        return None if self.is_reference else self.device.create_stream()

    def on(self, stream):
        return contextlib.nullcontext() if stream is None else self.device.use_stream(stream)

    def current(self):
        return None if self.is_reference else self.device.current_stream()

    def order(self, later, earlier):
        if later is not None:
            self.device.wait_stream(later, earlier)

    def record_stream(self, tensor, stream):
        if stream is not None:
            self.device.record_stream(tensor, stream)


class GpuPlace(Place):
    """The first GPU."""

    kind = GPU

    def __init__(self, *, is_reference):
        super().__init__(is_reference=is_reference)
        self.torch_device = torch.device("cuda", 0)
        self.device = "cuda"
        self.tiny, self.medium, self.large = 12, 393_300, 2_097_200

    def __enter__(self):
        super().__enter__()
        self.settle()
        return self

    def __exit__(self, *failure):
        torch.cuda.set_stream(torch.cuda.default_stream())
        self.settle()

    def pinned(self, tensor):
        return tensor.pin_memory()

    def busy(self):
        torch.cuda._sleep(2_000_000)

    def settle(self):
        torch.cuda.synchronize()

    def stream(self):
        return torch.cuda.Stream()

    def on(self, stream):
        return torch.cuda.stream(stream)

    def current(self):
        return torch.cuda.current_stream()

    def order(self, later, earlier):
        later.wait_stream(earlier)

    def record_stream(self, tensor, stream):
        tensor.record_stream(stream)


class _CopyingTo(TorchFunctionMode):
    """Make `.to(device)` copy, as it does where the device has memory of its own."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        del types
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.to and _names_device(args[1:], kwargs):
            kwargs["copy"] = True
        return func(*args, **kwargs)


def _names_device(args, kwargs):
    first = args[0] if args else kwargs.get("device")
    return isinstance(first, torch.device | str)


def places(kind, **options):
    """Return two makers of places of this kind: the reference and the product."""
    make = {CPU: Place, SIMULATED: SimulatedPlace, GPU: GpuPlace}[kind]
    return (lambda: make(is_reference=True)), (lambda: make(is_reference=False, **options))


# ------------------------------------------------------------------------- the plain way


class PlainPrefetch:
    """What `gapless.prefetch` promises, written in the plainest way."""

    def __init__(self, loader, place, *, depth=0, pin_memory=True):
        if depth < 0:
            raise ValueError(f"depth must be at least 0, but is {depth}")
        del pin_memory
        self._loader, self._place = loader, place

    def __iter__(self):
        return _plain_pass(iter(self._loader), self._place)

    def __next__(self):
        raise TypeError("a prefetcher is no iterator: call iter() on it first")

    def __len__(self):
        return len(self._loader)

    def __bool__(self):
        return bool(len(self._loader)) if hasattr(self._loader, "__len__") else True

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


def _plain_pass(batches, place):
    for batch in batches:
        on_device = move(batch, place.torch_device)
        place.settle()
        yield on_device


def move(value, device):
    """Return the value with its tensors on the device, moved as a user writes it."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, type):
        return value
    own = _own_to(value)
    if own is not None:
        moved = _call_to(own, device)
        return value if moved is None else moved
    return _move_container(value, device)


def _own_to(value):
    own = inspect.getattr_static(value, "to", None)
    return value.to if callable(own) else None


def _call_to(own, device):
    parameters = inspect.signature(own).parameters.values()
    takes_it = any(
        one.name == "non_blocking" or one.kind is inspect.Parameter.VAR_KEYWORD
        for one in parameters
    )
    return own(device, non_blocking=True) if takes_it else own(device)


def _move_container(value, device):
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, tuple):
        items = [move(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        new = copy.copy(value)
        new[:] = [move(item, device) for item in value]
        return new
    if isinstance(value, collections.abc.Mapping):
        new = copy.copy(value)
        for key, item in value.items():
            new[key] = move(item, device)
        return new
    if dataclasses.is_dataclass(value):
        new = copy.copy(value)
        for name in [field.name for field in dataclasses.fields(value)]:
            object.__setattr__(new, name, move(getattr(value, name), device))
        return new
    return value


def _number(value):
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise ValueError(f"a value must be one number, but has shape {tuple(value.shape)}")
    return float(value.detach().item() if isinstance(value, torch.Tensor) else value)


class PlainLosses:
    """What `gapless.DeferredLoss` promises, reading every value when it is added."""

    def __init__(self, *, every=None, on_values=None):
        self._every, self._on_values = every, on_values
        self._told, self._names, self._warned = 0, None, False
        self.reset()

    def reset(self):
        self._rows, self.weights, self.first_nonfinite, self._told = [], [], None, 0

    def add(self, loss=None, /, *, weight=1, **named):
        is_named = loss is None
        values = named if is_named else {"loss": loss}
        if not values or (named and not is_named):
            raise TypeError("add takes one value by position, or values by name")
        if self._names is None:
            self._names, self._is_named = list(values), is_named
        if set(values) != set(self._names) or is_named != self._is_named:
            raise ValueError(f"values must be named {self._names}, but are {list(values)}")
        row = {name: _number(values[name]) for name in self._names}
        self.weights.append(float(weight))
        self._rows.append(row)
        self._note_nonfinite(row)
        self._tell()

    def _note_nonfinite(self, row):
        for name, value in row.items():
            if self.first_nonfinite is None and not math.isfinite(value):
                step = len(self._rows) - 1
                self.first_nonfinite = SimpleNamespace(step=step, name=name, value=value)
                warnings.warn(f"{name} of step {step} is {value}", RuntimeWarning, stacklevel=3)

    def _tell(self):
        if self._every and len(self._rows) % self._every == 0:
            self._on_values(self.latest())

    def latest(self):
        if not self._rows:
            return None
        return SimpleNamespace(step=len(self._rows) - 1, values=dict(self._rows[-1]))

    def _mean(self, name):
        total = math.fsum(self.weights)
        if not total:
            return math.nan
        terms = zip(self._rows, self.weights, strict=True)
        return math.fsum(row[name] * weight for row, weight in terms) / total

    def mean(self, name=None):
        if name is not None:
            return self._mean(name)
        if self._names is None or not self._is_named:
            return self._mean("loss")
        return {name: self._mean(name) for name in self._names}

    @property
    def history(self):
        if self._names is None or not self._is_named:
            return [row["loss"] for row in self._rows]
        return {name: [row[name] for row in self._rows] for name in self._names}

    def drain(self):
        pass

    def poll(self):
        pass

    def flush(self):
        pass


# ------------------------------------------------------------------- what is compared


@dataclass(frozen=True)
class Frozen:
    """A value as it was at one moment, comparable after its memory is gone."""

    content: Any


_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, range, slice)


def freeze(place, value):
    """Return what the value is now, as plain data; waits for the device."""
    if isinstance(value, Frozen):
        return value.content
    if isinstance(value, torch.Tensor):
        return _frozen_tensor(place, value)
    if isinstance(value, collections.abc.Mapping):
        items = tuple((freeze(place, key), freeze(place, item)) for key, item in value.items())
        return (type(value).__qualname__, items)
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return (type(value).__qualname__, tuple(freeze(place, item) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return (
            type(value).__qualname__,
            tuple((one.name, freeze(place, getattr(value, one.name))) for one in fields),
        )
    if type(value).__module__ == "numpy":
        return ("numpy", str(value.dtype), str(value.shape), value.tobytes().hex())
    if isinstance(value, float):
        # A mean may be rounded otherwise; `exact_mean` and `no_digit_is_lost` look at the last bit.
        return ("float", f"{value:.13g}")
    if isinstance(value, _PLAIN):
        return (type(value).__qualname__, repr(value))
    if isinstance(value, torch.dtype | torch.device | torch.memory_format):
        return repr(value)
    return (type(value).__qualname__, freeze(place, dict(vars(value))))


def snapshot(place, value):
    """Read the value now, in the middle of a loop; waits for the device."""
    return Frozen(freeze(place, value))


def _frozen_tensor(place, tensor):
    form = (
        type(tensor).__qualname__,
        str(tensor.dtype),
        str(tensor.layout),
        f"requires_grad {tensor.requires_grad}",
        f"on its device {tensor.device == place.torch_device}",
    )
    tensor = tensor.detach()
    if tensor.is_nested:
        return (*form, tuple(_dense(place, part) for part in tensor.unbind()))
    shape = tuple(tensor.shape)
    if tensor.layout is torch.sparse_coo:
        indices, values = tensor._indices(), tensor._values()
        parts = (tensor.is_coalesced(), _dense(place, indices), _dense(place, values))
        return (*form, shape, *parts)
    if tensor.layout is torch.sparse_csr:
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        return (*form, shape, *(_dense(place, part) for part in parts))
    if tensor.is_quantized:
        scale = (tensor.q_scale(), tensor.q_zero_point())
        return (*form, scale, _dense(place, tensor.int_repr()))
    return (*form, f"conj {tensor.is_conj()}", f"neg {tensor.is_neg()}", _dense(place, tensor))


def _dense(place, tensor):
    shape = (tuple(tensor.shape), f"stride {tensor.stride()}")
    plain = tensor.as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    content = place.bytes_of(plain.contiguous().reshape(-1))
    return (*shape, hashlib.sha256(content).hexdigest()[:16], content[:24].hex())


def differences(expected, actual, where="result"):
    """Return the first places where the two differ, in words."""
    if expected == actual:
        return []
    both = isinstance(expected, tuple) and isinstance(actual, tuple)
    if not both or len(expected) != len(actual):
        return [f"{where}: {str(expected)[:300]} was expected, {str(actual)[:300]} was found"]
    found = []
    for number, (left, right) in enumerate(zip(expected, actual, strict=True)):
        found.extend(differences(left, right, f"{where}[{number}]"))
    return found


def result_of(one, make):
    """Run the loop of the case once; return its frozen result and the races that were found."""
    with _state_restored(), make() as place:
        for message in ("Sparse invariant", "Sparse CSR", "The PyTorch API of nested"):
            warnings.filterwarnings("ignore", message)
        result = freeze(place, one.loop(place))
    races = place.races() if hasattr(place, "races") else []
    return result, races


@contextlib.contextmanager
def _state_restored():
    torch_state, random_state = torch.get_rng_state(), random.getstate()
    dtype = torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(random_state)
        torch.set_default_dtype(dtype)


def judge(one, kind, **options):
    """Return what is wrong with the product in this case, in words; nothing if it is right."""
    reference, product = places(kind, **options)
    return compare(one, lambda: _expected(one, kind, reference), product)


_known: dict[tuple[str, str], Any] = {}


def _expected(one, kind, reference):
    """Return the plain loop's result, which is the same under every schedule."""
    if kind == GPU:
        return result_of(one, reference)[0]
    key = (str(one), kind)
    if key not in _known:
        _known[key] = result_of(one, reference)[0]
    return _known[key]


def compare(one, expected, product):
    """Return how the case's result with the product differs from what `expected()` returns."""
    actual, races = result_of(one, product)
    wrong = [f"race: {race}" for race in races[:3]]
    if one.verdict == SAME:
        wrong += differences(expected(), actual)[:6]
    return wrong


def judge_the_plain_loop(one, kind):
    """Return what the plain loop gets wrong; nothing, or the case is no good."""
    reference, _ = places(kind)
    return compare(one, lambda: result_of(one, reference)[0], reference)
