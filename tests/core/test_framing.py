"""Which heads are taken beyond the parser's own strictness (security A-40, A-42)."""

from __future__ import annotations

import pytest

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import Header
from tollkeeper.core.http.heads import (
    REQUEST_SHAPES,
    BodyEnd,
    FramingError,
    ResponseFraming,
    keeps_alive,
    promised_seconds,
    read_head,
    read_response_head,
)

HOST: Header = (b"host", b"gw.example")


def check(
    headers: list[Header], *, method: bytes = b"GET", target: bytes = b"/a", version: str = "1.1", host: bool = True
) -> None:
    read_head(method, target, version, [HOST, *headers] if host else headers)


def refusal_of(headers: list[Header], **parts: object) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        check(headers, **parts)  # type: ignore[arg-type]  # a table of overrides
    assert refusal.value.code is Code.INVALID_PARAMETER
    return refusal.value


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-length", b"0")],
        [(b"content-length", b"10 ")],
        [(b"transfer-encoding", b"Chunked")],
        [(b"x-payment", b"a"), (b"authorization", b"b"), (b"x-credit-token", b"c")],
        [(b"cookie", b"a=1"), (b"cookie", b"b=2")],
        [(b"accept", b"a"), (b"accept", b"b")],
        [(b"x_custom_name", b"v")],
        [(b"expect", b"100-continue")],
    ],
)
def test_a_plain_head_is_taken(headers: list[Header]) -> None:
    check(headers)


@pytest.mark.parametrize("host", [b"a", b"a.b:80", b"[::1]", b"[2606::1]:443", b"192.0.2.1:1", b"a_b-c"])
def test_a_host_is_taken(host: bytes) -> None:
    check([(b"host", host)], host=False)


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b" ",
        b"a b",
        b"a/b",
        b"a@b",
        b"a:b",
        b"a:",
        b"a:123456",
        b"a,b",
        b"[",
        b"[::1",
        b"a\\b",
        b"a?b",
        b"a#b",
        b"\xff",
        b"[]",
    ],
)
def test_a_host_of_another_form_is_refused(host: bytes) -> None:
    refusal_of([(b"host", host)], host=False)


def test_a_head_without_host_is_refused_in_either_version() -> None:
    for version in ("1.0", "1.1"):
        refusal_of([], host=False, version=version)


@pytest.mark.parametrize(
    "name",
    (
        b"host content-length content-type transfer-encoding expect x-payment x-payment-network "
        b"x-payment-response payment-signature x-credit-token authorization "
    ).split(),
)
def test_a_header_that_decides_something_may_stand_once(name: bytes) -> None:
    value = {b"content-length": b"1", b"transfer-encoding": b"chunked", b"host": b"h"}.get(name, b"v")
    refusal_of([(name, value), (name, value)])


@pytest.mark.parametrize(
    "name",
    (
        b"x_payment x-payment_network payment_signature x_credit-token x_credit_token content_length "
        b"transfer_encoding x_forwarded_for proxy_authorization x_payer x.payer x~payer x!payer x|purchase*id "
        b"x.paygate.slug x+payment x^credit`token payment#signature x_paygate.body "
    ).split(),
)
def test_what_some_servers_read_as_one_of_our_headers_is_refused(name: bytes) -> None:
    refusal_of([(name, b"1")])


@pytest.mark.parametrize(
    "value", [b"gzip, chunked", b"chunked, chunked", b"identity", b"xchunked", b"chunked;a=b", b""]
)
def test_a_transfer_encoding_but_chunked_is_refused(value: bytes) -> None:
    refusal_of([(b"transfer-encoding", value)])


def test_chunks_are_refused_in_http_1_0() -> None:
    refusal_of([(b"transfer-encoding", b"chunked")], version="1.0")


@pytest.mark.parametrize("value", [b"", b"+1", b"-1", b"1,1", b"0x1", b"1 1", b"9" * 19, "١".encode()])
def test_a_length_that_is_no_number_is_refused(value: bytes) -> None:
    refusal_of([(b"content-length", value)])


