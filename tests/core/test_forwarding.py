"""Which headers cross the gateway, in any spelling, and where the request goes (contract 3.4, 4.7; A-37 to A-39)."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from httptools import HttpParserError, HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from tests.core.header_pairs import passed_on, told
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.forwarding import (
    Header,
    encode_request_head,
    gateway_headers,
    is_target_header_allowed,
    request_target,
)
from tollkeeper.core.http.heads import HeaderError
from tollkeeper.core.http.target_addresses import TargetUrl, check_target_url


def words(text: str) -> list[str]:
    return text.split()


STRIPPED = words("""
X-Payment X-Payment-Response X-Payment-Network X-Payment-Anything X-Payments PAYMENT-SIGNATURE PAYMENT-REQUIRED
PAYMENT-RESPONSE Payment X-Credit-Token X-Credits-Remaining X402-Version X-Payer X-Purchase-Id X-Paygate-Slug
X-Paygate-Body Authorization Cookie Cookie2 Forwarded X-Forwarded-For X-Forwarded-Proto X-Forwarded-Host
X-Forwarded-Port X-Forwarded X-Real-Ip True-Client-Ip CF-Connecting-IP X-Client-Ip X-Cluster-Client-Ip Client-Ip
X-Original-Url X-Rewrite-Url X-Original-Host X-Host X-Http-Method-Override X-Http-Method X-Method-Override
X-Request-Id Host Content-Length Expect Connection Keep-Alive Proxy-Authenticate Proxy-Authorization
Proxy-Connection TE Trailer Trailers Transfer-Encoding Upgrade HTTP2-Settings
""")

PASSED = words("""
Accept Accept-Encoding Accept-Language Content-Type Content-Encoding Content-Digest User-Agent Range If-None-Match
If-Range Origin Referer X-Api-Key X-Custom Idempotency-Key Prefer Signature Signature-Input Via Cache-Control Date
""")

DROPPED_FROM_RESPONSE = words("""
Connection Keep-Alive Proxy-Authenticate Transfer-Encoding Trailer Upgrade TE X-Payment X-Payment-Response
PAYMENT-REQUIRED X-Credit-Token X-Credits-Remaining X-Credits-Total X-Purchase-Id X-Payer X402-Version Set-Cookie
Set-Cookie2 Service-Worker-Allowed Clear-Site-Data Strict-Transport-Security Alt-Svc Public-Key-Pins
Public-Key-Pins-Report-Only NEL Report-To Accept-CH Expect-CT Set-Login
Cache-Control Expires Pragma Age Surrogate-Control CDN-Cache-Control Content-Length
Access-Control-Allow-Origin Access-Control-Allow-Credentials X-Request-Id Via X-Paygate-Slug X-Content-Type-Options
X-Accel-Redirect X-Accel-Buffering X-Accel-Expires X-Accel-Limit-Rate X-Accel-Charset X-Sendfile X-Sendfile-Type
X-LIGHTTPD-send-file X-LIGHTTPD-send-tempfile X-Sendfile2 X-LiteSpeed-Location X-LiteSpeed-Cache-Control
X-Reproxy-URL X-Reproxy-Expected-Size Surrogate-Key Surrogate-Capability Edge-Control Vercel-CDN-Cache-Control
Netlify-CDN-Cache-Control Cloudflare-CDN-Cache-Control Akamai-CDN-Cache-Control X-Archive-Files
Akamai-Cache-Control Fly-Replay Fly-Replay-Cache X-Envoy-Immediate-Health-Check-Fail X-Envoy-Ratelimited
""")

PASSED_FROM_RESPONSE = words("""
Content-Type Content-Encoding Content-Language Content-Disposition Content-Range Accept-Ranges ETag Last-Modified
Location Retry-After WWW-Authenticate Link X-Custom X-RateLimit-Remaining Date Server Content-Security-Policy Vary
""")

TARGET = check_target_url("https://api.example/v1", allow_private=False)


OTHER_GLUE = "!#$%&'*+.^`|~"  # what a name may have, too, and some servers read as an underscore


def spellings(name: str) -> set[bytes]:
    """The name in several cases, with each of its hyphens as an underscore or not, or all of them as another sign."""
    words = name.split("-")
    joined = (
        "".join(itertools.chain(*zip(words, (*glue, ""), strict=True)))
        for glue in [*itertools.product("-_", repeat=len(words) - 1), *([one] * (len(words) - 1) for one in OTHER_GLUE)]
    )
    return {form.encode() for text in joined for form in (text, text.lower(), text.upper(), text.swapcase())}


def forwarded(headers: list[Header], withheld: frozenset[bytes] = frozenset()) -> list[Header]:
    """What a target is sent of a caller's headers, unless they are refused."""
    try:
        return passed_on(headers, withheld)
    except HeaderError:
        return []


