"""Is `auto` as fast as the best plan? Five workloads, each bound by something else.

    PYTHONPATH=src python3 -m benchmarks.auto_workloads --out runs/results

Every plan has a loop and a copy of the workload of its own, on the same batches. All are warmed up
first, `auto` until it has decided; then they take turns, an epoch of `--steps` each, in rounds that
begin with another plan each time. Every workload has a process of its own: one that fails stays in
the table with its reason. An epoch ends when its last loss is on the host, so nothing is
left out of its time. Ratios are taken round by round, since a shared host is slow for all plans of
a round.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median, quantiles

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from benchmarks.facts import place_and_time
from benchmarks.processes import fork_loader_workers, replace_text
from gapless.device.find import find_device
from gapless.device.numerics import seed_everything, set_numerics
from gapless.loop.train_loop import TrainLoop
from gapless.plans import PLANS


ROOT = Path(__file__).parents[1]

# Steps after which a plan counts as warm, and after which `auto` has to have decided.
WARM_UP = 30
MOST_WARM_UP = 900


@dataclass(frozen=True)
class Task:
    """What one plan runs: batches that can be gone through again, and a step on them."""

    batches: object
    step: object


class Encoder(nn.Module):
    """A small Transformer encoder that tells a sequence from itself: many kernels, little work."""

    def __init__(self, width, layers):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        """Return a sequence of the input's shape."""
        return self.out(self.encoder(x))


def trained(device, model, batches, *, reads=False):
    """Return a task that trains a model to return its input."""
    model = model.to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, fused=True, capturable=device.type == "cuda"
    )

    def step(batch):
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        if reads:
            loss.item()
        return loss

    return Task(batches, step)


def tensors(*shape, count=8):
    """Return batches of one shape."""
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=draw) for _ in range(count)]


def launch_bound(device, *, tiny):
    """Eight small layers: many kernels, little work."""
    return trained(device, Encoder(64, 2 if tiny else 8), tensors(8, 32, 64))


def device_bound(device, *, tiny):
    """Six large matrices, and batches that are small beside them."""
    width = 128 if tiny else 4096
    layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, 64))
    return trained(device, model, tensors(width, 64))


class Sorted(Dataset):
    """Items that need processor time to make."""

    def __init__(self, count, numbers):
        self.count, self.numbers = count, numbers

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        draw = torch.Generator().manual_seed(number)
        return torch.randn(self.numbers, generator=draw).sort().values[:64]


def data_bound(device, *, tiny):
    """A small model, and two processes that sort numbers for it."""
    dataset = Sorted(8 * 1024, 100 if tiny else 20_000)
    loader = DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True)
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())]
    return trained(device, nn.Sequential(*layers), loader)


def host_read(device, *, tiny):
    """A small model whose step reads its loss."""
    return trained(device, Encoder(64, 1 if tiny else 4), tensors(8, 32, 64), reads=True)


