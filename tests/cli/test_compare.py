"""`gapless compare`, as a user runs it on the demo, on text and on a file of theirs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from gapless.cli.workloads import in_one_process, translation_workload
from gapless.nmt.run.task import prepare
from gapless.nmt.settings.config import make_config
from gapless.plans import PLANS


ROOT = Path(__file__).parents[2]

FILE = """
import torch
import gapless

RUNS = []


def make(device, wrong_after=None):
    RUNS.append(None)
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    # More than the first few, which bits are compared on.
    batches = [torch.full((4, 8), float(n % 5 + 1)) for n in range(12)]
    run = len(RUNS)

    def step(batch):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if wrong_after is not None and run > wrong_after:
            model.bias.data += run
        return gapless.StepLoss(loss=loss, weight=4)

    return gapless.Workload(
        model=model, optimizer=optimizer, batches=batches, step=step, unit="rows"
    )


def wrong_plan(device):
    return make(device, wrong_after=3)


def by_chance(device):
    return make(device, wrong_after=1)


def nans(device):
    workload = make(device)
    workload.model.weight.data.fill_(float("nan"))
    return workload


def unnamed(device):
    workload = make(device)
    return gapless.Workload(
        model=workload.model,
        optimizer=workload.optimizer,
        batches=workload.batches,
        step=workload.step,
    )


def unit_of_numbers(device):
    workload = make(device)
    return gapless.Workload(
        model=workload.model, optimizer=workload.optimizer, batches=[1], step=len, unit=3
    )
"""

QUICK = ["--steps", "10", "--rounds", "2", "--warm-ups", "1", "--verify-steps", "4"]


@pytest.fixture
def compare(gapless, monkeypatch, tmp_path):
    """Run the command on the CPU in a folder that holds the file above as c.py."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    Path("c.py").write_text(FILE)

    def call(*arguments):
        return gapless("compare", "--device", "cpu", *arguments)

    yield call
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and tmp_path in (tmp_path / file).parents:
            del sys.modules[name]


def row_of(out, plan):
    """Return the cells of a plan's line in the first table."""
    lines = out[out.index("ms/step") :].splitlines()
    return next(line.split() for line in lines if line.startswith(f"{plan} "))


def test_the_demo_is_compared_in_a_process_of_its_own(process, terminal, tmp_path):
    """The demo's bits come first, then a table of times, and a bar on the terminal meanwhile."""
    screen, read = terminal
    options = ["--plans", "blocking, gapless", "--json", "out.json", *QUICK, "--rounds", "1"]
    small = ["--d-model", "32", "--heads", "2", "--ffn", "32", "--encoder-layers", "1"]
    small += ["--decoder-layers", "1"]
    done = process("compare", "--device", "cpu", *options, *small, stderr=screen)
    bar = read()

    assert done.returncode == 0, bar
    out = done.stdout
    assert out.startswith("workload  model of gapless train on the embedded corpus\n")
    assert "note      A CPU has no gaps to close" in out
    assert "a plain loop against itself: bit-identical (4 losses, " in out
    assert out.index("gapless against a plain loop: bit-identical") < out.index("ms/step")
    assert "tokens/s" in out
    assert row_of(out, "blocking")[1] == row_of(out, "gapless")[1] == "yes"
    assert (row_of(out, "blocking")[5], row_of(out, "gapless")[5]) == ("2.00", "0.10")
    assert "\nRecommended: gapless\n  a CPU has no gaps to close" in out
    assert "same bits? a plain loop, first run" in bar
    assert "warm-up of gapless" in bar
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["unit"] == "target tokens"
    assert all(row["tokens_per_second"] > 0 for row in found["rows"])


