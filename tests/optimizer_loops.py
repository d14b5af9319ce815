"""Optimizers that are captured in place, or not, on gradients that follow from the weights."""

from __future__ import annotations

import torch

import gapless
from gapless.graphs.in_place.capture_in_place import capture_report, release
from toy_steps import on


class OptimizerLoop:
    """Weights whose gradients follow from them and from the number of the step.

    Args:
        device: where they are.
        make: takes the weights; returns the optimizer.
        is_captured: whether the optimizer is.
        options: of the capture.

    Attributes:
        values: of weights, gradients and state after each step.
    """

    def __init__(self, device, make, *, is_captured=True, **options):
        self.device, self.is_captured, self.options = device, is_captured, options
        self.weights = [
            torch.nn.Parameter(on(device, torch.full(shape, 0.5))) for shape in ((3, 2), (2,), ())
        ]
        self.optimizer = make(self.weights)
        self.count, self.values = 0, []
        self.capture()

    def capture(self):
        if self.is_captured:
            assert gapless.capture(self.optimizer, device=self.device, **self.options) is (
                self.optimizer
            )

    def release(self):
        if self.is_captured:
            assert release(self.optimizer) is self.optimizer

    @property
    def report(self):
        return capture_report(self.optimizer)

    def run(self, num=8, *, step=None, weights=None, rate=1.0):
        """Take so many steps; the rate is multiplied by `rate` after each."""
        for _ in range(num):
            self.count += 1
            weights_now = self.weights if weights is None else weights
            gradients = [
                weight.detach() * 0.1 + 0.01 * self.count * number
                for number, weight in enumerate(weights_now, start=1)
            ]
            for weight, gradient in zip(weights_now, gradients, strict=True):
                weight.grad = gradient
            self.optimizer.step() if step is None else step()
            assert all(
                weight.grad is gradient
                for weight, gradient in zip(weights_now, gradients, strict=True)
            )
            for group in self.optimizer.param_groups:
                group["lr"] *= rate
            state = [part for known in self.optimizer.state.values() for part in known.values()]
            tensors = [*self.weights, *gradients, *filter(torch.is_tensor, state)]
            self.values.append([tensor.detach().flatten().tolist() for tensor in tensors])


def both(device, make, play, **options):
    """Play with a loop as written and with a captured one; they have the same bits."""
    expected = OptimizerLoop(device, make, is_captured=False)
    play(expected)
    found = OptimizerLoop(device, make, **options)
    play(found)

    assert found.values == expected.values
    return found


def both_scaled(device, make, num, *, overflow, rate=1.0, **options):
    """Train so many steps with a GradScaler, one with an overflow, as written and captured; the bits are the same."""

    def train(**options):
        loop = OptimizerLoop(device, make, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4)
        seen = []
        for number in range(num):
            loop.optimizer.zero_grad()
            x = on(device, torch.tensor(float("inf") if number == overflow else 0.5 + number))
            loss = sum((weight * x).sum() for weight in loop.weights)
            scaler.scale(loss).backward()
            scaler.step(loop.optimizer)
            scaler.update()
            loop.optimizer.param_groups[0]["lr"] *= rate
            tensors = [*loop.weights, *[weight.grad for weight in loop.weights]]
            seen.append([tensor.tolist() for tensor in tensors])
            seen.append(scaler.get_scale())
        return loop, repr(seen)

    _, expected = train(is_captured=False)
    loop, found = train(**options)

    assert found == expected
    return loop
