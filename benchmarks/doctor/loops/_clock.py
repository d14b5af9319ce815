"""What the loops share: sizes, a host that is busy, and the time of a step."""

import argparse
import json
import time

import torch


class Run:
    """The arguments of a loop and the clock around its later steps.

    Args:
        steps: by default.
        small_steps: with `--small`, for a CPU.
    """

    def __init__(self, *, steps, small_steps=12):
        parser = argparse.ArgumentParser()
        parser.add_argument("--num-steps", type=int)
        parser.add_argument("--small", action="store_true")
        chosen = parser.parse_args()
        self.is_small = chosen.small
        self.num_steps = chosen.num_steps or (small_steps if chosen.small else steps)
        self.on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.on_gpu else "cpu")
        self.ms_per_step = 0.0

    def size(self, full, small):
        """Return a size."""
        return small if self.is_small else full

    def steps(self):
        """Yield the number of each step; the second half is timed, from idle device to idle device."""
        half, began = self.num_steps // 2, 0.0
        for step in range(self.num_steps):
            if step == half:
                self._drain()
                began = time.perf_counter()
            yield step
        self._drain()
        seconds = time.perf_counter() - began
        self.ms_per_step = 1000 * seconds / (self.num_steps - half)

    def _drain(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def say(self):
        """Print the time of a step for whoever runs this."""
        print(json.dumps({"ms_per_step": self.ms_per_step}))


def host_work(ms):
    """Keep the host busy, as a tokeniser would."""
    end = time.perf_counter() + ms / 1000
    while time.perf_counter() < end:
        pass
