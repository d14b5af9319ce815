"""The page of `gapless train --report`: loss, speed, waits and utilisation of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.report.html.bars import Bar, Part, bars
from gapless.report.html.charts import Curve, chart, thinned
from gapless.report.html.figures import MISSING, count, milliseconds, percent, size, with_unit
from gapless.report.html.markup import Html, element
from gapless.report.html.page import facts, header, page, section, tiles
from gapless.report.html.table import Cell, Column, Row, table, text_cell
from gapless.report.text import short_number


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gapless.records.run_history import RunHistory

    # Figures of an epoch, and a column of their table.
    _Figures: TypeAlias = Mapping[str, Any]
    _Drawn: TypeAlias = tuple[Column, Callable[[_Figures], Cell]]


def training_page(history: RunHistory, *, title: str, about: Mapping[str, str]) -> str:
    """Return a training run as a page for a browser: one file that loads nothing.

    Args:
        history: figures of the run so far.
        title: of the run, such as its folder.
        about: what is in force in it, each under its name.
    """
    return page(
        f"gapless train: {title}",
        header("gapless train", title, facts(list(about.items()))),
        tiles(_tiles(history)),
        _curves(history),
        _time(history.epochs),
        _epochs(history.epochs),
        _waits(history.epochs),
        data={"timelines": [], "rows": []},
    )


def _tiles(history: RunHistory) -> list[tuple[str, str, str]]:
    if not history.epochs:
        return [("batches", count(len(history.losses)), "no epoch has ended")]
    last = history.epochs[-1]
    found = [("loss", _loss(last.get("loss")), f"mean of epoch {last['step']}")]
    if history.test is not None and history.test.get("bleu") is not None:
        found.append(("BLEU", f"{history.test['bleu']:.2f}", "of the final model, test"))
    elif last.get("val_bleu") is not None:
        found.append(("BLEU", f"{last['val_bleu']:.2f}", "validation"))
    steady = history.epochs[1:] or history.epochs
    tokens = sum(row["tokens_per_second"] * row["wall_ms"] for row in steady)
    seconds = sum(row["wall_ms"] for row in steady)
    speed = short_number(tokens / seconds) if seconds else MISSING
    found.append(("speed", with_unit(speed, "tok/s"), "target tokens, without the first epoch"))
    batches = sum(row["num_batches"] for row in history.epochs)
    waits = sum(row["num_waits"] for row in history.epochs)
    found.append(("host waits", f"{waits / max(1, batches):.3f}", "a batch"))
    if last.get("busy_share") is not None:
        found.append(("device busy", percent(last["busy_share"]), f"of epoch {last['step']}"))
    return found


# --- curves ---


def _curves(history: RunHistory) -> Html | None:
    means, ranges = thinned(history.losses)
    epochs = history.epochs
    drawn = [
        chart(
            "Loss of each batch",
            [Curve(name="loss", points=means)],
            x_name="batch",
            text=_loss,
            band=ranges,
            x_range=(1, max(2, len(history.losses))),
        ),
        chart(
            "Loss of each epoch",
            [
                Curve(name="training", points=_points(epochs, "loss")),
                Curve(name="validation", points=_points(epochs, "val_loss")),
            ],
            x_name="epoch",
            text=_loss,
        ),
        chart(
            "BLEU of validations",
            [Curve(name="BLEU", points=_points(epochs, "val_bleu"))],
            x_name="epoch",
            text=lambda value: f"{value:g}",
        ),
        chart(
            "Speed, target tokens a second",
            [Curve(name="speed", points=_points(epochs, "tokens_per_second"))],
            x_name="epoch",
            text=short_number,
            y_least=0.0,
        ),
        chart(
            "Host time, ms a batch",
            [
                Curve(name="waits for data", points=_points(epochs, "data_wait_ms", a_batch=True)),
                Curve(
                    name="waits for the device", points=_points(epochs, "wait_ms", a_batch=True)
                ),
                Curve(name="in steps", points=_points(epochs, "launch_ms", a_batch=True)),
            ],
            x_name="epoch",
            text=lambda value: f"{value:g}",
            y_least=0.0,
        ),
        chart(
            "Utilisation of the device, % of the time",
            [
                Curve(name="busy", points=_points(epochs, "busy_share", times=100.0)),
                Curve(name="gap between steps", points=_points(epochs, "gap_share", times=100.0)),
            ],
            x_name="epoch",
            text=lambda value: f"{value:g}",
            y_least=0.0,
        ),
    ]
    if not any(drawn):
        return None
    about = "Of many batches the mean of neighbours is drawn, and their range behind it."
    return section("Course", element("div", *drawn, class_="charts"), about=about)


def _points(
    rows: Sequence[_Figures], name: str, *, a_batch: bool = False, times: float = 1.0
) -> list[tuple[float, float]]:
    return [
        (row["step"], row[name] * times / (max(1, row["num_batches"]) if a_batch else 1))
        for row in rows
        if row.get(name) is not None
    ]


def _loss(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"


# --- where the time went ---


def _time(rows: Sequence[_Figures]) -> Html | None:
    batches: int = sum(row["num_batches"] for row in rows)
    if not batches:
        return None

    def mean(name: str) -> float:
        return sum(float(row[name] or 0.0) for row in rows) / batches

    known = [
        Part(name="waits for data", kind="data", ms=mean("data_wait_ms")),
        Part(name="waits for the device", kind="wait", ms=mean("wait_ms")),
        Part(name="in steps", kind="launch", ms=mean("launch_ms")),
    ]
    rest = max(0.0, mean("wall_ms") - sum(part.ms for part in known))
    drawn = [Bar(title="host", parts=[*known, Part(name="other", kind="host-code", ms=rest)])]
    if any(row.get("gap_ms") is not None for row in rows):
        parts = [
            Part(name="runs steps", kind="kernel", ms=mean("busy_ms")),
            Part(name="gap between steps", kind="idle", ms=mean("gap_ms")),
        ]
        drawn.append(Bar(title="device", parts=parts))
    return section(
        "Where a batch's time goes",
        bars(drawn),
        about="Means over all epochs. In steps the host queues the device's work; a CPU does it there.",
        name="time",
    )


# --- tables ---


def _epochs(rows: Sequence[_Figures]) -> Html | None:
    if not rows:
        return None
    columns = [
        drawn for drawn in _columns() if any(drawn[1](row).value is not None for row in rows)
    ]
    lines = [Row(cells=[cell(row) for _, cell in columns]) for row in rows]
    return section("Epochs", table("Epochs", [column for column, _ in columns], lines))


def _columns() -> list[_Drawn]:
    def figure(
        title: str, name: str, text: Callable[[Any], str], unit: str = "", *, a_batch: bool = False
    ) -> _Drawn:
        def cell(row: _Figures) -> Cell:
            value = row.get(name)
            if value is not None and a_batch:
                value /= max(1, row["num_batches"])
            return Cell(text=MISSING if value is None else text(value), value=value)

        return Column(title=title, unit=unit, is_number=True), cell

    return [
        figure("epoch", "step", count),
        figure("loss", "loss", _loss),
        figure("loss", "val_loss", _loss, "validation"),
        figure("BLEU", "val_bleu", lambda value: f"{value:.2f}", "validation"),
        figure("speed", "tokens_per_second", count, "tokens/s"),
        figure("batches", "num_batches", count),
        figure("time", "wall_ms", milliseconds, "ms a batch", a_batch=True),
        figure("in steps", "launch_ms", milliseconds, "ms a batch", a_batch=True),
        figure("waits for data", "data_wait_ms", milliseconds, "ms a batch", a_batch=True),
        figure("host waits", "num_waits", lambda value: f"{value:.3f}", "a batch", a_batch=True),
        figure("waited", "wait_ms", milliseconds, "ms a batch", a_batch=True),
        figure("busy", "busy_share", percent),
        figure("gap", "gap_share", percent),
        figure("peak memory", "peak_memory_bytes", size, "MiB"),
    ]


def _waits(rows: Sequence[_Figures]) -> Html | None:
    batches = max(1, sum(row["num_batches"] for row in rows))
    totals: dict[str, tuple[int, float]] = {}
    for row in rows:
        for reason, wait in (row.get("waits") or {}).items():
            number, ms = totals.get(reason, (0, 0.0))
            totals[reason] = (number + wait["count"], ms + wait["ms"])
    if not totals:
        return None
    columns = [
        Column(title="reason"),
        Column(title="count", is_number=True),
        Column(title="time", unit="ms", is_number=True),
        Column(title="time", unit="ms a batch", is_number=True),
    ]
    lines = [
        Row(
            cells=[
                text_cell(reason),
                Cell(text=count(number), value=number),
                Cell(text=f"{ms:,.1f}", value=ms),
                Cell(text=f"{ms / batches:.3f}", value=ms / batches),
            ]
        )
        for reason, (number, ms) in totals.items()
    ]
    return section("Host waits", table("Host waits", columns, lines), name="waits")
