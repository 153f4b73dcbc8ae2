"""`onFailure: restore`: a target's failure gives the credit back, once; and credits that expire (contract 4.3, 4.5)."""

from __future__ import annotations

import asyncio
import socket
import struct
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import engine_class
from tests.gateway.market import Market
from tests.gateway.recording_target import Received, RecordingTarget, Writer, answer_ok
from tests.gateway.test_leaving import serve, shop
from tests.gateway.test_stopping import books_of, hold
from tollkeeper.core.limits import PROXY_RESPONSE_SIZE_BYTES
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.storage.engine.database import Database, JobOutcome, StorageError, Unit
from tollkeeper.storage.ledger.purchases import Purchases


async def close(_request: Received, writer: Writer) -> None:
    writer.close()


async def invalid(_request: Received, writer: Writer) -> None:
    writer.write(b"HTTP/9.9 what\r\n\r\n")
    writer.close()


async def too_large(_request: Received, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (PROXY_RESPONSE_SIZE_BYTES + 1))
    await asyncio.sleep(0)
    writer.close()


async def broken(_request: Received, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n")


FAILURES = {"UPSTREAM_UNREACHABLE": close, "UPSTREAM_INVALID": invalid, "UPSTREAM_TOO_LARGE": too_large}


async def balance(market: Market, payment: str) -> dict[str, Any]:
    (found,) = (await market.ask("GET", "/api/v1/credits", headers={"X-Payment": payment})).json()["data"]
    held: dict[str, Any] = found
    return held


@pytest.mark.parametrize("code", FAILURES)
async def test_a_failed_target_gives_the_credit_back_once(market: Market, code: str) -> None:
    gate = await market.gate(credits=2, onFailure="restore", method="GET,POST")
    assert (await market.challenge(gate))["resource"]["onFailure"] == "restore"
    payment = await market.payment(gate)
    market.target.answer = FAILURES[code]
    for number in range(2):
        answer = await market.pay(gate, payment, "POST")
        assert (answer.status, answer.error_code) == (502, code)
        assert answer.headers["x-credits-remaining"] == "2"
        assert answer.json()["error"]["message"].endswith("; the credit was given back")
        assert answer.receipt is not None
        assert ("x-credit-token" in answer.headers) == (number == 0)
    market.target.answer = answer_ok
    assert (await balance(market, payment))["remaining"] == 2
    for left in ("1", "0"):
        answer = await market.pay(gate, payment)
        assert (answer.status, answer.headers["x-credits-remaining"]) == (200, left)
    assert (await market.pay(gate, payment)).error_code == "CREDITS_EXHAUSTED"
    assert len(market.target.requests) == 4
    counters = await market.counters(gate, lambda found: found["calls"] == 4)
    assert (counters["failures"], counters["purchases"]) == (2, 1)


async def test_a_purchase_has_as_many_credits_given_back_for_failures_as_it_bought(market: Market) -> None:
    """Its first call is a row of its own, the others are in the journal."""
    gate = await market.gate(credits=3, onFailure="restore")
    payment = await market.payment(gate)
    market.target.answer = close
    left = []
    for _ in range(6):
        answer = await market.pay(gate, payment)
        assert (answer.status, answer.error_code) == (502, "UPSTREAM_UNREACHABLE")
        left.append(answer.headers["x-credits-remaining"])
        is_used = "; the credit was used, " in answer.json()["error"]["message"]
        assert is_used == (len(left) > 3)
    assert left == ["3", "3", "3", "2", "1", "0"]
    assert (await market.pay(gate, payment)).error_code == "CREDITS_EXHAUSTED"
    assert len(market.target.requests) == 6


async def proofs(market: Market, binding: str, token: str) -> dict[str, str]:
    """What spends a credit under this binding."""
    if binding == "token":
        return {"X-Credit-Token": token}
    return {"Authorization": f"Bearer {await market.buyer.login(market.stack.gateway_url)}"}


async def bound(market: Market, binding: str, **fields: object) -> tuple[dict[str, Any], str, dict[str, str], Answer]:
    """A gate of this binding where a purchase is made: its payment, what spends its credits, and the first answer."""
    gate = await market.gate(creditBinding=binding, **fields)
    payment = await market.payment(gate)
    bearer = await proofs(market, "wallet", "") if binding == "wallet" else {}
    first = await market.ask("GET", gate["accessUrl"], headers={"X-Payment": payment, **bearer})
    return gate, payment, await proofs(market, binding, first.headers["x-credit-token"]), first


@pytest.mark.parametrize("binding", ["token", "wallet"])
async def test_a_failed_target_gives_the_credit_back_however_it_is_bound(market: Market, binding: str) -> None:
    market.target.answer = close
    gate, payment, proof, first = await bound(market, binding, credits=2, onFailure="restore")
    assert (first.status, first.headers["x-credits-remaining"]) == (502, "2")
    failed = await market.ask("GET", gate["accessUrl"], headers=proof)
    assert (failed.status, failed.headers["x-credits-remaining"]) == (502, "2")
    market.target.answer = answer_ok
    for left in ("1", "0"):
        served = await market.ask("GET", gate["accessUrl"], headers=proof)
        assert (served.status, served.headers["x-credits-remaining"]) == (200, left)
    assert (await market.ask("GET", gate["accessUrl"], headers=proof)).status == 402
    assert (await balance(market, payment))["used"] == 2


async def test_a_targets_own_error_is_an_answer_and_uses_the_credit(market: Market) -> None:
    gate = await market.gate(credits=2, onFailure="restore")
    payment = await market.payment(gate)
    market.target.answer = broken
    answer = await market.pay(gate, payment)
    assert (answer.status, answer.headers["x-credits-remaining"]) == (500, "1")


async def test_without_restore_a_failed_target_uses_the_credit(market: Market) -> None:
    gate = await market.gate(credits=2)
    payment = await market.payment(gate)
    market.target.answer = close
    answer = await market.pay(gate, payment)
    assert (answer.status, answer.headers["x-credits-remaining"]) == (502, "1")
    assert answer.json()["error"]["message"].endswith("; the credit was used")
    assert (await balance(market, payment))["used"] == 1


async def test_failures_at_once_give_back_exactly_what_they_took(market: Market) -> None:
    gate = await market.gate(credits=20, onFailure="restore")
    payment = await market.payment(gate)
    fails = iter([True, False] * 100)

    async def sometimes(request: Received, writer: Writer) -> None:
        await (close if next(fails) else answer_ok)(request, writer)

    market.target.answer = sometimes
    answers = await asyncio.gather(*(market.pay(gate, payment, "GET") for _ in range(30)))
    assert {answer.status for answer in answers} <= {200, 402, 502}
    served = [answer for answer in answers if answer.status == 200]  # any may be the one that came too late
    assert await balance(market, payment) == {
        "slug": gate["slug"],
        "purchaseId": served[0].headers["x-purchase-id"],
        "granted": 20,
        "used": len(served),
        "remaining": 20 - len(served),
        "expiresAt": None,
    }


async def test_a_client_that_left_before_the_target_failed_gets_nothing_back(market: Market) -> None:
    gate = await market.gate(credits=3, onFailure="restore")
    payment, _ = await market.buy(gate)
    arrived, left = asyncio.Event(), asyncio.Event()

    async def late(_request: Received, writer: Writer) -> None:
        arrived.set()
        await left.wait()
        writer.close()

    market.target.answer = late
    call = asyncio.create_task(market.pay(gate, payment))
    await asyncio.wait_for(arrived.wait(), 20)
    call.cancel()
    await market.counters(gate, lambda found: found["calls"] == 2)
    left.set()
    assert (await balance(market, payment))["remaining"] == 1


async def test_where_our_own_disk_has_no_room_for_an_answer_nothing_is_charged(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any gate: a 503 charges nothing that is not honoured (contract 4.5)."""

    async def large(_request: Received, writer: Writer) -> None:
        body = bytes(3_000_000)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=2)
        payment = await there.payment(gate)
        assert (await there.buyer.call(gate["accessUrl"], payment)).status == 200
        target.answer = large
        with monkeypatch.context() as disk:
            disk.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
            for _ in range(3):
                refused = await there.buyer.call(gate["accessUrl"], payment)
                assert (refused.status, refused.error_code) == (503, "UNAVAILABLE")
                assert refused.headers["x-credits-remaining"] == "1"
        served = await there.buyer.call(gate["accessUrl"], payment)
        assert (served.status, served.headers["x-credits-remaining"], len(served.body)) == (200, "0", 3_000_000)


@pytest.mark.parametrize("times", [1, 3])  # the third one is in the journal
@pytest.mark.parametrize("status", [503, 502])
async def test_what_the_database_cannot_give_back_now_is_given_back_once_it_can(
    status: int,
    times: int,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where our own disk has no room for the answer, or the target failed and its gate says so."""
    keeping: list[threading.Thread] = []
    is_told = threading.Event()

    async def answer_while_the_database_is_held(_request: Received, writer: Writer) -> None:
        if not keeping:  # a request that was not heard is sent once more
            await asyncio.sleep(0.7)  # else how calls ended would be written meanwhile
            keeping.append(await hold(there.database, 30, is_told))
        if status == 503:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + bytes(3_000_000))
        else:
            writer.close()

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, onFailure="restore")
        payment = await there.payment(gate)
        await serve(there, there.request(gate, X_Payment=payment), times)
        monkeypatch.setattr(
            "tollkeeper.edge.target.spool.shutil.disk_usage", lambda _: SimpleNamespace(free=0, total=1 << 60)
        )
        target.answer = answer_while_the_database_is_held
        reader, writer = await there.connect()
        writer.write(there.request(gate, X_Payment=payment, Connection="close"))
        head, _, _ = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
        writer.close()
        is_told.set()
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nx-credits-remaining: %d\r\n" % (19 - times) in head
        await asyncio.to_thread(keeping[0].join)
        async with asyncio.timeout(30):
            while books_of(there) != [("LIVE", 20 - times)]:  # noqa: ASYNC110 - the books tell nobody
                await asyncio.sleep(0.1)
    assert books_of(there) == [("LIVE", 20 - times)]
    assert {state for state, _ in there.calls()} == {"DONE", "RESTORED"}


