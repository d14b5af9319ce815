"""Where and on what something was measured: it stands beside every number."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gapless.device.find import find_device
from gapless.device.instruments.processor import num_cores


_PACKAGES = ("torch", "tensordict", "accelerate", "lightning", "pytorch-lightning", "transformers")


def place_and_time(device: str, *, module: str) -> dict[str, str]:
    """Return hardware, host, versions, commit, date, and the command of this process.

    Args:
        device: name of the device.
        module: that was run, as `python -m` takes it.
    """
    return {
        "hardware": find_device(device).describe(),
        "host": f"{platform.machine()}, {num_cores()} cores, Python {platform.python_version()}",
        "versions": _versions(),
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": f"python -m {module} {shlex.join(sys.argv[1:])}".strip(),
    }


def heading(title: str, facts: dict[str, Any]) -> list[str]:
    """Return the first lines of a Markdown file: what was measured, where, and by which command."""
    return [
        f"# {title}",
        "",
        f"{facts['hardware']}, {facts['versions']}, commit {facts['commit']}, {facts['date']}.",
        f"`{facts['command']}`",
        "",
    ]


def _versions() -> str:
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
