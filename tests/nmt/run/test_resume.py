"""A run that stops can be resumed exactly."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from gapless.errors import NonFiniteLossError, RunFolderError, RunLockedError, UserError
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.run import checkpoints, training_run
from gapless.nmt.run.config import make_config
from gapless.nmt.run.folder import changed_files, check_unused, read_config
from gapless.nmt.run.summary import describe_run
from gapless.nmt.run.trainer import Trainer
from gapless.nmt.run.training_run import new_run
from gapless.nmt.run.validation import score_pairs


pytestmark = pytest.mark.quick_tests(20)


class Silent:
    """Watches a run, and sends a signal to this process after some batches."""

    def __init__(self, *, interrupt_after=None, number=signal.SIGINT):
        self.left = interrupt_after
        self.number = number

    def started(self, facts):
        pass

    def noted(self, text):
        pass

    def warned(self, text):
        pass

    def capturing_ahead(self, done, *, of):
        pass

    def epoch_started(self, epoch, **numbers):
        pass

    def batch_queued(self, progress, *, run):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.number)

    def validating(self):
        pass

    def validated(self, figures):
        pass

    def epoch_ended(self, record):
        pass

    def testing(self, count):
        pass


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """A shell starts its background processes with SIGINT ignored, and a run keeps it so."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture
def settings(tmp_path):
    draw = random.Random(1)
    rows = [
        " ".join(draw.choice("abcdefgh") for _ in range(draw.randint(2, 7))) for _ in range(60)
    ]
    (tmp_path / "d.tsv").write_text("".join(f"{row}\t{row[::-1]}\n" for row in rows))
    return {
        "data": str(tmp_path / "d.tsv"),
        "columns": "en,zh",
        "tokenizer": "none",
        "device": "cpu",
        "workers": 0,
        "d_model": 16,
        "heads": 2,
        "ffn": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "batch_size": 4,
        "batch_tokens": None,
        "dropout": 0.3,
        "epochs": 3,
        "warmup": 5,
        "max_length": 20,
        "accumulate": 2,
        "average": 2,
    }


def train(settings, run, **watch):
    config = make_config({**settings, "run_dir": str(run)})
    return Trainer.new(config, observer=Silent(**watch)).train()


def resume(run, *, flags=None, **watch):
    config = make_config(flags or {}, file=run / "config.yaml")
    return Trainer.resume(config, run, observer=Silent(**watch)).train()


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("batches", [3, 14, 20])
def test_an_interrupted_run_goes_on_with_the_same_bits(settings, tmp_path, batches, number):
    """Weights, losses and the record of losses are those of a run that never stopped."""
    whole = train(settings, tmp_path / "whole")
    stopped = train(settings, tmp_path / "parts", interrupt_after=batches, number=number)
    resumed = resume(tmp_path / "parts")

    assert stopped["interrupted"]
    assert not resumed["interrupted"]
    assert whole["loss"] == resumed["loss"]
    final = "checkpoints/final/tensors.safetensors"
    assert (tmp_path / "whole" / final).read_bytes() == (tmp_path / "parts" / final).read_bytes()
    assert whole["batches"] == resumed["batches"]
    steps = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "parts")
    ]
    losses = [[(r["step"], r["loss"]) for r in rows if r["kind"] == "train"] for rows in steps]
    assert losses[0] == losses[1]


