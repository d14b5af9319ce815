"""Leave, and say so, where a framework is missing."""

import importlib.util


def needs(name):
    if importlib.util.find_spec(name) is None:
        print(f"skipped: {name} is not installed")
        raise SystemExit(0)
