"""`gapless train --data` on every accepted form, then translate and evaluate."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from cli.conftest import SMALL
from gapless.nmt import write_pairs


TWO_STEPS = [*SMALL, "--max-length", "40", "--max-steps", "2"]
TINY = [*TWO_STEPS, "--vocab-size", "300"]

SUMMARY_KEYS = {
    *("plan", "device", "steps", "target_tokens", "tokens_per_second", "loss", "host_waits"),
    *("gap_share", "bleu", "chrf", "signature", "exact_match", "wall_seconds"),
    "peak_memory_bytes",
}


def read_pairs(data, split):
    sides = [(data / f"{split}.{side}").read_text("utf-8").splitlines() for side in ("en", "zh")]
    return list(zip(*sides, strict=True))


def write_columns(pairs, path):
    path.write_text("".join(f"{zh}\t{en}\tsomebody\n" for en, zh in pairs), "utf-8")


def test_every_form_trains_the_same_model(gapless, tiny_data):
    """A table with other columns, and pairs written from Python, give the losses of the plain folder."""
    forms = {"tsv": write_columns, "jsonl.gz": write_pairs}
    losses = []
    for form, flags in (("plain", []), ("tsv", ["--columns", "zh,en"]), ("jsonl.gz", [])):
        data = Path(form) if form in forms else tiny_data
        if form in forms:
            data.mkdir()
            for split in ("train", "val", "test"):
                forms[form](read_pairs(tiny_data, split), data / f"{split}.{form}")
        run = f"run-{form}"
        done = gapless("train", "--data", data, "--run-dir", run, *flags, *TINY)
        assert done.code == 0, done.err
        losses.append(json.loads(Path(run, "summary.json").read_text())["loss"])

    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize(
    "flags",
    [
        ["--tokenizer", "none"],
        ["--tokenizer", "none", "--shared-vocab", "--share", "all"],
        ["--vocab-size", "300", "--shared-vocab", "--share", "all"],
        ["--vocab-model", "unigram", "--share", "none", "--src", "zh", "--tgt", "en"],
    ],
)
def test_vocabularies_of_every_kind(gapless, tiny_data, flags):
    """Models train on subwords or words, shared or separate, in both directions."""
    done = gapless("train", "--data", tiny_data, "--run-dir", "r", *flags, *TWO_STEPS)
    translated = gapless("translate", "r", "the cat sees 7.", "")

    assert done.code == 0, done.err
    assert translated.code == 0, translated.err
    assert translated.out.count("\n") == 2


def test_a_run_folder_holds_everything(tiny_run):
    """A run folder holds settings, losses, TensorBoard events, checkpoints and a summary."""
    summary = json.loads((tiny_run / "summary.json").read_text())
    lines = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]

    assert set(summary) >= SUMMARY_KEYS
    assert 10 == summary["steps"] == summary["batches"]
    assert list(range(10)) == [line["step"] for line in lines if line["kind"] == "train"]
    assert summary["gap_share"] is None
    assert list((tiny_run / "tensorboard").glob("events*"))
    assert {"best", "final", "step-000000010", "epoch-0001", "epoch-0002"} <= {
        path.name for path in (tiny_run / "checkpoints").iterdir()
    }
    assert yaml.safe_load((tiny_run / "config.yaml").read_text())["epochs"] == 2


def test_the_figures_of_an_epoch_account_for_its_waits_and_its_time(tiny_run):
    """Each line of an epoch has its own waits, by reason, and together they are those of the run."""
    summary = json.loads((tiny_run / "summary.json").read_text())
    lines = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]

    for name in ("data_wait_ms", "launch_ms", "busy_ms"):
        assert summary[name] == pytest.approx(sum(line[name] for line in epochs))
    for reason, wait in summary["host_waits"].items():
        assert wait["count"] == sum(line["waits"][reason]["count"] for line in epochs)
    assert [line["num_waits"] for line in epochs] == [1, 1]
    # A CPU is busy with the host's own work.
    assert {(line["busy_share"], line["gap_share"]) for line in epochs} == {(None, None)}


def test_the_summary_counts_the_waits_of_a_hundred_batches(gapless, tmp_path, expected_waits):
    """It has the plan's host waits, as on a GPU."""
    rows = "en\tzh\n" + "".join(f"a {n}\tb {n}\n" for n in range(120))
    (tmp_path / "pairs.tsv").write_text(rows)
    words = ["--data", "pairs.tsv", "--tokenizer", "none", "--run-dir", "r", "--plan", "interval"]

    done = gapless("train", *words, *SMALL, "--batch-size", "1", "--max-steps", "100")

    assert done.code == 0, done.err
    summary = json.loads(Path("r/summary.json").read_text())
    counted = {reason: wait["count"] for reason, wait in summary["host_waits"].items()}
    assert (summary["batches"], summary["epochs"]) == (100, 1)
    assert expected_waits["interval"] == counted


