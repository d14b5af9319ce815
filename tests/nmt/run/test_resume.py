"""A run that stops can be resumed exactly."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
import time
from types import SimpleNamespace

import pytest
import torch

from gapless.device.numerics import numerics_restored
from gapless.errors import NonFiniteLossError, RunFolderError, RunLockedError, UserError
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.run.new_run import new_run
from gapless.nmt.run.resume import resumed_run
from gapless.nmt.run.run_report import describe_run
from gapless.nmt.run.trainer import Trainer
from gapless.nmt.run.validation import score_validation
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.run_folder.folder import LOCK, changed_files, check_unused, read_config
from gapless.nmt.settings.config import make_config
from gapless.nmt.settings.effective_settings import resolve, resolve_resumed, settings_to_keep
from tiny_run import Silent, Stopping, as_asked, tiny_config, write_letters


FINAL = "checkpoints/final/tensors.safetensors"

# An epoch of this text has 7 updates of 2 batches.
SETTINGS = {
    "d_model": 16,
    "ffn": 16,
    "batch_size": 4,
    "batch_tokens": None,
    "dropout": 0.3,
    "epochs": 3,
    "warmup": 5,
    "beam": 1,
    "max_length": 20,
    "accumulate": 2,
    "average": 2,
}

# Ends inside its third epoch.
LONG = {**SETTINGS, "epochs": 5, "schedule": "constant", "max_steps": 17}


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """A shell starts its background processes with SIGINT ignored, and a run keeps it so."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with the text of all runs, which no test changes."""
    folder = tmp_path_factory.mktemp("text")
    write_letters(folder / "d.tsv")
    return folder


@pytest.fixture
def train(text):
    """Train a run on the text, or on another; return its summary."""
    return lambda run, observer=None, **settings: train_in(text, run, observer, **settings)


def train_in(text, run, observer=None, **settings):
    config = tiny_config(text, **{**SETTINGS, "run_dir": str(run), **settings})
    return Trainer(new_run(as_asked(config)), observer=observer or Silent()).train()


def resume(run, observer=None, **flags):
    config = make_config(flags, file=run / "config.yaml")
    return Trainer(resumed_run(config, run), observer=observer or Silent()).train()


class KilledError(Exception):
    """Ends a run whose files were copied before."""


class Killed(Silent):
    """After some batches copies the files of a run, as a kill would leave them once all is written."""

    def __init__(self, copy, *, after):
        self.left = after
        self.copy = copy
        self.trainer = None

    def batch_queued(self, *_, **__):
        self.left -= 1
        if self.left == 0:
            self.trainer._writer.drain()
            shutil.copytree(self.trainer.run.run_dir, self.copy)
            raise KilledError


def kill(text, run, *, after, **settings):
    """Leave in a folder what a run that is killed after some batches would leave."""
    observer = Killed(run, after=after)
    whole = run.with_name(f"{run.name}.whole")
    config = tiny_config(text, **{**SETTINGS, "run_dir": str(whole), **settings})
    observer.trainer = Trainer(new_run(as_asked(config)), observer=observer)
    with pytest.raises(KilledError):
        observer.trainer.train()


@pytest.fixture(scope="module")
def runs(text, tmp_path_factory):
    """Runs that tests look at, or copy: one that nobody stopped, a longer one, a stopped and a killed one."""
    folder = tmp_path_factory.mktemp("runs")
    with numerics_restored():
        found = SimpleNamespace(
            whole=folder / "whole",
            of_whole=train_in(text, folder / "whole"),
            long=folder / "long",
            of_long=train_in(text, folder / "long", **LONG),
            stopped=folder / "stopped",
            of_stopped=train_in(text, folder / "stopped", Stopping(3)),
            killed=folder / "killed",
        )
        kill(text, found.killed, after=34, plan="gapless", loss_interval=2)
    return found


@pytest.fixture
def copy(runs, tmp_path):
    """Copy one of the runs, so that a test may go on with it."""
    return lambda name: shutil.copytree(getattr(runs, name), tmp_path / "run")


def read_rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def read_losses(run):
    return [(row["step"], row["loss"]) for row in read_rows(run) if row["kind"] == "train"]


