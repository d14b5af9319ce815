"""Loops of frameworks alone and captured, in turns: steps a second, waits a step, and the same bits.

    PYTHONPATH=src python3 -m benchmarks.integrations [--only trainer accelerate] [--json FILE]

A BERT-small, made from its configuration, classifies batches of 32 sentences of 16 to 32 tokens; Lightning trains a
small convolutional network (`lightning_cnn.py`), without its progress bar and with it. First each
loop runs with deterministic algorithms, alone and captured: logs and weights are compared, and the waits of
its last steps are counted. Then both take turns, and the time of the steps after the warm-up is measured, from
an idle device to an idle device. `--json` adds a line to a file.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import gapless
from benchmarks.facts import place_and_time
from benchmarks.lightning_cnn import run_lightning, run_lightning_with_bar


if TYPE_CHECKING:
    from collections.abc import Callable


NUM_SENTENCES, SHORTEST, LONGEST = 32, 16, 32
SIZES = {
    "small": {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
}


@dataclass
class Run:
    """One training of a loop.

    Attributes:
        args: of the command line.
        is_captured: whether gapless captures it.
        num_steps: of the training.
        counts_waits: whether waits are counted, and not the time.
        seconds: from the end of the warm-up to the end.
        num_waits: of the host in the last ten steps.
        log: what the loop logged, with its steps.
        weights: a checksum of the final weights.
        reports: what was captured.
    """

    args: argparse.Namespace
    is_captured: bool
    num_steps: int
    counts_waits: bool = False
    seconds: float = 0.0
    num_waits: int = 0
    log: list[Any] = field(default_factory=list)
    weights: str = ""
    reports: list[str] = field(default_factory=list)
    _start: float = 0.0
    _counting: Any = None

    @property
    def num_warm_up(self) -> int:
        """Steps before the clock starts."""
        return self.num_steps // 3

    def step_ended(self, number: int) -> None:
        """Note that a step has ended; its number counts from one."""
        if self.counts_waits:
            if number == self.num_steps - 10:
                self._counting = gapless.count_waits(self.args.device)
                self._waits = self._counting.__enter__()
            elif number == self.num_steps:
                self.num_waits = self._waits.count
                self._counting.__exit__(None, None, None)
        elif number == self.num_warm_up:
            self._start = self._time()
        elif number == self.num_steps:
            self.seconds = self._time() - self._start

    def finish(self, model: torch.nn.Module, optimizer: Any, log: list[Any]) -> None:
        """Note what the training has led to; without an optimizer its report is the model's."""
        self.log = log
        digest = hashlib.sha256()
        for value in model.state_dict().values():
            digest.update(
                value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
        self.weights = digest.hexdigest()
        if self.is_captured:
            self.reports = [
                str(gapless.capture_report(one)) for one in (model, optimizer) if one is not None
            ]

    def _time(self) -> float:
        if self.args.device == "cuda":
            torch.cuda.synchronize()
        return perf_counter()


# --- the model and its data ---


def make_model(run: Run) -> Any:
    """Return a new BERT with the same weights every time."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = SIZES[run.args.size]
    config = BertConfig(intermediate_size=4 * sizes["hidden_size"], **sizes)
    return BertForSequenceClassification(config)


def make_rows(run: Run) -> list[dict[str, Any]]:
    """Return sentences with labels, enough for all steps."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (NUM_SENTENCES * 64,), generator=draw).tolist()
    ids = [torch.randint(1000, 30_000, (length,), generator=draw) for length in lengths]
    return [{"input_ids": one, "labels": int(one[0]) % 2} for one in ids]


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return a batch, [32, longest], of sentences and their mask."""
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


# --- the loops ---


def run_trainer(run: Run) -> None:
    """Train with the Trainer of transformers."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            run.step_ended(state.global_step)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=run.args.device == "cpu",
            per_device_train_batch_size=NUM_SENTENCES,
            max_steps=run.num_steps,
            lr_scheduler_type=run.args.schedule,
            bf16=run.args.bf16,
            logging_steps=50,
            save_strategy="no",
            disable_tqdm=True,
            report_to=[],
        )
        model = make_model(run)
        trainer = Trainer(
            model,
            arguments,
            train_dataset=make_rows(run),
            data_collator=padded,
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)
        if run.is_captured:
            from gapless.integrations.transformers import capture_trainer

            capture_trainer(trainer, device=run.args.device, quiet=True)
        trainer.train()
    log = [
        [row["step"], row["loss"], row["grad_norm"]]
        for row in trainer.state.log_history
        if "loss" in row
    ]
    run.finish(model, trainer.optimizer, log)


