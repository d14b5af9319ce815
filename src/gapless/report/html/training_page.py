"""The page of `gapless train --report`: loss, speed, waits and utilisation of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.report.figures import (
    MISSING,
    count,
    known,
    megabytes,
    milliseconds,
    share,
    short_number,
)
from gapless.report.html.bars import Bar, Part, bars
from gapless.report.html.charts import Curve, chart, thinned
from gapless.report.html.page import Html, element, page, section
from gapless.report.html.table import Column, table


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gapless.records.training import RunHistory

    # Figures of an epoch.
    _Figures: TypeAlias = Mapping[str, Any]


def training_page(history: RunHistory, *, title: str, about: Mapping[str, str]) -> str:
    """Return a training run as a page for a browser: one file that loads nothing.

    Args:
        history: figures of the run so far.
        title: of the run, such as its folder.
        about: what is in force in it, each under its name.
    """
    return page(
        "gapless train",
        title,
        _curves(history),
        _time(history.epochs),
        _epochs(history.epochs),
        _waits(history.epochs),
        verdict=_verdict(history),
        facts=list(about.items()),
    )


def _verdict(history: RunHistory) -> str:
    """Return the result of a run in a sentence."""
    if not history.epochs:
        return f"No epoch has ended; {len(history.losses):,} batches."
    last = history.epochs[-1]
    said = [f"Loss {_loss(last.get('loss'))} in epoch {last['step']}"]
    if history.test is not None and history.test.get("bleu") is not None:
        said.append(f"BLEU {_bleu(history.test['bleu'])} of the final model on the test set")
    elif last.get("val_bleu") is not None:
        said.append(f"BLEU {_bleu(last['val_bleu'])} of the validation")
    # The first epoch compiles and captures.
    steady = history.epochs[1:] or history.epochs
    tokens = sum(row["tokens_per_second"] * row["wall_ms"] for row in steady)
    if ms := sum(row["wall_ms"] for row in steady):
        without = " without the first epoch" if len(history.epochs) > 1 else ""
        said.append(f"{short_number(tokens / ms)} target tokens a second{without}")
    return f"{'; '.join(said)}."


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
            text="{:g}".format,
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
            text="{:g}".format,
            y_least=0.0,
        ),
        chart(
            "Utilisation of the device, % of the time",
            [
                Curve(name="busy", points=_points(epochs, "busy_share", times=100.0)),
                Curve(name="gap between steps", points=_points(epochs, "gap_share", times=100.0)),
            ],
            x_name="epoch",
            text="{:g}".format,
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
    return known(value, "{:.4g}".format)


def _bleu(value: float) -> str:
    return f"{value:.2f}"


# --- where the time went ---


def _time(rows: Sequence[_Figures]) -> Html | None:
    batches: int = sum(row["num_batches"] for row in rows)
    if not batches:
        return None

    def mean(name: str) -> float:
        return sum(float(row[name] or 0.0) for row in rows) / batches

    known = [
        Part(name="waits for data", colour="data", ms=mean("data_wait_ms")),
        Part(name="waits for the device", colour="wait", ms=mean("wait_ms")),
        Part(name="in steps", colour="launch", ms=mean("launch_ms")),
    ]
    rest = max(0.0, mean("wall_ms") - sum(part.ms for part in known))
    drawn = [Bar(title="host", parts=[*known, Part(name="other", colour="other", ms=rest)])]
    if any(row.get("gap_ms") is not None for row in rows):
        parts = [
            Part(name="runs steps", colour="busy", ms=mean("busy_ms")),
            Part(name="gap between steps", colour="idle", ms=mean("gap_ms")),
        ]
        drawn.append(Bar(title="device", parts=parts))
    return section(
        "Where a batch's time goes",
        bars(drawn),
        about="Means over all epochs. In steps the host queues the device's work; a CPU does it there.",
    )


# --- tables ---


def _epochs(rows: Sequence[_Figures]) -> Html | None:
    if not rows:
        return None

    def figure(
        title: str, name: str, write: Callable[..., str], unit: str = ""
    ) -> Column[_Figures]:
        return Column(title=title, unit=unit, cell=lambda row: known(row.get(name), write))

    def a_batch(title: str, name: str, write: Callable[..., str], unit: str) -> Column[_Figures]:
        def cell(row: _Figures) -> str:
            value = row.get(name)
            return MISSING if value is None else write(value / max(1, row["num_batches"]))

        return Column(title=title, unit=unit, cell=cell)

    columns = [
        figure("epoch", "step", count),
        figure("loss", "loss", _loss),
        figure("loss", "val_loss", _loss, "validation"),
        figure("BLEU", "val_bleu", _bleu, "validation"),
        figure("speed", "tokens_per_second", count, "tokens/s"),
        figure("batches", "num_batches", count),
        a_batch("time", "wall_ms", milliseconds, "ms a batch"),
        a_batch("in steps", "launch_ms", milliseconds, "ms a batch"),
        a_batch("data wait", "data_wait_ms", milliseconds, "ms a batch"),
        a_batch("host waits", "num_waits", "{:.3f}".format, "a batch"),
        a_batch("waited", "wait_ms", milliseconds, "ms a batch"),
        figure("busy", "busy_share", share),
        figure("gap", "gap_share", share),
        figure("peak memory", "peak_memory_bytes", megabytes),
    ]
    return section("Epochs", table("Epochs", columns, rows))


def _waits(rows: Sequence[_Figures]) -> Html | None:
    batches = max(1, sum(row["num_batches"] for row in rows))
    totals: dict[str, tuple[int, float]] = {}
    for row in rows:
        for reason, wait in (row.get("waits") or {}).items():
            number, ms = totals.get(reason, (0, 0.0))
            totals[reason] = (number + wait["count"], ms + wait["ms"])
    if not totals:
        return None
    columns: list[Column[tuple[str, tuple[int, float]]]] = [
        Column(title="reason", cell=lambda row: row[0], is_number=False),
        Column(title="count", cell=lambda row: f"{row[1][0]:,}"),
        Column(title="time", unit="ms", cell=lambda row: f"{row[1][1]:,.1f}"),
        Column(title="time", unit="ms a batch", cell=lambda row: f"{row[1][1] / batches:.3f}"),
    ]
    return section("Host waits", table("Host waits", columns, list(totals.items())))
