"""Every mistake a user can make: one clear line, exit code 2, nothing half-written."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gapless.device.precision import Precision
from gapless.plans import PLANS


TINY = [
    *("--d-model", "16", "--heads", "2", "--ffn", "16", "--encoder-layers", "1"),
    *("--decoder-layers", "1", "--device", "cpu", "--workers", "0", "--epochs", "1"),
]
SRC = str(Path(__file__).parents[2] / "src")


def check_refused(outcome, *parts):
    """The outcome is one line of error that holds all parts, and left nothing behind."""
    assert outcome.code == 2
    assert outcome.err.startswith("gapless: error: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err + outcome.out
    for part in parts:
        assert str(part) in outcome.err
    assert outcome.new_files == []


def write(folder, **files):
    """Write files into a folder; double underscores in names stand for dots."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        raw = content if isinstance(content, bytes) else content.encode()
        (folder / name.replace("__", ".")).write_bytes(raw)
    return folder


def test_data_that_does_not_exist(gapless):
    """A missing path is named."""
    check_refused(gapless("train", "--data", "nowhere", *TINY), "nowhere does not exist")


def test_an_empty_file(gapless, tmp_path):
    """An empty side is named."""
    data = write(tmp_path / "d", train__en="", train__zh="你好\n")

    check_refused(gapless("train", "--data", data, *TINY), "train.en is empty")


def test_a_folder_without_the_sides(gapless, tmp_path):
    """What was looked for and what is there are both named."""
    data = write(tmp_path / "d", train__fr="bonjour\n")

    check_refused(gapless("train", "--data", data, *TINY), "train.en", "train.zh", "train.fr")


def test_sides_of_different_length(gapless, tmp_path):
    """Both counts are named."""
    data = write(tmp_path / "d", train__en="a\nb\nc\n", train__zh="一\n二\n")

    check_refused(gapless("train", "--data", data, *TINY), "has 3 lines", "has 2")


def test_a_tsv_line_with_one_column(gapless, tmp_path):
    """The line is named."""
    data = write(tmp_path / "d", train__tsv="a\t一\nb\n")

    check_refused(gapless("train", "--data", data / "train.tsv", *TINY), "line 2", "one column")


def test_invalid_utf8(gapless, tmp_path):
    """The byte's offset and line are named."""
    data = write(tmp_path / "d", train__en=b"abc\nd\xffe\n", train__zh="一\n二\n")

    check_refused(gapless("train", "--data", data, *TINY), "0xff at offset 5, line 2", "train.en")


def test_a_broken_archive(gapless, tmp_path):
    """A truncated gzip file is named."""
    packed = gzip.compress("a\t一\n".encode() * 50)
    data = write(tmp_path / "d", train__tsv__gz=packed[:-9])

    check_refused(gapless("train", "--data", data / "train.tsv.gz", *TINY), "train.tsv.gz", "gzip")


@pytest.mark.parametrize(
    ("content", "part"),
    [("[[1, 2", "line 1, column"), ('[["a", "b"], ["c"]]', "item 1"), ('{"a": 1}', "list")],
)
def test_json_that_is_no_list_of_pairs(gapless, tmp_path, content, part):
    """The place of the mistake is named."""
    data = write(tmp_path / "d", train__json=content)

    check_refused(gapless("train", "--data", data / "train.json", *TINY), "train.json", part)


