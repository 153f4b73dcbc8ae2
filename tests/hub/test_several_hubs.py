"""Two hubs on one database: nothing is sent twice, and who lost a row writes nothing (security F20).

Each has its own way to the database and to a node, which can be cut off: to the other it is dead then, and lets it know
nothing when it goes on.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
import pytest_asyncio

from tests.books import assert_books_agree
from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode, run_chaos
from tests.hub.hub_process import hub_command
from tests.hub.hub_under_test import TestPayment, hub_config, new_hub, new_payment, serving, start_hub
from tests.hub.test_left_callers import is_about
from tests.hub.test_recovery import change
from tests.hub.test_unknown_outcomes import drain
from tollkeeper.hub.app import create_app
from tollkeeper.hub.evm.nonce_lanes import STUCK_SECONDS
from tollkeeper.storage.engine.database import Database, Row, Statement, Unit
from tollkeeper.storage.urls import open_database

T = TypeVar("T")

SEND = "eth_sendRawTransaction"
LIFE_SECONDS = 5.0  # in which a busy machine says that it lives
NODE_SECONDS = 2.0


class Way:
    """One hub's way to the database. Nothing passes while it is cut off, and all goes on afterwards."""

    def __init__(self, real: Database) -> None:
        self._real = real
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def read(self, statement: Statement, *, is_short: bool = False, tenant: str | None = None) -> list[Row]:
        await self.is_open.wait()
        return await self._real.read(statement, is_short=is_short, tenant=tenant)

    async def run(self, unit: Unit[T], *, is_short: bool = False) -> T:
        await self.is_open.wait()
        return await self._real.run(unit, is_short=is_short)

    def post(self, *_: object) -> None:
        raise NotImplementedError("a hub posts nothing")

    def write_as(self, node: str) -> None:
        raise NotImplementedError(f"a hub is no node: {node}")

    async def close(self) -> None:
        """Whoever opened the database closes it."""


class SharingHub:
    """One of several."""

    def __init__(self, url: str, way: Way, node: ChaosNode) -> None:
        self.url, self.way, self.node = url, way, node

    def cut_off(self) -> None:
        self.way.is_open.clear()
        self.node.act = lambda _methods: Act.CUT

    def go_on(self) -> None:
        self.node.act = lambda _methods: Act.PASS
        self.way.is_open.set()


@asynccontextmanager
async def sharing(database: Database, chain: ChainUnderTest, node: ChaosNode) -> AsyncIterator[SharingHub]:
    """A hub on that database, before that node."""
    way = Way(database)
    hub = new_hub(
        way,
        (chain.wallets.relayer.private_key,),
        hub_config(node.url, timeout_seconds=NODE_SECONDS),
        recovery_interval_seconds=0.1,
        shared_life_seconds=LIFE_SECONDS,
    )
    try:
        await start_hub(hub)
        async with serving(create_app(hub)) as url:
            running = SharingHub(url, way, node)
            yield running
            running.go_on()
    finally:
        await hub.close()


