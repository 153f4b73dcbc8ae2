"""A payment was claimed before its gate was deleted: one call of it is served, whenever that can be (decision 0009)."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed, settings_for
from tests.gateway.hostile_hub import Forward, HostileHub, run_hostile_hub, says
from tests.gateway.ordering import honour_payment
from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.gateway.test_files import DAY_MS, form_of, swept
from tests.gateway.test_honouring import relay
from tests.gateway.test_leaving import LeftShop, shop
from tests.gateway.test_stopping import answer_of, books_of
from tests.ports import free_port
from tollkeeper.core.limits import DOWNLOAD_LIFETIME_SECONDS
from tollkeeper.gateway.call import state
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import FileSettings, Role
from tollkeeper.storage.files.store import LocalFiles
from tollkeeper.storage.gateway import paygates
from tollkeeper.storage.gateway.paygates import PayGates

LINK_MS = DOWNLOAD_LIFETIME_SECONDS * 1000


class Late:
    """The hub's answers, held up."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer, self.has_answered = (asyncio.Event() for _ in range(3))

    async def __call__(self, _request: aiohttp.web.Request, forward: Forward) -> aiohttp.web.StreamResponse:
        self.is_asked.set()
        await self.may_answer.wait()
        answer = await forward()
        self.has_answered.set()
        return answer

    async def until_asked(self) -> None:
        await asyncio.wait_for(self.is_asked.wait(), 20)

    async def until_answered(self) -> None:
        self.may_answer.set()
        await asyncio.wait_for(self.has_answered.wait(), 20)


@asynccontextmanager
async def shop_apart(
    chain: ChainUnderTest, target: RecordingTarget, home: Path
) -> AsyncIterator[tuple[LeftShop, HostileHub]]:
    async with (
        composed(chain.url, home / "hub.db", role=Role.HUB) as hub,
        run_hostile_hub(hub) as between,
        shop(chain.url, target, home, role=Role.GATEWAY, hub_url=between.url) as there,
    ):
        yield there, between


async def delete(there: LeftShop, gate: dict[str, Any]) -> None:
    assert (await there.buyer.ask("DELETE", f"{there.url}/api/v1/paygates/{gate['id']}")).status == 200


async def file_for_sale(
    url: str, buyer: Buyer, http: aiohttp.ClientSession
) -> tuple[dict[str, Any], dict[str, str], str]:
    """A new gate that sells the file "content", its owner's bearer, and a payment for it."""
    bearer = {"Authorization": f"Bearer {await buyer.login(url)}"}
    async with http.post(url + "/api/v1/paygates", data=form_of(b"content"), headers=bearer) as created:
        gate = await created.json()
    return gate, bearer, buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())


async def until_books_are(there: LeftShop, books: list[tuple[str, int]]) -> None:
    async with asyncio.timeout(20):
        while books_of(there) != books:  # noqa: ASYNC110 - a database is asked
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("granted", ["before the delete", "behind the delete"])
async def test_whoever_was_told_to_come_again_is_served_once_whenever_it_was_granted(
    granted: str,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 1)
    async with shop_apart(embedded_chain, target, tmp_path) as (there, between):
        between.settling = late = Late()
        gate = await there.gate(credits=3)
        payment = await there.payment(gate)
        first = await there.buyer.call(gate["accessUrl"], payment)
        assert (first.status, first.error_code) == (503, "SETTLEMENT_PENDING")
        if granted == "before the delete":
            await late.until_answered()
            await until_books_are(there, [("LIVE", 3)])
        await delete(there, gate)
        await late.until_answered()
        await until_books_are(there, [("VOID", 3)])
        told = await there.buyer.ask("GET", there.url + "/api/v1/credits", headers={"X-Payment": payment})
        assert [one["remaining"] for one in told.json()["data"]] == [0]
        monkeypatch.undo()
        served = [(await there.buyer.call(gate["accessUrl"], payment)).status for _ in range(2)]
    assert served == [200, 404]
    assert books_of(there) == [("VOID", 2)]


