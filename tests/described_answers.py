"""Every answer of the program that a test sees is one that its description has (contract 2, `/openapi.json`).

A plugin of all tests: what any of them reads through aiohttp, or gives to `seen` or `seen_raw`, is compared with the
operation that was asked, by status, media type, headers and body; the test fails at its end where one is not described.
Headers of the connection, of caching and for web pages need no description: they mean what they mean everywhere.
An answer is the program's own where it has the two headers that each of these has; what a target or a node says is
theirs, but for the receipt beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import pytest

_ANYWHERE: Final = {
    (404, "NOT_FOUND"),
    (405, "METHOD_NOT_ALLOWED"),
    (400, "INVALID_PARAMETER"),
    (403, "FORBIDDEN"),
    (413, "PAYLOAD_TOO_LARGE"),
    (429, "RATE_LIMITED"),
    (431, "HEADERS_TOO_LARGE"),
    (500, "INTERNAL_ERROR"),
}
_UNDESCRIBED_HEADERS: Final = {
    *("connection", "content-length", "content-type", "date", "keep-alive", "transfer-encoding"),
    *("cache-control", "vary", "content-security-policy", "cross-origin-resource-policy", "x-content-type-options"),
    *("content-encoding", "cross-origin-opener-policy", "referrer-policy"),
}
_FOR_PAGES: Final = "access-control-"
_RECEIPTS: Final = ("x-payment-", "x-credit", "x-purchase-")
_undescribed: list[str] = []
_elsewhere: set[str] = set()


def has_no_description(url: str) -> None:
    """From now on, what this host and port answer is none of the described API's: the admin address."""
    _elsewhere.add(urlsplit(url).netloc)