def test_a_run_that_is_stopped_while_it_captures(settings, tmp_path, monkeypatch):
    """It gives the captures up and saves what it has, which is its beginning."""

    def capture_ahead(self, examples, step, *, on_batch, **rest):
        os.kill(os.getpid(), signal.SIGTERM)
        on_batch(1)
        pytest.fail("the captures went on")

    whole = train(settings, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(TrainLoop, "captures_ahead", True)
        patched.setattr(TrainLoop, "capture_ahead", capture_ahead)
        stopped = train(settings, tmp_path / "parts")
    resumed = resume(tmp_path / "parts")

    assert stopped["interrupted"]
    assert stopped["steps"] == 0
    assert whole["loss"] == resumed["loss"]
    assert same_end(tmp_path / "whole", tmp_path / "parts")


class StoppedInTest(Silent):
    """Sends a signal when the final model begins to translate."""

    def testing(self, count):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_that_is_stopped_while_it_tests(settings, tmp_path):
    """It gives the test up, since nothing is lost, and a resumed run makes it again."""
    whole = train(settings, tmp_path / "whole")
    config = make_config({**settings, "run_dir": str(tmp_path / "parts")})
    stopped = Trainer.new(config, observer=StoppedInTest()).train()
    resumed = resume(tmp_path / "parts")

    assert stopped["interrupted"]
    assert stopped["bleu"] is None
    assert whole["bleu"] == resumed["bleu"]
    assert same_end(tmp_path / "whole", tmp_path / "parts")


def test_packed_batches_go_on_as_they_were(settings, tmp_path):
    """The state keeps the layout, since a device may have chosen it and not the settings."""
    packed = {**settings, "batch_size": None, "batch_tokens": 40, "pack": True}
    whole = train(packed, tmp_path / "whole")
    train(packed, tmp_path / "parts", interrupt_after=5)
    config = tmp_path / "parts" / "config.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("pack: true", "pack: null"), encoding="utf-8")
    resumed = resume(tmp_path / "parts")

    assert whole["padding_share"] < 0.5
    assert whole["loss"] == resumed["loss"]
    assert same_end(tmp_path / "whole", tmp_path / "parts")


def test_the_layout_of_a_run_does_not_change(settings, tmp_path):
    """Another layout is refused: batches already done could not be told from batches to do."""
    train(settings, tmp_path / "run", interrupt_after=3)
    config = make_config({"fixed_shapes": True}, file=tmp_path / "run" / "config.yaml")

    with pytest.raises(UserError, match="`fixed_shapes` is true, but the run began with false"):
        Trainer.resume(config, tmp_path / "run", observer=Silent())


@pytest.mark.parametrize("interrupt_after", [3, None])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch_size": 5}, "`batch_size` is 5, but the run began with 4"),
        ({"batch_tokens": 40}, "`batch_tokens` is 40, but the run began with none"),
        ({"seed": 2}, "`seed` is 2, but the run began with 1"),
        ({"accumulate": 1}, "`accumulate` is 1, but the run began with 2"),
        ({"max_length": 5}, "`max_length` is 5, but the run began with 20"),
        ({"heads": 4}, "`heads` is 4, but the run began with 2"),
    ],
)
def test_what_orders_the_batches_does_not_change(
    settings, tmp_path, flags, message, interrupt_after
):
    """A setting that cuts or orders batches cannot change when a run is resumed."""
    train({**settings, "epochs": 1}, tmp_path / "run", interrupt_after=interrupt_after)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    config = make_config({**flags, "epochs": 2}, file=tmp_path / "run" / "config.yaml")

    with pytest.raises(UserError, match=f"^{message}, .*new run$"):
        Trainer.resume(config, tmp_path / "run", observer=Silent())
    assert before == (tmp_path / "run" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("begun", "flags", "message"),
    [
        (("en", "de"), {"src": "de", "tgt": "en"}, "`src` is de, but the run began with en"),
        (("en", "de"), {"src": "fr"}, "`src` is fr, but the run began with en"),
        (
            ("en", "zh-Hans"),
            {"tgt": "zh-Hant"},
            "`tgt` is zh-Hant, but the run began with zh-Hans",
        ),
        # A name of no language would let another one in later.
        (("en", "de"), {"tgt": "target"}, "`tgt` is target, but the run began with de"),
        (
            ("source", "de"),
            {"src": "original"},
            "`src` is original, but the run began with source",
        ),
    ],
)
def test_sides_of_a_run_keep_their_languages(settings, tmp_path, begun, flags, message):
    """Text without a header is the same by any names, which translations and scores go by."""
    train(
        {**settings, "src": begun[0], "tgt": begun[1], "columns": ",".join(begun), "epochs": 1},
        tmp_path / "run",
        interrupt_after=3,
    )

    with pytest.raises(UserError, match=f"^{message}, which must stay the same; leave it out"):
        resume(tmp_path / "run", flags=flags)


