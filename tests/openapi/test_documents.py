"""The descriptions are OpenAPI 3.1, and complete: every route, every error code (contract 2, 9)."""

from __future__ import annotations

import ast
import re
import urllib.request
from pathlib import Path

import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from tests.interop.stack import ask
from tests.openapi.conftest import Described
from tollkeeper.core.api.errors import Code

SOURCES = Path(__file__).resolve().parents[2] / "src" / "tollkeeper"
ENDPOINTS = """
gateway GET /api/v1/auth/message
gateway POST /api/v1/auth/login
gateway POST /api/v1/auth/handover
gateway POST /api/v1/auth/refresh
gateway GET /api/v1/auth/me
gateway POST /api/v1/auth/logout
gateway POST /api/v1/auth/introspect
gateway GET /.well-known/jwks.json
gateway POST /api/v1/paygates
gateway GET /api/v1/paygates
gateway GET /api/v1/paygates/{gate_id}
gateway PUT /api/v1/paygates/{gate_id}
gateway DELETE /api/v1/paygates/{gate_id}
gateway POST /api/v1/paygates/{gate_id}/claim
gateway POST /api/v1/paygates/{gate_id}/secret
gateway POST /api/v1/paygates/{gate_id}/test
gateway GET /api/v1/paygates/{gate_id}/stats
gateway GET /api/v1/paygates/{gate_id}/requests
gateway GET /api/v1/stats
gateway GET /api/v1/requests
gateway GET /api/v1/payments
gateway GET /api/v1/events
gateway POST /api/v1/sandbox/pay
gateway GET /api/v1/credits
gateway POST /api/v1/solana/transactions
gateway POST /api/v1/transfer
gateway GET /healthz
gateway GET /readyz
gateway GET /openapi.json
gateway GET /docs
gateway GET /files/{file_id}
gateway HEAD /files/{file_id}
gateway GET /{slug}
gateway HEAD /{slug}
gateway POST /{slug}
gateway PUT /{slug}
gateway PATCH /{slug}
gateway DELETE /{slug}
gateway OPTIONS /{slug}
hub GET /api/v1/auth/message
hub POST /api/v1/auth/login
hub POST /api/v1/auth/handover
hub POST /api/v1/auth/refresh
hub GET /api/v1/auth/me
hub POST /api/v1/auth/logout
hub POST /api/v1/auth/introspect
hub GET /.well-known/jwks.json
hub GET /api/v1/history
hub GET /api/v1/history/{settlement_id}
hub GET /payments/{network}/{payer}/{nonce}
hub GET /payments/{network}/{name}
hub GET /supported
hub POST /verify
hub POST /settle
hub POST /standing
hub POST /transfer
hub GET /healthz
hub GET /readyz
hub GET /openapi.json
hub GET /docs
"""


@pytest.mark.parametrize("part", ["gateway", "hub"])
def test_a_description_is_openapi_3_1(described: Described, part: str) -> None:
    document = described.document(part)
    errors = [f"{error.instance_path}: {error.message}" for error in OPENAPI_31_VALIDATOR.iter_errors(document)]
    assert errors == []
    assert document["servers"] == [{"url": described.url(part)}]


def test_every_endpoint_is_described(described: Described) -> None:
    assert set(described.operations) == set(ENDPOINTS.strip().splitlines())


def test_every_listing_comes_in_pages(described: Described) -> None:
    listings = set()
    for name, operation in described.operations.items():
        document = described.document(name.split()[0])
        schema = operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
        shape = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
        properties = shape.get("properties", {})
        if any(properties.get(of, {}).get("type") == "array" for of in ("data", "history")):
            asked = {parameter.get("name") for parameter in operation["parameters"]}
            listings.add((name, "pagination" in properties and asked >= {"limit", "offset"}))
    # Of statistics there is a row for each hour or day that was asked for, a thousand at most.
    assert listings == {
        ("gateway GET /api/v1/paygates", True),
        ("gateway GET /api/v1/paygates/{gate_id}/requests", True),
        ("gateway GET /api/v1/requests", True),
        ("gateway GET /api/v1/payments", True),
        ("gateway GET /api/v1/credits", True),
        ("gateway GET /api/v1/paygates/{gate_id}/stats", False),
        ("gateway GET /api/v1/stats", False),
        ("hub GET /api/v1/history", True),
    }


