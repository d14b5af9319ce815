"""Launch-bound scripts and their variants: edits that fit, same bits, and figures of what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from benchmarks.launch_bound import bits, checks, table, variants
from benchmarks.launch_bound.variants import changed_lines, sections, source_of

import gapless
from gapless.device.find import find_device
from gapless.testing import SimulatedDevice


ROOT = Path(__file__).parents[2]

CPU = find_device("cpu")

NEW = ("sac", "pinn", "act", "molecules", "nbeats", "lora")

# Variants with edits of their own; the rest are the whole step with another decorator.
WITH_A_SECTION = set(variants.VARIANTS) - {variants.AS_WRITTEN, *variants.DECORATORS}


# ------------------------------------------------------------------------------------ variants


@pytest.mark.parametrize("name", variants.NAMES)
def test_every_variant_fits_its_script(name):
    """Every script has all of them, each a program; capture in place adds four lines at most."""
    for variant in variants.VARIANTS:
        compile(source_of(name, variant), f"{name}.py", "exec")

    added = changed_lines(name, variants.IN_PLACE)["added"]
    assert 2 <= added <= 4
    assert "gapless" not in source_of(name, variants.AS_WRITTEN)
    found = set(sections((variants.FOLDER / f"{name}.diff").read_text()))
    assert found == {*WITH_A_SECTION, variants.PEERS}


@pytest.mark.parametrize("name", variants.NAMES)
def test_peers_have_the_edits_of_the_whole_step(name):
    """They differ from the same edits without a capture in decorators and an import alone."""
    alone = source_of(name, variants.EQUAL_EDITS)
    assert "@gapless.capture" not in alone
    for variant, decorator in variants.DECORATORS.items():
        if decorator:
            lines = source_of(name, variant).splitlines()
            assert decorator in map(str.strip, lines)
            kept = [line for line in lines if line.strip() != decorator]
            kept = [line for line in kept if not line.startswith("from tensordict")]
            assert kept == alone.splitlines()


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
@pytest.mark.parametrize("name", ["gcn", "word_lm", "vit", "nanogpt", *NEW])
def test_steps_are_replayed_on_the_simulated_device(name, few_threads, monkeypatch):
    """With the bits of the same steps run as written, where device work is late."""
    found, reports = on_simulated_device(name, variants.WHOLE_STEP, monkeypatch)
    with bits.capture_off():
        edited_alone, _ = on_simulated_device(name, variants.WHOLE_STEP, monkeypatch)

    assert difference(edited_alone, found) is None
    assert all(report["num_replays"] > report["num_eager"] for report in reports), reports


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "word_lm", "vit", "speech", "dcgan", *NEW])
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
    """Graphs that call the module, and compilers that change nothing: the loop logs what it did."""
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", graphed)
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: None)
    package, part = types.ModuleType("tensordict"), types.ModuleType("tensordict.nn")
    part.CudaGraphModule = package.nn = compiled
    monkeypatch.setitem(sys.modules, "tensordict", package)
    monkeypatch.setitem(sys.modules, "tensordict.nn", part)

    written = trained(name, variants.AS_WRITTEN)

    for variant in (*variants.GPU_ONLY, variants.EQUAL_EDITS):
        assert written.keys() == trained(name, variant).keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", variants.CHANGING)
def test_batches_of_changing_shapes_have_the_bits_of_the_script(name, few_threads):
    """As a step and in place, as each edit without captures."""
    try:
        variants.load(name, variants.AS_WRITTEN)
    except ImportError as error:
        pytest.skip(str(error))
    settings = {"device": CPU, "steps": 4, "is_small": True, "is_changing": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for variant in (variants.IN_PLACE, variants.WHOLE_STEP):
            found = bits.trained(name, variant, **settings)
            with bits.capture_off():
                assert difference(bits.trained(name, variant, **settings), found) is None


def compiled(given=None, *, mode=None):
    """Return a function or module as it is; as a decorator, too."""
    return given if given is not None else lambda step: step


def graphed(callables, samples, *, allow_unused_input=False):
    """Return the modules, each of which takes its samples."""
    several = isinstance(callables, tuple)
    pairs = zip(callables, samples, strict=True) if several else [(callables, samples)]
    for module, sample in pairs:
        with torch.random.fork_rng(), torch.no_grad():
            module(*sample)
    return callables


def test_digests_tell_bits_types_and_shapes_apart():
    """Zero and minus zero are equal numbers with other bits."""
    zero = torch.zeros(2)
    others = [-zero, zero.double(), zero.reshape(1, 2)]

    assert bits.digest(zero) == bits.digest(zero.clone())
    assert len({bits.digest(value) for value in [zero, *others]}) == 4


# ------------------------------------------------------------------------------------- figures


def epoch(marks, end):
    return {"marks": marks, "end": end}


def entry(name, **speeds):
    """Return an entry as the runner writes it, of speeds by variant."""
    found = {
        variant.replace("_", "-"): {
            "problem": None,
            "lines": {"added": 3, "removed": 1},
            "bits": "same",
            "steps_per_s": speed,
            "first": {"steps": 0, "seconds": 30.0},
        }
        for variant, speed in speeds.items()
    }
    facts = dict.fromkeys(("hardware", "versions", "commit", "date", "command"), "x")
    return {**facts, "script": name, "variants": found}


def test_ratios_are_taken_within_one_call():
    """The newest call that timed both counts; the mean is geometric, and changing shapes are not in it."""
    first = entry("one", as_written=1.0, compile=3.0, whole_step=6.0)
    again = entry("one", as_written=4.0, in_place=8.0, whole_step=32.0)
    second = entry("two", as_written=10.0, in_place=80.0)
    changing = {**entry("two", as_written=1.0, in_place=1.0), "is_changing": True}

    text = table.table([first, second, again, changing])

    assert "| one | 4.0 | 2.00 | 8.00 | 2.00 | 8.00 | 3.00 |" in text
    assert "| two | 10.0 | 8.00 |  | 8.00 |  |  |" in text
    assert "| two, changing shapes | 1.0 | 1.00 |  | 1.00 |  |  |" in text
    assert "shapes | | 4.00x (2) | 8.00x (1) | 4.00x (2) | 8.00x (1) | 3.00x (1) |" in text
    # Of one call too: 6 over 3, not 32.
    assert "| one |  | 2.00 (whole-step over compile) |" in text


def test_the_rows_of_readme_are_means_of_fixed_shapes():
    """And how often the whole step is ahead of the fastest with equal edits."""
    one = entry("one", as_written=1.0, whole_step_equal=4.0, cudagraph_module=2.0)
    two = entry("two", as_written=1.0, whole_step_equal=4.0, cudagraph_module=8.0)

    text = "\n".join(table.readme_rows([one, two]))

    assert "2 launch-bound scripts, whole step, over the script as published" in text
    assert "with the same edits | x | 1.00x, ahead in 1 of 2 |" in text


# --------------------------------------------------------------------------------------- checks


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nbeats", "gcn", "ppo"])
def test_every_change_has_its_effect_without_captures(name, few_threads):
    """A weight, a rate unless the script sets it itself, and an attribute; what is frozen is silent."""
    settings = {"device": CPU, "steps": 4, "is_small": True}

    found = {}
    for one in checks.checked(name, variants.WHOLE_STEP, settings):
        found |= one

    assert found["bits"] == "same"
    assert found["weight"] == found["attribute"] == "right"
    assert found["rate"] == ("-" if name == "ppo" else "right")


def run(tmp_path, *options):
    """Run the benchmark on a small script; return the process and what is in its file."""
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.launch_bound", "--tiny", "--only", "word_lm"]
    command += ["--rounds", "1", "--first", "0", "--warm-up", "0", "--seconds", "0.1", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--json", str(file), "--logs", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done, json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_runner_measures_appends_and_prints(tmp_path):
    """Each variant in a process of its own; what was there before stays."""
    former = entry("word_lm", as_written=1.0)
    (tmp_path / "found.json").write_text(json.dumps([former]))

    done, (kept, found) = run(tmp_path, "--variants", "whole-step", "compile", "--processes", "3")

    assert done.returncode == 0, done.stdout + done.stderr
    assert kept == former
    assert {"hardware", "versions", "commit", "command", "rounds", "steps"} <= set(found)
    ran = {v: one for v, one in found["variants"].items() if "left_out" not in one}
    assert list(ran) == [variants.AS_WRITTEN, variants.WHOLE_STEP]
    assert {one["bits"] for one in ran.values()} == {variants.SAME}
    assert all(one["steps_per_s"] > 0 and one["first"]["steps"] > 0 for one in ran.values())
    assert ran["whole-step"]["weight"] == ran["whole-step"]["attribute"] == "right"
    assert "| word_lm | same | same; right, -, right |" in done.stdout
