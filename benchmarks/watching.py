"""What it costs until a captured step replays: watched calls, the capture, the time to the first replay.

    PYTHONPATH=src python3 -m benchmarks.watching --device cuda --seconds 500 --json FILE
    PYTHONPATH=src python3 -m benchmarks.watching [--only gpt-12,lstm] [--form step,module] [--source SRC]

A plain call is the median of calls 3 to 10 of a process without gapless. Everything else is said in
plain calls of the same batch: each watched call of the first kind and of the two kinds after it (other
shapes), and the capture with its proof. Calls are watched at once here; elsewhere they wait until there
is room for that. Each model has a plain process of its own, and a captured one for each form. The trainer is
the project's own step on batches of base32; its model is gapless's, but the plain process captures nothing.
No process begins after `--seconds`, and none goes on; each captured one that has ended prints a line of JSON.

Times are of the wall on a GPU, which is waited for after each call. Without a GPU they are CPU seconds,
replays do nothing, nothing is proved, and models are so small that the host's work is what counts, as
where a GPU waits for launches. `--source` measures another tree's package.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.models.gpt import GPT
from benchmarks.models.residual import Block
from benchmarks.models.word_model import WordModel


if TYPE_CHECKING:
    from collections.abc import Callable


VOCABULARY = 1000
FORMS = ("step", "module")

_ROWS = 8
_NUM_PLAIN = 10
_MOST_CALLS = 16

# Of batches: each makes a kind of calls.
LENGTHS = (48, 40, 32)


class Encoder(nn.Module):
    """Torch's own encoder on padded batches."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the loss of ids, [B, T], of which so many count in each row."""
        is_padding = torch.arange(ids.shape[1], device=ids.device) >= lengths[:, None]
        x = self.layers(self.words(ids), src_key_padding_mask=is_padding)
        return F.cross_entropy(self.out(x).flatten(0, 1), ids.flatten())


class Translator(nn.Module):
    """Torch's own Transformer on padded batches."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.body = nn.Transformer(width, 4, depth, depth, 4 * width, batch_first=True)
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the loss of ids, [B, T], of which so many count in each row."""
        is_padding = torch.arange(ids.shape[1], device=ids.device) >= lengths[:, None]
        causal = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], ids.device) < 0
        x = self.body(
            self.words(ids), self.words(ids), tgt_mask=causal, tgt_is_causal=True,
            src_key_padding_mask=is_padding, memory_key_padding_mask=is_padding,
        )  # fmt: skip
        return F.cross_entropy(self.out(x).flatten(0, 1), ids.flatten())


class Decoder(nn.Module):
    """A GPT on ids alone."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.gpt = GPT(VOCABULARY, LENGTHS[0], width, depth, 4)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the loss of ids, [B, T]."""
        del lengths
        return self.gpt(ids, ids)[1]


class Bert(nn.Module):
    """BERT of transformers with a layer on its first position."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=depth, num_labels=2,
            num_attention_heads=4, intermediate_size=4 * width,
        )  # fmt: skip
        self.bert = BertForSequenceClassification(config)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the loss of ids, [B, T], of which so many count in each row."""
        mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
        loss: torch.Tensor = self.bert(input_ids=ids, attention_mask=mask, labels=lengths % 2).loss
        return loss


class Words(nn.Module):
    """A word-level LSTM that begins anew in each batch."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.model = WordModel(VOCABULARY, width, depth)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the loss of ids, [B, T]."""
        del lengths
        words = ids.t()
        out, _ = self.model(words, self.model.init_hidden(ids.shape[0]))
        return F.nll_loss(out, words.flatten())


class ResNet(nn.Module):
    """A ResNet-18 on images that are made of ids."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        num_in = width
        for stage in range(4):
            for number in range(depth):
                num_out = width << stage
                layers.append(Block(num_in, num_out, stride=2 if stage and not number else 1))
                num_in = num_out
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.out = nn.Linear(num_in, 10)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the loss of ids, [B, T]."""
        images = ids.float().unflatten(1, (8, -1))[:, None] / VOCABULARY
        return F.cross_entropy(self.out(self.body(images)), lengths % 10)


# By name: the class, its width on a CPU and on a GPU, and its depth.
MODELS: dict[str, tuple[Callable[[int, int], nn.Module], int, int, int]] = {
    "encoder-18": (Encoder, 16, 256, 18),
    "gpt-12": (Decoder, 16, 256, 12),
    "bert-small": (Bert, 16, 512, 4),
    "resnet-18": (ResNet, 2, 64, 2),
    "lstm": (Words, 16, 200, 2),
    "transformer": (Translator, 16, 256, 3),
}


