"""Gradients of captured models: kept, added up, read, changed, hooked, and taken twice."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from hazards.captured_models import Headed, batch, batches, kept, mlp, sgd, state
from hazards.in_place_harness import captured, either, in_place_case
from hazards.in_place_models import NUM, Normed, fit, floats, made, update


# ------------------------------------------------------------------------------ added up


def _accumulated(place, every, *, set_to_none, num=24, captures_the_optimizer=False):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer = sgd(model, momentum=0.9)
    if captures_the_optimizer:
        place.capture(optimizer)
    losses, seen = [], []
    for number, (x, y) in enumerate(batches(place, num)):
        loss = F.cross_entropy(model(x), y) / every
        loss.backward()
        losses.append(loss.item())
        if number % every == every - 1:
            seen.append([kept(one.grad) for one in model.parameters()])
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
    return losses, seen, state(model, optimizer)


@in_place_case("Gradients of four batches are added up, and then set to None.")
def accumulated_and_set_to_none(place):
    return _accumulated(place, 4, set_to_none=True)


@in_place_case("Gradients of four batches are added up, and then filled with zeros.")
def accumulated_and_zeroed(place):
    return _accumulated(place, 4, set_to_none=False)


@in_place_case("Gradients of three batches are added up; the optimizer is captured too.")
def accumulated_with_a_captured_optimizer(place):
    return _accumulated(place, 3, set_to_none=True, num=48, captures_the_optimizer=True)


@in_place_case("Gradients are never zeroed: they grow for ever.")
def never_zeroed(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model, lr=0.01))
    losses = []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("Gradients are zeroed between forward and backward, by the model, and to zeros.")
def zeroed_between_forward_and_backward(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 30)):
        loss = F.cross_entropy(model(x), y)
        [model.zero_grad, optimizer.zero_grad][number % 2](set_to_none=number % 3 == 0)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("Accumulation ends an epoch in the middle: the last update has fewer batches.")
def accumulation_with_a_rest(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    losses = []
    for _ in range(4):
        for number, (x, y) in enumerate(batches(place, 7)):
            loss = F.cross_entropy(model(x), y) / 3
            loss.backward()
            losses.append(loss.item())
            if number % 3 == 2 or number == 6:
                optimizer.step()
                optimizer.zero_grad()
    return losses, state(model, optimizer)


# ---------------------------------------------------------------------------- kept and read


@in_place_case("The gradients of each step are kept as they are, without a copy.")
def gradients_are_kept(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    history = []
    for x, y in batches(place, NUM):
        update(optimizer, F.cross_entropy(model(x), y))
        history.append([one.grad for one in model.parameters()])
    return history, state(model, optimizer)


@in_place_case("Norms of gradients are logged for each weight, before and after clipping.")
def norms_are_logged(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model, momentum=0.9))
    found = []
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        before = {name: one.grad.norm().item() for name, one in model.named_parameters()}
        total = clip_grad_norm_(model.parameters(), 0.5)
        clip_grad_value_(model.parameters(), 0.2)
        after = {name: one.grad.norm().item() for name, one in model.named_parameters()}
        optimizer.step()
        found.append((before, total.item(), after, loss.item()))
    return found, state(model, optimizer)


@in_place_case("Gradients are scaled, changed in place, and replaced by others before the update.")
def gradients_are_changed_by_hand(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model))
    losses = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for one in model.parameters():
            one.grad.mul_(0.5)
            one.grad.add_(one.detach(), alpha=0.01)
            if number % 3 == 0:
                one.grad = one.grad.sign() * 0.1
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("`.grad` points into one flat buffer of the user, as some trainers make it.")
def gradients_are_views_of_a_buffer(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    parameters = list(model.parameters())
    flat = torch.zeros(sum(one.numel() for one in parameters), device=place.torch_device)
    start, found = 0, []
    for one in parameters:
        one.grad = flat[start : start + one.numel()].view_as(one)
        start += one.numel()
    for x, y in batches(place, NUM):
        flat.zero_()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        found.append((flat.norm().item(), loss.item()))
        optimizer.step()
    return found, flat, state(model, optimizer)


@in_place_case("The gradients of a batch are set aside and put back later: gradient surgery.")
def gradients_are_set_aside(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses = []
    for number in range(15):
        tasks = []
        for task in range(2):
            x, y = batch(place, 2 * number + task)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            tasks.append([one.grad for one in model.parameters()])
            losses.append(loss.item())
        for one, first, second in zip(model.parameters(), *tasks, strict=True):
            dot = (first * second).sum()
            one.grad = first + second - torch.clamp(dot, max=0) * first
        optimizer.step()
    return losses, state(model, optimizer)


# -------------------------------------------------------------------------------------- hooks


@in_place_case("Hooks of weights clip their gradients, and record norms.", expect=either("hook"))
def hooks_of_weights(place):
    model = place.capture(mlp(place))
    optimizer, norms = sgd(model), []

    def clip(grad):
        norms.append(grad.norm().item())
        return grad.clamp(-0.05, 0.05)

    for one in model.parameters():
        one.register_hook(clip)
    return fit(place, model, optimizer), norms, state(model, optimizer)


@in_place_case("A hook masks the gradient of frozen rows of a weight.", expect=either("hook"))
def hook_masks_rows(place):
    model = place.capture(made(place, Headed))
    optimizer = sgd(model)
    mask = torch.ones_like(model.head.weight)
    mask[:2] = 0
    losses = fit(place, model, optimizer, 12)
    handle = model.head.weight.register_hook(lambda grad: grad * mask)
    losses += fit(place, model, optimizer, 12)
    handle.remove()
    losses += fit(place, model, optimizer, 12)
    return losses, state(model, optimizer)


@in_place_case(
    "Each weight is updated when its gradient is there: post-accumulate hooks.",
    expect=either("hook"),
)
def update_in_post_accumulate_hooks(place):
    model = place.capture(mlp(place))
    optimizers, order = {}, []

    def update_one(weight):
        order.append(tuple(weight.shape))
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for one in model.parameters():
        optimizers[one] = torch.optim.SGD([one], lr=0.1)
        one.register_post_accumulate_grad_hook(update_one)
    losses = []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
    return losses, order, state(model)


@in_place_case("Post-accumulate hooks count while gradients are added up.", expect=either("hook"))
def post_accumulate_hooks_while_accumulating(place):
    model = place.capture(mlp(place))
    optimizer, seen = sgd(model), []
    model[0].weight.register_post_accumulate_grad_hook(
        lambda weight: seen.append(kept(weight.grad))
    )
    losses = []
    for number, (x, y) in enumerate(batches(place, 24)):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return losses, seen, state(model, optimizer)


@in_place_case(
    "A full backward hook of a layer inside records gradients of activations.",
    expect=either("hook"),
)
def full_backward_hook_inside(place):
    model = place.capture(mlp(place))
    optimizer, seen = sgd(model), []

    def record(layer, grad_input, grad_output):
        seen.append((type(layer).__name__, kept(grad_output[0])))

    handle = model[0].register_full_backward_hook(record)
    losses = fit(place, model, optimizer, 14)
    handle.remove()
    losses += fit(place, model, optimizer, 14)
    return losses, seen, state(model, optimizer)


@in_place_case("A full backward hook of the model itself.", expect=either("hook"))
def full_backward_hook_of_the_model(place):
    model = mlp(place)
    seen = []
    model.register_full_backward_hook(lambda _, given, got: seen.append((given, kept(got[0]))))
    place.capture(model)
    optimizer = sgd(model)
    return fit(place, model, optimizer), seen, state(model, optimizer)


@in_place_case("A hook is put on the output of the model in every step.", expect=captured("model"))
def hook_of_an_output(place):
    model = place.capture(mlp(place))
    optimizer, seen, losses = sgd(model), [], []
    for x, y in batches(place, NUM):
        scores = model(x)
        scores.retain_grad()
        scores.register_hook(lambda grad: seen.append(kept(grad)) or grad * 0.5)
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
        seen.append(kept(scores.grad))
    return losses, seen, state(model, optimizer)


@in_place_case(
    "Gradients of activations inside are looked at: retain_grad in forward hooks (Grad-CAM).",
    expect=either("hook"),
)
def activations_retain_gradients(place):
    model = place.capture(mlp(place))
    optimizer, seen, at = sgd(model), [], {}

    def keep(layer, inputs, out):
        del layer, inputs
        out.retain_grad()
        at["hidden"] = out

    model[1].register_forward_hook(keep)
    losses = []
    for x, y in batches(place, NUM):
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        seen.append((kept(at["hidden"]), kept(at["hidden"].grad)))
    return losses, seen, state(model, optimizer)


# ------------------------------------------------------------------------- taken otherwise


@in_place_case(
    "autograd.grad gives the gradients, and the update is written by hand.",
    expect=either("autograd.grad|backward|hand"),
)
def autograd_grad(place):
    model = place.capture(mlp(place))
    losses = []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for one, grad in zip(model.parameters(), grads, strict=True):
                one -= 0.1 * grad
        losses.append(loss.item())
    return losses, state(model)


@in_place_case("autograd.grad asks for two weights and the input only.", expect=either())
def autograd_grad_of_some(place):
    model = place.capture(mlp(place))
    optimizer, found = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 30)):
        x.requires_grad_()
        loss = F.cross_entropy(model(x), y)
        if number % 2:
            found.append(torch.autograd.grad(loss, [model[3].weight, x, model[0].bias]))
            found.append([one.grad for one in model.parameters()])
        else:
            found.append(update(optimizer, loss))
    return found, state(model, optimizer)


@in_place_case("backward(inputs=...) gives gradients to the head alone.", expect=either())
def backward_to_some_weights(place):
    model = place.capture(made(place, Headed))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 30)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward(inputs=list(model.head.parameters()) if number % 2 else None)
        optimizer.step()
        losses.append((loss.item(), model.body.weight.grad is None))
    return losses, state(model, optimizer)


@in_place_case(
    "Two losses of one forward go backward one after the other: retain_graph.",
    expect=either("retain_graph|second backward"),
)
def two_backwards_of_one_forward(place):
    model = place.capture(mlp(place, dropout=0.2))
    optimizer, losses = sgd(model), []
    for x, y in batches(place, NUM):
        scores = model(x)
        first, second = F.cross_entropy(scores, y), scores.square().mean()
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        losses.append(kept(model[0].weight.grad))
        second.backward()
        optimizer.step()
        losses.append((first.item(), second.item()))
    return losses, state(model, optimizer)


@in_place_case(
    "Every third step takes gradients twice, with retain_graph; the others are plain.",
    expect=either("retain_graph|second backward"),
)
def two_backwards_at_times(place):
    model = place.capture(made(place, Normed))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 36)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        if number % 3 == 2:
            loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case(
    "backward twice without retain_graph raises, and training goes on.", expect=either()
)
def backward_twice_raises(place):
    model = place.capture(mlp(place))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        loss = F.cross_entropy(model(x), y)
        losses.append(update(optimizer, loss))
        if number in (1, 12):
            optimizer.zero_grad()
            try:
                loss.backward()
            except RuntimeError as error:
                losses.append("a second time" in str(error))
    return losses, state(model, optimizer)


@in_place_case(
    "The norm of the gradient is part of the loss: create_graph.", expect=either("create_graph")
)
def gradient_norm_in_the_loss(place):
    model = place.capture(made(place, nn.Sequential, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)))
    optimizer, losses = sgd(model), []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        norm = sum(grad.square().sum() for grad in grads)
        losses.append((update(optimizer, loss + 0.1 * norm), norm.item()))
    return losses, state(model, optimizer)


@in_place_case(
    "A penalty on the slope of the critic between real and fake: WGAN-GP.",
    expect=either("create_graph|forward"),
)
def gradient_penalty(place):
    critic = made(place, nn.Sequential, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    place.capture(critic)
    optimizer, losses = sgd(critic, lr=0.01), []
    for number in range(NUM):
        real, fake = floats(place, number, 6, 8), floats(place, 100 + number, 6, 8)
        between = torch.lerp(real, fake, torch.rand(6, 1, device=real.device)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        losses.append((update(optimizer, loss), penalty.item()))
    return losses, state(critic, optimizer)


@in_place_case(
    "backward(create_graph=True) in each tenth step, plain backward in the others.",
    expect=either("create_graph"),
)
def create_graph_at_times(place):
    model = place.capture(made(place, nn.Sequential, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 30)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if number % 10 == 9:
            grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            loss = loss + sum(grad.square().sum() for grad in grads)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("A gradient is given to backward, of scores that are no loss.", expect=either())
def gradient_is_given(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    for number, (x, _) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        model(x).backward(floats(place, number, 6, 4) / 10)
        optimizer.step()
    return state(model, optimizer)


@in_place_case(
    "A penalty on all weights is part of the loss: L1 on model.parameters().",
    expect=either("outside"),
)
def penalty_on_weights(place):
    model = place.capture(mlp(place))
    optimizer, losses = sgd(model), []
    for x, y in batches(place, NUM):
        penalty = sum(one.abs().sum() for one in model.parameters())
        losses.append(update(optimizer, F.cross_entropy(model(x), y) + 1e-3 * penalty))
    return losses, state(model, optimizer)


@in_place_case(
    "A penalty on all weights, while gradients of three batches are added up.",
    expect=either("outside"),
)
def penalty_on_weights_while_accumulating(place):
    model = place.capture(mlp(place))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 24)):
        loss = F.cross_entropy(model(x), y)
        loss = loss + 1e-2 * sum(one.square().sum() for one in model.parameters())
        loss = loss + 1e-3 * sum(one.abs().sum() for one in model.parameters())
        loss.backward()
        losses.append(loss.item())
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return losses, state(model, optimizer)
