"""Loops of users on several ranks, as written and with gapless: what each has to come to.

Each rank runs `user_loops.py DEVICE RESULTS LOOP...` and writes one line of JSON for each loop: what
came of it, and what all ranks have to agree on. The words for what came of it:

    same         all bits are those of the loop as written
    refused      gapless said why not, by an error of its own

and anything else is a description of what is wrong.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gapless
from gapless.errors import GaplessError


if TYPE_CHECKING:
    from collections.abc import Callable


NUM_STEPS = 30

# DDP settles its buckets in its first steps.
NUM_WARMUP = 11

SAME, REFUSED = "same", "refused"


@dataclass
class Place:
    """Where a loop runs, and what of it all ranks have to agree on."""

    rank: int
    world: int
    device: torch.device
    agreed: dict[str, Any] = field(default_factory=dict)

    def model(self, *, seed=0, **settings):
        """Return a model under DDP, made on a side stream as captures need it, and its optimizer."""
        torch.manual_seed(seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
        ).to(self.device)
        with self._side_stream():
            called = DistributedDataParallel(model, **settings)
        return called, torch.optim.AdamW(model.parameters(), lr=0.01)

    @contextlib.contextmanager
    def _side_stream(self):
        if self.device.type == "cpu":
            yield
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield
        torch.cuda.current_stream().wait_stream(side)

    def batches(self, *, num=NUM_STEPS, sizes=(6,), on_device=True):
        """Return this rank's batches of random numbers; the size of each follows its number."""
        draw = torch.Generator().manual_seed(100 + self.rank)
        made = [torch.randn(sizes[n % len(sizes)], 8, generator=draw) for n in range(num)]
        return [batch.to(self.device) for batch in made] if on_device else made


def bits_of(model):
    """Return a text of all weights, equal if all bits are."""
    found = hashlib.sha256()
    for weight in model.parameters():
        found.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def compared(plain, ours):
    """Return the word for two results that have to be equal."""
    return SAME if plain == ours else f"not the same: {plain} and {ours}"


LOOPS: dict[str, tuple[Callable[[Place], str], set[str]]] = {}


def loop(*, expected=(SAME,)):
    """Register a loop, and the words that may come of it."""

    def register(function):
        LOOPS[function.__name__] = (function, set(expected))
        return function

    return register


def train_step(model, optimizer):
    """Return a step that trains on a batch."""

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def trained(place, batches, *, step_of=train_step, wrap=None, losses=None, **settings):
    """Train a new model; return the bits of its weights, with the losses of this rank."""
    model, optimizer = place.model(**settings)
    step = step_of(model, optimizer)
    if wrap is not None:
        step = wrap(step)
    read = []
    for batch in batches:
        loss = step(batch)
        if losses is not None:
            losses.add(loss)
        read.append(loss.detach().clone())
    return bits_of(model), [value.item() for value in read]


# --- prefetch ---------------------------------------------------------------------------------


@loop()
def prefetched(place):
    """Batches come from `prefetch`."""
    plain = trained(place, place.batches())
    ours = trained(place, gapless.prefetch(place.batches(on_device=False), place.device))
    place.agreed["weights"] = ours[0]
    return compared(plain, ours)


@loop()
def prefetched_ahead_from_a_loader(place):
    """A DataLoader with a DistributedSampler, read ahead by a thread."""
    data = torch.utils.data.TensorDataset(
        torch.randn(101, 8, generator=torch.Generator().manual_seed(5))
    )

    def loader():
        sampler = torch.utils.data.DistributedSampler(data, place.world, place.rank, seed=3)
        return torch.utils.data.DataLoader(data, batch_size=6, sampler=sampler)

    plain = trained(place, [x.to(place.device) for (x,) in loader()])
    ours = trained(place, (x for (x,) in gapless.prefetch(loader(), place.device, depth=2)))
    place.agreed["weights"] = ours[0]
    return compared(plain, ours)


# --- losses -----------------------------------------------------------------------------------


def mean_of_all_ranks(place, values, weights=None):
    """Return the weighted mean over all ranks and steps, as it was always computed."""
    weights = weights or [1.0] * len(values)
    sums = torch.tensor(
        [sum(v * w for v, w in zip(values, weights, strict=True)), sum(weights)],
        dtype=torch.float64,
        device=place.device if place.device.type == "cpu" else "cpu",
    )
    gathered = [None] * place.world
    dist.all_gather_object(gathered, sums.tolist())
    return sum(one[0] for one in gathered) / sum(one[1] for one in gathered)