def test_a_side_may_be_called_by_another_name_of_its_language(settings, tmp_path):
    """But by no name of another language, nor of none."""
    run = tmp_path / "run"
    sides = {"src": "en", "tgt": "de", "columns": "en,de"}
    train({**settings, **sides, "epochs": 1}, run, interrupt_after=3)

    with pytest.raises(UserError, match="`tgt` is fr, but the run began with de"):
        resume(run, flags={"tgt": "fr"})
    resume(run, flags={"src": "English", "tgt": "German"}, interrupt_after=1)

    assert (read_config(run).src, read_config(run).tgt) == ("English", "German")


def test_a_state_that_does_not_name_the_sides_goes_by_the_settings(
    settings, tmp_path, monkeypatch
):
    """As older runs wrote them."""
    run = tmp_path / "run"
    sides = {"src": "en", "tgt": "de", "columns": "en,de"}
    train({**settings, **sides, "epochs": 1}, run, interrupt_after=3)
    checkpoint, state = checkpoints.load_state(run, on_damaged=print)
    for side in ("src", "tgt"):
        del state["layout"][side]
    monkeypatch.setattr(training_run, "load_state", lambda *_, **__: (checkpoint, state))

    with pytest.raises(UserError, match="`src` is fr, but the run began with en"):
        resume(run, flags={"src": "fr"})


def test_the_pairs_of_a_run_do_not_change(settings, tmp_path):
    """Other text is refused, even of equal lengths; the same text in another file is not."""
    train(settings, tmp_path / "run", interrupt_after=3)
    data = tmp_path / "d.tsv"
    moved = data.rename(tmp_path / "moved.tsv")
    config = make_config({"data": str(moved)}, file=tmp_path / "run" / "config.yaml")
    Trainer.resume(config, tmp_path / "run", observer=Silent()).run.lock.release()
    data.write_text("".join(f"{line}\n" for line in reversed(moved.read_text().splitlines())))

    with pytest.raises(UserError, match="training pairs are not the 56 that the run began with"):
        resume(tmp_path / "run", flags={"data": str(data)})


