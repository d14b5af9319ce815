"""Update by the operations of `step()` alone, on lists of tensors that were collected once.

Most of the host's time of a `step()` goes into Python that collects the same tensors each time. A
graph has no need of them, but keeps the numbers that it was captured with, such as the rate, and a
copy of every gradient. A quick update has neither: it checks that all tensors are those that were
collected, reads numbers and gradients as `step()` does, and calls the operations that `step()`
calls, on the stream where it is called.

That they are the same is not believed but shown, for each set of lists: one `step()` runs as written
while its operations are noted, and the quick update has to call the same operations, with the same
tensors and numbers, in the same order (`gapless.graphs.updates.noted_calls`). Equal operations on equal
tensors give equal bits. Which operations are called depends on the lists, on the settings of the
groups, on which numbers are zero and on what a GradScaler hands over, and each of these is compared
before every quick update.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, repeat
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.optim import Optimizer

from gapless.graphs.reads.same_tensors import are_the_same
from gapless.graphs.updates.noted_calls import NotedCalls
from gapless.graphs.updates.step_replaced import is_step_of_the_class
from gapless.graphs.updates.update_operations import NUMBERS, way_of
from gapless.graphs.updates.update_rules import OF_A_SCALER
from gapless.pipeline.tree.tensor_layout import comparison_with


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.device.base import Device
    from gapless.graphs.updates.update_operations import Way


_gradient_of = attrgetter("grad")
_is_profiled: Any = torch._C._autograd._profiler_enabled

# What a group reads, compared from step to step: flags, and numbers.
_Settings = list[tuple[Any, ...]]

# Sets of lists that are kept: weights may have gradients in turns.
_MAX_SETS = 4

# Sets may be collected so often, and once more for so many quick updates: it takes a few steps' time.
_MAX_COLLECTED = 10
_MIN_UPDATES_PER_SET = 10


class QuickUpdates:
    """The quick updates of one optimizer, where there can be any."""

    def __init__(self, optimizer: Optimizer, device: Device) -> None:
        self._optimizer = optimizer
        self._device = device
        kind = type(optimizer)
        self._names = NUMBERS.get(kind)
        self._code = _code_of(kind)
        self.is_over = self._names is None or not is_step_of_the_class(optimizer)
        self._settings: _Settings | None = None
        self._have_moved = False
        self._flags: _Settings = []
        self._ways: list[Way | None] = []
        self._sets: list[_Lists] = []
        self._num_collected = 0
        self._num_updates = 0

    def are_due(self) -> bool:
        """Return, at each step, whether it is to be quick.

        It is where no graph could go on: from the first step on whose numbers are others than those
        of the step before, and where steps are counted on the host.
        """
        if self.is_over:
            return False
        settings = self._read()
        if settings is None:
            return False
        before, self._settings = self._settings, settings
        self._have_moved |= before is not None and before != settings
        assert self._names is not None
        flags = [one[: len(self._names.flags)] for one in settings]
        if flags != self._flags:
            groups = self._optimizer.param_groups
            self._flags = flags
            self._ways = [way_of(self._optimizer, group, group["params"]) for group in groups]
        if None in self._ways:
            return False
        return self._have_moved or any(
            way is not None and way.counts_on_host for way in self._ways
        )

    def run(self) -> bool:
        """Update, if the tensors are those of a set; return whether it was done."""
        with torch.no_grad():  # as torch's `step` says
            work = self._work_of_now()
            if work is None:
                return False
            _check_capture(self._optimizer)
            if _is_profiled():
                _in_profile(self._optimizer, work)
            else:
                work()
        self._num_updates += 1
        return True

    def is_ready(self) -> bool:
        """Return whether `run` would update."""
        return self._work_of_now() is not None

    def run_as_written(self, step: Callable[..., Any]) -> Any:
        """Run a step as written, and collect the lists for those that follow, if it can be."""
        self._sets = [lists for lists in self._sets if lists.hold(self._optimizer)]
        if self._num_collected > _MAX_COLLECTED + self._num_updates / _MIN_UPDATES_PER_SET:
            self.end()
        with torch.no_grad():
            lists = None if self.is_over else self._collected()
        self._num_collected += 1
        if lists is None:
            return step()
        gradients, of_a_scaler = lists.gradients(), _of_a_scaler(self._optimizer)
        assert gradients is not None
        with NotedCalls(self._device.needs_copy) as noted:
            out = step()
        with torch.no_grad():
            if noted.are_those_of(lambda: lists.update(self._optimizer, gradients, of_a_scaler)):
                self._sets.insert(0, lists)
                del self._sets[_MAX_SETS:]
        return out

    def forget_lists(self) -> None:
        """Let go of all lists; they may be collected anew."""
        self._sets = []

    def end(self) -> None:
        """Let no update be quick any more."""
        self.is_over = True
        self._sets = []

    # --- parts ---

    def _read(self) -> _Settings | None:
        """Return flags and numbers of all groups; None if a number is no plain one."""
        assert self._names is not None
        read = itemgetter(*self._names.flags, *self._names.numbers)
        num_flags = len(self._names.flags)
        try:
            found: _Settings = list(map(read, self._optimizer.param_groups))
        except KeyError:
            return None
        # Types of numpy's are among these.
        numbers = _flat([number for one in found for number in one[num_flags:]])
        return found if all(isinstance(number, float | int) for number in numbers) else None

    def _form(self) -> tuple[Any, ...]:
        """Return what decides which operations a step calls, beside its tensors."""
        assert self._names is not None
        zeros = [
            [group[name] != 0 for name in self._names.may_be_zero]
            for group in self._optimizer.param_groups
        ]
        return (self._flags, zeros, [part is None for part in _of_a_scaler(self._optimizer)])

    def _work_of_now(self) -> Callable[[], None] | None:
        """Return the update by the gradients of now, None if no set takes them."""
        if _code_of(type(self._optimizer)) != self._code:
            return None
        form = self._form()
        of_a_scaler = _of_a_scaler(self._optimizer)
        for lists in self._sets:
            if lists.form == form and lists.hold(self._optimizer) and lists.take(of_a_scaler):
                gradients = lists.gradients()
                if gradients is not None:
                    return partial(lists.update, self._optimizer, gradients, of_a_scaler)
        return None

    def _collected(self) -> _Lists | None:
        """Return the lists of the step that comes, None if it makes some of them."""
        parts: list[_Part] = []
        for number, group in enumerate(self._optimizer.param_groups):
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            way = way_of(self._optimizer, group, weights)
            if way is None:
                return None
            columns = [list(map(_gradient_of, weights))]
            for name in way.state(group):
                states = [self._optimizer.state.get(weight) or {} for weight in weights]
                columns.append([] if name is None else [state.get(name) for state in states])
            if not self._are_where_they_belong(way, weights, columns):
                return None
            # As torch does it, with the lists that it has.
            grouped: dict[Any, Any] = Optimizer._group_tensors_by_device_and_dtype(
                [weights, *columns]
            )
            for (its_weights, _, *state), _ in grouped.values():
                parts.append(_Part(way, number, its_weights, tuple(state)))
        lists = _Lists(self._optimizer, self._form(), parts)
        return lists if lists.take(_of_a_scaler(self._optimizer)) else None

    def _are_where_they_belong(
        self, way: Way, weights: list[torch.Tensor], columns: list[list[Any]]
    ) -> bool:
        """Return whether weights, gradients and state are there, plain, and on the device."""
        on_device = [weights, *columns]
        on_host = on_device.pop() if way.counts_on_host else []
        needs_copy = self._device.needs_copy
        expected = [(tensor, False) for tensor in chain(*on_device)]
        expected += [(tensor, True) for tensor in on_host]
        return all(
            _is_plain_tensor(tensor) and needs_copy(tensor) == is_on_host
            for tensor, is_on_host in expected
        )


class _Part(NamedTuple):
    """Weights of one group that are updated at once: their way, the number of the group, lists of their state."""

    way: Way
    group: int
    weights: list[torch.Tensor]
    state: tuple[list[torch.Tensor], ...]


class _Lists:
    """All tensors of an update.

    Args:
        optimizer: whose weights have their gradients.
    """

    def __init__(self, optimizer: Optimizer, form: tuple[Any, ...], parts: list[_Part]) -> None:
        self.form = form
        self._parts = parts
        self._weights = list(chain.from_iterable([part.weights for part in parts]))
        self._state = [tensor for part in parts for column in part.state for tensor in column]
        params, keys, states = _objects_of(optimizer)
        self._objects = [list(map(list, params)), keys, list(map(dict, states))]
        taken = set(map(id, self._weights))
        self._idle = [one for weights in params for one in weights if id(one) not in taken]
        tensors = [*self._weights, *map(_gradient_of, self._weights), *self._state]
        self._are_alike = comparison_with(tensors)
        self._kinds = list(map(_kind_of, tensors))

    def hold(self, optimizer: Optimizer) -> bool:
        """Return whether weights and state of an optimizer are the very tensors of these lists."""
        return are_the_same(self._objects, _objects_of(optimizer))

    def take(self, of_a_scaler: tuple[torch.Tensor | None, ...]) -> bool:
        """Return whether the updates take what a GradScaler hands over, as it is."""
        return all(
            one is None
            or all(
                part.way.is_fused and one.device == part.weights[0].device for part in self._parts
            )
            for one in of_a_scaler
        )

    def gradients(self) -> list[torch.Tensor] | None:
        """Return the gradients of now, None if others have one or if tensors are of other kinds."""
        if not all(map(is_, map(_gradient_of, self._idle), repeat(None))):
            return None
        gradients = list(map(_gradient_of, self._weights))
        # Gradients may be of other strides, which `step()` does not look at.
        if self._are_alike is not None and self._are_alike(
            *self._weights, *gradients, *self._state
        ):
            return gradients
        tensors = [*self._weights, *gradients, *self._state]
        return gradients if list(map(_kind_of, tensors)) == self._kinds else None

    def update(
        self,
        optimizer: Optimizer,
        gradients: list[torch.Tensor],
        of_a_scaler: tuple[torch.Tensor | None, ...],
    ) -> None:
        """Call the operations."""
        start = 0
        for part in self._parts:
            end = start + len(part.weights)
            group = optimizer.param_groups[part.group]
            part.way.update(part.weights, gradients[start:end], part.state, group, *of_a_scaler)
            start = end


def _objects_of(optimizer: Optimizer) -> list[Any]:
    """Return which tensors an update finds, beside gradients."""
    state = optimizer.state
    params = [group["params"] for group in optimizer.param_groups]
    return [params, list(state), list(state.values())]


def _of_a_scaler(optimizer: Optimizer) -> tuple[torch.Tensor | None, ...]:
    """Return what a GradScaler has handed over: a scale, and whether there was an infinity."""
    return tuple(map(vars(optimizer).get, OF_A_SCALER))


def _code_of(kind: type[Optimizer]) -> tuple[Any, ...]:
    """Return the code of a type that collects tensors."""
    return kind.step, getattr(kind, "_init_group", None)


def _flat(values: list[Any]) -> Iterator[Any]:
    """Yield values, and those of the tuples and lists among them."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from value
        else:
            yield value


def _is_plain_tensor(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and not value.is_complex()
    )


def _kind_of(value: Any) -> tuple[Any, ...] | None:
    """Return of a tensor what the Python code of a step looks at."""
    if not isinstance(value, torch.Tensor):
        return None
    return type(value), value.dtype, value.device, value.layout


def _check_capture(optimizer: Optimizer) -> None:
    """Complain, as the steps of some do, within a capture that is not gapless's."""
    own: Any = optimizer
    if isinstance(own, torch.optim.Adam):
        name = "_accelerator_graph_capture_health_check"  # from torch 2.12 on
        check = getattr(own, name, None) or own._cuda_graph_capture_health_check
        check()


def _in_profile(optimizer: Optimizer, work: Callable[[], None]) -> None:
    """Let a profile have what it has of a step as written."""
    name = f"Optimizer.step#{type(optimizer).__name__}.step"
    with torch.autograd.profiler.record_function(name):
        work()
        optimizer._optimizer_step_code()