@pytest.mark.parametrize("calls_before", [0, 3], ids=["a call of its own row", "a call in the journal"])
async def test_a_client_that_leaves_while_its_credit_is_given_back_has_it_all_the_same(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
    calls_before: int,
) -> None:
    begun, go_on, restore = asyncio.Event(), asyncio.Event(), Purchases.restore

    def later(*given: Any) -> Coroutine[Any, Any, int | None]:
        """The same, once the test says so."""

        async def held() -> int | None:
            begun.set()
            await go_on.wait()
            return await restore(*given)

        return held()

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=9, onFailure="restore")
        payment = await there.payment(gate)
        for _ in range(calls_before):
            assert (await there.buyer.call(gate["accessUrl"], payment)).status == 200
        target.answer = close
        monkeypatch.setattr(Purchases, "restore", later)
        _, writer = await there.connect()
        writer.write(there.request(gate, X_Payment=payment))
        await asyncio.wait_for(begun.wait(), 10)
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        await asyncio.sleep(0.3)  # the gateway has seen it
        target.answer = answer_ok
        other = await there.payment(gate)  # whose commits take ends of calls along
        for _ in range(3):
            assert (await there.buyer.call(gate["accessUrl"], other)).status == 200
        go_on.set()
    assert there.calls()["RESTORED", 499 if calls_before else 502] == 1  # a row of its own says why
    assert there.outcomes(gate)["clientGone", 499, None] == 1


