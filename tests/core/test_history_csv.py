"""History as a table that spreadsheets read and do not run (contract 7)."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.api.csv_table import prefers_csv
from tollkeeper.core.settlement.history_csv import COLUMNS, history_csv


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("text/csv", True),
        ("Text/CSV; header=present", True),
        ("text/csv, */*", True),
        ("text/csv, application/json", True),
        ("application/json;q=0.5, text/csv;q=0.9", True),
        ("application/json, text/csv", False),
        ("application/json, text/csv;q=0.5", False),
        ("text/csv;q=0", False),
        ("text/csv;q=0.000, application/json;q=0", False),
        ("application/json", False),
        ("text/html,*/*;q=0.8", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_csv_is_for_who_prefers_it(accept: str, wanted: bool) -> None:  # noqa: FBT001 - a table's column
    assert prefers_csv(accept) is wanted


def test_every_member_has_its_column_and_what_is_not_there_is_empty() -> None:
    item: dict[str, Any] = {
        "id": "abc",
        "amount": "10000",
        "chainId": 84532,
        "transactionHash": None,
        "error": None,
        "x402Data": {"payTo": "0xab", "confirm": True},
    }
    (row,) = read(history_csv([item]))
    filled = {name: value for name, value in row.items() if value}
    assert filled == {
        "id": "abc",
        "amount": "10000",
        "chainId": "84532",
        "x402Data.payTo": "0xab",
        "x402Data.confirm": "true",
    }
    assert tuple(row) == COLUMNS


def test_no_items_are_a_line_of_names() -> None:
    assert history_csv([]) == ",".join(COLUMNS) + "\r\n"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30), max_size=5))
def test_any_text_comes_back_and_none_begins_a_formula(titles: list[str]) -> None:
    rows = read(history_csv({"purchaseData": {"title": title}} for title in titles))
    found = [row["purchaseData.title"] for row in rows]
    assert [text.removeprefix("'") for text in found] == [title.removeprefix("'") for title in titles]
    assert not [
        text for text in found if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n", *"\uff1d\uff0b\uff0d\uff20"))
    ]
