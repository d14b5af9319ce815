"""Settings as YAML, the format of `config.yaml`: one key a flag, each with its help as a comment.

Importing this file must load neither torch nor yaml: the command line imports it for its help.
"""

from __future__ import annotations

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
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"config {file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # Such as a date without such a day, or no UTF-8: yaml lets these errors of Python through.
        reason = " ".join(str(error).split())
        raise UserError(f"config {file} is not YAML: {reason}") from error
    known = {item.name for item in fields(settings)}
    if not isinstance(values, dict):
        raise UserError(f"config {file} holds no settings, expected lines such as lr: 0.001")
    names = _keys(text)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"config {file} sets {', '.join(twice)} more than once; keep one line of each"
        )
    unknown = sorted(set(map(str, values)) - known)
    if unknown:
        named = ", ".join(f"{name}{_meant_by(name, known)}" for name in unknown)
        raise UserError(f"config {file} has unknown settings {named}; correct or remove them")
    hints = get_type_hints(settings)
    return {
        name: _typed(value, hints[name], f"{name} in {file}") for name, value in values.items()
    }


def _meant_by(name: str, known: Collection[str]) -> str:
    """Return a hint at the nearest of the known settings; empty if none is near."""
    nearest = get_close_matches(name.replace("-", "_"), list(known), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def _keys(text: str) -> list[str]:
    """Return the keys of a document as often as they stand there; yaml takes the last of several."""
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return [] if root is None else [str(key.value) for key, _ in root.value]


# Characters of a wrong value that are shown.
_MOST_SHOWN = 80

_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _typed(value: Any, hint: Any, what: str) -> Any:
    """Return a setting of the type it must have.

    YAML reads 7e-4 as text and 1 as a whole number; both are taken as numbers.
    """
    kinds = get_args(hint) or (hint,)
    if type(value) in kinds:
        return value
    if float in kinds and type(value) in (int, str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise UserError(f"{what} must be {_KINDS[kinds[0]]}, but is {_begin_of(value)}")


def _begin_of(value: Any) -> str:
    # Anchors make a long value of a short file.
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a group of settings"
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
