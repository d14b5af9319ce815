"""Warm-up runs: the eager runs of a step before its capture, for each kind."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.graphs.reads.addresses import address_of
from gapless.graphs.reads.batch_reads import ReadWatch
from gapless.graphs.reads.beside_compiled import BesideCompiled
from gapless.graphs.reads.host_run import HostRun
from gapless.graphs.reads.observation import observed
from gapless.graphs.reads.touched import TouchWatch, plain_parts
from gapless.graphs.refusal import (
    OF_TORCH,
    UNSETTLED_ORDER,
    Refusal,
    asks_of_its_call,
    forward_mode,
    host_draw,
    host_read,
    host_write,
    new_code,
    odd_read,
    unreadable,
)
from gapless.graphs.replay.written_memory import bytes_of
from gapless.graphs.side_stream import ONE_AT_A_TIME
from gapless.graphs.states import Event
from gapless.graphs.watched import Watched
from gapless.pipeline.step import Call
from gapless.pipeline.tree.flatten import flatten
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gapless.device.base import Device
    from gapless.graphs.entry import Entry
    from gapless.graphs.reads.gradient_order import GradientOrder
    from gapless.graphs.reads.host_watch import HostWatch
    from gapless.graphs.reads.touched import FirstUses
    from gapless.graphs.reads.weight_guards import KnownWeights
    from gapless.graphs.updates.update_outside import Updates
    from gapless.pipeline.tree.flatten import Tree


# A graph would keep what it was in the capture.
_COUNTED = frozenset(["_version"])

# Last runs of a kind in a row that ran code which was not there before, or in which torch compiled.
_MAX_NEW_CODE = 10

# From here on the first run of a kind is not looked at, and does not count.
_NUM_LOOKED_AT_ONCE = 50


@dataclass(eq=False)
class WarmUps:
    """Run a step as written for the first calls of each kind, and watch it.

    Kernels are loaded and chosen in these runs, workspaces and the optimizer's state are made.

    Attributes:
        host_watch: of what the step reads and writes on the host.
        ran_backward: whether a backward pass was seen to run.
        num_nodes: that the loop's thread has recorded in the last run.
    """

    num_warmup: int
    device: Device
    updates: Updates
    host_watch: HostWatch
    weights: KnownWeights
    order: GradientOrder
    use_compiled_code: bool = False
    ran_backward: bool = False
    num_nodes: int = 0
    _num_kinds: int = 0
    _num_seen: int = 0

    def are_done(self, entry: Entry) -> bool:
        """Return whether a kind had all of its runs."""
        return entry.num_watched >= self.num_warmup

    def is_last(self, entry: Entry) -> bool:
        """Return whether the next run of a kind is its last one."""
        return entry.num_watched == self.num_warmup - 1

    def once_more(self, entry: Entry) -> None:
        """Ask for another run of a kind, since what the step reads has changed."""
        entry.num_watched = self.num_warmup - 1
        entry.move(Event.CHANGED)

    def run(
        self,
        entry: Entry,
        tree: Tree,
        work: Callable[[Any], Any],
        *,
        first_uses: FirstUses | None = None,
    ) -> tuple[Any, list[Refusal], Watched]:
        """Run a step on a batch; return its result, why it cannot be captured, and what it did.

        Args:
            entry: the kind of the batch.
            tree: the batch.
            work: the step.
            first_uses: is told what the run is about to write, ahead of a run of the loop. There the first
                run of a further kind is its last one if it shows that another would show nothing else.
        """
        is_first, is_last = entry.num_watched == 0, self.is_last(entry)
        may_be_only = first_uses is not None and is_first and self._num_seen > 0
        reads = ReadWatch(
            tree.leaves,
            needs_copy=self.device.needs_copy,
            is_counted=lambda: not self.updates.is_updating,
        )
        sees_all = (is_last or may_be_only) and not self.use_compiled_code
        look: TouchWatch | None = None
        touched = beside = None
        if is_last and self.use_compiled_code and first_uses is None:
            look = beside = BesideCompiled(self.device)
        elif sees_all or first_uses is not None:
            look = TouchWatch(
                self.device,
                reads=reads if sees_all else None,
                may_wait=self.host_watch.may_wait,
                first_uses=first_uses,
                sees_reads=sees_all,
            )
        # Where no two batches are alike, to look would slow all runs that there are.
        looks = entry.is_looked_at or self._num_kinds < _NUM_LOOKED_AT_ONCE
        self._num_kinds += not entry.is_looked_at
        entry.is_looked_at = True
        gradients = self.weights.gradients()
        known = {address_of(grad) for _, grad in gradients if grad is not None}
        storages = {
            id(weight): grad.untyped_storage()._cdata
            for weight, grad in gradients
            if grad is not None and has_address(grad)
        }
        del gradients
        known |= set(map(address_of, tree.leaves))
        batch = [list(map(bytes_of, plain_parts(leaf))) for leaf in tree.leaves]
        with (
            # What is replaced for the watch is put back in the reverse order.
            ONE_AT_A_TIME,
            self.order.look() as recorded,
            observed(
                self.device,
                self.weights,
                is_updating=lambda: self.updates.is_updating,
                sees_reads=is_first or is_last,
            ) as seen,
            self.updates.watch(),
            self._watch_host(tree, entry.number) if looks else nullcontext(HostRun()) as host,
            nullcontext() if look is None else look,
        ):
            out = work(tree.value)
        self.num_nodes = recorded.by_loop
        self.weights.add(host.got_gradients)
        self.ran_backward = self.ran_backward or seen.ran_backward
        self.use_compiled_code = self.use_compiled_code or host.runs_compiled
        is_only = may_be_only and looks and host.only_computed
        # What is made by compiled code looks as if it had been there before.
        is_only = is_only and not (sees_all and host.runs_compiled)
        if sees_all and (is_last or is_only):
            touched = look
        if beside is not None:
            made = {address_of(grad) for _, grad in self.weights.gradients() if grad is not None}
            beside.forget(made | known | set(map(address_of, flatten(out).leaves)))
        refusals = self._refusals_of(host, touched, is_last=is_last or is_only)
        if recorded.by_autograd and self.order.is_given_up:
            refusals.append(UNSETTLED_ORDER)
        if refusals:
            # Alone they refuse nothing before a capture was tried: some code reads in no capture.
            refusals += [host_read(site) for site in dict.fromkeys(seen.host_reads)]
        # What torch compiles in a run hides the rest of it. In the last run no code is new: what
        # a function gets as arguments shows in two runs.
        has_new_code = is_last and host.found_code
        if looks and host.is_complete and not has_new_code:
            entry.num_watched = self.num_warmup if is_only else entry.num_watched + 1
            entry.move(Event.SEEN if self.are_done(entry) else Event.WATCHED)
        is_again = has_new_code or not host.is_complete
        entry.num_new_code = entry.num_new_code + 1 if is_again else 0
        if entry.num_new_code >= _MAX_NEW_CODE:
            refusals.append(new_code())
        if refusals or not self.are_done(entry):
            self.host_watch.let_go()
        else:
            self._num_seen += 1
        unused = {
            weight
            for weight, storage in storages.items()
            if touched is not None and not touched.has_seen(storage)
        }
        return (
            out,
            refusals,
            Watched(
                kept=host.kept,
                host_reads=seen.host_reads,
                batch_reads=reads.found,
                other_reads=reads.unguarded(seen.reads_of_step),
                touched=touched,
                ran_backward=seen.ran_backward,
                known=known,
                batch=batch,
                unused=unused,
                beside=beside,
            ),
        )

    def _refusals_of(
        self, host: HostRun, touched: TouchWatch | None, *, is_last: bool
    ) -> list[Refusal]:
        """Return what a run showed that no graph could repeat."""
        objection = self.updates.objection()
        refusals = [] if objection is None else [Refusal("update", objection)]
        refusals += [host_write(write) for write in host.writes]
        refusals += [odd_read(read) for read in host.odd]
        refusals += [] if host.failure is None else [unreadable(host.failure)]
        refusals += [forward_mode(site) for site in host.forward_modes]
        asks = self.host_watch.site_of_name(_COUNTED) if is_last else None
        refusals += [] if asks is None else [asks_of_its_call(asks)]
        refusals += [one for code, one in OF_TORCH.items() if self.host_watch.ran(code)]
        if touched is not None:
            refusals += [host_draw(site) for site in dict.fromkeys(touched.host_draws)]
        return refusals

    def _watch_host(self, tree: Tree, number: int) -> AbstractContextManager[HostRun]:
        call = tree.value
        if isinstance(call, Call):
            return self.host_watch.watch(call.args, call.kwargs, key=number)
        return self.host_watch.watch((call,), {}, key=number)
