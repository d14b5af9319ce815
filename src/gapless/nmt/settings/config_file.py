"""Settings as YAML, the format of `config.yaml`: one key a flag, each with its help as a comment.

Importing this file must load neither torch nor yaml: the command line imports it for its help.
"""

from __future__ import annotations

import math
import re
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from gapless.errors import UserError
from gapless.nmt.settings.score_tokenizer import tokenizer_of


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
    from pathlib import Path

    from _typeshed import DataclassInstance
    from yaml import ScalarNode


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
    """Return the settings in a file, checked for their names and types, without those that were removed.

    Args:
        file: written by `to_yaml`, or by hand.
        settings: the class whose fields a file may set.

    Raises:
        UserError: the file cannot be read, or has an unknown setting or one of another type.
    """
    values, text = values_in(file)
    known = {item.name for item in fields(settings)}
    names, written = _read_scalars(text)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"config {file} sets {', '.join(twice)} more than once; keep one line of each"
        )
    unknown = sorted(set(map(str, values)) - known - REMOVED.keys())
    if unknown:
        named = ", ".join(f"{name}{_meant_by(name, known)}" for name in unknown)
        raise UserError(f"config {file} has unknown settings {named}; correct or remove them")
    hints = get_type_hints(settings)
    return {
        name: _typed(value, written.get(name), hints[name], f"{name} in {file}")
        for name, value in values.items()
        if name in known
    }


