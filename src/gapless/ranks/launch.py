"""What torchrun says of this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Mapping


_LARGEST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The place of a process among those that torchrun started.

    Attributes:
        rank: number of the process over all hosts.
        world: number of processes on all hosts.
        local_rank: number of the process on its host, which is also that of its GPU.
        local_world: number of processes on its host.
        attempt: how often torchrun has started all of them anew, from 0 on.
        has_agent: whether torchrun itself started it, as its parent.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    attempt: int = 0
    has_agent: bool = False


def read_launch(environment: Mapping[str, str]) -> Launch:
    """Return what torchrun says; without torchrun, a process alone.

    Args:
        environment: such as `os.environ`.

    Raises:
        UserError: a variable of torchrun is not a number, or out of range.
    """
    if "LOCAL_RANK" not in environment:
        return Launch()
    world = _number(environment, "WORLD_SIZE", low=1)
    local_world = _number(environment, "LOCAL_WORLD_SIZE", low=1, high=world, missing=world)
    return Launch(
        rank=_number(environment, "RANK", high=world - 1),
        world=world,
        local_rank=_number(environment, "LOCAL_RANK", high=local_world - 1),
        local_world=local_world,
        attempt=_number(environment, "TORCHELASTIC_RESTART_COUNT", missing=0),
        has_agent="TORCHELASTIC_RUN_ID" in environment,
    )


def check_address(environment: Mapping[str, str]) -> None:
    """Check that there is an address at which several ranks find each other.

    Args:
        environment: such as `os.environ`.

    Raises:
        UserError: the host or the port is missing, or cannot be.
    """
    for name, is_good, expected in (
        ("MASTER_ADDR", bool, "the host of rank 0"),
        ("MASTER_PORT", _is_port, f"a number from 0 to {_LARGEST_PORT}"),
    ):
        text = environment.get(name)
        if text is None or not is_good(text):
            raise UserError(
                f"the environment variable {name} is {text!r}, expected {expected}; "
                "start the program by torchrun, or without LOCAL_RANK for one process"
            )


def device_of(launch: Launch, name: str, *, num_gpus: int) -> str:
    """Return which device a rank uses: each GPU of a host serves one.

    Args:
        launch: of this process.
        name: as asked for: `auto`, `cpu`, `cuda` or `cuda:N`.
        num_gpus: of this host.

    Returns:
        The name as it is for one rank. On several `auto` and `cuda` are the GPU that has the number
        of the rank on its host; `auto` is the CPU where there is no GPU.

    Raises:
        UserError: the same GPU is asked for by several ranks of one host, or it has fewer GPUs than
            ranks. All ranks of the host raise it, so that none waits for another.
    """
    if launch.world == 1:
        return name
    if name.startswith("cuda:") and launch.local_world > 1:
        raise UserError(
            f'`device="{name}"` is one GPU for {launch.local_world} ranks, expected one for each; '
            'use `device="cuda"`, of which rank N takes GPU N'
        )
    if name == "auto":
        name = "cuda" if num_gpus else "cpu"
    if name != "cuda":
        return name
    if 0 < num_gpus < launch.local_world:
        raise UserError(
            f"{launch.local_world} ranks on this host have {num_gpus} GPU{'s'[: num_gpus - 1]}, "
            f"expected one GPU for each; let torchrun start {num_gpus} on each host"
        )
    return f"cuda:{launch.local_rank}"


def _is_port(text: str) -> bool:
    return text.isdecimal() and int(text) <= _LARGEST_PORT


def _number(
    environment: Mapping[str, str],
    name: str,
    *,
    low: int = 0,
    high: int | None = None,
    missing: int | None = None,
) -> int:
    text = environment.get(name)
    if text is None and missing is not None:
        return missing
    if text is not None and text.isdecimal():
        number = int(text)
        if number >= low and (high is None or number <= high):
            return number
    limit = f"from {low} on" if high is None else f"from {low} to {high}"
    raise UserError(
        f"the environment variable {name} is {text!r}, expected a number {limit}; "
        "start the program by torchrun, or without LOCAL_RANK for one process"
    )
