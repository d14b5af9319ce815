"""What the integrations print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from integrations.frameworks import FRAMEWORKS, is_installed
from integrations.harness import PLAIN


pytestmark = pytest.mark.slow

# What is printed may be printed once a process.
_PRINTS = """
import json, sys, warnings
from integrations.cases import CASES
from integrations.harness import run
from integrations.places import place_of

warnings.simplefilter("ignore")
said = {}
for case in CASES:
    if str(case) in sys.argv[1:]:
        plain = run(case, place_of("simulated", is_plain=True)).printed
        quiet = run(case, place_of("simulated", is_plain=False, options={"quiet": True})).printed
        said[str(case)] = [plain, quiet, run(case, place_of("simulated", is_plain=False)).printed]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def printed():
    """What each plain program prints on stderr: as written, captured and quiet, and captured."""
    if not all(map(is_installed, FRAMEWORKS)):
        pytest.skip("a framework is absent")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", _PRINTS, *PLAIN],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", PLAIN)
def test_an_integration_says_what_it_does_once(printed, case):
    """A few lines on stderr, among them one of what it does not do; none of them with `quiet`."""
    plain, quiet, loud = printed[case]
    assert quiet == plain
    said = [line for line in loud.splitlines() if line not in plain.splitlines()]
    assert 2 <= len(said) <= 12, loud
    assert sorted(said) == sorted(set(said))
    assert "gapless" in " ".join(said)
    assert re.search(r"\bnot\b", " ".join(said))
