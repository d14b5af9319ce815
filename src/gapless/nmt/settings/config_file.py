"""Settings as YAML, the format of `config.yaml`: one key a flag, each with its help as a comment.

Importing this file must load neither torch nor yaml: the command line imports it for its help.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import asdict, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from _typeshed import DataclassInstance


def to_yaml(config: DataclassInstance) -> str:
    """Return settings as commented YAML, one key a field.

    Args:
        config: a dataclass whose fields have a `help` in their metadata.
    """
    import yaml

    lines = []
    values = asdict(config)
    for item in fields(config):
        text = yaml.safe_dump({item.name: values[item.name]}, allow_unicode=True).strip()
        lines.append(f"{text}  # {item.metadata['help']}\n")
    return "".join(lines)


def read_settings(file: Path, settings: type[DataclassInstance]) -> dict[str, Any]:
    """Return the settings in a file, checked for their names and types.

    Args:
        file: written by `to_yaml`, or by hand.
        settings: the class whose fields a file may set.

    Raises:
        UserError: the file cannot be read, or has an unknown setting or one of another type.
    """
    values = _values_in(file)
    known = {item.name for item in fields(settings)}
    unknown = sorted(set(map(str, values)) - known)
    if unknown:
        named = ", ".join(f"{name}{_meant_by(name, known)}" for name in unknown)
        raise UserError(f"config {file} has unknown settings {named}; correct or remove them")
    hints = get_type_hints(settings)
    return {
        name: _typed(value, hints[name], f"{name} in {file}") for name, value in values.items()
    }


def _values_in(file: Path) -> dict[str, Any]:
    """Return what a file of settings says, each value as the text that stands there.

    YAML itself reads 7e-4 as text, 010 as eight, 1:30 as ninety and no as false.

    Raises:
        UserError: the file cannot be read, or holds no settings.
    """
    import yaml

    from gapless.nmt.data.text_files import decode_text

    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UserError(f"config {file} cannot be read: {error.strerror}") from error
    text = decode_text(raw, name=f"config {file}")
    try:
        values = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"config {file} is not YAML: {reason}") from error
    if not isinstance(values, dict):
        raise UserError(f"config {file} holds no settings, expected lines such as lr: 0.001")
    return values


def shown(value: Any) -> str:
    """Return a setting as a file has it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _meant_by(name: str, known: Collection[str]) -> str:
    """Return a hint at the nearest of the known settings; empty if none is near."""
    nearest = get_close_matches(name.replace("-", "_"), list(known), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


# Characters of a wrong value that are shown.
_MOST_SHOWN = 80

_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


def _typed(value: Any, hint: Any, what: str) -> Any:
    """Return a setting of the type it must have.

    Args:
        value: the text that stands there; a list or a group of settings is none.
        hint: its type.
        what: names it.
    """
    kinds = get_args(hint) or (hint,)
    if isinstance(value, str):
        if type(None) in kinds and value in ("~", "null"):
            return None
        for kind in kinds:
            if kind is bool and value.lower() in _TRUTHS:
                return _TRUTHS[value.lower()]
            if kind in (int, float, str):
                with suppress(ValueError):
                    read = kind(value)
                    if not isinstance(read, float) or math.isfinite(read):
                        return read
    raise UserError(f"{what} must be {_KINDS[kinds[0]]}, but is {_shown(value)}")


def _shown(value: Any) -> str:
    """Return the beginning of a wrong value."""
    if not isinstance(value, str):
        return "a list" if isinstance(value, list) else "a group of settings"
    # A text may be of several lines, and anchors make a long one of a short file.
    text = " ".join(value.split()) or "empty"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
