from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tollkeeper.core.api.errors import Code
from tollkeeper.core.api.openapi import JSON, Bearer, Operation, Parameter, ResponseSpec, document, ref
from tollkeeper.core.api.schemas import PRICE, PRICE_ASKED, SCHEMAS, header, in_path, limit, query

ANSWERS: dict[int | str, ResponseSpec] = {
    201: ResponseSpec("Made", {JSON: ref("Thing")}, {"X-Made": {"type": "string"}})
}
SIMPLE = Operation(id="make", method="post", path="/things", tag="things", summary="Make one", answers=ANSWERS)
FULL = Operation(
    id="replace",
    method="put",
    path="/things/{id}",
    tag="things",
    summary="Replace one",
    description="At once.",
    parameters=(Parameter("id", "path", {"type": "string"}, required=True), Parameter("v", "query", {}, "Which")),
    request={JSON: ref("Thing")},
    bearer=Bearer.REQUIRED,
    answers={200: ResponseSpec("Done"), 402: ResponseSpec("Pay.", {JSON: ref("Part")})},
    codes=(Code.AUTH_REQUIRED, Code.NOT_FOUND, Code.METHOD_NOT_ALLOWED, Code.UNAVAILABLE),
    also={402: (Code.PAYMENT_INVALID,), 404: (Code.CONFLICT,)},
    links={"make": {"id": "$response.body#/id"}},
)
THINGS = {**SCHEMAS, "Thing": {"anyOf": [ref("Part"), {"type": "null"}]}, "Part": {"items": ref("Thing")}}


def test_an_operation_says_what_it_takes_and_answers() -> None:
    body = FULL.body()
    assert body["description"] == "At once."
    assert [parameter["required"] for parameter in body["parameters"]] == [True, False]
    assert "description" not in body["parameters"][0]
    assert body["requestBody"] == {"required": True, "content": {JSON: {"schema": ref("Thing")}}}
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
    operation = Operation(
        id="x", method="get", path="/x", tag="x", summary="x", bearer=bearer, answers={200: ResponseSpec("")}
    )
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
    assert either[0] == ref("Part")
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
    limits = document("", "", "", [reading], SCHEMAS)["components"]["headers"]
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
    made = document("Title", "Text", "https://hub.example", [SIMPLE, FULL], THINGS)
    assert made["openapi"] == "3.1.0"
    assert made["servers"] == [{"url": "https://hub.example"}]
    assert set(made["paths"]) == {"/things", "/things/{id}"}
    assert list(made["components"]["schemas"]) == ["Error", "Part", "Refusal", "Thing"]


def test_what_is_described_twice_or_names_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="described twice"):
        document("", "", "", [SIMPLE, SIMPLE], THINGS)
    with pytest.raises(ValueError, match="no schema Thing"):
        document("", "", "", [SIMPLE], SCHEMAS)


def test_a_limit_that_is_required_has_no_default() -> None:
    assert limit().schema["default"] == 20
    assert "default" not in limit(required=True).schema


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
    fits = tuple(re.search(schema["pattern"], text) is not None for schema in (PRICE, PRICE_ASKED))
    assert fits == (is_shown, is_asked)
