"""Every mistake a user can make: one clear line, exit code 2, nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cli.conftest import SMALL, TINY


ONE_EPOCH = [*SMALL, "--epochs", "1"]


def write(folder, **files):
    """Write files into a folder; double underscores in names stand for dots."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        raw = content if isinstance(content, bytes) else content.encode()
        (folder / name.replace("__", ".")).write_bytes(raw)
    return folder


@pytest.mark.parametrize(
    ("files", "data", "parts"),
    [
        ({}, "nowhere", ["nowhere does not exist"]),
        ({"train__fr": "bonjour\n"}, "d", ["train.en", "train.zh", "train.fr"]),
        (
            {"train__en": "a\nb\nc\n", "train__zh": "一\n二\n"},
            "d",
            ["train.en has 3 lines", "train.zh has 2"],
        ),
        (
            {"train__en": b"abc\nd\xffe\n", "train__zh": "一\n二\n"},
            "d",
            ["train.en", "0xff at offset 5, line 2"],
        ),
        ({"pairs__txt": "a,b\n"}, "d/pairs.txt", [".tsv, .csv, .json, .jsonl"]),
        (
            {"d__tsv": ("ein Hund\ta dog\n" * 20).encode("utf-16")},
            "d/d.tsv",
            ["is not UTF-8", "iconv", "UTF-16"],
        ),
    ],
    ids=["absent", "other sides", "lengths", "no UTF-8", "an unknown ending", "UTF-16"],
)
def test_text_that_cannot_be_read(gapless, tmp_path, files, data, parts):
    """What the reader finds wrong becomes one line of the command."""
    write(tmp_path / "d", **files)

    gapless("train", "--data", data, *ONE_EPOCH).check_refused(*parts)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--device", "tpu"], ["'tpu'", "auto, cpu, cuda and cuda:N"]),
        (["--streams", "0"], ["--streams must be 1 to 8, but is 0"]),
        (["--sync-interval", "0"], ["--sync-interval must be at least 1, but is 0"]),
        (["--loss-extract-interval", "0"], ["--loss-interval must be at least 1, but is 0"]),
        (["--val-interval", "0"], ["--val-interval must be at least 1, but is 0"]),
        (["--workers", "100000"], ["--workers must be at most 1024, but is 100000"]),
        (
            ["--data", "a.tsv", "--data", "b.tsv", "--weights", "1"],
            ["--weights must be a number above 0 for each of 2 --data, with commas", "'1'"],
        ),
        (["--epochs", "0"], ["--epochs must be at least 1, but is 0"]),
        (["--dropout", "1.5"], ["dropout", "1.5"]),
        (["--src", "en", "--tgt", "en", "--data", "."], ["both 'en'"]),
        (["--src", "fr", "--tgt", "de"], ["embedded corpus is English-Chinese"]),
        (["--share", "all", "--no-shared-vocab"], ["--shared-vocab"]),
        (["--d-model", "30", "--heads", "4"], ["--d-model must be", "--heads = 8", "30"]),
        (["--precision", "fp16", "--device", "cpu"], ["fp16 needs a GPU"]),
        (["--config", "absent.yaml"], ["absent.yaml", "No such file"]),
        (["--config", "."], ["config .", "directory"]),
        (["--lr", "0"], ["--lr must be above 0, but is 0"]),
        (
            ["--validate-every", "50", "--val-interval", "2"],
            ["--validate-every and --val-interval both say when to validate; leave out one"],
        ),
        (["--data", ""], ["--data is '', expected a file or folder; name one, or leave it out"]),
        (["--data", " "], ["--data is ' ', expected a file or folder"]),
        (["--run-dir", ""], ["--run-dir is '', expected a file or folder"]),
        (["--resume", ""], ["--resume: expected a file or folder, found ''"]),
        (["--data", "-"], ["--data is -, expected a file", "write it to a file"]),
        (
            ["--data", "https://example.org/a.tsv"],
            ["--data is the address https://example.org/a.tsv, expected a file", "download it"],
        ),
        (["--lr", "nan"], ["--lr must be a finite number, but is nan"]),
        (["--seed", "-1"], ["--seed must be at least 0, but is -1"]),
        (["--seed", str(2**63)], [f"--seed must be at most {2**63 - 1}"]),
        (["--vocab-model", "wordpiece"], ["--vocab-model", "'wordpiece'", "bpe", "unigram"]),
        (["--tokenizer", "moses"], ["--tokenizer", "'moses'", "sentencepiece", "none"]),
        (["--columns", "en", "--data", "."], ["--columns must be two names", "'en'"]),
        (["--columns", "a"], ["--columns is 'a'", "no data", "--data"]),
        (["--resume", "a", "--run-dir", "b"], ["--resume", "leave out", "--run-dir"]),
    ],
)
def test_flags_that_cannot_be(gapless, flags, parts):
    """A flag that cannot be is named with its value and what it may be."""
    gapless("train", *flags).check_refused(*parts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is present")
def test_a_gpu_that_is_absent(gapless):
    """A GPU that is asked for and absent is an error that names the way out."""
    gapless("train", "--device", "cuda").check_refused("finds no GPU", "--device cpu")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("speed: 3\n", "unknown settings speed"),
        ("max-steps: 7\nfoo: 1\n", "foo, max-steps (did you mean max_steps?); correct or remove"),
        ("epochs: -4\n", "error: epochs in c.yaml must be at least 1, but is -4"),
        ("lr: 0\n", "error: lr in c.yaml must be above 0"),
        ("save_every: often\n", "error: save_every in c.yaml must be a number of updates"),
        ("data: ''\n", "error: data in c.yaml is '', expected a file or folder"),
        ("data: '-'\n", "error: data in c.yaml is -, expected a file"),
        ("a: [\n", "not YAML"),
        (b"\xff\n", "config c.yaml is not UTF-8: byte 0xff at offset 0, line 1; convert it"),
        ("epochs: 3\nseed: 4\n".encode("utf-16-le"), "convert it with iconv -f"),
        ("- 3\n", "holds no settings"),
        ("", "holds no settings"),
        ("epochs: many\n", "epochs in c.yaml must be a whole number, but is many\n"),
        ("epochs:\n", "epochs in c.yaml must be a whole number, but is empty"),
        ("epochs: 1:30\n", "epochs in c.yaml must be a whole number, but is 1:30"),
        ("lr: 1:30\n", "lr in c.yaml must be a number, but is 1:30"),
        (
            "accumulate: 1:30\n",
            "accumulate in c.yaml must be auto or a number of batches, but is '1:30'",
        ),
        ("save_every: 10:00\n", "10min or 2h, but is '10:00'"),
        ("lr: 1" + "0" * 400 + "\n", "lr in c.yaml must be a number, but is 1000"),
        ("epochs: " + "[" * 600 + "\n", "c.yaml is not YAML"),
        ("epochs: &a [1, 2]\n", "epochs in c.yaml must be a whole number, but is a list"),
        ("shared_vocab: never\n", "shared_vocab in c.yaml must be true or false, but is never\n"),
        ("src: [3]\n", "src in c.yaml must be text, but is a list"),
    ],
)
def test_a_config_that_is_none(gapless, tmp_path, content, part):
    """Unknown settings of a config file, broken YAML and values of another kind are named."""
    write(tmp_path, c__yaml=content)

    gapless("train", "--config", "c.yaml").check_refused("c.yaml", part)


