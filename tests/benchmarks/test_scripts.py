"""Published scripts and their variants: edits that fit, same bits, and figures of what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from benchmarks.scripts import __main__ as runner, bits, race, table, variants
from benchmarks.scripts.race import first_fast
from benchmarks.scripts.variants import EditError, changed_lines, edited, sections, source_of

import gapless
from gapless.device.find import find_device
from gapless.testing import SimulatedDevice


ROOT = Path(__file__).parents[2]

CPU = find_device("cpu")

OPTIONS = race.Options(
    device="cpu", rounds=1, is_small=True, setup_limit=60.0, folder=Path("unused")
)


# ------------------------------------------------------------------------------------ variants


@pytest.mark.parametrize("name", variants.NAMES)
def test_every_variant_fits_its_script(name):
    """Every script has all of them, each a program; capture in place adds four lines at most."""
    for variant in variants.VARIANTS:
        compile(source_of(name, variant), f"{name}.py", "exec")

    added = changed_lines(name, variants.IN_PLACE)["added"]
    assert 2 <= added <= 4
    assert "gapless" not in source_of(name, variants.AS_WRITTEN)
    assert set(sections((variants.FOLDER / f"{name}.diff").read_text())) == {
        variant for variant in variants.VARIANTS if variant != variants.AS_WRITTEN
    }


def test_a_hunk_stands_behind_the_one_before_it():
    """Lines that occur twice are found in the rest of the script."""
    hunks = sections("+++ one\n@@\n a\n-b\n+c\n@@\n a\n+d\n")["one"]

    assert edited("a\nb\na\n", hunks) == "a\nc\na\nd\n"


@pytest.mark.parametrize(("text", "times"), [("x\n", 0), ("a\na\n", 2)])
def test_a_hunk_that_does_not_fit_is_an_error(text, times):
    """Whether its lines are missing, or might be meant twice."""
    with pytest.raises(EditError, match=f"found {times} times, expected once:\na"):
        edited(text, sections("+++ one\n@@\n a\n+b\n")["one"])


def test_a_line_of_a_diff_that_means_nothing_is_an_error():
    """Such as one without a sign."""
    with pytest.raises(EditError, match="'a' is neither a hunk nor a line of one"):
        sections("+++ one\n@@\na\n")


def test_a_variant_that_is_not_there_is_named(capsys):
    """With those that are."""
    assert runner.main(["--show", "mnist", "faster"]) == 2
    assert "mnist has no variant 'faster', but prefetch, in-place" in capsys.readouterr().err


def test_lines_are_counted_without_empty_ones(monkeypatch):
    """A line that is changed is removed and added."""
    texts = {variants.AS_WRITTEN: "a\nb\nc\n", "other": "a\n\nB\nc\nd\n"}
    monkeypatch.setattr(variants, "source_of", lambda name, variant: texts[variant])

    assert changed_lines("any", "other") == {"added": 2, "removed": 1}


def test_a_variant_is_shown_as_a_diff(capsys):
    """Between the script as written and the variant."""
    assert runner.main(["--show", "mnist", "in-place"]) == 0
    shown = capsys.readouterr().out
    assert "--- mnist.py as-written\n+++ mnist.py in-place\n" in shown
    assert "+    gapless.capture(model, optimizer)\n" in shown


# ---------------------------------------------------------------------------------------- bits


def trained(name, variant, *, device=CPU, steps=4):
    """Return all that a variant gives; skip it where its package is missing."""
    try:
        variants.load(name, variant)
    except ImportError as error:
        pytest.skip(str(error))
    with warnings.catch_warnings():
        # What torch says of its own schedulers and containers is none of this.
        warnings.simplefilter("ignore")
        return bits.trained(name, variant, device=device, steps=steps, is_small=True)


def difference(ours, theirs):
    return bits.first_difference(ours, theirs)


@pytest.fixture
def few_threads(numerics):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", variants.NAMES)
def test_variants_have_the_bits_of_the_script(name, few_threads):
    """With prefetch and deferred loss; as a step and in place, as each edit without captures."""
    written = trained(name, variants.AS_WRITTEN)
    found = {one: trained(name, one) for one in (variants.WHOLE_STEP, variants.IN_PLACE)}
    with bits.capture_off():
        edited_alone = {one: trained(name, one) for one in found}

    assert difference(written, trained(name, variants.PREFETCH)) is None
    for variant, its in found.items():
        assert difference(edited_alone[variant], its) is None
    # What it logged, and its weights.
    assert any(" of model 0" in title for title in written)
    assert any(title.endswith(" 1") for title in written)
    assert not any("nan" in value for value in written.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "word_lm", "vit", "nanogpt"])
def test_steps_are_replayed_on_the_simulated_device(name, few_threads, monkeypatch):
    """With the bits of the same steps run as written, where device work is late."""
    found, reports = on_simulated_device(name, variants.WHOLE_STEP, monkeypatch)
    with bits.capture_off():
        edited_alone, _ = on_simulated_device(name, variants.WHOLE_STEP, monkeypatch)

    assert difference(edited_alone, found) is None
    assert all(report["num_replays"] > report["num_eager"] for report in reports), reports


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "word_lm", "vit", "nanogpt", "speech", "dcgan"])
def test_parts_are_replayed_in_place_on_the_simulated_device(name, few_threads, monkeypatch):
    """With the bits of the same loop run as written."""
    found, reports = on_simulated_device(name, variants.IN_PLACE, monkeypatch)
    with bits.capture_off():
        edited_alone, _ = on_simulated_device(name, variants.IN_PLACE, monkeypatch)

    assert difference(edited_alone, found) is None
    assert any(report["num_replays"] for report in reports), reports


def on_simulated_device(name, variant, monkeypatch):
    """Return what a variant gives there, and the reports of what was captured."""
    device = SimulatedDevice(scheduler="asap")
    capture, prefetch, losses = gapless.capture, gapless.prefetch, gapless.DeferredLoss
    with monkeypatch.context() as patched, device:
        patched.setattr(gapless, "capture", lambda *given: capture(*given, device=device))
        patched.setattr(gapless, "prefetch", lambda loader, _: prefetch(loader, device))
        patched.setattr(gapless, "DeferredLoss", lambda _, **options: losses(device, **options))
        with bits.Captured() as captured:
            found = trained(name, variant, device=device, steps=6)
            return found, captured.reports()


@pytest.mark.slow
@pytest.mark.parametrize("name", variants.NAMES)
def test_variants_for_a_gpu_run_with_stand_ins(name, few_threads, monkeypatch):
    """Graphs that call the module, and a compiler that changes nothing: the loop logs what it did."""
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", graphed)
    monkeypatch.setattr(torch, "compile", lambda model, mode=None: model)

    written = trained(name, variants.AS_WRITTEN)

    for variant in variants.GPU_ONLY:
        assert written.keys() == trained(name, variant).keys()


def graphed(callables, samples, *, allow_unused_input=False):
    """Return the modules, each of which takes its samples."""
    several = isinstance(callables, tuple)
    pairs = zip(callables, samples, strict=True) if several else [(callables, samples)]
    for module, sample in pairs:
        with torch.random.fork_rng(), torch.no_grad():
            module(*sample)
    return callables


def test_the_first_difference_is_named():
    """Or that there are not as many numbers."""
    assert difference({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) is None
    assert difference({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == "b"
    assert difference({"a": "1"}, {"a": "1", "b": "2"}) == "1 against 2 numbers and tensors"


def test_digests_tell_bits_types_and_shapes_apart():
    """Zero and minus zero are equal numbers with other bits."""
    zero = torch.zeros(2)
    others = [-zero, zero.double(), zero.reshape(1, 2)]

    assert bits.digest(zero) == bits.digest(zero.clone())
    assert len({bits.digest(value) for value in [zero, *others]}) == 4


# ------------------------------------------------------------------------------------- figures


def epoch(marks, end):
    return {"marks": marks, "end": end}


def test_the_first_fast_step_ends_the_slow_ones():
    """Steps of 3, 2, 0.1, 0.1 ... seconds: fast from the third on, which ends after 5.1 s."""
    marks = [0.0, 3.0, 5.0, *(5.0 + 0.1 * number for number in range(1, 9))]

    assert first_fast([epoch(marks, 9.0)], 0.1) == pytest.approx(5.1)


def test_a_fast_step_between_slow_ones_is_not_the_first():
    """Nor are those of an epoch that is slow; the one before it has passed by then."""
    slow = epoch([1.0, 1.1, 2.1, 3.1, 4.1], 6.0)
    fast = epoch([0.5, 0.6, 0.7, 0.8], 1.0)

    assert first_fast([slow, fast], 0.1) == pytest.approx(6.6)
    assert first_fast([slow], 0.1) is None


def entry(name, **speeds):
    """Return an entry as the runner writes it, of speeds by variant."""
    found = {
        variant.replace("_", "-"): {
            "problem": None,
            "lines": {"added": 3, "removed": 1},
            "bits": "same",
            "steps_per_s": speed,
            "middle_half": [speed, speed],
            "busy": 0.25,
            "waits_per_step": 1.5,
            "memory": {"reserved": 2**30, "allocated": 0},
            "first_fast_s": 4.0,
            "reports": [{"num_replays": 3, "num_eager": 1}],
        }
        for variant, speed in speeds.items()
    }
    facts = dict.fromkeys(("hardware", "versions", "commit", "date"), "x")
    return {**facts, "script": name, "variants": found}


def test_the_table_compares_with_the_script_as_written():
    """The newest entry of each script counts; the mean is geometric."""
    first, second = entry("one", as_written=1.0), entry("two", as_written=10.0, in_place=80.0)
    again = entry("one", as_written=4.0, in_place=8.0)

    text = table.table([first, second, again])

    assert "| one | 4.0 | 25% |  | 2.00 |  |  |  |  |" in text
    assert "| two | 10.0 | 25% |  | 8.00 |  |  |  |  |" in text
    assert "| geometric mean (scripts) | | |  | 4.00 (2) |  |  |  |  |" in text
    row = "| one | in-place | +3 -1 | same | 8.0 | 8.0 to 8.0 | 1.50 | 25% | 1.00 | 4.0 | 75% |"
    assert row in text


def test_what_failed_or_was_left_out_is_told_below_the_table():
    """With the reason; a compiler's other bits are no news."""
    made = entry("one", as_written=4.0, whole_step=8.0, compile=5.0)
    made["variants"]["whole-step"] |= {"bits": "different: loss 3"}
    made["variants"]["compile"] |= {"bits": "different: loss 0"}
    made["variants"]["in-place"] = {"left_out": "no GPU"}
    lines = {"added": 1, "removed": 0}
    made["variants"]["prefetch"] = {"problem": "ValueError: no", "lines": lines}

    text = table.table([made])

    assert "one, whole-step: different: loss 3" in text
    assert "one, in-place: no GPU" in text
    assert "one, prefetch: ValueError: no" in text
    assert "one, compile" not in text
    assert runner.is_wrong(made)
    assert not runner.is_wrong(entry("one", as_written=4.0, prefetch=5.0))


