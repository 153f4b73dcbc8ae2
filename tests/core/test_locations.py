"""Where a target's answer leads, and which of a caller's parameters its own query keeps out (contract 3.4)."""

from __future__ import annotations

import pytest

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.target_addresses import parse_target_url
from tollkeeper.core.paygates.locations import Locations
from tollkeeper.core.paygates.model import names_in, without

GATE = "https://pay.example/Slug1234"


def locations(url: str, *, subpaths: bool = False, headers: tuple[str, ...] = ()) -> Locations:
    return Locations.of(parse_target_url(url), GATE, headers, allow_subpaths=subpaths)


def told(of: Locations, value: str, *, name: bytes = b"location", asked: str = "", method: str = "GET") -> str:
    """What a caller is told in place of `value`; `asked` is the path and query that the target was asked for."""
    path = (asked or of.target.path + (f"?{of.target.query}" if of.target.query else "")).encode()
    status = 302 if name == b"location" else 200
    ((_, new),) = of.told([(name, value.encode())], method, status, path)
    return new.decode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/v2/rel", "https://api.example/v2/rel"),
        ("v2", "https://api.example/v2"),
        ("//other.example/x", "https://other.example/x"),
        ("https://other.example/x?y=1#z", "https://other.example/x?y=1#z"),
        ("/items/", "https://api.example/items/"),
        ("/items?page=2", f"{GATE}?page=2"),
        ("?page=2", f"{GATE}?page=2"),
        ("https://api.example/items?page=2#top", f"{GATE}?page=2#top"),
        ("HTTPS://API.example:443/items?page=2", f"{GATE}?page=2"),
        ("http://api.example/items?page=2", "http://api.example/items?page=2"),
        ("https://api.example:8443/items?p=2", "https://api.example:8443/items?p=2"),
        ("https://user@api.example/items?p=2", "https://user@api.example/items?p=2"),
        ("https://pay.example/items?page=2", f"{GATE}?page=2"),  # named by X-Forwarded-Host, as some frameworks do
        ("https://pay.example/Other567", "https://pay.example/Other567"),
        ("mailto:a@b.example", "mailto:a@b.example"),
        ("/caf\u00e9 bar", "https://api.example/caf%C3%A9%20bar"),
    ],
)
def test_what_the_gate_sells_is_named_by_the_gate_and_all_else_is_absolute(value: str, expected: str) -> None:
    assert told(locations("https://api.example/items"), value) == expected
    assert told(locations("https://api.example/items"), value, name=b"content-location") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/items/", f"{GATE}/"),
        ("/items/7?a=b", f"{GATE}/7?a=b"),
        ("7", "https://api.example/7"),
        ("/items/a/../b", f"{GATE}/b"),
        ("/items/a//b", "https://api.example/items/a//b"),
        ("/items/a%2fb", "https://api.example/items/a%2fb"),
        ("/itemsx", "https://api.example/itemsx"),
    ],
)
def test_paths_below_are_the_gates_where_it_sells_them(value: str, expected: str) -> None:
    assert told(locations("https://api.example/items", subpaths=True), value) == expected


def test_what_is_rewritten_loses_the_owners_parameters() -> None:
    of = locations("https://api.example/items?key=OWNERS-KEY&plan=basic")
    assert told(of, "/items?key=OWNERS-KEY&page=2&plan=basic") == f"{GATE}?page=2"
    assert told(of, "/items?PLAN=pro&page=2") == f"{GATE}?page=2"


@pytest.mark.parametrize(
    "value",
    [
        "/login?key=OWNERS-KEY",
        "/login?next=%2Fitems%3Fkey%3DOWNERS-KEY",
        "/login?next=%252Fitems%253FKEY%253DOWNERS-KEY",
        "/login#key=OWNERS-KEY",
        "/x?other=1;plan=basic",
        "https://other.example/OWNERS-KEY/x",
        "/items?token=sk-live-1234",
        "/login?token=Bearer%20sk-live-1234",
        "/login?token=sk-live-1234",
        "javascript:'sk-live-1234'",
    ],
)
@pytest.mark.parametrize("name", [b"location", b"content-location", b"refresh"])
def test_what_holds_the_owners_parameter_or_header_value_is_not_told(value: str, name: bytes) -> None:
    of = locations("https://api.example/items?key=OWNERS-KEY&plan=basic", headers=("Bearer sk-live-1234", "en"))
    with pytest.raises(ApiError) as refused:
        told(of, f"5;url={value}" if name == b"refresh" else value, name=name)
    assert refused.value.code is Code.UPSTREAM_INVALID
    assert "OWNERS-KEY" not in refused.value.message


