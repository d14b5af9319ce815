"""Capture the forward and the backward pass of a module for one kind of call, and prove them.

Calls as written are watched first, with the backward passes that follow: which outputs get a
gradient, and how these lie in memory. Then both passes are rehearsed on copies of a call: captured,
and proved with gradients that are made up. All that a rehearsal changes is put back, and the call
itself runs as written.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapless.graphs.addresses import address_of, share_memory
from gapless.graphs.at_work import AT_WORK
from gapless.graphs.backward_settings import Settings
from gapless.graphs.device_state import DeviceState
from gapless.graphs.gradient_paths import (
    GradientPaths,
    gradients_by_use,
    number_of_next_node,
    uses_of,
)
from gapless.graphs.module_graph import CREATE_GRAPH, SECOND_BACKWARD, ModuleGraph, Passes, Saved
from gapless.graphs.proof import NotProved, prove
from gapless.graphs.reach import HOOK_TABLES
from gapless.graphs.refusal import Refusal
from gapless.graphs.step_call import at_work, cannot_return, cannot_return_from_host
from gapless.graphs.touched import TouchWatch, span_of
from gapless.graphs.trial import Tried, why_it_failed
from gapless.graphs.weight_guards import WeightsInPlace
from gapless.pipeline.tree import flatten, has_address


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gapless.device.base import Cut, Device
    from gapless.graphs.graph_cache import GraphCache
    from gapless.graphs.host_watch import HostWatch
    from gapless.graphs.module_graph import Runs
    from gapless.graphs.read_guards import ReadGuards
    from gapless.graphs.warm_ups import Watched
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.step import Call
    from gapless.pipeline.tree import Tree


@dataclass(frozen=True)
class Layout:
    """How a gradient lies in memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """Return that of a tensor."""
        return cls(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype)


@dataclass(frozen=True)
class Given:
    """What one backward pass was given.

    Attributes:
        layouts: of the gradients of the outputs, None for those that got none.
        settings: torch's, in it, as `Settings.now` returns them; None if no output has a gradient.
    """

    layouts: tuple[Layout | None, ...]
    settings: tuple[Any, ...] | None


@dataclass
class _Seen:
    """What calls of one kind as written have shown.

    Attributes:
        weights: that get gradients.
        objections: why no graph can take such a call.
        given: the gradients of the outputs in the last backward pass, None before the first.
        form: of the outputs.
        watched: how many calls had been watched when there was nothing more to be seen.
    """

    weights: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    objections: list[Refusal] = field(default_factory=list)
    given: Given | None = None
    form: Any = None
    watched: int = -1