def test_settings_are_kept_as_asked(settings, tmp_path):
    """The file keeps open what one device decided, so that another device decides for itself."""
    train(settings, tmp_path / "run", interrupt_after=3)
    text = (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")

    assert all(f"{name}: null" in text for name in ("pack", "fixed_shapes", "compile"))


def test_flags_of_a_resume_are_kept_for_the_next(settings, tmp_path):
    """The number of updates asked for with a resume holds for the next resume as well."""
    settings = {**settings, "epochs": 5, "schedule": "constant"}
    train({**settings, "max_steps": 4}, tmp_path / "run")
    stopped = resume(tmp_path / "run", flags={"max_steps": 8}, interrupt_after=3)
    assert stopped["interrupted"]

    assert resume(tmp_path / "run")["steps"] == 8


def test_settings_of_a_resume_that_trains_nothing_are_kept(settings, tmp_path):
    """The state of a finished run is saved anew with them, so that nothing differs from it."""
    train({**settings, "epochs": 1}, tmp_path / "run")
    resume(tmp_path / "run", flags={"beam": 3})
    told = changed_files(tmp_path / "run")
    resume(tmp_path / "run")

    assert told == []
    assert read_config(tmp_path / "run").beam == 3


def test_what_differs_from_the_settings_that_were_saved_is_named(settings, tmp_path):
    """Whoever wrote to the file, or was killed after a resume with flags, reads which settings."""
    train({**settings, "epochs": 1}, tmp_path / "run")
    file = tmp_path / "run" / "config.yaml"
    beam, lines = read_config(tmp_path / "run").beam, file.read_text("utf-8").splitlines()
    others = ["beam: 9" if line.startswith("beam:") else line for line in lines]
    file.write_text("\n".join(others), "utf-8")
    (told,) = changed_files(tmp_path / "run")
    file.write_text("beam: [", "utf-8")
    (unreadable,) = changed_files(tmp_path / "run")
    others = ["heads: 7" if line.startswith("heads:") else line for line in lines]
    file.write_text("\n".join(others), "utf-8")
    (contradicting,) = changed_files(tmp_path / "run")

    says = f"which is used: it says beam 9 instead of {beam}; settings are changed by flags"
    assert told.endswith(says)
    assert f"which is used: it cannot be read: config {file} is not YAML: " in unreadable
    assert (
        "which is used: it cannot be read: `d_model` must be a multiple of 2 * `heads`"
        in contradicting
    )
    for line in (unreadable, contradicting):
        assert line.endswith("; settings are changed by flags")
        assert "\n" not in line


def test_a_resumed_run_says_where_it_goes_on_and_what_is_changed(settings, tmp_path):
    """So that nobody takes it for the run that it was."""
    Trainer.new(
        make_config({**settings, "run_dir": str(tmp_path / "run")}),
        observer=Silent(interrupt_after=7),
    ).train()
    config = make_config({"lr": 0.25, "epochs": 9}, file=tmp_path / "run" / "config.yaml")

    trainer = Trainer.resume(config, tmp_path / "run", observer=Silent())
    about = describe_run(trainer.run)
    trainer.run.lock.release()

    updates = trainer.run.step.num_updates
    assert updates > 0
    assert f"resumed after update {updates}" in about["run"]
    assert "-> 0.25" in about["changed"]
    assert "-> 9" in about["changed"]
    assert "run_dir" not in about["changed"]


def test_a_resume_keeps_the_update(settings, tmp_path):
    """Asked for with `auto`, or not at all: the run goes on as if it had not been interrupted."""
    settings = {**settings, "accumulate": 2}
    whole = train(settings, tmp_path / "whole")
    train(settings, tmp_path / "run", interrupt_after=4)
    stopped = resume(tmp_path / "run", flags={"accumulate": "auto"}, interrupt_after=4)
    assert stopped["interrupted"]
    resumed = resume(tmp_path / "run")

    check_alike(tmp_path / "whole", tmp_path / "run", whole, resumed)


def test_a_folder_with_a_run_that_saved_no_state_gives_no_advice_that_fails(settings, tmp_path):
    """To resume it would be refused in turn; to remove it is no advice while it has weights."""
    run = tmp_path / "run"
    train({**settings, "epochs": 1}, run)
    with pytest.raises(RunFolderError, match="or resume it with"):
        check_unused(run)
    for path in (run / "checkpoints").glob("step-*"):
        shutil.rmtree(path)

    with pytest.raises(RunFolderError, match="can be translated with, but not resumed") as told:
        check_unused(run)
    assert f"begin with its weights by `init_from={run}`" in str(told.value)
    assert "remove" not in str(told.value)

    shutil.rmtree(run / "checkpoints")
    with pytest.raises(
        RunFolderError, match="holds a run without a state, which cannot be resumed; remove"
    ):
        check_unused(run)


def test_a_folder_that_is_being_written_is_not_called_a_run_without_a_state(settings, tmp_path):
    """A run that has saved nothing yet is named by its process; nobody is told to remove it."""
    config = make_config({**settings, "run_dir": str(tmp_path / "run")})
    running = new_run(config)
    try:
        with pytest.raises(RunLockedError) as told:
            new_run(config)
    finally:
        running.lock.release()
    with pytest.raises(RunFolderError, match="cannot be resumed; remove it"):
        new_run(config)

    assert f"is being written by process {os.getpid()} on host" in str(told.value)
    assert "choose another `run_dir`" in str(told.value)
    assert "remove" not in str(told.value)


def test_a_resume_that_is_refused_keeps_nothing(settings, tmp_path):
    """A resume that is refused does not change the file of settings."""
    train(settings, tmp_path / "run", interrupt_after=3)
    before = (tmp_path / "run" / "config.yaml").read_bytes()

    with pytest.raises(RunFolderError):
        resume(tmp_path / "run", flags={"d_model": 64})

    assert before == (tmp_path / "run" / "config.yaml").read_bytes()


def test_a_run_whose_states_are_gone(settings, tmp_path):
    """It cannot be resumed; what its whole weights are good for is said, and only without any to remove it."""
    run = tmp_path / "run"
    train({**settings, "epochs": 2, "average": 2}, run)
    for path in (run / "checkpoints").glob("step-*"):
        shutil.rmtree(path)

    def told():
        with pytest.raises(
            RunFolderError, match="holds no state, so this run cannot be"
        ) as caught:
            resume(run)
        with pytest.raises(RunFolderError, match="is not empty") as new:
            check_unused(run)
        assert ("remove" in str(new.value)) == ("remove the folder" in str(caught.value))
        return str(caught.value).rpartition("; ")[2]

    final = run / "checkpoints" / "final"
    begin = f"choose another `run_dir`, and begin with its weights by `init_from={run}`"
    assert told() == f"its weights are whole: {begin}"
    shutil.rmtree(run / "checkpoints" / "best")
    truncate(final)
    translate = "choose another `run_dir`, and translate with its weights epoch-0002"
    assert told() == f"its weights are whole: {translate}"
    for path in (run / "checkpoints").glob("epoch-*"):
        truncate(path)
    assert told() == "remove the folder, and start the run anew"


def test_a_run_whose_states_are_all_damaged(settings, tmp_path):
    """It cannot be resumed, but its weights are whole, and named."""
    run = tmp_path / "run"
    train(settings, run)
    for path in (run / "checkpoints").glob("step-*"):
        truncate(path)

    with pytest.raises(RunFolderError, match="cannot be resumed; its weights are whole") as told:
        resume(run)
    assert str(told.value).endswith(f"begin with its weights by `init_from={run}`")


def truncate(checkpoint):
    """Cut the tensors of a checkpoint."""
    file = checkpoint / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def test_a_loss_that_is_not_finite_stops_the_run_with_its_batch(settings, tmp_path):
    """A learning rate far too high ends in an error that names the update; losses are kept."""
    with pytest.raises(NonFiniteLossError, match=r"loss of update \d+ .* is (nan|inf)") as caught:
        train({**settings, "lr": 1e30, "clip_norm": 0.0, "warmup": 0}, tmp_path / "run")

    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[caught.value.step]["loss"] is None
    assert all(row["loss"] is not None for row in rows[: caught.value.step])


def test_no_state_holds_what_is_not_finite(settings, tmp_path):
    """States saved after the loss became NaN, but before it was read, are not kept."""
    wild = {**settings, "lr": 1e30, "clip_norm": 0.0, "warmup": 0, "accumulate": 1}
    with pytest.raises(NonFiniteLossError):
        train({**wild, "save_every": "1", "plan": "gapless", "loss_interval": 9}, tmp_path / "run")

    for path in (tmp_path / "run" / "checkpoints").glob("step-*"):
        _, state = checkpoints.load_state(tmp_path / "run")
        assert all(math.isfinite(loss) for loss in state["position"]["losses"]), path


def test_a_state_inside_an_epoch_is_resumed_from(settings, tmp_path):
    """Killed long before the end of the first epoch, a run goes on inside it, with the same bits."""
    settings = {**settings, "save_every": "1", "epochs": 2}
    whole = train(settings, tmp_path / "whole")
    kill(settings, tmp_path / "killed", after=9, files=0)
    _, state = checkpoints.load_state(tmp_path / "killed")
    assert (state["position"]["epoch"], len(state["position"]["losses"]) > 0) == (0, True)

    resumed = resume(tmp_path / "killed")

    check_alike(tmp_path / "whole", tmp_path / "killed", whole, resumed)


@pytest.mark.parametrize(
    ("split", "message"),
    [("val", "validation pairs are not the 4"), ("test", "test pairs are not the 5")],
)
def test_text_of_other_splits_does_not_change(settings, tmp_path, split, message):
    """It is named, and allowed when that is asked for, with that resume alone."""
    data = tmp_path / "data"
    data.mkdir()
    for name, count in (("train", 20), ("val", 4), ("test", 5)):
        rows = "".join(f"a b {n}\tb a {n}\n" for n in range(count))
        (data / f"{name}.tsv").write_text(rows)
    run = tmp_path / "run"
    train({**settings, "data": str(data)}, run, interrupt_after=3)
    rows = (data / f"{split}.tsv").read_text().splitlines()
    (data / f"{split}.tsv").write_text("".join(f"{row}\n" for row in reversed(rows)))

    with pytest.raises(UserError, match=message):
        resume(run)
    resume(run, flags={"allow_changed_data": True}, interrupt_after=1)
    assert "allow_changed_data: false" in (run / "config.yaml").read_text()
    resume(run)


def read_losses(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["step"], row["loss"]) for row in rows if row["kind"] == "train"]


