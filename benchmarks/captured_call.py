"""What a captured step costs the host: one call, one call in a loop, and each of its parts.

    PYTHONPATH=src python3 -m benchmarks.captured_call [--only sgd-20,adamw-220] [--json FILE]

The step has as many weights as its case says, or a model of torch's own modules, and kernels for about
`--busy-us` microseconds, so that cases differ on the host alone. Rows take turns, in rounds that begin with
another one, and each loop runs once untimed before: another row is an interlude, behind which a graph is audited.
"step" is the time from one step to the next, with the device's work; "host" ends when the last step has been
launched. Parts are timed alone, call after call, and those of the guards by what they compare.
Without a GPU, replays do nothing and the host's own work is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest import mock

import torch

import gapless
from benchmarks.facts import place_and_time
from gapless.device.cpu import CpuDevice, call
from gapless.device.find import find_device
from gapless.graphs import account
from gapless.graphs.proof import trial
from gapless.graphs.proof.same_results import NotProved
from gapless.pipeline.step import call_host_part


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.device.base import Device


MakeModel: TypeAlias = "Callable[[], torch.nn.Module]"

_WIDTH = 32


def _flat(num_weights: int) -> torch.nn.Module:
    layers = [torch.nn.Linear(_WIDTH, 1) for _ in range(num_weights // 2)]
    return torch.nn.ModuleList(layers)


def _mlp() -> torch.nn.Module:
    first, second = (torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(2))
    return torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), _flat(2)[0])


def _encoder(num_layers: int) -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)


CASES: dict[str, tuple[str, MakeModel]] = {
    f"{optimizer}-{num_weights}": (optimizer, partial(_flat, num_weights))
    for optimizer in ("sgd", "adamw")
    for num_weights in (20, 220, 800)
}
CASES["mlp"] = ("sgd", _mlp)
CASES |= {f"encoder-{number}": ("sgd", partial(_encoder, number)) for number in (18, 66)}

BARE = "bare replay"
CALL = "captured call"
LOOP = "captured call, prefetch, deferred loss"
GROUPS = "the same, eight steps a launch"
ROWS = (BARE, CALL, LOOP, GROUPS)

_GROUP = 8

_WARM_UP = 10
_WARM_LOOPS = 2
_CHAIN = 16


class _NoReplay:
    """A graph without work."""

    def replay(self) -> None:
        """Do nothing."""

    def replay_segment(self, number: int) -> None:
        """Do nothing."""


class LaunchesNothing(CpuDevice):
    """A CPU that passes for an accelerator, and whose graphs do nothing."""

    is_accelerator = True

    def needs_copy(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies elsewhere."""
        return tensor.device != self.torch_device

    def capture(
        self,
        work: Callable[[Any], object],
        *,
        like: Any = None,
        generators: Any = (),
        keeps_casts: bool = False,
    ) -> Any:
        """Run the work once, for what it returns."""
        del like, generators, keeps_casts
        work(call)
        return _NoReplay()


def _proves_nothing(*_: Any, **__: Any) -> Any:
    raise NotProved("graphs do nothing here")


class Step:
    """Train a model, by a chain of small kernels.

    Args:
        optimizer: "sgd" or "adamw".
        make: a model: of a list of layers all weights are read, others are called.
        chain: links, each of which is a kernel forward and one backward.
        device: where the step runs.
    """

    def __init__(
        self,
        optimizer: str,
        make: MakeModel,
        *,
        chain: int,
        device: torch.device,
    ) -> None:
        torch.manual_seed(0)
        self.model = make().to(device)
        self.weights = list(self.model.parameters())
        self.chain = chain
        options: dict[str, Any] = {"lr": 1e-6, "fused": True}
        self.optimizer: torch.optim.Optimizer
        if optimizer == "adamw":
            is_gpu = device.type == "cuda"
            self.optimizer = torch.optim.AdamW(self.weights, capturable=is_gpu, **options)
        else:
            self.optimizer = torch.optim.SGD(self.weights, **options)

    def __call__(self, batch: Any) -> torch.Tensor:
        """Train on a batch; return its loss."""
        x, y = batch
        if isinstance(self.model, torch.nn.ModuleList):
            chained = torch.cat([weight.flatten() for weight in self.weights])
        else:
            chained = self.model(x[None])
        for _ in range(self.chain):
            chained = chained * 0.999
        loss = (x.mean() * chained.sum() - y.float().mean()).square()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@dataclass