@pytest.mark.parametrize("variant", variants.GPU_ONLY)
def test_variants_for_a_gpu_are_left_out_on_a_cpu(variant):
    """And the reason is told."""
    assert race.reason_to_leave_out(variant, OPTIONS) == "it needs a GPU"
    assert race.reason_to_leave_out(variants.AS_WRITTEN, OPTIONS) is None


def test_a_script_whose_package_is_missing_is_skipped(monkeypatch):
    """With a word."""

    def load(name, variant):
        raise ImportError("No module named 'transformers'")

    monkeypatch.setattr(runner, "load", load)
    told = []

    assert runner.race_of("bert", None, options=OPTIONS, tell=told.append) is None
    assert told == ["bert: skipped, No module named 'transformers'"]


@pytest.mark.slow
def test_the_runner_measures_appends_and_prints(tmp_path):
    """Each variant in a process of its own; one that fails stays in the file with its reason."""
    file = tmp_path / "found.json"
    file.write_text("[]")
    command = [sys.executable, "-m", "benchmarks.scripts", "--small", "--rounds", "1"]
    command += ["--only", "word_lm", "--variants", "whole-step", "compile"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        [*command, "--json", str(file), "--logs", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(file.read_text(encoding="utf-8"))
    assert {"hardware", "versions", "commit", "command", "rounds", "steps"} <= set(found)
    ran = {v: one for v, one in found["variants"].items() if "left_out" not in one}
    assert list(ran) == [variants.AS_WRITTEN, variants.WHOLE_STEP]
    assert {one["bits"] for one in ran.values()} == {bits.SAME}
    assert all(one["steps_per_s"] > 0 and one["waits"] == 0 for one in ran.values())
    (report,) = ran[variants.WHOLE_STEP]["reports"]
    assert report["of"] == "step"
    assert report["num_eager"] > 0
    assert "| word_lm | whole-step | +17 -12 | same |" in done.stdout


@pytest.mark.slow
def test_a_process_that_fails_does_not_stop_the_others(tmp_path):
    """What it raised is its result."""
    options = race.Options(
        device="cpu", rounds=1, is_small=True, setup_limit=60.0, folder=tmp_path
    )
    told = []
    made = race.Race("mnist", [variants.AS_WRITTEN], steps=2, options=options, tell=told.append)
    task = race.worker.Work(name="mnist", variant="broken", device="cpu", steps=2, is_small=True)
    made.entrants["broken"] = race.Entrant(task, options)

    made.begin_to_compile()
    made.set_up()
    made.take_rounds()

    problem = "EditError: mnist has no variant 'broken', but prefetch"
    assert made.entrants["broken"].problem.startswith(problem)
    assert len(made.entrants[variants.AS_WRITTEN].turns) == 1
    assert any("broken: EditError" in line for line in told)
    for entrant in made.entrants.values():
        entrant.problem = entrant.problem or "the test is over"
    made.close()