def same_end(one, other):
    final = "checkpoints/final/tensors.safetensors"
    return (one / final).read_bytes() == (other / final).read_bytes()


def test_a_run_may_stop_many_times(settings, tmp_path):
    """A run that is interrupted in every epoch and within updates ends with the same bits."""
    settings = {**settings, "accumulate": 3, "plan": "gapless", "loss_interval": 7}
    whole = train(settings, tmp_path / "whole")
    train(settings, tmp_path / "parts", interrupt_after=2)
    summary, stops = {"interrupted": True}, 0
    while summary["interrupted"]:
        left = whole["batches"] - len(read_losses(tmp_path / "parts"))
        summary = resume(tmp_path / "parts", interrupt_after=min(11, left) or None)
        stops += 1

    assert stops > 3
    assert whole["loss"] == summary["loss"]
    assert same_end(tmp_path / "whole", tmp_path / "parts")
    assert read_losses(tmp_path / "whole") == read_losses(tmp_path / "parts")
    assert [step for step, _ in read_losses(tmp_path / "parts")] == list(range(whole["batches"]))


def test_a_resumed_run_takes_no_first_weights(settings, tmp_path):
    """It goes on with its own, so that weights of another run would mean nothing."""
    train(settings, tmp_path / "run", interrupt_after=3, number=signal.SIGTERM)

    with pytest.raises(UserError, match="`init_from` is other, but a resumed run goes on"):
        resume(tmp_path / "run", flags={"init_from": "other"})