class ModuleTrial:
    """Capture a module and prove its graphs.

    Args:
        module: the module.
        forward: its own, bound to it.
        device: where it runs.
        host_waits: the door for the waits that captures are.
        graphs: the graphs there are, and their limits.
        runs: of all graphs of the module.
        watch: of its calls as written.
        needs_grad: which inputs need gradients.
    """

    def __init__(
        self,
        module: nn.Module,
        forward: Callable[..., Any],
        *,
        device: Device,
        host_waits: HostWaits,
        graphs: GraphCache,
        runs: Runs,
        watch: HostWatch,
        needs_grad: tuple[bool, ...],
    ) -> None:
        self._module = module
        self._forward = forward
        self._device = device
        self._host_waits = host_waits
        self._graphs = graphs
        self._runs = runs
        self._watch = watch
        self._needs_grad = needs_grad
        self._settings = Settings(device.torch_device.type)
        self._seen: dict[Any, _Seen] = {}

    # --- calls as written ---

    def observed(self, tree: Tree, call: Callable[[], Any]) -> Any:
        """Run a call as written, and see what its backward pass is given.

        Sync: Does not block the host, unless the module does.
        """
        seen = self._seen_of(tree)
        if seen.watched == self._watch.num_runs:
            return call()
        before, gradients = _states_of(tree.leaves), self._gradients()
        for refusal in self._hooks_within():
            self._runs.refuse(refusal)
        since = number_of_next_node()
        out = call()
        outs = flatten(out).leaves
        form = [(leaf.shape, leaf.dtype, leaf.requires_grad) for leaf in outs]
        if form != seen.form:
            seen.form, seen.given = form, None
        leaves = [leaf for leaf in outs if leaf.requires_grad]
        inputs = [leaf for leaf in tree.leaves if leaf.requires_grad]
        paths = GradientPaths.of(leaves, inputs, since=since)
        _add(seen, _objections_to(paths))
        if before != _states_of(tree.leaves) or not _is_as_before(tree):
            _add(seen, [_CHANGES_INPUT])
        if gradients != self._gradients():
            _add(seen, [_BACKWARD_WITHIN])
        seen.weights = [weakref.ref(weight) for weight in paths.weights]
        if leaves:
            _note_gradients(outs, seen, self._settings)
        else:
            seen.given = Given((None,) * len(outs), None)
        return out

    def run(self, tree: Tree, reads: ReadGuards, watched: Watched) -> Tried:
        """Rehearse both passes on a copy of a call, and run the call as written.

        Raises:
            Exception: whatever the module raises as written.

        Sync: Blocks the host ("capture").
        """
        seen = self._seen_of(tree)
        weights = [weight for ref in seen.weights if (weight := ref()) is not None]
        refusals = self._refusals(seen, weights, watched)
        refusals += _objections_to_memory(tree, [*reads.tensors, *weights], watched)
        if seen.given is None:
            self._runs.note(_NO_BACKWARD)
        if refusals or seen.given is None or not self._runs.is_free():
            if refusals:
                seen.watched = self._watch.num_runs
            return Tried(self._work(tree), refusals=refusals)
        with AT_WORK, self._runs.side.use():
            tried = self._rehearsed(tree, reads, watched, seen.given, weights)
        seen.watched = self._watch.num_runs
        tried.out = self._work(tree)
        return tried

    def _seen_of(self, tree: Tree) -> _Seen:
        # Other parameters may stand in the module for a while.
        weights = [(id(one), one.requires_grad) for one in self._module.parameters()]
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        return self._seen.setdefault((tree.key(), tuple(weights)), _Seen())

    def _gradients(self) -> list[tuple[int, int] | None]:
        gradients = [weight.grad for weight in self._module.parameters()]
        return [None if one is None else (id(one), one._version) for one in gradients]

    def _hooks_within(self) -> list[Refusal]:
        for name, part in self._module.named_modules():
            if part is not self._module and any(vars(part).get(table) for table in HOOK_TABLES):
                return [_hook(f"{name} has a hook")]
        return []

    def _work(self, tree: Tree) -> Any:
        call: Call = tree.value
        return self.observed(tree, lambda: self._forward(*call.args, **call.kwargs))

    def _refusals(
        self,
        seen: _Seen,
        weights: Sequence[torch.Tensor],
        watched: Watched,
    ) -> list[Refusal]:
        found = list(seen.objections)
        found += [_keeps(path.name, path.site) for path in watched.kept]
        if watched.touched is None:
            found.append(_COMPILED)
        if watched.ran_backward:
            found.append(_RUNS_BACKWARD)
        site = self._watch.site_of_name(_HOOKING)
        if site is not None:
            found.append(_hook(f"{site} sets a hook"))
        if self._watch.site_of_name(["checkpoint"]) is not None:
            found.append(_CHECKPOINT)
        found += self._hooks_within()
        for weight in weights:
            if any(getattr(weight, table, None) for table in HOOK_TABLES):
                found.append(_hook("a weight has a hook"))
                break
        site = self._watch.site_of_name(_OF_THE_CALL)
        if site is not None:
            found.append(_asks(site))
        if any(map(self._device.needs_copy, weights)):
            found.append(_ON_HOST)
        if any(type(weight) not in _PLAIN for weight in weights):
            found.append(_SUBCLASS)
        return found

    # --- rehearsal ---

    def _rehearsed(
        self,
        tree: Tree,
        reads: ReadGuards,
        watched: Watched,
        given: Given,
        weights: list[torch.Tensor],
    ) -> Tried:
        touched = watched.touched
        assert touched is not None
        written = [tensor for tensor in touched.written if not self._device.needs_copy(tensor)]
        before = DeviceState(written, self._device, generators=touched.generators)
        before.save()
        start = self._device.now_ms()
        try:
            return self._captured_and_proved(
                tree, reads, watched, given=given, weights=weights, written=written
            )
        except _Refused as refused:
            return Tried(None, refusals=[refused.refusal])
        except Exception as error:
            return Tried(None, refusals=why_it_failed(error, watched.host_reads))
        finally:
            before.restore()
            before.forget()
            del start

    def _captured_and_proved(
        self,
        tree: Tree,
        reads: ReadGuards,
        watched: Watched,
        *,
        given: Given,
        weights: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> Tried:
        touched = watched.touched
        assert touched is not None
        rehearsal = _Rehearsal(
            self._forward,
            self._module,
            tree,
            given,
            weights,
            needs_grad=self._needs_grad,
            device=self._device,
            settings=self._settings,
        )
        others = [
            *reads.tensors,
            *[one for one in touched.read if address_of(one) not in watched.known],
        ]
        # Its own changes are put back where the call runs again.
        changed = set(map(address_of, written))
        saved = rehearsal.run_and_see_what_is_saved(
            [one for one in others if address_of(one) not in changed]
        )
        graph, passes, reserved = self._capture(rehearsal, watched)
        self._graphs.note_memory(reserved)
        if not all(uses_of(passes.out.leaves, passes.targets)):
            raise _Refused(_OTHER_WEIGHTS)
        others = [tensor for tensor in [*reads.tensors, *weights] if has_address(tensor)]
        for leaf in passes.out.leaves:
            if any(address_of(leaf) == address_of(other) for other in [*others, *passes.inputs]):
                raise _Refused(_RETURNS_OTHERS)
        if share_memory(passes.out.leaves):
            raise _Refused(_RETURNS_OTHERS)
        memory = [weight for weight in weights if not reads.compares(weight)]
        module_graph = ModuleGraph(
            graph,
            passes,
            call=tree,
            forward=self._forward,
            weights=weights,
            saved=saved,
            written=written,
            draws=bool(touched.generators) or rehearsal.draws,
            reads=reads,
            memory=[WeightsInPlace(memory)] if memory else [],
            held=[
                *others,
                *[
                    tensor
                    for tensor in [*touched.read, *touched.written]
                    if address_of(tensor) not in watched.known
                ],
            ],
            device=self._device,
            runs=self._runs,
            needs_grad=self._needs_grad,
            settings=self._settings,
            expected=given.settings,
        )
        start = self._device.now_ms()
        second_look = TouchWatch(self._device)
        looks = [second_look]

        def replay() -> Any:
            return module_graph.rehearse(tree.leaves, rehearsal.gradients)

        def as_written() -> Any:
            with looks.pop() if looks else _nothing():
                return rehearsal.run()

        known = watched.known | set(
            map(address_of, [*tree.leaves, *rehearsal.memory_of_all(), *others])
        )
        try:
            _, verdict = prove(
                self._device,
                DeviceState(written, self._device, generators=touched.generators),
                replay=replay,
                as_written=as_written,
                reset=lambda: None,
                memory_budget_bytes=self._graphs.budget,
                nondeterministic=touched.nondeterministic,
            )
        except NotProved as error:
            return Tried(None, module_graph, not_proved=str(error))
        if _uses_others(touched, second_look, known):
            raise _Refused(_REPLACED)
        seconds = (self._device.now_ms() - start) / 1000.0
        return Tried(None, module_graph, verdict, proof_seconds=seconds)

    def _capture(self, rehearsal: _Rehearsal, watched: Watched) -> tuple[Any, Passes, int]:
        reserved: list[int] = []
        found: list[Passes] = []
        # Its copies are not part of the graph.
        static, given = rehearsal.memory()

        def queue(cut: Cut) -> None:
            reserved.append(self._device.reserved_memory_bytes())
            found.append(rehearsal.passes(static, given, lambda: cut(lambda: None)))

        assert watched.touched is not None
        kind = self._device.torch_device.type
        generators = [
            one for one in watched.touched.generators if one.device.type == kind != "cpu"
        ]
        with self._host_waits.blocking("capture"):
            graph = self._device.capture(
                queue, like=self._graphs.newest, generators=generators, keeps_casts=True
            )
        self._graphs.newest = graph
        return graph, found[0], self._device.reserved_memory_bytes() - reserved[0]


def _uses_others(first: TouchWatch, second: TouchWatch, known: set[int]) -> bool:
    """Return whether a run has used memory that a run before has not."""
    some, others = (set(map(address_of, [*look.read, *look.written])) for look in (first, second))
    return bool(others - some - known)


class _Rehearsal:
    """Runs both passes of a call on copies, with weights in the same memory.

    Autograd and autocast take the weights of each run for others: no hook is called, and no cast
    is found that a run before has made.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        module: nn.Module,
        tree: Tree,
        given: Given,
        weights: list[torch.Tensor],
        *,
        needs_grad: tuple[bool, ...],
        device: Device,
        settings: Settings,
    ) -> None:
        self._settings = settings
        self._expected = given.settings
        self._forward = forward
        self._module = module
        self._tree = tree.map(_copy)
        self._weights = weights
        self._needs_grad = needs_grad
        self._device = device
        self.gradients = [
            None if layout is None else _made_up(layout, device.torch_device)
            for layout in given.layouts
        ]
        self.draws = False

    def memory(self) -> tuple[Tree, list[torch.Tensor | None]]:
        """Return memory for the tensors of a call, and for the gradients of its outputs."""
        given = [None if one is None else _like(one) for one in self.gradients]
        return self._tree.map(_copy), given

    def passes(
        self,
        static: Tree,
        given: list[torch.Tensor | None],
        between: Callable[[], object] = lambda: None,
        *,
        stand_ins: bool = True,
    ) -> Passes:
        """Run both passes; return what they have used and left.

        Args:
            static: the call.
            given: the gradients of its outputs.
            between: called between the passes.
            stand_ins: whether other parameters stand in the module.

        Raises:
            _Refused: the call returns what no graph can.
        """
        inputs = [
            leaf.detach().requires_grad_(needs)
            for leaf, needs in zip(static.leaves, self._needs_grad, strict=True)
        ]
        standing = (
            _stand_ins(self._module, self._weights) if stand_ins else nullcontext(self._weights)
        )
        with at_work(), standing as weights, torch.enable_grad():
            call: Call = static.with_leaves(inputs).value
            out = flatten(self._forward(*call.args, **call.kwargs))
            if out.unknown:
                raise _Refused(cannot_return(out.unknown[0]))
            if any(map(self._device.needs_copy, out.leaves)):
                raise _Refused(cannot_return_from_host())
            between()
            pairs = [
                (leaf, gradient)
                for leaf, gradient in zip(out.leaves, given, strict=True)
                if gradient is not None
            ]
            targets = [leaf for leaf in inputs if leaf.requires_grad] + weights
            arrived: list[list[torch.Tensor]] = []
            if pairs:
                outputs, gradients = zip(*pairs, strict=True)
                found: list[tuple[Any, ...]] = []
                outputs[0].grad_fn.register_prehook(lambda _: found.append(self._settings.now()))
                with self._settings.autocast_as(self._expected):
                    arrived = gradients_by_use(outputs, gradients, targets)
                if found != [self._expected]:
                    raise _Refused(_OTHER_SETTINGS)
        return Passes(
            inputs=static.leaves, out=out, given=given, targets=targets, gradients=arrived
        )

    def memory_of_all(self) -> list[torch.Tensor]:
        """Return the tensors that a run finds in memory, beside the module's."""
        return [*self._tree.leaves, *[one for one in self.gradients if one is not None]]

    def run(self) -> Any:
        """Run both passes as written; return their results, to be compared.

        The weights are the module's own: code may find them where no other can stand.
        """
        passes = self.passes(self._tree.map(_copy), self.gradients, stand_ins=False)
        return [[leaf.detach() for leaf in passes.out.leaves], passes.gradients]

    def run_and_see_what_is_saved(self, others: Sequence[torch.Tensor]) -> Saved:
        """Run both passes; return what autograd saves between them.

        Args:
            others: tensors that the call reads, beside its arguments and weights.
        """
        static = self._tree.map(_copy)
        saved: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor.detach())
            return tensor

        states = self._device.random_state(), torch.get_rng_state()
        with ExitStack() as forward:
            hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
            forward.enter_context(hooks)
            passes = self.passes(static, self.gradients, forward.close)
        after = self._device.random_state(), torch.get_rng_state()
        self.draws = any(
            one is not None and other is not None and not torch.equal(one, other)
            for one, other in zip(states, after, strict=True)
        )
        places = {address_of(tensor) for tensor in saved if has_address(tensor)}

        def numbers_of(tensors: Sequence[torch.Tensor]) -> list[int]:
            return [number for number, one in enumerate(tensors) if address_of(one) in places]

        of_weights = set(map(address_of, self._weights))
        return Saved(
            inputs=numbers_of(static.leaves),
            outs=numbers_of(passes.out.leaves),
            tensors=[self._weights[number] for number in numbers_of(self._weights)]
            + [
                others[number]
                for number in numbers_of(others)
                if address_of(others[number]) not in of_weights
            ],
        )


