"""Steps that are launched as one piece."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import sys
import warnings
from unittest.mock import patch

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

import gapless
import toy_steps
from gapless.graphs.consent import Readiness
from gapless.graphs.ranks import calls_of_ranks
from gapless.loop.train_loop import TrainLoop
from simulation.registry import FEW, VERY_FEW, scenario
from simulation.workloads import Regression, TwoRanks, counts, read_back, regression_data


def mixed_shapes():
    """Return batches of four, three and two rows, in turns."""
    data = regression_data() * 2
    return [tuple(part[: 4 - number % 3] for part in batch) for number, batch in enumerate(data)]


def check_counts(report, *, num_graphs, num_steps, most_replays):
    """See that all steps are counted; replays begin when the verdict on a graph has arrived."""
    assert report.num_graphs == num_graphs
    assert report.num_replays + report.num_eager == num_steps
    assert report.num_replays <= most_replays


def train_plainly(batches):
    model = Regression()
    losses = []
    for batch in batches:
        out = model.forward(batch)
        model.backward(out)
        losses.append(out.loss.item())
    return losses, model.weight.detach().clone()


@scenario()
def a_graph_for_each_shape(device):
    """Graphs that share memory and are launched in turns give the sequential result."""
    losses, weight = train_plainly(mixed_shapes() * 2)
    model = Regression()
    with TrainLoop(plan="captured", device=device) as loop:
        results = [loop.run_epoch(mixed_shapes(), model) for _ in range(2)]
        copied = read_back(device, model.weight)
    report = loop.capture_report
    assert losses == results[0].losses + results[1].losses
    assert torch.equal(weight, copied)
    assert list(map(counts, results)) == [{"capture": 3, "epoch_end": 1}, {"epoch_end": 1}]
    check_counts(report, num_graphs=3, num_steps=44, most_replays=35)
    # The end of an epoch waits for all verdicts.
    assert report.num_replays >= 22


@scenario(num_seeds=FEW)
def ranks_that_capture_together(device):
    """The host waits for each proof, since all ranks replay a graph from the same step on."""
    losses, weight = train_plainly(mixed_shapes() * 2)
    model = Regression()
    with TrainLoop(plan="captured", device=device, ranks=TwoRanks()) as loop:
        results = [loop.run_epoch(mixed_shapes(), model) for _ in range(2)]
        copied = read_back(device, model.weight)
    report = loop.capture_report
    assert losses == results[0].losses + results[1].losses
    assert torch.equal(weight, copied)
    # Before each capture, after it, before its proof and after that; then whether a graph was lost.
    assert counts(results[0]) == {"capture": 6, "agreement": 12, "epoch_end": 1}
    assert counts(results[1]) == {"agreement": 1, "epoch_end": 1}
    assert (report.num_graphs, report.num_replays) == (3, 2 * 22 - 9)


@scenario(num_seeds=VERY_FEW)
def ranks_that_train_inside_autocast(device):
    """No graph takes a call there: the ranks agree on that, and run on."""
    inside = torch.autocast(device.torch_device.type, dtype=torch.bfloat16)
    with TrainLoop(plan="captured", device=device, ranks=TwoRanks()) as loop, inside:
        loop.run_epoch(regression_data(), Regression())
    report = loop.capture_report
    assert [one.kind for one in report.refusals] == ["inside_autocast"]
    assert (report.num_graphs, report.num_replays) == (0, 0)


@scenario(num_seeds=VERY_FEW)
def a_value_of_a_batch_of_one_rank(device):
    """Other ranks may find another value in theirs, and would not replay the same."""
    model = Regression()

    def step(batch):
        rows, _ = batch
        if not torch.cuda.is_current_stream_capturing() and not bool((rows < 1e9).all()):
            return None
        out = model.forward(batch)
        model.backward(out)
        return out

    loop = TrainLoop(plan="captured", device=device, ranks=TwoRanks())
    with device.allow_waits(), loop:
        loop.run_epoch(regression_data(), step)
    (refusal,) = loop.capture_report.refusals
    assert (refusal.kind, loop.capture_report.num_graphs) == ("host_read", 0)
    assert "may be another on each rank" in refusal.text


@scenario(num_seeds=FEW)
def a_step_that_cannot_be_captured(device):
    """It runs on as it did, and the line that forbids a capture is named after one attempt."""

    class Curious(Regression):
        def backward(self, out):
            out.loss.item()
            super().backward(out)

    losses, weight = train_plainly(regression_data()[:6])
    model = Curious()
    with device.allow_waits(), TrainLoop(plan="captured", device=device) as loop:
        result = loop.run_epoch(regression_data()[:6], model)
        copied = read_back(device, model.weight)
    assert losses == result.losses
    assert torch.equal(weight, copied)
    assert counts(result) == {"capture": 1, "epoch_end": 1}
    assert loop.capture_report.num_eager == 6
    assert loop.capture_report.refusal.text.startswith("capturing.py:")
    assert loop.capture_report.refusal.text.endswith("makes the host wait for the device")


@scenario()
def shapes_captured_ahead_of_the_run(device):
    """Warm-up trains nothing: losses, weights and random numbers are those of a run without it."""
    losses, weight = train_plainly(mixed_shapes())
    model = Regression()
    start = device.device_buffer(12).view(torch.float32).view(3, 1)
    start.copy_(model.weight.detach(), non_blocking=True)
    module = torch.nn.Module()
    module.weight = model.weight = torch.nn.Parameter(start)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    done = []
    with TrainLoop(plan="captured", device=device) as loop:
        loop.capture_ahead(
            mixed_shapes()[:3], model, model=module, optimizer=optimizer, on_batch=done.append
        )
        result = loop.run_epoch(mixed_shapes(), model)
        copied = read_back(device, model.weight)
    assert losses == result.losses
    assert torch.equal(weight, copied)
    assert done == [1, 2, 3]
    assert counts(result) == {"epoch_end": 1}
    assert (loop.capture_report.num_graphs, loop.capture_report.num_eager) == (3, 0)


class Accumulating(Regression):
    """Updates after every second batch, which says so."""

    def step(self, batch):
        out = self.forward(batch[:2])
        out.loss.backward()
        if batch[2]:
            with torch.no_grad():
                self.weight -= 0.1 * self.weight.grad
            self.weight.grad.zero_()
        return out


@scenario()
def gradients_that_graphs_add_to(device):
    """Gradients kept between batches are found by every graph, also after a warm-up."""
    data = [(*batch, number % 2 == 1) for number, batch in enumerate(regression_data()[:10])]
    plain = Accumulating()
    losses = []
    for batch in data:
        losses.append(plain.step(batch).loss.item())
    model = Accumulating()
    start = device.device_buffer(12).view(torch.float32).view(3, 1)
    start.copy_(model.weight.detach(), non_blocking=True)
    module = torch.nn.Module()
    module.weight = model.weight = torch.nn.Parameter(start)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    with TrainLoop(plan="captured", device=device) as loop:
        loop.capture_ahead(data[:2], model.step, model=module, optimizer=optimizer)
        kept = []
        result = loop.run_epoch(
            data, model.step, on_batch=lambda _: kept.append(torch.full_like(start, float("nan")))
        )
        copied = read_back(device, model.weight)
    assert losses == result.losses
    assert torch.equal(plain.weight.detach(), copied)
    assert (loop.capture_report.num_graphs, loop.capture_report.num_eager) == (2, 0)


def made_training(device):
    """Return a training of `toy_steps`, whose weights are brought by copies that block."""
    with device.allow_waits():
        return toy_steps.Training(device)


def captured_ahead(device, training):
    """Return the report of a step of `toy_steps` that was to run ahead."""
    with TrainLoop(plan="captured", device=device) as loop:
        return loop.capture_ahead(
            training.data[:1], training.step, model=training.model, optimizer=training.optimizer
        )


@scenario(only="asap")
def a_step_that_may_change_other_objects_is_captured_as_batches_come(device):
    """What it does not say cannot be put back."""
    training = made_training(device)
    training.changes_no_other_objects = False
    report = captured_ahead(device, training)
    assert report.num_graphs == 0
    assert "changes_no_other_objects" in report.note


@scenario(only="asap")
def a_step_of_sharded_weights_does_not_run_ahead(device):
    """No graph could take them, and what gathers them keeps more than Python shows."""
    training = made_training(device)
    training.part = torch.nn.Linear(2, 2)
    named = {"__module__": "torch.distributed.fsdp"}
    training.part.__class__ = type("FSDPModule", (torch.nn.Linear,), named)
    report = captured_ahead(device, training)
    assert report.num_graphs == 0
    assert "fully_shard" in report.note


@scenario(only="asap")
def momentum_that_begins_as_a_gradient(device):
    """What the first step makes is put back, so that graphs of it are captured when it is there."""
    training = made_training(device)
    training.group["dampening"] = 0.5
    report = captured_ahead(device, training)
    assert "which was put back" in report.note
    assert training.optimizer.state == {}


# --- in a loop that is not ours ---


def on_device(device, model):
    """Put a model's weights on the device; return a module and an optimizer of them."""
    start = device.device_buffer(12).view(torch.float32).view(3, 1)
    start.copy_(model.weight.detach(), non_blocking=True)
    module = torch.nn.Module()
    module.weight = model.weight = torch.nn.Parameter(start)
    return module, torch.optim.SGD([model.weight], lr=0.1)


