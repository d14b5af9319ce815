"""What ranks train with gradients that they sum: cases of `group_program.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from gapless.device.find import find_device
from gapless.errors import RanksError
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.data.batch import TokenBatch
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.nmt.run.training_step import TranslationStep
from gapless.nmt.settings.config import make_config
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.step import StepLoss
from gapless.plans import get_plan


NUM_UPDATES = 6
WORDS, WIDTH = 11, 6


@dataclass(frozen=True)
class Case:
    """What an update is."""

    accumulate: int = 1
    keeps_gradients: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def name(self):
        kept = " in place" if self.keeps_gradients else ""
        return f"{self.accumulate} batches{kept}, {self.dtype}"


CASES = [
    Case(),
    Case(keeps_gradients=True),
    Case(accumulate=2),
    Case(accumulate=2, keeps_gradients=True),
    Case(dtype=torch.bfloat16),
]


class Model(torch.nn.Module):
    """Words in, words out: the table is shared by both ends, and one weight is frozen."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(WORDS, WIDTH)
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.frozen = torch.nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        # Its memory is in another order than its dimensions.
        self.turned = torch.nn.Parameter(torch.randn(WIDTH, 3).t())
        self.second = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.unused = torch.nn.Parameter(torch.randn(2))
        self.to(dtype)

    def forward(self, words):
        x = torch.tanh(self.first(self.table(words) * self.frozen))
        x = self.second(x) + (x @ self.turned.t()) @ self.turned
        return x @ self.table.weight.t()


def batch_of(number):
    """Return words and targets; 0 pads. Of some batches all is padding."""
    random = torch.Generator().manual_seed(number)
    words = torch.randint(1, WORDS, (5, 7), generator=random)
    num_words = 0 if number % 5 == 3 else 3 + number % 4
    words[:, num_words:] = 0
    return words


def num_tokens(batch):
    return int((batch != 0).sum())


def backward(model, batch, update_tokens):
    logits = model(batch).flatten(0, 1).float()
    loss = torch.nn.functional.cross_entropy(
        logits, batch.flatten(), ignore_index=0, reduction="sum"
    )
    (loss / update_tokens).backward()


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def update(model, optimizer, *, keeps_gradients):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=not keeps_gradients)


def bits_of(model):
    weights = [weight.detach().contiguous().flatten() for weight in model.parameters()]
    return torch.cat(weights).view(torch.uint8).numpy().tobytes().hex()


def trained(case, ranks):
    """Return the bits of the weights after training on this rank's batches."""
    model = Model(case.dtype)
    optimizer = optimizer_of(model)
    gradients = ranks.sum_gradients(model.parameters())
    size = ranks.world * case.accumulate
    for number in range(NUM_UPDATES):
        batches = [batch_of(number * size + place) for place in range(size)]
        tokens = max(1, sum(map(num_tokens, batches)))
        mine = batches[ranks.rank * case.accumulate : (ranks.rank + 1) * case.accumulate]
        for batch in mine:
            backward(model, batch, tokens)
        gradients.finish()
        update(model, optimizer, keeps_gradients=case.keeps_gradients)
    gradients.close()
    return bits_of(model)


def text_of_error(ranks, first, second, *, num_weights=2):
    """Return what the second of two updates says, in which these parameters get gradients."""
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(num_weights)]
    gradients = ranks.sum_gradients(weights)
    try:
        for numbers in (first, second):
            for number in numbers:
                weights[number].grad = torch.ones(2)
            gradients.finish()
            for weight in weights:
                weight.grad = None
    except RanksError as error:
        return f"{type(error).__name__}: {error}"
    return None


def sentences(number, *, ends_update, update_tokens):
    """Return a batch of translations; number 5 is padding alone."""
    random = torch.Generator().manual_seed(number)
    num_tokens = 0 if number == 5 else 2 + number % 3
    ids = torch.randint(4, 9, (2, 5), generator=random)
    src = torch.cat((ids, torch.full((2, 1), 3)), dim=1)
    tgt = torch.cat((torch.full((2, 1), 2), ids), dim=1)
    tgt[:, num_tokens + 1 :] = 0
    return TokenBatch(
        src=src,
        tgt=tgt,
        ntokens=torch.tensor(2 * num_tokens),
        norm=torch.tensor(update_tokens),
        ends_update=ends_update,
    )


POISONED = 3


def steps_of_translation(ranks, *, rank=None):
    """Train on eight batches, two in an update; return losses, weights of losses, and bits.

    Args:
        ranks: that share the batches; None: all are accumulated on one.
        rank: whose batches are trained on.
    """
    torch.manual_seed(0)
    sizes = ModelSizes(src_vocab=9, tgt_vocab=9, d_model=8, heads=2, ffn=8, dropout=0.0)
    model = Transformer(sizes)
    accumulate = 2 if ranks is None else 1
    config = make_config({"on_nonfinite": "skip", "warmup": 0, "accumulate": accumulate})
    device = find_device("cpu")
    step = TranslationStep(model, config, device=device, total_updates=9, ranks=ranks)
    reports = []
    for number in range(8):
        if ranks is not None and number % 2 != rank:
            continue
        tokens = sum(
            int(sentences(each, ends_update=True, update_tokens=1).ntokens)
            for each in (number - number % 2, number - number % 2 + 1)
        )
        ends_update = ranks is not None or number % 2 == 1
        batch = sentences(number, ends_update=ends_update, update_tokens=tokens)
        step.on_host(batch)
        out = step.forward(batch)
        if number == POISONED:
            out = replace(out, loss=out.loss * math.nan)
            step._skipped.look_at(out.loss)
        step.backward(out)
        reports.append([number, out.logged.item(), out.weight.item()])
    return {
        "reports": reports,
        "skipped": step.num_skipped(host_waits=HostWaits(device)),
        "bits": bits_of(model),
    }


def losses_of_a_loop(ranks):
    """Return the losses and weights that a rank reads of steps that all ranks take."""

    def step(number):
        loss = number.float() * (1 + 2 * ranks.rank)
        if number == 3 and ranks.rank:
            return StepLoss(loss=loss * math.nan, weight=torch.tensor(0))
        return StepLoss(loss=loss, weight=1.0 + 2 * ranks.rank)

    plan = replace(get_plan("gapless"), loss_interval=2)
    with TrainLoop(plan=plan, device="cpu", ranks=ranks) as loop:
        record = loop.run_epoch(map(torch.tensor, range(5)), step)
        return [repr(record.losses), loop.losses.weights, record.mean_loss]


def deterministic(train):
    """Return a case that trains with deterministic algorithms."""

    def case(ranks):
        torch.use_deterministic_algorithms(True)
        return train(ranks)

    return case


SUMS = {
    **{case.name: deterministic(lambda ranks, case=case: trained(case, ranks)) for case in CASES},
    "ranks differ": lambda ranks: text_of_error(ranks, [0] if ranks.rank else [0, 1], []),
    "one has more": lambda ranks: text_of_error(
        ranks, [0] if ranks.rank else [0, 1], [], num_weights=2 - ranks.rank
    ),
    "updates differ": lambda ranks: text_of_error(ranks, [0, 1], [0]),
    "steps": deterministic(lambda ranks: steps_of_translation(ranks, rank=ranks.rank)),
    "losses": losses_of_a_loop,
}
