"""The trainings: a plain loop, a loop of Accelerate and the Trainer of transformers.

A process that trains as written never imports gapless.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.changing_shapes.data import GPU, TINY, VOCABULARY, Sizes, batches_of, collated


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.utils.data import DataLoader


AS_WRITTEN, IN_PLACE, STEP = "as-written", "in-place", "step"

# Steps between two losses that a framework's loop logs.
_LOG_EVERY = 10

_NUM_MARKS = 60


def marks_of(num_steps: int) -> list[int]:
    """Return the steps at which the time is taken, about sixty: the first ones, then ever fewer."""
    grown = {round(num_steps ** (n / _NUM_MARKS)) for n in range(_NUM_MARKS + 1)}
    even = {round(num_steps * n / 20) for n in range(1, 21)}
    return sorted(one for one in grown | even if one > 0)


@dataclass
class Training:
    """One training in this process, and what it has shown so far.

    Attributes:
        variant: as written, in place, or as a step.
        lengths: of its batches.
        num_steps: after which it ends.
        device: where it trains.
        place: the same, as gapless takes it.
        is_tiny: whether sizes are those of a test.
        end_s: time of the clock of the day after which it ends as well.
        marks: seconds since the beginning, by the number of steps.
        losses: with the number of their step.
        captured: what gapless has captured.
    """

    variant: str
    lengths: str
    num_steps: int
    device: torch.device
    place: Any
    is_tiny: bool
    end_s: float
    marks: dict[int, float] = field(default_factory=dict)
    losses: list[tuple[int, Any]] = field(default_factory=list)
    captured: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._at = set(marks_of(self.num_steps))
        self._batches = batches_of(self.lengths, self.num_steps, self.sizes)
        if self.device.type == "cuda":
            torch.zeros(1, device=self.device)
            torch.cuda.synchronize()
        self._begin = time.perf_counter()

    @property
    def sizes(self) -> Sizes:
        """Of the model and its batches."""
        return TINY if self.is_tiny else GPU

    def is_over(self, number: int) -> bool:
        """Take the time if this is a mark; return whether training ends behind this step."""
        if number not in self._at:
            return False
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.marks[number] = round(time.perf_counter() - self._begin, 4)
        return number >= self.num_steps or time.time() > self.end_s

    def hashes(self) -> dict[int, str]:
        """Return, for each mark, the hash of all losses up to it."""
        digest, found = hashlib.sha256(), {}
        values = iter([(number, float(loss).hex()) for number, loss in self.losses])
        value = next(values, None)
        for mark in self.marks:
            while value is not None and value[0] <= mark:
                digest.update(repr(value).encode())
                value = next(values, None)
            found[mark] = digest.hexdigest()[:16]
        return found

    def loader(self) -> DataLoader[Any]:
        """Return a loader of batches, enough for all steps."""
        from torch.utils.data import DataLoader

        rows = [row for batch in self._batches for row in batch]
        numbers = range(len(rows))
        size = self.sizes.rows
        return DataLoader(
            rows,  # type: ignore[arg-type]
            batch_sampler=[numbers[at : at + size] for at in range(0, len(rows), size)],
            collate_fn=self.collate,
        )

    def collate(self, rows: list[list[int]]) -> dict[str, torch.Tensor]:
        """Return a batch of sentences."""
        return collated(rows, self.lengths, self.sizes)


# --- models ---


class Encoder(nn.Module):
    """Torch's own encoder, which classifies rows; of packed batches each word sees its sentence alone."""

    def __init__(self, sizes: Sizes, *, is_packed: bool) -> None:
        super().__init__()
        self.heads, self.is_packed = sizes.heads, is_packed
        self.words = nn.Embedding(VOCABULARY, sizes.width)
        self.positions = nn.Embedding(sizes.longest, sizes.width)
        layer = nn.TransformerEncoderLayer(
            sizes.width, sizes.heads, 4 * sizes.width, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, sizes.depth, enable_nested_tensor=False)
        self.out = nn.Linear(sizes.width, 2)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of ids, [B, T], under a mask, [B, T]."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.words(input_ids) + self.positions(places)
        if self.is_packed:
            is_other = attention_mask[:, :, None] != attention_mask[:, None, :]
            x = self.layers(x, mask=is_other.repeat_interleave(self.heads, dim=0))
        else:
            x = self.layers(x, src_key_padding_mask=attention_mask == 0)
        return F.cross_entropy(self.out(x[:, 0]), labels)