class Timer:
    """Times loops of `steps` steps."""

    device: Device
    steps: int
    host_batches: list[Any]

    def __post_init__(self) -> None:
        place = self.device.torch_device
        self.batch = tuple([tensor.to(place) for tensor in self.host_batches[0]])
        self.stream = self.device.create_stream()
        self.losses = gapless.DeferredLoss(self.device)
        # Graphs do not keep the weights that they train.
        self.kept: list[Step] = []

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self.device.torch_device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, loop: Callable[[], None]) -> dict[str, float]:
        """Return microseconds a step of a loop, to the end of its work and to its last launch."""
        self.synchronize()
        start = perf_counter()
        loop()
        launched = perf_counter()
        self.synchronize()
        done = perf_counter()
        per_step = 1e6 / self.steps
        return {"step": (done - start) * per_step, "host": (launched - start) * per_step}

    def part_us(self, part: Callable[[], object]) -> float:
        """Return microseconds of the host for a call, the median of several loops."""
        found = []
        for _ in range(5):
            self.synchronize()
            start = perf_counter()
            for _ in range(self.steps):
                part()
            found.append((perf_counter() - start) * 1e6 / self.steps)
        self.synchronize()
        return median(found)

    def bare_loop(self, step: Step) -> Callable[[], None]:
        """Return a loop over replays of a graph that was captured by hand."""
        for _ in range(2):
            with self.device.use_stream(self.stream):
                step(self.batch)
        self.synchronize()
        with self.device.use_stream(self.stream):
            graph = self.device.capture(lambda _: step(self.batch))
        self.kept.append(step)

        def loop() -> None:
            for _ in range(self.steps):
                graph.replay()

        return loop

    def call_loop(self, step: gapless.CapturedFunction) -> Callable[[], None]:
        """Return a loop over calls with one batch."""

        def loop() -> None:
            for _ in range(self.steps):
                step(self.batch)

        return loop

    def full_loop(self, step: gapless.CapturedFunction) -> Callable[[], None]:
        """Return the loop that users write."""
        batches = (self.host_batches * self.steps)[: self.steps]
        prefetched = gapless.prefetch(batches, self.device.torch_device.type)

        def loop() -> None:
            for batch in prefetched:
                self.losses.add(step(batch))

        return loop

    def group_loop(self, step: gapless.CapturedFunction) -> Callable[[], None]:
        """Return the loop that users write, with several steps a launch."""
        batches = (self.host_batches * self.steps)[: self.steps]
        prefetched = gapless.prefetch(batches, self.device.torch_device.type)

        def loop() -> None:
            group = []
            for batch in prefetched:
                group.append(batch)
                if len(group) == _GROUP:
                    for loss in step(group):
                        self.losses.add(loss)
                    group = []
            if group:
                for loss in step(group):
                    self.losses.add(loss)

        return loop


def graph_of(timer: Timer, step: gapless.CapturedFunction) -> Any:
    """Return the graph that a call of a step replays."""
    tree = step._trees.of((timer.batch,), {})
    variant = step._captured.entries.of_call(tree).find()
    graph = None if variant is None else variant.graph
    if graph is None:
        raise RuntimeError(f"nothing was captured: {step.report}")
    return graph


def parts_of(timer: Timer, step: gapless.CapturedFunction) -> dict[str, Callable[[], object]]:
    """Return the parts of a captured call, each as a function."""
    captured, batch, graph = step._captured, timer.batch, graph_of(timer, step)
    tree = step._trees.of((batch,), {})

    return {
        "order of calls": lambda: step._side.launch(lambda: None),
        "host part": lambda: call_host_part(captured.step, batch),
        "arguments": lambda: step._trees.of((batch,), {}),
        "key": tree.key,
        "record of the kind": lambda: captured.entries.of_call(tree),
        "guards": graph.guards.hold,
        "kind of batch": lambda: graph.why_not(tree),
        "batch into the graph": lambda: graph._inputs.fill(tree.leaves),
        "updates": graph.updates.before_replay,
        "replay": graph._graph.replay,
        "gradients": lambda: (graph.gradients.let_go(), graph.gradients.hand_out()),
        "copy of what it returns": lambda: graph._results.own(tree.leaves),
    }


def parts_of_guards(guards: Any) -> dict[str, Callable[[], object]]:
    """Return what the guards of a graph compare, each as a function."""
    parts: dict[str, Callable[[], object]] = guards.rows.parts()
    return parts