def answered(headers: list[Header]) -> list[Header]:
    """What a caller is sent of a target's headers."""
    try:
        return told(headers)[0]
    except HeaderError:
        return []


@pytest.mark.parametrize("name", STRIPPED)
def test_no_spelling_of_a_stripped_header_reaches_the_target(name: str) -> None:
    for spelling in spellings(name):
        assert forwarded([(spelling, b"canary")]) == []


@pytest.mark.parametrize("name", PASSED)
def test_end_to_end_headers_reach_the_target_as_they_are(name: str) -> None:
    for spelling in spellings(name):
        assert (spelling.lower(), b"v") in forwarded([(spelling, b"v")])


def test_a_long_invented_name_is_judged_like_a_short_one() -> None:
    long = b"a" * 200
    assert forwarded([(b"x-payment-" + long, b"canary"), (b"x-" + long, b"v")]) == [(b"x-" + long, b"v")]
    with pytest.raises(HeaderError):
        passed_on([(b"x_payment_" + long, b"canary")])


def test_repeated_end_to_end_headers_keep_their_number_and_order() -> None:
    pairs = [(b"accept", b"a"), (b"x-a", b"1"), (b"Accept", b"b")]
    assert forwarded(pairs) == [(name.lower(), value) for name, value in pairs]


@pytest.mark.parametrize(
    "connection", [b"X-Secret", b"close, X-Secret", b" x-secret ,keep-alive", b"X_Secret", b",x-SECRET"]
)
def test_headers_that_connection_names_are_stripped(connection: bytes) -> None:
    sent = forwarded(
        [(b"x-secret", b"canary"), (b"X_SECRET", b"canary"), (b"Connection", connection), (b"x-kept", b"v")]
    )
    assert sent == [(b"x-kept", b"v")]


def test_what_the_owner_sets_is_withheld_of_the_caller_s_in_every_spelling() -> None:
    pairs = [(b"X_Api-Key", b"caller"), (b"x-api-key", b"caller"), (b"x-kept", b"v")]
    assert forwarded(pairs, frozenset({b"x-api-key"})) == [(b"x-kept", b"v")]


def test_the_gateway_names_gate_payer_purchase_request_and_caller() -> None:
    headers = gateway_headers(
        slug="s", payer="0xp", purchase_id="7", request_id="r", client="192.0.2.1", scheme="https", host="pay.example"
    )
    assert headers == [
        (b"x-paygate-slug", b"s"),
        (b"x-payer", b"0xp"),
        (b"x-purchase-id", b"7"),
        (b"x-request-id", b"r"),
        (b"x-forwarded-for", b"192.0.2.1"),
        (b"x-forwarded-proto", b"https"),
        (b"x-forwarded-host", b"pay.example"),
    ]
    assert forwarded([(name.title(), b"liar") for name, _ in headers]) == []


@pytest.mark.parametrize(
    "pair",
    [
        (b"a b", b"v"),
        (b"a:", b"v"),
        (b"", b"v"),
        (b"a\r\n", b"v"),
        (b"\xe9", b"v"),
    ],
)
def test_a_header_that_would_break_the_head_is_refused(pair: Header) -> None:
    with pytest.raises(HeaderError):
        passed_on([pair])


@pytest.mark.parametrize("control", [*range(9), *range(10, 32), 127])
def test_the_parser_takes_no_value_that_would_break_the_head(control: int) -> None:
    with pytest.raises(HttpParserError):
        parsed_value(b"b%cc" % control)


