"""Which frameworks are installed: tests of a framework that is absent are skipped."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import warnings


TRANSFORMERS, LIGHTNING, ACCELERATE = "transformers", "lightning", "accelerate"
FRAMEWORKS = (TRANSFORMERS, LIGHTNING, ACCELERATE)

# Nothing is downloaded: models are built from configurations.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def is_installed(name):
    """Whether the framework can be imported, without importing it."""
    return importlib.util.find_spec(name) is not None


def version_of(name):
    """Return the version of an installed package, or "absent"."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def load(*names):
    """Import modules whose imports warn, without their warnings."""
    os.environ.update(_OFFLINE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [importlib.import_module(name) for name in names]
