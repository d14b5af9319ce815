"""Options of a command from the settings of a training run, so that both are listed once."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from gapless.nmt.run.config import TrainConfig


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def setting_options(*, leave_out: Iterable[str] = ()) -> list[inspect.Parameter]:
    """Return one option for every setting but those; None means that it was not given."""
    hints = get_type_hints(TrainConfig)
    return [
        _option(item, hints[item.name])
        for item in fields(TrainConfig)
        if item.name not in set(leave_out)
    ]


def set_options(command: Callable[..., None], options: Iterable[inspect.Parameter]) -> None:
    """Give a command that takes any options these ones."""
    parameters = list(options)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}


def flag(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def _option(item: Any, hint: Any) -> inspect.Parameter:
    base = next((kind for kind in get_args(hint) if kind is not type(None)), hint)
    default = "" if item.default in (None, MISSING) else f" [default: {item.default}]"
    names = [flag(item.name)]
    if base is bool:
        names = [f"{flag(item.name)}/{flag('no_' + item.name)}"]
    if item.name == "loss_interval":
        names.append("--loss-extract-interval")
    option = typer.Option(*names, help=item.metadata["help"] + default, show_default=False)
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[base | None, option],
    )
