"""One training in a process of its own; prints what it has shown as one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import torch

from benchmarks.changing_shapes.loops import AS_WRITTEN, LOOPS, Training, accounts


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--loop", "--variant", "--lengths", "--device"):
        parser.add_argument(name, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--end-s", type=float, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    if options.device != "cuda":
        torch.set_num_threads(1)
    loop = LOOPS[options.loop]
    for name in loop.modules:
        import_module(name)
    with ExitStack() as stack:
        place = _place(options, stack)
        training = Training(
            variant=options.variant,
            lengths=options.lengths,
            num_steps=options.steps,
            device=torch.device(getattr(place, "torch_device", place)),
            place=place,
            is_tiny=options.tiny,
            end_s=options.end_s,
        )
        torch.manual_seed(0)
        loop.run(training)
        hashes = training.hashes()
        found = {
            "loop": options.loop,
            "lengths": options.lengths,
            "variant": options.variant,
            "marks": training.marks,
            "hashes": hashes,
            "accounts": list(accounts(training.captured)),
            "peak_mib": _peak_mib(training.device),
        }
        if training.captured:
            found |= _process_account(place)
    print(json.dumps(found))


def _place(options: argparse.Namespace, stack: ExitStack) -> Any:
    """Return the device as gapless takes it; on the simulated one a loop as written has the CPU."""
    if options.device != "simulated":
        return options.device
    if options.variant == AS_WRITTEN:
        return "cpu"
    from gapless.testing import SimulatedDevice

    device = stack.enter_context(SimulatedDevice(scheduler="asap"))
    stack.enter_context(device.allow_waits())
    return device


def _process_account(place: Any) -> dict[str, Any]:
    from gapless.device.find import find_device
    from gapless.graphs.account import account_of

    account = account_of(find_device(place))
    return {"account_s": account.time_s, "account_as_written_s": account.as_written_s}


def _peak_mib(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_reserved() >> 20


if __name__ == "__main__":
    main()
