"""`gapless train`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.progress import make_observer
from gapless.cli.train_options import flag, set_options, setting_options
from gapless.errors import UserError
from gapless.nmt.run.config import make_config
from gapless.nmt.run.folder import CONFIG, read_config
from gapless.nmt.run.trainer import Trainer
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
        f"{summary['steps']} updates in {duration(summary['wall_seconds'])}, of which "
        f"{summary['train_seconds']:.1f} s training, {summary['tokens_per_second']:,.0f} target tokens/s, {waits:.0f} host waits in "
        f"{summary['batches']} batches, gap {share(summary['gap_share'])}",
        f"written to {run_dir}; try: gapless translate {run_dir}",
    ]


def _take_options_from_config(command: Callable[..., None]) -> None:
    parameters = setting_options()
    for name, text in (
        ("config", "config.yaml of an earlier run; flags win over it"),
        ("resume", "run folder to go on with"),
    ):
        option = typer.Option(flag(name), help=text, show_default=False)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[Path | None, option],
            )
        )
    set_options(command, parameters)


_take_options_from_config(train)
