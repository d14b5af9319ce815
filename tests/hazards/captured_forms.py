"""Steps of all forms: what they take, what they are, what they share, and what they train."""

from __future__ import annotations

import threading

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hazards.captured_harness import CAPTURED, EITHER, GPU, HOLDS, captured_case
from hazards.captured_models import (
    batch,
    batches,
    host_batch,
    kept,
    mlp,
    run,
    sgd,
    state,
    training_step,
)


# -------------------------------------------------------------------------------- arguments


@captured_case("`step(**batch)`, as batches of a tokenizer are given.", expect=CAPTURED)
def batch_as_keywords(place):
    embed, out = nn.Embedding(12, 8), nn.Linear(8, 4)
    model = nn.ModuleList([embed, out]).to(place.torch_device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(input_ids, labels, attention_mask=None, **others):
        optimizer.zero_grad()
        hidden = embed(input_ids) * attention_mask.unsqueeze(-1)
        loss = F.cross_entropy(out(hidden.sum(1)), labels) + others["weight"].mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "hidden": hidden.detach()}

    step = place.capture(train)
    results = []
    for number in range(18):
        draw = torch.Generator().manual_seed(number)
        one = {
            "labels": torch.randint(4, (3,), generator=draw),
            "input_ids": torch.randint(12, (3, 5), generator=draw),
            "attention_mask": torch.randint(2, (3, 5), generator=draw),
            "weight": torch.rand(2, generator=draw),
        }
        results.append(step(**{name: place.moved(value) for name, value in one.items()}))
    return results, state(model, optimizer)


@captured_case("A word says what the step does: 'train' or 'evaluate'.", expect=CAPTURED)
def word_selects_the_branch(place):
    model = mlp(place, dropout=0.3)
    optimizer = sgd(model)

    def train(x, y, mode="train"):
        if mode == "train":
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss
        with torch.no_grad():
            return F.cross_entropy(model(x), y)

    step = place.capture(train)
    results = []
    for number, (x, y) in enumerate(batches(place, 36)):
        results.append(kept(step(x, y, mode="evaluate") if number % 3 == 2 else step(x, y)))
    return results, state(model, optimizer)


# ------------------------------------------------------------------------ kinds of callables


class Trainer:
    """A model with its optimizer, and steps as methods."""

    def __init__(self, place):
        self.model = mlp(place, dropout=0.2)
        self.optimizer = sgd(self.model, momentum=0.9)

    def step(self, one):
        return training_step(self.model, self.optimizer)(one)

    def train(self, one):
        x, y = one
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def __call__(self, one):
        return self.train(one)


@captured_case("`self.step = capture(self.step)` in the constructor.", expect=CAPTURED)
def method_replaced_in_the_constructor(place):
    class Mine(Trainer):
        def __init__(self):
            super().__init__(place)
            self.step = place.capture(self.step)

    mine = Mine()
    return run(mine.step, batches(place, 16)), state(mine.model, mine.optimizer)


# -------------------------------------------------------------------- steps that share models


@captured_case("Training and evaluation are captured, and share the model.", expect=CAPTURED)
def training_and_evaluation(place):
    model = mlp(place, dropout=0.4)
    optimizer = sgd(model)
    train = place.capture(training_step(model, optimizer))

    @place.gapless_capture
    @torch.no_grad()
    def evaluate(one):
        scores = model(one[0])
        return F.cross_entropy(scores, one[1]), (scores.argmax(1) == one[1]).sum()

    results = []
    for epoch in range(4):
        model.train()
        results.append(run(train, batches(place, 6 + epoch)))
        model.eval()
        results.append([evaluate(one) for one in batches(place, 5)])
    return results, state(model, optimizer)


@captured_case("A GAN: discriminator and generator have steps of their own.", expect=CAPTURED)
def gan(place):
    generator = mlp(place, num_in=4, num_out=8)
    judge = mlp(place, num_out=1)
    of_generator = torch.optim.Adam(
        generator.parameters(), lr=1e-3, betas=(0.5, 0.999), fused=True
    )
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999), fused=True)

    @place.gapless_capture
    def judge_step(real):
        fake = generator(torch.randn(6, 4, device=place.torch_device)).detach()
        of_judge.zero_grad()
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean()
        loss.backward()
        of_judge.step()
        return loss

    @place.gapless_capture
    def generator_step(noise):
        of_generator.zero_grad()
        loss = F.softplus(-judge(generator(noise))).mean()
        loss.backward()
        of_generator.step()
        return loss

    losses = []
    for number, (x, _) in enumerate(batches(place, 18)):
        losses += run(judge_step, [x])
        losses += run(generator_step, [batch(place, 50 + number)[0][:, :4]])
    return losses, state(generator, of_generator), state(judge, of_judge)


# ------------------------------------------------------------------ recurrent and generative