async def test_a_gate_that_sold_much_is_gone_before_all_of_that_is_void(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may take seconds, and a process that is killed meanwhile tells no other one to drop its copy."""
    monkeypatch.setattr(paygates, "VOIDED_AT_ONCE", 1)
    is_voiding, may_void, void = asyncio.Event(), asyncio.Event(), PayGates._void  # noqa: SLF001 - to hold it up

    async def late(*asked: Any) -> int:
        is_voiding.set()
        await may_void.wait()
        return await void(*asked)

    monkeypatch.setattr(PayGates, "_void", late)
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=3)
        payment = await there.payment(gate)
        assert (await there.buyer.call(gate["accessUrl"], payment)).status == 200
        deleting = asyncio.create_task(delete(there, gate))
        await asyncio.wait_for(is_voiding.wait(), 20)
        assert (await there.buyer.ask("GET", gate["accessUrl"])).status == 404
        assert (await there.buyer.call(gate["accessUrl"], payment)).status == 404
        may_void.set()
        await deleting


@pytest.mark.parametrize(
    "swept_as",
    [
        "state = 'VOID'",
        "state = 'CLAIMED'",
        "state = 'PARKED'",
        "failure = 'gate_deleted, held: i2'",
        "failure = 'settlement_failed', follow_ms = 1",
        "state = 'FAILED', failure = 'reverted', follow_ms = 1",
    ],
)
async def test_a_deleted_gates_file_is_kept_while_a_call_of_it_is_due_and_while_its_link_is_good(
    swept_as: str, tmp_path: Path, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is known of its payment when the sweep comes: also where that may turn out to be made, or is held."""
    monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 1)
    store, database, port = LocalFiles(tmp_path / "files", 0), tmp_path / "gateway.db", free_port()
    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub,
        run_hostile_hub(hub) as between,
        Buyer(derive_wallets().buyer) as buyer,
        aiohttp.ClientSession() as http,
    ):
        files = FileSettings(tmp_path / "files")
        selling = partial(
            composed, embedded_chain.url, database, at=port, role=Role.GATEWAY, hub_url=between.url, files=files
        )
        between.settling = late = Late()
        async with selling() as url:
            there = LeftShop(url, database, RecordingTarget(""), buyer)
            gate, bearer, payment = await file_for_sale(url, buyer, http)
            assert (await buyer.call(gate["accessUrl"], payment)).error_code == "SETTLEMENT_PENDING"
            assert (await buyer.ask("DELETE", f"{url}/api/v1/paygates/{gate['id']}", headers=bearer)).status == 200
            await late.until_answered()
            await until_books_are(there, [("VOID", 1)])
        monkeypatch.undo()
        with beside(database) as books:
            books.execute("UPDATE files SET kept_until_ms = 0")
            books.execute(f"UPDATE purchases SET {swept_as}")  # noqa: S608 - ours
        assert len(await swept(database, store, 0)) == 1
        with beside(database) as books:
            books.execute("UPDATE files SET kept_until_ms = 0")
            books.execute("UPDATE purchases SET state = 'VOID', failure = 'gate_deleted', follow_ms = NULL")
        async with selling():
            link = (await buyer.call(gate["accessUrl"], payment)).json()["downloadUrl"]
        assert len(await swept(database, store, LINK_MS - 60_000)) == 1
        async with selling(), http.get(link) as content:
            assert await content.read() == b"content"
        assert await swept(database, store, DAY_MS) == []  # one that was found due is looked at hourly


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_payment_that_failed_is_honoured_at_a_deleted_gate_only_while_its_file_is_kept(
    tmp_path: Path, embedded_chain: ChainUnderTest, *, is_kept: bool
) -> None:
    """A stranger carried it out behind the time for which what became of it was asked."""
    store, database, port = LocalFiles(tmp_path / "files", 0), tmp_path / "gateway.db", free_port()
    chain = embedded_chain
    given: dict[str, Any] = {"role": Role.GATEWAY, "files": FileSettings(tmp_path / "files")}
    async with (
        composed(chain.url, tmp_path / "hub.db", role=Role.HUB) as hub,
        run_hostile_hub(hub) as between,
        Buyer(derive_wallets().buyer) as buyer,
        aiohttp.ClientSession() as http,
    ):
        selling = partial(composed, chain.url, database, at=port, hub_url=between.url, **given)
        refusal = {"success": False, "transaction": "", "errorReason": "invalid_payment"}
        between.settling = says(200, json.dumps(refusal))
        async with selling() as url:
            there = LeftShop(url, database, RecordingTarget(""), buyer)
            gate, bearer, payment = await file_for_sale(url, buyer, http)
            assert (await buyer.call(gate["accessUrl"], payment)).status == 402
            assert books_of(there) == [("FAILED", 0)]
            assert (await buyer.ask("DELETE", f"{url}/api/v1/paygates/{gate['id']}", headers=bearer)).status == 200
        with beside(database) as books:
            books.execute("UPDATE files SET kept_until_ms = 0")
            books.execute("UPDATE purchases SET follow_ms = ?", (1 if is_kept else None,))
        assert len(await swept(database, store, 0)) == is_kept
        async with selling():
            order = {"gate": gate["slug"], "transaction": relay(chain, payment), "nonce": None}
            told = await honour_payment(settings_for(chain.url, database, **given), order)
            if is_kept:
                token = {"X-Credit-Token": told["done"]["creditToken"]}
                assert (await buyer.ask("GET", gate["accessUrl"], headers=token)).status == 200
            else:
                assert "its file is kept no more" in told["error"]
    assert books_of(there) == [("VOID" if is_kept else "FAILED", 0)]