def test_an_unknown_ending(gapless, tmp_path):
    """The accepted endings are listed."""
    data = write(tmp_path / "d", pairs__csv="a,b\n")

    check_refused(gapless("train", "--data", data / "pairs.csv", *TINY), ".tsv, .json, .jsonl")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--plan", "fast"], ["'fast'", *PLANS]),
        (["--precision", "fp8"], ["'fp8'", *Precision.__args__]),
        (["--device", "tpu"], ["'tpu'", "auto, cpu, cuda and cuda:N"]),
        (["--streams", "0"], ["--streams must be 1 to 8, but is 0"]),
        (["--streams", "9"], ["--streams must be 1 to 8, but is 9"]),
        (["--sync-interval", "0"], ["--sync-interval must be at least 1, but is 0"]),
        (["--loss-interval", "0"], ["--loss-interval must be at least 1, but is 0"]),
        (["--loss-extract-interval", "0"], ["--loss-interval must be at least 1, but is 0"]),
        (["--val-interval", "0"], ["--val-interval must be at least 1, but is 0"]),
        (["--prefetch", "-1"], ["--prefetch must be at least 0, but is -1"]),
        (["--workers", "-1"], ["--workers must be at least 0, but is -1"]),
        (["--epochs", "0"], ["--epochs must be at least 1, but is 0"]),
        (["--epochs", "many"], ["--epochs", "'many'", "whole number"]),
        (["--dropout", "1.5"], ["dropout", "1.5"]),
        (["--epoch", "3"], ["--epoch"]),
        (["--src", "en", "--tgt", "en", "--data", "."], ["both 'en'"]),
        (["--src", "fr", "--tgt", "de"], ["embedded corpus is English-Chinese"]),
        (["--share", "all", "--no-shared-vocab"], ["--shared-vocab"]),
        (["--d-model", "30", "--heads", "4"], ["--d-model must be", "--heads = 8", "30"]),
        (["--precision", "fp16", "--device", "cpu"], ["fp16 needs a GPU"]),
        (["--config", "absent.yaml"], ["absent.yaml", "No such file"]),
        (["--config", "."], ["config .", "directory"]),
        (["--lr", "fast"], ["--lr", "number"]),
        (["--lr", "nan"], ["--lr must be a finite number, but is nan"]),
        (["--seed", "-1"], ["--seed must be at least 0, but is -1"]),
        (["--seed", str(2**63)], [f"--seed must be at most {2**63 - 1}"]),
        (["--vocab-model", "wordpiece"], ["'wordpiece'", "bpe, unigram"]),
        (["--tokenizer", "moses"], ["'moses'", "sentencepiece, none"]),
        (["--columns", "en", "--data", "."], ["--columns must be two names", "'en'"]),
        (["--columns", "a"], ["--columns is 'a'", "no data", "--data"]),
        (["--resume", "a", "--run-dir", "b"], ["--resume", "leave out", "--run-dir"]),
    ],
)
def test_flags_that_cannot_be(gapless, flags, parts):
    """The flag, its value and what it may be are named."""
    check_refused(gapless("train", *flags), *parts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is present")
def test_a_gpu_that_is_absent(gapless):
    """A missing GPU is said, with the way out."""
    check_refused(gapless("train", "--device", "cuda"), "finds no GPU", "--device cpu")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("speed: 3\n", "unknown settings speed"),
        ("a: [\n", "not YAML"),
        (b"\xff\n", "not YAML"),
        ("- 3\n", "holds no settings"),
        ("", "holds no settings"),
        ("epochs: many\n", "epochs in c.yaml must be a whole number, but is 'many'"),
        ("epochs:\n", "epochs in c.yaml must be a whole number, but is None"),
        ("streams: true\n", "streams in c.yaml must be a whole number, but is True"),
        ("shared_vocab: 'no'\n", "shared_vocab in c.yaml must be true or false, but is 'no'"),
        ("lr: fast\n", "lr in c.yaml must be a number, but is 'fast'"),
        ("data: 3\n", "data in c.yaml must be text, but is 3"),
    ],
)
def test_a_config_that_is_none(gapless, tmp_path, content, part):
    """Unknown settings, broken YAML and values of another kind are named."""
    write(tmp_path, c__yaml=content)

    check_refused(gapless("train", "--config", "c.yaml"), "c.yaml", part)


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_a_folder_that_is_no_run(gapless, tmp_path, command):
    """Decoding needs a run folder, and says what is missing."""
    write(tmp_path / "d", note="")

    check_refused(gapless(command, "d"), "d is not a run folder", "config.yaml")
    check_refused(gapless(command, "absent"), "absent is not a run folder", "does not exist")


def test_resuming_what_is_no_run(gapless, tmp_path):
    """Resuming needs a run folder."""
    write(tmp_path / "d", note="")

    check_refused(gapless("train", "--resume", "absent"), "absent is not a run folder")
    check_refused(gapless("train", "--resume", "d"), "d is not a run folder", "config.yaml")


