from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar

import pytest
from msgspec import UNSET, UnsetType

from tollkeeper.core.api.bodies import PRICE_ASKED_PATTERN, PRICE_PATTERN, AnswerBody, Body, Schema
from tollkeeper.core.api.errors import Code
from tollkeeper.core.api.openapi import (
    JSON,
    Bearer,
    Operation,
    Parameter,
    ResponseSpec,
    answer,
    document,
    header,
    in_path,
    limit,
    query,
    read,
)


class Part(Body):
    """A part."""

    more: ClassVar[Schema] = {"minProperties": 1}

    of: Thing | None
    number: int | UnsetType = UNSET


class Thing(AnswerBody):
    """A thing."""

    parts: list[Part]


ANSWERS: dict[int | str, ResponseSpec] = {201: ResponseSpec("Made", {JSON: Thing}, {"X-Made": str})}
SIMPLE = Operation("make", "post /things", "Make one", tag="things", answers=ANSWERS)
FULL = Operation(
    "replace",
    "put /things/{id}",
    "Replace one",
    tag="things",
    description="At once.",
    parameters=(Parameter("id", "path", {"type": "string"}, required=True), Parameter("v", "query", {}, "Which")),
    request={JSON: Thing},
    bearer=Bearer.REQUIRED,
    answers={200: ResponseSpec("Done"), 402: ResponseSpec("Pay.", {JSON: Part})},
    codes=(Code.AUTH_REQUIRED, Code.NOT_FOUND, Code.METHOD_NOT_ALLOWED, Code.UNAVAILABLE),
    also={402: (Code.PAYMENT_INVALID,), 404: (Code.CONFLICT,)},
    links={"make": {"id": "$response.body#/id"}},
)


def test_an_operation_says_what_it_takes_and_answers() -> None:
    body = FULL.body()
    assert body["description"] == "At once."
    assert [parameter["required"] for parameter in body["parameters"]] == [True, False]
    assert "description" not in body["parameters"][0]
    assert body["requestBody"] == {"required": True, "content": {JSON: {"schema": Thing}}}
    assert body["responses"]["200"]["links"]["make"] == {
        "operationId": "make",
        "parameters": {"id": "$response.body#/id"},
    }
    assert {"description", "parameters", "requestBody", "security"}.isdisjoint(SIMPLE.body())


def test_success_is_the_first_answer() -> None:
    assert (SIMPLE.status, FULL.status) == (201, 200)
    assert SIMPLE.body()["responses"]["201"]["headers"]["X-Made"]["required"] is True


@pytest.mark.parametrize(
    ("bearer", "security"),
    [(Bearer.REQUIRED, [{"bearer": []}]), (Bearer.OPTIONAL, [{"bearer": []}, {}])],
)
def test_a_bearer_is_required_or_taken(bearer: Bearer, security: list[object]) -> None:
    operation = Operation("x", "get /x", "x", tag="x", bearer=bearer, answers={200: ResponseSpec("")})
    assert operation.body()["security"] == security


def test_every_refusal_is_told_by_its_status_with_its_codes() -> None:
    anywhere = {400: "INVALID_PARAMETER", 429: "RATE_LIMITED", 431: "HEADERS_TOO_LARGE", 500: "INTERNAL_ERROR"}
    assert SIMPLE.refusals() == {status: (code,) for status, code in anywhere.items()}
    refusals = FULL.refusals()
    assert refusals[404] == ("NOT_FOUND", "CONFLICT")
    responses = FULL.body()["responses"]
    assert responses["404"]["description"] == "NOT_FOUND, CONFLICT"
    assert responses["401"]["headers"]["WWW-Authenticate"]["required"]
    assert responses["405"]["headers"]["Allow"]["required"]
    assert responses["503"]["headers"]["Retry-After"]["required"]
    assert responses["402"]["description"] == "Pay. Or PAYMENT_INVALID"
    either = responses["402"]["content"][JSON]["schema"]["anyOf"]
    assert either[0] is Part
    assert either[1]["allOf"][1]["properties"]["error"]["properties"]["code"] == {"enum": ["PAYMENT_INVALID"]}