def read_epochs(run):
    return [
        (row["kind"], row["step"], row.get("loss"), row.get("val_loss"))
        for row in read_rows(run)
        if row["kind"] != "train"
    ]


def same_end(one, other):
    return (one / FINAL).read_bytes() == (other / FINAL).read_bytes()


def check_alike(whole, parts, of_whole, of_parts):
    """Two runs have the same losses, scores, records, epochs, checkpoints and final weights."""
    for name in ("loss", "epochs", "batches", "steps", "bleu"):
        assert of_whole[name] == of_parts[name], name
    assert not of_parts["interrupted"]
    assert read_losses(whole) == read_losses(parts)
    assert [step for step, _ in read_losses(parts)] == list(range(of_whole["batches"]))
    assert read_epochs(whole) == read_epochs(parts)
    names = [
        sorted(path.name for path in (run / "checkpoints").iterdir() if path.name[:4] != "step")
        for run in (whole, parts)
    ]
    assert names[0] == names[1]
    assert same_end(whole, parts)


def files_of(run):
    """Return what is in the files of a run, but for that of its lock."""
    paths = [path for path in run.rglob("*") if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


# --- the same bits ---


@pytest.mark.parametrize(
    ("batches", "number"), [(3, signal.SIGTERM), (14, signal.SIGINT), (20, signal.SIGTERM)]
)
def test_an_interrupted_run_goes_on_with_the_same_bits(train, runs, tmp_path, batches, number):
    """Weights, losses and the record of losses are those of a run that never stopped."""
    stopped = train(tmp_path / "run", Stopping(batches, number=number))
    resumed = resume(tmp_path / "run")

    assert stopped["interrupted"]
    check_alike(runs.whole, tmp_path / "run", runs.of_whole, resumed)


def test_a_run_that_is_stopped_while_it_captures(train, runs, tmp_path, monkeypatch):
    """It gives the captures up and saves what it has, which is its beginning."""

    def capture_ahead(self, examples, step, *, on_batch, **rest):
        os.kill(os.getpid(), signal.SIGTERM)
        on_batch(1)
        pytest.fail("the captures went on")

    with monkeypatch.context() as patched:
        patched.setattr(TrainLoop, "captures_ahead", True)
        patched.setattr(TrainLoop, "capture_ahead", capture_ahead)
        stopped = train(tmp_path / "run")
    resumed = resume(tmp_path / "run")

    assert (stopped["interrupted"], stopped["steps"]) == (True, 0)
    check_alike(runs.whole, tmp_path / "run", runs.of_whole, resumed)


class StoppedInTest(Silent):
    """Sends a signal when the final model begins to translate."""

    def testing(self, count):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_that_is_stopped_while_it_tests(train, runs, tmp_path):
    """It gives the test up, since nothing is lost, and a resumed run makes it again."""
    stopped = train(tmp_path / "run", StoppedInTest())
    resumed = resume(tmp_path / "run")

    assert (stopped["interrupted"], stopped["bleu"]) == (True, None)
    check_alike(runs.whole, tmp_path / "run", runs.of_whole, resumed)


def test_packed_batches_go_on_as_they_were(train, tmp_path):
    """The state keeps the layout, since a device may have chosen it and not the settings."""
    packed = {"batch_size": None, "batch_tokens": 40, "pack": True, "epochs": 2}
    whole = train(tmp_path / "whole", **packed)
    train(tmp_path / "parts", Stopping(5), **packed)
    config = tmp_path / "parts" / "config.yaml"
    config.write_text(config.read_text("utf-8").replace("pack: true", "pack: null"), "utf-8")
    resumed = resume(tmp_path / "parts")

    assert whole["padding_share"] < 0.5
    check_alike(tmp_path / "whole", tmp_path / "parts", whole, resumed)


def test_a_resume_keeps_the_update(runs, copy):
    """Asked for with `auto`, or not at all: the run goes on as if it had not been interrupted."""
    run = copy("stopped")
    stopped = resume(run, Stopping(4), accumulate="auto")
    assert stopped["interrupted"]

    check_alike(runs.whole, run, runs.of_whole, resume(run))


def test_a_run_may_stop_many_times(train, tmp_path):
    """A run that is interrupted in every epoch and within updates ends with the same bits."""
    settings = {"accumulate": 3, "plan": "gapless", "loss_interval": 7}
    whole = train(tmp_path / "whole", **settings)
    train(tmp_path / "parts", Stopping(2), **settings)
    summary, stops = {"interrupted": True}, 0
    while summary["interrupted"]:
        left = whole["batches"] - len(read_losses(tmp_path / "parts"))
        summary = resume(tmp_path / "parts", Stopping(min(11, left) or None))
        stops += 1

    assert stops > 3
    check_alike(tmp_path / "whole", tmp_path / "parts", whole, summary)


def test_a_killed_run_goes_on_from_its_last_state(runs, copy):
    """Lines of what it did after that state are made again."""
    run = copy("killed")
    assert len(read_losses(run)) > 28

    check_alike(runs.whole, run, runs.of_whole, resume(run))


def test_a_state_inside_an_epoch_is_resumed_from(text, runs, tmp_path):
    """Killed long before the end of the first epoch, a run goes on inside it, with the same bits."""
    run = tmp_path / "run"
    kill(text, run, after=9, save_every="1")
    _, state = checkpoints.load_state(run)
    assert (state["position"]["epoch"], len(state["position"]["losses"]) > 0) == (0, True)

    check_alike(runs.whole, run, runs.of_whole, resume(run))


def go_back_to(run, *, updates):
    """Leave a run the states of its first updates alone, as if later ones had been lost."""
    for path in (run / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > updates:
            shutil.rmtree(path)


def test_a_run_that_goes_back_and_ends_earlier(text, train, tmp_path):
    """Weights of epochs after the state do not count; those before it are still there."""
    settings = {"average": 2, "keep": 50}
    train(tmp_path / "whole", epochs=2, **settings)
    kill(text, tmp_path / "run", after=44, epochs=4, **settings)
    go_back_to(tmp_path / "run", updates=7)

    resume(tmp_path / "run", epochs=2)

    assert same_end(tmp_path / "whole", tmp_path / "run")


def test_a_run_is_not_changed_before_it_goes_on(copy):
    """Making a trainer removes neither lines nor weights that are ahead of the state."""
    run = copy("killed")
    go_back_to(run, updates=7)
    before = files_of(run)

    trainer = Trainer(
        resumed_run(make_config({}, file=run / "config.yaml"), run), observer=Silent()
    )
    trainer.run.lock.release()

    assert before == files_of(run)


def test_the_best_weights_are_those_of_the_record(text, tmp_path):
    """A run that goes back to an earlier state forgets the best weights of lost epochs."""
    run = tmp_path / "run"
    settings = {"lr": 1e-3, "schedule": "constant", "average": 8, "dropout": 0.0, "keep": 50}
    kill(text, run, after=44, epochs=4, **settings)
    lost = checkpoints.read_weights(run / "checkpoints" / "best")
    go_back_to(run, updates=7)

    resume(run, epochs=2)

    best = checkpoints.read_weights(run / "checkpoints" / "best")
    last = checkpoints.read_weights(run / "checkpoints" / "epoch-0002")
    assert all(torch.equal(best[name], last[name]) for name in last)
    assert not all(torch.equal(best[name], lost[name]) for name in last)


# --- runs that end by their updates ---


@pytest.mark.parametrize("ends", [(7, 17), (14, 17), (3, 10, 11, 17)])
def test_a_run_that_ended_by_its_updates_goes_on_to_more(train, runs, tmp_path, ends):
    """A run that ended inside an epoch takes the rest of it, as if it had never ended."""
    first = train(tmp_path / "run", **{**LONG, "max_steps": ends[0]})
    for end in ends[1:]:
        resumed = resume(tmp_path / "run", max_steps=end)

    assert first["steps"] == ends[0]
    assert first["bleu"] is not None
    check_alike(runs.long, tmp_path / "run", runs.of_long, resumed)


def test_an_end_inside_an_epoch_is_validated_and_tested_once(train, tmp_path):
    """Whatever the interval of validations; and a run that ended there stays ended when it is resumed."""
    run = tmp_path / "run"
    first = train(run, **{**LONG, "max_steps": 10, "val_interval": 4})
    before, weights = read_epochs(run), (run / FINAL).read_bytes()
    again = resume(run)

    assert [row[:2] for row in before] == [("epoch", 1), ("epoch", 2), ("test", 2)]
    assert [val_loss is None for _, _, _, val_loss in before] == [True, False, True]
    assert before == read_epochs(run)
    assert (first["steps"], first["loss"]) == (again["steps"], again["loss"])
    assert weights == (run / FINAL).read_bytes()


def test_a_run_may_be_stopped_at_its_last_update(train, runs, tmp_path):
    """An interrupt just before the last update loses nothing of the epoch."""
    stopped = train(tmp_path / "run", Stopping(20), **{**LONG, "max_steps": 10})

    assert (stopped["interrupted"], stopped["steps"]) == (True, 10)
    resumed = resume(tmp_path / "run", max_steps=17)
    check_alike(runs.long, tmp_path / "run", runs.of_long, resumed)


def test_a_finished_run_that_is_resumed_stays_finished(runs, copy):
    """Nothing is trained again, and the final weights are the same bytes."""
    run = copy("whole")
    (state,) = (run / "checkpoints").glob("step-*21")
    saved_at = state.stat().st_mtime_ns

    again = resume(run)

    check_alike(runs.whole, run, runs.of_whole, again)
    assert saved_at == state.stat().st_mtime_ns


# --- what may change, and what may not ---


@pytest.mark.parametrize(
    ("begun", "flags", "message"),
    [
        ({}, {"batch_size": 5}, "`batch_size` is 5, but the run began with 4"),
        ({}, {"batch_tokens": 40}, "`batch_tokens` is 40, but the run began with none"),
        ({}, {"seed": 2}, "`seed` is 2, but the run began with 1"),
        ({}, {"accumulate": 1}, "`accumulate` is 1, but the run began with 2"),
        ({}, {"max_length": 5}, "`max_length` is 5, but the run began with 20"),
        ({}, {"heads": 4}, "`heads` is 4, but the run began with 2"),
        ({}, {"fixed_shapes": True}, "`fixed_shapes` is true, but the run began with false"),
        ({}, {"src": "zh", "tgt": "en"}, "`src` is zh, but the run began with en"),
        ({}, {"src": "fr"}, "`src` is fr, but the run began with en"),
        ({"tgt": "zh-Hans"}, {"tgt": "zh-Hant"}, "`tgt` is zh-Hant, but the run began with zh-Hans"),
        # A name of no language would let another one in later.
        ({}, {"tgt": "target"}, "`tgt` is target, but the run began with zh"),
        ({"src": "a"}, {"src": "b"}, "`src` is b, but the run began with a"),
    ],
)  # fmt: skip
def test_what_orders_the_batches_or_names_the_sides_does_not_change(
    tmp_path, begun, flags, message
):
    """Batches already done could not be told from batches to do; text has the same pairs by any names."""
    config = tiny_config(tmp_path, **{**SETTINGS, **begun})
    kept = settings_to_keep(config, resolve(config, is_accelerator=False))
    other = tiny_config(tmp_path, **{**SETTINGS, **begun, **flags, "epochs": 9})

    with pytest.raises(
        UserError, match=f"^{message}, which must stay the same; leave it out, or start a new run$"
    ):
        resolve_resumed(other, kept)


@pytest.mark.parametrize(
    ("begun", "names"),
    [(("en", "de"), ("English", "German")), (("source", "target"), ("source", "target"))],
)
def test_a_side_may_be_called_by_another_name_of_its_language(tmp_path, begun, names):
    """One of no language keeps its name; settings that order no batches may change too."""
    config = tiny_config(tmp_path, **SETTINGS, src=begun[0], tgt=begun[1])
    kept = settings_to_keep(config, resolve(config, is_accelerator=False))
    other = tiny_config(tmp_path, **{**SETTINGS, "lr": 0.5}, src=names[0], tgt=names[1])

    assert resolve_resumed(other, kept).accumulate == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"seed": 2}, "`seed` is 2, but the run began with 1"),
        ({"init_from": "other"}, "`init_from` is other, but a resumed run goes on"),
        ({"d_model": 64}, "holds the weights of another model"),
    ],
)
def test_a_resume_that_is_refused_changes_nothing(copy, flags, message):
    """Neither settings nor the record; a resumed run has its own weights, and takes no first ones."""
    run = copy("stopped")
    before = files_of(run)

    with pytest.raises(UserError, match=message):
        resume(run, **flags)

    assert before == files_of(run)