def test_tabs_and_latin_letters_may_stand_in_a_value() -> None:
    assert parsed_value(b"a\tb \xe9") == b"a\tb \xe9"


def parsed_value(value: bytes) -> bytes:
    """The value as the listener's parser hands it on. Raises HttpParserError."""
    told: list[tuple[bytes, bytes]] = []
    parser = HttpRequestParser(SimpleNamespace(on_header=lambda *header: told.append(header)))
    parser.feed_data(b"GET / HTTP/1.1\r\na: %b\r\n\r\n" % value)
    return told[0][1]


def test_an_owner_may_set_end_to_end_headers_only() -> None:
    refused = [*STRIPPED, "Signature", "Signature-Input", "Content-Digest", "Via", "a b", "", "x:", "ü"]
    for name in refused:
        for spelling in {name.encode(), *spellings(name)}:
            assert not is_target_header_allowed(spelling)
    assert all(is_target_header_allowed(name) for name in (b"X-Api-Key", b"accept", b"User-Agent", b"x_key"))


@pytest.mark.parametrize(
    ("url", "subpath", "query", "expected"),
    [
        ("http://e.com", b"", b"", b"/"),
        ("http://e.com/a", b"", b"", b"/a"),
        ("http://e.com/a?k=1", b"", b"q=2&q=3", b"/a?k=1&q=2&q=3"),
        ("http://e.com/a?k=1", b"", b"", b"/a?k=1"),
        ("http://e.com/a", b"", b"x=%20&y=[1]{2}|`", b"/a?x=%20&y=[1]{2}|`"),
        ("http://e.com/a", b"", b"??", b"/a???"),
        ("http://e.com/a?k=%41", b"/b", b"off=50%&c=\\..\\%g1", b"/a/b?k=%41&off=50%&c=\\..\\%g1"),
        ("http://e.com/a/", b"/b/c", b"d", b"/a/b/c?d"),
        ("http://e.com/a", b"/", b"", b"/a/"),
        ("http://e.com", b"/b.c/..d/.e", b"", b"/b.c/..d/.e"),
        ("http://e.com", b"/%20%41", b"", b"/%20%41"),
        ("http://e.com", b"/caf%c3%a9%20100%25/a..b", b"", b"/caf%c3%a9%20100%25/a..b"),
    ],
)
def test_path_and_query_are_put_below_the_target_s_own(url: str, subpath: bytes, query: bytes, expected: bytes) -> None:
    assert request_target(check_target_url(url, allow_private=False), subpath, query) == expected


@pytest.mark.parametrize(
    "subpath",
    (
        b"a|/..|/../|/a/../b|/./a|/a/.|/a//b|//a|/a;b|/%3b|/%3B|/%2f|/%2F..|/a%5cb|/a\\b|/%2e%2e/|"
        b"/%2E/|/.%2e|/%00|/%0a|/%0D|/%1f|/%7f|/%|/%g0|/%2|/a b|/\xc3\xa9|/a#b|/a?b|/a\x00|/a\r\nb|"
        b"/...|/..%20/|/%20|/.%20./x|/%252e%252e/|/%25%32%65|/%c0%ae|/%ff|/%ed%a0%80|/%ef%bc%8f|/%e2%80%a5|/%ef%bc%85|"
        b"/%e2%80%8b|/%c2%a0|/a%e2%80%ae"
    ).split(b"|"),
)
def test_a_path_below_the_slug_that_could_climb_or_be_read_twice_is_refused(subpath: bytes) -> None:
    with pytest.raises(ApiError) as refusal:
        request_target(TARGET, subpath, b"")
    assert (refusal.value.code, refusal.value.details) == (Code.INVALID_PARAMETER, {"field": "path"})


@pytest.mark.parametrize("query", [b"a b", b"a#b", b"a\r\nb", b"\x00", b"\xff", b"\x7f"])
def test_a_query_that_would_break_the_request_line_is_refused(query: bytes) -> None:
    with pytest.raises(ApiError) as refusal:
        request_target(TARGET, b"", query)
    assert refusal.value.details == {"field": "query"}


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_whatever_comes_in_the_request_line_stays_one_line_below_the_target(subpath: bytes, query: bytes) -> None:
    target = TargetUrl("http", "e.com", 80, "/base", "k=1")
    try:
        path = request_target(target, b"/" + subpath, query)
    except ApiError:
        return
    assert path.startswith(b"/base/")
    head = encode_request_head("GET", path, [])
    assert head.count(b"\r\n") == 2
    assert head.count(b" ") == 2