def nearly(expected, found):
    return (
        SAME
        if abs(expected - found) <= 1e-6 * max(1.0, abs(expected))
        else f"{found}, not {expected}"
    )


@loop()
def losses_of_all_ranks(place):
    """The mean is that of all ranks, on all ranks."""
    losses = gapless.DeferredLoss(place.device, ranks=True)
    _, values = trained(place, place.batches(), losses=losses)
    mean = losses.mean()
    place.agreed["mean"] = mean
    return nearly(mean_of_all_ranks(place, values), mean)


@loop()
def losses_by_weight(place):
    """Tokens differ by rank and step; the mean is that of a token."""
    losses = gapless.DeferredLoss(place.device, ranks=True)
    values = [float(10 * place.rank + number) for number in range(20)]
    weights = [1 + (number + place.rank) % 4 for number in range(20)]
    for value, weight in zip(values, weights, strict=True):
        losses.add(torch.tensor(value, device=place.device), weight=weight)
    mean = losses.mean()
    place.agreed["mean"] = mean
    return nearly(mean_of_all_ranks(place, values, weights), mean)


@loop()
def losses_after_a_reset(place):
    """Each epoch has its own mean."""
    losses = gapless.DeferredLoss(place.device, ranks=True)
    found = []
    for epoch in range(3):
        values = [float(100 * epoch + 10 * place.rank + number) for number in range(7)]
        for value in values:
            losses.add(torch.tensor(value, device=place.device))
        found.append((losses.mean(), mean_of_all_ranks(place, values)))
        losses.reset()
    place.agreed["means"] = [mean for mean, _ in found]
    wrong = [pair for pair in found if nearly(*pair[::-1]) != SAME]
    return SAME if not wrong else f"wrong means: {wrong}"


@loop()
def losses_told_while_training(place):
    """Whoever is told gets the values of the same steps, each the mean over ranks."""
    told = []
    losses = gapless.DeferredLoss(
        place.device,
        ranks=True,
        every=5,
        on_values=lambda values: told.append((values.step, values.values["loss"])),
    )
    for number in range(23):
        losses.add(torch.tensor(float(number + place.rank), device=place.device))
    losses.drain()
    half = (place.world - 1) / 2
    expected = [(number, number + half) for number in (4, 9, 14, 19)]
    # Rank 0 is told; others may be, and then of the same.
    if told or place.rank == 0:
        return SAME if told == expected else f"told {told}, not {expected}"
    return SAME


@loop(expected=[REFUSED])
def losses_of_unequal_steps(place):
    """A rank has one step more: said on all ranks, and none waits for ever."""
    losses = gapless.DeferredLoss(place.device, ranks=True)
    for number in range(10 + place.rank):
        losses.add(torch.tensor(float(number), device=place.device))
    return f"a mean of {losses.mean()}"


@loop(expected=[REFUSED])
def losses_sent_by_one_rank_more_often(place):
    """A rank has sent losses that the others do not have; reading them is refused on all."""
    losses = gapless.DeferredLoss(place.device, ranks=True, every=5)
    for number in range(4 if place.rank == 0 else 6):
        losses.add(torch.tensor(float(number), device=place.device))
    return f"a mean of {losses.mean()}"


@loop(expected=[REFUSED])
def losses_read_in_another_order(place):
    """Two objects are read in an order that differs by rank, as that of a set of their names may."""
    both = [gapless.DeferredLoss(place.device, ranks=True) for _ in range(2)]
    for number in range(4):
        for place_of_one, losses in enumerate(both):
            losses.add(torch.tensor(100.0 * place_of_one + number, device=place.device))
    order = both if place.rank == 0 else reversed(both)
    return f"means of {[losses.mean() for losses in order]}"


@loop(expected=[REFUSED])
def losses_of_a_rank_without_steps(place):
    """A rank has none, as with an empty shard."""
    losses = gapless.DeferredLoss(place.device, ranks=True)
    for number in range(3 * place.rank):
        losses.add(torch.tensor(float(number), device=place.device))
    return f"a mean of {losses.mean()}"


@loop(expected=[REFUSED])
def losses_of_one_step_more_after_a_mean(place):
    """A rank adds another step after all have read."""
    losses = gapless.DeferredLoss(place.device, ranks=True)
    losses.add(torch.tensor(1.0, device=place.device))
    losses.mean()
    if place.rank:
        losses.add(torch.tensor(2.0, device=place.device))
    return f"a mean of {losses.mean()}"


