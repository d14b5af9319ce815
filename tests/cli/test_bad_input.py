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

from gapless.device.select import Precision
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
    assert "Traceback" not in outcome.err
    for part in parts:
        assert str(part) in outcome.err
    assert not Path("runs").exists()


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
        (["--streams", "0"], ["streams must be 1 to 8, but is 0"]),
        (["--streams", "9"], ["streams must be 1 to 8, but is 9"]),
        (["--sync-interval", "0"], ["sync-interval must be at least 1, but is 0"]),
        (["--loss-interval", "0"], ["loss-interval must be at least 1, but is 0"]),
        (["--loss-extract-interval", "0"], ["loss-interval must be at least 1, but is 0"]),
        (["--val-interval", "0"], ["val-interval must be at least 1, but is 0"]),
        (["--prefetch", "-1"], ["prefetch must be at least 0, but is -1"]),
        (["--workers", "-1"], ["workers must be at least 0, but is -1"]),
        (["--epochs", "0"], ["epochs must be at least 1, but is 0"]),
        (["--epochs", "many"], ["--epochs", "integer"]),
        (["--dropout", "1.5"], ["dropout", "1.5"]),
        (["--epoch", "3"], ["--epoch"]),
        (["--src", "en", "--tgt", "en", "--data", "."], ["both 'en'"]),
        (["--src", "fr", "--tgt", "de"], ["embedded corpus is English-Chinese"]),
        (["--share", "all", "--no-shared-vocab"], ["--shared-vocab"]),
        (["--d-model", "30", "--heads", "4"], ["d-model 30"]),
        (["--precision", "fp16", "--device", "cpu"], ["fp16 needs a GPU"]),
        (["--config", "absent.yaml"], ["absent.yaml"]),
    ],
)
def test_flags_that_cannot_be(gapless, flags, parts):
    """The flag, its value and what it may be are named."""
    check_refused(gapless("train", *flags), *parts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is present")
def test_a_gpu_that_is_absent(gapless):
    """A missing GPU is said, with the way out."""
    check_refused(gapless("train", "--device", "cuda"), "finds no GPU", "--device cpu")


@pytest.mark.parametrize(("content", "part"), [("speed: 3\n", "speed"), ("a: [\n", "not YAML")])
def test_a_config_that_is_none(gapless, tmp_path, content, part):
    """Unknown settings and broken YAML are named."""
    write(tmp_path, c__yaml=content)

    check_refused(gapless("train", "--config", "c.yaml"), "c.yaml", part)


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_a_folder_that_is_no_run(gapless, tmp_path, command):
    """Decoding needs a run folder, and says what is missing."""
    write(tmp_path / "d", note="")

    check_refused(gapless(command, "d"), "d is not a run folder", "config.yaml")
    check_refused(gapless(command, "absent"), "absent is not a run folder", "does not exist")


def test_resuming_what_is_no_run(gapless):
    """Resuming needs a run folder."""
    check_refused(gapless("train", "--resume", "absent"), "absent is not a run folder")


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


def test_a_full_disk(tiny_data, tmp_path):
    """A write that finds no room ends the run with one line and leaves no half file."""
    arguments = ["train", "--data", str(tiny_data), "--vocab-size", "300", "--run-dir", "r", *TINY]

    done = _process(arguments, cwd=tmp_path, limit_bytes=20_000)

    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(b"gapless: error: ")
    assert b"Traceback" not in done.stderr
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert [name for name in left if name.endswith((".tmp", ".safetensors", ".pt"))] == []


def _process(arguments, *, cwd, stdin=b"", limit_bytes=None):
    def limit():
        if limit_bytes is not None:
            # Every file may hold so much: the same as a disk without room for more.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-m", "gapless", *arguments],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": SRC, "XDG_CACHE_HOME": str(cwd.parent / "cache")},
        preexec_fn=limit,
        check=False,
    )