# Expiry


async def test_credits_expire_after_the_seconds_that_were_shown(market: Market) -> None:
    gate = await market.gate(credits=5, creditsExpireAfter=2)
    assert (await market.challenge(gate))["resource"]["creditsExpireAfter"] == 2
    payment, answer = await market.buy(gate)
    held = await balance(market, payment)
    assert held["expiresAt"] is not None
    token = answer.headers["x-credit-token"]
    await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"creditsExpireAfter": None})
    later = await market.buy(gate)
    for _ in range(300):
        if (await balance(market, payment))["remaining"] == 0:
            break
        await asyncio.sleep(0.1)
    for headers in ({"X-Payment": payment}, {"X-Credit-Token": token}):
        over = await market.ask("GET", gate["accessUrl"], headers=headers)
        assert (over.status, over.error_code) == (402, "CREDITS_EXHAUSTED")
        assert "the credits of this payment have expired" in over.json()["errorDetail"]["message"]  # none was used up
        assert over.json()["accepts"]
    assert (await balance(market, payment))["expiresAt"] == held["expiresAt"]
    # A change touches new purchases only.
    assert (await balance(market, later[0]))["expiresAt"] is None
    assert (await market.pay(gate, later[0])).status == 200
    deleted = await market.ask("DELETE", f"/api/v1/paygates/{gate['id']}")
    assert deleted.json()["outstandingCredits"] == 3  # what has expired is no liability


@pytest.mark.parametrize("binding", ["token", "wallet"])
async def test_credits_expire_however_they_are_bound(market: Market, binding: str) -> None:
    gate, payment, proof, first = await bound(market, binding, credits=5, creditsExpireAfter=8)
    assert (first.status, first.headers["x-credits-remaining"]) == (200, "4")
    assert (await market.ask("GET", gate["accessUrl"], headers=proof)).headers["x-credits-remaining"] == "3"
    for _ in range(300):
        if (await balance(market, payment))["remaining"] == 0:
            break
        await asyncio.sleep(0.1)
    for headers in (proof, {**proof, "X-Payment": payment}):
        over = await market.ask("GET", gate["accessUrl"], headers=headers)
        assert over.status == 402
        assert over.json()["accepts"]
    assert len(market.target.requests) == 2