def a_loop_of_three_lines(device, step):
    """Return what anybody's own loop brings home of eleven batches of three shapes."""
    losses = gapless.DeferredLoss(device)
    for batch in gapless.prefetch(mixed_shapes(), device):
        losses.add(step(batch).loss)
    losses.drain()
    return losses.history


@scenario(num_seeds=2 * VERY_FEW)
def a_captured_step_in_a_loop_of_ones_own(device):
    """Each shape is captured when it comes for the third time; the values are the plain loop's."""
    losses, weight = train_plainly(mixed_shapes())
    model = Regression()
    on_device(device, model)
    step = gapless.capture(model, device=device)
    found = a_loop_of_three_lines(device, step)
    assert losses == found
    assert torch.equal(weight, read_back(device, model.weight))
    check_counts(step.report, num_graphs=3, num_steps=22, most_replays=13)
    assert step.report.refusal is None


def put(device, batch):
    """Return a batch on the device, copied by the current stream."""
    moved = [device.device_buffer(part.nbytes).view(part.dtype).view(part.shape) for part in batch]
    for target, source in zip(moved, batch, strict=True):
        target.copy_(source, non_blocking=True)
    return tuple(moved)


def two_streams(device):
    """Return two streams that come after what was queued so far."""
    streams = [device.create_stream(), device.create_stream()]
    for stream in streams:
        device.wait_stream(stream, device.current_stream())
    return streams