def test_the_pairs_of_a_run_do_not_change(runs, text, copy, tmp_path):
    """Other text is refused, even of equal lengths; the same text in another file is not."""
    run = copy("stopped")
    moved = shutil.copy(text / "d.tsv", tmp_path / "moved.tsv")
    config = make_config({"data": str(moved)}, file=run / "config.yaml")
    Trainer(resumed_run(config, run), observer=Silent()).run.lock.release()
    rows = moved.read_text().splitlines()
    moved.write_text("".join(f"{row}\n" for row in reversed(rows)))

    with pytest.raises(UserError, match="training pairs are not the 56 that the run began with"):
        resume(run, data=str(moved))


@pytest.mark.parametrize(
    ("split", "message"),
    [("val", "validation pairs are not the 4"), ("test", "test pairs are not the 5")],
)
def test_text_of_other_splits_does_not_change(train, tmp_path, split, message):
    """It is named, and allowed when that is asked for, with that resume alone."""
    data = tmp_path / "data"
    data.mkdir()
    for name, count in (("train", 20), ("val", 4), ("test", 5)):
        rows = "".join(f"a b {n}\tb a {n}\n" for n in range(count))
        (data / f"{name}.tsv").write_text(rows)
    run = tmp_path / "run"
    train(run, Stopping(3), data=str(data), epochs=1)
    rows = (data / f"{split}.tsv").read_text().splitlines()
    (data / f"{split}.tsv").write_text("".join(f"{row}\n" for row in reversed(rows)))

    with pytest.raises(UserError, match=message):
        resume(run)
    resume(run, Stopping(1), allow_changed_data=True)
    assert "allow_changed_data: false" in (run / "config.yaml").read_text()
    resume(run)