def chain_for(busy_us: float, case: tuple[str, MakeModel], timer: Timer) -> int:
    """Return how many links make the device busy for so long in a step."""
    place = timer.device.torch_device
    if place.type != "cuda":
        return 0
    found = []
    for chain in (0, _CHAIN):
        loop = timer.bare_loop(Step(*case, chain=chain, device=place))
        loop()
        found.append(min(timer.timed(loop)["step"] for _ in range(5)))
    per_link = (found[1] - found[0]) / _CHAIN
    return max(0, round((busy_us - found[0]) / per_link))


def measure(
    case: tuple[str, MakeModel], timer: Timer, *, rounds: int, busy_us: float
) -> dict[str, Any]:
    """Return the figures of one case."""
    chain = chain_for(busy_us, case, timer)

    def make() -> Step:
        return Step(*case, chain=chain, device=timer.device.torch_device)

    alone = gapless.capture(make(), device=timer.device)
    in_loop = gapless.capture(make(), device=timer.device)
    in_groups = gapless.capture(make(), device=timer.device, steps_per_launch=_GROUP)
    loops = {
        BARE: timer.bare_loop(make()),
        CALL: timer.call_loop(alone),
        LOOP: timer.full_loop(in_loop),
        GROUPS: timer.group_loop(in_groups),
    }
    for _ in range(_WARM_UP):
        alone(timer.batch)
    for loop in loops.values():
        for _ in range(_WARM_LOOPS):
            loop()
    times: dict[str, list[dict[str, float]]] = {name: [] for name in loops}
    for number in range(rounds):
        first = number % len(ROWS)
        for name in ROWS[first:] + ROWS[:first]:
            loops[name]()
            times[name].append(timer.timed(loops[name]))
        timer.losses.reset()
    rows = {
        name: {kind: median(one[kind] for one in found) for kind in ("step", "host")}
        for name, found in times.items()
    }
    parts = {name: timer.part_us(part) for name, part in parts_of(timer, alone).items()}
    of_guards = parts_of_guards(graph_of(timer, alone).guards)
    guards = {name: timer.part_us(part) for name, part in of_guards.items()}
    return {"chain": chain, "rows": rows, "rounds": times, "parts": parts, "guards": guards}


def table(name: str, found: dict[str, Any]) -> str:
    """Return the figures of a case in lines."""
    lines = [f"{name}, {found['chain']} links", f"  {'microseconds':40}{'step':>8}{'host':>8}"]
    bare = found["rows"][BARE]["step"]
    lines[-1] += f"{'over the bare graph':>22}"
    lines += [
        f"  {row:40}{one['step']:8.1f}{one['host']:8.1f}{one['step'] - bare:22.1f}"
        for row, one in found["rows"].items()
    ]
    parts = found["parts"]
    for part, us in parts.items():
        lines.append(f"    {part:46}{us:8.1f}")
        if part == "guards":
            lines += [f"      {name:44}{us:8.1f}" for name, us in found["guards"].items()]
    return "\n".join([*lines, f"    {'sum of the parts':46}{sum(parts.values()):8.1f}"])


def host_batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of 64 rows."""
    draw = torch.Generator().manual_seed(1)
    return [
        (torch.randn(64, 32, generator=draw), torch.randint(10, (64,), generator=draw))
        for _ in range(count)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measure the chosen cases, print the figures and write them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="CASES", default=",".join(CASES))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--busy-us", type=float, default=57.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    chosen = options.only.split(",")
    unknown = [name for name in chosen if name not in CASES]
    if unknown:
        print(f"unknown case {unknown[0]!r}; the cases are {', '.join(CASES)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    device = find_device(options.device)
    if device.torch_device.type == "cpu":
        device = LaunchesNothing()
    timer = Timer(device=device, steps=options.steps, host_batches=host_batches(16))
    facts = place_and_time(options.device, module="benchmarks.captured_call")
    print(f"{facts['hardware']}, {facts['versions']}, commit {facts['commit']}")
    cases = {}
    # A graph without work would prove nothing.
    prove = _proves_nothing if isinstance(device, LaunchesNothing) else trial.prove
    for name in chosen:
        # All is captured before it is timed, whatever that costs.
        allowed = mock.patch.object(account, "ALLOWANCE_S", float("inf"))
        with mock.patch.object(trial, "prove", prove), allowed:
            cases[name] = measure(
                CASES[name], timer, rounds=options.rounds, busy_us=options.busy_us
            )
        print(table(name, cases[name]), flush=True)
    if options.json is not None:
        found = {"facts": facts, "steps": options.steps, "cases": cases}
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
