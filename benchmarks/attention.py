"""Which kernel attends fastest to packed sentences? Forward and backward pass of one layer.

    PYTHONPATH=src python3 -m benchmarks.attention --out runs/results

Sentences stand one after the other, lengths are log-normal, and each sees itself alone. Kernels
take turns, so many calls each, in rounds that begin with another one; a kernel that refuses has
its reason in the table. Operations are those of real pairs of tokens: 2 products forward, 5
backward.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.facts import heading, place_and_time
from benchmarks.processes import replace_text
from gapless.device.find import find_device
from gapless.device.numerics import seed_everything
from gapless.nmt.model.attention import Packed, PackedRows, _attend_packed, _attend_padded


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Device


# Heads of 64, tokens of a batch, mean length: the base and the big model on sentences and on prose.
CASES = {
    "base, sentences": {"heads": 8, "tokens": 8_192, "mean": 28},
    "base, prose": {"heads": 8, "tokens": 8_192, "mean": 60},
    "big, sentences": {"heads": 16, "tokens": 25_024, "mean": 28},
    "big, prose": {"heads": 16, "tokens": 25_024, "mean": 60},
}
_TINY = {"heads": 2, "tokens": 128, "mean": 8}
_WIDTH, _LONGEST = 64, 256
_DROPOUT = 0.0


def memory_efficient(
    queries: torch.Tensor, keys_values: torch.Tensor, pattern: Packed
) -> torch.Tensor:
    """The memory-efficient attention of torch, as its nested tensors call it."""
    keys, values = keys_values.unsqueeze(0).unbind(2)
    out: torch.Tensor = torch.ops.aten._efficient_attention_forward(
        *(queries.unsqueeze(0), keys, values, None),
        *(*_sizes(pattern), _DROPOUT, int(pattern.is_causal), True),
    )[0]
    return out.squeeze(0)


def flash(queries: torch.Tensor, keys_values: torch.Tensor, pattern: Packed) -> torch.Tensor:
    """FlashAttention as torch ships it."""
    out: torch.Tensor = torch.ops.aten._flash_attention_forward(
        queries, *keys_values.unbind(1), *_sizes(pattern), _DROPOUT, pattern.is_causal, False
    )[0]
    return out


def cudnn(queries: torch.Tensor, keys_values: torch.Tensor, pattern: Packed) -> torch.Tensor:
    """The fused attention of cuDNN, on ragged rows."""
    parts = (queries, *keys_values.unbind(1), None)
    out: torch.Tensor = torch.ops.aten._cudnn_attention_forward(
        *parts, *_sizes(pattern), True, _DROPOUT, pattern.is_causal
    )[0]
    return out


def _sizes(pattern: Packed) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    queries, keys = pattern.queries, pattern.keys
    return queries.starts, keys.starts, queries.longest, keys.longest


KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "span": lambda *parts: _attend_packed(*parts, _DROPOUT),
    "memory-efficient": memory_efficient,
    "flash": flash,
    "cudnn": cudnn,
    "padded rows": lambda *parts: _attend_padded(*parts, _DROPOUT),
}


class Layer:
    """The attention of one layer under one kernel."""

    def __init__(self, kernel: str, case: dict[str, int], device: Device, *, causal: bool) -> None:
        seed_everything(1)
        self.lengths = _lengths(case["tokens"], case["mean"])
        starts = torch.cat([torch.zeros(1), self.lengths.cumsum(0)]).to(torch.int32)
        starts = starts.to(device.torch_device)
        longest = -(-int(self.lengths.max()) // 64) * 64
        tokens, heads = int(self.lengths.sum()), case["heads"]
        rows = PackedRows.of(starts, num_tokens=tokens, longest=longest)
        self._pattern = Packed(rows, rows, causal)
        dtype = torch.bfloat16 if device.is_accelerator else torch.float32
        self._inputs = [
            torch.randn(shape, device=device.torch_device, dtype=dtype, requires_grad=True)
            for shape in ((tokens, heads, _WIDTH), (tokens, 2, heads, _WIDTH))
        ]
        self._grad = torch.randn_like(self._inputs[0])
        self._kernel = KERNELS[kernel]

    def forward(self) -> torch.Tensor:
        """Return what each query sees."""
        return self._kernel(*self._inputs, self._pattern)

    def both(self) -> tuple[torch.Tensor, ...]:
        """Return the gradients of queries, and of keys and values."""
        return torch.autograd.grad(self.forward(), self._inputs, self._grad)


def _lengths(tokens: int, mean: int) -> torch.Tensor:
    """Return lengths of sentences that fill a batch, log-normal as those of text are."""
    draw = torch.Generator().manual_seed(1)
    found = torch.randn(tokens, generator=draw).mul(0.5).exp().mul(mean * 0.88)
    found = found.round().clamp(1, _LONGEST)
    return found[found.cumsum(0) <= tokens]


def measure(case: dict[str, int], *, device: Device, causal: bool, rounds: int) -> dict[str, Any]:
    """Return milliseconds and errors of every kernel."""
    found: dict[str, Any] = {name: {"problem": None, "rounds": []} for name in KERNELS}
    launches: dict[str, list[Callable[[], Any]]] = {}
    # Kept to the end: a graph does not hold on to the memory that it reads.
    layers = {name: Layer(name, case, device, causal=causal) for name in KERNELS}
    exact = [grad.float() for grad in Layer("padded rows", case, device, causal=causal).both()]
    for name, row in found.items():
        layer = layers[name]
        try:
            grads = layer.both()
            launches[name] = [_ten_of(work, device) for work in (layer.forward, layer.both)]
        except (RuntimeError, NotImplementedError) as error:
            row["problem"] = str(error).splitlines()[0][:80]
            continue
        errors = [
            (grad.float() - true).abs().max() for grad, true in zip(grads, exact, strict=True)
        ]
        row["largest_error"] = float(torch.stack(errors).max())
    names = list(launches)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            found[name]["rounds"].append([_ms(device, launch) / 10 for launch in launches[name]])
    for name in names:
        _summarize(found[name], layer.lengths, case["heads"], causal=causal)
    return found


def _ten_of(work: Callable[[], Any], device: Device) -> Callable[[], Any]:
    """Return what does the same ten times, by one launch where a device can."""

    def ten(_: object = None) -> None:
        for _ in range(10):
            work()

    if not device.is_accelerator:
        return ten
    ten()
    replay: Callable[[], Any] = device.capture(ten).replay
    return replay


def _ms(device: Device, launch: Callable[[], Any]) -> float:
    """Return the device's milliseconds for a launch, after one that does not count."""
    start, end = (device.create_event(timed=True) for _ in range(2))
    stream = device.current_stream()
    launch()
    device.record_event(start, stream)
    launch()
    device.record_event(end, stream)
    device.synchronize_event(end)
    return device.elapsed_ms(start, end)