def run_accelerate(run: Run) -> None:
    """Train with a loop of Accelerate that clips, and logs as often as the Trainer."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    from transformers import get_scheduler

    accelerator = Accelerator(
        cpu=run.args.device == "cpu", mixed_precision="bf16" if run.args.bf16 else "no"
    )
    model = make_model(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    loader = DataLoader(make_rows(run), NUM_SENTENCES, shuffle=True, collate_fn=padded)
    scheduler = get_scheduler(run.args.schedule, optimizer, 0, run.num_steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if run.is_captured:
        from gapless.integrations.accelerate import capture_prepared

        capture_prepared(accelerator, device=run.args.device, quiet=True)
    log: list[Any] = []
    number = 0
    model.train()
    while number < run.num_steps:
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            number += 1
            if number % 50 == 0:
                log.append([number, loss.item(), norm.item()])
            run.step_ended(number)
            if number == run.num_steps:
                break
    run.finish(accelerator.unwrap_model(model), optimizer, log)


# By name: what trains, and what it needs.
LOOPS: dict[str, tuple[Callable[[Run], None], tuple[str, ...]]] = {
    "trainer": (run_trainer, ("transformers", "accelerate")),
    "accelerate": (run_accelerate, ("transformers", "accelerate")),
    "lightning": (run_lightning, ("lightning",)),
    "lightning-bar": (run_lightning_with_bar, ("lightning",)),
}


# --- the comparison ---


def trained(name: str, run: Run) -> Run:
    """Train from the same seeds as every time."""
    if find_spec("accelerate"):
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    torch.manual_seed(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        LOOPS[name][0](run)
    gc.collect()
    return run


def compared(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return what a loop gives alone and captured."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    alone, captured = (
        trained(name, Run(args, is_captured, args.proof_steps, counts_waits=True))
        for is_captured in (False, True)
    )
    torch.use_deterministic_algorithms(False)
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(args.rounds):
        for is_captured in (False, True) if number % 2 == 0 else (True, False):
            run = trained(name, Run(args, is_captured, args.steps))
            rates[is_captured].append((run.num_steps - run.num_warm_up) / run.seconds)
    return {
        "loop": name,
        "same_log": alone.log == captured.log,
        "same_weights": alone.weights == captured.weights,
        "waits_alone": alone.num_waits / 10,
        "waits_captured": captured.num_waits / 10,
        "steps_per_s_alone": rates[False],
        "steps_per_s_captured": rates[True],
        "ratio": median(rates[True]) / median(rates[False]),
        "reports": run.reports or captured.reports,
    }


def line_of(row: dict[str, Any]) -> str:
    """Return one line on a loop."""
    bits = "same" if row["same_log"] and row["same_weights"] else "OTHER BITS"
    return (
        f"{row['loop']:<14}{median(row['steps_per_s_alone']):>9.1f}"
        f"{median(row['steps_per_s_captured']):>10.1f}{row['ratio']:>7.2f}x"
        f"{row['waits_alone']:>8.1f}{row['waits_captured']:>10.1f}  {bits}"
    )


def main() -> None:
    """Compare loops, and print a table."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--proof-steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--schedule", default="linear")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--json", type=Path, help="add a line to this file")
    args = parser.parse_args()
    print(f"{'':<14}{'steps/s':>9}{'captured':>10}{'':>8}{'waits':>8}{'captured':>10}")
    rows = []
    for name in args.only:
        absent = [package for package in LOOPS[name][1] if find_spec(package) is None]
        if absent:
            print(f"{name:<14}  {', '.join(absent)} is not installed")
            continue
        rows.append(compared(name, args))
        print(line_of(rows[-1]), *rows[-1]["reports"], sep="\n  ", flush=True)
    if args.json is not None:
        facts = place_and_time(args.device, module="benchmarks.integrations")
        with args.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**facts, "rows": rows}) + "\n")
    sys.exit(any(not (row["same_log"] and row["same_weights"]) for row in rows))


if __name__ == "__main__":
    main()
