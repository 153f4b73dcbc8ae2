"""What every answer that a test sees is compared with is what the program serves, and the comparison misses nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import described_answers
from tests.described_answers import differences
from tests.openapi.conftest import Described

HEADERS = {"x402-version": "1", "x-request-id": "1", "content-type": "application/json"}
ENDS = {"apiVersion": "v1", "timestamp": "2026-01-01T00:00:00.000Z"}


def refusal(kind: str, code: str, **more: object) -> bytes:
    error = {"type": kind, "code": code, "message": "it is not", "requestId": "1"}
    return json.dumps({"error": error, **more, **ENDS}).encode()


def refusal_of(field: str) -> bytes:
    body = json.loads(refusal("validation", "INVALID_PARAMETER"))
    return json.dumps({**body, "error": {**body["error"], "details": {"field": field}}}).encode()


@pytest.mark.parametrize("part", ["gateway", "hub"])
def test_answers_are_compared_with_what_the_program_serves(described: Described, part: str) -> None:
    for name in ("paths", "components"):
        assert described_answers.documents()[part][name] == described.document(part)[name]


def test_an_answer_as_described_has_no_differences() -> None:
    gone = refusal("validation", "NOT_FOUND")
    for path in ("/api/v1/paygates/1", "//api/v1/paygates/1", "/hub/payments/base/0x1/0x2", "/nothing", "/slug/below"):
        assert differences("GET", path, 404, HEADERS, gone) == []
    assert differences("GET", "/hub/healthz", 200, HEADERS, json.dumps({"status": "ok", **ENDS}).encode()) == []
    assert differences("HEAD", "/healthz", 200, HEADERS, b"") == []
    limited = {**HEADERS, "ratelimit": '"api";r=1;t=2', "ratelimit-policy": '"api";q=600;w=60', "vary": "Origin"}
    assert differences("GET", "/api/v1/paygates/1", 404, limited, gone) == []
    no_such_part = {**HEADERS, "etag": '"1"', "content-range": "bytes */5"}
    assert differences("GET", "/files/1", 416, no_such_part, refusal_of("Range")) == []


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "body"),
    [
        ("GET", "/api/v1/paygates/1", 418, HEADERS, refusal("validation", "NOT_FOUND")),
        ("GET", "/api/v1/paygates/1", 404, HEADERS, refusal("validation", "CONFLICT")),
        ("GET", "/api/v1/paygates/1", 404, HEADERS, refusal("validation", "NOT_FOUND", undescribed=1)),
        ("GET", "/api/v1/paygates/1", 404, HEADERS, b'{"error":"not found"}'),
        ("GET", "/api/v1/paygates/1", 404, {**HEADERS, "content-type": "text/plain"}, b"not found"),
        ("GET", "/api/v1/paygates/1", 503, HEADERS, refusal("server", "UNAVAILABLE")),  # no Retry-After
        ("GET", "/hub/healthz", 200, HEADERS, json.dumps({"status": 1, **ENDS}).encode()),
        ("GET", "/hub/healthz", 200, HEADERS, json.dumps({"status": "ok", "more": 1, **ENDS}).encode()),
        ("HEAD", "/healthz", 200, HEADERS, b"x"),
        ("GET", "/hub/nothing", 409, HEADERS, refusal("validation", "CONFLICT")),
        ("GET", "/hub/nothing", 404, HEADERS, b"not found"),
        ("PATCH", "/api/v1/paygates/1", 400, HEADERS, refusal("validation", "MISSING_PARAMETER")),
        ("GET", "/api/v1/paygates/1", 404, {**HEADERS, "x-more": "1"}, refusal("validation", "NOT_FOUND")),
        ("GET", "/api/v1/paygates/1", 404, {**HEADERS, "ratelimit": "1"}, refusal("validation", "NOT_FOUND")),
        ("GET", "/api/v1/paygates/1", 404, {**HEADERS, "x-credit-token": "1"}, refusal("validation", "NOT_FOUND")),
        ("GET", "/hub/supported", 304, HEADERS, b""),  # no ETag
        ("PUT", "/api/v1/paygates/1", 400, HEADERS, refusal("validation", "INVALID_PARAMETER")),  # no field
    ],
)
def test_what_is_not_described_is_a_difference(
    method: str, path: str, status: int, headers: dict[str, str], body: bytes
) -> None:
    assert differences(method, path, status, headers, body) != []


def test_of_a_targets_answer_the_receipt_is_compared() -> None:
    receipt = {"x-purchase-id": "1", "x-credits-total": "2", "x-credits-remaining": "1", "x-payment-response": "e30="}
    described_answers.seen("GET", "http://127.0.0.1/slug", 418, {**HEADERS, **receipt, "x-theirs": "1"}, b"what?")
    described_answers.refuse_undescribed()
    for wrong in ({"x-credits-left": "1"}, {"x-credits-total": "many"}):
        described_answers.seen("GET", "http://127.0.0.1/slug", 200, {**HEADERS, **receipt, **wrong}, b"")
        with pytest.raises(pytest.fail.Exception, match=next(iter(wrong))):
            described_answers.refuse_undescribed()


def test_a_test_that_saw_what_is_not_described_fails() -> None:
    args: tuple[Any, ...] = ("GET", "http://127.0.0.1/hub/healthz", 418, HEADERS, b"{}")
    described_answers.seen(*args)
    with pytest.raises(pytest.fail.Exception, match="describes no 418"):
        described_answers.refuse_undescribed()
    described_answers.seen("GET", "http://127.0.0.1/hub/healthz", 418, {"content-type": "application/json"}, b"{}")
    described_answers.refuse_undescribed()  # that one was somebody else's
