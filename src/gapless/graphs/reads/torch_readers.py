"""Functions of torch that read what no tensor holds: numbers of threads, seeds, generators, figures of memory.

Torch's own code may call them; where the user's does, what they return is baked into a graph. Streams are not
among them: a step that computes on a side stream has to ask for the current one.
"""

from __future__ import annotations

import torch


# Of torch's functions in Python, by file, how their names begin.
IN_PYTHON = {
    "random.py": ("initial_seed", "seed", "get_rng_state"),
    "cuda/random.py": ("initial_seed", "seed", "get_rng_state"),
    "cuda/memory.py": (
        "memory_", "max_memory_", "mem_get_info", "list_gpu_processes", "host_memory_stats",
    ),
    "accelerator/memory.py": ("memory_", "max_memory_", "get_memory_info"),
}  # fmt: skip

ADVICE = "call it before the step, and give the step what it returns"

_OF_GENERATORS = ("initial_seed", "seed", "get_state", "get_offset", "graphsafe_get_state")
_NUMBERS_OF_THREADS = {
    id(function): f"torch.{function.__name__}"
    for function in (torch.get_num_threads, torch.get_num_interop_threads)
}

# Names of those made in C.
IN_C = frozenset([*_OF_GENERATORS, "get_num_threads", "get_num_interop_threads"])


def shown_reader(function: object) -> str | None:
    """Return the name of a function made in C that is one of these, None if it is none."""
    known = _NUMBERS_OF_THREADS.get(id(function))
    if known is not None:
        return known
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", None)
    is_of_generator = isinstance(owner, torch.Generator) and name in _OF_GENERATORS
    return f"Generator.{name}" if is_of_generator else None