@contextmanager
def _stand_ins(module: nn.Module, weights: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Let other parameters in the same memory stand in the module in the body.

    Weights that are no parameters of the module stay themselves.
    """
    made = {id(weight): _stand_in(weight) for weight in weights}
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    known: set[int] = set()
    for part in module.modules():
        table = vars(part).get("_parameters") or {}
        for name, weight in list(table.items()):
            if id(weight) in made:
                replaced.append((table, name, weight))
                known.add(id(weight))
                table[name] = made[id(weight)]
        replaced += _replace_flat_weights(part, made)
    try:
        yield [made[id(weight)] if id(weight) in known else weight for weight in weights]
    finally:
        for table, name, value in replaced:
            table[name] = value
    if any(made[id(weight)].data_ptr() != weight.data_ptr() for weight in weights):
        raise _Refused(_MOVES_WEIGHTS)


def _replace_flat_weights(
    part: nn.Module, made: dict[int, torch.Tensor]
) -> list[tuple[dict[str, Any], str, Any]]:
    """Let a recurrent module find the same parameters in its list of them; return what was there.

    Otherwise it would copy them to other memory.
    """
    kept = vars(part)
    flat, refs = kept.get("_flat_weights"), kept.get("_flat_weight_refs")
    if not isinstance(flat, list) or not isinstance(refs, list):
        return []
    others = [made.get(id(weight), weight) for weight in flat]
    kept["_flat_weights"] = others
    kept["_flat_weight_refs"] = [None if one is None else weakref.ref(one) for one in others]
    return [(kept, "_flat_weights", flat), (kept, "_flat_weight_refs", refs)]


def _stand_in(weight: torch.Tensor) -> torch.Tensor:
    made = weight.data.requires_grad_(weight.requires_grad)
    if isinstance(weight, nn.Parameter):
        made = nn.Parameter(weight.data, requires_grad=weight.requires_grad)
    vars(made).update(vars(weight))
    return made


def _states_of(leaves: Sequence[torch.Tensor]) -> list[tuple[int, bool]]:
    """Return what shows that a call has changed its arguments."""
    return [(0 if leaf.is_inference() else leaf._version, leaf.requires_grad) for leaf in leaves]


def _is_as_before(tree: Tree) -> bool:
    """Return whether the containers among the arguments have what they had."""
    now = flatten(tree.value)
    return len(now.leaves) == len(tree.leaves) and all(map(is_, now.leaves, tree.leaves))


def _objections_to_memory(
    tree: Tree, others: Sequence[torch.Tensor], watched: Watched
) -> list[Refusal]:
    """Return what is wrong with where the arguments lie."""
    # Through `.data` they are changed without another version.
    touched = watched.touched
    if touched is not None and any(address_of(one) in watched.known for one in touched.written):
        return [_CHANGES_INPUT]
    places = {address_of(other) for other in others if has_address(other)}
    if any(leaf.requires_grad and address_of(leaf) in places for leaf in tree.leaves):
        return [_OWN_WEIGHT]
    return []


def _add(seen: _Seen, refusals: Sequence[Refusal]) -> None:
    seen.objections += [one for one in refusals if one not in seen.objections]


def _note_gradients(leaves: Sequence[torch.Tensor], seen: _Seen, settings: Settings) -> None:
    """Note what the backward pass of a call is given."""
    places: dict[Any, list[int]] = {}
    for number, leaf in enumerate(leaves):
        if leaf.grad_fn is not None:
            places.setdefault(leaf.grad_fn, []).append(number)
    numbers = [leaf.output_nr for leaf in leaves]
    num_leaves = len(leaves)
    behind = _behind_others(leaves)
    # Nothing below holds a leaf or a node: torch's nodes hold their hooks, and nobody would let go.
    # Where the gradients lie that come to outputs within the call.
    within: dict[int, list[int]] = {place: [] for place in behind}
    found: dict[int, Layout] = {}
    # A pass for some outputs and another one for others read the same memory.
    passes: set[int] = set()

    def note(node_places: list[int], gradients: tuple[torch.Tensor | None, ...]) -> None:
        passes.add(torch._C._current_graph_task_id())
        _add(seen, [CREATE_GRAPH] * torch.is_grad_enabled())
        _add(seen, [SECOND_BACKWARD] * (len(passes) > 1))
        for place in node_places:
            gradient = gradients[numbers[place]]
            if gradient is None or gradient.layout is not torch.strided:
                continue
            # The loop's gradient comes first, and others are added to it.
            arrived = within.get(place, [])
            is_alone = len(arrived) == 1 and gradient.data_ptr() != arrived[0]
            if is_alone or not arrived:
                found[place] = Layout.of(gradient)
        layouts = tuple([found.get(place) for place in range(num_leaves)])
        seen.given = Given(layouts, settings.now())

    for place, consumers in behind.items():
        for node, number in consumers:
            node.register_hook(
                lambda gradients, _, place=place, number=number: _note_place(
                    within[place], gradients[number]
                )
            )
    for node, node_places in places.items():
        node.register_prehook(
            lambda gradients, node_places=node_places: note(node_places, gradients)
        )


def _note_place(places: list[int], gradient: torch.Tensor | None) -> None:
    if gradient is not None and has_address(gradient):
        places.append(gradient.data_ptr())


def _behind_others(leaves: Sequence[torch.Tensor]) -> dict[int, list[tuple[Any, int]]]:
    """Return the numbers of outputs of which others were computed, as logits beside a loss are.

    Gradients come to them within the call: from these nodes, at these places.
    """
    numbers = {
        (leaf.grad_fn, leaf.output_nr): number
        for number, leaf in enumerate(leaves)
        if leaf.grad_fn is not None
    }
    found: dict[int, list[tuple[Any, int]]] = {}
    seen: set[Any] = set()
    todo = [node for node, _ in numbers]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for place, edge in enumerate(node.next_functions):
            if edge in numbers:
                found.setdefault(numbers[edge], []).append((node, place))
            todo += [edge[0]] if edge[0] is not None else []
    return found


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Return memory of the same layout."""
    _, end = span_of(tensor)
    room = torch.empty(
        max(1, end // tensor.element_size()), dtype=tensor.dtype, device=tensor.device
    )
    return room.as_strided(tensor.size(), tensor.stride())


def _made_up(layout: Layout, device: torch.device) -> torch.Tensor:
    """Return a gradient that is unlike in all places, of no generator."""
    pairs = zip(layout.size, layout.stride, strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in pairs if size)
    ramp = torch.arange(count, device=device, dtype=torch.float32)
    values = ramp.remainder_(1009).sin_().to(layout.dtype)
    return values.as_strided(layout.size, layout.stride)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


class _Refused(Exception):  # noqa: N818
    """A rehearsal shows that there can be no graph."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


_NO_BACKWARD = (
    "calls with gradients that no backward pass follows run as written; call them under "
    "torch.no_grad()"
)


# --- refusals ---

_MOST_SEEN = 1_000
_PLAIN = (torch.Tensor, nn.Parameter)
_HOOKING = frozenset(
    [
        "register_hook",
        "register_post_accumulate_grad_hook",
        "retain_grad",
        "register_multi_grad_hook",
    ]
)


# What they say of a tensor is otherwise in a replay.
_OF_THE_CALL = frozenset(["is_leaf", "grad_fn", "_version", "_base", "data_ptr"])


def _objections_to(paths: GradientPaths) -> list[Refusal]:
    if not paths.objection:
        return []
    return [
        Refusal(
            "gradient_outside",
            f"the module cannot be one node of a backward pass: {paths.objection}",
            name="its gradients",
        )
    ]


def _hook(text: str) -> Refusal:
    return Refusal(
        "hook",
        f"{text}, which a replay would not call; set it on the captured module's outputs",
        name="a hook",
    )


def _asks(site: str) -> Refusal:
    return Refusal(
        "replaced_tensor",
        f"{site} asks for a tensor's address, version or place in autograd's graph, which are "
        "others in a replay",
        site=site,
    )


def _keeps(name: str, site: str) -> Refusal:
    where = f"{site}: " if site else ""
    return Refusal(
        "keeps_unknown",
        f"{where}the module keeps {name} from call to call; return it, and pass it as an argument",
        site=site or None,
        name=name,
    )


_CHANGES_INPUT = Refusal(
    "changes_batch",
    "the module changes a tensor that it is given; change a copy",
    name="an argument",
)
_BACKWARD_WITHIN = Refusal(
    "gradient_outside",
    "the module runs a backward pass of its own when it is called, which changes gradients; return "
    "that loss, and add it to the loop's",
    name="a backward pass within",
)
_OWN_WEIGHT = Refusal(
    "gradient_outside",
    "the module is given one of its own weights, which gets gradients as both; use it within",
    name="an argument",
)
_RETURNS_OTHERS = Refusal(
    "result",
    "the module returns a tensor that shares memory with another one, or with what it is given; return a clone",
    name="shared memory",
)
_COMPILED = Refusal(
    "compiled",
    "the module runs code of torch.compile, whose backward pass nobody can follow; capture the step instead",
    name="torch.compile",
)
_CHECKPOINT = Refusal(
    "checkpoint",
    "the module uses torch.utils.checkpoint, which runs a part of it again in the backward pass",
    name="checkpoint",
)
_OTHER_SETTINGS = Refusal(
    "gradient_outside",
    "settings of torch are others in the backward pass than in the forward pass; set them before "
    "the loop",
    name="settings",
)
_RUNS_BACKWARD = Refusal(
    "gradient_outside",
    "the module runs a backward pass itself, which a graph of its own passes does not hold; capture "
    "a function that calls it",
    name="a backward pass",
)
_REPLACED = Refusal(
    "replaced_tensor",
    "the module uses a tensor that is another one in each call; pass it as an argument, or fill one "
    "tensor in place",
)
_OTHER_WEIGHTS = Refusal(
    "gradient_outside",
    "the module does not use each time the same weights; capture the step instead",
    name="its weights",
)
_MOVES_WEIGHTS = Refusal(
    "weights",
    "the module moves its weights to other memory when it is called; capture the step instead",
    name="a weight",
)
_ON_HOST = Refusal(
    "weights",
    "the module has a weight on the host (device cpu); move it to the device",
    name="a weight",
)
_SUBCLASS = Refusal(
    "weights", "the module has a weight of a subclass of Parameter", name="a weight"
)
