"""A stop at a bad moment: a call without an answer is told so and has its credit again, and no payment is locked up.

So are a request that came to its turn too late, and a gate that is deleted meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp.web
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.test_calls import until
from tests.engines import IS_POSTGRESQL, beside, held
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import Forward, pass_on, run_hostile_hub
from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.gateway.test_leaving import LeftShop, shop
from tollkeeper.gateway.call import state
from tollkeeper.gateway.call.context import GatewayContext
from tollkeeper.gateway.call.driver import CallDriver, Cut, CutShortError
from tollkeeper.gateway.call.handler import PayGateHandler
from tollkeeper.gateway.evidence.nodes import EvidenceNodes
from tollkeeper.gateway.limiting import UnpaidLimit
from tollkeeper.gateway.open_gate import Gates
from tollkeeper.settings.model import Role
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.ledger.purchase_rows import SpendResult
from tollkeeper.storage.ledger.purchases import Purchases


async def hold(database: Path, seconds: float, let_go: threading.Event | None = None) -> threading.Thread:
    """For so long from now on, or until told to let go, another program writes in the database, and nobody else."""
    is_held, is_over = threading.Event(), let_go or threading.Event()

    def keep() -> None:
        with held(database):
            is_held.set()
            is_over.wait(seconds)

    keeping = threading.Thread(target=keep)
    keeping.start()
    assert await asyncio.to_thread(is_held.wait, 10)
    return keeping


async def answer_of(reader: asyncio.StreamReader) -> tuple[bytes, dict[str, Any]]:
    head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
    return head, json.loads(body)


def books_of(there: LeftShop) -> list[tuple[str, int]]:
    with beside(there.database) as books:
        found: list[tuple[str, int]] = books.execute("SELECT state, remaining FROM holdings").fetchall()
        return found


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_a_call_whose_commit_outlasts_a_stop_is_charged_nothing(
    times: int, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """On a held credit, in its own row and in the journal; with a payment that was never seen nothing is bought."""
    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate = await there.gate(credits=20)
        request = there.request(gate, X_Payment=await there.payment(gate))
        for _ in range(times):
            reader, writer = await there.connect()
            writer.write(request)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        reader, writer = await there.connect()
        await asyncio.sleep(0.7)  # else how calls ended would be written meanwhile
        keeping = await hold(there.database, 8 if IS_POSTGRESQL else 4)
        writer.write(request)
        await asyncio.sleep(1)  # its commit waits by then, and nothing that can be asked tells of it
    await asyncio.to_thread(keeping.join)
    head, body = await answer_of(reader)
    writer.close()
    assert head.startswith(b"HTTP/1.1 503 ")
    assert body["error"]["code"] == "UNAVAILABLE"
    assert len(target.requests) == times
    given_back = {} if IS_POSTGRESQL else {("RESTORED", 503): 1}  # PostgreSQL breaks off what waits for so long
    assert there.calls() == ({("DONE", 200): times, **given_back} if times else {})
    assert books_of(there) == ([("LIVE", 20 - times)] if times else [])


async def test_a_stop_while_a_body_that_is_to_be_signed_comes_gives_the_credit_back(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate = await there.gate(credits=20, method="POST", headerAuthMode="hmac")
        payment = await there.payment(gate, "POST")
        head = there.request(gate, "POST", X_Payment=payment, Content_Length="10")
        reader, writer = await there.connect()
        writer.write(head + b"0123")
        await until(there.calls)
    answer, body = await answer_of(reader)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert body["error"]["code"] == "UNAVAILABLE"
    assert target.requests == []
    assert there.calls() == {("RESTORED", 503): 1}
    assert books_of(there) == [("LIVE", 20)]


async def test_whoever_leaves_while_his_body_is_read_to_be_signed_has_an_end_in_the_books(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, method="POST", headerAuthMode="hmac")
        payment = await there.payment(gate, "POST")
        head = there.request(gate, "POST", X_Payment=payment, Content_Length="10")
        _, writer = await there.connect()
        writer.write(head + b"0123")
        await until(there.calls)
        there.reset(writer)
        await until(lambda: there.calls() == {("DONE", 499): 1})
    assert target.requests == []
    assert there.calls() == {("DONE", 499): 1}


async def test_a_fault_while_a_body_that_came_late_is_signed_is_a_500_with_the_receipt(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*_: object) -> bytes:
        raise ZeroDivisionError

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, method="POST", headerAuthMode="hmac")
        payment = await there.payment(gate, "POST")
        monkeypatch.setattr("tollkeeper.gateway.call.headers.signature_of", break_off)
        for parts in ([b"0123456789"], [b"0123", b"456789"]):
            head = there.request(gate, "POST", X_Payment=payment, Content_Length="10", Connection="close")
            reader, writer = await there.connect()
            writer.write(head)
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.7)
            answer, body = await answer_of(reader)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 500 ")
            assert b"\r\nx-credits-remaining: " in answer
            assert body["error"]["code"] == "INTERNAL_ERROR"
    assert target.requests == []
    assert there.calls() == {("DONE", 500): 2}


@pytest.mark.parametrize("moment", ["while it is verified", "while its claim is written"])
async def test_a_purchase_whose_request_a_stop_cuts_is_not_made_or_its_token_is_told(
    moment: str, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    verifying = asyncio.Event()
    keeping: list[threading.Thread] = []

    async def verify(_request: aiohttp.web.Request, forward: Forward) -> aiohttp.web.StreamResponse:
        if moment == "while it is verified":
            verifying.set()
            await asyncio.sleep(3)
            return await forward()
        answer = await forward()
        keeping.append(await hold(there.database, 3))
        verifying.set()
        return answer

    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub, run_hostile_hub(hub) as between:
        apart = {"role": Role.GATEWAY, "hub_url": between.url}
        async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1, **apart) as there:
            gate = await there.gate(credits=20, creditBinding="token")
            payment = await there.payment(gate)
            reader, writer = await there.connect()
            await asyncio.sleep(0.7)
            between.verifying = verify
            writer.write(there.request(gate, X_Payment=payment))
            await asyncio.wait_for(verifying.wait(), 10)
            await asyncio.sleep(0.2)
        head, body = await answer_of(reader)
        writer.close()
        assert head.startswith(b"HTTP/1.1 503 ")
        assert body["error"]["code"] == "UNAVAILABLE"
        found = re.search(rb"(?i)\r\nx-credit-token: (.*)\r\n", head)
        token = "" if found is None else found[1].decode()
        assert there.calls() == {}
        assert books_of(there) == ([("LIVE", 20)] if token else [])
        assert bool(token) == (moment == "while its claim is written")
        between.verifying = pass_on
        async with shop(embedded_chain.url, target, tmp_path, **apart) as there:
            url = f"{there.url}/{gate['slug']}"
            shown = {"X-Payment": payment} | ({"X-Credit-Token": token} if token else {})
            again = await there.buyer.ask("GET", url, headers=shown)
            assert (again.status, again.headers["x-credits-remaining"]) == (200, "19")


async def test_a_request_that_comes_to_its_turn_too_late_buys_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood behind one whose target took long."""

    async def answer_late(_request: Received, writer: Writer) -> None:
        monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 1.5)  # of the second's: the first has its deadline
        await asyncio.sleep(2)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n<served>")

    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, creditBinding="token")
        first, second = await there.payment(gate), await there.payment(gate)
        target.answer = answer_late
        reader, writer = await there.connect()
        writer.write(there.request(gate, X_Payment=first) + there.request(gate, X_Payment=second, Connection="close"))
        answers = (await asyncio.wait_for(reader.read(), 10)).partition(b"<served>")
        writer.close()
        assert answers[0].startswith(b"HTTP/1.1 200 ")
        assert answers[2].startswith(b"HTTP/1.1 503 ")
        assert b"UNAVAILABLE" in answers[2]
        monkeypatch.undo()
        again = await there.buyer.call(gate["accessUrl"], second)
        assert (again.status, again.headers["x-credits-remaining"]) == (200, "19")


