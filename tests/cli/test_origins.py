"""Web pages: none but our own and the named ones may use /api, and no request of another is carried out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tollkeeper.serving.http.access_log import AccessLog
from tollkeeper.serving.http.origins import OriginGuard

OWN = "http://127.0.0.1:8402"
NAMED = "https://dashboard.example.org"
OTHER = "https://evil.example.org"


class Asked:
    """The application behind the guard; it remembers what reached it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        self.reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def ask(asked: Asked, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    guard = AccessLog(OriginGuard(asked, OWN, (NAMED,), ("/api/", "/hub/api/")))
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await guard({"type": "http", "method": method, "path": path, "headers": raw}, receive, send)
    answered = {name.decode(): value.decode() for name, value in said[0]["headers"]}
    return said[0]["status"], answered, said[1]["body"]


@pytest.mark.parametrize("origin", [OTHER, "null", OWN + "0", "http://localhost:8402", NAMED + ".evil.org", ""])
@pytest.mark.parametrize(
    "path", ["/api/v1/paygates", "//api/v1/paygates", "/hub/api/v1/auth/login", "/hub//api/v1/auth/login"]
)
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
async def test_a_request_of_another_origin_is_not_carried_out(origin: str, path: str, method: str) -> None:
    asked = Asked()
    status, headers, body = await ask(asked, method, path, origin=origin, access_control_request_method="POST")
    assert status == 403
    assert json.loads(body)["error"]["code"] == "FORBIDDEN"
    assert json.loads(body)["error"]["requestId"] == headers["x-request-id"]
    assert "access-control-allow-origin" not in headers
    assert asked.reached == []
    _, headers, _ = await ask(asked, method, path, origin=origin, x_correlation_id="mine")
    assert headers["x-correlation-id"] == "mine"


@pytest.mark.parametrize("origin", [None, OWN])
async def test_our_own_pages_and_programs_are_served(origin: str | None) -> None:
    asked = Asked()
    given = {} if origin is None else {"origin": origin}
    status, headers, _ = await ask(asked, "POST", "/api/v1/paygates", **given)
    assert (status, asked.reached) == (200, ["/api/v1/paygates"])
    assert "access-control-allow-origin" not in headers


async def test_a_named_origin_is_served_and_may_read_the_answer() -> None:
    asked = Asked()
    status, headers, _ = await ask(asked, "POST", "/api/v1/paygates", origin=NAMED)
    assert (status, asked.reached) == (200, ["/api/v1/paygates"])
    assert headers["access-control-allow-origin"] == NAMED
    assert headers["vary"] == "Origin"
    exposed = headers["access-control-expose-headers"].split(", ")
    assert {"X-Payment-Response", "X402-Version", "X-Request-Id", "ETag", "X-Total-Count"} <= set(exposed)


async def test_a_preflight_of_a_named_origin_is_answered_here() -> None:
    asked = Asked()
    wanted = {"access_control_request_method": "PUT", "access_control_request_headers": "authorization"}
    status, headers, _ = await ask(asked, "OPTIONS", "/api/v1/paygates/1", origin=NAMED, **wanted)
    assert (status, asked.reached) == (204, [])
    assert "PUT" in headers["access-control-allow-methods"]
    assert headers["access-control-allow-headers"] == "authorization"
    assert headers["x402-version"] == "1"
    assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
    _, headers, _ = await ask(asked, "OPTIONS", "/api/v1/paygates/1", origin=NAMED, x_correlation_id="mine", **wanted)
    assert headers["x-correlation-id"] == "mine"


async def test_calls_of_gates_are_open_to_every_page() -> None:
    asked = Asked()
    status, _, _ = await ask(asked, "GET", "/weather", origin=OTHER)
    assert (status, asked.reached) == (200, ["/weather"])
