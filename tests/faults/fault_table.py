"""Let every fault happen to a real run, and print its exit code, seconds and message.

    cd tests && PYTHONPATH=.:../src python -m faults.fault_table

The seconds are those from the fault until the process and all that it started are gone; a silent
worker is found after `--loader-timeout 2`. Exits with 1 if one ended otherwise than it has to.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from faults.faults import FAULTS, try_fault
from faults.processes import Launcher
from faults.runs import train_options, write_data


def main():
    folder = Path(tempfile.mkdtemp(prefix="fault-table-"))
    data, reference = write_data(folder / "data"), folder / "reference"
    launcher = Launcher()
    launcher.run(*train_options(data, reference), folder=folder).check_done()
    failed = 0
    print(f"{'fault':50}{'exit':>5}{'seconds':>9}  {'outcome':10}message")
    for number, fault in enumerate(FAULTS):
        own = folder / str(number)
        own.mkdir()
        try:
            ended, seconds, wrong = try_fault(fault, launcher, own, data=data, reference=reference)
        except (pytest.fail.Exception, pytest.skip.Exception) as stuck:
            print(f"{fault.name:50}{stuck}", flush=True)
            failed += isinstance(stuck, pytest.fail.Exception)
            continue
        outcome = "; ".join(wrong) or ("same bits" if fault.is_resumed else "-")
        message = (ended.errors or [""])[0].replace(f"{own}/", "")
        print(f"{fault.name:50}{ended.code:5}{seconds:9.1f}  {outcome:10}{message}", flush=True)
        failed += bool(wrong)
    launcher.close()
    shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
