"""Training, evaluation and generation in turns, and the modes that a call is made under."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode

from hazards.captured_models import Headed, batch, batches, kept, mlp, sgd, state
from hazards.in_place_harness import captured, either, in_place_case
from hazards.in_place_models import NUM, Normed, Tied, fit, floats, made, tokens, update


# ------------------------------------------------------------------------------- evaluation


def _epochs(place, evaluate, *, num=4, model=None):
    model = place.capture(made(place, Normed) if model is None else model)
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses, scores = [], []
    for epoch in range(num):
        model.train()
        losses += fit(place, model, optimizer, 8, start=10 * epoch)
        scores.append(evaluate(model))
    return losses, scores, state(model, optimizer)


@in_place_case("After each epoch the model is evaluated: eval() and no_grad.")
def evaluated_under_no_grad(place):
    def evaluate(model):
        model.eval()
        with torch.no_grad():
            return [kept(model(x).argmax(1)) for x, _ in batches(place, 4)]

    return _epochs(place, evaluate)


@in_place_case("After each epoch the model is evaluated in inference mode, and outputs are kept.")
def evaluated_in_inference_mode(place):
    def evaluate(model):
        model.eval()
        with torch.inference_mode():
            outputs = [model(x) for x, _ in batches(place, 4)]
        return outputs, [one.is_inference() for one in outputs]

    return _epochs(place, evaluate)


@in_place_case("The model is evaluated in train mode, with gradients, and nothing goes backward.")
def evaluated_as_in_training(place):
    def evaluate(model):
        return [F.cross_entropy(model(x), y).item() for x, y in batches(place, 2)]

    return _epochs(place, evaluate)


@in_place_case("Evaluation is called between forward and backward.", expect=captured("optimizer"))
def evaluated_between_forward_and_backward(place):
    model = place.capture(made(place, Normed))
    optimizer = place.capture(sgd(model))
    losses, scores = [], []
    for number, (x, y) in enumerate(batches(place, 24)):
        loss = F.cross_entropy(model(x), y)
        if number % 3 == 0:
            model.eval()
            with torch.no_grad():
                scores.append(kept(model(x)))
            model.train()
        losses.append(update(optimizer, loss))
    return losses, scores, state(model, optimizer)


@in_place_case("Only batch norm is put into eval mode, from epoch 2 on; dropout goes on.")
def batch_norm_is_frozen(place):
    def evaluate(model):
        return model.training

    class Freezing(Normed):
        num_epochs = 0

        def train(self, mode=True):
            super().train(mode)
            self.num_epochs += 1
            if self.num_epochs > 2:
                self.norm.eval()
            return self

    return _epochs(place, evaluate, num=5, model=made(place, Freezing))


@in_place_case("The dropout's rate is raised in the middle of training.")
def dropout_rate_changes(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 14)
    model.drop.p = 0.6
    losses += fit(place, model, optimizer, 14)
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    losses += fit(place, model, optimizer, 14)
    return losses, state(model, optimizer)


@in_place_case("Monte Carlo dropout: many passes in train mode under no_grad, between steps.")
def monte_carlo_dropout(place):
    def evaluate(model):
        with torch.no_grad():
            passes = torch.stack([model(batch(place, 90)[0]) for _ in range(6)])
        return passes.mean(0), passes.std(0)

    return _epochs(place, evaluate)


@in_place_case(
    "Text is generated between steps: the sequence grows by a token a call.", expect=either()
)
def generates_between_steps(place):
    model = place.capture(made(place, Tied))
    optimizer = sgd(model)
    losses, texts = [], []
    for number in range(24):
        ids = tokens(place, number, 4, 6)
        logits = model(ids[:, :-1])
        losses.append(
            update(optimizer, F.cross_entropy(logits.reshape(-1, 11), ids[:, 1:].flatten()))
        )
        if number % 6 == 5:
            model.eval()
            with torch.no_grad():
                text = ids[:1, :2]
                for _ in range(5):
                    chances = model(text)[:, -1].softmax(-1)
                    text = torch.cat([text, torch.multinomial(chances, 1)], 1)
            texts.append(kept(text))
            model.train()
    return losses, texts, state(model, optimizer)


@in_place_case("Rollouts and updates in turns, as PPO: one state, then batches of states.")
def rollouts_and_updates(place):
    policy = place.capture(mlp(place))
    optimizer = place.capture(torch.optim.AdamW(policy.parameters(), lr=1e-2, fused=True))
    actions, losses = [], []
    for epoch in range(4):
        memory = []
        for number in range(8):
            with torch.no_grad():
                scores = policy(floats(place, 20 * epoch + number, 1, 8))
            actions.append(torch.distributions.Categorical(logits=scores).sample())
            memory.append(scores.log_softmax(1))
        old = torch.cat(memory)
        for number in range(5):
            new = policy(floats(place, 20 * epoch + number, 8, 8)).log_softmax(1)
            losses.append(update(optimizer, (new.exp() * (new - old)).sum(1).mean()))
    return losses, actions, state(policy, optimizer)


@in_place_case("A model that is only evaluated: features of a frozen network.")
def frozen_features(place):
    body = place.capture(made(place, Normed).eval().requires_grad_(False), name="body")
    head = place.capture(made(place, nn.Linear, 4, 4), name="head")
    optimizer = sgd(head)
    losses = []
    for number, (x, y) in enumerate(batches(place, 24)):
        with torch.set_grad_enabled(number % 2 == 0):
            features = body(x)
        losses.append(update(optimizer, F.cross_entropy(head(features), y)))
    return losses, features, state(head, optimizer), state(body)


# --------------------------------------------------------------------------------- autocast


def _kind(place):
    return place.torch_device.type


@in_place_case("Mixed precision: one call of the model and of the loss in each autocast block.")
def autocast_with_one_call(place):
    model = place.capture(mlp(place, dropout=0.1))
    criterion = place.capture(nn.CrossEntropyLoss())
    optimizer = place.capture(sgd(model))
    losses = []
    for x, y in batches(place, NUM):
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = criterion(model(x), y)
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case("A weight is used three times in one captured forward under autocast.")
def autocast_and_a_weight_used_three_times(place):
    class Thrice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(self.layer(self.layer(x)))

    model = place.capture(made(place, Thrice))
    optimizer, losses = sgd(model), []
    for x, _ in batches(place, NUM):
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            out = model(x)
        losses.append(update(optimizer, out.float().square().mean()))
    return losses, state(model, optimizer)


@in_place_case("Attention with dropout under autocast, whose backward pass is outside of it.")
def autocast_and_attention_with_dropout(place):
    model = made(place, nn.TransformerEncoderLayer, 8, 2, 16, dropout=0.1, batch_first=True)
    place.capture(model)
    optimizer, losses = sgd(model), []
    for number in range(NUM):
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            out = model(floats(place, number, 2, 5, 8))
        losses.append(update(optimizer, out.float().square().mean()))
    return losses, state(model, optimizer)


@in_place_case(
    "Two calls of the model in one autocast block share casts.", expect=either("autocast|forward")
)
def autocast_with_two_calls(place):
    model = place.capture(mlp(place))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 24)):
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
            if number % 2:
                loss = loss + F.mse_loss(model(x * 0.9), model(x).detach())
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case(
    "A weight is used in the same autocast block before the captured part uses it.",
    expect=either("autocast|tied|outside|shared"),
)
def autocast_with_a_use_outside(place):
    model = made(place, Headed)
    place.capture(model.body, name="body")
    optimizer, losses = sgd(model), []
    for x, y in batches(place, NUM):
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            before = F.linear(x, model.body.weight)
            loss = F.cross_entropy(model(x), y) + before.float().square().mean()
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case(
    "Training in autocast; evaluation in autocast under no_grad, in the same block.",
    expect=either("autocast"),
)
def autocast_around_training_and_evaluation(place):
    model = place.capture(mlp(place))
    optimizer, losses, scores = sgd(model), [], []
    for number, (x, y) in enumerate(batches(place, 24)):
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            if number % 2:
                with torch.no_grad():
                    scores.append(kept(model(x)))
            loss = F.cross_entropy(model(x), y)
        losses.append(update(optimizer, loss))
    return losses, scores, state(model, optimizer)


@in_place_case(
    "One autocast stands around the whole loop, and its casts grow stale.",
    expect=either("autocast"),
)
def autocast_around_the_loop(place):
    model = place.capture(mlp(place))
    optimizer, losses = sgd(model), []
    with torch.autocast(_kind(place), dtype=torch.bfloat16):
        losses += fit(place, model, optimizer, 12)
    with torch.autocast(_kind(place), dtype=torch.bfloat16, cache_enabled=False):
        losses += fit(place, model, optimizer, 12)
    losses += fit(place, model, optimizer, 12)
    return losses, state(model, optimizer)


@in_place_case("Autocast is switched on and off by a warm-up, and its dtype changes.")
def autocast_changes(place):
    model = place.capture(mlp(place))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 45)):
        dtype = torch.float16 if number >= 30 else torch.bfloat16
        with torch.autocast(_kind(place), dtype=dtype, enabled=number >= 15):
            scores = model(x)
        losses.append((update(optimizer, F.cross_entropy(scores.float(), y)), str(scores.dtype)))
    return losses, state(model, optimizer)


def _scaled(place, optimizer_of, *, num=24, every=1, clips=False, captures=True):
    model = place.capture(mlp(place))
    optimizer = optimizer_of(model.parameters())
    if captures:
        place.capture(optimizer)
    scaler = torch.amp.GradScaler(_kind(place), init_scale=2.0**6, growth_interval=5)
    losses, scales = [], []
    for number, (x, y) in enumerate(batches(place, num)):
        x = x * (1e38 if number == 13 else 1)
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y) / every
        scaler.scale(loss).backward()
        losses.append(loss.item())
        if number % every == every - 1:
            if clips:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return losses, scales, scaler.state_dict(), state(model, optimizer)


@in_place_case("A GradScaler with SGD as people make it; one batch overflows.")
def grad_scaler(place):
    return _scaled(place, lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9))


@in_place_case("A GradScaler with a fused AdamW, which finds the overflow on the device.")
def grad_scaler_with_fused_adamw(place):
    return _scaled(place, lambda weights: torch.optim.AdamW(weights, lr=1e-2, fused=True))


@in_place_case("A GradScaler, unscale_, clipping and accumulation of two batches.")
def grad_scaler_clipping_and_accumulation(place):
    def optimizer_of(weights):
        return torch.optim.SGD(weights, lr=0.1)

    return _scaled(place, optimizer_of, num=36, every=2, clips=True)


@in_place_case("A GradScaler of a captured model alone, with AdamW as people make it.")
def grad_scaler_without_a_captured_optimizer(place):
    return _scaled(place, lambda weights: torch.optim.AdamW(weights, lr=1e-2), captures=False)


# ------------------------------------------------------------------------------ other modes


@in_place_case("Anomaly detection is switched on for a while.", expect=either())
def anomaly_detection_for_a_while(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 10)
    with torch.autograd.set_detect_anomaly(True):
        losses += fit(place, model, optimizer, 4)
    losses += fit(place, model, optimizer, 10)
    return losses, state(model, optimizer)


@in_place_case("Saved tensors are counted by hooks for a while.", expect=either("hook"))
def saved_tensors_hooks(place):
    model = place.capture(mlp(place))
    optimizer, num_saved = sgd(model), []
    losses = fit(place, model, optimizer, 10)
    for number in range(10, 22):
        x, y = batch(place, number)

        def pack(tensor):
            num_saved.append(tuple(tensor.shape))
            return tensor.clone()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            loss = F.cross_entropy(model(x), y)
        losses.append(update(optimizer, loss))
    return losses, num_saved, state(model, optimizer)


@in_place_case(
    "The default dtype is float64 for a while, and the model makes tensors of it.", expect=either()
)
def default_dtype_changes(place):
    class Adding(Headed):
        def forward(self, x):
            return super().forward(x) + torch.linspace(0, 0.3, 4, device=x.device)

    model = place.capture(made(place, Adding))
    optimizer, losses, dtypes = sgd(model), [], []
    for number, (x, y) in enumerate(batches(place, 36)):
        torch.set_default_dtype(torch.float64 if 12 <= number < 24 else torch.float32)
        scores = model(x)
        dtypes.append(str(scores.dtype))
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
    return losses, dtypes, state(model, optimizer)


@in_place_case("Seeds are set again in each epoch: dropout repeats itself.")
def seeds_are_set_each_epoch(place):
    model = place.capture(mlp(place, dropout=0.5))
    optimizer = place.capture(sgd(model, lr=0.0))
    losses = []
    for _ in range(4):
        torch.manual_seed(7)
        losses.append(fit(place, model, optimizer, 6))
    return losses, losses[2] == losses[3], torch.rand(2), state(model, optimizer)


# ------------------------------------------------------------------- modes that see operators


class Rounding(TorchDispatchMode):
    """Products in low precision, and how many of them and of operators on many weights there were."""

    def __init__(self):
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.num += 1
            return found.to(torch.bfloat16).to(torch.float32)
        self.num += str(function).startswith("aten._foreach_add")
        return found


def _rounded(place, part):
    model = place.capture(made(place, Headed))
    optimizer = place.capture(sgd(model, momentum=0.9, foreach=True))
    losses, counts = [], []
    for number in range(40):
        rounding = Rounding()
        modes = dict.fromkeys(("forward", "backward", "step"), nullcontext())
        if number % 10 > 6:
            modes[part] = rounding
        x, y = batch(place, number)
        with modes["forward"]:
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        with modes["backward"]:
            loss.backward()
        with modes["step"]:
            optimizer.step()
        losses.append(kept(loss))
        counts.append(rounding.num)
    return losses, counts, state(model, optimizer)


@in_place_case("A mode of operators rounds the products of some forward passes.")
def rounded_forward(place):
    return _rounded(place, "forward")


@in_place_case("A mode of operators rounds the products of some backward passes.")
def rounded_backward(place):
    return _rounded(place, "backward")


@in_place_case("A mode of operators is around some updates.")
def rounded_updates(place):
    return _rounded(place, "step")
