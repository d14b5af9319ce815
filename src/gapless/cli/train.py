"""`gapless train`."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from gapless.cli.progress import make_observer
from gapless.errors import UserError
from gapless.nmt.config import TrainConfig, make_config
from gapless.nmt.run import CONFIG, read_config
from gapless.nmt.trainer import Trainer
from gapless.report.text import duration, share


if TYPE_CHECKING:
    from collections.abc import Callable


_INTERRUPTED = 130


def train(**options: Any) -> None:
    """Train a translation model; with no option, on the embedded English-Chinese corpus."""
    resume: Path | None = options.pop("resume")
    file: Path | None = options.pop("config")
    if resume is not None:
        if file is not None or options["run_dir"] is not None:
            raise UserError("--resume goes on in its own folder; leave out --config and --run-dir")
        read_config(resume)
        file = resume / CONFIG
    config = make_config(options, file=file)
    trainer = Trainer(config, observer=make_observer(), resume=resume)
    summary = trainer.train()
    for line in _result_lines(summary, trainer.run_dir):
        typer.echo(line)
    if summary["interrupted"]:
        raise typer.Exit(_INTERRUPTED)


def _result_lines(summary: dict[str, Any], run_dir: Path) -> list[str]:
    if summary["interrupted"]:
        return [
            f"stopped after {summary['steps']} updates; go on with",
            f"  gapless train --resume {run_dir}",
        ]
    waits = sum(wait["count"] for wait in summary["host_waits"].values())
    return [
        f"exact match {summary['exact_match']:.1%} of {summary['test_sentences']} held-out pairs",
        f"BLEU {summary['bleu']:.2f}  {summary['signature']}",
        f"chrF {summary['chrf']:.2f}  {summary['chrf_signature']}",
        f"{summary['steps']} updates in {duration(summary['wall_seconds'])}, "
        f"{summary['tokens_per_second']:,.0f} target tokens/s, {waits:.0f} host waits in "
        f"{summary['batches']} batches, gap {share(summary['gap_share'])}",
        f"written to {run_dir}; try: gapless translate {run_dir}",
    ]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameter(item: Any, hint: Any) -> inspect.Parameter:
    """Return the option of one setting; None means that it was not given."""
    base = next((kind for kind in get_args(hint) if kind is not type(None)), hint)
    default = "" if item.default in (None, MISSING) else f" [default: {item.default}]"
    names = [_flag(item.name)]
    if base is bool:
        names = [f"{_flag(item.name)}/{_flag('no_' + item.name)}"]
    if item.name == "loss_interval":
        names.append("--loss-extract-interval")
    option = typer.Option(*names, help=item.metadata["help"] + default, show_default=False)
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[base | None, option],
    )


def _take_options_from_config(command: Callable[..., None]) -> None:
    """Give the command one option for every setting, so that both are listed in one place."""
    hints = get_type_hints(TrainConfig)
    parameters = [_parameter(item, hints[item.name]) for item in fields(TrainConfig)]
    for name, text in (
        ("config", "config.yaml of an earlier run; flags win over it"),
        ("resume", "run folder to go on with"),
    ):
        option = typer.Option(_flag(name), help=text, show_default=False)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[Path | None, option],
            )
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}


_take_options_from_config(train)