KILLED = """
import json, os, signal, sys, time
from pathlib import Path
from gapless.nmt.run.config import make_config
from gapless.nmt.run.trainer import Trainer

class Killer:
    left = int(sys.argv[2])
    def __getattr__(self, name):
        return lambda *args, **kwargs: None
    def batch_queued(self, progress, *, run):
        self.left -= 1
        if not self.left:
            end = time.monotonic() + 20
            while not is_saved():
                if time.monotonic() > end:
                    sys.exit("not saved in time")
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

settings = json.loads(sys.argv[1])
folder = Path(settings["run_dir"]) / "checkpoints"

def is_saved():
    return list(folder.glob("step-*")) and len(list(folder.glob("epoch*"))) >= int(sys.argv[3])

Trainer.new(make_config(settings), observer=Killer()).train()
"""


def kill(settings, run, *, after, files=1):
    """Train in a process of its own that is killed after some batches, a state and epoch files."""
    settings = json.dumps({**settings, "run_dir": str(run)})
    done = subprocess.run(
        [sys.executable, "-c", KILLED, settings, str(after), str(files)],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("batches", [20, pytest.param(40, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_from_the_last_saved_epoch(settings, tmp_path, batches):
    """A killed run resumes from its last state, which may be some epochs old."""
    whole = train(settings, tmp_path / "whole")
    run = tmp_path / "killed"
    kill(settings, run, after=batches)

    resumed = resume(run)

    assert whole["loss"] == resumed["loss"]
    assert whole["batches"] == resumed["batches"]
    assert read_losses(tmp_path / "whole") == read_losses(run)
    assert same_end(tmp_path / "whole", run)


def go_back_to(run, *, updates):
    """Leave a run the states of its first updates alone, as if later ones had been lost."""
    for path in (run / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > updates:
            shutil.rmtree(path)


def test_a_run_that_goes_back_and_ends_earlier(settings, tmp_path):
    """Weights of epochs after the state do not count; those before it are still there."""
    settings = {**settings, "average": 3, "keep": 50}
    train(settings, tmp_path / "whole")
    kill({**settings, "epochs": 8}, tmp_path / "killed", after=80, files=4)
    go_back_to(tmp_path / "killed", updates=14)

    resume(tmp_path / "killed", flags={"epochs": 3})

    assert same_end(tmp_path / "whole", tmp_path / "killed")


def test_a_run_is_not_changed_before_it_goes_on(settings, tmp_path):
    """Making a trainer removes neither lines nor weights that are ahead of the state."""
    run = tmp_path / "run"
    kill(settings, run, after=40, files=2)
    before = read_losses(run), sorted((run / "checkpoints").iterdir())

    Trainer.resume(make_config({}, file=run / "config.yaml"), run, observer=Silent())

    assert before == (read_losses(run), sorted((run / "checkpoints").iterdir()))


def test_the_best_weights_are_those_of_the_record(settings, tmp_path):
    """A run that goes back to an earlier state forgets the best weights of lost epochs."""
    run = tmp_path / "run"
    settings = {**settings, "lr": 1e-3, "schedule": "constant", "average": 8, "dropout": 0.0}
    kill({**settings, "epochs": 8, "keep": 50}, run, after=80, files=5)
    go_back_to(run, updates=7)

    resume(run, flags={"epochs": 2})

    best = checkpoints.read_weights(run / "checkpoints" / "best")
    last = checkpoints.read_weights(run / "checkpoints" / "epoch-0002")
    assert all(torch.equal(best[name], last[name]) for name in last)


@pytest.mark.parametrize("has_updated", [False, True])
def test_the_state_of_a_scaler_is_taken_without_a_wait(train_tiny, has_updated):
    """What is on the device stays there; a scaler that takes up the state has the same numbers."""
    step = train_tiny(plan="gapless", num_batches=2).step
    step.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    if has_updated:
        step.scaler.scale(torch.ones(1))
        step.scaler._found_inf_per_device = lambda optimizer: {}
        step.scaler._scale.fill_(4.0)
        step.scaler._growth_tracker.fill_(3)

    state = step.state()
    expected = step.scaler.state_dict()
    step.scaler = torch.amp.GradScaler("cpu")
    step.load_state(state)

    assert isinstance(state["scaler"]["scale"], torch.Tensor) == has_updated
    assert step.scaler.state_dict() == expected


def test_weights_are_written_while_they_are_validated(settings, tmp_path, monkeypatch):
    """A long validation does not put off the checkpoint of the epoch before it."""
    seen = []

    def wait_for_weights(run, pairs, *, beam):
        path = tmp_path / "run" / "checkpoints" / "epoch-0001"
        end = time.monotonic() + 20
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.01)
        seen.append(path.exists())
        return score_pairs(run, pairs, beam=beam)

    monkeypatch.setattr("gapless.nmt.run.validation.score_pairs", wait_for_weights)
    train({**settings, "epochs": 1, "val_interval": 1}, tmp_path / "run")

    assert seen == [True]


def test_a_finished_run_that_is_resumed_stays_finished(settings, tmp_path):
    """Nothing is trained again, and the final weights are the same bytes."""
    first = train(settings, tmp_path / "run")
    before = (tmp_path / "run" / "checkpoints" / "final" / "tensors.safetensors").read_bytes()
    (state,) = (tmp_path / "run" / "checkpoints").glob("step-*21")
    saved_at = state.stat().st_mtime_ns

    again = resume(tmp_path / "run")

    assert first["batches"] == again["batches"] == len(read_losses(tmp_path / "run"))
    assert (
        before == (tmp_path / "run" / "checkpoints" / "final" / "tensors.safetensors").read_bytes()
    )
    assert saved_at == state.stat().st_mtime_ns


def test_the_seconds_of_a_run_are_those_of_all_its_processes(settings, tmp_path, monkeypatch):
    """The wall time of a resumed run includes that of its earlier processes."""
    readings = itertools.count(0, 100)
    monkeypatch.setattr("gapless.nmt.run.time_limit.perf_counter", lambda: next(readings))
    train(settings, tmp_path / "run", interrupt_after=3)
    _, state = checkpoints.load_state(tmp_path / "run")
    kept = state["position"]["wall_seconds"]
    # The second process takes no time at all.
    monkeypatch.setattr("gapless.nmt.run.time_limit.perf_counter", lambda: 5)

    assert kept >= 100
    assert resume(tmp_path / "run")["wall_seconds"] == kept
    assert resume(tmp_path / "run")["wall_seconds"] == kept


def read_epochs(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        (row["kind"], row["step"], row.get("loss"), row.get("val_loss"))
        for row in rows
        if row["kind"] != "train"
    ]


def check_alike(whole, parts, of_whole, of_parts):
    """Two runs have the same losses, records, epochs, checkpoints and final weights."""
    assert of_whole["loss"] == of_parts["loss"]
    assert of_whole["epochs"] == of_parts["epochs"]
    assert read_losses(whole) == read_losses(parts)
    assert [step for step, _ in read_losses(parts)] == list(range(of_whole["batches"]))
    assert read_epochs(whole) == read_epochs(parts)
    names = [
        sorted(path.name for path in (run / "checkpoints").iterdir() if path.name[:4] != "step")
        for run in (whole, parts)
    ]
    assert names[0] == names[1]
    assert same_end(whole, parts)


# An epoch has 7 updates.
@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("ends", [(3, 5), (10, 12), (10, 14), (10, 17), (7, 17), (3, 10, 11, 30)])
def test_a_run_that_ended_by_its_updates_goes_on_to_more(settings, tmp_path, ends):
    """A run that ended inside an epoch takes the rest of it, as if it had never ended."""
    settings = {**settings, "epochs": 5, "schedule": "constant"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    of_whole = train({**settings, "max_steps": ends[-1]}, whole)
    first = train({**settings, "max_steps": ends[0]}, parts)
    for end in ends[1:]:
        of_parts = resume(parts, flags={"max_steps": end})

    assert first["steps"] == ends[0]
    assert first["bleu"] is not None
    check_alike(whole, parts, of_whole, of_parts)


def test_an_end_inside_an_epoch_is_validated_and_tested_once(settings, tmp_path):
    """A run that ended inside an epoch stays ended when resumed, and can go on to more updates."""
    settings = {**settings, "epochs": 5, "schedule": "constant", "val_interval": 4}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    of_whole = train({**settings, "max_steps": 17}, whole)
    first = train({**settings, "max_steps": 10}, parts)
    before = read_epochs(parts)
    weights = (parts / "checkpoints" / "final" / "tensors.safetensors").read_bytes()
    again = resume(parts)

    assert [(kind, step) for kind, step, _, _ in before] == [
        ("epoch", 1),
        ("epoch", 2),
        ("test", 2),
    ]
    assert [val_loss is None for _, _, _, val_loss in before] == [True, False, True]
    assert before == read_epochs(parts)
    assert (first["steps"], first["loss"]) == (again["steps"], again["loss"])
    assert weights == (parts / "checkpoints" / "final" / "tensors.safetensors").read_bytes()
    check_alike(whole, parts, of_whole, resume(parts, flags={"max_steps": 17}))


def test_a_run_may_be_stopped_at_its_last_update(settings, tmp_path):
    """An interrupt just before the last update loses nothing of the epoch."""
    settings = {**settings, "epochs": 5, "schedule": "constant"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    of_whole = train({**settings, "max_steps": 17}, whole)
    stopped = train({**settings, "max_steps": 10}, parts, interrupt_after=20)

    assert stopped["interrupted"]
    assert stopped["steps"] == 10
    check_alike(whole, parts, of_whole, resume(parts, flags={"max_steps": 17}))