def test_a_contradiction_names_the_flags_that_end_it(gapless, tmp_path):
    """Also where a config file says one of both: flags win over it."""
    write(tmp_path, c__yaml="pack: true\n")

    gapless("train", "--config", "c.yaml", "--fixed-shapes").check_refused(
        "--pack and --fixed-shapes exclude each other; add --no-pack or --no-fixed-shapes"
    )


def test_a_flag_stands_in_the_place_of_what_a_config_file_says(gapless, tmp_path):
    """Also where the file's value could not be; one that could not be either is named as the flag."""
    write(tmp_path, c__yaml="epochs: -4\n")

    gapless("train", "--config", "c.yaml", "--epochs", "0").check_refused("--epochs must be")


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_a_folder_that_is_no_run(gapless, tmp_path, command):
    """Translating and evaluating need a run folder, and say what another folder lacks."""
    write(tmp_path / "d", note="")

    gapless(command, "d").check_refused("d is not a run folder", "config.yaml")
    gapless(command, "absent").check_refused("absent is not a run folder", "does not exist")


def test_a_run_in_a_folder_called_checkpoints(gapless, tiny_run, tmp_path):
    """Is a run as any other."""
    run = shutil.copytree(tiny_run, tmp_path / "checkpoints" / "final")

    assert gapless("translate", run, "cat").code == 0