class Shared:
    """Hubs on one database, each before a proxy that counts what it sends."""

    def __init__(self, chain: ChainUnderTest, database: Database, stack: AsyncExitStack) -> None:
        self.chain, self.database = chain, database
        self._stack = stack
        self.hubs: list[SharingHub] = []
        self.sent: Counter[str] = Counter()

    async def add(self) -> SharingHub:
        """One more."""
        node = await self._stack.enter_async_context(run_chaos(self.chain.url))
        node.falsify = self._count
        self.hubs.append(await self._stack.enter_async_context(sharing(self.database, self.chain, node)))
        return self.hubs[-1]

    def _count(self, call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == SEND:
            self.sent[call["params"][0]] += 1
        return answer

    async def settle(self, hub: int, payment: TestPayment, **fields: Any) -> tuple[int, dict[str, Any]]:
        async with aiohttp.ClientSession() as http:
            body = payment.asking(**{"confirm": True, **fields})
            async with http.post(self.hubs[hub].url + "/settle", json=body) as answer:
                return answer.status, await answer.json()

    async def rows(self) -> list[Any]:
        return list(await self.database.read(Statement("SELECT * FROM settlements ORDER BY created_ms")))

    async def all_confirmed(self) -> list[Any]:
        async with asyncio.timeout(60):
            while True:
                rows = await self.rows()
                if {row["state"] for row in rows} == {"CONFIRMED"}:
                    return rows
                await asyncio.sleep(0.1)


@pytest_asyncio.fixture
async def shared(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[Shared]:
    async with AsyncExitStack() as stack:
        database = open_database(str(tmp_path / "hub.db"))
        stack.push_async_callback(database.close)
        shared = Shared(embedded_chain, database, stack)
        for _ in range(2):
            await shared.add()
        yield shared
    assert_books_agree(tmp_path)


async def test_two_hubs_send_each_transaction_once_and_give_each_success_once(shared: Shared) -> None:
    chain = shared.chain
    before = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    payments = [new_payment(chain) for _ in range(40)]
    chain.rpc.call("evm_setAutomine", False)
    asked = [asyncio.create_task(shared.settle(index % 2, payment)) for index, payment in enumerate(payments * 2)]
    also = [asyncio.create_task(shared.settle(1 - index % 2, payment)) for index, payment in enumerate(payments)]
    for _ in range(6):  # slow blocks, under recoveries that look ten times a second
        await asyncio.sleep(0.5)
        await asyncio.to_thread(chain.rpc.call, "evm_mine")
    chain.rpc.call("evm_setAutomine", True)
    answers = await asyncio.gather(*asked, *also)
    successes = Counter(body["transaction"] for status, body in answers if status == 200 and body["success"])
    assert (len(successes), set(successes.values())) == (40, {1})
    assert set(shared.sent.values()) == {1}
    assert len(shared.sent) == 40
    assert chain.nonce(chain.wallets.relayer) == nonce + 40
    assert chain.balance(chain.wallets.owner.address) == before + 400_000
    assert len(await shared.all_confirmed()) == 40


@pytest.mark.parametrize("moment", ["before it was sent", "while it is awaited"])
async def test_a_hub_that_was_cut_off_finds_its_row_taken_over(shared: Shared, moment: str) -> None:
    chain, first = shared.chain, shared.hubs[0]
    nonce = chain.nonce(chain.wallets.relayer)
    payment = new_payment(chain)
    chain.rpc.call("evm_setAutomine", False)
    stopped = asyncio.Event()

    def stop(methods: list[str]) -> Act:
        wanted = SEND if moment == "before it was sent" else "eth_getTransactionReceipt"
        if wanted not in methods or stopped.is_set():
            return Act.PASS
        first.cut_off()
        stopped.set()
        return Act.CUT

    first.node.act = stop
    asking = asyncio.create_task(shared.settle(0, payment))
    await stopped.wait()
    (row,) = await shared.rows()
    first_holder = row["holder"]
    if moment == "while it is awaited":
        assert len(shared.sent) == 1
    async with asyncio.timeout(60):
        # The node has it, though its answer may come too late to be counted.
        while not (await shared.rows())[0]["fence"] or chain.nonce(chain.wallets.relayer) == nonce:  # noqa: ASYNC110 - a database is asked
            await asyncio.sleep(0.1)
    chain.rpc.call("evm_mine")
    (row,) = await shared.all_confirmed()
    assert row["holder"] != first_holder
    version, fence = row["version"], row["fence"]
    assert fence >= 1
    first.go_on()
    status, body = await asking
    told = [body["success"]] if status == 200 else []
    status, body = await shared.settle(1, payment)
    told += [body["success"]]
    assert told.count(True) == 1  # one of the two callers was given it
    (row,) = await shared.rows()
    assert (row["version"], row["fence"]) == (version, fence)  # who was cut off wrote nothing
    assert set(shared.sent.values()) <= {1}
    assert chain.nonce(chain.wallets.relayer) == nonce + 1
    chain.rpc.call("evm_setAutomine", True)
    payment = new_payment(chain)
    async with asyncio.timeout(60):  # it goes on under another name, once it has joined again
        while (await shared.settle(0, payment, confirm=False))[0] == 503:  # noqa: ASYNC110 - a database is asked
            await asyncio.sleep(0.1)
    assert (await shared.settle(1, payment))[1]["errorReason"] == "duplicate_settlement"  # the success was told once


async def test_the_payments_of_a_hub_that_is_cut_off_are_finished_by_the_other(shared: Shared) -> None:
    chain = shared.chain
    chain.rpc.call("evm_setAutomine", False)
    before = chain.balance(chain.wallets.owner.address)
    asked = [asyncio.create_task(shared.settle(0, new_payment(chain))) for _ in range(20)]
    async with asyncio.timeout(60):
        while len(shared.sent) < 10:  # noqa: ASYNC110 - a database is asked
            await asyncio.sleep(0.01)
    shared.hubs[0].cut_off()
    chain.rpc.call("evm_setAutomine", True)
    chain.rpc.call("evm_mine")
    signed = len(await shared.all_confirmed())
    for asking in asked:
        asking.cancel()
    assert set(shared.sent.values()) == {1}
    assert chain.balance(chain.wallets.owner.address) == before + 10_000 * signed


async def test_what_was_taken_over_is_sent_soon_whoever_keeps_the_lane(shared: Shared) -> None:
    """Each of the two living takes over one of a dead hub's signed rows; only one of them keeps the signer's lane."""
    chain, third = shared.chain, await shared.add()
    for hub in shared.hubs:
        hub.node.act = lambda methods: Act.CUT if SEND in methods else Act.PASS
    asked = [asyncio.create_task(shared.settle(2, new_payment(chain))) for _ in range(2)]
    async with asyncio.timeout(60):
        while [row["state"] for row in await shared.rows()] != ["SIGNED"] * 2:  # noqa: ASYNC110 - a database is asked
            await asyncio.sleep(0.05)
    third.cut_off()
    began = time.monotonic()
    rows = await shared.rows()
    members = await shared.database.read(Statement("SELECT id FROM hub_processes"))
    living = {row["id"] for row in members} - {row["holder"] for row in rows}
    for row, holder in zip(rows, living, strict=True):
        taken = "UPDATE settlements SET holder = :holder, fence = fence + 1 WHERE id = :id"
        await shared.database.run(change(taken, holder=holder, id=row["id"]))
    for hub in shared.hubs[:2]:
        hub.go_on()
    assert {row["holder"] for row in await shared.all_confirmed()} == living
    assert time.monotonic() - began < STUCK_SECONDS / 2
    assert len(shared.sent) == 2
    for asking in asked:
        asking.cancel()


@pytest.mark.sqlite_only("PostgreSQL's is opened by many")
def test_a_database_that_one_process_opened_is_not_opened_by_another(tmp_path: Path) -> None:
    """The second one refuses to start."""
    opened = open_database(str(tmp_path / "hub.db"))
    command = hub_command(tmp_path, "http://127.0.0.1:9")
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "one process writes a database; end that one first" in ended.stderr
    asyncio.run(opened.close())


async def test_a_key_s_repeat_at_another_hub_is_told_the_outcome_of_its_own_payment(shared: Shared) -> None:
    """Even where it came before the key was bound: while it is simulated, the other hub settles and tells."""
    first, second = shared.hubs
    payment, headers = new_payment(shared.chain), {"Idempotency-Key": "claim.1", "Content-Type": "application/json"}
    body = json.dumps(payment.asking(confirm=True)).encode()
    told: list[dict[str, Any]] = []

    async def ask(hub: SharingHub) -> None:
        async with aiohttp.ClientSession(headers=headers) as http, http.post(hub.url + "/settle", data=body) as answer:
            told.append(await answer.json())

    is_simulated = asyncio.Event()

    def hold_the_second(methods: list[str]) -> Act:
        if "eth_call" in methods and not is_simulated.is_set():
            second.way.is_open.clear()
            is_simulated.set()
        return Act.PASS

    second.node.act = hold_the_second
    asking = asyncio.create_task(ask(second))
    await is_simulated.wait()
    await ask(first)
    second.way.is_open.set()
    await asking
    await ask(second)
    assert [answer["success"] for answer in told] == [True] * 3
    assert len({answer["transaction"] for answer in told}) == 1


async def test_what_another_hub_signed_meanwhile_is_not_refused_for_what_its_payer_has_left(shared: Shared) -> None:
    """Told so, its payer would sign another one, while this one may be mined yet."""
    first, second = shared.hubs
    payment, is_held = new_payment(shared.chain), asyncio.Event()
    body = payment.asking(confirm=True)

    def hold(_methods: list[str]) -> Act:
        if is_held.is_set() or not is_about(second.node.judged, json.dumps(body).encode()):
            return Act.PASS
        is_held.set()
        return Act.LATE

    first.node.on(SEND, Act.CUT)
    second.node.act = hold
    async with aiohttp.ClientSession(headers={"Prefer": "wait=0"}) as http:
        asking = asyncio.ensure_future(http.post(second.url + "/settle", json=body))
        await is_held.wait()
        async with http.post(first.url + "/settle", json=body) as answer:
            assert answer.status == 503
        drain(shared.chain)
        async with await asking as answer:
            told = await answer.json()
    assert (told.get("errorReason"), answer.status) == (None, 503)
    assert told["error"]["code"] == "SETTLEMENT_PENDING"