def test_what_only_looks_like_an_owners_value_is_told() -> None:
    of = locations("https://api.example/items?plan=basic&v=2", headers=("en",))
    for value in ("/x?plan=pro", "/v2/plan", "/x?xplan=basic", "/en/x?v=21"):
        assert told(of, value) == "https://api.example" + value


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ("/items", "/items"),
        ("https://api.example/items#top", "/items"),
        ("?page=2", "/items?page=2"),
        ("/items?page=2", "/items?page=2"),
    ],
)
def test_a_redirect_to_the_url_just_asked_is_not_told(value: str, asked: str) -> None:
    of = locations("https://api.example/items")
    with pytest.raises(ApiError) as refused:
        told(of, value, asked=asked)
    assert refused.value.code is Code.UPSTREAM_INVALID
    assert told(of, value, asked=asked, method="POST").startswith(GATE), "it is asked for by GET then"
    assert told(of, value, asked=asked, name=b"content-location").startswith(GATE), "it leads nowhere"


def test_a_redirect_is_the_same_though_the_owners_parameters_stand_elsewhere() -> None:
    of = locations("https://api.example/items?key=OWNERS-KEY")
    with pytest.raises(ApiError):
        told(of, "/items?a=b&key=OWNERS-KEY", asked="/items?key=OWNERS-KEY&a=b")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("5; url=/v2", "5;url=https://api.example/v2"),
        ("0;URL='/items?page=2'", f"0;url={GATE}?page=2"),
        ('0, url = "/items?page=2"', f"0;url={GATE}?page=2"),
        ("1;/v2", "1;url=https://api.example/v2"),
    ],
)
def test_a_refresh_is_told_as_a_location(value: str, expected: str) -> None:
    assert told(locations("https://api.example/items"), value, name=b"refresh") == expected


@pytest.mark.parametrize("value", ["5", "5;", "0;url=/items", "0; url=", "0;url=''"])
def test_a_refresh_of_the_same_page_would_buy_again_and_is_not_told(value: str) -> None:
    with pytest.raises(ApiError) as refused:
        told(locations("https://api.example/items"), value, name=b"refresh")
    assert refused.value.code is Code.UPSTREAM_INVALID


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"location", "http://[x/"),
        (b"location", "/%" + "25" * 5000 + "41"),
        (b"refresh", "soon; url=/x"),
    ],
)
def test_what_cannot_be_read_is_not_told(name: bytes, value: str) -> None:
    with pytest.raises(ApiError) as refused:
        told(locations("https://api.example/items"), value, name=name)
    assert refused.value.code is Code.UPSTREAM_INVALID


@pytest.mark.parametrize(
    "name",
    [
        "plan",
        "PLAN",
        "%70lan",
        "%2570lan",
        "+plan",
        "plan%20",
        "plan[]",
        "plan%5B0%5D",
        "plan%00x",
        "pl%61n",
        "[plan]",  # Express
        "%5Bplan%5D",
        "]plan",  # Rack
        "[[plan]",
        "plan]",
    ],
)
def test_a_callers_parameter_of_the_owners_name_is_dropped_in_every_spelling(name: str) -> None:
    query = f"city=Oslo&{name}=pro;x=1&y"
    assert without(query.encode(), names_in(b"plan=basic")) == b"city=Oslo;x=1&y"


@pytest.mark.parametrize(
    ("own", "sent"), [("my.plan", "my_plan"), ("my plan", "my.plan"), ("my%20plan", "my+plan"), ("my_plan", "my[plan")]
)
def test_dots_spaces_and_open_brackets_in_names_are_underscores(own: str, sent: str) -> None:
    assert without(sent.encode() + b"=1", names_in(own.encode() + b"=2")) == b""


def test_every_other_parameter_stays_as_it_was_sent() -> None:
    query = b"a=%41&&b;;c=plan&planx=1&xplan=2&=&%zz"
    assert without(query, names_in(b"plan=basic")) == query
    assert without(b"plan=1", names_in(b"plan=basic")) == b""
    assert without(b"plan=1&a=2", names_in(b"plan=basic")) == b"a=2"


def test_a_name_that_is_encoded_too_often_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        without(b"%" + b"25" * 5000 + b"70lan=1", names_in(b"plan=basic"))
    assert refused.value.details == {"field": "query"}