def test_a_run_folder_that_is_taken(gapless, tiny_data, tmp_path):
    """A folder that holds something is never written into."""
    write(tmp_path / "taken", note="mine")

    outcome = gapless("train", "--data", tiny_data, "--run-dir", "taken", *TINY)

    check_refused(outcome, "run folder taken is not empty", "--resume")
    assert [path.name for path in Path("taken").iterdir()] == ["note"]


def test_a_vocabulary_larger_than_the_text_gives(gapless, tiny_data):
    """The size that was asked for and the largest possible one are named."""
    outcome = gapless("train", "--data", tiny_data, "--vocab-size", "9000", *TINY)

    check_refused(outcome, "9000", "use --vocab-size")


def test_a_vocabulary_smaller_than_the_characters_need(gapless, tiny_data):
    """A size that cannot hold every character is refused, with the least that can."""
    outcome = gapless("train", "--data", tiny_data, "--vocab-size", "200", *TINY)

    check_refused(outcome, "vocabulary size 200 is less than", "use --vocab-size")


def test_words_fewer_than_the_vocabulary(gapless, tiny_data):
    """Pre-tokenised text has as many entries as it has words."""
    outcome = gapless(
        "train", "--data", tiny_data, "--vocab-size", "9000", "--tokenizer", "none", *TINY
    )

    check_refused(outcome, "9000", "use --vocab-size")


def test_only_sentences_that_are_too_long(gapless, tiny_data):
    """A maximum that nothing meets is named."""
    outcome = gapless(
        "train", "--data", tiny_data, "--vocab-size", "300", "--max-length", "1", *TINY
    )

    check_refused(outcome, "more than 1 tokens", "--max-length")


def test_only_validation_sentences_that_are_too_long(gapless, tmp_path):
    """There would be no best model, and no loss to find it by."""
    for name, words in (("train", 2), ("val", 9), ("test", 2)):
        for side in ("en", "zh"):
            rows = [" ".join("abcdefghi"[n % 3 :][:words]) for n in range(20)]
            (tmp_path / f"{name}.{side}").write_text("\n".join(rows) + "\n")

    outcome = gapless(
        "train", "--data", tmp_path, "--tokenizer", "none", *TINY, "--max-length", "3"
    )

    check_refused(outcome, "all 20 validation pairs have more than 3 tokens", "--max-length")


def test_long_sentences_are_skipped_and_counted_in_training(gapless, tiny_data, tmp_path):
    """Training goes on without them, and the summary says how many there were."""
    data = write(
        tmp_path / "d",
        train__tsv="".join(f"a {n}\t一 {n}\n" for n in range(60)) + "a " * 300 + "\t一\n",
        val__tsv="a 1\t一 1\n",
        test__tsv="a 2\t一 2\n",
    )

    outcome = gapless("train", "--data", data, "--tokenizer", "none", "--run-dir", "r", *TINY)

    assert outcome.code == 0
    assert json.loads(Path("r/summary.json").read_text())["skipped_long"] == 1
    assert "1 too long" in outcome.out


def test_a_long_sentence_is_cut_at_translation_with_a_warning(gapless, tiny_run):
    """The line is named, and everything else is translated."""
    outcome = gapless("translate", tiny_run, "the cat 1.", "the cat " * 200)

    assert outcome.code == 0
    assert "warning: line 2" in outcome.err
    assert outcome.out.count("\n") == 2


