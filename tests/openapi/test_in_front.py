"""What stands in front of every operation refuses as each operation's description says."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.cli.processes import ask
from tests.described_answers import seen
from tests.edge.callers import first_answer
from tests.openapi.conftest import Described
from tollkeeper.core.limits import REQUEST_HEAD_SIZE_BYTES
from tollkeeper.edge.server.protocol import PIPELINED_MAX

PLACES = {"gate_id": "1", "file_id": "1", "settlement_id": "x", "slug": "nothing", "name": "x", "network": "base"}


def asked(operation: str, described: Described) -> tuple[str, str]:
    part, method, path = operation.split(" ")
    return method, described.url(part) + path.format_map({**PLACES, "payer": "x", "nonce": "x"})


def test_too_large_a_head_is_431_everywhere(described: Described) -> None:
    for operation in described.operations:
        method, url = asked(operation, described)
        answer = ask(url, method=method, headers={"X-Large": "x" * REQUEST_HEAD_SIZE_BYTES})
        assert (operation, answer.status) == (operation, 431)


def test_a_web_page_from_elsewhere_is_refused_below_api(described: Described) -> None:
    for operation in described.operations:
        method, url = asked(operation, described)
        answer = ask(url, method=method, headers={"Origin": "https://elsewhere.example"})
        assert (operation, answer.status == 403) == (operation, "/api/" in url)
        if operation.startswith("hub ") and "/api/" not in url:
            below = url.replace("/hub/", "/hub/api/v1/")
            assert ask(below, method=method, headers={"Origin": "https://elsewhere.example"}).status == 403


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/paygates", "/hub/supported", "/nothing-here"])
def test_too_many_requests_on_one_connection_are_429_with_a_time_to_come_again(described: Described, path: str) -> None:
    host = urlsplit(described.stack.gateway_url)
    one = f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    with socket.create_connection((host.hostname or "", host.port or 0), timeout=30) as connection:
        connection.sendall(one * (PIPELINED_MAX + 1000))
        data = b""
        while part := connection.recv(65536):
            data += part
    refused = first_answer(data[data.index(b"HTTP/1.1 429") :])
    headers = {name.decode(): value.decode() for name, value in refused.headers.items()}
    assert (refused.error["code"], int(headers["retry-after"]) >= 1) == ("RATE_LIMITED", True)
    seen("GET", described.stack.gateway_url + path, refused.status, headers, refused.body)