def test_headers_that_some_answers_have_are_optional_and_those_of_limits_are_everywhere() -> None:
    text = {"type": "string"}
    reading = replace(
        SIMPLE,
        answers={
            200: ResponseSpec("It", may_have={"X-Total": text}),
            304: ResponseSpec("Known", headers={"ETag": text}),
        },
        codes=(Code.UNAVAILABLE,),
        refusal_headers={503: {"X-Token": text}},
        is_limited=True,
    )
    responses = reading.body()["responses"]
    assert responses["200"]["headers"]["X-Total"] == {"required": False, "schema": text}
    assert responses["200"]["headers"]["ETag"]["required"] is True
    assert responses["503"]["headers"]["X-Token"] == {"required": False, "schema": text}
    assert responses["503"]["headers"]["Retry-After"]["required"] is True
    limits = document("", "", "", [reading])["components"]["headers"]
    for response in responses.values():
        for name in ("RateLimit", "RateLimit-Policy"):
            assert limits[response["headers"][name]["$ref"].rpartition("/")[2]]["required"] is False
    assert all("RateLimit" not in response["headers"] for response in SIMPLE.body()["responses"].values())


def test_a_browser_may_get_a_refusal_as_a_page_and_no_success() -> None:
    page = replace(SIMPLE, codes=(Code.NOT_FOUND,), is_page=True).body()["responses"]
    assert {status for status, one in page.items() if "text/html" in one.get("content", {})} == {
        status for status in page if status >= "400"
    }
    plain = SIMPLE.body()["responses"].values()
    assert all("text/html" not in one.get("content", {}) for one in plain)


def test_a_document_holds_the_schemas_that_are_named_and_no_others() -> None:
    made = document("Title", "Text", "https://hub.example", [SIMPLE, FULL])
    assert made["openapi"] == "3.1.0"
    assert made["servers"] == [{"url": "https://hub.example"}]
    assert set(made["paths"]) == {"/things", "/things/{id}"}
    schemas = made["components"]["schemas"]
    assert list(schemas) == ["Code", "Error", "ErrorType", "Part", "RefusalBody", "Thing"]
    assert schemas["Thing"]["required"] == ["parts", "apiVersion", "timestamp"]
    assert schemas["Thing"]["properties"]["parts"] == {"type": "array", "items": {"$ref": "#/components/schemas/Part"}}
    assert (schemas["Part"]["required"], schemas["Part"]["minProperties"]) == (["of"], 1)
    body = made["paths"]["/things"]["post"]["responses"]["201"]["content"][JSON]["schema"]
    assert body == {"$ref": "#/components/schemas/Thing"}


def test_a_read_takes_what_its_caller_has_and_has_an_etag() -> None:
    reading = Operation("read", "get /things", "Read", tag="things", answers=read("It", Thing)).body()
    assert [parameter["name"] for parameter in reading["parameters"]] == ["If-None-Match"]
    assert all(reading["responses"][status]["headers"]["ETag"]["required"] for status in ("200", "304"))


def test_an_operation_that_is_described_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="described twice"):
        document("", "", "", [SIMPLE, SIMPLE])


def test_a_limit_that_is_required_has_no_default() -> None:
    shown, required = limit().body()["schema"], limit(required=True).body()["schema"]
    assert (shown["default"], "default" in required) == (20, False)


def test_only_what_is_in_the_path_is_always_required() -> None:
    parameters = [in_path("id", {}), query("v", {}), query("w", {}, required=True), header("X-Payment")]
    places = [(parameter.place, parameter.required) for parameter in parameters]
    assert places == [("path", True), ("query", False), ("query", True), ("header", False)]


@pytest.mark.parametrize(
    ("text", "is_shown", "is_asked"),
    [
        ("0", True, False),
        ("0.0", True, False),
        ("0.01", True, True),
        ("00.1", False, False),
        ("1.0000001", False, False),
    ],
)
def test_a_price_is_decimal_and_one_that_is_asked_above_zero(text: str, is_shown: bool, is_asked: bool) -> None:  # noqa: FBT001 - a table
    fits = tuple(re.search(pattern, text) is not None for pattern in (PRICE_PATTERN, PRICE_ASKED_PATTERN))
    assert fits == (is_shown, is_asked)


def test_an_operation_of_one_success_has_one_answer() -> None:
    described = answer("Made", Body, 201)
    assert list(described) == [201]
