"""Accelerate: loops as its manual and its users write them."""

from __future__ import annotations

import copy

import torch
from torch.nn import functional as F

from hazards.captured_harness import snapshot
from integrations.accelerate_parts import (
    Net,
    Rows,
    loader,
    loss_of,
    make_accelerator,
    plain_sgd,
    prepared,
    told,
    train_epochs,
)
from integrations.frameworks import ACCELERATE
from integrations.harness import EITHER, GPU, framework_case, replays


def ac(sentence, **options):
    return framework_case(ACCELERATE, sentence, **options)


def _trained(place, *, model=None, rows=None, epochs=3, clip=None, optimizer=None, **settings):
    accelerator = make_accelerator(place, **settings)
    model = Net() if model is None else model
    chosen = plain_sgd(model) if optimizer is None else optimizer(model)
    model, chosen, batches = prepared(place, accelerator, model, chosen, rows or loader())
    logged = train_epochs(accelerator, model, chosen, batches, epochs, clip=clip)
    return [logged, told(place, accelerator, model, chosen)]


@ac("the plainest loop")
def plainest(place):
    return _trained(place)


@ac("accumulate and clip by norm")
def accumulates_and_clips(place):
    return _trained(place, gradient_accumulation_steps=2, clip=0.1, epochs=6)


@ac("bfloat16 by autocast")
def autocast_to_bfloat16(place):
    return _trained(place, mixed_precision="bf16", epochs=4)


@ac("float16 with a scaler", devices=(GPU,))
def autocast_to_float16(place):
    return _trained(place, mixed_precision="fp16", epochs=4)


@ac("unfused AdamW", expect=replays("model"))
def unfused_adamw(place):
    return _trained(place, optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01))


def _scheduled(place, make=plain_sgd, **settings):
    accelerator = make_accelerator(place, **settings)
    model = Net()
    optimizer = make(model, 0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    model, optimizer, batches, schedule = prepared(
        place, accelerator, model, optimizer, loader(), schedule
    )
    logged = train_epochs(accelerator, model, optimizer, batches, 4, scheduler=schedule)
    return [logged, told(place, accelerator, model, optimizer, schedule.get_last_lr())]


@ac("a schedule is prepared as well", expect=replays("model"))
def prepared_schedule(place):
    return _scheduled(place)


@ac("evaluate after each epoch, gathering metrics from a smaller last batch")
def gathers_metrics(place):
    accelerator = make_accelerator(place)
    model = Net(norm=True)
    model, optimizer, batches, checks = prepared(
        place, accelerator, model, plain_sgd(model), loader(), loader(11, seed=2, shuffle=False)
    )
    logged = []
    for _ in range(3):
        logged.append(train_epochs(accelerator, model, optimizer, batches, 1))
        model.eval()
        guesses, truths = [], []
        for batch in checks:
            with torch.no_grad():
                logits = model(batch["x"])
            guess, truth = accelerator.gather_for_metrics((logits.argmax(-1), batch["y"]))
            guesses.append(guess)
            truths.append(truth)
        right = torch.cat(guesses) == torch.cat(truths)
        logged.append((len(right), right.float().mean().item()))
    return [logged, told(place, accelerator, model, optimizer)]


@ac("save the state in the middle, and resume by skipping batches")
def resumes(place):
    def start():
        accelerator = make_accelerator(place)
        model = Net()
        optimizer = plain_sgd(model, 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
        return accelerator, *prepared(place, accelerator, model, optimizer, loader(), schedule)

    def steps(accelerator, model, optimizer, batches, schedule, save_at=None):
        losses = []
        for number, batch in enumerate(batches):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if number == save_at:
                accelerator.save_state(str(place.folder / "state"))
        return losses

    one = start()
    first = [steps(*one), steps(*one, save_at=5), steps(*one)]
    ended = told(place, one[0], one[1], one[2])
    accelerator, model, optimizer, batches, schedule = two = start()
    accelerator.load_state(str(place.folder / "state"))
    batches.set_epoch(1)
    rest = accelerator.skip_first_batches(batches, 6)
    second = [steps(accelerator, model, optimizer, rest, schedule), steps(*two)]
    files = sorted(path.name for path in (place.folder / "state").iterdir())
    return [first, ended, files, second, told(place, accelerator, model, optimizer)]


@ac("two models play against each other")
def two_models(place):
    accelerator = make_accelerator(place)
    maker, judge = Net(seed=6), Net(dropout=0.0)
    first, second = plain_sgd(maker), plain_sgd(judge)
    maker, judge, first, second, batches = prepared(
        place, accelerator, maker, judge, first, second, loader()
    )
    widen = torch.randn(3, 6, generator=torch.Generator().manual_seed(2)).to(accelerator.device)
    logged = []
    for _ in range(3):
        for batch in batches:
            made = maker(batch["x"]) @ widen
            second.zero_grad()
            judged = loss_of(judge, batch) + judge(made.detach()).square().mean()
            accelerator.backward(judged)
            second.step()
            first.zero_grad()
            fooled = F.cross_entropy(judge(made), batch["y"])
            accelerator.backward(fooled)
            first.step()
            logged.append((judged.item(), fooled.item()))
    return [
        logged,
        snapshot(place, dict(judge.state_dict())),
        told(place, accelerator, maker, first),
    ]


@ac("accumulate by no_sync, by hand")
def accumulates_by_no_sync(place):
    accelerator = make_accelerator(place)
    model = Net()
    model, optimizer, batches = prepared(place, accelerator, model, plain_sgd(model), loader())
    logged = []
    for _ in range(4):
        for number, batch in enumerate(batches):
            if number % 2 == 0:
                with accelerator.no_sync(model):
                    loss = loss_of(model, batch) / 2
                    accelerator.backward(loss)
            else:
                loss = loss_of(model, batch) / 2
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            logged.append(loss.item())
    return [logged, told(place, accelerator, model, optimizer)]


@ac("unwrap the model, save it, and load it elsewhere")
def saves_the_model(place):
    accelerator = make_accelerator(place)
    model = Net()
    model, optimizer, batches = prepared(place, accelerator, model, plain_sgd(model), loader())
    logged = train_epochs(accelerator, model, optimizer, batches, 2)
    plain = accelerator.unwrap_model(model)
    accelerator.save(plain.state_dict(), place.folder / "weights.pt")
    accelerator.save_model(model, str(place.folder / "model"))
    fresh = Net(seed=1)
    fresh.load_state_dict(torch.load(place.folder / "weights.pt"))
    twin = copy.deepcopy(plain)
    rows = Rows(5, seed=3).x
    out = [fresh.eval()(rows), twin.to("cpu").eval()(rows)]
    held = snapshot(place, [out, accelerator.get_state_dict(model)])
    logged += train_epochs(accelerator, model, optimizer, batches, 2)
    return [logged, held, told(place, accelerator, model, optimizer)]


@ac("LBFGS, which calls its closure again and again", expect=EITHER)
def lbfgs(place):
    accelerator = make_accelerator(place)
    model = Net(dropout=0.0)
    chosen = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    model, optimizer, batches = prepared(place, accelerator, model, chosen, loader(24))
    logged = []
    for batch in batches:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            logged.append(loss.item())
            return loss

        optimizer.step(closure)
    return [logged, told(place, accelerator, model, optimizer)]
