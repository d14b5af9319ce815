"""Runs a script of test_late_scripts: `late_script.py written|late SCRIPT`, with late reads or without.

All tensors of the process are taken for the device's, whose copies come late. What the script calls
`afterwards`, a function, is called when the variant is gone.
"""

import runpy
import sys

from gapless.trials.late_reads import LateReads
from late_device import LateCopies


way, script = sys.argv[1:]
variant = LateReads(LateCopies(seed=5, eagerness=0.03))
if way == "late":
    variant.start(lambda optimizer: None)
names = runpy.run_path(script, run_name="__main__")
if way == "late":
    variant.stop()
    variant.close()
names.get("afterwards", lambda: None)()