def test_two_kinds_of_length_are_refused() -> None:
    refusal_of([(b"content-length", b"1"), (b"transfer-encoding", b"chunked")])
    refusal_of([(b"transfer-encoding", b"chunked"), (b"content-length", b"1")])


@pytest.mark.parametrize("method", [b"CONNECT", b"get", b"PRI", b"M-SEARCH", b"FOO", b""])
def test_a_method_that_is_not_http_s_is_refused(method: bytes) -> None:
    refusal_of([], method=method)


@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "3.0"])
def test_another_version_is_refused(version: str) -> None:
    refusal_of([], version=version)


@pytest.mark.parametrize(
    "target",
    [
        b"",
        b"*",
        b"a",
        b"http://gw.example/a",
        b"gw.example:80",
        b"/a b",
        b"/a#b",
        b"/a\\b",
        b"/\x00",
        b"/\x7f",
        b"/\xc3\xa9",
        b"/%",
        b"/%g1",
        b"/a%?b",
        b"/a\\?b",
        b"/a?b c",
        b"/a?b#c",
        b"/a?\xc3\xa9",
        b"/a?b\x7f",
        b"/a?b\r\nc",
        b"/a\r\n",
    ],
)
def test_a_target_that_is_not_a_plain_path_is_refused(target: bytes) -> None:
    refusal_of([], target=target)


@pytest.mark.parametrize(
    "target",
    [b"/", b"//", b"/a/../b", b"/a;b?c=d[]{}|", b"/%41%2f", b"/?", b"/a?off=50%&%g1", b"/a?b=\\?%"],
)
def test_a_path_is_taken_as_it_is(target: bytes) -> None:
    check([], target=target)


@pytest.mark.parametrize(
    ("method", "status", "version", "headers", "expected"),
    [
        ("GET", 200, "1.1", [(b"Content-Length", b"5 ")], ResponseFraming(BodyEnd.LENGTH, 5)),
        ("GET", 200, "1.1", [(b"content-length", b"0")], ResponseFraming(BodyEnd.LENGTH, 0)),
        ("GET", 200, "1.1", [(b"Transfer-Encoding", b" Chunked ")], ResponseFraming(BodyEnd.CHUNKED, None)),
        ("GET", 200, "1.0", [], ResponseFraming(BodyEnd.CLOSE, None)),
        ("GET", 599, "1.1", [(b"a", b"b")], ResponseFraming(BodyEnd.CLOSE, None)),
        ("HEAD", 200, "1.1", [(b"content-length", b"5")], ResponseFraming(BodyEnd.NONE, 5)),
        ("HEAD", 200, "1.1", [(b"transfer-encoding", b"chunked")], ResponseFraming(BodyEnd.NONE, None)),
        ("GET", 204, "1.1", [(b"content-length", b"5")], ResponseFraming(BodyEnd.NONE, 5)),
        ("GET", 304, "1.1", [(b"content-length", b"5")], ResponseFraming(BodyEnd.NONE, 5)),
    ],
)
def test_a_response_head_says_how_the_body_ends(
    method: str, status: int, version: str, headers: list[Header], expected: ResponseFraming
) -> None:
    assert read_response_head(method, status, version, headers).framing == expected


