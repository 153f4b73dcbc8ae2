"""Listings: as pages, and as JSON and CSV under the same path and filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tollkeeper.api import envelope, page_parameters
from tollkeeper.web.dashboard.visit import PageAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.core.json_types import JsonMapping, JsonObject


@dataclass(frozen=True, slots=True)
class Paging:
    """One page of a listing: from where, how many, and the filters that it keeps."""

    limit: int
    offset: int
    filters: Mapping[str, str]

    @classmethod
    def of(cls, query: Mapping[str, str], *names: str) -> Paging:
        """Read a request's page and its filters `names`. Raises: INVALID_PARAMETER."""
        limit, offset = page_parameters(query)
        return cls(limit, offset, {name: query[name] for name in names if query.get(name)})

    def link(self, **change: object) -> str:
        """Return the query of the same listing, changed."""
        own = {"limit": self.limit, "offset": self.offset, **self.filters, **change}
        plain = {"limit": 20, "offset": 0}
        return "?" + urlencode({name: value for name, value in own.items() if value != plain.get(name)})

    def values(self, total: int) -> JsonObject:
        """Return what a template shows of the page's place among all."""
        last = min(self.offset + self.limit, total)
        return {
            "filters": self.filters,
            "total": total,
            "first": min(self.offset + 1, total),
            "last": last,
            "before": self.link(offset=max(0, self.offset - self.limit)) if self.offset else "",
            "after": self.link(offset=self.offset + self.limit) if last < total else "",
            "as_file": self.link(),
        }


def given(query: Mapping[str, str]) -> dict[str, str]:
    """Return what a form asks for: a field that its visitor left empty filters nothing."""
    return {name: text for name, text in query.items() if text}


def as_json(body: JsonMapping) -> PageAnswer:
    """Return a listing as the API has it."""
    return PageAnswer(envelope(body), media_type="application/json")


def as_csv(name: str, table: str) -> PageAnswer:
    """Return a listing as a file for a spreadsheet."""
    headers = (("Content-Disposition", f'attachment; filename="{name}.csv"'),)
    return PageAnswer(table.encode(), media_type="text/csv; charset=utf-8", headers=headers)
