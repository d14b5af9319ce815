"""The `gapless` command."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, NoReturn

import typer

from gapless import __version__
from gapless.cli.compare_command import compare
from gapless.cli.evaluate_command import evaluate
from gapless.cli.train_command import train
from gapless.cli.translate_command import translate
from gapless.cli.verify_command import verify
from gapless.errors import GaplessError, UserError
from gapless.plans import PLANS
from gapless.report.text import columns


# UsageError's base: the class of every error that the option parser raises. It lives in click or
# in typer itself, by typer's version.
_PARSER_ERROR: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="gapless",
    help="PyTorch training loops that never make the GPU wait.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(train)
app.command()(translate)
app.command()(evaluate)
app.command()(verify)
app.command()(compare)


@app.command()
def plans() -> None:
    """List the plans: the ways in which a loop can move its work."""
    rows: list[tuple[str, ...]] = [
        ("plan", "streams", "waits with", "every", "losses every", "what it does")
    ]
    rows += [
        (
            plan.name,
            str(plan.streams),
            plan.wait_with,
            "epoch" if plan.wait_with == "nothing" else str(plan.sync_interval),
            str(plan.loss_interval),
            plan.summary,
        )
        for plan in PLANS.values()
    ]
    typer.echo(
        "\n".join(f"{line}  {row[-1]}" for line, row in zip(_left(rows), rows, strict=True))
    )


def _left(rows: list[tuple[str, ...]]) -> list[str]:
    return columns([row[:-1] for row in rows])


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """PyTorch training loops that never make the GPU wait."""
    if version:
        typer.echo(f"gapless {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 a mistake in what was asked."""
    code = run_command(sys.argv[1:] if arguments is None else arguments)
    _give_up_unwritable_output()
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """Run one command in this process and return its exit code."""
    try:
        code = app(arguments, standalone_mode=False)
        # Now, while an error can still be told: Python's own flush at the end cannot.
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except _PARSER_ERROR as error:
        return _fail(error.format_message(), code=2)  # type: ignore[attr-defined]
    except UserError as error:
        return _fail(str(error), code=2)
    except GaplessError as error:
        return _fail(str(error), code=1)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nothing is left to say to it.
        return 1
    except OSError as error:
        return _fail(_disk_message(error), code=2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", code=130)


def _give_up_unwritable_output() -> None:
    """Throw away output that nobody can take, so that Python does not fail on it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _disk_message(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    advice = "; free some space and run again" if error.errno == errno.ENOSPC else ""
    return f"{where}{error.strerror or error}{advice}"


def _fail(message: str, *, code: int) -> int:
    print(f"gapless: error: {' '.join(message.split())}", file=sys.stderr)
    return code