@pytest.mark.slow
def test_the_files_workload_under_every_plan(compare):
    """Without --plans all plans are compared, and the file has the terminal's figures."""
    files = ["--json", "out.json", "--html", "page.html", "--perfetto", "t.json"]
    outcome = compare("--workload", "c.py:make", *QUICK, *files)

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.new_files == ["out.json", "page.html", "t.json"]
    # Without a terminal there are lines instead of a bar.
    assert "same bits? a plain loop, first run  1/4\n" in outcome.progress
    assert "warm-up of gapless" in outcome.progress
    assert outcome.out.rstrip().endswith(
        "written to out.json\nwritten to page.html; open it in a browser\n"
        "written to t.json; open it at ui.perfetto.dev"
    )
    page = Path("page.html").read_text(encoding="utf-8")
    assert [plan for plan in PLANS if f'<th scope="row">{plan}</th>' not in page] == []
    assert "<code>t.json</code>" in page
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    processes = [one["args"]["name"] for one in events if one["name"] == "process_name"]
    assert processes[::2] == [f"{plan}: host" for plan in PLANS]
    found = json.loads(Path("out.json").read_text())
    assert [row["plan"] for row in found["rows"]] == list(PLANS)
    assert (found["unit"], found["device"], found["is_accelerator"]) == ("rows", "cpu", False)
    assert found["reproducible"] is True
    assert found["settings"]["plans"] == list(PLANS)
    for row in found["rows"]:
        cells = row_of(outcome.out, row["plan"])
        assert cells[1] == "yes"
        assert float(cells[2]) == pytest.approx(row["ms_per_step"]["median"], abs=0.01)
        assert float(cells[5]) == pytest.approx(row["waits_per_step"], abs=0.01)
        assert len(row["ms_per_step"]["rounds"]) == 2
        assert row["settings"]["streams"] == PLANS[row["plan"]].streams
        assert (row["gap_share"], row["tokens_per_second"]) == (None, None)
    assert "rows/s" in outcome.out
    assert "claims" not in found


def test_the_example_of_an_image_classifier_is_compared(compare):
    """The image classifier of the examples is compared as its text says, in images a second."""
    example = ROOT / "examples" / "workload_classifier.py"
    assert "gapless compare --workload examples/workload_classifier.py:" in example.read_text()

    outcome = compare("--workload", f"{example}:make_workload", *QUICK, "--plans", "gapless,auto")

    assert (outcome.code, outcome.err) == (0, "")
    assert "images/s" in outcome.out
    assert row_of(outcome.out, "gapless")[1] == "yes"


def test_a_workload_without_a_unit_counts_steps(compare):
    """Weights without a unit are not shown as a speed: steps are counted."""
    outcome = compare("--workload", "c.py:unnamed", *QUICK, "--plans", "gapless")

    assert outcome.code == 0
    assert "steps/s" in outcome.out


def test_a_plan_that_computes_something_else_is_named_and_not_recommended(compare):
    """A plan that computes something else is timed, named and not recommended; the exit code is 1."""
    outcome = compare("--workload", "c.py:wrong_plan", *QUICK, "--plans", "blocking,gapless")

    assert outcome.code == 1
    assert "gapless against a plain loop: different, from step 1 on" in outcome.out
    assert (row_of(outcome.out, "blocking")[1], row_of(outcome.out, "gapless")[1]) == ("yes", "NO")
    assert "\nRecommended: blocking\n" in outcome.out
    assert "not gapless: it does not compute the same bits" in outcome.out


def test_a_workload_that_is_not_reproducible_is_told_so_and_timed(compare):
    """Where the workload does not equal itself no plan is judged and none is recommended."""
    options = ["--plans", "blocking,gapless", "--json", "out.json"]
    outcome = compare("--workload", "c.py:by_chance", *QUICK, *options)

    assert outcome.code == 1
    assert "a plain loop against itself: not reproducible, from step" in outcome.out
    assert "gapless against" not in outcome.out
    assert row_of(outcome.out, "blocking")[1] == row_of(outcome.out, "gapless")[1] == "?"
    assert "\nRecommended: none\n  the workload does not equal itself, so " in outcome.out
    assert "\n  seed all random numbers" in outcome.out
    found = json.loads(Path("out.json").read_text())
    assert (found["reproducible"], found["recommendation"]["plan"]) == (False, None)


def test_equal_bits_of_nan_are_no_verdict(compare):
    """Equal bits of NaN are no verdict: no plan is called the same, and none is recommended."""
    options = ["--plans", "blocking,gapless", "--json", "out.json"]
    outcome = compare("--workload", "c.py:nans", *QUICK, *options)

    assert outcome.code == 1
    assert "itself: inconclusive: no difference, but the loss of step 1 is nan\n" in outcome.out
    assert row_of(outcome.out, "blocking")[1] == row_of(outcome.out, "gapless")[1] == "?"
    assert "\nRecommended: none\n  loss of step 1 is nan, so " in outcome.out
    found = json.loads(Path("out.json").read_text())
    assert (found["reproducible"], found["recommendation"]["plan"]) == (None, None)


