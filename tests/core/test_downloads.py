"""Presigned links, ranges, conditions, names and types of files (contract 4.8; security A-43, A-44)."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.downloads import (
    DEFAULT_TYPE,
    Link,
    Part,
    StoredFile,
    asked_part,
    bought_body,
    clean_name,
    clean_type,
    disposition,
    read_link,
)

KEY, FORMER, STRANGE = b"k" * 32, b"f" * 32, b"s" * 32
FILE = StoredFile("0a" * 16, "report.pdf", 1000, "application/pdf", "ab" * 32)
PURCHASE = "pur_" + "1c" * 16
LINK = Link(FILE.id, PURCHASE, 1_000_900, "2d" * 16)
NOW = 1_000_000


def read(path: str, now_seconds: int = NOW) -> Link:
    rest = path.removeprefix("/files/")
    file_id, _, query = rest.partition("?")
    return read_link(file_id, query.encode("latin-1"), [KEY, FORMER], now_seconds)


def refused(path: str, now_seconds: int = NOW) -> Code:
    with pytest.raises(ApiError) as caught:
        read(path, now_seconds)
    return caught.value.code


@pytest.mark.parametrize("key", [KEY, FORMER])
def test_a_link_of_a_current_or_former_key_is_read_until_its_second(key: bytes) -> None:
    assert read(LINK.path(key)) == LINK
    assert read(LINK.path(key), 1_000_899) == LINK
    assert refused(LINK.path(key), 1_000_900) is Code.FORBIDDEN


def test_each_call_has_another_link_and_none_serves_for_another() -> None:
    other = replace(LINK, call_id="2e" * 16).path(KEY)
    signatures = {path.rpartition("=")[2] for path in (other, LINK.path(KEY))}
    assert len(signatures) == 2
    for changed in (
        LINK.path(KEY).replace("2d" * 16, "2e" * 16),
        LINK.path(KEY).replace("&call=" + "2d" * 16, ""),
        LINK.path(KEY).replace("2d" * 16, ""),
    ):
        assert refused(changed) is Code.FORBIDDEN, changed


def test_a_link_of_another_key_is_forbidden() -> None:
    assert refused(LINK.path(STRANGE)) is Code.FORBIDDEN


def test_a_link_with_any_byte_changed_is_refused() -> None:
    path = LINK.path(KEY)
    for place in range(len("/files/"), len(path)):
        for other in "0aZ-&=%":
            if path[place] != other:
                code = refused(path[:place] + other + path[place + 1 :])
                assert code in {Code.FORBIDDEN, Code.NOT_FOUND}, (place, other)


def test_a_link_s_parts_may_not_be_swapped_doubled_left_out_or_spelled_otherwise() -> None:
    other = replace(LINK, file_id="0b" * 16).path(KEY)
    signature = other.rpartition("=")[2]
    path = LINK.path(KEY)
    assert refused(path.rpartition("=")[0] + "=" + signature) is Code.FORBIDDEN
    for changed in (
        path + "&purchase=" + PURCHASE,
        path + "&call=" + LINK.call_id,
        path.replace("purchase=", "Purchase="),
        path.replace("expires=1000900", "expires=01000900"),
        path.replace("expires=1000900", "expires="),
        path.partition("&signature")[0],
        path.partition("?")[0],
        path + "\xff",
        path.replace("signature=", "signature=%C3%A9"),
    ):
        assert refused(changed) is Code.FORBIDDEN, changed


@pytest.mark.parametrize("file_id", ["..", "../" * 3, "%2e%2e", "0A" * 16, "0a" * 17, "", "0a" * 15 + "0\0"])
def test_an_id_that_is_none_of_ours_is_not_found(file_id: str) -> None:
    assert refused("/files/" + file_id + "?" + LINK.path(KEY).partition("?")[2]) is Code.NOT_FOUND


def test_a_buyer_is_told_link_name_size_type_and_hash() -> None:
    assert bought_body(FILE, "https://gate.example/files/x", 5, str) == {
        "downloadUrl": "https://gate.example/files/x",
        "fileName": "report.pdf",
        "size": 1000,
        "contentType": "application/pdf",
        "sha256": "ab" * 32,
        "expiresAt": "5000",
    }


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (None, "file"),
        ("", "file"),
        ("..", "file"),
        ("report.pdf", "report.pdf"),
        ("C:\\Users\\me\\report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("a\r\nSet-Cookie: x=1", "aSet-Cookie x=1"),
        ("annexe\u202efdp.exe", "annexefdp.exe"),
        ("re\u0301sume\u0301.txt", "r\u00e9sum\u00e9.txt"),
        ('we"ird<>|?*.txt', "weird.txt"),
        ("x" * 500, "x" * 200),
        ("x" * 199 + " .txt", "x" * 196 + ".txt"),
        ("x" * 500 + ".pdf", "x" * 196 + ".pdf"),
        ("é" * 500 + ".tar.gz", "é" * 193 + ".tar.gz"),
        ("x" * 192 + " . ." + "y" * 100 + ".tar.gz", "x" * 192 + ".tar.gz"),
        ("x" * 300 + "." + "y" * 17, "x" * 200),
        ("x" * 300 + ". pdf", "x" * 200),
        ("." * 300 + "x.txt", "x.txt"),
    ],
)
def test_a_file_s_name_is_cleaned(sent: str | None, kept: str) -> None:
    assert clean_name(sent) == kept


@given(st.text(max_size=300))
def test_any_name_makes_one_safe_header(sent: str) -> None:
    name = clean_name(sent)
    header = disposition(name)
    assert name
    assert clean_name(name) == name
    assert header.isascii()
    assert header.isprintable()
    assert header.count('"') == 2
    assert unquote(header.partition("filename*=UTF-8''")[2]) == name


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("text/html; charset=utf-8", "text/html"),
        ("Application/PDF", "application/pdf"),
        (None, DEFAULT_TYPE),
        ("", DEFAULT_TYPE),
        ("text", DEFAULT_TYPE),
        ("text/a b", DEFAULT_TYPE),
        ("text/\r\nx", DEFAULT_TYPE),
    ],
)
def test_a_media_type_is_one_or_octets(sent: str | None, kept: str) -> None:
    assert clean_type(sent) == kept


WHOLE, ETAG = Part(200, 0, 1000), f'"{"ab" * 32}"'


@pytest.mark.parametrize(
    ("headers", "part"),
    [
        ({}, WHOLE),
        ({"range": "bytes=0-0"}, Part(206, 0, 1)),
        ({"range": "bytes=0-"}, Part(206, 0, 1000)),
        ({"range": "bytes=999-"}, Part(206, 999, 1000)),
        ({"range": "bytes=100-299"}, Part(206, 100, 300)),
        ({"range": "bytes=100-99999"}, Part(206, 100, 1000)),
        ({"range": "bytes=-1"}, Part(206, 999, 1000)),
        ({"range": "bytes=-5000"}, Part(206, 0, 1000)),
        ({"range": "bytes=1000-"}, Part(416, 0, 0)),
        ({"range": "bytes=-0"}, Part(416, 0, 0)),
        ({"range": "bytes=5-4"}, WHOLE),
        ({"range": "bytes=0-1,3-4"}, WHOLE),
        ({"range": "bytes=" + "0-1," * 999}, WHOLE),
        ({"range": "bytes=a-b"}, WHOLE),
        ({"range": "items=0-1"}, WHOLE),
        ({"range": "bytes=0-1", "if-range": ETAG}, Part(206, 0, 2)),
        ({"range": "bytes=0-1", "if-range": '"other"'}, WHOLE),
        ({"range": "bytes=0-1", "if-range": "W/" + ETAG}, WHOLE),
        ({"if-none-match": ETAG}, Part(304, 0, 0)),
        ({"if-none-match": f'"x", W/{ETAG}'}, Part(304, 0, 0)),
        ({"if-none-match": "*"}, Part(304, 0, 0)),
        ({"if-none-match": '"other"'}, WHOLE),
        ({"if-match": ETAG}, WHOLE),
        ({"if-match": "*", "range": "bytes=0-1"}, Part(206, 0, 2)),
        ({"if-match": '"other"'}, Part(412, 0, 0)),
        ({"if-match": "W/" + ETAG}, Part(412, 0, 0)),
    ],
)
def test_conditions_and_ranges_are_answered_as_the_rfc_says(headers: dict[str, str], part: Part) -> None:
    assert asked_part(FILE, headers.get) == part


@given(st.integers(0, 2000), st.one_of(st.none(), st.integers(0, 2000)), st.integers(0, 1500))
def test_a_range_lies_within_the_file(first: int, last: int | None, size_bytes: int) -> None:
    file = StoredFile(FILE.id, "x", size_bytes, DEFAULT_TYPE, "00")
    asked = f"bytes={first}-{'' if last is None else last}"
    part = asked_part(file, {"range": asked}.get)
    assert 0 <= part.start <= part.end <= size_bytes
    if part.status == 206:
        assert part.end - part.start == min(size_bytes, 2**60 if last is None else last + 1) - first