def test_no_handler_is_registered_but_by_its_description() -> None:
    routing = {"get", "post", "put", "patch", "delete", "head", "route", "HTTPRouteHandler", "Controller"}
    found = [
        (path.name, name.name)
        for path in SOURCES.rglob("*.py")
        if path.name != "describing.py"
        for node in ast.parse(path.read_text()).body  # not what is imported for types only
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "litestar"
        for name in node.names
        if name.name in routing
    ]
    assert found == []


def test_every_code_is_told_at_its_status(described: Described) -> None:
    told: dict[str, set[str]] = {}
    for operation in described.operations.values():
        for status, response in operation["responses"].items():
            for word in re.findall("[A-Z_]+", response["description"]):
                if word in set(Code):
                    told.setdefault(word, set()).add(status)
    assert set(told) == set(Code)
    # A refused payment is a 402 at a gate (contract 4.5); a payment's signature is not a login's. A download has two
    # refusals of HTTP's own (contract 4.8).
    elsewhere = {code: sorted(statuses - {str(Code[code].status)}) for code, statuses in told.items()}
    assert {code: statuses for code, statuses in elsewhere.items() if statuses} == {
        "PAYMENT_INVALID": ["402"],
        "INSUFFICIENT_FUNDS": ["402"],
        "INSUFFICIENT_AMOUNT": ["402"],
        "NONCE_ALREADY_USED": ["402"],
        "PAYMENT_EXPIRED": ["402"],
        "INVALID_NETWORK": ["402"],
        "INVALID_SIGNATURE": ["400", "402"],
        "INVALID_PARAMETER": ["412", "416"],
    }


def test_the_hub_describes_itself_below_api_too(described: Described) -> None:
    status, document = ask(f"{described.stack.hub_url}/api/v1/openapi.json")
    assert (status, document) == (200, described.hub)


@pytest.mark.parametrize("part", ["gateway", "hub"])
def test_the_page_shows_every_operation_and_takes_nothing_from_elsewhere(described: Described, part: str) -> None:
    with urllib.request.urlopen(f"{described.url(part)}/docs") as answer:  # noqa: S310 - our own address
        page, headers = answer.read().decode(), answer.headers
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    for path, item in described.document(part)["paths"].items():
        for method in item:
            assert f"<code>{method.upper()} {path}</code>" in page
    scripts = re.findall(r'src="([^"]*)"', page)
    assert re.findall(r'href="([^"]*)"', page) == ["openapi.json"]
    # The gateway of a sandbox lets its reader try each operation (`tests/web/test_docs.py`).
    assert [one.partition("/")[0] for one in scripts] == {"gateway": ["assets"], "hub": []}[part]
    assert page.count("<script") == len(scripts)
    assert ("script-src 'self'" in policy) == bool(scripts)


@pytest.mark.parametrize("method", ["OPTIONS", "PATCH"])
def test_allow_names_every_method_of_a_path(described: Described, method: str) -> None:
    request = urllib.request.Request(f"{described.stack.gateway_url}/api/v1/paygates/1", method=method)  # noqa: S310
    opener = urllib.request.build_opener(_Unraised)
    with opener.open(request) as answer:
        assert answer.status == {"OPTIONS": 204, "PATCH": 405}[method]
        assert set(answer.headers["Allow"].replace(" ", "").split(",")) == {"GET", "HEAD", "PUT", "DELETE", "OPTIONS"}


class _Unraised(urllib.request.HTTPErrorProcessor):
    def http_response(self, _request: object, response: object) -> object:
        return response