def values_in(file: Path) -> tuple[dict[str, Any], str]:
    """Return what a file of settings says, as YAML reads it, and its text.

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
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # Such as a date without such a day: yaml lets these errors of Python through.
        reason = " ".join(str(error).split())
        raise UserError(f"config {file} is not YAML: {reason}") from error
    if not isinstance(values, dict):
        raise UserError(f"config {file} holds no settings, expected lines such as lr: 0.001")
    return values, text


def check_removed(file: Path, *, advice: str) -> list[str]:
    """Return a line about the settings of a file that were removed; none if it has none.

    Args:
        file: with settings.
        advice: what a user can do about one that asks for something that is gone.

    Raises:
        UserError: a removed setting has another value than its old default, or the file cannot be read.
    """
    values, _ = values_in(file)
    found = [name for name in REMOVED if name in values]
    for name in found:
        if not REMOVED[name].may_be_ignored(values[name], values):
            raise UserError(
                f"{name} is {shown(values[name])} in {file}, but this setting was removed: "
                f"{REMOVED[name].now}; {advice}"
            )
    if not found:
        return []
    return [f"{file} has settings that were removed ({', '.join(found)}); they are ignored"]


@contextmanager
def naming_file(
    file: Path | None, settings: type[DataclassInstance], *, but: Container[str]
) -> Iterator[None]:
    """Let errors about settings that a file has name the file, as a user gave no flag for them.

    Args:
        file: with settings; None: there is none.
        settings: the class whose fields a file may set.
        but: settings that a user gave otherwise.
    """
    try:
        yield
    except UserError as error:
        if file is not None:
            names = [name for name in read_settings(file, settings) if name not in but]
            error.args = (_with_file(str(error), file, names), *error.args[1:])
        raise


def _with_file(message: str, file: Path, names: Sequence[str]) -> str:
    """Return a message in which settings, such as `pack` and `pack=False`, are those in a file."""

    def in_file(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        if name not in names:
            return found[0]
        value = {"=True": ": true", "=False": ": false"}.get(value, value.replace("=", ": "))
        return f"{name}{value} in {file}"

    return re.sub(r"`(?P<name>\w+)(?P<value>=[^`]*|)`", in_file, message)


def shown(value: Any) -> str:
    """Return a setting as a file has it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _meant_by(name: str, known: Collection[str]) -> str:
    """Return a hint at the nearest of the known settings; empty if none is near."""
    nearest = get_close_matches(name.replace("-", "_"), list(known), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def _read_scalars(text: str) -> tuple[list[str], dict[str, ScalarNode]]:
    """Return the keys of a document as often as they stand there, of which yaml takes the last, and their scalars."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        assert isinstance(root, yaml.MappingNode)
        names = [str(key.value) for key, _ in root.value]
        loader.flatten_mapping(root)
        scalars = {
            str(key.value): value
            for key, value in root.value
            if isinstance(value, yaml.ScalarNode)
        }
    finally:
        loader.dispose()
    return names, scalars


# Characters of a wrong value that are shown.
_MOST_SHOWN = 80

_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _typed(value: Any, written: ScalarNode | None, hint: Any, what: str) -> Any:
    """Return a setting of the type it must have, read as it is written.

    YAML reads 7e-4 as text, 010 as eight, 1:30 as ninety and no as false.

    Args:
        value: as YAML reads it.
        written: as it is written; None: it is no scalar.
        hint: its type.
        what: names it.
    """
    kinds = get_args(hint) or (hint,)
    if value is None and type(None) in kinds:
        return None
    if bool in kinds and isinstance(value, bool):
        return value
    if written is not None and value is not None:
        for kind in kinds:
            # What is in quotes, or yes and no, is no whole number.
            if kind is str or kind is float or (kind is int and type(value) is int):
                with suppress(ValueError):
                    read = kind(written.value)
                    if not isinstance(read, float) or math.isfinite(read):
                        return read
    raise UserError(f"{what} must be {_KINDS[kinds[0]]}, but is {_shown(value, written)}")


def _shown(value: Any, written: ScalarNode | None) -> str:
    """Return the beginning of a wrong value, as it is written."""
    if written is None:
        return "a list" if isinstance(value, list) else "a group of settings"
    quote = written.style if written.style in ("'", '"') else ""
    # A text may be of several lines, and anchors make a long one of a short file.
    text = f"{quote}{' '.join(written.value.split())}{quote}" or "empty"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


# --- settings that were removed ---


def _never(value: Any, others: Mapping[str, Any]) -> bool:
    del value, others
    return False


def _is_scored_as_now(value: Any, others: Mapping[str, Any]) -> bool:
    """Return whether a language of the target leads to the tokenizer that the target's name leads to.

    Runs wrote down by themselves which language or tokenizer (`auto:13a`) their text showed.
    """
    if others.get("score_tokenizer") is not None:
        return True
    found = str(value).removeprefix("auto:")
    return tokenizer_of(str(others.get("tgt"))) in (found, tokenizer_of(found))


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A setting that was removed.

    Attributes:
        default: value of runs that did not set it, which is what all runs do now.
        now: says in a few words what all runs do now, for those who had another value.
        means_the_same: whether another value, beside the other settings of its file, is what all runs do.
    """

    default: Any
    now: str
    means_the_same: Callable[[Any, Mapping[str, Any]], bool] = _never

    def may_be_ignored(self, value: Any, others: Mapping[str, Any]) -> bool:
        """Return whether a run with a value is what it was without the setting.

        Args:
            value: of the setting.
            others: all settings of its file, by name.
        """
        return bool(value == self.default) or self.means_the_same(value, others)


_ONE_SUM = "the gradients of several ranks are summed in one piece after the backward pass"

REMOVED: Mapping[str, Removed] = {
    "sum": Removed(default="flat", now=_ONE_SUM),
    "sum_bucket_mib": Removed(default=25.0, now=_ONE_SUM),
    "sum_in_place": Removed(default=False, now=_ONE_SUM),
    "sum_precision": Removed(default="fp32", now=_ONE_SUM + ", as they are"),
    "sum_priority": Removed(default="normal", now=_ONE_SUM),
    "sum_channels": Removed(default=None, now=_ONE_SUM),
    "check_columns": Removed(default=True, now="a side is what its name says"),
    "tgt_language": Removed(
        default=None,
        now="the target's language is what tgt says, and score_tokenizer sets how to score",
        means_the_same=_is_scored_as_now,
    ),
}
