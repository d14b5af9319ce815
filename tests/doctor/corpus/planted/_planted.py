"""A device-bound step with one wait, after which the host works for a chosen time.

The device works for `--device-ms` a step: as many products as that takes, or as `--products` says. The
host then works so long that a wait at the end of the step leaves the device idle for `--exposed` of the
step: host ms = device ms * exposed / (1 - exposed).
Removing the wait saves min(device, host) of device + host: the exposed share up to one half, less
above it, since the host is then the slower of the two (0.6 exposed: 0.4 saved).
"""

import argparse
import json
import statistics
import time

import torch


class Planted:
    def __init__(self):
        parser = argparse.ArgumentParser()
        parser.add_argument("--exposed", type=float, default=0.3)
        parser.add_argument("--device-ms", type=float, default=10.0)
        parser.add_argument("--num-steps", type=int, default=60)
        parser.add_argument("--products", type=int)
        parser.add_argument("--without-wait", action="store_true")
        chosen = parser.parse_args()
        self.waits = not chosen.without_wait
        self.exposed = chosen.exposed
        self.device_ms = chosen.device_ms
        self.host_ms = chosen.device_ms * chosen.exposed / (1 - chosen.exposed)
        self.num_steps = chosen.num_steps
        self.on_gpu = torch.cuda.is_available()
        self.device = "cuda" if self.on_gpu else "cpu"
        size = 2048 if self.on_gpu else 64
        self.square = torch.randn(size, size, device=self.device) / size**0.5
        self.weight = torch.ones((), device=self.device, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weight], lr=1e-4)
        self.products = 1
        self._work(1)
        self.products = chosen.products or self._products_for(chosen.device_ms)
        self.queue_ms = []
        self.ms_per_step = 0.0

    def _products_for(self, wanted_ms):
        if not self.on_gpu:
            return 2
        self._work(20)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._work(50)
        end.record()
        end.synchronize()
        return max(1, round(wanted_ms / (begin.elapsed_time(end) / 50)))

    def _work(self, products):
        x = self.square
        for _ in range(products):
            x = x @ self.square
        return x[0].tanh()

    def train_step(self):
        """Queue the device's work of a step; return its row of values and its loss."""
        begin = time.perf_counter()
        row = self._work(self.products).detach()
        loss = (row * self.weight).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.queue_ms.append(1000 * (time.perf_counter() - begin))
        return row, loss.detach()

    def host_work(self):
        """Keep the host busy, as a data pipeline or a tokeniser would."""
        end = time.perf_counter() + self.host_ms / 1000
        while time.perf_counter() < end:
            pass

    def steps(self):
        warm_up = min(10, self.num_steps // 2)
        begin = time.perf_counter()
        for step in range(self.num_steps):
            if step == warm_up:
                if self.on_gpu:
                    torch.cuda.synchronize()
                begin = time.perf_counter()
            yield step
        if self.on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        self.ms_per_step = 1000 * seconds / (self.num_steps - warm_up)

    def say(self):
        print(json.dumps({"ms_per_step": self.ms_per_step, "exposed": self.exposed,
                          "host_ms": self.host_ms, "device_ms": self.device_ms,
                          "queue_ms": statistics.median(self.queue_ms), "products": self.products,
                          "waits": self.waits}))