async def test_a_call_at_a_deleted_gate_that_had_no_answer_is_served_when_it_comes_again(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    settling, deleted, reached = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def settle_late(_request: aiohttp.web.Request, forward: Forward) -> aiohttp.web.StreamResponse:
        settling.set()
        await deleted.wait()
        return await forward()

    async def hang(request: Received, _writer: Writer) -> None:
        reached.set()
        await request.reader.read()

    answers = target.answer
    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub, run_hostile_hub(hub) as between:
        between.settling = settle_late
        apart = {"role": Role.GATEWAY, "hub_url": between.url}
        async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1, **apart) as there:
            gate = await there.gate(credits=3)
            payment = await there.payment(gate)
            target.answer = hang
            reader, writer = await there.connect()
            writer.write(there.request(gate, X_Payment=payment))
            await asyncio.wait_for(settling.wait(), 10)
            gone = await there.buyer.ask("DELETE", f"{there.url}/api/v1/paygates/{gate['id']}")
            assert gone.status == 200
            deleted.set()
            await asyncio.wait_for(reached.wait(), 10)
        head, _ = await answer_of(reader)
        writer.close()
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nx-credits-remaining: 3\r\n" in head
        target.answer = answers
        async with shop(embedded_chain.url, target, tmp_path, **apart) as there:
            url = f"{there.url}/{gate['slug']}"
            served = [(await there.buyer.ask("GET", url, headers={"X-Payment": payment})).status for _ in range(2)]
        assert served == [200, 404]
        assert there.calls() == {("RESTORED", 503): 1, ("DONE", 200): 1}
        assert books_of(there) == [("VOID", 2)]


