"""Authority to change a PayGate is judged in the commit of the change (contract 3.2, 3.3; security A-47).

However long a request waits for a name, a body or the database: by its commit its login may be over, or its gate
somebody else's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.test_calls import until
from tests.engines import IS_POSTGRESQL, beside
from tests.gateway.composed import composed, opened_databases
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.configuration import AnonymousPaygates
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallet
from tollkeeper.storage.auth import end_session
from tollkeeper.storage.engine.database import Database, Statement, Steps, Unit, gate_to_change, unit_of_work

GATES = "/api/v1/paygates"
SLOW = "slow.example"


@dataclass(slots=True)
class Place:
    """A program, its database, and two people."""

    url: str
    database: Database
    path: Path
    target_url: str
    owner: Buyer
    other: Buyer

    async def ask(self, method: str, path: str, body: object = None, bearer: str | None = None) -> Answer:
        headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
        return await self.owner.ask(method, self.url + path, body=body, headers=headers)

    async def gate(self, bearer: str | None = None, **fields: object) -> dict[str, Any]:
        body = {"price": "0.01", "targetUrl": self.target_url, **fields}
        made = await self.ask("POST", GATES, body, bearer)
        assert made.status == 201, made.body
        return made.json()


@pytest.fixture
async def place(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    opened = opened_databases(monkeypatch)
    async with (
        composed(embedded_chain.url, tmp_path / "own.db", anonymous_paygates=AnonymousPaygates.CREATE) as url,
        Buyer(derive_wallet("owner")) as owner,
        Buyer(derive_wallet("other")) as other,
    ):
        yield Place(url, opened[-1], tmp_path / "own.db", target.url, owner, other)


@dataclass(slots=True)
class SlowName:
    """A name that is looked up until it is let go: it is this machine's."""

    asked: threading.Event
    let_go: threading.Event


@pytest.fixture
def slow_name(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowName]:
    name = SlowName(threading.Event(), threading.Event())
    really_ask = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **named: Any) -> Any:
        if host != SLOW:
            return really_ask(host, *rest, **named)
        name.asked.set()
        name.let_go.wait(60)
        return really_ask("127.0.0.1", *rest, **named)

    monkeypatch.setattr("tollkeeper.edge.target.dns.socket.getaddrinfo", getaddrinfo)
    yield name
    name.let_go.set()


async def refused_after(slow_name: SlowName, asking: asyncio.Task[Answer], happens: Any) -> Answer:
    """What a request that waits for the name is answered once this happened meanwhile."""
    await until(slow_name.asked.is_set)
    assert (await happens).status == 200
    slow_name.let_go.set()
    return await asking


async def test_an_update_that_waits_for_a_name_is_refused_once_its_gate_was_claimed(
    place: Place, slow_name: SlowName
) -> None:
    gate = await place.gate()
    path, token = f"{GATES}/{gate['id']}", gate["managementToken"]
    moved = {"targetUrl": f"http://{SLOW}/", "title": "theirs"}
    asking = asyncio.create_task(place.ask("PUT", path, moved, token))
    bearer = await place.owner.login(place.url)
    claiming = place.ask("POST", path + "/claim", {"managementToken": token}, bearer)
    refused = await refused_after(slow_name, asking, claiming)
    assert (refused.status, refused.error_code) == (403, "FORBIDDEN")
    assert (await place.ask("GET", path, None, bearer)).json()["title"] == ""


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_what_waits_for_a_name_is_refused_once_its_login_was_ended(
    place: Place, slow_name: SlowName, method: str
) -> None:
    bearer, later = await place.owner.login(place.url), await place.owner.login(place.url)
    gate = await place.gate(later)
    path = f"{GATES}/{gate['id']}" if method == "PUT" else GATES
    body = {"targetUrl": f"http://{SLOW}/", "price": "7"}
    asking = asyncio.create_task(place.ask(method, path, body, bearer))
    refused = await refused_after(slow_name, asking, place.ask("POST", "/api/v1/auth/logout", None, bearer))
    assert (refused.status, refused.error_code) == (401, "INVALID_TOKEN")
    listed = (await place.ask("GET", GATES, None, later)).json()["data"]
    assert [(one["id"], one["price"]) for one in listed] == [(gate["id"], "0.01")]