@scenario(num_seeds=2 * VERY_FEW)
def calls_from_two_streams(device):
    """Each comes after those before, and nobody else has put the streams in order."""
    losses, weight = train_plainly(regression_data())
    model = Regression()
    on_device(device, model)
    step = gapless.capture(model, device=device)
    streams, kept = two_streams(device), []
    for number, batch in enumerate(regression_data()):
        # Two by two, so that a stream also goes on where it was.
        with device.use_stream(streams[number // 2 % 2]):
            kept.append(step(put(device, batch)).loss)
    for stream in streams:
        device.wait_stream(device.current_stream(), stream)
    assert losses == [read_back(device, loss).item() for loss in kept]
    assert torch.equal(weight, read_back(device, model.weight))
    assert step.report.num_graphs == 1


@scenario(num_seeds=2 * VERY_FEW)
def a_replay_while_another_thread_is_on_the_side_stream(device):
    """It comes after what that thread has queued there so far."""
    losses, weight = train_plainly(regression_data())
    model = Regression()
    on_device(device, model)
    step = gapless.capture(model, device=device)
    caller, kept = device.current_stream(), []
    for number, batch in enumerate(regression_data()):
        if number < 5:
            kept.append(step(put(device, batch)).loss)
            continue
        with step._side.use():
            model.weight.detach().mul_(1.0)
            # The current stream of another thread is its own.
            with device.use_stream(caller):
                kept.append(step(put(device, batch)).loss)
    assert losses == [read_back(device, loss).item() for loss in kept]
    assert torch.equal(weight, read_back(device, model.weight))


@contextlib.contextmanager
def ranks_of_a_user():
    """Let each run as written of a step talk to another rank, which does the same."""
    collectives = itertools.count()
    with (
        patch.object(calls_of_ranks, "user_ranks", lambda device: TwoRanks()),
        patch.object(calls_of_ranks, "collectives_so_far", lambda: {1: (2, next(collectives))}),
    ):
        yield


@scenario(num_seeds=VERY_FEW)
def the_ranks_of_a_user_capture_together(device):
    """They tell each other how far they are at each call, and each call comes after those before."""
    losses, weight = train_plainly(regression_data())
    model = Regression()
    on_device(device, model)
    waits = gapless.WaitStats()
    step = gapless.capture(model, device=device, wait_stats=waits)
    streams, kept = two_streams(device), []
    with ranks_of_a_user():
        for number, batch in enumerate(regression_data()):
            with device.use_stream(streams[number // 2 % 2]):
                kept.append(step(put(device, batch)).loss)
    for stream in streams:
        device.wait_stream(device.current_stream(), stream)
    assert losses == [read_back(device, loss).item() for loss in kept]
    assert torch.equal(weight, read_back(device, model.weight))
    assert (step.report.num_graphs, step.report.num_replays) == (1, len(losses) - 3)
    # At each call but the first, and four times at the capture and its proof less the first.
    assert waits.by_reason["agreement"].count == len(losses) - 1 + 3


@scenario(num_seeds=VERY_FEW)
def the_ranks_of_a_user_audit_together(device):
    """The host waits for what each audit has found; a call comes after those before."""
    losses, weight = train_plainly(regression_data())
    model = Regression()
    on_device(device, model)
    waits = gapless.WaitStats()
    step = gapless.capture(model, device=device, wait_stats=waits, audit_every=2)
    streams, kept = two_streams(device), []
    with ranks_of_a_user():
        for number, batch in enumerate(regression_data()):
            with device.use_stream(streams[number // 2 % 2]):
                kept.append(step(put(device, batch)).loss)
    for stream in streams:
        device.wait_stream(device.current_stream(), stream)
    assert losses == [read_back(device, loss).item() for loss in kept]
    assert torch.equal(weight, read_back(device, model.weight))
    audits = step.report.audits
    assert audits.num == audits.num_equal == step.report.num_replays > 0
    # A capture and its proof, and each audit.
    assert waits.by_reason["capture"].count == 2 + audits.num


@scenario(num_seeds=VERY_FEW)
def a_second_difference_on_any_rank_refuses_the_step(device):
    """The other rank finds a difference in each audit."""

    class Finds(TwoRanks):
        num = 0

        def agree(self, value):
            if not isinstance(value, Readiness):
                return [value, value]
            self.num += 1
            # After a capture, an answer for memory and one for what was found.
            return [value, Readiness.NEVER if self.num % 5 == 0 else value]

    ranks = Finds()
    step = gapless.capture(lambda batch: batch[0] * 2.0, device=device, audit_every=1)
    with (
        ranks_of_a_user(),
        patch.object(calls_of_ranks, "user_ranks", lambda device: ranks),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", gapless.CaptureWarning)
        for batch in regression_data() * 2:
            step(put(device, batch))
    assert len(step.report.audits.differences) == 2
    assert "proved_wrong" in {one.kind for one in step.report.refusals}


@scenario(num_seeds=VERY_FEW)
def a_second_difference_refuses_the_call(device):
    """The step calls a function that no guard sees, and that somebody replaces twice."""
    step = gapless.capture(lambda batch: batch[0] * math.cos(0.0), device=device, audit_every=1)
    with warnings.catch_warnings(), patch.object(math, "cos", math.cos):
        warnings.simplefilter("ignore", gapless.CaptureWarning)
        for number, batch in enumerate(regression_data() * 3):
            if number in (8, 20):
                math.cos = {8: lambda _: 2.0, 20: lambda _: 3.0}[number]
            read_back(device, step(put(device, batch)))
    assert len(step.report.audits.differences) == 2, str(step.report)
    assert step.report.refusal.kind == "proved_wrong", str(step.report)


@scenario(num_seeds=VERY_FEW)
def audits_of_calls_from_other_streams(device):
    """A call comes after those before, also where it waits for the verdict of an audit."""
    losses, weight = train_plainly(regression_data())
    model = Regression()
    on_device(device, model)
    step = gapless.capture(model, device=device, audit_every=2)
    streams, kept = two_streams(device), []
    for number, batch in enumerate(regression_data()):
        with device.use_stream(streams[number // 2 % 2]):
            kept.append(step(put(device, batch)).loss)
    for stream in streams:
        device.wait_stream(device.current_stream(), stream)
    assert losses == [read_back(device, loss).item() for loss in kept]
    assert torch.equal(weight, read_back(device, model.weight))
    assert step.report.audits.differences == []


@scenario(num_seeds=VERY_FEW)
def a_batch_that_is_refused_on_all_ranks_of_a_user(device):
    """It runs on the stream of all eager runs."""
    seen = []

    def note_stream(batch):
        seen.append(device.current_stream())
        return batch[0] * 1.0

    step = gapless.capture(note_stream, device=device)
    ours = (torch.ones(1),)
    with ranks_of_a_user():
        for batch in (put(device, ours), ours, ours):
            step(batch)
    assert step.report.refusal.kind == "batch_on_host"
    assert len(set(seen)) == 1


@scenario(num_seeds=VERY_FEW)
def a_refused_batch_runs_on_the_stream_of_all_eager_runs(device):
    """Autograd binds a weight's gradients to the stream that they first saw."""
    seen = []

    def note_stream(batch):
        seen.append(device.current_stream())
        return batch[0] * 1.0

    step = gapless.capture(note_stream, device=device)
    ours = (torch.ones(1),)
    for batch in (ours, put(device, ours), put(device, ours), ours):
        step(batch)
    assert step.report.refusal.kind == "batch_on_host"
    assert len(seen) == 4
    assert set(seen) == {device.shared_stream("gapless.capture")}


# --- limits ---


def hold_more_with_every_graph(device):
    """Let the device say that it holds 30,000 bytes, and with every capture as many again."""
    held, capture = [30_000], device.capture

    def count(work, **settings):
        # What is free is given back first, and more is taken.
        held[0] -= 10_000
        graph = capture(work, **settings)
        held[0] += 40_000
        return graph

    device.capture = count
    device.reserved_memory_bytes = lambda: held[0]


@scenario(num_seeds=VERY_FEW)
def a_memory_budget_leaves_out_the_shapes_that_come_last(device):
    """A shape for which there is no room runs as written, and those before it stay captured."""
    losses, weight = train_plainly(mixed_shapes())
    model = Regression()
    on_device(device, model)
    # Batches and loss rows are there before the first capture.
    with TrainLoop(plan="captured", device=device, memory_budget_bytes=1) as loop:
        assert losses == loop.run_epoch(mixed_shapes(), model).losses
        assert torch.equal(weight, read_back(device, model.weight))
    report = loop.capture_report
    assert (report.num_graphs, report.num_replays, report.num_eager) == (0, 0, 22)
    assert "which is over its budget of 1" in report.refusal.text


@scenario(num_seeds=VERY_FEW)
def a_capture_that_breaks_the_budget_is_the_last(device):
    """It is kept and replayed; the next shape is not captured."""
    losses, _ = train_plainly(mixed_shapes())
    model = Regression()
    on_device(device, model)
    with TrainLoop(plan="captured", device=device, memory_budget_bytes=40_000) as loop:
        hold_more_with_every_graph(device)
        assert losses == loop.run_epoch(mixed_shapes(), model).losses
    report = loop.capture_report
    check_counts(report, num_graphs=1, num_steps=22, most_replays=5)
    assert "holds 60,000 bytes of the device's memory and a capture took up to 40,000" in (
        report.refusal.text
    )


@scenario(num_seeds=VERY_FEW)
def a_warm_up_whose_capture_raises_puts_everything_back(device):
    """Weights and random numbers are those of before, and training goes on from there."""

    class Curious(Regression):
        def backward(self, out):
            super().backward(out)
            out.loss.item()

    losses, weight = train_plainly(regression_data()[:6])
    model, done = Curious(), []
    module, optimizer = on_device(device, model)
    with device.allow_waits(), TrainLoop(plan="captured", device=device) as loop:
        loop.capture_ahead(
            regression_data()[:1],
            model,
            model=module,
            optimizer=optimizer,
            on_batch=done.append,
        )
        assert (done, loop.capture_report.num_graphs) == ([1], 0)
        assert loop.capture_report.refusal.text.startswith("capturing.py:")
        result = loop.run_epoch(regression_data()[:6], model)
        copied = read_back(device, model.weight)
    assert losses == result.losses
    assert torch.equal(weight, copied)


# --- numbers of the optimizer ---


class WithSgd(Regression):
    """Trained by one of torch's optimizers."""

    def train_by(self, optimizer):
        self.optimizer = optimizer
        return self

    def backward(self, out):
        self.optimizer.zero_grad()
        out.loss.backward()
        self.optimizer.step()


def rates_of_epochs(run_epoch, optimizer):
    """Train with a rate that is halved after every epoch; return all losses."""
    losses = []
    for _epoch in range(3):
        losses += run_epoch()
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    return losses


def check_a_rate_that_changes(device, rate, *, num_graphs):
    """Train plainly and captured with `rate()`, halved after every epoch; compare."""

    def plainly():
        losses = []
        for batch in regression_data()[:6]:
            out = plain.forward(batch)
            plain.backward(out)
            losses.append(out.loss.item())
        return losses

    plain = WithSgd()
    plain.train_by(torch.optim.SGD([plain.weight], lr=rate()))
    expected = rates_of_epochs(plainly, plain.optimizer)
    model = WithSgd()
    model.train_by(on_device(device, model)[1])
    model.optimizer.param_groups[0]["lr"] = rate()
    with TrainLoop(plan="captured", device=device) as loop:
        found = rates_of_epochs(
            lambda: loop.run_epoch(regression_data()[:6], model).losses, model.optimizer
        )
        assert torch.equal(plain.weight.detach(), read_back(device, model.weight))
    assert expected == found
    check_counts(loop.capture_report, num_graphs=num_graphs, num_steps=18, most_replays=15)
    assert loop.capture_report.refusal is None


@scenario(num_seeds=VERY_FEW)
def a_rate_that_changes_is_captured_anew(device):
    """A learning rate that is a Python number takes effect also where work is captured."""
    check_a_rate_that_changes(device, lambda: 0.1, num_graphs=2)


@scenario(num_seeds=VERY_FEW)
def a_rate_that_always_changes_is_read_in_each_step(device):
    """A schedule on the host for every step is followed, after its first change by one graph."""

    class Scheduled(WithSgd):
        def on_host(self, batch):
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.9

    plain = Scheduled()
    plain.train_by(torch.optim.SGD([plain.weight], lr=0.1))
    expected = []
    for batch in regression_data():
        plain.on_host(batch)
        out = plain.forward(batch)
        plain.backward(out)
        expected.append(out.loss.item())
    model = Scheduled()
    model.train_by(on_device(device, model)[1])
    with TrainLoop(plan="captured", device=device) as loop:
        assert expected == loop.run_epoch(regression_data(), model).losses
        assert torch.equal(plain.weight.detach(), read_back(device, model.weight))
    check_counts(loop.capture_report, num_graphs=2, num_steps=11, most_replays=6)
    assert loop.capture_report.refusal is None


@scenario(num_seeds=VERY_FEW)
def a_capture_that_fails_leaves_no_gradients(device):
    """A backward pass that was captured and never ran adds nothing to the next one's gradients."""

    class Curious(WithSgd):
        def backward(self, out):
            out.loss.backward()
            out.loss.item()
            self.optimizer.step()
            self.optimizer.zero_grad()

    plain = WithSgd()
    plain.train_by(torch.optim.SGD([plain.weight], lr=0.1))
    expected = []
    for batch in regression_data():
        out = plain.forward(batch)
        plain.backward(out)
        expected.append(out.loss.item())
    model = Curious()
    model.train_by(on_device(device, model)[1])
    with device.allow_waits(), TrainLoop(plan="captured", device=device) as loop:
        assert expected == loop.run_epoch(regression_data(), model).losses
    assert loop.capture_report.num_graphs == 0
    assert loop.capture_report.refusal.kind == "host_read"


# --- graphs that are not used ---


@scenario(num_seeds=VERY_FEW)
def a_graph_that_computes_something_else_is_refused(device):
    """It is never replayed for a batch that counts, and the report says what is wrong."""
    losses, weight = train_plainly(regression_data())
    model = Regression()
    on_device(device, model)
    capture = device.capture

    def capture_more(work, **settings):
        def queue(cut):
            work(cut)
            model.weight.detach().add_(1.0)

        return capture(queue, **settings)

    device.capture = capture_more
    step = gapless.capture(model, device=device)
    batches = gapless.prefetch(regression_data(), device)
    # To read a loss lets the verdict arrive.
    assert losses == [read_back(device, step(batch).loss).item() for batch in batches]
    assert torch.equal(weight, read_back(device, model.weight))
    check_counts(step.report, num_graphs=1, num_steps=11, most_replays=0)
    assert step.report.refusal.kind == "proved_wrong"
    assert "self.weight" in step.report.refusal.text


class _Counts(TorchFunctionMode):
    """Counts the functions of torch that are called inside it."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **kwargs or {})


def check_calls_that_are_watched(device, watched, name, kind="watched_by_mode"):
    """Call a captured step inside a mode, which is to see every call."""
    step = gapless.capture(lambda batch: batch[0] * 2.0, device=device)
    batch = put(device, (torch.ones(1),))
    for _ in range(5):
        with watched:
            assert read_back(device, step(batch)).item() == 2.0
    assert (step.report.num_replays, step.report.num_eager) == (0, 5)
    assert (step.report.refusal.kind, step.report.refusal.name) == (kind, name)


@scenario(num_seeds=1)
def calls_inside_a_mode_run_as_written(device):
    """A mode that counts what is called counts in every call."""
    check_calls_that_are_watched(device, _Counts(), "_Counts")


@scenario(num_seeds=1)
def calls_inside_anomaly_detection_run_as_written(device):
    """It looks at the gradients of every backward pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watched = torch.autograd.detect_anomaly()
    check_calls_that_are_watched(device, watched, "torch.autograd.set_detect_anomaly")


class _Again:
    """A context that is made anew each time."""

    def __init__(self, make):
        self._make, self._made = make, []

    def __enter__(self):
        self._made.append(self._make())
        return self._made[-1].__enter__()

    def __exit__(self, *failure):
        return self._made.pop().__exit__(*failure)


@scenario(num_seeds=1)
def calls_where_parametrized_weights_are_cached_run_as_written(device):
    """A graph would not renew them when the context is entered again."""
    name = "torch.nn.utils.parametrize.cached()"
    watched = _Again(torch.nn.utils.parametrize.cached)
    check_calls_that_are_watched(device, watched, name, "inside_cached")


class _ProfilerInC:
    """Watches this thread as a profiler made in C does: what it hands to Python cannot be called."""

    _KIND = ctypes.PYFUNCTYPE(
        ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    )

    def __init__(self):
        self._callback = self._KIND(lambda *_: 0)

    def __enter__(self):
        ctypes.pythonapi.PyEval_SetProfile(self._callback, ctypes.py_object(self))

    def __exit__(self, *failure):
        sys.setprofile(None)


@scenario(num_seeds=1, only="asap")
def calls_beside_a_profiler_made_in_c_run_as_written(device):
    """Only one profiler can see a thread, and gapless would have to watch the calls itself."""
    name = f"{_ProfilerInC.__module__}._ProfilerInC"
    check_calls_that_are_watched(device, _ProfilerInC(), name)


class _Fivefold(torch.nn.Linear):
    """A layer that takes the place of another, with its weights."""

    def forward(self, x):
        return super().forward(x) * 5.0


@scenario(num_seeds=1)
def a_layer_gets_another_class(device):
    """Its weights and attributes are what they were."""
    layer = torch.nn.Linear(1, 1, bias=False, device=device.torch_device)
    with torch.no_grad():
        layer.weight.fill_(3.0)
    model = torch.nn.Sequential(layer)
    step = gapless.capture(lambda batch: model(batch[0]).detach(), device=device)
    batch = put(device, (torch.ones(1),))
    found = []
    for number in range(12):
        if number == 6:
            layer.__class__ = _Fivefold
        found.append(read_back(device, step(batch)).item())
    assert found == [3.0] * 6 + [15.0] * 6
    assert step.report.num_replays > 0


class _Averages(torch.optim.Optimizer):
    """Follows the mean of the gradients, which is another tensor after each update."""

    @torch.no_grad()
    def step(self):
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            state["mean"] = 0.5 * state.get("mean", torch.zeros_like(weight)) + 0.5 * weight.grad
            weight.sub_(state["mean"])


@scenario(num_seeds=1)
def an_update_outside_keeps_a_tensor_that_the_rest_of_the_graph_reads(device):
    """The part of the graph behind the update reads the tensor that the update has left."""
    weight = torch.ones(1, device=device.torch_device).requires_grad_()
    optimizer = _Averages([weight], {})

    def train(batch):
        optimizer.zero_grad()
        (weight * batch[0]).sum().backward()
        optimizer.step()
        return optimizer.state[weight]["mean"] * 1.0

    step = gapless.capture(train, device=device)
    found, expected, mean = [], [], 0.0
    for number in range(10):
        found.append(
            read_back(device, step(put(device, (torch.full((1,), float(number)),)))).item()
        )
        mean = 0.5 * mean + 0.5 * number
        expected.append(mean)
    assert found == expected
    assert step.report.num_replays > 0


@scenario(num_seeds=1)
def a_weight_that_only_torch_holds_is_moved(device):
    """No code names the weight, whose memory is replaced between two steps."""
    weight = torch.ones(1, device=device.torch_device).requires_grad_()
    place = torch.futures.Future()
    place.set_result(weight)

    def train(batch):
        weight = place.value()
        weight.grad = None
        (weight * batch[0]).sum().backward()
        return weight.detach() * batch[0]

    step, found = gapless.capture(train, device=device), []
    for number in range(12):
        if number == 8:
            weight.data = torch.full((1,), 5.0, device=device.torch_device)
        found.append(
            read_back(device, step(put(device, (torch.full((1,), float(number)),)))).item()
        )
    assert found == [number * (1.0 if number < 8 else 5.0) for number in range(12)]
    assert step.report.num_replays > 0


@scenario(num_seeds=1)
def calls_with_a_nested_tensor_run_as_written(device):
    """It has no shape that calls could share."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    step = gapless.capture(lambda x, rows: x * rows.size(0), device=device)
    (x,) = put(device, (torch.ones(1),))
    for _ in range(5):
        assert read_back(device, step(x, rows)).item() == 2.0
    assert (step.report.num_eager, step.report.refusal.kind) == (5, "unknown_batch")


class _Carries:
    """Keeps a tensor from call to call."""

    def __init__(self, h):
        self.h = h

    def __call__(self, batch):
        out = self.h * batch[0]
        self.h = out + self.h
        return out.clone()


@scenario(num_seeds=VERY_FEW)
def a_kept_tensor(device):
    """Each call reads what the one before left, and one call leaves one call's work."""
    expected = list(map(_Carries(torch.ones(1)), [(torch.ones(1),)] * 8))
    h, *batch = put(device, (torch.ones(1), torch.ones(1)))
    step = gapless.capture(_Carries(h), device=device)
    assert expected == [read_back(device, step(tuple(batch))) for _ in range(8)]
    assert step.report.refusal is None
    assert step.report.num_replays > 0


class _CarriesGradients(_Carries):
    """Asks for the gradients of what it keeps."""

    def __call__(self, batch):
        self.h.requires_grad_()
        out = (self.h * self.h * batch[0]).sum()
        (gradient,) = torch.autograd.grad(out, self.h)
        self.h = gradient.detach().clone()
        return out.detach()


@scenario(num_seeds=VERY_FEW)
def a_kept_tensor_that_is_to_have_gradients(device):
    """What the next call reads is copied in, whatever the step asked of the one before."""
    h, other, *batch = put(device, (torch.ones(1), 3.0 * torch.ones(1), 0.5 * torch.ones(1)))
    keeps = _CarriesGradients(h)
    step = gapless.capture(keeps, device=device)
    # Half of the gradient's two: the number that is kept stays.
    found = [read_back(device, step(tuple(batch))).item() for _ in range(4)]
    keeps.h = other
    found += [read_back(device, step(tuple(batch))).item() for _ in range(4)]
    assert found == [0.5] * 4 + [4.5] * 4
    assert step.report.refusal is None
    assert step.report.num_replays > 0


@scenario(num_seeds=VERY_FEW)
def a_step_that_goes_by_the_version_of_a_tensor(device):
    """A graph would go by the version that the tensor had in the capture."""
    x, rows = put(device, (torch.ones(1), torch.ones(1)))
    known = {}

    def by_version(batch):
        if known.get("version") != rows._version:
            known["version"], known["twice"] = rows._version, rows * 2.0
        return batch * known["twice"]

    step = gapless.capture(by_version, device=device)
    found = [read_back(device, step(x)).item() for _ in range(6)]
    rows.add_(1.0)
    found += [read_back(device, step(x)).item() for _ in range(3)]
    assert found == [2.0] * 6 + [4.0] * 3
    assert "version" in step.report.refusal.text


class DTensor(torch.nn.Parameter):
    """A weight of which each rank has a part, as far as its name goes."""


class Sharded(FSDPModule, torch.nn.Module):
    """What `fully_shard` makes of a module."""

    def __new__(cls):
        return torch.nn.Module.__new__(cls)

    def forward(self, batch):
        return batch[0] * 1.0


def names_of_refusals(device, target, *batches):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = gapless.capture(target, device=device)
        for batch in batches:
            captured(batch)
    is_step = bool(batches)
    report = captured.report if is_step else gapless.capture_report(target)
    return [one.name for one in report.refusals]


@scenario(num_seeds=VERY_FEW)
def what_lies_across_ranks_is_refused_by_name(device):
    """Modules and optimizers when they are given, steps when they have run."""
    data = [put(device, (torch.ones(2, 3),)) for _ in range(3)]
    (start,) = put(device, (torch.ones(3, 1),))
    weight, sharded = DTensor(start), Sharded()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with_part, wrapped = (
        torch.nn.Module(),
        DistributedDataParallel.__new__(DistributedDataParallel),
    )
    with_part.weight = weight
    torch.nn.Module.__init__(wrapped)
    wrapped._modules["module"] = torch.nn.Module()

    def step(batch):
        optimizer.zero_grad()
        loss = (batch[0] @ weight).sum()
        loss.backward()
        optimizer.step()
        return loss

    assert names_of_refusals(device, lambda batch: sharded(batch), *data) == ["fully_shard"]
    assert names_of_refusals(device, step, *data) == ["DTensor"]
    assert names_of_refusals(device, optimizer) == ["DTensor"]
    assert names_of_refusals(device, with_part) == ["DTensor"]
    assert names_of_refusals(device, wrapped) == ["DistributedDataParallel"]
