"""What the integrations print, and the versions that they are tested with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from hazards.harness import SIMULATED
from integrations.cases import CASES
from integrations.frameworks import ACCELERATE, LIGHTNING, TRANSFORMERS
from integrations.matrix import as_text, rows


pytestmark = pytest.mark.slow

# One plain program of each framework.
_PLAIN = {
    TRANSFORMERS: "hf_training-model_of_ones_own",
    LIGHTNING: "lightning_training-network",
    ACCELERATE: "accelerate_loops-plainest",
}

# What is printed may be printed once a process.
_PRINTS = """
import json, sys, warnings
from integrations.cases import CASES
from integrations.harness import run
from integrations.places import place_of

warnings.simplefilter("ignore")
(case,) = [case for case in CASES if str(case) == sys.argv[1]]
plain = run(case, place_of("simulated", is_plain=True)).printed
quiet = run(case, place_of("simulated", is_plain=False, options={"quiet": True})).printed
loud = run(case, place_of("simulated", is_plain=False)).printed
print(json.dumps([plain, quiet, loud]))
"""


@pytest.mark.parametrize("framework", _PLAIN)
def test_an_integration_says_what_it_does_once(framework):
    """A few lines on stderr, among them one of what it does not do; none of them with `quiet`."""
    pytest.importorskip(framework)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", _PRINTS, _PLAIN[framework]],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    plain, quiet, loud = json.loads(done.stdout.splitlines()[-1])
    assert quiet == plain
    said = [line for line in loud.splitlines() if line not in plain.splitlines()]
    assert 2 <= len(said) <= 12, loud
    assert sorted(said) == sorted(set(said))
    assert "gapless" in " ".join(said)
    assert re.search(r"\bnot\b", " ".join(said))


def test_the_versions_are_printed(capsys):
    """The table of versions tells how many of the plain programs are right and replayed."""
    chosen = [case for case in CASES if str(case) in _PLAIN.values()]
    if not chosen:
        pytest.skip("no framework is installed")
    table = rows(SIMULATED, chosen)
    with capsys.disabled():
        print(f"\n{as_text(table)}")
    assert [row[-2:] for row in table if row[-3]] == [(1, 1)] * len(chosen)