def image_classifier(device, *, tiny):
    """Build the example's workload."""
    del tiny
    path = ROOT / "examples" / "workload_classifier.py"
    spec = importlib.util.spec_from_file_location("workload_classifier", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    workload = module.make_workload(device)
    return Task(workload.batches, workload.step)


WORKLOADS = {
    "launch-bound": launch_bound,
    "device-bound": device_bound,
    "data-bound": data_bound,
    "host-read": host_read,
    "image-classifier": image_classifier,
}


class Repeated:
    """So many batches, gone through again and again; a loader stays the same one."""

    def __init__(self, batches, count):
        self.batches, self.count = batches, count
        self.num_workers = getattr(batches, "num_workers", 0)

    def __iter__(self):
        yield from islice(_passes(self.batches), self.count)


def _passes(batches):
    while True:
        yield from batches


class Runner:
    """A plan, its loop and its task."""

    def __init__(self, plan, make, device):
        seed_everything(1)
        self.loop = TrainLoop(plan=plan, device=device)
        with self.loop.on_compute_stream():
            self.task = make(self.loop.device.torch_device)
        self.rounds = []

    def run(self, steps):
        """Return ms a step of an epoch of so many steps."""
        result = self.loop.run_epoch(Repeated(self.task.batches, steps), self.task.step)
        return result.wall_ms / steps

    def warm_up(self):
        """Run until the plan is what it will be."""
        # Epochs of `auto` are long, so that its steps are read while later ones run.
        steps = 5 * WARM_UP if self.loop.plan.graphs == "auto" else WARM_UP
        done = 0
        while not done or (self._is_undecided() and done < MOST_WARM_UP):
            self.run(steps)
            done += steps

    def _is_undecided(self):
        return self.loop.plan.graphs == "auto" and self.loop.diagnosis is None


def measure(name, plans, *, device, options, tell, is_late):
    """Return what came of a workload under every plan; at least one round is run."""
    make = partial(WORKLOADS[name], tiny=options.tiny)
    runners = {plan: Runner(plan, make, device) for plan in plans}
    for plan, runner in runners.items():
        start = time.perf_counter()
        runner.warm_up()
        tell(f"{name}  {plan}: warm after {time.perf_counter() - start:.1f} s")
    for number in range(options.rounds):
        if number and is_late():
            break
        order = [*plans[number % len(plans) :], *plans[: number % len(plans)]]
        for plan in order:
            runners[plan].rounds.append(runners[plan].run(options.steps))
            tell(f"{name}  round {number + 1}  {plan}: {runners[plan].rounds[-1]:.2f} ms a step")
    found = summarize(name, {plan: runner.rounds for plan, runner in runners.items()})
    auto, captured = runners["auto"].loop, runners["captured"].loop
    found["line"] = None if auto.diagnosis is None else auto.diagnosis.line
    found["captures"] = {
        plan: None if loop.capture_report is None else str(loop.capture_report)
        for plan, loop in (("auto", auto), ("captured", captured))
    }
    for runner in runners.values():
        runner.loop.close()
    return found


def measure_apart(name, plans, options, *, started_at):
    """Do the same in a process of its own; a failure of any kind is told as `problem`."""
    context = multiprocessing.get_context("spawn")
    channel, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, name, plans, options, started_at))
    process.start()
    theirs.close()
    try:
        if not channel.poll(options.workload_limit):
            return failed(name, f"did not finish in {options.workload_limit:.0f} s")
        return channel.recv()
    except EOFError:
        process.join()
        return failed(name, f"its process ended with exit code {process.exitcode}")
    finally:
        # With its loaders' workers, which it may have left behind.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def failed(name, problem):
    """Return what there is to say of a workload that was not measured."""
    return {"workload": name, "problem": problem}


def _serve(channel, name, plans, options, started_at):
    os.setpgrp()
    fork_loader_workers()

    # Wall clock, the only one that two processes share.
    def seconds():
        return (datetime.now(UTC) - started_at).total_seconds()

    def tell(line):
        print(f"{seconds():6.1f} s  {line}", flush=True)

    def is_late():
        return options.time_limit is not None and seconds() > options.time_limit

    try:
        device = find_device(options.device)
        set_numerics(device, _precision(device), deterministic=False)
        found = measure(name, plans, device=device, options=options, tell=tell, is_late=is_late)
    except Exception as error:
        traceback.print_exc()
        first_line = str(error).strip().split("\n")[0]
        found = failed(name, f"{type(error).__name__}: {first_line}")
    channel.send(found)


def _precision(device):
    return "tf32" if device.is_accelerator else "fp32"


