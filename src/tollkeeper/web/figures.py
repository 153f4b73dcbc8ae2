"""Numbers of a report as the pages show them: columns of time, charts, and changes against the time before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from tollkeeper.api import clock_ms, iso
from tollkeeper.core.json_types import JsonMapping, JsonObject
from tollkeeper.core.paygates.statistics import DAY_MS, HOUR_MS
from tollkeeper.core.usdc import format_usdc
from tollkeeper.web.charts import SERIES_MAX, Chart, Series

if TYPE_CHECKING:
    from collections.abc import Mapping

_DAYS: Final = {"1": 1, "7": 7, "30": 30, "90": 90}
_CALLS: Final = (
    ("served", "Served"),
    ("targetError", "Target's error"),
    ("failed", "Failed"),
    ("clientGone", "Buyer gone"),
)
_NOTHING: Final = "Nothing happened in this time."

Columns = list[tuple[str, JsonObject]]


def span_of(query: Mapping[str, str], before: int = 0) -> tuple[int, dict[str, str]]:
    """Read how many days a page shows; return them and a report's query, of so many times that span `before` now."""
    days = _DAYS.get(query.get("days", ""), 7)
    size_ms = HOUR_MS if days == 1 else DAY_MS
    end_ms = -(-clock_ms() // size_ms) * size_ms - before * days * DAY_MS
    bucket = "hour" if days == 1 else "day"
    return days, {"from": iso(end_ms - days * DAY_MS), "to": iso(end_ms), "bucket": bucket}


def columns_of(stats: JsonMapping) -> Columns:
    """Return each bucket of a report's time by its name, empty where nothing happened."""
    is_hour = stats["bucket"] == "hour"
    step, shape = (timedelta(hours=1), "%H:%M") if is_hour else (timedelta(days=1), "%d %b")
    known = {one["start"]: one for one in stats["data"]}
    start, end = (datetime.fromisoformat(stats[name]) for name in ("from", "to"))
    columns: Columns = []
    while start < end:
        key = start.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        columns.append((start.strftime(shape), known.get(key, {})))
        start += step
    return columns


def revenue_chart(columns: Columns) -> Chart:
    """Chart the revenue of each bucket."""
    values = [_micro(one.get("revenue", "0")) for _, one in columns]
    texts = [format_usdc(value) for value in values]
    summary = f"{format_usdc(sum(values))} USDC in all." if any(values) else _NOTHING
    return Chart("revenue", "Revenue in USDC", summary, [name for name, _ in columns], [Series("USDC", values, texts)])


def calls_chart(columns: Columns) -> Chart:
    """Chart the paid calls of each bucket by their outcome."""
    series = []
    for key, name in _CALLS:
        values = [int(one.get("calls", {}).get(key, 0)) for _, one in columns]
        series.append(Series(name, values, [str(value) for value in values]))
    parts = [f"{sum(one.values)} {one.name.lower()}" for one in series if any(one.values)]
    summary = ", ".join(parts) + "." if parts else _NOTHING
    return Chart("calls", "Paid calls by outcome", summary, [name for name, _ in columns], series)


def revenue_by_gate_chart(columns: Columns, starts: list[int], revenue: Mapping[str, Mapping[int, int]]) -> Chart:
    """Chart the revenue of the gates that sold most, and of the others together."""
    ranked = sorted(revenue, key=lambda name: -sum(revenue[name].values()))
    rows = [(name, [revenue[name].get(start, 0) for start in starts]) for name in ranked[:SERIES_MAX]]
    if rest := ranked[SERIES_MAX:]:
        rows.append(("others", [sum(revenue[name].get(start, 0) for name in rest) for start in starts]))
    series = [Series(name, values, [format_usdc(value) for value in values]) for name, values in rows]
    parts = [f"{name} {format_usdc(sum(values))}" for name, values in rows]
    summary = "USDC: " + ", ".join(parts) + "." if parts else _NOTHING
    return Chart("by-gate", "Revenue by PayGate", summary, [name for name, _ in columns], series)


def headline(now: JsonMapping, before: JsonMapping) -> list[dict[str, str]]:
    """Return the numbers at the head of the overview, each with its change against the time before."""
    revenue, earlier = _micro(now["revenue"]), _micro(before["revenue"])
    calls, calls_before = now["calls"]["total"], before["calls"]["total"]
    p95, p95_before = now["latencyUs"]["p95"], before["latencyUs"]["p95"]
    return [
        {"name": "Revenue", "value": now["revenue"] + " USDC", "change": _change(revenue, earlier)},
        {"name": "Paid calls", "value": f"{calls:,}", "change": _change(calls, calls_before)},
        {
            "name": "402 to purchase",
            "value": _share(now),
            "change": f"before: {_share(before)}",
        },
        {
            "name": "p95 of a paid call",
            "value": "none yet" if p95 is None else f"{p95 / 1000:,.1f} ms",
            "change": "" if p95_before is None or p95 is None else _change(p95, p95_before),
        },
        {
            "name": "Credits outstanding",
            "value": f"{now['outstanding']['credits']:,}",
            "change": f"paid with {now['outstanding']['liability']} USDC",
        },
    ]


def _micro(text: str) -> int:
    whole, _, part = text.partition(".")
    return int(whole) * 10**6 + int(part.ljust(6, "0"))


def _share(stats: JsonMapping) -> str:
    asked = stats["challenges"]
    return "none yet" if not asked else f"{min(100.0, 100 * stats['purchases'] / asked):.0f} %"


def _change(now: int, before: int) -> str:
    if not before:
        return "nothing before" if now else ""
    return f"{100 * (now - before) / before:+.0f} % against before"
