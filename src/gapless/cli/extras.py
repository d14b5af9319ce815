"""Tells which extra a command lacks, before it begins."""

from __future__ import annotations

from importlib.util import find_spec

from gapless.errors import UserError


# Packages by their import names; pyproject.toml lists them by their names on the package index. Not
# langcodes: plain codes are read without it, and what needs it says so.
PACKAGES = {
    "nmt": ("numpy", "sentencepiece", "sacrebleu", "safetensors", "yaml", "tensorboard"),
    "cli": ("tqdm", "shtab"),
}


def require_extra(extra: str, what: str) -> None:
    """Check that the packages of an extra are installed.

    Args:
        extra: its name.
        what: needs it, such as `gapless train`.

    Raises:
        UserError: some are not; the message says how to install them.
    """
    missing = [name for name in PACKAGES[extra] if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{what} needs the extra {extra}, of which {', '.join(missing)} cannot be found; "
            f'run pip install "gapless[{extra}]"'
        )