def bert(sizes: Sizes) -> nn.Module:
    """Return a BERT with random weights, which classifies rows."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.depth,
        num_attention_heads=sizes.heads,
        intermediate_size=4 * sizes.width,
        max_position_embeddings=sizes.longest,
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


# --- loops ---


def run_encoder(training: Training) -> None:
    """Train torch's own encoder in a plain loop."""
    model = Encoder(training.sizes, is_packed=training.lengths == "packed").to(training.device)
    _run_plain(training, model, lambda batch: model(**batch))


def run_bert(training: Training) -> None:
    """Fine-tune BERT in a plain loop."""
    model = bert(training.sizes).to(training.device)
    _run_plain(training, model, lambda batch: model(**batch).loss)


def _run_plain(
    training: Training,
    model: nn.Module,
    loss_of: Callable[[dict[str, torch.Tensor]], torch.Tensor],
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run: Any = step
    if training.variant == STEP:
        import gapless

        run = gapless.capture(step, device=training.place)
        training.captured = [run]
    elif training.variant == IN_PLACE:
        import gapless

        gapless.capture(model, optimizer, device=training.place)
        training.captured = [model, optimizer]
    for number, batch in enumerate(training.loader(), start=1):
        moved = {name: value.to(training.device) for name, value in batch.items()}
        training.losses.append((number, run(moved)))
        if training.is_over(number):
            return


def run_accelerate(training: Training) -> None:
    """Fine-tune BERT in a loop of Accelerate, which clips, and logs its loss now and then."""
    from accelerate import Accelerator
    from transformers import get_scheduler

    accelerator = Accelerator(cpu=training.device.type == "cpu")
    model: Any = bert(training.sizes)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=5e-5)
    scheduler: Any = get_scheduler("linear", optimizer, 0, training.num_steps)
    loader: Any = training.loader()
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if training.variant == IN_PLACE:
        from gapless.integrations.accelerate import capture_prepared

        capture_prepared(accelerator, device=training.place, quiet=True)
        training.captured = [model, optimizer]
    model.train()
    for number, batch in enumerate(loader, start=1):
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if number % _LOG_EVERY == 0:
            training.losses.append((number, loss.item()))
        if training.is_over(number):
            return


def run_trainer(training: Training) -> None:
    """Fine-tune BERT with the Trainer of transformers and a collator that pads each batch."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if training.is_over(state.global_step):
                control.should_training_stop = True

    class InOrder(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(training.loader())

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=training.device.type == "cpu",
            per_device_train_batch_size=training.sizes.rows,
            max_steps=training.num_steps,
            logging_steps=_LOG_EVERY,
            save_strategy="no",
            disable_tqdm=True,
            report_to=[],
        )
        model = bert(training.sizes)
        trainer = InOrder(model, arguments, train_dataset=[0], callbacks=[Clock()])
        trainer.remove_callback(PrinterCallback)
        if training.variant == IN_PLACE:
            from gapless.integrations.transformers import capture_trainer

            capture_trainer(trainer, device=training.place, quiet=True)
        trainer.train()
    if training.variant == IN_PLACE:
        training.captured = [model, trainer.optimizer]
    for row in trainer.state.log_history:
        if "loss" in row:
            training.losses += [(row["step"], row["loss"]), (row["step"], row["grad_norm"])]


@dataclass(frozen=True)
class Loop:
    """A training by its name.

    Attributes:
        run: it.
        variants: in which gapless captures it.
        modules: that it imports, before its clock starts.
    """

    run: Callable[[Training], None]
    variants: tuple[str, ...]
    modules: tuple[str, ...] = ()


_BERT = "transformers.models.bert.modeling_bert"
LOOPS = {
    "encoder": Loop(run_encoder, (IN_PLACE, STEP)),
    "bert": Loop(run_bert, (IN_PLACE, STEP), (_BERT,)),
    "accelerate": Loop(
        run_accelerate, (IN_PLACE,), (_BERT, "transformers.optimization", "accelerate")
    ),
    "trainer": Loop(run_trainer, (IN_PLACE,), (_BERT, "transformers.trainer", "accelerate")),
}


def accounts(captured: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield what gapless says of each captured object."""
    if not captured:
        return
    import gapless

    for one in captured:
        report = one.report if hasattr(one, "report") else gapless.capture_report(one)
        spent = report.spent
        yield {
            "watching_s": spent.watching_s,
            "capturing_s": spent.capturing_s,
            "auditing_s": spent.auditing_s,
            "saved_s": spent.saved_s,
            "waiting": dict(spent.waiting),
            "graphs": report.num_graphs,
            "replays": report.num_replays,
            "as_written": report.num_eager,
            "text": str(report),
        }