# --- settings ---


def test_settings_are_kept_as_asked(runs):
    """The file keeps open what one device decided, so that another device decides for itself."""
    text = (runs.stopped / "config.yaml").read_text(encoding="utf-8")

    assert all(f"{name}: null" in text for name in ("pack", "fixed_shapes", "compile"))


def test_flags_of_a_resume_are_kept_for_the_next(train, tmp_path):
    """The number of updates asked for with a resume holds for the next resume as well."""
    train(tmp_path / "run", **{**LONG, "max_steps": 2})
    stopped = resume(tmp_path / "run", Stopping(3), max_steps=5)
    assert stopped["interrupted"]

    assert resume(tmp_path / "run")["steps"] == 5


def test_settings_of_a_resume_that_trains_nothing_are_kept(copy):
    """The state of a finished run is saved anew with them, so that nothing differs from it."""
    run = copy("whole")
    resume(run, beam=3)
    told = changed_files(run)
    resume(run)

    assert told == []
    assert read_config(run).beam == 3


def test_a_resumed_run_says_where_it_goes_on_and_what_is_changed(copy):
    """So that nobody takes it for the run that it was."""
    run = copy("killed")
    config = make_config({"lr": 0.25, "epochs": 9}, file=run / "config.yaml")

    trainer = Trainer(resumed_run(config, run), observer=Silent())
    about = describe_run(trainer.run)
    trainer.run.lock.release()

    assert "resumed after update 14" in about["run"]
    assert "-> 0.25" in about["changed"]
    assert "-> 9" in about["changed"]
    assert "run_dir" not in about["changed"]


