"""What trainings have beside their numbers: modes, hooks, optimizers, schedulers, counts, metrics."""

from __future__ import annotations

import collections
import contextlib
import copy
import logging

import numpy as np
import torch
from torch import nn

from graphs.allow_list.harness import EITHER, Case, register


TRAINING: list[Case] = []

captured, refused, either, _ = register(TRAINING, "written")


def sets(name, value):
    return lambda training, number: setattr(training.net, name, value)


# ------------------------------------------------------------------------ torch's own state


@captured()
def training_mode(place, net):
    def forward(net, x):
        out = net.out(x)
        return out * 2.0 if net.training else out

    return forward, lambda training, number: training.net.eval()


@captured()
def probability_of_dropout(place, net):
    net.dropout = nn.Dropout(0.5)
    return lambda net, x: net.last(net.dropout(net.hidden(x))), lambda training, number: setattr(
        net.dropout, "p", 0.0
    )


@captured(expect_of={"in_place": EITHER})
def hook_that_reads(place, net):
    net.scale = 1.0
    net.first.register_forward_hook(lambda module, args, out: out * net.scale)
    return lambda net, x: net.out(x), sets("scale", 2.0)


@captured(expect_of={"in_place": EITHER})
def hook_that_comes_later(place, net):
    return lambda net, x: net.out(x), lambda training, number: net.first.register_forward_hook(
        lambda module, args, out: out * 2.0
    )


@captured(own_step=True)
def grad_mode_and_no_grad(place, net):
    net.scale = 1.0

    def step(training, x):
        out = training.net.out(x)
        with torch.no_grad():
            target = training.net.out(x) * (3.0 if torch.is_grad_enabled() else net.scale)
        loss = (out - target - 1.0).square().mean()
        training.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        training.optimizer.step()
        return loss.detach()

    return step, sets("scale", 2.0)


@captured()
def autocast_by_a_flag(place, net):
    net.amp = False

    def forward(net, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=net.amp):
            out = net.out(x) * (2.0 if torch.is_autocast_enabled("cpu") else 1.0)
        return out.float()

    return forward, sets("amp", True)


@captured()
def context_by_a_flag(place, net):
    net.frozen = False

    def forward(net, x):
        with torch.no_grad() if net.frozen else contextlib.nullcontext():
            hidden = net.hidden(x)
        return net.last(hidden)

    return forward, sets("frozen", True)


@captured()
def dtype_of_an_attribute(place, net):
    net.dtype = torch.float32
    return lambda net, x: net.out(x).to(net.dtype).float(), sets("dtype", torch.bfloat16)


@captured()
def rate_of_a_scheduler(place, net):
    held = []

    def change(training, number):
        # The loop steps it at the end of an epoch.
        if not held:
            held.append(torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.5))
        training.optimizer.step()
        held[0].step()

    return lambda net, x: net.out(x), change


@captured(own_step=True)
def number_of_a_parameter_group(place, net):
    def step(training, x):
        loss = training.net.out(x).square().mean()
        loss = loss * training.optimizer.param_groups[0]["lr"]
        training.optimizer.zero_grad()
        loss.backward()
        for group in training.optimizer.param_groups:
            for weight in group["params"]:
                weight.grad.mul_(1.0 + group["weight_decay"])
        training.optimizer.step()
        return loss.detach()

    return step, lambda training, number: training.optimizer.param_groups[0].update(
        weight_decay=0.5
    )


@captured(own_step=True)
def gradients_clipped_to_an_attribute(place, net):
    net.max_norm = 1.0

    def step(training, x):
        loss = training.net.out(x).square().mean() * 9.0
        training.optimizer.zero_grad()
        loss.backward()
        if training.net.max_norm > 0:
            nn.utils.clip_grad_norm_(training.net.parameters(), training.net.max_norm)
        training.optimizer.step()
        return loss.detach()

    return step, sets("max_norm", 0.01)


@captured(own_step=True)
def moving_average_of_weights(place, net):
    average, decay = copy.deepcopy(net), {"now": 0.9}

    def step(training, x):
        out = training.net.out(x)
        with torch.no_grad():
            target = average.out(x)
        loss = (out - target - 1.0).square().mean()
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        with torch.no_grad():
            ours, theirs = list(average.parameters()), list(training.net.parameters())
            torch._foreach_lerp_(ours, theirs, 1.0 - decay["now"])
        return loss.detach()

    return step, lambda training, number: decay.update(now=0.5)


@either(own_step=True, shows=False)
def gradients_scaled_by_a_scaler(place, net):
    # On the CPU it reads a value of the device; on a GPU it is captured.
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(training, x):
        loss = training.net.out(x).square().mean()
        training.optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        return loss.detach()

    return step, None


# ------------------------------------------------------------------------ counts and metrics


@either(each_call=True)
def warm_up_count_of_the_loop(place, net):
    net.step_number, net.warm_up_steps = 0, 4

    def change(training, number):
        training.net.step_number = number // 2  # two calls may be launched together

    return lambda net, x: net.out(x) * min(1.0, (net.step_number + 1) / net.warm_up_steps), change


@refused("num_calls", "count")
def warm_up_count_of_the_step(place, net):
    net.num_calls = 0

    def forward(net, x):
        net.num_calls += 1
        return net.out(x) * min(1.0, net.num_calls / 100)

    return forward, None


@refused("metrics", "append")
def losses_kept_in_a_default_dict(place, net):
    net.metrics = collections.defaultdict(list)

    def forward(net, x):
        out = net.out(x)
        net.metrics["out"].append(len(x))
        return out

    return forward, None


@refused("counts")
def calls_counted_by_a_counter(place, net):
    net.counts = collections.Counter()

    def forward(net, x):
        net.counts["calls"] += 1
        return net.out(x)

    return forward, None


@refused("recent", "append")
def lengths_kept_in_a_deque(place, net):
    net.recent = collections.deque(maxlen=100)

    def forward(net, x):
        net.recent.append(len(x))
        return net.out(x)

    return forward, None


@either()
def mean_of_a_deque(place, net):
    net.recent = collections.deque([1.0, 0.5], maxlen=3)
    return lambda net, x: net.out(x) * (sum(net.recent) / len(net.recent)), (
        lambda training, number: net.recent.append(2.0)
    )


@either()
def item_of_a_default_dict(place, net):
    net.weights = collections.defaultdict(lambda: 1.0, main=0.5)
    return lambda net, x: net.out(x) * net.weights["main"], (
        lambda training, number: net.weights.update(main=2.0)
    )


@either()
def number_of_numpy(place, net):
    net.scale = np.float64(1.0)
    return lambda net, x: net.out(x) * float(net.scale), sets("scale", np.float64(2.0))


@either(shows=False)
def log_below_its_level(place, net):
    log = logging.getLogger("allow_list")

    def forward(net, x):
        out = net.out(x)
        log.debug("shape %s", out.shape)
        return out

    return forward, None
