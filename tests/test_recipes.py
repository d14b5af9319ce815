"""Each recipe computes the same before and after, is really replayed, and is what its page says."""

from __future__ import annotations

import functools
import re

import pytest
import torch

import recipes


# Torch's compiler takes its time.
SLOW = {"compiled": [pytest.mark.slow]}

every_page = pytest.mark.parametrize("name", recipes.NAMES)


def recipe(name, *marks):
    """Return a recipe as a parameter; frameworks come with the slow tests."""
    if name in recipes.FRAMEWORKS:
        absent = not recipes.is_installed(name)
        marks += (pytest.mark.slow, pytest.mark.skipif(absent, reason="its framework is absent"))
    # What a script does on the simulated device, two tests look at: in one process.
    return pytest.param(name, marks=(pytest.mark.xdist_group(f"recipe {name}"), *marks))


every_recipe = pytest.mark.parametrize("name", list(map(recipe, recipes.NAMES)))


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("name", [recipe(name, *SLOW.get(name, ())) for name in recipes.NAMES])
def test_both_scripts_compute_the_same_on_a_cpu(name):
    """Every printed digit and every bit of every weight is the same; only the report is more."""
    with torch._inductor.config.patch(compile_threads=1):
        before, after = (recipes.run_recipe(name, kind, "cpu") for kind in ("before", "after"))
    torch.compiler.reset()

    assert recipes.changed_bits(before, after) == []
    assert [report.num_eager > 0 for report in after.reports()] == [True] * len(after.reports())


@functools.cache
def simulated_run(name, kind):
    """Return what a script did on a simulated device of its own, and the races found there."""
    with recipes.simulated() as device:
        run = recipes.run_recipe(name, kind, recipes.SIMULATED)
    return run, list(device.report.races)


@pytest.mark.quick_cases(2)
@every_recipe
def test_both_scripts_compute_the_same_on_the_simulated_device(name):
    """Every bit is the same where steps are replayed, and nothing is refused."""
    before, _ = simulated_run(name, "before")
    after, races = simulated_run(name, "after")

    assert recipes.changed_bits(before, after) == []
    assert after.reports()
    assert [report.refusals for report in after.reports()] == [[]] * len(after.reports())
    assert min(report.num_replays for report in after.reports()) > 0
    assert races == []


def page(name):
    return (recipes.PAGES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.quick_cases(4)
@every_recipe
def test_the_page_shows_how_the_scripts_differ_and_what_the_report_says(name):
    """The first block is the difference of the files, the second the report; else run `-m recipes`."""
    report = recipes.report_of(simulated_run(name, "after")[0])

    assert recipes.blocks(page(name))[:2] == [("diff", recipes.difference(name)), ("", report)]


@every_page
def test_the_page_links_both_scripts(name):
    """A reader finds the whole scripts."""
    links = re.findall(r"\]\(../../examples/recipes/(\w+)\.py\)", page(name))

    assert links == [f"{name}_before", f"{name}_after"]


def test_the_index_lists_every_recipe_once():
    """Each pair of scripts has a page, which the index links, and there are no others."""
    listed = re.findall(r"^\| \[.*?\]\((\w+)\.md\)", page("README"), re.MULTILINE)
    scripts = sorted(path.stem for path in recipes.SCRIPTS.glob("*.py"))
    pages = {path.stem for path in recipes.PAGES.glob("*.md")}

    assert sorted(listed) == recipes.NAMES
    assert pages == {"README", "report", "frameworks", *recipes.NAMES}
    assert scripts == sorted(f"{name}_{kind}" for name in listed for kind in ("before", "after"))