# --- folders without a state ---


def remove_states(run):
    for path in (run / "checkpoints").glob("step-*"):
        shutil.rmtree(path)


def truncate(checkpoint):
    """Cut the tensors of a checkpoint."""
    file = checkpoint / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def test_a_folder_with_a_run_that_saved_no_state_gives_no_advice_that_fails(copy):
    """To resume it would be refused in turn; to remove it is no advice while it has weights."""
    run = copy("whole")
    with pytest.raises(RunFolderError, match="or resume it with"):
        check_unused(run)
    remove_states(run)

    with pytest.raises(RunFolderError, match="a run without a state, which cannot be") as told:
        check_unused(run)
    assert f"begin another run with its weights by `init_from={run}`" in str(told.value)
    assert "remove" not in str(told.value)

    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunFolderError, match="cannot be resumed; start it anew in another"):
        check_unused(run)


def test_a_folder_that_is_being_written_is_not_called_a_run_without_a_state(text, tmp_path):
    """A run that has saved nothing yet is named by its process; nobody is told to remove it."""
    config = tiny_config(text, run_dir=str(tmp_path / "run"))
    running = new_run(as_asked(config))
    try:
        with pytest.raises(RunLockedError) as told:
            new_run(as_asked(config))
    finally:
        running.lock.release()
    with pytest.raises(RunFolderError, match="cannot be resumed; start it anew"):
        new_run(as_asked(config))

    assert f"is being written by process {os.getpid()} on host" in str(told.value)
    assert "choose another `run_dir`" in str(told.value)
    assert "remove" not in str(told.value)


