"""The encoded forms of what crosses the gateway say the same as the lists that they are made of."""

from __future__ import annotations

import pytest

from tollkeeper.core.errors import ApiError
from tollkeeper.core.forwarding import (
    HEADERS_REMEMBERED_MAX,
    Header,
    caller_lines,
    header_lines,
    request_headers,
    response_headers,
    response_lines,
)

CALLERS: list[list[Header]] = [
    [],
    [(b"accept", b"*/*"), (b"x-payment", b"secret"), (b"cookie", b"a=b"), (b"host", b"x")],
    [(b"connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"x_mine", b"2"), (b"other", b"3")],
    [(b"x-mine", b"1"), (b"connection", b"x-mine"), (b"te", b"trailers"), (b"X-Forwarded-For", b"1.1.1.1")],
    [(b"a", b"1"), (b"a", b"2"), (b"via", b"1.1 other")],
]
TARGETS: list[list[Header]] = [
    [],
    [(b"content-type", b"application/json"), (b"date", b"now"), (b"content-length", b"3")],
    [(b"content-type", b"text/html"), (b"set-cookie", b"a=b"), (b"x-payment-response", b"x")],
    [(b"connection", b"x-hop"), (b"x-hop", b"1"), (b"content-type", b"image/png"), (b"etag", b'"1"')],
    [(b"x-%d" % number, b"1") for number in range(HEADERS_REMEMBERED_MAX + 1)],
]


@pytest.mark.parametrize("headers", CALLERS)
def test_the_callers_lines_are_what_is_kept_of_its_headers(headers: list[Header]) -> None:
    kept = request_headers(headers, (), "target")
    assert caller_lines(headers) == header_lines(kept[1:-1])


@pytest.mark.parametrize("headers", [[(b"a", b"1\r\nb: 2")], [(b"a b", b"1")]])
def test_a_header_that_would_break_out_of_its_line_is_refused(headers: list[Header]) -> None:
    with pytest.raises(ApiError):
        caller_lines(headers)


@pytest.mark.parametrize("headers", TARGETS)
def test_an_answers_lines_are_its_filtered_headers(headers: list[Header]) -> None:
    lines, has_date = response_lines(headers)
    kept = response_headers(headers)
    assert sorted(lines.split(b"\r\n")) == sorted(header_lines(kept).split(b"\r\n"))
    assert has_date == any(name == b"date" for name, _ in kept)