def seen(method: str, url: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Takes note of an answer. What is wrong with it is the failure of the test that is running."""
    named = {name.lower(): value for name, value in headers.items()}
    is_ours = {"x402-version", "x-request-id"} <= named.keys() and urlsplit(url).netloc not in _elsewhere
    if not is_ours:
        return
    if _is_a_targets(status, named):
        named = {name: value for name, value in named.items() if name.startswith(_RECEIPTS)}
        response = _call_response(method, status)
        problems = _undescribed_headers("gateway", response, named)
        if problems:
            _undescribed.append(f"{method} {url} -> {status}: {'; '.join(problems)}")
        return
    problems = differences(method, urlsplit(url).path, status, named, body)
    if problems:
        _undescribed.append(f"{method} {url} -> {status} {body[:400]!r}: {'; '.join(problems)}")


def seen_raw(method: str, url: str, head: bytes, body: bytes) -> None:
    """The same for an answer as it came from a socket: its head, with or without the empty line, and its body."""
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    seen(method, url, int(first.split(" ")[1]), {name: value.strip() for name, _, value in pairs}, body)


def _is_a_targets(status: int, headers: Mapping[str, str]) -> bool:
    """A 502 after payment is ours, and has the receipt's headers too (contract 4.5)."""
    return "x-purchase-id" in headers and status != 502


def differences(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> list[str]:
    """What the description of the asked operation does not say of this answer; empty where it says all of it."""
    found: list[list[str]] = []
    if path.startswith("/hub/") and status == 404:
        found.append(_at_no_operation(status, body))  # a gateway apart has nothing there
    for part, local in _places(path):
        item = _item(part, local)
        if item is None:
            continue
        operation = item.get("get" if method == "HEAD" and "head" not in item else method.lower())
        if operation is None:
            found.append([] if method == "OPTIONS" and status == 204 else _at_no_operation(status, body))
            continue
        found.append(_differences(part, operation, method, status, headers, body))
    if not found:
        return _at_no_operation(status, body)
    return min(found, key=len)  # a path may be one of the gateway's and one of the hub's: their own ports look alike


def _places(path: str) -> list[tuple[str, str]]:
    """The parts that may have been asked, each with the path that it has in its description."""
    path = re.sub("/{2,}", "/", path)
    inner = path.removeprefix("/hub") if path.startswith("/hub/") else None
    hub_path = path if inner is None else inner
    spellings = [hub_path, hub_path.removeprefix("/api/v1"), "/api/v1" + hub_path]
    hub = [("hub", one) for one in spellings]
    return hub if inner is not None else [("gateway", path), *hub]


@cache
def documents() -> dict[str, dict[str, Any]]:
    """The descriptions of both parts, made of what stands in the sources."""
    # Here and not above, so that the measured coverage of the core is that of its own tests.
    from dataclasses import replace  # noqa: PLC0415 - see above

    from tollkeeper.auth import operations as logins  # noqa: PLC0415 - see above
    from tollkeeper.core.api.openapi import Operation, document  # noqa: PLC0415 - see above
    from tollkeeper.describing import DOCS, OPENAPI  # noqa: PLC0415 - see above
    from tollkeeper.gateway import call_operations  # noqa: PLC0415 - see above
    from tollkeeper.gateway.management import operations as of_gateway  # noqa: PLC0415 - see above
    from tollkeeper.hub.api import operations as of_hub  # noqa: PLC0415 - see above

    def made_of(module: Any) -> list[Operation]:
        return [value for value in vars(module).values() if isinstance(value, Operation)]

    described = [*made_of(logins), OPENAPI, DOCS]
    gateway = [*made_of(of_gateway), *call_operations.CALLS, *described]
    hub = [replace(one, codes=(*one.codes, *of_hub.IN_FRONT)) for one in (*made_of(of_hub), *described)]
    return {
        "gateway": document("gateway", "", "", gateway),
        "hub": document("hub", "", "", hub),
    }


@cache
def _item(part: str, path: str) -> dict[str, Any] | None:
    """The Path Item of a path: one that is written so, else one whose template it fits."""
    paths: dict[str, dict[str, Any]] = documents()[part]["paths"]
    if path in paths:
        return paths[path]
    for template, item in sorted(paths.items(), key=lambda path: path[0] == "/{slug}"):  # which fits all others too
        # A call may be of a path below its PayGate's slug, which a template cannot say.
        below = "(/.*)?" if template == "/{slug}" else ""
        if "{" in template and re.fullmatch(re.sub(r"\{[a-z_]+\}", "[^/]+", template) + below, path):
            return item
    return None


def _call_response(method: str, status: int) -> dict[str, Any]:
    """What is described of a PayGate's answer with this status."""
    responses = documents()["gateway"]["paths"]["/{slug}"][method.lower()]["responses"]
    found: dict[str, Any] = responses.get(str(status), responses["default"])
    return found


def _undescribed_headers(part: str, response: dict[str, Any], headers: Mapping[str, str]) -> list[str]:
    """Headers that are there and not described, and those that are described otherwise."""
    described = {name.lower(): _resolved(part, header) for name, header in response.get("headers", {}).items()}
    problems = [
        f"the header {name} is not described"
        for name in headers.keys() - described.keys() - _UNDESCRIBED_HEADERS
        if not name.startswith(_FOR_PAGES)
    ]
    for name in headers.keys() & described.keys():
        misfits = _value_misfits(json.dumps(described[name].get("schema", {})), headers[name])
        problems += [f"the header {name}: {misfit}" for misfit in misfits]
    return problems


def _resolved(part: str, header: dict[str, Any]) -> dict[str, Any]:
    name = header.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = documents()[part]["components"]["headers"][name] if name else header
    return found


def _value_misfits(schema: str, value: str) -> list[str]:
    import jsonschema_rs  # noqa: PLC0415 - most tests see no answer

    return [error.message for error in jsonschema_rs.Draft202012Validator(json.loads(schema)).iter_errors(value)]


def _at_no_operation(status: int, body: bytes) -> list[str]:
    try:
        code = json.loads(body)["error"]["code"] if body else ""
    except (ValueError, KeyError, TypeError):
        return ["an answer to what is no operation has no error body"]
    if body and (status, code) not in _ANYWHERE:
        return [f"{status} {code} at what is no operation"]
    return [] if not body else _misfits("hub", {"$ref": "#/components/schemas/Error"}, body)


def _differences(
    part: str, operation: dict[str, Any], method: str, status: int, headers: Mapping[str, str], body: bytes
) -> list[str]:
    responses = operation["responses"]
    response = responses.get(str(status), responses.get("default"))
    if response is None:
        return [f"{operation['operationId']} describes no {status}"]
    problems = [
        f"the header {name} is missing"
        for name, header in response.get("headers", {}).items()
        if name.lower() not in headers and _resolved(part, header).get("required", True)
    ]
    problems += _undescribed_headers(part, response, headers)
    if method == "HEAD" or status in {204, 304}:
        return problems if not body else [*problems, "a body where there is none"]
    contents = response.get("content", {})
    if not contents:
        return problems if not body else [*problems, "a body where none is described"]
    media_type = headers.get("content-type", "").partition(";")[0].strip()
    content = contents.get(media_type) or contents.get("*/*")
    if content is None:
        return [*problems, f"{media_type!r} is not described"]
    if media_type == "application/json":
        problems += _misfits(part, content.get("schema", {}), body)
    return problems


def _misfits(part: str, schema: dict[str, Any], body: bytes) -> list[str]:
    validator = _validator(part, json.dumps(schema))
    return [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(json.loads(body))]


@cache
def _validator(part: str, schema: str) -> Any:
    import jsonschema_rs  # noqa: PLC0415 - most tests see no answer

    whole = {"components": documents()[part]["components"], **json.loads(schema)}
    return jsonschema_rs.Draft202012Validator(_closed(whole), validate_formats=True)


def _closed(schema: Any) -> Any:
    """The same for what is answered: a field that no description has is a difference too."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(one) for name, one in schema.items()}
    return {"additionalProperties": False, **closed} if {"type", "properties", "required"} <= closed.keys() else closed


_read: Final = aiohttp.ClientResponse.read


async def _read_and_seen(self: aiohttp.ClientResponse) -> bytes:
    is_new = self._body is None
    body = await _read(self)
    if is_new:
        seen(self.method, str(self.url), self.status, self.headers, body)
    return body


def pytest_configure() -> None:
    """From here on every response that aiohttp reads is looked at."""
    aiohttp.ClientResponse.read = _read_and_seen  # type: ignore[method-assign]  # what is read stays the same


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """A test that passes, and saw what is not described, fails."""
    yield
    refuse_undescribed()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """What was seen as fixtures ended, too."""
    yield
    refuse_undescribed()


def refuse_undescribed() -> None:
    """Fails where something was seen since the last time that no description has."""
    found = list(_undescribed)
    _undescribed.clear()
    if found:
        pytest.fail("answers that no description has:\n" + "\n".join(dict.fromkeys(found)), pytrace=False)
