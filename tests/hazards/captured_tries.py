"""Steps that raise or read in the middle, and what a failed try leaves behind."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_harness import (
    CAPTURED,
    EITHER,
    GPU,
    HOLDS,
    SIMULATED,
    captured_case,
    everything_said,
    refused,
)
from hazards.captured_models import Trainer, batch, batches, kept, losses_of, mlp, updated


NUM = 16


# ------------------------------------------------------------------------- exceptions of users


@captured_case("The step raises the user's own error in the tenth call.", expect=EITHER)
def raises_in_the_tenth_call(place):
    trainer, losses, caught = Trainer(place), [], []

    def step(pair):
        if number == 10:
            raise ValueError(f"no labels in batch {number}")
        return trainer.train(pair)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):  # noqa: B007  # the step reads it
        try:
            losses.append(kept(step(pair)))
        except ValueError as error:
            caught.append(error)
    return losses, caught, trainer.state()


class Failing(Trainer):
    """A trainer whose step raises where the loop tells it to."""

    fails = False

    def step(self, pair):
        loss = self.loss(pair)
        self.check(loss)
        return updated(self.optimizer, loss)

    def check(self, loss):
        if self.fails:
            raise ValueError(f"a loss of shape {tuple(loss.shape)}")


def raises_in_call(number_that_fails):
    """Register a case whose step raises in one call, which may be a warm-up or a try."""

    def loop(place):
        trainer, losses, caught = Failing(place, dropout=0.3), [], []
        step = place.capture(trainer.step)
        for number, pair in enumerate(batches(place, 20)):
            trainer.fails = number == number_that_fails
            try:
                losses.append(kept(step(pair)))
            except ValueError as error:
                caught.append(error)
        return losses, caught, trainer.state()

    loop.__name__ = f"raises_in_call_{number_that_fails}"
    sentence = f"A check of the user's raises in call {number_that_fails} and in no other."
    captured_case(sentence, expect=EITHER)(loop)


for call in (0, 1, 2, 3, 4, 5, 12):
    raises_in_call(call)


@captured_case("The step raises, and nobody catches it.", expect=EITHER, raises=True)
def nobody_catches(place):
    trainer = Failing(place)

    def fail(number):
        trainer.fails = number == 9

    losses_of(place, place.capture(trainer.step), NUM, before=fail)


@captured_case(
    "The step raises for one kind of batch in every call, and trains on the other.", expect=EITHER
)
def raises_for_one_kind(place):
    trainer, losses, caught = Trainer(place), [], []

    def step(pair):
        if len(pair[0]) == 4:
            raise ValueError("batches must have six rows")
        return trainer.train(pair)

    step = place.capture(step)
    for number in range(40):
        try:
            losses.append(kept(step(batch(place, number, rows=4 if number % 3 == 2 else 6))))
        except ValueError as error:
            caught.append(error)
    return losses, caught, trainer.state()


@captured_case("The step raises after it has updated the weights.", expect=EITHER)
def raises_after_the_update(place):
    trainer, flags, losses, caught = Trainer(place), {"full": False}, [], []

    def step(pair):
        loss = trainer.train(pair)
        if flags["full"]:
            raise OSError("no space left on device")
        return loss

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 20)):
        flags["full"] = number in (2, 9)
        try:
            losses.append(kept(step(pair)))
        except OSError as error:
            caught.append(error)
    return losses, caught, trainer.state()


@captured_case("The step raises between backward and update, and gradients add up.", expect=EITHER)
def raises_before_the_update(place):
    trainer, flags, losses, caught = Trainer(place), {"fails": False}, [], []

    def step(pair):
        loss = trainer.loss(pair)
        loss.backward()
        if flags["fails"]:
            raise RuntimeError("stop here")
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return loss

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 20)):
        flags["fails"] = number in (2, 10)
        try:
            losses.append(kept(step(pair)))
        except RuntimeError as error:
            caught.append(error)
    return losses, caught, trainer.state()


@captured_case("An error of the user speaks of streams that capture.", expect=EITHER)
def error_that_looks_like_a_failed_capture(place):
    trainer, flags, losses, caught = Trainer(place), {"fails": False}, [], []

    def step(pair):
        if flags["fails"]:
            raise RuntimeError("operation not permitted when stream is capturing")
        return trainer.train(pair)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 20)):
        flags["fails"] = number in (2, 3, 11)
        try:
            losses.append(kept(step(pair)))
        except RuntimeError as error:
            caught.append(error)
    return losses, caught, trainer.state()


@captured_case("Out of memory: the loop halves the batch and goes on.", expect=EITHER)
def out_of_memory_and_halved(place):
    trainer, budget, losses, caught = Trainer(place), {"rows": 8}, [], []

    def step(pair):
        if len(pair[0]) > budget["rows"]:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return trainer.train(pair)

    step = place.capture(step)
    for number, (x, y) in enumerate(batches(place, 24)):
        budget["rows"] = 4 if number in (2, 13) else 8
        try:
            losses.append(kept(step((x, y))))
        except torch.cuda.OutOfMemoryError as error:
            caught.append(error)
            losses += [kept(step((x[at : at + 3], y[at : at + 3]))) for at in (0, 3)]
    return losses, caught, trainer.state()


@captured_case(
    "Ctrl-C comes in the middle of a step, and the loop saves and goes on.", expect=EITHER
)
def keyboard_interrupt(place):
    trainer, flags, losses, caught = Trainer(place), {"stop": False}, [], []

    def step(pair):
        loss = trainer.loss(pair)
        if flags["stop"]:
            raise KeyboardInterrupt
        return updated(trainer.optimizer, loss)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 20)):
        flags["stop"] = number in (1, 2, 9)
        try:
            losses.append(kept(step(pair)))
        except KeyboardInterrupt as error:
            caught.append(error)
    return losses, caught, trainer.state()


@captured_case(
    "The step raises StopIteration when its own list of weights is used up.", expect=EITHER
)
def stop_iteration(place):
    trainer, losses, caught = Trainer(place), [], []
    weights = iter([1.0] * 14)

    def step(pair):
        return updated(trainer.optimizer, next(weights) * trainer.loss(pair))

    step = place.capture(step)
    for pair in batches(place, NUM):
        try:
            losses.append(kept(step(pair)))
        except StopIteration as error:
            caught.append(error)
    return losses, caught, trainer.state()


@captured_case("An error within an error: the user raises one from another.", expect=EITHER)
def error_from_another(place):
    trainer, labels, losses, caught = Trainer(place), {"a": 1.0}, [], []

    def step(pair):
        try:
            weight = labels["a"]
        except KeyError as error:
            raise ValueError("the label is gone") from error
        return updated(trainer.optimizer, weight * trainer.loss(pair))

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 20)):
        if number == 10:
            del labels["a"]
        if number == 12:
            labels["a"] = 1.0
        try:
            losses.append(kept(step(pair)))
        except ValueError as error:
            caught.append(error)
    return losses, caught, trainer.state()


@captured_case("A backward pass of the user's own raises when it is told to.", expect=EITHER)
def raises_in_backward(place):
    flags, trainer, losses, caught = {"fails": False}, Trainer(place), [], []

    class Checked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            del ctx
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            del ctx
            if flags["fails"]:
                raise FloatingPointError("gradient overflow")
            return gradient

    def step(pair):
        return updated(trainer.optimizer, Checked.apply(trainer.loss(pair)))

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 20)):
        flags["fails"] = number in (2, 12)
        try:
            losses.append(kept(step(pair)))
        except FloatingPointError as error:
            caught.append(str(error))
    return losses, caught, trainer.state()


@captured_case("The step raises within `no_grad` and autocast, which end with it.", expect=EITHER)
def raises_within_contexts(place):
    trainer, flags, seen, losses = Trainer(place), {"fails": False}, [], []

    def step(pair):
        with torch.no_grad(), torch.autocast(place.torch_device.type, torch.bfloat16):
            out = trainer.model(pair[0])
            if flags["fails"]:
                raise ValueError("within")
        return trainer.train(pair) + out.float().mean()

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 20)):
        flags["fails"] = number in (1, 2, 3, 11)
        try:
            losses.append(kept(step(pair)))
        except ValueError:
            seen.append(
                (torch.is_grad_enabled(), torch.is_autocast_enabled(place.torch_device.type))
            )
    return losses, seen, trainer.state()


@captured_case("The step returns None, a number or a text, and never a tensor.", expect=EITHER)
def returns_no_tensor(place):
    trainer = Trainer(place)

    def step(pair):
        trainer.train(pair)
        return {"loss": None, "rows": len(pair[0]), "phase": "train"}

    step = place.capture(step)
    return [step(pair) for pair in batches(place, NUM)], trainer.state()


# -------------------------------------------------------------------- reads in the middle


@captured_case(
    "The step reads its loss by `.item()`, after dropout.",
    expect=refused(at="value = loss.item()"),
)
def reads_by_item(place):
    trainer = Trainer(place, dropout=0.4)

    def step(pair):
        loss = trainer.loss(pair)
        value = loss.item()
        return updated(trainer.optimizer, loss), value

    step, results = place.capture(step), []
    for pair in batches(place, NUM):
        loss, value = step(pair)
        results.append((kept(loss), value))
    return results, trainer.state()


@captured_case(
    "The step asks whether its loss is finite, and skips the update if not.",
    expect=refused(at="if not torch.isfinite(loss):"),
)
def reads_by_bool(place):
    trainer = Trainer(place, dropout=0.4)

    def step(pair):
        loss = trainer.loss(pair)
        if not torch.isfinite(loss):
            return loss
        return updated(trainer.optimizer, loss)

    def poison(number):
        if number == 9:
            with torch.no_grad():
                trainer.model[3].bias[0] = float("inf")
        if number == 11:
            with torch.no_grad():
                trainer.model[3].bias[0] = 0.0

    losses = losses_of(place, place.capture(step), NUM, before=poison)
    return losses, trainer.state()


@captured_case(
    "The step picks rows by a mask of booleans.",
    expect=refused(at="x, y = x[mask], y[mask]"),
)
def reads_by_a_mask(place):
    trainer = Trainer(place, dropout=0.4)

    def step(pair):
        x, y = pair
        mask = x[:, 0] > -0.5
        x, y = x[mask], y[mask]
        return trainer.train((x, y))

    return losses_of(place, place.capture(step), NUM, rows=12), trainer.state()


@captured_case("The step picks rows by a list of the host.", expect=EITHER)
def reads_by_a_list(place):
    trainer = Trainer(place, dropout=0.4)

    def step(pair):
        x, y = pair
        return trainer.train((x[[0, 2, 5]], y[[0, 2, 5]]))

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case("The step makes a tensor on the device from a list of numbers.", expect=EITHER)
def makes_a_tensor_from_a_list(place):
    trainer = Trainer(place)

    def step(pair):
        weights = torch.tensor([1.0, 2.0, 3.0, 4.0], device=place.torch_device)
        out = trainer.model(pair[0])
        return updated(trainer.optimizer, F.cross_entropy(out, pair[1], weights))

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case(
    "The step prints its loss, which reads it.",
    expect=refused("print", at='print(f"loss {loss:.4f}")'),
)
def reads_by_format(place):
    trainer = Trainer(place, dropout=0.4)

    def step(pair):
        loss = trainer.train(pair)
        print(f"loss {loss:.4f}")
        return loss

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case(
    "The step reads its predictions by `.tolist()`, for a metric.",
    expect=refused(at="predicted.extend(out.argmax(1).tolist())"),
)
def reads_by_tolist(place):
    trainer, predicted = Trainer(place), []

    def step(pair):
        out = trainer.model(pair[0])
        predicted.extend(out.argmax(1).tolist())
        return updated(trainer.optimizer, F.cross_entropy(out, pair[1]))

    return losses_of(place, place.capture(step), NUM), predicted, trainer.state()


@captured_case(
    "An `assert` of the step reads whether classes are in range.",
    expect=refused(at="assert (pair[1] < 4).all()"),
)
def reads_by_assert(place):
    trainer = Trainer(place)

    def step(pair):
        assert (pair[1] < 4).all()
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case("The step catches what a read raises, and goes on without it.", expect=EITHER)
def read_that_is_caught(place):
    trainer = Trainer(place, dropout=0.3)

    def step(pair):
        loss = trainer.loss(pair)
        try:
            scale = 1.0 if loss.item() > 0 else 2.0
        except RuntimeError:
            scale = 5.0
        return updated(trainer.optimizer, scale * loss)

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case(
    "A read is skipped while a stream is captured, as transformers skips it for masks.",
    expect=CAPTURED,
    devices=(SIMULATED, GPU),
)
def read_that_is_skipped_in_a_capture(place):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        is_capturing = torch.cuda.is_current_stream_capturing()
        if not is_capturing and mask.all():
            mask = None
        return trainer.train((x if mask is None else x * mask, y))

    step, losses = place.capture(step), []
    for x, y in batches(place, 24):
        losses.append(kept(step((x, y, torch.ones_like(x)))))
    return losses, trainer.state()


@captured_case(
    "An assertion of the user forbids captures.",
    expect=EITHER,
    devices=(GPU,),
)
def raises_in_a_capture_only(place):
    trainer = Trainer(place, dropout=0.3)

    def step(pair):
        loss = trainer.loss(pair)
        assert not torch.cuda.is_current_stream_capturing(), "never under capture"
        return updated(trainer.optimizer, loss)

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case("The step waits for the device, as people do to time it.", expect=EITHER)
def waits_in_the_step(place):
    trainer = Trainer(place, dropout=0.3)

    def step(pair):
        loss = trainer.train(pair)
        place.settle()
        return loss

    return losses_of(place, place.capture(step), NUM), trainer.state()


# ---------------------------------------------------------------- what a failed try leaves


class Reading(Trainer):
    """A trainer whose step reads in the middle: between backward and update."""

    def step(self, pair):
        self.optimizer.zero_grad()
        loss = self.loss(pair)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if norm > 1e4:  # read here
            return loss
        self.optimizer.step()
        return loss


@captured_case(
    "After a refusal the loop draws dropout and random numbers as written.",
    expect=refused(at="if norm > 1e4:  # read here"),
)
def dropout_after_a_refusal(place):
    trainer, drawn, losses = Reading(place, dropout=0.5), [], []
    step = place.capture(trainer.step)
    for number, pair in enumerate(batches(place, NUM)):
        losses.append(kept(step(pair)))
        if number % 2:
            drawn.append(kept(trainer.loss(pair)))
            drawn.append(torch.rand(3, device=place.torch_device))
    return losses, drawn, trainer.state()


@captured_case(
    "Gradients after each call are those of the call, also around a failed try.",
    expect=refused(at="if norm > 1e4:  # read here"),
)
def gradients_after_each_call(place):
    trainer, gradients, losses = Reading(place), [], []
    step = place.capture(trainer.step)
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        gradients.append([kept(weight.grad) for weight in trainer.model.parameters()])
    return losses, gradients, trainer.state()


@captured_case(
    "Statistics and counts of a batch norm go on by one each call, around a failed try.",
    expect=refused(at="if norm > 1e4:  # read here"),
)
def buffers_after_a_failed_try(place):
    trainer, counts, losses = Reading(place), [], []
    trainer.model.insert(1, nn.BatchNorm1d(16).to(place.torch_device))
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    step = place.capture(trainer.step)
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        counts.append([kept(buffer) for buffer in trainer.model.buffers()])
    return losses, counts, trainer.state()


@captured_case(
    "The state of AdamW goes on by one each call, around a failed try.",
    expect=refused(at="if norm > 1e4:  # read here"),
)
def optimizer_state_after_a_failed_try(place):
    trainer, steps, losses = Reading(place), [], []
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.01)
    step = place.capture(trainer.step)
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        steps.append([state["step"].clone() for state in trainer.optimizer.state.values()])
    return losses, steps, trainer.state()


@captured_case(
    "After a refusal the loop validates, saves and goes on.",
    expect=refused(at="if norm > 1e4:  # read here"),
)
def goes_on_after_a_refusal(place):
    trainer, seen, losses = Reading(place, dropout=0.5), [], []
    step = place.capture(trainer.step)
    for epoch in range(3):
        for number in range(7):
            losses.append(kept(step(batch(place, 7 * epoch + number))))
        trainer.model.eval()
        with torch.inference_mode():
            seen.append(trainer.loss(batch(place, 90)).clone())
        trainer.model.train()
        saved = {name: kept(value) for name, value in trainer.model.state_dict().items()}
        trainer.model.load_state_dict(saved)
    return losses, seen, trainer.state()


@captured_case(
    "One kind of batch is refused, and another one is captured.",
    expect=CAPTURED,
)
def one_kind_is_refused(place):
    trainer = Trainer(place)

    def step(pair):
        loss = trainer.loss(pair)
        if len(pair[0]) == 4 and loss.item() > 100:
            loss = loss * 2
        return updated(trainer.optimizer, loss)

    step = place.capture(step)
    losses = [
        kept(step(batch(place, number, rows=4 if number % 4 == 3 else 6))) for number in range(48)
    ]
    return losses, trainer.state()


@captured_case("Two steps share a model: one of them reads, the other is captured.", expect=EITHER)
def one_of_two_steps_is_refused(place):
    trainer, losses = Trainer(place, dropout=0.3), []

    def reads(pair):
        loss = trainer.loss(pair)
        return updated(trainer.optimizer, loss * min(loss.item(), 1.0))

    steps = [place.capture(reads), place.capture(trainer.train)]
    for number, pair in enumerate(batches(place, 40)):
        losses.append(kept(steps[number % 2](pair)))
    return losses, trainer.state()


@captured_case(
    "What is captured, refused and counted adds up to the calls.",
    expect=HOLDS,
    holds_plainly=False,
)
def calls_add_up(place):
    trainer = Reading(place)
    step = place.capture(trainer.step)
    losses_of(place, step, NUM)
    report = step.report

    assert report.num_replays + report.num_eager == NUM, everything_said(report)


def megabytes(place):
    """Return how much memory of the device is in use, and how much is held."""
    gc.collect()
    place.settle()
    torch.cuda.empty_cache()
    return SimpleNamespace(
        used=torch.cuda.memory_allocated() / 2**20, held=torch.cuda.memory_reserved() / 2**20
    )


def big_trainer(place):
    """Return a trainer with weights and activations of megabytes, after one step."""
    trainer = Trainer(place)
    trainer.model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4))
    trainer.model.to(place.torch_device)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.9)
    return trainer


def big_batches(place, num):
    """Yield batches of 64 MB each: more than what libraries keep for each stream."""
    for number in range(num):
        yield batch(place, number, rows=16384, num_in=1024)


@captured_case(
    "Memory after a captured step is let go, is what it was.",
    expect=HOLDS,
    holds_plainly=False,
    devices=(GPU,),
)
def memory_is_let_go(place):
    trainer = big_trainer(place)
    for pair in big_batches(place, 2):
        trainer.train(pair)
    del pair
    before = megabytes(place)
    step = place.capture(trainer.train)
    for pair in big_batches(place, 14):
        step(pair)
    assert step.report.num_replays, everything_said(step.report)
    place.steps.clear()
    del step, pair
    trainer.optimizer.zero_grad()
    trainer.train(next(big_batches(place, 1)))
    after = megabytes(place)

    assert after.used - before.used < 80, (before, after)
    assert after.held - before.held < 160, (before, after)


@captured_case(
    "Memory after a refusal is what it was, while the step goes on as written.",
    expect=HOLDS,
    holds_plainly=False,
    devices=(GPU,),
)
def memory_after_a_refusal(place):
    trainer = big_trainer(place)

    def step(pair):
        loss = trainer.train(pair)
        return loss * min(loss.item(), 1.0)

    for pair in big_batches(place, 2):
        step(pair)
    before = megabytes(place)
    captured = place.capture(step)
    for pair in big_batches(place, 14):
        captured(pair)
    after = megabytes(place)

    assert not captured.report.num_replays, everything_said(captured.report)
    assert after.used - before.used < 80, (before, after)
    assert after.held - before.held < 160, (before, after)


@captured_case(
    "A try with a host write is not made: the step never runs more often than called.",
    expect=EITHER,
)
def calls_are_counted_from_outside(place):
    trainer, log = Trainer(place), []
    trainer.model[0].register_forward_hook(lambda module, args, out: log.append(len(args[0])))
    step = place.capture(trainer.train)
    losses = losses_of(place, step, NUM)
    return losses, log, trainer.state()


@captured_case(
    "A model without parameters on the device: the step trains on the host.", expect=EITHER
)
def trains_on_the_host(place):
    torch.manual_seed(4)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(pair):
        x, y = (part.cpu() for part in pair)
        return updated(optimizer, F.cross_entropy(model(x), y))

    return losses_of(place, place.capture(step), NUM), model.state_dict()


@captured_case("The step makes a new model and trains it, each time anew.", expect=EITHER)
def makes_a_model_each_time(place):
    def step(pair):
        model = mlp(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))
        return loss

    return losses_of(place, place.capture(step), NUM)