def summarize(name, rounds):
    """Return medians, spreads, the best plan, and the ratio of `auto` to it."""
    medians = {plan: median(times) for plan, times in rounds.items()}
    best = _best(rounds, range(len(rounds["auto"])))
    return {
        "workload": name,
        "problem": None,
        "ms_a_step": medians,
        "iqr_ms": {plan: _iqr(times) for plan, times in rounds.items()},
        "rounds_ms": rounds,
        "best": best,
        "auto_to_best": ratio_to_best(rounds),
        "auto_to_best_rounds": _ratios(rounds, best, range(len(rounds["auto"]))),
    }


def ratio_to_best(rounds):
    """Return the ratio of `auto` to the best plan, the median over rounds.

    Of many plans that are equally fast, the one that looks best in some rounds was lucky there. So
    the best of every other round is compared in the rounds between, and the other way round.
    """
    count = len(rounds["auto"])
    if count == 1:
        return _ratios(rounds, _best(rounds, [0]), [0])[0]
    halves = range(0, count, 2), range(1, count, 2)
    ratios = []
    for chosen, compared in (halves, halves[::-1]):
        ratios += _ratios(rounds, _best(rounds, chosen), compared)
    return median(ratios)


def _best(rounds, numbers):
    """Return the plan that is fastest in the median of some rounds."""
    others = [plan for plan in rounds if plan != "auto"]
    return min(others, key=lambda plan: median(rounds[plan][number] for number in numbers))


def _ratios(rounds, best, numbers):
    return [rounds["auto"][number] / rounds[best][number] for number in numbers]


def _iqr(times):
    if len(times) < 2:
        return 0.0
    low, _, high = quantiles(times, n=4)
    return high - low


def table(results, plans):
    """Return a Markdown table of ms a step, and auto's lines or what went wrong under it."""
    names = [found["workload"] for found in results]
    lines = ["| plan | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for plan in plans:
        cells = [
            "failed"
            if found["problem"]
            else f"{found['ms_a_step'][plan]:.2f} ± {found['iqr_ms'][plan] / 2:.2f}"
            for found in results
        ]
        lines.append(f"| `{plan}` | " + " | ".join(cells) + " |")
    ratios = [
        "-" if found["problem"] else f"{found['auto_to_best']:.3f} (`{found['best']}`)"
        for found in results
    ]
    lines += ["| `auto` to the best | " + " | ".join(ratios) + " |", ""]
    lines += [f"{found['workload']}: {found['problem'] or found['line']}" for found in results]
    return "\n".join(lines)


def facts(options):
    """Return where and on what this was measured."""
    device = find_device(options.device)
    return {
        **place_and_time(str(device.torch_device), module="benchmarks.auto_workloads"),
        "rounds": options.rounds,
        "steps": options.steps,
        "precision": _precision(device),
    }


def main():
    """Measure, print the table, write the file; return the exit code."""
    options = _parser().parse_args()
    started_at = datetime.now(UTC)
    found = facts(options)
    plans = list(dict.fromkeys([*options.plans.split(","), "captured", "auto"]))
    names = options.only.split(",")
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        print(
            f"unknown workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}", file=sys.stderr
        )
        return 2
    path = None if options.out is None else options.out / f"{found['date']}-auto-workloads.json"
    results = []
    for name in names:
        seconds = (datetime.now(UTC) - started_at).total_seconds()
        if options.time_limit is not None and seconds > options.time_limit:
            results.append(failed(name, "not run, time was up"))
        else:
            results.append(measure_apart(name, plans, options, started_at=started_at))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, json.dumps({**found, "results": results}, indent=1))
    print(table(results, plans))
    if path is not None:
        print(f"written to {path}")
    return 1 if any(found["problem"] for found in results) else 0


def _parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of each plan in each round")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas")
    parser.add_argument("--plans", default=",".join(PLANS), help="plans, with commas")
    parser.add_argument("--workload-limit", type=float, default=300.0, help="seconds of each")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="begin no workload and no round but a workload's first after so long",
    )
    parser.add_argument("--tiny", action="store_true", help="does it all run?")
    parser.add_argument("--out", type=Path, help="folder for the JSON file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