@pytest.mark.parametrize("binding", ["payment", "wallet"])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_call_is_due_again_where_none_of_those_at_the_target_when_their_gate_was_deleted_had_an_answer(
    calls: int, binding: str, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    reached = asyncio.Semaphore(0)

    async def hang(request: Received, _writer: Writer) -> None:
        reached.release()
        await request.reader.read()

    answers, waiting = target.answer, []
    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate = await there.gate(credits=3, creditBinding=binding)
        shown = {"X_Payment": await there.payment(gate)}
        if binding == "wallet":
            shown["Authorization"] = f"Bearer {await there.buyer.login(there.url)}"
        target.answer = hang
        for _ in range(calls):
            reader, writer = await there.connect()
            writer.write(there.request(gate, **shown))
            await asyncio.wait_for(reached.acquire(), 20)
            waiting.append((reader, writer))
        await delete(there, gate)
    for reader, writer in waiting:
        assert (await answer_of(reader))[0].startswith(b"HTTP/1.1 503 ")
        writer.close()
    assert books_of(there) == [("VOID", 3)]
    target.answer = answers
    async with shop(embedded_chain.url, target, tmp_path) as there:
        url = f"{there.url}/{gate['slug']}"
        if binding == "wallet":  # there the bearer alone is the proof
            shown = {"Authorization": f"Bearer {await there.buyer.login(there.url)}"}
        headers = {name.replace("_", "-"): value for name, value in shown.items()}
        served = [(await there.buyer.ask("GET", url, headers=headers)).status for _ in range(2)]
    assert served == [200, 404]
    assert there.calls() == {("RESTORED", 503): calls, ("DONE", 200): 1}
    assert books_of(there) == [("VOID", 2)]


async def test_a_deleted_gate_is_no_gate_for_who_shows_a_bearer_alone(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(creditBinding="wallet")
        bearer = {"Authorization": f"Bearer {await there.buyer.login(there.url)}"}
        await delete(there, gate)
        url = f"{there.url}/{gate['slug']}"
        told = [(await there.buyer.ask(method, url, headers=bearer)).status for method in ("GET", "DELETE")]
    assert told == [404, 404]


def like(answer: Answer) -> tuple[int, str | None, str]:
    """What tells one refusal from another."""
    return answer.status, answer.error_code, answer.json()["error"]["message"]


async def signed_at(there: LeftShop, gate: dict[str, Any], bearer: dict[str, str]) -> str:
    return there.buyer.sign((await there.buyer.ask("GET", gate["accessUrl"], headers=bearer)).json())


JUNK: dict[str, dict[str, str]] = {
    "nothing": {},
    "a bearer": {"Authorization": "Bearer junk"},
    "a token": {"X-Credit-Token": "junk"},
    "a payment": {"X-Payment": "junk"},
    "a token and a bearer": {"X-Credit-Token": "junk", "Authorization": "Bearer junk"},
    "a payment and a bearer": {"X-Payment": "junk", "Authorization": "Bearer junk"},
}


@pytest.mark.parametrize("fields", [{}, {"requireAuth": True}, {"creditBinding": "token"}, {"creditBinding": "wallet"}])
async def test_a_deleted_gate_is_no_gate_for_who_shows_nothing_that_was_bought_there(
    fields: dict[str, Any], tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain.url, target, tmp_path) as there:
        bearer = {"Authorization": f"Bearer {await there.buyer.login(there.url)}"}
        gate, other = await there.gate(**fields), await there.gate(credits=2)
        elsewhere = {"X-Payment": await there.payment(other)}
        bought = await there.buyer.ask("GET", other["accessUrl"], headers=elsewhere)
        assert bought.status == 200
        of_another_gate = {
            "a payment": elsewhere,
            "a token": {"X-Credit-Token": bought.headers["x-credit-token"]},
            "an unused payment": {"X-Payment": await signed_at(there, gate, bearer)},
        }
        await delete(there, gate)
        showing = {
            **JUNK,
            **of_another_gate,
            **{f"{name}, logged in": of_another_gate[name] | bearer for name in of_another_gate},
        }
        ways = ("GET", "POST")
        unknown = [
            like(await there.buyer.ask(way, f"{there.url}/unknown1", headers=shown))
            for shown in showing.values()
            for way in ways
        ]
        deleted = [
            like(await there.buyer.ask(way, gate["accessUrl"], headers=shown))
            for shown in showing.values()
            for way in ways
        ]
    assert set(unknown) == {(404, "NOT_FOUND", "there is no such PayGate")}
    assert deleted == unknown


@pytest.mark.parametrize("fields", [{"requireAuth": True}, {"creditBinding": "wallet"}])
async def test_whoever_shows_what_was_bought_at_a_deleted_gate_is_told_to_log_in(
    fields: dict[str, Any], tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=2, **fields)
        bearer = {"Authorization": f"Bearer {await there.buyer.login(there.url)}"}
        paid = {"X-Payment": await signed_at(there, gate, bearer)}
        bought = await there.buyer.ask("GET", gate["accessUrl"], headers=paid | bearer)
        assert bought.status == 200
        await delete(there, gate)
        junk = {"Authorization": "Bearer junk"}
        token = {"X-Credit-Token": bought.headers["x-credit-token"]}
        told = [
            like(await there.buyer.ask("GET", gate["accessUrl"], headers=shown | junk))[:2] for shown in (paid, token)
        ]
    assert told == [(401, "INVALID_TOKEN")] * 2


@pytest.mark.parametrize("second", ["joins the attempt", "waits for the claim"])
async def test_a_second_showing_of_a_payment_whose_buyer_left_is_served(
    second: str, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop_apart(embedded_chain, target, tmp_path) as (there, between):
        between.verifying, between.settling = verify, settle = Late(), Late()
        gate = await there.gate(credits=1)
        request = there.request(gate, X_Payment=await there.payment(gate))
        _, left = await there.connect()
        left.write(request)
        await verify.until_asked()
        if second == "waits for the claim":
            verify.may_answer.set()
            await settle.until_asked()
        reader, writer = await there.connect()
        writer.write(request)
        await asyncio.sleep(0.3)
        verify.may_answer.set()
        await settle.until_asked()
        left.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        left.transport.abort()
        await asyncio.sleep(0.3)
        await delete(there, gate)
        settle.may_answer.set()
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200 ")
        writer.close()
    assert books_of(there) == [("VOID", 0)]