@loop()
def losses_without_weight_that_are_not_finite(place):
    """The last rank has an empty batch, whose mean over no tokens is no number."""
    losses = gapless.DeferredLoss(place.device, ranks=True, warn_nonfinite=False)
    is_empty = place.rank == place.world - 1
    for value, weight in (
        (1.0, 4.0),
        (float("nan") if is_empty else 11.0, 0.0 if is_empty else 4.0),
    ):
        losses.add(
            torch.tensor(value, device=place.device),
            weight=torch.tensor(weight, device=place.device),
        )
    mean = losses.mean()
    others = 4.0 * (place.world - 1)
    expected = (4.0 * place.world + 11.0 * others) / (4.0 * place.world + others)
    return SAME if mean == expected else f"a mean of {mean}, not {expected}"


@loop()
def losses_after_a_reset_that_was_refused(place):
    """The next epoch begins anew."""
    losses = gapless.DeferredLoss(place.device, ranks=True)
    for number in range(5 + place.rank):
        losses.add(torch.tensor(float(number), device=place.device))
    try:
        losses.reset()
    except gapless.errors.RanksDifferError:
        losses.add(torch.tensor(float(place.rank), device=place.device))
        mean = losses.mean()
        return SAME if mean == (place.world - 1) / 2 else f"a mean of {mean}"
    return "not refused"


@loop(expected=[REFUSED])
def losses_of_other_names(place):
    """Ranks add other values."""
    losses = gapless.DeferredLoss(place.device, ranks=True)
    losses.add(**{"loss" if place.rank == 0 else "cost": 1.0})
    return f"a mean of {losses.mean()}"


@loop(expected=[REFUSED])
def losses_of_the_same_names_in_another_order(place):
    """Ranks add the same values, named in another order: they would be averaged with each other."""
    losses = gapless.DeferredLoss(place.device, ranks=True)
    values = {"loss": 1.0, "accuracy": 0.5}
    losses.add(**(values if place.rank == 0 else dict(reversed(values.items()))))
    return f"means of {losses.mean()}"


@loop()
def losses_with_one_nan(place):
    """One rank's loss is not a number: the mean is none, on all ranks."""
    losses = gapless.DeferredLoss(place.device, ranks=True, warn_nonfinite=False)
    for number in range(5):
        is_nan = number == 3 and place.rank == place.world - 1
        losses.add(torch.tensor(float("nan") if is_nan else 1.0, device=place.device))
    mean = losses.mean()
    return SAME if mean != mean else f"a mean of {mean}"


# --- captured steps ---------------------------------------------------------------------------


def captured(place, *, batches=None, step_of=train_step, agreed=True, **settings):
    """Train as written and captured; return the word, and let ranks agree on replays."""
    batches = batches or place.batches()
    plain = trained(place, batches, step_of=step_of, **settings)
    made = []

    def wrap(step):
        made.append(gapless.capture(step, device=place.device, num_warmup=NUM_WARMUP))
        return made[0]

    ours = trained(place, batches, step_of=step_of, wrap=wrap, **settings)
    report = made[0].report
    if agreed:
        place.agreed["replays"] = (report.num_graphs, report.num_replays)
        place.agreed["weights"] = ours[0]
    place.agreed["is refused"] = made[0].is_refused
    return compared(plain, ours)


@loop(expected=[SAME, REFUSED])
def captured_whole(place):
    """The whole step, DDP's reduction within it."""
    return captured(place)


@loop(expected=[SAME, REFUSED])
def captured_with_bucket_views(place):
    """Gradients are views of DDP's buckets."""
    return captured(place, gradient_as_bucket_view=True)


@loop(expected=[SAME, REFUSED])
def captured_with_small_buckets(place):
    """Many reductions, beside the backward pass."""
    return captured(place, bucket_cap_mb=0.0001)


@loop(expected=[SAME, REFUSED])
def captured_in_several_shapes(place):
    """All ranks see the same shape in each step."""
    return captured(place, batches=place.batches(num=60, sizes=(6, 4)))


@loop(expected=[SAME, REFUSED])
def captured_in_shapes_that_differ_by_rank(place):
    """Ranks see other shapes at other times: no rank may wait in a capture for another."""
    sizes = (6, 4, 4) if place.rank == 0 else (5, 6, 4)
    return captured(place, batches=place.batches(num=60, sizes=sizes))


@loop(expected=[SAME, REFUSED])
def captured_where_one_rank_reads(place):
    """One rank's step reads a number on the host, which no graph can: all run as written."""

    def step_of(model, optimizer):
        step = train_step(model, optimizer)

        def reading(x):
            loss = step(x)
            if place.rank == 1 and loss.item() < 0:
                raise AssertionError("a square is not negative")
            return loss

        return reading

    return captured(place, step_of=step_of)