OPERATIONS = [
    ("PUT", "", {"title": "late"}),
    ("DELETE", "", None),
    ("POST", "/secret", None),
]


def session_of(bearer: str) -> str:
    """The session that an access token names."""
    payload = bearer.split(".")[1]
    session: str = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sid"]
    return session


@unit_of_work
def given_to(wallet: str, gate_id: int) -> Steps[None]:
    """The gate's owner is this wallet from then on."""
    yield gate_to_change(gate_id)
    yield Statement(
        "UPDATE paygates SET owner_wallet = :wallet, management_hash = NULL, version = version + 1 WHERE id = :id",
        {"wallet": wallet, "id": gate_id},
    )


# How many wait for a lock at PostgreSQL, where nobody else is.
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


async def behind(place: Place, first: Unit[None], asking: Any) -> Answer:
    """What a request is answered whose commit comes behind that of another program, which has begun to write."""
    run, begun = place.database.run, []

    async def noting(unit: Unit[Any], **named: Any) -> Any:
        begun.append(unit.name)  # beside others, which the program writes of its own accord
        return await run(unit, **named)

    def waits() -> bool:
        """The unit that judges the authority of a change."""
        return "PayGates._behind" in begun and (not IS_POSTGRESQL or writing.execute(WAITING).fetchone() != (0,))

    with beside(place.path) as writing, pytest.MonkeyPatch.context() as patched:
        for statement in first:
            if IS_POSTGRESQL or statement.instead is None:
                writing.execute(statement.sql, statement.params)
        patched.setattr(place.database, "run", noting)
        answer = asyncio.create_task(asking)
        await until(waits)
    told: Answer = await answer
    return told


@pytest.mark.parametrize(("method", "under", "body"), OPERATIONS)
async def test_nothing_is_changed_behind_the_commit_that_ends_its_login(
    place: Place, method: str, under: str, body: object
) -> None:
    bearer, later = await place.owner.login(place.url), await place.owner.login(place.url)
    gate = await place.gate(bearer, headerAuthMode="hmac")
    path, ended = f"{GATES}/{gate['id']}", end_session(session_of(bearer), 1)
    refused = await behind(place, ended, place.ask(method, path + under, body, bearer))
    assert (refused.status, refused.error_code) == (401, "INVALID_TOKEN")
    read = (await place.ask("GET", path, None, later)).json()
    assert (read["title"], read["updatedAt"]) == ("", gate["updatedAt"])


@pytest.mark.parametrize(("method", "under", "body"), OPERATIONS)
@pytest.mark.parametrize("is_owned", [True, False], ids=["by its owner", "by its token"])
async def test_nothing_is_changed_behind_the_commit_that_gives_its_gate_to_another(
    place: Place, method: str, under: str, body: object, *, is_owned: bool
) -> None:
    bearer = await place.owner.login(place.url) if is_owned else None
    gate = await place.gate(bearer, headerAuthMode="hmac")
    path, given = f"{GATES}/{gate['id']}", given_to(place.other.wallet.address.lower(), gate["id"])
    shown = bearer or gate["managementToken"]
    refused = await behind(place, given, place.ask(method, path + under, body, shown))
    assert (refused.status, refused.error_code) == (403, "FORBIDDEN")
    read = (await place.ask("GET", path, None, await place.other.login(place.url))).json()
    assert read["title"] == ""


async def test_no_gate_is_claimed_behind_the_commit_that_ends_its_login(place: Place) -> None:
    bearer, gate = await place.owner.login(place.url), await place.gate()
    token, path = gate["managementToken"], f"{GATES}/{gate['id']}"
    claiming = place.ask("POST", path + "/claim", {"managementToken": token}, bearer)
    refused = await behind(place, end_session(session_of(bearer), 1), claiming)
    assert (refused.status, refused.error_code) == (401, "INVALID_TOKEN")
    assert (await place.ask("GET", path, None, token)).json()["ownerWallet"] is None
