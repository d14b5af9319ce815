"""Deferred metrics: values from streams, threads, graphs and buffers that change."""

from __future__ import annotations

import gc
import threading
import weakref

import torch
from torch import nn

from hazards.harness import DEVICES, EVERYWHERE, GPU, HOLDS, REAL, case


@case("A running total is added and then changed in place by the next step.")
def overwritten_after_add(place):
    losses, total = place.losses(), place.moved(torch.zeros(()))
    for number in range(20):
        place.busy()
        total += number
        losses.add(total)
    total.fill_(-1)
    return losses.mean(), losses.history


@case("A static output of a CUDA graph is added after each replay.", devices=(GPU,))
def output_of_a_graph(place):
    static = torch.zeros((), device=place.torch_device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = static * 2
    losses = place.losses()
    for number in range(30):
        static.fill_(number)
        place.busy()
        graph.replay()
        losses.add(output)
    return losses.mean(), losses.history


@case("Values are added on a side stream, and the mean is read on the main one.", devices=DEVICES)
def side_stream_adds(place):
    losses, side = place.losses(), place.stream()
    for number in range(20):
        with place.on(side):
            place.busy()
            losses.add(place.scalar(1.0 * number) + 1)
    mean = losses.mean()
    place.order(place.current(), side)
    return mean, losses.history


@case("Values are added in a thread; the mean is read in the main one.", devices=REAL)
def added_in_a_thread(place):
    losses, failures = place.losses(), []

    def train():
        try:
            for number in range(200):
                losses.add(place.scalar(1.0 * number), weight=2)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert not failures, failures
    return losses.mean(), losses.history


@case("Evaluation adds under `inference_mode`, training adds outside, to one object.")
def inference_mode(place):
    losses = place.losses()
    for number in range(12):
        if number % 3:
            with torch.inference_mode():
                losses.add(place.scalar(1.0 * number))
        else:
            losses.add(place.scalar(1.0 * number, torch.float64))
    with torch.inference_mode():
        inside = losses.mean()
    losses.add(place.scalar(5.0))
    return inside, losses.mean(), losses.history


@case("The loss has a graph: it is not kept alive.", devices=REAL, verdict=HOLDS)
def graph_is_not_kept(place):
    class Marker(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, holder):
            ctx.holder = holder
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None

    class Holder:
        pass

    losses, dying = place.losses(), []
    weight = torch.ones((), device=place.torch_device, requires_grad=True)
    for _ in range(20):
        holder = Holder()
        dying.append(weakref.ref(holder))
        losses.add(Marker.apply(weight, holder))
        del holder
    gc.collect()
    assert sum(one() is not None for one in dying) == 0
    assert losses.mean() == 2.0


@case(
    "Adding one value by position never waits, from the first add on.",
    devices=DEVICES,
    verdict=HOLDS,
)
def no_wait_from_the_first(place):
    losses, x = place.losses(), place.scalar(1.0)
    place.settle()
    with place.count_waits() as waits:
        for number in range(100):
            losses.add(x * number)
            losses.poll()
            losses.latest()
            len(losses.weights)
    assert waits.count == 0, waits
    assert losses.mean() == 49.5


@case(
    "The mean of an epoch is one wait, whatever the number of adds.",
    devices=DEVICES,
    verdict=HOLDS,
)
def mean_is_one_wait(place):
    losses, x = place.losses(), place.scalar(1.0)
    for number in range(60):
        losses.add(loss=x * number, accuracy=x)
    with place.count_waits() as waits:
        losses.mean()
        losses.mean()
        _ = losses.history
    assert waits.count <= 1, waits


@case("Prefetch and deferred losses together, in a training of three epochs.", devices=EVERYWHERE)
def a_training(place):
    torch.manual_seed(2)
    model = nn.Linear(6, 3).to(place.torch_device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = [(place.numbers(n, 8, 6) / 500, torch.arange(8) % 3) for n in range(7)]
    losses, results = place.losses(), []
    for _ in range(3):
        for x, y in place.prefetch(loader):
            place.busy()
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            hits = (logits.argmax(1) == y).sum()
            losses.add(loss=loss, accuracy=hits / len(x), weight=len(x))
        results.append((losses.mean(), losses.history))
        losses.reset()
    return results, model.weight