@loop(expected=[SAME, REFUSED])
def captured_with_accumulation(place):
    """Two batches an update; the first is not reduced."""

    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            with model.no_sync():
                model(x[:3]).square().mean().backward()
            loss = model(x[3:]).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    return captured(place, step_of=step_of)


@loop(expected=[SAME, REFUSED])
def captured_with_clipping(place):
    """Gradients are clipped by their norm after the reduction."""

    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return loss

        return step

    return captured(place, step_of=step_of)


@loop(expected=[SAME, REFUSED])
def captured_with_unused_weights(place):
    """DDP looks through the graph of each step for weights that it does not use."""
    return captured(place, find_unused_parameters=True)


@loop(expected=[SAME, REFUSED])
def captured_with_own_reduction(place):
    """The step reduces by itself, without DDP's."""

    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            loss = model.module(x).square().mean()
            loss.backward()
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
            optimizer.step()
            return loss

        return step

    return captured(place, step_of=step_of)


@loop(expected=[SAME, REFUSED])
def captured_with_an_agreement_within(place):
    """The step gathers over gloo on the host: it runs as written, on all ranks."""
    side = dist.new_group(backend="gloo")

    def step_of(model, optimizer):
        step = train_step(model, optimizer)

        def gathering(x):
            loss = step(x)
            found = [None] * place.world
            dist.all_gather_object(found, len(x), group=side)
            return loss * len(set(found))

        return gathering

    return captured(place, step_of=step_of)


@loop(expected=[SAME, REFUSED])
def captured_model_and_optimizer(place):
    """The model under DDP and the optimizer are captured in place."""
    batches = place.batches(num=60)
    plain = trained(place, batches)
    model, optimizer = place.model()
    gapless.capture(model.module, optimizer, device=place.device)
    step, losses = train_step(model, optimizer), []
    for batch in batches:
        losses.append(step(batch).detach().clone())
    ours = bits_of(model), [loss.item() for loss in losses]
    reports = [gapless.capture_report(one) for one in (model.module, optimizer)]
    place.agreed["replays"] = [(one.num_graphs, one.num_replays) for one in reports]
    place.agreed["weights"] = ours[0]
    return compared(plain, ours)


@loop(expected=[SAME, REFUSED])
def captured_ddp_model(place):
    """The model that DDP made is captured in place."""
    batches = place.batches(num=60)
    plain = trained(place, batches)
    model, optimizer = place.model()
    gapless.capture(model, device=place.device)
    step, losses = train_step(model, optimizer), []
    for batch in batches:
        losses.append(step(batch).detach().clone())
    place.agreed["weights"] = bits_of(model)
    return compared(plain, (bits_of(model), [loss.item() for loss in losses]))


@loop(expected=[SAME, REFUSED])
def captured_fsdp2(place):
    """Weights are sharded by `fully_shard`: refused by that name, or the same bits."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(place.device.type, (place.world,))

    def run(wrap):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        model = fully_shard(model.to(place.device), mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        step = wrap(train_step(model, optimizer))
        losses = [step(batch).detach().clone() for batch in place.batches()]
        return [loss.item() for loss in losses], step

    plain, _ = run(lambda step: step)
    ours, step = run(
        lambda step: gapless.capture(step, device=place.device, num_warmup=NUM_WARMUP)
    )
    place.agreed["is refused"] = step.is_refused
    said = " ".join(map(str, step.report.refusals))
    is_cpu = place.device.type == "cpu"  # where nothing is captured
    if (
        step.is_refused
        and not is_cpu
        and not any(name in said for name in ("fully_shard", "FSDP"))
    ):
        return f"refused without the name: {said}"
    return compared(plain, ours)


def run_loop(name, place):
    """Run a loop; return the word for what came of it."""
    try:
        return LOOPS[name][0](place)
    except GaplessError as error:
        place.agreed["error"] = type(error).__name__
        return REFUSED


def main():
    device_name, results, *names = sys.argv[1:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if device_name == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    backend = "gloo" if device_name == "cpu" else "nccl"
    dist.init_process_group(backend)
    with (Path(results) / f"rank-{rank}.jsonl").open("w") as file:
        for name in names or LOOPS:
            place = Place(rank, world, device)
            word = run_loop(name, place)
            print(json.dumps([name, word, place.agreed]), file=file, flush=True)
            del place
            gc.collect()
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
