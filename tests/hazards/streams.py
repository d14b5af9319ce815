"""Loops that use streams, modes of torch and CUDA graphs of their own."""

from __future__ import annotations

import torch
from torch import nn

from hazards.harness import CPU, DEVICES, GPU, HOLDS, case


def numbered(place, num=9):
    sizes = place.sizes()
    made = [place.numbers(number, sizes[number % 3]) for number in range(num)]
    return [place.pinned(x) if number % 2 else x for number, x in enumerate(made)]


def one_size(place, num=9):
    made = [place.numbers(number, place.medium) for number in range(num)]
    return [place.pinned(x) if number % 2 else x for number, x in enumerate(made)]


@case("The whole loop runs on a side stream.", devices=DEVICES)
def whole_loop_on_a_side_stream(place):
    side, results = place.stream(), []
    with place.on(side):
        for x in place.prefetch(one_size(place)):
            place.busy()
            results.append(x * 2)
    place.order(place.current(), side)
    return results


@case(
    "A side stream reads the batch, which is joined before the batch is dropped.", devices=DEVICES
)
def side_stream_joined(place):
    side, results = place.stream(), []
    for x in place.prefetch(one_size(place)):
        place.order(side, place.current())
        with place.on(side):
            place.busy()
            y = x * 3
        place.order(place.current(), side)
        results.append(y + 1)
        del x, y
    return results


@case(
    "A side stream reads the batch, which is told by `record_stream` and dropped unjoined.",
    devices=DEVICES,
)
def side_stream_recorded(place):
    side, results = place.stream(), []
    outputs = [torch.zeros(place.medium, device=place.torch_device) for _ in range(9)]
    place.order(side, place.current())
    for number, x in enumerate(place.prefetch(one_size(place))):
        place.order(side, place.current())
        with place.on(side):
            place.busy()
            outputs[number].copy_(x * 3)
        place.record_stream(x, side)
        del x
    place.order(place.current(), side)
    results.extend(outputs)
    return results


@case("A view is recorded on the side stream, the batch itself is not.", devices=(GPU,))
def view_recorded(place):
    side, results = place.stream(), []
    for x in place.prefetch(one_size(place)):
        view = x[5:]
        place.order(side, place.current())
        with place.on(side):
            place.busy()
            y = view * 3
        place.record_stream(view, side)
        del x, view
        results.append(y)
    place.order(place.current(), side)
    return results


@case("The loop is far behind: every batch is used by long work and dropped.", devices=DEVICES)
def device_far_behind(place):
    total = [torch.zeros(size, device=place.torch_device) for size in place.sizes()]
    for number, x in enumerate(place.prefetch(numbered(place, 30))):
        place.busy()
        total[number % 3].add_(x, alpha=number + 1)
        del x
    return total


@case(
    "The device is far behind while the loader allocates, fills and frees host memory.",
    devices=DEVICES,
)
def host_memory_is_used_again(place):
    def loader():
        for number in range(24):
            x = place.numbers(number, place.sizes()[number % 3])
            yield (place.pinned(x) if number % 4 else x), number
            del x
            place.pinned(torch.full((place.medium,), -1.0))

    results = []
    for x, number in place.prefetch(loader()):
        place.busy()
        results.append(x[:30] * number)
    return results


@case("The loader is a generator that changes the current stream while it reads.", devices=(GPU,))
def loader_with_a_stream_of_its_own(place):
    own = place.stream()

    def loader():
        for number in range(9):
            with place.on(own):
                place.busy()
                x = place.moved(place.pinned(place.numbers(number, place.medium))) * 2
            place.order(place.current(), own)
            place.record_stream(x, place.current())
            yield x, place.numbers(number, 5)

    return [(x + 1, y) for x, y in place.prefetch(loader())]


@case("Evaluation runs under `inference_mode`, training with the same prefetcher does not.")
def inference_and_training_in_turn(place):
    prefetcher = place.prefetch(one_size(place, 4))
    weight, results = torch.ones(1, device=place.torch_device, requires_grad=True), []
    for _ in range(2):
        with torch.inference_mode():
            for x in prefetcher:
                place.busy()
                results.append((x * weight)[:5] * 1)
        for x in prefetcher:
            x = x.clone() if place.kind == CPU else x.mul_(1)
            (x * weight).mean().backward()
        results.append(weight.grad.clone())
    return results


@case("Grad mode, autocast and default dtype are the loop's own after each batch.", verdict=HOLDS)
def modes_are_left_alone(place):
    torch.set_grad_enabled(True)
    for number, _ in enumerate(place.prefetch(numbered(place, 6))):
        assert torch.is_grad_enabled() == (number % 2 == 0)
        assert not torch.is_inference_mode_enabled()
        torch.set_grad_enabled(number % 2 == 1)
    torch.set_grad_enabled(True)


@case("The current stream after each batch is the loop's own.", devices=DEVICES, verdict=HOLDS)
def current_stream_is_left_alone(place):
    streams = [place.stream(), place.stream()]
    batches = iter(place.prefetch(numbered(place, 6)))
    before = place.current()
    for number in range(6):
        with place.on(streams[number % 2]):
            mine = place.current()
            next(batches)
            assert place.current() == mine
    assert place.current() == before


@case("A step is trained: model, loss, SGD with momentum, clipping; weights are compared.")
def a_training(place):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)).to(place.torch_device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = [
        {"x": place.numbers(n, 16, 6) / 500, "y": torch.arange(16) % 3, "id": f"{n}"}
        for n in range(8)
    ]
    losses = []
    for _ in range(2):
        for batch in place.prefetch(loader):
            sgd.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            sgd.step()
            losses.append(loss.detach())
    return losses, list(model.parameters())


@case("The user replays a CUDA graph of his own on each batch.", devices=(GPU,))
def graph_of_the_users(place):
    static = torch.zeros(place.medium, device=place.torch_device)
    graph, results = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        output = static * 2 + 1
    for x in place.prefetch(one_size(place)):
        static.copy_(x, non_blocking=True)
        graph.replay()
        place.busy()
        results.append(output.clone())
    return results


@case(
    "The user captures a CUDA graph between two batches, which reads the batch's memory.",
    devices=(GPU,),
)
def captured_between_batches(place):
    graphs, held, results = [], [], []
    for number, x in enumerate(place.prefetch(one_size(place, 6))):
        if number % 2 == 0:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                output = x * 2
            graphs.append((graph, output))
            held.append(x)
    for graph, output in graphs:
        graph.replay()
        results.append(output.clone())
    return results


@case(
    "Results go back to pinned memory by `non_blocking` copies on a side stream.", devices=(GPU,)
)
def copied_back_on_a_side_stream(place):
    side, backs = place.stream(), []
    for x in place.prefetch(one_size(place)):
        place.order(side, place.current())
        with place.on(side):
            back = torch.empty(x.shape, pin_memory=True)
            back.copy_(x, non_blocking=True)
        place.record_stream(x, side)
        backs.append(back)
        del x
    place.settle()
    return [back.to(place.torch_device) for back in backs]


@case(
    "A pinned buffer is refilled: the wait for its copy is counted.",
    devices=("simulated",),
    verdict=HOLDS,
)
def the_wait_is_counted(place):
    if place.scheduler != "lazy" or place.is_reference:
        return
    buffer = place.pinned(torch.zeros(place.medium))

    def loader():
        for number in range(6):
            buffer.fill_(number)
            yield buffer

    with place.count_waits() as waits:
        for x in place.prefetch(loader()):
            x.mul_(2)
    assert waits.count >= 1