@pytest.mark.parametrize(
    ("kept", "advice"),
    [("step-*", "or go on with gapless train --resume r"), ("nothing", "or start it anew")],
)
def test_a_run_without_weights(gapless, tiny_run, tmp_path, kept, advice):
    """One that was stopped before its first validation is told from one that is damaged."""
    run = shutil.copytree(tiny_run, tmp_path / "r")
    for path in set((run / "checkpoints").iterdir()) - set((run / "checkpoints").glob(kept)):
        shutil.rmtree(path)

    for arguments in (("translate", "r", "cat"), ("evaluate", "r")):
        gapless(*arguments).check_refused("r has no weights to translate with yet", advice)
    gapless("train", "--data", ".", "--init-from", "r").check_refused("r has no weights", advice)


def test_resuming_what_is_no_run(gapless, tmp_path):
    """Resuming a folder that is no run is refused."""
    write(tmp_path / "d", note="")

    gapless("train", "--resume", "absent").check_refused("absent is not a run folder")
    gapless("train", "--resume", "d").check_refused("d is not a run folder", "config.yaml")


@pytest.mark.parametrize(
    ("run_dir", "part"),
    [
        ("taken", "run folder taken is not empty, and holds no run; choose another --run-dir"),
        # Nobody is sent to resume a file.
        ("file", "file is no folder; choose another --run-dir"),
        ("file/run/1", "file is no folder; choose another --run-dir"),
        ("link", "run folder link is a link that leads nowhere"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["a run", "a dry run"])
def test_a_run_folder_that_cannot_be(gapless, tiny_data, tmp_path, run_dir, part, more):
    """It is never written into, and a dry run says what the run would."""
    write(tmp_path / "taken", note="mine")
    (tmp_path / "file").write_text("mine\n")
    (tmp_path / "link").symlink_to("nowhere")

    outcome = gapless("train", "--data", tiny_data, "--run-dir", run_dir, *ONE_EPOCH, *more)

    assert (outcome.code, outcome.new_files) == (2, [])
    assert part in outcome.err
    assert [path.name for path in Path("taken").iterdir()] == ["note"]


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--vocab-size", "9000"], ["9000", "use --vocab-size"]),
        (["--vocab-size", "9000", "--tokenizer", "none"], ["9000", "use --vocab-size"]),
        (["--vocab-size", "200"], ["vocabulary size 200 is less than", "use --vocab-size"]),
        (["--vocab-size", "3000000000"], ["--vocab-size must be"]),
        (["--max-length", "1", "--vocab-size", "300"], ["more than 1 tokens", "--max-length"]),
        (["--max-time", "9" * 310 + "h"], ["--max-time must be"]),
        # Not the epochs that follow from it.
        (["--max-steps", "0"], ["--max-steps must be at least 1, but is 0"]),
    ],
)
def test_numbers_that_do_not_suit_the_text(gapless, tiny_data, flags, parts):
    """The number and its flag are named."""
    gapless("train", "--data", tiny_data, *SMALL, *flags).check_refused(*parts)


def test_only_validation_sentences_that_are_too_long(gapless, tmp_path):
    """A maximum length that no validation pair meets is refused: no model would be the best."""
    for name, words in (("train", 2), ("val", 9), ("test", 2)):
        for side in ("en", "zh"):
            letters = "abcdefghi" if side == "en" else "bcdefghij"
            rows = [" ".join(letters[n % 3 :][:words]) for n in range(20)]
            (tmp_path / f"{name}.{side}").write_text("\n".join(rows) + "\n")

    outcome = gapless(
        "train", "--data", tmp_path, "--tokenizer", "none", *ONE_EPOCH, "--max-length", "3"
    )

    outcome.check_refused("all 20 validation pairs have more than 3 tokens", "--max-length")


def test_long_sentences_are_skipped_and_counted_in_training(gapless, tiny_data, tmp_path):
    """Sentences that are too long are skipped in training and counted in the summary."""
    data = write(
        tmp_path / "d",
        train__tsv="en\tzh\n"
        + "".join(f"a {n}\t一 {n}\n" for n in range(60))
        + "a " * 300
        + "\t一\n",
        val__tsv="en\tzh\na 1\t一 1\n",
        test__tsv="en\tzh\na 2\t一 2\n",
    )

    outcome = gapless("train", "--data", data, "--tokenizer", "none", "--run-dir", "r", *ONE_EPOCH)

    assert outcome.code == 0
    assert json.loads(Path("r/summary.json").read_text())["skipped_long"] == 1
    assert "1 too long" in outcome.out


