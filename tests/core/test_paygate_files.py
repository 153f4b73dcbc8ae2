"""File PayGates: what a form's fields mean, and what a gate with a file may not have (contract 3.1, 3.3, 4.8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.gates import GATE, NOW_MS
from tests.core.test_paygates import DEFAULTS, FORBIDDEN
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.downloads import StoredFile
from tollkeeper.core.paygates.fields import form_fields
from tollkeeper.core.paygates.model import (
    Counters,
    PayGate,
    check_fields_before_file,
    parse_create,
    updated,
)
from tollkeeper.gateway.management.gate_answers import paygate_body

FILE = StoredFile("0a" * 16, "report.pdf", 10, "application/pdf", "ab" * 32)
OTHER = StoredFile("0b" * 16, "other.txt", 20, "text/plain", "cd" * 32)
FILE_GATE = replace(GATE, target_url="", file=FILE, mime_type=FILE.content_type)
LEAST = {"price": "1", "resourceType": "file"}


def refused(body: dict[str, Any], file: StoredFile | None = FILE) -> tuple[Code, str]:
    with pytest.raises(ApiError) as caught:
        parse_create(body, DEFAULTS, file)
    assert caught.value.details is not None
    return caught.value.code, caught.value.details["field"]


def test_a_create_with_a_file_has_no_target_and_the_file_s_type() -> None:
    fields = parse_create(LEAST, DEFAULTS, FILE).fields
    assert (fields["target_url"], fields["file"], fields["mime_type"]) == ("", FILE, "application/pdf")
    assert parse_create(LEAST | {"mimeType": "text/csv"}, DEFAULTS, FILE).fields["mime_type"] == "text/csv"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("targetUrl", "https://api.example/"),
        ("headerAuthMode", "hmac"),
        ("allowSubpaths", True),
        ("stream", True),
        ("targetHeaders", {"a": "b"}),
        ("onFailure", "restore"),
        ("resourceType", "url"),
        ("resourceType", 1),
        ("colour", "red"),
    ],
)
def test_what_speaks_of_a_target_is_refused_beside_a_file(name: str, value: object) -> None:
    assert refused(LEAST | {name: value}) == (Code.INVALID_PARAMETER, name)


def test_a_file_needs_its_resource_type_and_the_type_its_file() -> None:
    assert refused({"price": "1"}) == (Code.MISSING_PARAMETER, "resourceType")
    body = {"price": "1", "targetUrl": "https://api.example/", "resourceType": "file"}
    assert refused(body, None) == (Code.INVALID_PARAMETER, "resourceType")


@pytest.mark.parametrize("body", [{"resourceType": "file"}, {"file": "cmVwb3J0"}, {"price": "1", "file": None}])
def test_who_sends_a_file_as_json_is_told_how_to_send_it(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="multipart/form-data"):
        parse_create(body, DEFAULTS)
    with pytest.raises(ApiError, match="multipart/form-data"):
        update(GATE, body)


def update(gate: PayGate, body: dict[str, Any], file: StoredFile | None = None) -> PayGate:
    return updated(gate, body, NOW_MS, FORBIDDEN, file)


def test_an_update_replaces_the_file_and_its_type_or_leaves_both() -> None:
    changed = update(FILE_GATE, {}, OTHER)
    assert (changed.file, changed.mime_type, changed.version) == (OTHER, "text/plain", FILE_GATE.version + 1)
    kept = update(FILE_GATE, {"price": "2", "resourceType": "file"})
    assert (kept.file, kept.mime_type, kept.price_micro) == (FILE, "application/pdf", 2_000_000)
    assert update(FILE_GATE, {"mimeType": "text/csv"}).mime_type == "text/csv"


def test_a_resource_type_cannot_change() -> None:
    with pytest.raises(ApiError, match="cannot change"):
        update(GATE, {}, FILE)
    with pytest.raises(ApiError, match="cannot change"):
        update(FILE_GATE, {"resourceType": "url"})
    with pytest.raises(ApiError, match="no meaning"):
        update(FILE_GATE, {"targetUrl": "https://api.example/"})


def test_a_file_paygate_is_read_with_what_it_sells() -> None:
    body = paygate_body(FILE_GATE, Counters(), "https://gate.example/x", str)
    assert {name: body[name] for name in ("resourceType", "fileName", "fileSize", "contentType", "sha256")} == {
        "resourceType": "file",
        "fileName": "report.pdf",
        "fileSize": 10,
        "contentType": "application/pdf",
        "sha256": "ab" * 32,
    }


def test_a_form_s_texts_become_the_values_that_json_has() -> None:
    pairs = [
        ("price", "0.01"),
        ("credits", "7"),
        ("isEnabled", "false"),
        ("requireAuth", "true"),
        ("accepts", '[{"network": "base"}]'),
        ("title", "7"),
    ]
    assert form_fields(pairs) == {
        "price": "0.01",
        "credits": 7,
        "isEnabled": False,
        "requireAuth": True,
        "accepts": [{"network": "base"}],
        "title": "7",
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("credits", "many"),
        ("credits", "-1"),
        ("credits", "1" * 17),
        ("credits", "\u0661"),
        ("isEnabled", "1"),
        ("isEnabled", "True"),
        ("accepts", "["),
        ("targetHeaders", "a=b"),
    ],
)
def test_a_text_that_cannot_be_the_field_is_refused_by_its_name(name: str, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        form_fields([(name, text)])
    assert (caught.value.code, caught.value.details) == (Code.INVALID_PARAMETER, {"field": name})


def test_a_field_that_comes_twice_is_refused() -> None:
    with pytest.raises(ApiError, match="twice"):
        form_fields([("price", "1"), ("price", "2")])


EVM, SOLANA = "0x" + "12" * 20, "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"


@pytest.mark.parametrize(
    ("body", "is_new", "network"),
    [
        ({}, True, None),
        ({}, False, None),
        (LEAST | {"slug": "mine"}, True, None),
        ({"paymentAddress": EVM}, True, None),
        ({"paymentAddress": SOLANA}, False, None),  # of the network that may follow, or of the gate's own
        ({"network": "base-sepolia", "paymentAddress": EVM}, True, "base-sepolia"),
        ({"accepts": [{"network": "base", "paymentAddress": EVM}]}, True, None),
        ({"network": "base"}, False, "base"),
    ],
)
def test_fields_that_come_before_their_file_miss_nothing_yet(
    body: dict[str, Any], network: str | None, *, is_new: bool
) -> None:
    assert check_fields_before_file(body, FORBIDDEN, is_new=is_new) == network


@pytest.mark.parametrize(
    ("body", "is_new", "code", "field"),
    [
        ({"price": ""}, True, Code.INVALID_AMOUNT, "price"),
        ({"price": ""}, False, Code.INVALID_AMOUNT, "price"),
        ({"resourceType": ""}, True, Code.MISSING_PARAMETER, "resourceType"),
        ({"resourceType": "url"}, True, Code.INVALID_PARAMETER, "resourceType"),
        ({"targetUrl": "https://api.example/"}, False, Code.INVALID_PARAMETER, "targetUrl"),
        ({"colour": "red"}, True, Code.INVALID_PARAMETER, "colour"),
        ({"slug": "mine"}, False, Code.INVALID_PARAMETER, "slug"),
        ({"slug": "a b"}, True, Code.INVALID_PARAMETER, "slug"),
        ({"paymentAddress": "0x12"}, True, Code.INVALID_ADDRESS, "paymentAddress"),
        ({"network": "base", "paymentAddress": SOLANA}, True, Code.INVALID_ADDRESS, "paymentAddress"),
        (
            {"network": "base", "accepts": [{"network": "base", "paymentAddress": EVM}]},
            True,
            Code.INVALID_PARAMETER,
            "accepts",
        ),
    ],
)
def test_fields_that_come_before_their_file_are_refused_where_nothing_could_mend_them(
    body: dict[str, Any], code: Code, field: str, *, is_new: bool
) -> None:
    with pytest.raises(ApiError) as caught:
        check_fields_before_file(body, FORBIDDEN, is_new=is_new)
    assert caught.value.details is not None
    assert (caught.value.code, caught.value.details["field"]) == (code, field)