@pytest.mark.parametrize("value", [0, -1, 1.5, "60", True, [60], 10**12])
async def test_another_expiry_is_refused(market: Market, value: object) -> None:
    body = {"targetUrl": market.target.url, "price": "0.01", "creditsExpireAfter": value}
    answer = await market.ask("POST", "/api/v1/paygates", body=body)
    assert (answer.status, answer.error_code) == (400, "INVALID_PARAMETER")


@pytest.mark.parametrize("how", ["by its header", "by its token", "its first"])
async def test_a_call_sent_again_behind_a_503_is_not_asked_to_pay_though_the_credit_is_owed_still(
    how: str,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit that took the last credit is made, and its answer lost."""
    engine = engine_class()
    post, spend_token, grant = engine.post, Purchases.spend_token, Purchases.grant

    def lose_post(self: Database, job: Any, answer: Any) -> None:
        def told(_outcome: JobOutcome) -> None:
            asyncio.get_running_loop().call_soon(answer, JobOutcome(error=StorageError("the database said nothing")))

        post(self, job, told)

    async def lose_spend(self: Purchases, *arguments: Any, **named: Any) -> Any:
        await spend_token(self, *arguments, **named)
        raise StorageError("the database said nothing")

    async def lose_grant(self: Purchases, *arguments: Any, **named: Any) -> Any:
        await grant(self, *arguments, **named)
        raise StorageError("the database said nothing")

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=1 if how == "its first" else 2)
        shown = {"X-Payment": await there.payment(gate)}
        if how != "its first":
            bought = await there.buyer.ask("GET", gate["accessUrl"], headers=shown)
            assert (bought.status, bought.headers["x-credits-remaining"]) == (200, "1")
            if how == "by its token":
                shown = {"X-Credit-Token": bought.headers["x-credit-token"]}
        with monkeypatch.context() as lost:
            if how == "by its header":
                lost.setattr(engine, "post", lose_post)
            lost.setattr(Purchases, "spend_token", lose_spend)
            lost.setattr(Purchases, "grant", lose_grant)
            first = await there.buyer.ask("GET", gate["accessUrl"], headers=shown)
        again = await there.buyer.ask("GET", gate["accessUrl"], headers=shown)
        assert (first.status, again.status) == (503, 200)
        assert (await there.buyer.ask("GET", gate["accessUrl"], headers=shown)).status == 402
    assert books_of(there) == [("LIVE", 0)]


async def test_for_a_call_that_certainly_took_no_credit_none_is_looked_for(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else calls that are refused because too many wait would crowd out those to whom a credit is owed."""
    engine = engine_class()
    units: list[str] = []
    run = engine.run

    async def noted(self: Database, unit: Unit[Any], *, is_short: bool = False) -> Any:
        units.append(unit.name)
        return await run(self, unit, is_short=is_short)

    def refuse(_self: Database, _job: Any, _answer: Any) -> None:
        raise StorageError("too many requests are waiting for the database")

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=2)
        shown = {"X-Payment": await there.payment(gate)}
        assert (await there.buyer.ask("GET", gate["accessUrl"], headers=shown)).status == 200
        monkeypatch.setattr(engine, "run", noted)
        with monkeypatch.context() as away:
            away.setattr(engine, "post", refuse)
            refused = await there.buyer.ask("GET", gate["accessUrl"], headers=shown)
        assert (refused.status, refused.error_code) == (503, "UNAVAILABLE")
    assert "give_back" not in units  # what is owed is given back when the gateway stops, at the latest
    assert books_of(there) == [("LIVE", 1)]


async def test_a_call_whose_credit_could_not_be_given_back_yet_is_not_asked_to_pay(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """Another program holds the database for longer than anybody waits for it."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def fail(_request: Received, writer: Writer) -> None:
        reached.set()
        await go.wait()
        writer.close()

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=1, onFailure="restore")
        shown = {"X-Payment": await there.payment(gate)}
        healthy, target.answer = target.answer, fail
        first = asyncio.create_task(there.buyer.ask("GET", gate["accessUrl"], headers=shown))
        await asyncio.wait_for(reached.wait(), 20)
        await asyncio.sleep(1)  # what else is to be written is
        keeping = await hold(there.database, 6)
        go.set()
        assert (await first).status == 502
        target.answer = healthy
        told: list[int] = []
        async with asyncio.timeout(40):
            while not told or told[-1] == 503:
                told.append((await there.buyer.ask("GET", gate["accessUrl"], headers=shown)).status)
                await asyncio.sleep(0.1)
        await asyncio.to_thread(keeping.join)
    assert told[-1] == 200
