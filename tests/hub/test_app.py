"""The hub's application: where it may be mounted (contract 1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hub.hub_under_test import HubUnderTest, hub_config, new_hub
from tollkeeper.core.networks import NETWORKS
from tollkeeper.hub.app import create_app
from tollkeeper.storage.urls import open_database


async def ask(app: Any, path: str, root_path: str = "", *, method: str = "GET") -> tuple[int, Any]:
    """Status and JSON body of a request without a body, as an ASGI server makes it."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": root_path,
        "query_string": b"",
        "headers": [(b"host", b"hub.example")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    ("path", "root_path"), [("/supported", ""), ("/hub/supported", "/hub"), ("/supported", "/hub")]
)
async def test_a_mount_may_leave_its_prefix_on_the_path_or_cut_it_off(
    hub: HubUnderTest, path: str, root_path: str
) -> None:
    app = create_app(hub.hub)
    status, body = await ask(app, path, root_path)
    assert (status, len(body["kinds"])) == (200, 2)
    status, _ = await ask(app, path.replace("supported", "api/v1/healthz"), root_path)
    assert status == 200


async def test_a_network_of_another_family_is_a_fault_of_the_settings(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "hub.db"))
    with pytest.raises(ValueError, match="solana-devnet is configured as a network of another family"):
        new_hub(database, (bytes(range(1, 33)),), hub_config("http://x", network=NETWORKS["solana-devnet"]))
    await database.close()


@pytest.mark.parametrize("path", ["/supported", "/nowhere"])
async def test_an_answer_repeats_what_its_request_was_named(hub: HubUnderTest, path: str) -> None:
    answer = await hub.send("GET", path, headers={"X-Correlation-Id": "aZ.0_9-" + 57 * "x"})
    assert answer.headers["X-Correlation-Id"] == "aZ.0_9-" + 57 * "x"


@pytest.mark.parametrize("name", [None, "", "x" * 65, "a b", "a;b", "\u00e9"])
async def test_what_is_no_name_is_not_repeated(hub: HubUnderTest, name: str | None) -> None:
    answer = await hub.send("GET", "/supported", headers={} if name is None else {"X-Correlation-Id": name})
    assert (answer.status, answer.headers.get("X-Correlation-Id")) == (200, None)