@pytest.mark.parametrize("damage", [shutil.rmtree, truncate], ids=["gone", "damaged"])
def test_a_run_without_a_whole_state(copy, damage):
    """It cannot be resumed; what its weights are good for is said, where it has some."""
    run = copy("whole")
    for path in (run / "checkpoints").glob("step-*"):
        damage(path)

    with pytest.raises(RunFolderError, match="this run cannot be resumed") as told:
        resume(run)
    assert f"begin another run with its weights by `init_from={run}`" in str(told.value)
    for name in ("final", "best"):
        shutil.rmtree(run / "checkpoints" / name)
    with pytest.raises(RunFolderError, match="; start it anew in another `run_dir`"):
        resume(run)


# --- losses that are not finite ---

WILD = {"lr": 1e30, "clip_norm": 0.0, "warmup": 0}


def test_a_loss_that_is_not_finite_stops_the_run_with_its_batch(train, tmp_path):
    """A learning rate far too high ends in an error that names the update; losses are kept."""
    with pytest.raises(NonFiniteLossError, match=r"loss of update \d+ .* is (nan|inf)") as caught:
        train(tmp_path / "run", **WILD)

    rows = read_rows(tmp_path / "run")
    assert rows[caught.value.step]["loss"] is None
    assert all(row["loss"] is not None for row in rows[: caught.value.step])


def test_no_state_holds_what_is_not_finite(train, tmp_path):
    """States saved after the loss became NaN, but before it was read, are not kept."""
    settings = {**WILD, "accumulate": 1, "save_every": "1", "plan": "gapless", "loss_interval": 9}
    with pytest.raises(NonFiniteLossError):
        train(tmp_path / "run", **settings)

    for path in (tmp_path / "run" / "checkpoints").glob("step-*"):
        _, state = checkpoints.load_state(tmp_path / "run")
        assert all(math.isfinite(loss) for loss in state["position"]["losses"]), path


# --- what a state holds, and when it is written ---


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


def test_weights_are_written_while_they_are_validated(train, tmp_path, monkeypatch):
    """A long validation does not put off the checkpoint of the epoch before it."""
    seen = []

    def wait_for_weights(run, count):
        path = tmp_path / "run" / "checkpoints" / "epoch-0001"
        end = time.monotonic() + 20
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.01)
        seen.append(path.exists())
        return score_validation(run, count)

    monkeypatch.setattr("gapless.nmt.run.validation.score_validation", wait_for_weights)
    train(tmp_path / "run", epochs=1, val_interval=1)

    assert seen == [True]


def test_the_seconds_of_a_run_are_those_of_all_its_processes(train, tmp_path, monkeypatch):
    """The wall time of a resumed run includes that of its earlier processes."""
    readings = itertools.count(0, 100)
    monkeypatch.setattr("gapless.nmt.run.stopping.perf_counter", lambda: next(readings))
    train(tmp_path / "run", Stopping(3), epochs=1)
    _, state = checkpoints.load_state(tmp_path / "run")
    kept = state["position"]["wall_seconds"]
    # The second process takes no time at all.
    monkeypatch.setattr("gapless.nmt.run.stopping.perf_counter", lambda: 5)

    assert kept >= 100
    assert resume(tmp_path / "run")["wall_seconds"] == kept
    assert resume(tmp_path / "run")["wall_seconds"] == kept