def test_flags_win_over_the_config_of_an_earlier_run(gapless, tiny_run):
    """A config file gives every setting that no flag gives."""
    flags = ["--run-dir", "r", "--lr", "0.5", "--epochs", "1"]
    done = gapless("train", "--config", tiny_run / "config.yaml", *flags)

    assert done.code == 0, done.err
    earlier = yaml.safe_load((tiny_run / "config.yaml").read_text())
    later = yaml.safe_load(Path("r/config.yaml").read_text())
    changed = {key for key in later if later[key] != earlier[key]}
    assert {"lr", "epochs", "run_dir"} == changed


def test_settings_of_a_config_are_read_as_they_are_written(gapless, tiny_data):
    """YAML reads 010 as eight, no as false and 7e-4 as text; a number where text is wanted is that text."""
    Path("c.yaml").write_text(
        "patience: 010\nepochs: !!int '3'\nsave_every: 200\nvalidate_every: 500\nrun_dir: no\n"
        "lr: 7e-4\nclip_norm: 007\nseed: 5\nbeam: 1_0\n"
    )
    flags = ["--loss-extract-interval", "3", *TINY]

    done = gapless("train", "--config", "c.yaml", "--data", tiny_data, *flags)

    assert done.code == 0, done.err
    kept = yaml.safe_load(Path("no/config.yaml").read_text())
    assert [kept[name] for name in ("patience", "epochs", "seed", "loss_interval")] == [
        10,
        3,
        5,
        3,
    ]
    assert [kept[name] for name in ("lr", "clip_norm")] == [7e-4, 7.0]
    assert [kept[name] for name in ("save_every", "validate_every")] == ["200", "500"]


def test_a_flag_says_when_to_validate_in_the_place_of_a_config(gapless, tiny_data):
    """What the file of a run says of it would contradict the flag in the next run's file."""
    Path("c.yaml").write_text("val_interval: 3\n")
    words = ("--data", tiny_data, "--epochs", "1", *TINY)

    first = gapless(
        "train", "--config", "c.yaml", "--validate-every", "5", "--run-dir", "r", *words
    )
    again = gapless("train", "--config", "r/config.yaml", "--run-dir", "s", *words, "--dry-run")

    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert yaml.safe_load(Path("r/config.yaml").read_text())["validate_every"] == "5"


def test_run_folders_are_numbered(gapless, tiny_data):
    """A run without --run-dir goes to runs/train, or to runs/train2 where that is taken."""
    Path("runs/train").mkdir(parents=True)
    Path("runs/train/note").touch()

    gapless("train", "--data", tiny_data, *TINY)

    assert sorted(path.name for path in Path("runs").iterdir()) == ["train", "train2"]


