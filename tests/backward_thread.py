"""Backward passes on a thread of their own, as a GPU has them: autograd numbers the nodes of each thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest import mock

import torch

from gapless.device import torch_gpu
from gapless.device.torch_private import (
    current_graph_task,
    is_multithreading_enabled,
    next_sequence_number,
)
from gapless.graphs.reads import gradient_order, host_watch


# Modes follow a backward pass to its thread, as torch lets them.
_SOURCE = """
from contextlib import ExitStack

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode


def run_there(*args, **kwargs):
    # A pass within another one stays on its thread.
    if not torch._C._is_multithreading_enabled() or torch._C._current_graph_task_id() != -1:
        return run_backward(*args, **kwargs)
    modes, functions = _get_current_dispatch_mode_stack(), _get_current_function_mode_stack()

    def work():
        with ExitStack() as stack:
            for mode in functions:
                torch._C._push_on_torch_function_stack(mode)
                stack.callback(torch._C._pop_torch_function_stack)
            for mode in modes:
                _push_mode(mode)
                stack.callback(_pop_mode)
            return run_backward(*args, **kwargs)

    return pool.submit(work).result()
"""


class BackwardThread:
    """The thread, and how many nodes each of both has made."""

    def __init__(self, pool):
        self._pool = pool

    def numbers(self):
        """Return the next numbers of this thread and of that one."""
        return next_sequence_number(), self._pool.submit(next_sequence_number).result()

    def let_lead(self, lead):
        """Let this thread be ahead by so many nodes."""
        here, there = self.numbers()
        missing = lead - (here - there)
        if missing > 0:
            torch_gpu.make_nodes(missing)
        else:
            self._pool.submit(torch_gpu.make_nodes, -missing).result()


def forget_leads(device):
    """Let neither thread lead, and no order be known, as in a new process: each test leaves others."""
    gradient_order._ORDERS.clear()
    here, there = torch_gpu.numbers_of_next_nodes(device)
    gradient_order.GradientOrder(device)._lead_by(there - here)


@contextmanager
def backward_thread():
    """Run the backward passes of the body on a thread of their own."""
    with ThreadPoolExecutor(1) as pool:
        # To whoever watches a step this is torch's own code.
        space = {
            "__name__": "torch.autograd.graph",
            "run_backward": torch.autograd._engine_run_backward,
            "pool": pool,
        }
        exec(compile(_SOURCE, torch.autograd.graph.__file__, "exec"), space)

        def has_one(_):
            return is_multithreading_enabled() and current_graph_task() == -1

        with (
            mock.patch.object(torch.autograd, "_engine_run_backward", space["run_there"]),
            mock.patch.object(torch_gpu, "has_backward_thread", has_one),
            mock.patch.object(host_watch, "has_backward_thread", has_one),
        ):
            yield BackwardThread(pool)