def test_text_that_is_not_unicode(gapless, tiny_run, tmp_path):
    """Half a surrogate pair, from JSON or from the bytes of an argument, is named."""
    data = write(tmp_path / "d", train__jsonl='["a", "b"]\n["\\ud83d", "c"]\n')

    trained = gapless("train", "--data", data / "train.jsonl", *TINY)
    translated = gapless("translate", tiny_run, "cat", "caf\udce9")

    check_refused(trained, "train.jsonl line 2 is not Unicode text", "ud83d")
    check_refused(translated, "sentence 2 is not Unicode text", "caf", "udce9")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["translate", "--file", "absent.txt"], "absent.txt does not exist"),
        (["translate", "--file", "x", "text"], "give sentences or --file, not both"),
        (["translate", "--n-best", "3", "x"], "n-best must be 1 to the beam, which is 2"),
        (["translate", "--checkpoint", "absent", "x"], "absent does not exist"),
        (["translate", "--average", "7", "x"], "keeps 2 epoch checkpoints"),
        (["translate", "--average", "2", "--checkpoint", "x", "x"], "not both"),
        (["translate", "--device", "tpu", "x"], "unknown device 'tpu'"),
        (["evaluate", "--split", "dev"], "--split: expected one of train, val, test, found 'dev'"),
        (["evaluate", "--data", "absent"], "absent does not exist"),
        (["evaluate", "--beam", "0"], "--beam"),
    ],
)
def test_decoding_that_cannot_be(gapless, tiny_run, arguments, part):
    """What is wrong with the request is named before anything is translated."""
    command, *rest = arguments
    outcome = gapless(command, tiny_run, *rest)

    check_refused(outcome, part)
    assert outcome.out == ""


def test_a_checkpoint_that_is_broken(gapless, tiny_run, tmp_path):
    """A truncated file is named, not loaded."""
    broken = tiny_run / "checkpoints" / "broken.safetensors"
    broken.write_bytes((tiny_run / "checkpoints" / "final.safetensors").read_bytes()[:-40])

    outcome = gapless("translate", tiny_run, "--checkpoint", "broken.safetensors", "cat")

    broken.unlink()
    check_refused(outcome, "broken.safetensors is not a whole checkpoint")


def test_standard_input_that_is_not_utf8(tiny_run, tmp_path):
    """The real command names the byte of its standard input."""
    done = _process(["translate", str(tiny_run)], cwd=tmp_path, stdin=b"cat\n\xfe\n")

    assert done.returncode == 2
    assert b"standard input is not UTF-8: byte 0xfe at offset 4, line 2" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_mistake_in_a_real_process(tmp_path):
    """The real command prints one line on standard error and exits with 2."""
    done = _process(["train", "--plan", "fast"], cwd=tmp_path)

    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limit_bytes", "flags", "named"),
    [
        (3_000, [], "gapless/vocab/"),
        (20_000, [], "r/checkpoints/epoch0001.safetensors"),
        # Long enough for the log to fill the disk before the first checkpoint.
        (8_000, ["--batch-size", "1", "--accumulate", "1", "--data", "long.tsv"], "error: r: "),
    ],
    ids=["vocabulary", "checkpoint", "log"],
)
def test_a_full_disk(tiny_data, tmp_path, limit_bytes, flags, named):
    """A write that finds no room ends the run with one line and leaves no half file."""
    rows = "".join(f"the cat {n}\t猫{n}\n" for n in range(400))
    (tmp_path / "long.tsv").write_text(rows, encoding="utf-8")
    arguments = ["train", "--data", str(tiny_data), "--vocab-size", "300", "--run-dir", "r"]

    done = _process([*arguments, *TINY, *flags], cwd=tmp_path, limit_bytes=limit_bytes)

    assert done.returncode == 2, done.stderr
    error = done.stderr.decode()
    assert error.startswith("gapless: error: ")
    assert error.count("\n") == 1
    assert named in error
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert [name for name in left if name.endswith((".tmp", ".safetensors", ".pt"))] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_finds_no_room(tmp_path):
    """A full disk behind standard output is one line of error too."""
    with Path("/dev/full").open("wb") as full:
        done = _process(["plans"], cwd=tmp_path, stdout=full)

    assert done.returncode == 2
    assert done.stderr.startswith(b"gapless: error: No space left on device")
    assert done.stderr.count(b"\n") == 1


def _process(arguments, *, cwd, stdin=b"", stdout=subprocess.PIPE, limit_bytes=None):
    def limit():
        if limit_bytes is not None:
            # Every file may hold so much: the same as a disk without room for more.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-m", "gapless", *arguments],
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": SRC,
            "XDG_CACHE_HOME": str(cwd.parent / f"cache-of-{cwd.name}"),
        },
        preexec_fn=limit,
        check=False,
    )