class Training:
    """A model that trains on padded batches, as a loop has it."""

    def __init__(self, name: str, device: torch.device) -> None:
        torch.manual_seed(0)
        make, on_cpu, on_gpu, depth = MODELS[name]
        self.device = device
        self.model = make(on_gpu if device.type == "cuda" else on_cpu, depth).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        draw = torch.Generator().manual_seed(1)
        self.captured_as: Any = self.step
        self.batches: list[tuple[Any, ...]] = [
            (
                torch.randint(VOCABULARY, (_ROWS, length), generator=draw).to(device),
                torch.randint(length // 2, length, (_ROWS,), generator=draw).to(device),
            )
            for length in LENGTHS
        ]

    def step(self, *batch: torch.Tensor) -> torch.Tensor:
        """Train on a batch; return its loss."""
        loss: torch.Tensor = self.model(*batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def seconds_of(self, call: Callable[..., Any], number: int) -> float:
        """Return the seconds of a call on a batch of a kind, with the device's work."""
        is_gpu = self.device.type == "cuda"
        now = perf_counter if is_gpu else process_time
        begin = now()
        call(*self.batches[number])
        if is_gpu:
            torch.cuda.synchronize()
        return now() - begin


class TrainerTraining(Training):
    """The trainer's own step, which has its model and optimizer."""

    def __init__(self, device: torch.device, place: Any) -> None:
        from benchmarks.base32_step import Base32
        from gapless.device.find import find_device

        torch.manual_seed(0)
        self.device = device
        base32 = Base32(find_device(place or device), is_tiny=device.type != "cuda")
        self._train, self.captured_as = base32.train, base32.step
        self.model, self.optimizer = base32.step.model, base32.step.optimizer
        # From a long to a short one, as the other models have them.
        examples = base32.examples[:: -max(len(base32.examples) // len(LENGTHS), 1)]
        self.batches = [(tokens,) for tokens in examples[: len(LENGTHS)]]

    def step(self, *batch: Any) -> torch.Tensor:
        """Train on a batch; return its loss."""
        return self._train(*batch)


TRAINER = "trainer"


def training_of(name: str, device: torch.device, *, place: Any = None) -> Training:
    """Return a new training of a model; the device may be one that has no name."""
    return TrainerTraining(device, place) if name == TRAINER else Training(name, device)


def plain(name: str, device: torch.device) -> dict[str, Any]:
    """Return the seconds of calls as written, in a process that has no gapless."""
    training = training_of(name, device)
    times = [
        [training.seconds_of(training.step, number) for _ in range(_NUM_PLAIN)]
        for number in range(len(LENGTHS))
    ]
    return {"first": times[0][:2], "plain": [median(one[2:]) for one in times]}


def captured(name: str, form: str, device: torch.device) -> dict[str, Any]:
    """Return the seconds of the calls of each kind, up to its first replay."""
    import gapless

    training = training_of(name, device)
    with ExitStack() as stack:
        learn_at_once(stack)
        place: Any = device if device.type == "cuda" else _launches_nothing(stack)
        if form == "step":
            call: Any = gapless.capture(training.captured_as, device=place)
            report = call.report
        else:
            gapless.capture(training.model, training.optimizer, device=place)
            call, report = training.step, gapless.capture_report(training.model)
        kinds = [_calls_of_kind(training, call, report, n) for n in range(len(LENGTHS))]
    return {"kinds": kinds, "report": str(report)}


def _calls_of_kind(training: Training, call: Any, report: Any, number: int) -> dict[str, Any]:
    times: list[float] = []
    capture, before = None, report.num_replays
    while report.num_replays == before and len(times) < _MOST_CALLS:
        num_graphs = report.num_graphs
        times.append(training.seconds_of(call, number))
        if report.num_graphs > num_graphs:
            capture = len(times) - 1
    return {"calls": times, "capture": capture, "replays": report.num_replays > before}


def learn_at_once(stack: ExitStack) -> None:
    """Let no call be plain before it is watched, and none wait for room; older trees know neither."""
    with suppress(ImportError):
        from gapless.graphs import account

        stack.enter_context(mock.patch.object(account, "NUM_PLAIN", 0))
        stack.enter_context(mock.patch.object(account, "ALLOWANCE_S", float("inf")))


class _Idle:
    """A graph without work."""

    def replay(self) -> None:
        """Do nothing."""

    def replay_segment(self, number: int) -> None:
        """Do nothing."""


def _launches_nothing(stack: ExitStack) -> Any:
    """Return a CPU that passes for an accelerator, whose graphs do nothing; let none be proved."""
    # Not those of another benchmark: its names are those of the newest tree.
    from gapless.device.cpu import CpuDevice, call
    from gapless.graphs.modules import module_trial
    from gapless.graphs.proof import trial
    from gapless.graphs.proof.same_results import NotProved

    class LaunchesNothing(CpuDevice):
        is_accelerator = True

        def needs_copy(self, tensor: torch.Tensor) -> bool:
            return tensor.device != self.torch_device

        def capture(self, work: Callable[[Any], object], **_: Any) -> Any:
            work(call)
            return _Idle()

    def prove_nothing(*_: Any, **__: Any) -> Any:
        raise NotProved("graphs do nothing here")

    for module in (trial, module_trial):
        stack.enter_context(mock.patch.object(module, "prove", prove_nothing))
    return LaunchesNothing()


def part_of(part: str, name: str, form: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a process found, plain or captured, or its error."""
    left_s = options.end_s - perf_counter()
    if left_s <= 0.0:
        return {"error": "no time is left"}
    command = [sys.executable, "-m", "benchmarks.watching", "--part", part]
    command += ["--only", name, "--form", form, "--device", options.device]
    folders = [options.source or os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1])]
    path = os.pathsep.join(filter(None, folders))
    # One host thread, so that CPU seconds are those of the loop.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=left_s
        )
    except subprocess.TimeoutExpired:
        return {"error": "it did not end in time"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def lines_of(name: str, form: str, found: dict[str, Any]) -> list[str]:
    """Return a line for each kind of calls of a model."""
    if "error" in found:
        return [f"{name:12} {form:7} {found['error']}"]
    lines = []
    for number, (kind, plain_s) in enumerate(zip(found["kinds"], found["plain"], strict=True)):
        calls, at = kind["calls"], kind["capture"]
        watched = calls if at is None else calls[:at]
        ratios = " + ".join(f"{one / plain_s:.1f}" for one in watched)
        total = sum(watched) / plain_s
        first = f"first as written {found['first'][0] / plain_s:.1f}" if number == 0 else ""
        capture = "none" if at is None else f"{calls[at] / plain_s:.1f} = {calls[at]:.2f} s"
        ready = f"{sum(calls):.2f} s" if kind["replays"] else "no replay"
        lines.append(
            f"{name:12} {form:7} kind {number + 1}  plain {plain_s * 1e3:7.1f} ms  watched "
            f"{total:6.1f} = {ratios:24}  capture {capture:>15}  first replay {ready}  {first}"
        )
    if not all(kind["replays"] for kind in found["kinds"]):
        lines.append(f"    {found['report']}")
    return lines


def _rounded(value: Any) -> Any:
    """Return figures with four digits behind the point, and no report."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items() if key != "report"}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


def main(arguments: list[str] | None = None) -> int:
    """Measure models and print a line for each kind of their calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join((*MODELS, TRAINER)))
    parser.add_argument("--form", default=",".join(FORMS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--source", help="the folder of the package that is measured")
    parser.add_argument("--seconds", type=float, default=3_600.0, help="for all processes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", choices=("plain", "captured"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names, forms = options.only.split(","), options.form.split(",")
    known = (*MODELS, TRAINER, *FORMS)
    unknown = [one for one in (*names, *forms) if one not in known]
    if unknown:
        print(f"unknown {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    options.end_s = perf_counter() + options.seconds
    if options.part is not None:
        torch.set_num_threads(1)
        device = torch.device(options.device)
        if options.part == "plain":
            print(json.dumps(plain(names[0], device)))
        else:
            print(json.dumps(captured(names[0], forms[0], device)))
        return 0
    results = {}
    for name in names:
        as_written = part_of("plain", name, forms[0], options)
        for form in forms:
            found = as_written
            if "error" not in found:
                found = as_written | part_of("captured", name, form, options)
            results[f"{name}, {form}"] = found
            print(json.dumps({"model": name, "form": form, **_rounded(found)}))
            print("\n".join(lines_of(name, form, found)), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