def _summarize(row: dict[str, Any], lengths: torch.Tensor, heads: int, *, causal: bool) -> None:
    pairs = float((lengths**2).sum()) * (0.5 if causal else 1.0)
    forward, both = (median(ms[way] for ms in row["rounds"]) for way in (0, 1))
    row["forward_ms"], row["backward_ms"] = forward, both - forward
    row["tflops"] = 7 * 2 * pairs * heads * _WIDTH / both / 1e9


def to_markdown(facts: dict[str, Any]) -> str:
    """Return a table of all cases and kernels."""
    lines = [
        *heading("Attention to packed sentences", facts),
        "Milliseconds of one layer, median of the rounds; TFLOP/s of both passes, of pairs of "
        "tokens that see each other. Error: the largest difference of a gradient from that of "
        "padded rows.",
        "",
        "| case | kernel | forward | backward | TFLOP/s | error |",
        "|---|---|---|---|---|---|",
    ]
    for case, rows in facts["cases"].items():
        for name, row in rows.items():
            cells = [row["problem"], "-", "-", "-"]
            if row["rounds"]:
                cells = [f"{row[f'{way}_ms']:.3f}" for way in ("forward", "backward")]
                cells += [f"{row['tflops']:.1f}", f"{row['largest_error']:.2g}"]
            lines.append(f"| {case} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case, write JSON and Markdown; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tiny", action="store_true", help="few tokens: does it all run?")
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    facts = place_and_time(options.device, module="benchmarks.attention") | {"cases": {}}
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / "attention"
    # Not the default stream, on which nothing is captured.
    with device.use_stream(device.create_stream()):
        _measure_all(options, device, facts, stem)
    print(to_markdown(facts))
    return 0


def _measure_all(
    options: argparse.Namespace, device: Device, facts: dict[str, Any], stem: Path
) -> None:
    cases = {"tiny": _TINY} if options.tiny else CASES
    for name, case in cases.items():
        for causal in (False, True):
            title = f"{name}, causal" if causal else name
            facts["cases"][title] = measure(
                case, device=device, causal=causal, rounds=options.rounds
            )
        replace_text(stem.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
        replace_text(stem.with_suffix(".md"), to_markdown(facts))


if __name__ == "__main__":
    sys.exit(main())
