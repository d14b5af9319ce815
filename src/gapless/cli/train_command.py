"""`gapless train`."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.cli.error_text import disk_message
from gapless.cli.output import as_flags, print_wrapped, say, say_wrapped, warn, write_whole
from gapless.cli.parser import UsageError, file_or_folder
from gapless.cli.ranks import (
    announce_leaving,
    is_rank_0,
    join_ranks,
    leave_together,
    resume_command,
)
from gapless.cli.requirements import require_extra, require_writable
from gapless.cli.shared_options import add_setting_options, given_settings
from gapless.cli.signals import Signals
from gapless.errors import RunFolderError, UserError
from gapless.nmt.settings.config import make_config, settings_given
from gapless.nmt.settings.defaults import CHOSEN
from gapless.records.epoch_record import total
from gapless.report.figures import duration, megabytes, share, shell_name
from gapless.report.training_text import waits_table


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from gapless.cli.parser import Parser
    from gapless.device.base import Device
    from gapless.nmt.run.run_report import Observer
    from gapless.nmt.run.trainer import Trainer
    from gapless.nmt.settings.config import TrainConfig
    from gapless.ranks import Ranks


DETAILS = """
Vocabulary, model, batches, epochs, warm-up and more are chosen by the size of
the corpus and the device where no option says otherwise, printed with their
reasons, and kept in the run's config.yaml.
"""


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    parser.add_argument(
        "--config",
        type=file_or_folder,
        metavar="FILE",
        help="config.yaml of an earlier run; flags win over it",
    )
    earlier = parser.add_group("an earlier run")
    earlier.add_argument(
        "--resume", type=file_or_folder, metavar="RUN", help="run folder to go on with"
    )
    earlier.add_argument(
        "--resume-if-there",
        action="store_true",
        help="go on with the run in --run-dir if it has saved a state, else begin it: "
        "for a command that is started again whenever it ends",
    )
    output = parser.add_group("output")
    output.add_argument(
        "--dry-run",
        action="store_true",
        help="print the settings that are chosen, estimate time and memory, and stop",
    )
    output.add_argument(
        "--waits",
        action="store_true",
        help="print host waits after each epoch too, not only at the end",
    )
    output.add_argument(
        "--report",
        type=file_or_folder,
        metavar="FILE",
        help="page for a browser with loss, speed, waits and utilisation; written when the run ends",
    )
    add_setting_options(parser, chosen=CHOSEN)


def run(options: Namespace) -> int:
    """Train, and print the scores."""
    require_extra("nmt", "gapless train")
    with Signals() as signals:
        return _train(options, signals)


def _train(options: Namespace, signals: Signals) -> int:
    from gapless.cli.progress import TrainingProgress
    from gapless.nmt.run.stopping import StopRequest

    signals.may_raise()
    _check_options(options)
    if options.dry_run:
        # One rank is enough: all would print the same.
        return _dry_run_by_first(options)
    device_name = _device_name(options)
    with signals.ending_at_once():
        ranks, device = join_ranks(device_name)
    signals.on_stop = ranks.note_stop
    with TrainingProgress(waits_each_epoch=options.waits) as observer:
        trainer = _start(options, observer, ranks=ranks, device=device)
        signals.grace_seconds = trainer.run.config.grace
        signals.check()
        signals.run_dir = trainer.run.run_dir
        stop = StopRequest(second_raises=False)
        with _naming_how_to_go_on(trainer.run.run_dir):
            summary = trainer.train(stop=stop)
        signals.note_done()
    if ranks.is_first:
        _say_end(options, trainer, summary)
    code = 128 + (stop.number or 0) if summary["interrupted"] else 0
    if ranks.world > 1:
        # The graphs go with it, before the ranks part.
        del trainer
        leave_together(ranks)
    return code


@contextmanager
def _naming_how_to_go_on(run_dir: Path) -> Iterator[None]:
    """Let the error of a full disk say the command to go on with: a run begins only once in a folder.

    Raises:
        RunFolderError: the disk is full.
    """
    from gapless.nmt.run_folder.checkpoints import state_store

    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        is_saved = bool(state_store(run_dir).paths())
        again = (
            f"go on with {resume_command(run_dir)}"
            if is_saved
            else "run again with another --run-dir"
        )
        raise RunFolderError(disk_message(error, again=again)) from error


def _check_options(options: Namespace) -> None:
    """Refuse options that do not go together, before anything is read."""
    if options.validate_every is not None and options.val_interval is not None:
        raise UsageError(
            "--validate-every and --val-interval both say when to validate; leave out one of them"
        )
    if options.report is not None:
        if options.dry_run:
            raise UsageError(
                "--report is of a run, and --dry-run trains nothing; leave out one of them"
            )
        require_writable(options.report, "--report")
    if options.resume is not None:
        if options.dry_run:
            raise UsageError(
                "--dry-run is for new runs; the settings of a run that is there are chosen"
            )
        if options.resume_if_there:
            raise UsageError("--resume goes on in any case; leave out --resume-if-there")
        if options.config is not None or options.run_dir is not None:
            raise UsageError(
                "--resume goes on in its own folder; leave out --config and --run-dir"
            )
    if options.resume_if_there and options.run_dir is None:
        raise UsageError("--resume-if-there needs the folder of the run; name it with --run-dir")
    if options.resume_if_there and options.dry_run:
        raise UsageError("--dry-run is for new runs; leave out --resume-if-there")


def _device_name(options: Namespace) -> str:
    """Return the name of the device, of which ranks must know before they can agree on anything."""
    from gapless.nmt.run_folder.folder import settings_file

    flags = given_settings(options)
    if not is_rank_0():
        # Rank 0 reads all else of the file.
        if flags.get("device") is not None:
            return str(flags["device"])
        _check_there(options)
    file = options.config if options.resume is None else settings_file(options.resume)
    return str(settings_given(flags, file=file).get("device", "auto"))


def _check_there(options: Namespace) -> None:
    """Check that this rank, which may be on another host than rank 0, finds its settings."""
    for name, path in (("--config", options.config), ("--resume", options.resume)):
        if path is not None and not path.exists():
            raise UserError(
                f"{name} {path} is not there on host {socket.gethostname()}, where this rank reads its "
                "device from it; share it with all hosts, or give --device, and rank 0 alone reads it"
            )


def _start(
    options: Namespace, observer: Observer, *, ranks: Ranks, device: Device | None
) -> Trainer:
    """Return the trainer of a new or a resumed run, on each of its ranks."""
    from gapless.nmt.run.new_run import choose_run, new_run
    from gapless.nmt.run.rank_agreement import check_same_start
    from gapless.nmt.run.resume import resumed_run
    from gapless.nmt.run.trainer import Trainer
    from gapless.ranks import on_first_rank

    flags, file = given_settings(options), options.config
    check_same_start(ranks, {**flags, "config": file, "resume": options.resume})
    resume = on_first_rank(ranks, lambda: _run_to_resume(options))
    if resume is None:
        chosen = on_first_rank(
            ranks, lambda: choose_run(settings_given(flags, file=file), world=ranks.world)
        )
        run = new_run(chosen, ranks=ranks, device=device)
    else:
        config = on_first_rank(ranks, lambda: _settings_to_resume(flags, file, resume))
        run = resumed_run(config, resume, ranks=ranks, device=device)
    return Trainer(run, observer=observer)


def _settings_to_resume(flags: dict[str, Any], file: Path | None, run_dir: Path) -> TrainConfig:
    """Return the settings of a run that goes on: of the flags, the file, and the run."""
    from gapless.nmt.run_folder.folder import settings_file

    return make_config(settings_given(flags, file=file), file=settings_file(run_dir))


def _say_end(options: Namespace, trainer: Trainer, summary: dict[str, Any]) -> None:
    works = [record.work for record in trainer.run.progress.records]
    if works:
        say(waits_table(total(works)))
    if summary["interrupted"]:
        say(f"stopped after {summary['steps']} updates; go on with")
        # Not wrapped, so that it can be copied.
        say(f"  {resume_command(trainer.run.run_dir)}")
    else:
        say_wrapped("\n".join(_result_lines(summary, trainer.run.run_dir)))
    if options.report is not None:
        _write_report(options.report, trainer)


def _run_to_resume(options: Namespace) -> Path | None:
    """Return the folder of the run to go on with; None: the run is new."""
    from gapless.nmt.run.resume import is_to_resume

    if not options.resume_if_there:
        resume: Path | None = options.resume
        return resume
    path = Path(options.run_dir)
    return path if is_to_resume(path) else None


def _write_report(path: Path, trainer: Trainer) -> None:
    from gapless.nmt.run_folder.logs import METRICS
    from gapless.records.training import RunHistory
    from gapless.report.html.training_page import training_page

    about = dict(trainer.facts)
    title = about.pop("run")
    metrics = trainer.run.run_dir / METRICS
    with metrics.open(encoding="utf-8", errors="replace") as lines:
        history = RunHistory.of_lines(lines)
    page = training_page(history, title=title, about=about)
    # The name of a folder may be no text.
    write_whole(path, page.encode(errors="backslashreplace"))
    say(f"report: {path}, for a browser")


def _dry_run_by_first(options: Namespace) -> int:
    code = _dry_run(options) if is_rank_0() else 0
    announce_leaving(
        code=code,
        why="was started with --dry-run, and trains nothing; start all ranks with the same options",
    )
    return code


def _dry_run(options: Namespace) -> int:
    """Print what a new run would do, and write nothing else."""
    from gapless.nmt.run.dry_run import estimate_run
    from gapless.nmt.run.learning import short_line
    from gapless.nmt.run.new_run import choose_run
    from gapless.nmt.run.out_of_memory import naming_phase
    from gapless.nmt.run.run_report import describe_text
    from gapless.nmt.settings.score_tokenizer import choose_score_tokenizer
    from gapless.ranks.launch import read_launch

    world = read_launch(os.environ).world
    given = settings_given(given_settings(options), file=options.config)
    chosen = choose_run(given, world=world)
    config = chosen.config
    for note in chosen.task.corpus.notes:
        warn(note)
    facts = describe_text(config, chosen.task, choose_score_tokenizer(config))
    for title, text in facts.items():
        print_wrapped(f"{title}: {text}")
    choices = [choice.line for choice in chosen.choices]
    print_wrapped(
        "\n".join(choices or ["all settings are given, or those of the embedded corpus"])
    )
    with naming_phase("measuring a few updates", lower="`batch_tokens` or `d_model`"):
        estimate = estimate_run(config, chosen.task, world=world)
    print_wrapped("\n".join(map(as_flags, estimate.lines)))
    if estimate.updates <= config.warmup:
        warn(short_line(estimate.updates, warmup=config.warmup))
    return 0


def _result_lines(summary: dict[str, Any], run_dir: Path) -> list[str]:
    skipped = summary["skipped_updates"]
    # A CPU has none.
    gap = "" if summary["gap_share"] is None else f", gap {share(summary['gap_share'])}"
    return [
        *(
            [f"{skipped} updates were skipped, as their loss or gradient was not finite"]
            if skipped
            else []
        ),
        f"exact match {summary['exact_match']:.1%} of {summary['test_sentences']} held-out pairs",
        *(
            [f"{long} of their sources are too long, and only their beginnings were translated"]
            if (long := summary["long_sources"])
            else []
        ),
        *(
            [f"{cut} of their translations were cut at --max-length tokens"]
            if (cut := summary["cut_translations"])
            else []
        ),
        f"BLEU {summary['bleu']:.2f}  {summary['signature']}",
        f"chrF {summary['chrf']:.2f}  {summary['chrf_signature']}",
        f"{summary['steps']} updates in {duration(summary['wall_seconds'])}, training "
        f"{summary['train_seconds']:.1f} s, validations {summary['validation_seconds']:.1f} s, "
        f"{summary['tokens_per_second']:,.0f} target tokens/s",
        f"peak memory {megabytes(summary['peak_memory_bytes'])}{gap}",
        f"written to {run_dir}; try: gapless translate {shell_name(run_dir)}",
    ]
