"""Reports as JSON: sessions of the doctor, also back, how two differ, and comparisons of plans.

docs/doctor-json.md describes those of the doctor. A field of a session that is new and has a default leaves the
version as it is: what reads a file leaves out keys that it does not know.
"""

from __future__ import annotations

import json
import math
import types
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from gapless.errors import UserError
from gapless.records import comparison, finding, timeline
from gapless.records.finding import Session
from gapless.records.timeline import Lane, Span, Timeline


if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.records.comparison import ComparisonReport
    from gapless.records.finding import Finding
    from gapless.records.session_difference import SessionDifference


SESSION, DIFFERENCE = "gapless doctor session", "gapless doctor difference"
VERSION = 1


def session_json(session: Session) -> str:
    """Return a session as JSON: one key a line, but for the timeline, which has a line of its own.

    Characters outside of ASCII are escaped, and what is not finite is null.
    """
    values = {"format": SESSION, "version": VERSION} | plain(session)
    timeline = json.dumps(values.pop("timeline"), separators=(",", ":"), allow_nan=False)
    rest = json.dumps(values, indent=2, allow_nan=False)
    return f'{rest.removesuffix("}").rstrip()},\n  "timeline": {timeline}\n}}\n'


def difference_json(difference: SessionDifference) -> str:
    """Return which findings are gone, new, changed or the same, and what became of the step."""
    changed = difference.changed
    same = [pair for pair in difference.kept if pair not in changed]
    values = {
        "format": DIFFERENCE,
        "version": VERSION,
        "speedup": plain(difference.speedup),
        "is_clear": difference.is_clear,
        "before": plain(difference.before.steps),
        "after": plain(difference.after.steps),
        "gone": plain(difference.gone),
        "new": plain(difference.new),
        "changed": _pairs(changed),
        "same": _pairs(same),
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _pairs(pairs: Iterable[tuple[Finding, Finding]]) -> list[dict[str, object]]:
    return [{"before": plain(before), "after": plain(after)} for before, after in pairs]


def comparison_json(report: ComparisonReport) -> str:
    """Return a comparison as JSON: `rows` has one object for each plan, with its name in `plan`.

    What is not finite is null. The verification is left out, as `rows` say which plans compute the same; so
    are timelines.
    """
    values = plain(replace(report, verification=None, timelines=()))
    del values["verification"], values["timelines"]
    for row, values_of_row in zip(report.rows, values["rows"], strict=True):
        tokens_per_second = row.throughput if report.unit.endswith("tokens") else None
        values_of_row["tokens_per_second"] = plain(tokens_per_second)
        values_of_row["busy_share"] = plain(row.busy_share)
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def plain(value: Any) -> Any:
    """Return a record or a value of one as JSON has it; what is not finite is None."""
    if isinstance(value, Timeline):
        return _plain_timeline(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain_timeline(value: Timeline) -> dict[str, Any]:
    """Return a timeline whose spans are rows; the name of a span is a place in `names`.

    A kernel's name can be hundreds of characters long and comes thousands of times.
    """
    places: dict[str, int] = {}
    lanes = [
        {
            "name": lane.name,
            "is_device": lane.is_device,
            "spans": [
                (
                    places.setdefault(span.name, len(places)),
                    span.kind,
                    plain(span.start_us),
                    plain(span.end_us),
                    span.finding,
                )
                for span in lane.spans
            ],
        }
        for lane in value.lanes
    ]
    values = {
        field.name: plain(getattr(value, field.name))
        for field in fields(value)
        if field.name != "lanes"
    }
    return values | {"names": list(places), "lanes": lanes}


# --- sessions that were saved ---


def read_session(text: str, name: str) -> Session:
    """Return the session that was saved.

    Args:
        text: of the file.
        name: of the file, for messages.

    Raises:
        UserError: it is no session, is damaged, or was saved by a newer gapless.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not a whole session of the doctor: {error}") from None
    if not isinstance(values, dict) or values.get("format") != SESSION:
        raise UserError(
            f"{name} is not a session of the doctor; `gapless doctor --save FILE SCRIPT` makes one"
        )
    version = values.get("version")
    if not isinstance(version, int) or version < 1:
        raise UserError(f"{name} is damaged: version must be a whole number, but is {version!r}")
    if version > VERSION:
        raise UserError(
            f"{name} was saved by a newer gapless: it has version {version} of the format, and this "
            f"one reads up to {VERSION}; upgrade gapless"
        )
    try:
        session: Session = _read(Session, values, "the session")
    except _DamageError as damage:
        raise UserError(f"{name} is damaged: {damage}") from None
    return session


class _DamageError(ValueError):
    """A value is not what its place asks for."""


_KINDS = get_args(timeline.SpanKind)
_NAMES = vars(comparison) | vars(finding) | vars(timeline) | {"Spread": comparison.Spread}


def _read(hint: Any, value: Any, place: str) -> Any:
    """Return the value of a type that JSON stands for.

    Raises:
        _DamageError: it is none of that type.
    """
    if hint is float:
        return math.nan if value is None else _number(value, place)
    if hint is Timeline:
        return _read_timeline(value, place)
    if isinstance(hint, type) and is_dataclass(hint):
        return _read_record(hint, value, place)
    if get_origin(hint) in (Union, types.UnionType):
        return _read_optional(hint, value, place)
    if get_origin(hint) is Literal:
        return _known(value, get_args(hint), place)
    if get_origin(hint) is tuple:
        items = _checked(list, value, place)
        return tuple(
            _read(get_args(hint)[0], item, f"{place}[{n}]") for n, item in enumerate(items)
        )
    if get_origin(hint) is dict:
        found = _checked(dict, value, place)
        return {
            key: _read(get_args(hint)[1], item, f"{place}.{key}") for key, item in found.items()
        }
    return _checked(hint, value, place)


def _read_record(hint: type, value: Any, place: str) -> Any:
    found = _checked(dict, value, place)
    hints = get_type_hints(hint, _NAMES)
    values = {}
    for field in fields(hint):
        if field.name in found:
            values[field.name] = _read(
                hints[field.name], found[field.name], f"{place}.{field.name}"
            )
        elif field.default is MISSING and field.default_factory is MISSING:
            raise _DamageError(f"{place} has no {field.name}")
    return hint(**values)


def _read_optional(hint: Any, value: Any, place: str) -> Any:
    (wanted,) = (one for one in get_args(hint) if one is not type(None))
    return None if value is None else _read(wanted, value, place)


def _read_timeline(value: Any, place: str) -> Timeline:
    found = _checked(dict, value, place)
    names = _read(tuple[str, ...], found.get("names"), f"{place}.names")
    lanes = [
        _read_lane(lane, names, f"{place}.lanes[{n}]")
        for n, lane in enumerate(_checked(list, found.get("lanes"), f"{place}.lanes"))
    ]
    rest: Timeline = _read_record(Timeline, {**found, "lanes": []}, place)
    return Timeline(**{**vars(rest), "lanes": tuple(lanes)})


def _read_lane(value: Any, names: tuple[str, ...], place: str) -> Lane:
    found = _checked(dict, value, place)
    rows = _checked(list, found.get("spans"), f"{place}.spans")
    lane: Lane = _read_record(Lane, {**found, "spans": []}, place)
    spans = tuple(_read_span(row, names, f"{place}.spans") for row in rows)
    return Lane(name=lane.name, is_device=lane.is_device, spans=spans)


def _read_span(row: Any, names: tuple[str, ...], place: str) -> Span:
    if len(_checked(list, row, place)) != 5:
        raise _DamageError(f"{place} must have 5 values, but has {len(row)}")
    name, kind, start_us, end_us, of = row
    if _checked(int, name, place) not in range(len(names)):
        raise _DamageError(f"{place} names the text {name}, but there are {len(names)}")
    return Span(
        name=names[name],
        kind=_known(kind, _KINDS, place),
        start_us=_read(float, start_us, place),
        end_us=_read(float, end_us, place),
        finding=None if of is None else _checked(int, of, place),
    )


def _known(value: Any, names: tuple[str, ...], place: str) -> Any:
    if value not in names:
        raise _DamageError(f"{place} must be one of {', '.join(names)}, but is {value!r:.60}")
    return value


def _number(value: Any, place: str) -> float:
    try:
        return float(_checked(float, value, place))
    except OverflowError:
        raise _DamageError(f"{place} is too large a number") from None


_WANTED = {list: "a list", dict: "an object", str: "a text", bool: "true or false"}


def _checked(hint: type, value: Any, place: str) -> Any:
    """Return a value as it is, if it is of a type; JSON writes a float without a fraction as an int."""
    is_right = isinstance(value, (int, float) if hint is float else hint)
    if not is_right or (isinstance(value, bool) and hint is not bool):
        expected = _WANTED.get(hint, "a number")
        raise _DamageError(f"{place} must be {expected}, but is {value!r:.60}")
    return value