def test_a_long_sentence_is_cut_at_translation_with_a_warning(gapless, tiny_run):
    """A sentence that is too long to translate is named by its line, and cut."""
    outcome = gapless("translate", tiny_run, "the cat 1.", "the cat " * 200)

    assert outcome.code == 0
    assert "warning: line 2" in outcome.err
    assert outcome.out.count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["translate", "--file", "absent.txt"], "absent.txt does not exist"),
        (["translate", "--file", "x", "text"], "give sentences or --file, not both"),
        (["translate", "--n-best", "3", "x"], "n-best must be 1 to the beam, which is 2"),
        (["translate", "--checkpoint", "absent", "x"], "absent does not exist"),
        (["translate", "--length-penalty", "nan", "x"], "--length-penalty must be -10 to 10"),
        (["translate", "--length-penalty", "1e9", "x"], "--length-penalty must be -10 to 10"),
        (["translate", "--average", "7", "x"], "keeps 2 epoch checkpoints"),
        (["translate", "--average", "2", "--checkpoint", "x", "x"], "not both"),
        (["translate", "--device", "tpu", "x"], "unknown device 'tpu'"),
        (["evaluate", "--split", "dev"], "--split: invalid choice: 'dev'"),
        (["evaluate", "--data", "absent"], "absent"),
        (["evaluate", "--beam", "0"], "--beam"),
    ],
)
def test_decoding_that_cannot_be(gapless, tiny_run, arguments, part):
    """A mistake in a request is named before anything is translated."""
    command, *rest = arguments
    outcome = gapless(command, tiny_run, *rest)

    outcome.check_refused(part)
    assert outcome.out == ""


def test_a_checkpoint_that_is_broken(gapless, tiny_run, tmp_path):
    """A checkpoint that is truncated is named and not loaded."""
    run = shutil.copytree(tiny_run, tmp_path / "run")
    file = run / "checkpoints" / "final" / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-40])

    outcome = gapless("translate", run, "cat")

    outcome.check_refused("final is damaged: tensors.safetensors has ", "not a whole checkpoint")
    assert outcome.err.endswith("; choose another with --checkpoint\n")
    gapless("train", "--data", ".", "--init-from", run).check_refused(
        "final is damaged", f"gapless train --resume {run} makes one", "or leave out --init-from"
    )


def test_a_checkpoint_that_is_missing(gapless, tiny_run):
    """Those that are there are named."""
    gapless("translate", tiny_run, "--checkpoint", "last", "cat").check_refused(
        "last does not exist; the run has best, final, epoch-0001, epoch-0002; choose another"
    )


def test_a_checkpoint_may_be_a_path_as_a_shell_completes_it(
    gapless, tiny_run, tmp_path, monkeypatch
):
    """Relative to the current folder too; that of another run is refused."""
    monkeypatch.chdir(tiny_run.parent)
    best = gapless("translate", tiny_run, "--checkpoint", "best", "cat")

    for path in (tiny_run / "checkpoints" / "best", f"{tiny_run.name}/checkpoints/best/"):
        assert gapless("translate", tiny_run, "--checkpoint", path, "cat").out == best.out
    gapless("translate", tiny_run, "--checkpoint", tmp_path / "best", "cat").check_refused(
        f"--checkpoint {tmp_path / 'best'} is not in {tiny_run}/checkpoints, expected the name"
    )
    gapless(
        "translate", tiny_run, "--checkpoint", tiny_run / "checkpoints" / "last", "cat"
    ).check_refused("last does not exist; the run has best, final, epoch-0001")


def test_a_disk_that_reports_no_size_is_not_full(gapless, tiny_data, monkeypatch):
    """As ramfs does."""
    monkeypatch.setattr(
        "gapless.nmt.run_folder.disk_space.shutil.disk_usage",
        lambda _: SimpleNamespace(free=0, total=0),
    )

    assert (
        gapless("train", "--data", tiny_data, "--run-dir", "r", *ONE_EPOCH, "--dry-run").code == 0
    )


