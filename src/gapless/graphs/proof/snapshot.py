"""All that a step changes, as it is before the step has run, and put back in its place.

Graphs that are captured ahead of a run train on nothing. What a run is about to write on the device is seen: the
bytes of a storage are copied before its first write. In Python a step that runs ahead changes the gradients of its
model, its optimizer and its scaler, and nothing else: it says so by `changes_no_other_objects`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import identity_of, is_storage_held_once
from gapless.graphs.proof.device_state import RandomStates, set_state_of
from gapless.graphs.proof.python_side import PythonSide
from gapless.graphs.reads.touched import TouchWatch, plain_parts
from gapless.graphs.replay.kept_tensors import KeptTensors


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from gapless.device.base import Device
    from gapless.graphs.callee import Callee
    from gapless.graphs.reads.touched import FirstUses
    from gapless.graphs.reads.weight_guards import Gradients


# State that these make when they first need it is zero; what their constructors make is copied.
_BEGIN_AT_ZERO = frozenset(
    getattr(torch.optim, name)
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "RAdam", "RMSprop", "SGD")
)


class Snapshot:
    """Everything that a training step changes.

    Args:
        model: whose parameters and buffers are kept, in compiled code too, which shows nothing of its writes.
        puts_back_all: whether a step is left out that may change other objects in Python.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scaler: torch.amp.GradScaler | None = None,
        puts_back_all: bool = True,
    ) -> None:
        self._puts_back_all = puts_back_all
        self._model = model
        self._optimizer = optimizer
        self._scaler = scaler
        self._scaler_state: dict[str, Any] = {}
        self._memory = FirstWrites()
        self._python: PythonSide | None = None
        self._random: RandomStates | None = None
        self._device: Device | None = None
        self._states: dict[str, Any] = {}

    def keep(self, callee: Callee) -> str | None:
        """Keep what the step changes; return why that cannot be put back, None if it can.

        Raises:
            torch.OutOfMemoryError: the device has no memory for copies.

        Sync: Blocks the host if a scaler is in use.
        """
        owner = getattr(callee.step, "__self__", callee.step)
        if self._puts_back_all and not getattr(owner, "changes_no_other_objects", False):
            return _MAY_CHANGE_OTHERS
        for tensor in self._tensors():
            for part in plain_parts(tensor):
                self._memory.writes(part.untyped_storage())
        self._python = PythonSide(
            [(weight, weight.grad) for weight in self._model.parameters()],
            [self._optimizer],
            KeptTensors([], on_device=callee.is_on_device),
            on_device=callee.is_on_device,
        )
        if self._scaler is not None:
            self._scaler_state = self._scaler.state_dict()
        self._random = RandomStates(callee.device, [])
        self._states = self._random.read()
        self._device = callee.device
        return None

    def watching(self) -> AbstractContextManager[object]:
        """Return a context for a run of the step as written, which sees what it is about to write."""
        if self._device is None:
            return nullcontext()
        return TouchWatch(self._device, first_uses=self._memory, sees_reads=False)

    @property
    def first_uses(self) -> FirstUses:
        """What a look at a run as written has to tell of what that is about to write."""
        return self._memory

    def forget_freed(self) -> None:
        """Let go of copies of memory that nobody holds any more; call it after each run.

        What compiled code has made looks as if it had been there before.
        """
        self._memory.forget_freed()

    @torch.no_grad()
    def restore(self, added_to: Gradients) -> None:
        """Put everything back, into the same memory.

        State that an optimizer has made meanwhile stays, as zeros, if that is how it begins, and so do
        gradients that captured work adds to: it has to find them in their place.
        """
        if self._python is None or self._random is None:
            return
        made = dict(self._optimizer.state) if _begins_at_zero(self._optimizer) else {}
        self._python.restore()
        _keep_new_state(self._optimizer, made)
        for weight, gradient in added_to:
            if weight.grad is None and gradient is not None:
                weight.grad = gradient.zero_()
        self._memory.restore()
        self._random.write(self._states)
        if self._scaler is not None:
            self._scaler.load_state_dict(self._scaler_state)

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self._model.parameters()
        yield from self._model.buffers()
        for state in self._optimizer.state.values():
            yield from (value for value in _values(state) if isinstance(value, torch.Tensor))


_MAY_CHANGE_OTHERS = (
    "the step may change objects in Python beside its model and its optimizer, which cannot be put back; set "
    "`changes_no_other_objects = True` on it if it changes none"
)


class FirstWrites:
    """The bytes of storages, each as they were before they were first written, and states of generators."""

    def __init__(self) -> None:
        self.made: set[int] = set()
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}

    def writes(self, storage: torch.UntypedStorage) -> None:
        """Keep the bytes of a storage, unless they are kept."""
        key = identity_of(storage)
        if key not in self._copies:
            with torch.no_grad(), torch.inference_mode(mode=False):
                self._copies[key] = storage, _bytes_of(storage).clone()

    def forget_freed(self) -> None:
        """Let go of storages that nobody else holds."""
        for key, (storage, _) in list(self._copies.items()):
            if is_storage_held_once(storage):
                del self._copies[key]

    def draws_from(self, generator: torch.Generator) -> None:
        """Keep the state of a generator, unless it is kept."""
        key = identity_of(generator)
        if key not in self._generators:
            self._generators[key] = generator, generator.get_state()

    def restore(self) -> None:
        """Put all of it back."""
        with torch.no_grad(), torch.inference_mode(mode=False):
            for storage, copy in self._copies.values():
                if storage.nbytes() != copy.numel():
                    storage.resize_(copy.numel())
                _bytes_of(storage).copy_(copy)
        for generator, state in self._generators.values():
            set_state_of(generator, state)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))


def _begins_at_zero(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether state that an optimizer has not made yet is the same as zeros."""
    kind, groups = type(optimizer), optimizer.param_groups
    # Momentum begins as a gradient, of which a part would be taken if it were there.
    is_dampened = kind is torch.optim.SGD and any(g["momentum"] and g["dampening"] for g in groups)
    return kind in _BEGIN_AT_ZERO and not is_dampened


def _keep_new_state(optimizer: torch.optim.Optimizer, states: dict[Any, Any]) -> None:
    for weight, state in states.items():
        if weight not in optimizer.state:
            optimizer.state[weight] = state
            for value in _values(state):
                if isinstance(value, torch.Tensor):
                    value.zero_()


def _values(state: Any) -> Iterable[Any]:
    return list(state.values()) if isinstance(state, dict) else []
