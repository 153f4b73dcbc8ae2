"""`Prefer: wait=N` in the spellings that RFC 7240 allows."""

from __future__ import annotations

import pytest

from tollkeeper.core.http.prefer_header import preferred_wait_seconds


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("wait=0", 0),
        ("wait=10", 10),
        ("Wait = 7", 7),
        ('respond-async, wait="12"; foo=bar', 12),
        ("respond-async wait=3, handling=lenient", 3),
        ("wait=-1", None),
        ("wait=1.5", None),
        ("wait=1234567", None),
        ("await=5", None),
        ("wait", None),
        ("", None),
    ],
)
def test_a_wait_is_read_in_every_spelling_and_nothing_else_is_one(prefer: str, seconds: int | None) -> None:
    assert preferred_wait_seconds(prefer) == seconds