@pytest.mark.parametrize(
    ("status", "version", "headers"),
    [
        (200, "0.9", []),
        (200, "2.0", []),
        (0, "1.1", []),
        (99, "1.1", []),
        (600, "1.1", []),
        (999, "1.1", []),
        (101, "1.1", []),
        (200, "1.1", [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")]),
        (200, "1.1", [(b"content_length", b"1"), (b"transfer-encoding", b"chunked")]),
        (200, "1.1", [(b"content-length", b"1"), (b"content-length", b"2")]),
        (200, "1.1", [(b"content-length", b"1"), (b"content-length", b"1")]),
        (200, "1.1", [(b"content-length", b"1"), (b"content_length", b"2")]),
        (200, "1.1", [(b"content_length", b"2")]),
        (200, "1.1", [(b"transfer_encoding", b"chunked")]),
        (200, "1.1", [(b"content-length", b"-1")]),
        (200, "1.1", [(b"content-length", b"")]),
        (200, "1.1", [(b"transfer-encoding", b"gzip, chunked")]),
        (200, "1.1", [(b"transfer-encoding", b"gzip")]),
        (200, "1.1", [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")]),
        (200, "1.0", [(b"transfer-encoding", b"chunked")]),
        (103, "1.1", []),
    ],
)
def test_a_response_head_with_two_readings_is_refused(status: int, version: str, headers: list[Header]) -> None:
    with pytest.raises(FramingError):
        read_response_head("GET", status, version, headers)


def test_a_body_is_as_long_as_declared_of_unknown_length_in_chunks_and_else_not_there() -> None:
    assert read_head(b"POST", b"/", "1.1", [HOST, (b"content-length", b"12")]).content_length == 12
    assert read_head(b"POST", b"/", "1.1", [HOST, (b"transfer-encoding", b"chunked")]).content_length is None
    assert read_head(b"POST", b"/", "1.1", [HOST]).content_length == 0


def test_heads_give_their_headers_as_asgi_has_them_and_are_shown_without_them() -> None:
    sent = [(b"Host", b"gw.example \t"), (b"X-Payment", b"secret")]
    request = read_head(b"GET", b"/a?b", "1.1", sent)
    assert request.headers == [(b"host", b"gw.example"), (b"x-payment", b"secret")]
    assert repr(request) == "RequestHead(GET, b'/a?b')"
    assert request.__rich_repr__() == [("method", "GET"), ("target", b"/a?b")]
    answer = read_response_head("GET", 200, "1.1", [(b"ETag", b'"a" ')])
    assert answer.headers == [(b"etag", b'"a"')]


def test_a_head_gives_one_header_s_value_as_it_gives_all_however_often_asked() -> None:
    request = read_head(b"GET", b"/", "1.1", [HOST, (b"Accept", b"text/html"), (b"accept", b"*/* ")])
    assert (request.value_of(b"accept"), request.value_of(b"expect")) == (b"*/*", b"")
    assert [request.header[b"accept"] for _ in "again"] == [b"*/*"] * 5
    assert request.values == request.values == [HOST[1], b"text/html", b"*/*"]
    other = read_head(b"GET", b"/", "1.1", [HOST])
    assert (other.values, other.header) == ([HOST[1]], {b"host": HOST[1]})


@pytest.mark.parametrize("twice", [b"content-length", b"transfer-encoding"])
def test_a_target_s_header_that_may_be_there_once_is_refused_twice(twice: bytes) -> None:
    with pytest.raises(FramingError):
        read_response_head("GET", 200, "1.1", [(twice, b"1"), (twice, b"1")])


@pytest.mark.parametrize(
    ("version", "connection", "stays"),
    [
        ("1.1", b"", True),
        ("1.0", b"", False),
        ("1.0", b"Keep-Alive", True),
        ("1.0", b"a, keep-alive , b", True),
        ("1.0", b"keep-alive, close", False),
        ("1.0", b"keep-alives", False),
    ],
)
def test_a_target_s_connection_stays_open_as_its_version_and_its_options_say(
    version: str, connection: bytes, *, stays: bool
) -> None:
    head = read_response_head("GET", 200, version, [(b"connection", connection)] if connection else [])
    assert keeps_alive(version, head) is stays


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (None, None),
        (b"timeout=5", 5),
        (b"max=100, Timeout=65 ", 65),
        (b"timeout", None),
        (b"timeout=x", None),
        (b"timeout=100000", None),
    ],
)
def test_how_long_a_target_keeps_a_connection_is_read(said: bytes | None, seconds: int | None) -> None:
    headers = [] if said is None else [(b"keep-alive", said)]
    assert promised_seconds(read_response_head("GET", 200, "1.1", headers)) == seconds


def test_what_callers_invent_as_names_fills_no_memory() -> None:
    for number in range(2000):
        read_head(b"GET", b"/", "1.1", [HOST, (b"x-%d" % number, b"")])
    assert len(REQUEST_SHAPES) <= 512
    for sent in ([HOST, (b"x" * 1000, b"")], [HOST, *((b"x-%d" % number, b"") for number in range(100))]):
        read_head(b"GET", b"/", "1.1", sent)
        assert tuple(name for name, _ in sent) not in REQUEST_SHAPES