def test_standard_input_that_is_not_utf8(tiny_run, process):
    """The real command names the byte of its standard input that is not UTF-8."""
    done = process("translate", tiny_run, stdin=b"cat\n\xfe\n")

    assert done.returncode == 2
    assert "standard input is not UTF-8: byte 0xfe at offset 4, line 2" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("limit_bytes", "flags", "named"),
    [
        (3_000, [], "r/config.yaml"),
        (20_000, ["--epochs", "2"], "r/checkpoints/epoch-0001: File too large; none was saved"),
        # Long enough for the log to fill the disk before the first checkpoint.
        pytest.param(
            8_000,
            ["--batch-size", "1", "--epochs", "1", "--data", "long.tsv"],
            "File too large; none was saved",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["settings", "checkpoint", "log"],
)
def test_a_full_disk(gapless, tiny_data, process, tmp_path, limit_bytes, flags, named):
    """A write that finds no room ends the run with one line and leaves no half file."""
    rows = "en\tzh\n" + "".join(f"the cat {n}\t猫{n}\n" for n in range(400))
    (tmp_path / "long.tsv").write_text(rows, encoding="utf-8")
    data = [] if "--data" in flags else ["--data", str(tiny_data)]
    arguments = ["train", *data, "--vocab-size", "300", "--run-dir", "r", "--store", "stores"]

    # Makes the store, which is larger.
    assert gapless(*arguments, *ONE_EPOCH, *flags, "--dry-run").code == 0
    # Every file may hold so many bytes: the same as a disk without room for more.
    limit = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))"
    done = process(*arguments, *ONE_EPOCH, *flags, before=limit, ignored=["SIGXFSZ"])

    assert done.returncode == 2, done.stderr
    *warnings, error = done.stderr.splitlines()
    assert error.startswith("gapless: error: ")
    assert named in error
    # So short a run also learns nothing, and is told so.
    assert len([line for line in warnings if "target token" not in line]) <= 1
    assert all(line.startswith("gapless: warning: ") for line in warnings)
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert [name for name in left if name.endswith((".tmp", ".safetensors", ".pt"))] == []


@pytest.mark.parametrize("is_saved", [True, False])
def test_how_to_go_on_after_a_full_disk(gapless, tiny_data, tmp_path, monkeypatch, is_saved):
    """With what the run has saved, or in another folder: its own is refused to a new run."""

    def fail(saver):
        saver.drain()
        if not is_saved:
            shutil.rmtree(tmp_path / "r" / "checkpoints")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "r/checkpoints/final")

    with monkeypatch.context() as full:
        full.setattr("gapless.nmt.run_folder.checkpoint_writer.CheckpointWriter.finish", fail)
        ended = gapless(
            "train", "--data", tiny_data, "--run-dir", "r", "--epochs", "1", *ONE_EPOCH
        )

    advice = (
        "go on with gapless train --resume r" if is_saved else "run again with another --run-dir"
    )
    assert ended.code == 2
    assert ended.err.splitlines()[-1] == (
        "gapless: error: r/checkpoints/final: No space left on device; free some space and "
        + advice
    )
    if is_saved:
        assert gapless("train", "--resume", "r").code == 0


@pytest.mark.parametrize(
    ("run_dir", "free", "said"),
    [
        ("new/r", 300_000, "its checkpoints, but its disk has 0.3 MiB free; make room, or lower"),
        ("/proc/r", 2**40, "/proc/r: No such file or directory"),
    ],
    ids=["a full disk", "a folder that cannot be made"],
)
def test_a_dry_run_says_what_the_run_would_say_of_its_folder(
    gapless, tiny_data, monkeypatch, run_dir, free, said
):
    """It leaves no folder behind, whatever it says."""
    monkeypatch.setattr(
        "gapless.nmt.run_folder.disk_space.shutil.disk_usage",
        lambda _: SimpleNamespace(free=free, total=2**40),
    )
    asked = ("train", "--data", tiny_data, "--run-dir", run_dir, *ONE_EPOCH)
    dry, run = gapless(*asked, "--dry-run"), gapless(*asked)

    run.check_refused(said)
    assert dry.code == 2
    assert said in dry.err
    assert "GiB" not in dry.err
    assert dry.new_files == []


def test_the_advice_for_a_taken_run_folder_can_be_copied(gapless, tiny_data):
    """Whatever its name is: a shell and the command take it for the folder."""
    asked = (
        "train",
        "--data",
        tiny_data,
        "--run-dir",
        "./-x it's $HOME",
        *ONE_EPOCH,
        "--vocab-size",
        "300",
    )
    begun = gapless(*asked)
    assert begun.code == 0, begun.err
    said = f"{begun.out}{begun.err}{begun.progress}"
    command = shlex.split(said.rpartition("try: gapless ")[2].splitlines()[0])
    assert gapless(*command, "cat").code == 0

    advice = gapless(*asked).err.strip().rpartition("or resume it with ")[2]

    resumed = gapless("train", *shlex.split(advice))
    assert resumed.code == 0, resumed.err


def test_a_dry_run_leaves_no_folder(gapless, tiny_data):
    """Nor does it where the run could begin."""
    asked = gapless("train", "--data", tiny_data, "--run-dir", "new/r", *TINY, "--dry-run")

    assert (asked.code, asked.new_files) == (0, []), asked.err