def test_bits_need_not_be_compared(compare):
    """With --verify-steps 0 plans are timed without a comparison of bits."""
    outcome = compare(
        "--workload", "c.py:wrong_plan", *QUICK, "--plans", "gapless", "--verify-steps", "0"
    )

    assert outcome.code == 0
    assert "bits      not compared" in outcome.out
    assert "\nRecommended: gapless\n" in outcome.out
    assert outcome.out.endswith("\n  bits were not compared\n")
    assert "against itself" not in outcome.out


def test_your_own_text_is_compared(compare, tiny_data):
    """Text of one's own is compared with the data and model options of gapless train."""
    sizes = ["--d-model", "16", "--heads", "2", "--ffn", "16", "--encoder-layers", "1"]
    outcome = compare(
        *("--data", tiny_data, *sizes, "--decoder-layers", "1", "--vocab-size", "300"),
        *("--batch-size", "16", "--plans", "interval", *QUICK),
    )

    assert (outcome.code, outcome.err) == (0, "")
    assert f"workload  model of gapless train on {tiny_data}" in outcome.out
    # Five batches of 16 pairs are an epoch.
    assert row_of(outcome.out, "interval")[5] == "0.20"


def test_an_epoch_is_as_long_as_a_round(tiny_data):
    """An epoch has the batches of a round, so that no worker makes one that nobody takes."""
    settings = {"data": str(tiny_data), "batch_size": 8, "vocab_size": 300, "d_model": 16}
    config = make_config({**settings, "heads": 2, "ffn": 16, "accumulate": 2})

    make = translation_workload(config, prepare(config), steps=3)
    workload = make(torch.device("cpu"), PLANS["gapless"].with_knobs(workers=0))

    # Whole updates, of two batches each.
    assert len(list(workload.batches)) == 4
    assert (workload.unit, workload.batches.num_workers) == ("target tokens", 0)


def test_bits_are_compared_on_batches_of_one_process(tiny_data):
    """Bits are compared without worker processes, which --workers asks for in timed rounds."""
    settings = {"data": str(tiny_data), "batch_size": 8, "vocab_size": 300, "d_model": 16}
    config = make_config({**settings, "heads": 2, "ffn": 16, "workers": 2})
    task, device = prepare(config), torch.device("cpu")

    one = in_one_process(config, task, plan=PLANS["full"], steps=3)(device)
    timed = translation_workload(config, task, steps=3)(device, PLANS["gapless"])

    assert (one.batches.num_workers, timed.batches.num_workers) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--plans", "fast"], ["unknown plan 'fast'", *PLANS]),
        (["--plans", " , "], ["plans must name at least one plan"]),
        (["--plans", "gapless,gapless"], ["plans names gapless more than once"]),
        (["--steps", "0"], ["steps must be at least 1, but is 0"]),
        (["--rounds", "0"], ["rounds must be at least 1"]),
        (["--warm-ups", "0"], ["--warmup-rounds must be at least 1"]),
        (["--verify-steps", "-1"], ["--verify-steps must be at least 0, but is -1"]),
        (["--tolerance", "-1"], ["tolerance must be a finite number"]),
        (["--seed", "-1", "--verify-steps", "0"], ["seed must be 0 to"]),
        (["--json", "."], ["--json . is a folder"]),
        (["--html", "absent/a.html"], ["--html absent/a.html lies in absent", "not exist"]),
        (["--perfetto", "absent/a"], ["--perfetto absent/a lies in absent", "not exist"]),
        (["--json", "absent/out.json"], ["--json absent/out.json lies in absent", "not exist"]),
        (["--device", "tpu"], ["unknown device 'tpu'"]),
        (["--precision", "fp16"], ["fp16 needs a GPU"]),
        (["--workload", "absent.py:make"], ["workload file absent.py does not exist"]),
        (["--workload", "c.py:make", "--precision", "bf16"], ["torch.autocast"]),
        (
            ["--workload", "c.py:make", "--d-model", "16", "--config", "c.yaml"],
            ["--workload brings a model and data of its own; leave out --config, --d-model"],
        ),
        (["--config", "absent.yaml"], ["config absent.yaml cannot be read"]),
        (["--data", "absent"], ["absent"]),
    ],
)
def test_flags_that_cannot_be(compare, arguments, parts):
    """A flag that cannot be is named with its value and range before anything runs."""
    outcome = compare(*arguments)

    outcome.check_refused(*parts)
    assert outcome.out == ""


def test_a_unit_that_is_no_text_is_refused(compare):
    """A unit that is no text is refused in one line."""
    outcome = compare("--workload", "c.py:unit_of_numbers")

    outcome.check_refused("unit of the workload is of type int, expected text")