def test_a_head_is_encoded_as_it_goes_on_the_wire() -> None:
    assert encode_request_head("POST", b"/a?b", [(b"host", b"e.com"), (b"X-A", b"1")]) == (
        b"POST /a?b HTTP/1.1\r\nhost: e.com\r\nX-A: 1\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET /", b"/"), ("GET\r\n", b"/"), ("", b"/"), ("GET", b"a"), ("GET", b"/a b"), ("GET", b"/\r\n")],
)
def test_a_request_line_in_parts_that_do_not_fit_is_a_fault(method: str, path: bytes) -> None:
    with pytest.raises(ValueError, match="request line"):
        encode_request_head(method, path, [])


@pytest.mark.parametrize("name", DROPPED_FROM_RESPONSE)
def test_no_spelling_of_a_dropped_header_reaches_the_caller(name: str) -> None:
    for spelling in spellings(name):
        answer = answered([(b"content-type", b"text/plain"), (spelling, b"canary")])
        assert b"canary" not in [value for _, value in answer]


@pytest.mark.parametrize("name", PASSED_FROM_RESPONSE)
def test_end_to_end_headers_reach_the_caller(name: str) -> None:
    assert (name.lower().encode(), b"v") in answered([(name.encode(), b"v")])


def test_what_the_target_s_connection_header_names_is_dropped() -> None:
    answer = answered([(b"connection", b"x-internal"), (b"x-internal", b"canary"), (b"x-kept", b"v")])
    assert (b"x-kept", b"v") in answer
    assert (b"x-internal", b"canary") not in answer


@pytest.mark.parametrize("count", [1, 25])
@pytest.mark.parametrize("has_date", [False, True])
def test_an_answer_of_any_number_of_headers_is_filtered_and_known_by_its_date(count: int, *, has_date: bool) -> None:
    kept: list[Header] = [(b"x-%d" % number, b"v") for number in range(count)]
    if has_date:
        kept[-1] = (b"date", b"now")
    headers: list[Header] = [*kept, (b"set-cookie", b"canary")]
    assert answered(headers)[:count] == kept
    assert b"canary" not in [value for _, value in answered(headers)]
    assert told(headers)[1] == has_date


def test_no_answer_may_be_kept_by_a_cache_or_sniffed() -> None:
    answer = answered([(b"cache-control", b"public, max-age=9"), (b"content-type", b"application/json")])
    assert answer == [
        (b"content-type", b"application/json"),
        (b"cache-control", b"private, no-store"),
        (b"vary", b"X-Payment, Authorization"),
        (b"x-content-type-options", b"nosniff"),
    ]


@pytest.mark.parametrize(
    "content_types",
    [
        [b"text/html"],
        [b"Text/HTML; charset=utf-8"],
        [b"application/xhtml+xml"],
        [b"image/svg+xml"],
        [b"text/xml"],
        [b"application/xml"],
        [b"multipart/x-mixed-replace; boundary=x"],
        [b"html"],
        [b""],
        [],
        [b"application/json", b"text/html"],
        [b"text/plain", b"text/plain"],
    ],
)
def test_a_body_that_a_browser_may_run_is_sandboxed(content_types: list[bytes]) -> None:
    answer = answered([(b"content-type", value) for value in content_types])
    assert (b"content-security-policy", b"sandbox") in answer


def test_a_type_that_is_taken_away_as_hop_by_hop_says_nothing() -> None:
    answer = answered([(b"connection", b"content-type"), (b"content-type", b"text/plain")])
    assert (b"content-security-policy", b"sandbox") in answer


def test_the_target_s_own_policy_stays_beside_the_sandbox() -> None:
    answer = answered([(b"content-type", b"text/html"), (b"content-security-policy", b"default-src 'self'")])
    assert [value for name, value in answer if name == b"content-security-policy"] == [
        b"default-src 'self'",
        b"sandbox",
    ]
