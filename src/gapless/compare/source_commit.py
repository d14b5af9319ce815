"""Which commit of gapless measured something."""

from __future__ import annotations

import subprocess
from pathlib import Path


def source_commit() -> str | None:
    """Return the commit of gapless's source tree, with a + if it was changed; None outside one."""
    # Of this file: ROOT/src/gapless/compare/source_commit.py.
    package = Path(__file__).resolve().parents[1]
    root = package.parents[1]
    # An installed package may lie in somebody else's repository, whose commit says nothing here.
    if package != root / "src" / "gapless" or not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
