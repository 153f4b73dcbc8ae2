"""History as CSV, read back, and a history item as the cells that it must fill."""

from __future__ import annotations

import csv
import io
from typing import Any

from tests.hub.hub_under_test import HubUnderTest


async def read_table(hub: HubUnderTest, bearer: str, path: str = "/api/v1/history?limit=100") -> list[dict[str, str]]:
    """The lines of a history, by column."""
    headers = {"Authorization": bearer, "Accept": "text/csv"}
    async with hub.http.get(hub.url + path, headers=headers) as answer:
        assert (answer.status, answer.content_type) == (200, "text/csv")
        return list(csv.DictReader(io.StringIO(await answer.text(), newline="")))


def cells(item: dict[str, Any]) -> dict[str, str]:
    """Every member of a JSON item, at any depth, under its column's name; one that is null or empty has no cell."""
    found: dict[str, str] = {}
    for name, value in item.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": text for inner, text in cells(value).items()}
        elif value not in {None, ""}:
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def filled(row: dict[str, str]) -> dict[str, str]:
    """The cells of a line that are not empty."""
    return {name: text for name, text in row.items() if text}