def test_lines_keep_their_order_and_empty_ones_stay(gapless, tiny_run, tmp_path, monkeypatch):
    """Arguments, a file and standard input give the same lines in the same order."""
    lines = ["the big dog sees the cat 5.", "", "red cat 1.", "   ", "dog 2."]
    text = "".join(f"{line}\n" for line in lines)
    (tmp_path / "in.txt").write_text(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    outputs = [
        gapless("translate", tiny_run, *lines).out,
        gapless("translate", tiny_run, "--file", "in.txt").out,
        gapless("translate", tiny_run).out,
    ]

    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[0].count("\n") == 5
    assert [outputs[0].split("\n")[at] for at in (1, 3)] == ["", ""]


def test_n_best_prints_number_text_and_score(gapless, tiny_run):
    """Best first, in the field's own format; the number counts lines from 0, and an empty one has one row."""
    done = gapless("translate", tiny_run, "", "the cat 1.", "dog 2.", "--n-best", "2")

    rows = [line.split(" ||| ") for line in done.out.splitlines()]
    assert rows[0] == ["0", "", "0.0000"]
    assert [row[0] for row in rows] == ["0", "1", "1", "2", "2"]
    assert float(rows[1][2]) >= float(rows[2][2])
    assert all(re.fullmatch(r"-\d+\.\d{4}", row[2]) for row in rows[1:])


def test_evaluation_prints_scores_with_signatures(gapless, tiny_run):
    """Evaluation scores Chinese with the zh tokenizer, as text or as one JSON object."""
    printed = gapless("evaluate", tiny_run)
    figures = json.loads(gapless("evaluate", tiny_run, "--json").out)

    assert "tok:zh" in printed.out
    assert "chrF" in printed.out
    assert "tok:zh" in figures["bleu_signature"]
    assert 12 == figures["count"] == len(Path(figures["hypotheses"]).read_text().splitlines())


def test_evaluation_of_other_data_and_averaged_checkpoints(gapless, tiny_run, tiny_data):
    """Any split of any data can be scored, with the mean of the newest checkpoints."""
    done = gapless(
        "evaluate", tiny_run, "--data", tiny_data, "--split", "val", "--average", "2", "--json"
    )

    assert done.code == 0, done.err
    assert json.loads(done.out)["count"] == 10
    assert gapless("evaluate", tiny_run, "--average", "9").code == 2
    assert gapless("evaluate", tiny_run, "--split", "dev").code == 2


def test_figures_are_json_in_every_encoding(process, tiny_run, tmp_path):
    """Where letters cannot be written, JSON's own escapes stand for them."""
    ascii_alone = "import sys; sys.stdout = open(1, 'w', encoding='ascii', closefd=False)"
    out = tmp_path / "é😀"
    done = process("evaluate", tiny_run, "--json", "--out", out, before=ascii_alone)

    assert done.returncode == 0, done.stderr
    assert "é😀" in str(json.loads(done.stdout))


def test_the_hypotheses_file_holds_what_translate_prints(gapless, tiny_run, tiny_data):
    """`evaluate` writes the translations that `translate` gives for the same sentences."""
    done = gapless("evaluate", tiny_run, "--average", "2", "--beam", "3", "--json")
    translated = gapless(
        *("translate", tiny_run, "--file", tiny_data / "test.en"),
        *("--average", "2", "--beam", "3"),
    )

    assert done.out.count("\n") == 1
    figures = json.loads(done.out)
    assert figures["beam"] == 3
    assert figures["chrf_signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")
    assert translated.out == Path(figures["hypotheses"]).read_text(encoding="utf-8")


def test_tokenised_text_is_scored_as_it_is(gapless, tiny_data):
    """Pre-tokenised text is not tokenised again, and the scores say so."""
    flags = ["--tokenizer", "none", "--run-dir", "r", *TWO_STEPS]
    assert gapless("train", "--data", tiny_data, *flags).code == 0

    figures = json.loads(gapless("evaluate", "r", "--json").out)

    assert "tok:none" in figures["bleu_signature"]
    assert "not comparable" in figures["note"]


def test_plans_are_listed(gapless):
    """`gapless plans` names every plan."""
    assert "four-stream" in gapless("plans").out


@pytest.mark.parametrize(("ending", "mark"), [("csv", ","), ("tsv", "\t")])
def test_a_very_long_cell_is_read_as_any_other(gapless, tmp_path, ending, mark):
    """And its pair is left out as too long; the limit of `csv` stays as it was."""
    limit = csv.field_size_limit()
    rows = [("en", "zh"), *((f"a cat {n}", f"猫{n}") for n in range(60))]
    rows.insert(20, ("very long " * 14_000, "很长"))
    data = tmp_path / f"d.{ending}"
    data.write_text("".join(f"{en}{mark}{zh}\n" for en, zh in rows), encoding="utf-8")

    done = gapless("train", "--data", data, "--dry-run", *TWO_STEPS)

    assert done.code == 0, done.err
    assert "1 too long" in done.out
    assert csv.field_size_limit() == limit