class Told:
    """A call whose coroutine waits in tasks, and notes how it is cut."""

    def __init__(self, context: GatewayContext) -> None:
        self.told: list[object] = []
        self.driver = CallDriver(context.under_way, self.told.append)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.driver.begin(self.wait(work))

    async def wait(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await self.driver.in_task(work)
        except CutShortError as cut:
            self.told.append(cut.cut)


def context_of(idle: Callable[[], Awaitable[None]]) -> GatewayContext:
    """What a stop knows of calls, and a ledger."""
    purchases = SimpleNamespace(ledger=SimpleNamespace(idle=idle))
    return cast("GatewayContext", SimpleNamespace(under_way={}, is_stopping=False, purchases=purchases))


async def nothing_to_wait_for() -> None:
    """Nothing is spent."""


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_call_whose_task_a_stop_cancels_is_cut_short_once_however_far_it_is(turns: int) -> None:
    context = context_of(nothing_to_wait_for)
    call = Told(context)
    call.begin(asyncio.sleep(60))
    for _ in range(turns):
        await asyncio.sleep(0)
    await PayGateHandler(context).aclose()
    assert call.told == [Cut.STOPPED]


async def test_a_task_that_begins_while_a_stop_waits_for_a_commit_is_cut_too() -> None:
    async def commit() -> None:
        await asyncio.sleep(0.01)
        if not call.told:
            call.begin(asyncio.sleep(60))

    context = context_of(commit)
    call = Told(context)
    async with asyncio.timeout(10):
        await PayGateHandler(context).aclose()
    assert call.told == [Cut.STOPPED]


async def test_a_task_whose_own_time_is_up_in_the_turn_of_the_stop_is_cut_too() -> None:
    async def look_again() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await asyncio.sleep(60)

    context = context_of(nothing_to_wait_for)
    call = Told(context)
    call.begin(look_again())
    await asyncio.sleep(0)
    (task,) = context.under_way
    while not task.cancelling():  # noqa: ASYNC110 - its every turn counts
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await PayGateHandler(context).aclose()
    assert call.told == [Cut.STOPPED]


@pytest.mark.parametrize("case", ["a stop", "it leaves", "it stays"])
async def test_a_grant_of_which_nobody_says_what_became_is_given_back_or_has_an_end(
    case: str,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a database commits, and does not say so."""
    granted, grant = asyncio.Event(), Purchases.grant

    async def lose(self: Purchases, *arguments: Any, **named: Any) -> SpendResult:
        await grant(self, *arguments, **named)
        granted.set()
        await asyncio.sleep(2.5)
        raise StorageError("the database said nothing")

    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate = await there.gate(credits=20)
        request = there.request(gate, X_Payment=await there.payment(gate), Connection="close")
        monkeypatch.setattr(Purchases, "grant", lose)
        reader, writer = await there.connect()
        writer.write(request)
        await asyncio.wait_for(granted.wait(), 10)
        answered = asyncio.create_task(answer_of(reader))
        if case == "it leaves":
            answered.cancel()
            writer.transport.abort()
            await asyncio.sleep(4)
        elif case == "it stays":
            await asyncio.wait({answered})
        monkeypatch.undo()
    if case != "it leaves":
        head, body = await answered
        writer.close()
        assert (head[9:12], body["error"]["code"]) == (b"503", "UNAVAILABLE")
    assert there.calls() == {("RESTORED", 503): 1}
    assert books_of(there) == [("LIVE", 20)]


FAULTS: dict[str, tuple[object, str, bool]] = {  # where a fault is put in, and whether a credit was taken by then
    "the gate as it is by now": (Gates, "current", True),
    "the receipt": (UnpaidLimit, "paid", True),
    "the grant": (Purchases, "grant", False),
}


@pytest.mark.parametrize("case", FAULTS)
async def test_a_fault_between_the_payment_and_the_target_tells_what_was_bought_and_has_an_end(
    case: str,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, name, is_charged = FAULTS[case]

    def breaks(*_: object, **__: object) -> Any:
        raise ZeroDivisionError

    async with shop(embedded_chain.url, target, tmp_path) as there:
        is_first = case in {"the gate as it is by now", "the grant"}
        gate = await there.gate(credits=20, creditBinding="token" if is_first else "payment")
        payment = await there.payment(gate)
        if not is_first:
            assert (await there.buyer.call(gate["accessUrl"], payment)).status == 200
        with monkeypatch.context() as broken:
            broken.setattr(owner, name, breaks)
            reader, writer = await there.connect()
            writer.write(there.request(gate, X_Payment=payment, Connection="close"))
            head, body = await answer_of(reader)
            writer.close()
        assert (head[9:12], body["error"]["code"]) == (b"500", "INTERNAL_ERROR")
        found = re.search(rb"(?i)\r\nx-credit-token: (.*)(\r\n|$)", head)
        assert (found is not None) == is_first
        assert (b"\r\nx-credits-remaining: " in head) == is_charged
        if found is not None:
            shown = {"X-Credit-Token": found[1].decode()}
            again = await there.buyer.ask("GET", gate["accessUrl"], headers=shown)  # not granted: by recovery
            assert again.headers["x-credits-remaining"] == ("18" if is_charged else "19")
    assert there.calls() == ({("DONE", 200): 1, ("DONE", 500): 1} if is_charged else {("DONE", 200): 1})


async def test_a_background_task_that_broke_off_keeps_no_call_from_its_end_at_a_stop(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def hang(request: Received, _writer: Writer) -> None:
        reached.set()
        await request.reader.read()

    async def breaks(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(EvidenceNodes, "keep_open", breaks)
    target.answer = hang
    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate = await there.gate(credits=20)
        reader, writer = await there.connect()
        writer.write(there.request(gate, X_Payment=await there.payment(gate)))
        await asyncio.wait_for(reached.wait(), 10)
    head, _ = await answer_of(reader)
    writer.close()
    assert head.startswith(b"HTTP/1.1 503 ")
    assert there.calls() == {("RESTORED", 503): 1}