@captured_case("Diffusion: timesteps and noise are drawn on the device.", expect=CAPTURED)
def diffusion(place):
    model = mlp(place, num_in=9, num_out=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    kept_part = torch.linspace(0.99, 0.01, 50).to(place.torch_device)

    def train(x):
        times = torch.randint(0, 50, (x.size(0),), device=x.device)
        noise = torch.randn_like(x)
        part = kept_part[times].unsqueeze(1)
        noisy = part.sqrt() * x + (1 - part).sqrt() * noise
        optimizer.zero_grad()
        loss = F.mse_loss(model(torch.cat([noisy, part], 1)), noise)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = run(step, [x for x, _ in batches(place, 16)])
    return losses, torch.rand(3, device=place.torch_device), state(model, optimizer)


@captured_case(
    "A variational autoencoder samples with randn_like; the loop samples between.", expect=CAPTURED
)
def variational_autoencoder(place):
    encoder, decoder = mlp(place, num_out=8), mlp(place, num_in=4, num_out=8)
    both = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(both.parameters(), lr=1e-3, fused=True)

    def train(x):
        mean, log_var = encoder(x).chunk(2, dim=1)
        code = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        rest = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        optimizer.zero_grad()
        loss = F.mse_loss(decoder(code), x) + 0.1 * rest
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "rest": rest.detach()}

    step = place.capture(train)
    results = []
    for number, (x, _) in enumerate(batches(place, 18)):
        results.append(step(x))
        if number % 5 == 4:
            with torch.no_grad():
                results.append(decoder(torch.randn(2, 4, device=place.torch_device)))
    return results, state(both, optimizer)


# ---------------------------------------------------------------- what autograd can do inside


@captured_case(
    "An inner loop by functional_call, with gradients through it: MAML.", expect=CAPTURED
)
def inner_loop(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(support, query):
        weights = dict(model.named_parameters())
        for _ in range(2):
            loss = F.cross_entropy(functional_call(model, weights, (support[0],)), support[1])
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            updated = zip(weights.items(), grads, strict=True)
            weights = {name: weight - 0.1 * grad for (name, weight), grad in updated}
        optimizer.zero_grad()
        loss = F.cross_entropy(functional_call(model, weights, (query[0],)), query[1])
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    # Nothing is captured until the order of sums is settled, after some twenty calls.
    losses = [kept(step(batch(place, n), batch(place, 60 + n))) for n in range(40)]
    return losses, state(model, optimizer)


@captured_case(
    "Activations with dropout are checkpointed, and drawn again in backward.", expect=EITHER
)
def checkpointed_dropout(place):
    model = mlp(place, dropout=0.5)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = run(place.capture(train), batches(place, 18))
    return losses, state(model, optimizer)


@captured_case("A hook on a weight changes its gradient; it is removed later.", expect=EITHER)
def hook_on_a_gradient(place):
    model = mlp(place)
    optimizer = sgd(model)
    handle = model[0].weight.register_hook(lambda grad: grad * 0.5)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 14))
    handle.remove()
    losses += run(step, batches(place, 14))
    model[3].weight.register_hook(lambda grad: grad * 2)
    losses += run(step, batches(place, 14))
    return losses, state(model, optimizer)


@captured_case("The model is compiled; the step is captured.", expect=CAPTURED, devices=(GPU,))
def compiled_model(place):
    torch.compiler.reset()
    model = mlp(place)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    step = place.capture(training_step(compiled, optimizer))
    losses = run(step, batches(place, 16))
    torch.compiler.reset()
    return losses, state(model, optimizer)


@captured_case(
    "scatter_add does not repeat its own bits: the report names it.",
    expect=HOLDS,
    holds_plainly=False,
    devices=(GPU,),
)
def scatter_add_is_named(place):
    torch.use_deterministic_algorithms(False)
    weight = torch.ones(3, device=place.torch_device)

    def train(values):
        rows = torch.arange(values.numel(), device=values.device) % 3
        sums = torch.zeros(3, device=values.device).scatter_add(0, rows, values * weight[rows])
        weight.add_(sums, alpha=1e-9)
        return sums

    step = place.capture(train)
    for number in range(16):
        draw = torch.Generator().manual_seed(number)
        values = torch.randn(300_000, generator=draw).to(place.torch_device)
        expected = values.double().reshape(-1, 3).sum(0)
        assert torch.allclose(step(values).double(), expected, rtol=1e-3, atol=0.5)
    assert step.report.num_replays > 0
    assert "scatter_add" in str(step.report)


# --------------------------------------------------------------------------- what it returns


def _returning(place, make, *, expect_num=16):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return make(loss.detach(), scores.detach())

    step = place.capture(train)
    return [step(one) for one in batches(place, expect_num)], state(model, optimizer)


@captured_case("The step returns nothing.", expect=CAPTURED)
def returns_nothing(place):
    return _returning(place, lambda loss, scores: None)


# --------------------------------------------------------------------- the loop around it


@captured_case("The whole loop runs on a stream of its own.", expect=CAPTURED)
def loop_on_a_stream(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    stream = place.stream()
    place.order(stream, place.current())
    with place.on(stream):
        losses = run(step, batches(place, 16))
    place.order(place.current(), stream)
    place.settle()
    return losses, state(model, optimizer)


@captured_case(
    "Two threads train two models, each with a captured step.",
    expect=EITHER,
    devices=(GPU,),
    waits=False,
)
def two_threads(place):
    results = {}

    # The generator of the host belongs to all threads.
    models = {"first": mlp(place), "second": mlp(place)}

    def work(name):
        model = models[name]
        optimizer = sgd(model, lr=0.1 if name == "first" else 0.05)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            losses = run(place.capture(training_step(model, optimizer)), batches(place, 40))
        stream.synchronize()
        results[name] = losses, state(model, optimizer)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results["first"], results["second"]


@captured_case("Batches are prefetched, and losses are read late.", expect=CAPTURED)
def prefetched_with_losses_read_late(place):
    model = mlp(place, dropout=0.1)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    losses = place.losses()
    for _ in range(2):
        for one in place.prefetch([host_batch(number) for number in range(10)]):
            losses.add(step(one))
    return losses.mean(), losses.history, state(model, optimizer)
