"""Two hub processes on one database: nothing is sent twice, and who lost a row writes nothing (security F20).

The database is a ledger process of its own; the hubs are killed, stopped and let go on.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_process import HubProcess, hub_command
from tests.hub.hub_under_test import TestPayment, new_payment
from tests.hub.test_completer import change
from tests.hub.test_left_callers import is_about
from tests.hub.test_unknown_outcomes import drain
from tollkeeper.hub.lanes import STUCK_SECONDS
from tollkeeper.storage import Statement, open_database
from tollkeeper.storage.remote import RemoteDatabase

SEND = "eth_sendRawTransaction"
LIFE_SECONDS = 5.0  # in which a busy machine says that it lives


@contextmanager
def ledger_process(directory: Path) -> Iterator[None]:
    """Owns the database; `hub.db` is its socket."""
    command = [sys.executable, "-m", "tollkeeper.storage.ledger_process"]
    arguments = [f"sqlite:///{directory}/books.db", str(directory / "hub.db")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*command, *arguments], **pipes) as process:  # type: ignore[call-overload]  # the pipes
        assert process.stdout.readline() == b"ready\n"
        yield
        process.stdin.close()
        process.wait()


class Shared:
    """Two hubs and the proxy that counts what they send."""

    def __init__(self, directory: Path, chain: ChainUnderTest, chaos: ChaosNode, hubs: list[HubProcess]) -> None:
        self.directory, self.chain, self.chaos, self.hubs = directory, chain, chaos, hubs
        self.sent: Counter[str] = Counter()
        chaos.falsify = self._count

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
        database = RemoteDatabase(self.directory / "hub.db")
        await database.open()
        try:
            return list(await database.read(Statement("SELECT * FROM settlements ORDER BY created_ms")))
        finally:
            await database.close()

    async def all_confirmed(self) -> list[Any]:
        async with asyncio.timeout(60):
            while True:
                rows = await self.rows()
                if {row["state"] for row in rows} == {"CONFIRMED"}:
                    return rows
                await asyncio.sleep(0.1)


@pytest_asyncio.fixture
async def shared(tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest) -> AsyncIterator[Shared]:
    with ledger_process(tmp_path):
        first, second = await asyncio.gather(
            *(asyncio.to_thread(HubProcess, tmp_path, chaos.url, life_seconds=LIFE_SECONDS) for _ in range(2))
        )
        with first, second:
            yield Shared(tmp_path, embedded_chain, chaos, [first, second])
            for hub in (first, second):
                hub.signal(signal.SIGCONT)


async def test_two_hubs_send_each_transaction_once_and_give_each_success_once(shared: Shared) -> None:
    chain = shared.chain
    before = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    payments = [new_payment(chain) for _ in range(40)]
    chain.rpc.call("evm_setAutomine", False)
    asked = [asyncio.create_task(shared.settle(index % 2, payment)) for index, payment in enumerate(payments * 2)]
    also = [asyncio.create_task(shared.settle(1 - index % 2, payment)) for index, payment in enumerate(payments)]
    for _ in range(6):  # slow blocks, under completers that look ten times a second
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
async def test_a_hub_that_stood_still_finds_its_row_taken_over(shared: Shared, moment: str) -> None:
    chain, chaos = shared.chain, shared.chaos
    nonce = chain.nonce(chain.wallets.relayer)
    payment = new_payment(chain)
    chain.rpc.call("evm_setAutomine", False)
    stopped = asyncio.Event()

    def stop(methods: list[str]) -> Act:
        wanted = SEND if moment == "before it was sent" else "eth_getTransactionReceipt"
        if wanted not in methods or stopped.is_set():
            return Act.PASS
        shared.hubs[0].signal(signal.SIGSTOP)
        stopped.set()
        return Act.CUT

    chaos.act = stop
    asking = asyncio.create_task(shared.settle(0, payment))
    await stopped.wait()
    (row,) = await shared.rows()
    first_holder = row["holder"]
    if moment == "while it is awaited":
        assert len(shared.sent) == 1
    async with asyncio.timeout(60):
        # The node has it, though its answer may come too late to be counted.
        while not (await shared.rows())[0]["fence"] or chain.nonce(chain.wallets.relayer) == nonce:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
    chain.rpc.call("evm_mine")
    (row,) = await shared.all_confirmed()
    assert row["holder"] != first_holder
    version, fence = row["version"], row["fence"]
    assert fence >= 1
    shared.hubs[0].signal(signal.SIGCONT)
    status, body = await asking
    told = [body["success"]] if status == 200 else []
    status, body = await shared.settle(1, payment)
    told += [body["success"]]
    assert told.count(True) == 1  # one of the two callers was given it
    (row,) = await shared.rows()
    assert (row["version"], row["fence"]) == (version, fence)  # who stood still wrote nothing
    assert set(shared.sent.values()) <= {1}
    assert chain.nonce(chain.wallets.relayer) == nonce + 1
    chain.rpc.call("evm_setAutomine", True)
    payment = new_payment(chain)
    async with asyncio.timeout(60):  # it goes on under another name, once it has joined again
        while (await shared.settle(0, payment, confirm=False))[0] == 503:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
    assert (await shared.settle(1, payment))[1]["errorReason"] == "duplicate_settlement"  # the success was told once


async def test_a_killed_hub_s_payments_are_finished_by_the_other(shared: Shared) -> None:
    chain = shared.chain
    chain.rpc.call("evm_setAutomine", False)
    before = chain.balance(chain.wallets.owner.address)
    asked = [asyncio.create_task(shared.settle(0, new_payment(chain))) for _ in range(20)]
    async with asyncio.timeout(60):
        while len(shared.sent) < 10:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
    shared.hubs[0].kill()
    await asyncio.gather(*asked, return_exceptions=True)
    chain.rpc.call("evm_setAutomine", True)
    chain.rpc.call("evm_mine")
    signed = len(await shared.all_confirmed())
    assert set(shared.sent.values()) == {1}
    assert chain.balance(chain.wallets.owner.address) == before + 10_000 * signed


async def test_what_was_taken_over_is_sent_soon_whoever_keeps_the_lane(shared: Shared) -> None:
    """Each of the two living takes over one of a dead hub's signed rows; only one of them keeps the signer's lane."""
    chain, chaos = shared.chain, shared.chaos
    database = RemoteDatabase(shared.directory / "hub.db")
    await database.open()
    chaos.act = lambda methods: Act.CUT if SEND in methods else Act.PASS
    third = await asyncio.to_thread(HubProcess, shared.directory, chaos.url, life_seconds=LIFE_SECONDS)
    with third:
        shared.hubs.append(third)
        asked = [asyncio.create_task(shared.settle(2, new_payment(chain))) for _ in range(2)]
        async with asyncio.timeout(60):
            while [row["state"] for row in await shared.rows()] != ["SIGNED"] * 2:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
    killed = time.monotonic()
    await asyncio.gather(*asked, return_exceptions=True)
    rows = await shared.rows()
    members = await database.read(Statement("SELECT id FROM hub_processes"))
    living = {row["id"] for row in members} - {row["holder"] for row in rows}
    for row, holder in zip(rows, living, strict=True):
        taken = "UPDATE settlements SET holder = :holder, fence = fence + 1 WHERE id = :id"
        await database.run(change(taken, holder=holder, id=row["id"]))
    await database.close()
    chaos.act = lambda _methods: Act.PASS
    assert {row["holder"] for row in await shared.all_confirmed()} == living
    assert time.monotonic() - killed < STUCK_SECONDS / 2
    assert len(shared.sent) == 2


def test_a_database_that_one_process_opened_is_not_opened_by_another(tmp_path: Path) -> None:
    """Without a ledger process two hubs cannot meet: the second one refuses to start."""
    opened = open_database(str(tmp_path / "hub.db"))
    command = hub_command(tmp_path, "http://127.0.0.1:9")
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "one process writes a database; end that one first" in ended.stderr
    asyncio.run(opened.close())


async def test_a_key_s_repeat_at_another_process_is_told_the_outcome_of_its_own_payment(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """Even where it came before the key was bound: while it is simulated, the other process settles and tells."""
    payment, headers = new_payment(embedded_chain), {"Idempotency-Key": "claim.1", "Content-Type": "application/json"}
    body = json.dumps(payment.asking(confirm=True)).encode()
    told: list[dict[str, Any]] = []

    def ask_the_first(methods: list[str]) -> Act:
        if "eth_call" in methods and not told:
            asking = urllib.request.Request(first.url + "/settle", body, headers)  # noqa: S310 - of this test
            with urllib.request.urlopen(asking, timeout=20) as answer:  # noqa: S310 - the same
                told.append(json.load(answer))
        return Act.PASS

    with ledger_process(tmp_path):
        starting = [
            asyncio.to_thread(HubProcess, tmp_path, url, life_seconds=LIFE_SECONDS)
            for url in (embedded_chain.url, chaos.url)
        ]
        first, second = await asyncio.gather(*starting)
        with first, second:
            async with aiohttp.ClientSession(headers=headers) as http:
                chaos.act = ask_the_first
                for _ in range(2):
                    async with http.post(second.url + "/settle", data=body) as answer:
                        told.append(await answer.json())
    assert [answer["success"] for answer in told] == [True] * 3
    assert len({answer["transaction"] for answer in told}) == 1


async def test_what_another_process_signed_meanwhile_is_not_refused_for_what_its_payer_has_left(
    tmp_path: Path, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    """Told so, its payer would sign another one, while this one may be mined yet."""
    chain, payment, is_held = embedded_chain, new_payment(embedded_chain), asyncio.Event()
    body = payment.asking(confirm=True)

    def hold(_methods: list[str]) -> Act:
        if is_held.is_set() or not is_about(nodes[1].judged, json.dumps(body).encode()):
            return Act.PASS
        is_held.set()
        return Act.LATE

    with ledger_process(tmp_path):
        starting = [asyncio.to_thread(HubProcess, tmp_path, node.url, life_seconds=LIFE_SECONDS) for node in nodes[:2]]
        first, second = await asyncio.gather(*starting)
        with first, second:
            nodes[0].on(SEND, Act.CUT)
            nodes[1].act = hold
            async with aiohttp.ClientSession(headers={"Prefer": "wait=0"}) as http:
                asking = asyncio.ensure_future(http.post(second.url + "/settle", json=body))
                await is_held.wait()
                async with http.post(first.url + "/settle", json=body) as answer:
                    assert answer.status == 503
                drain(chain)
                async with await asking as answer:
                    told = await answer.json()
        assert (told.get("errorReason"), answer.status) == (None, 503)
        assert told["error"]["code"] == "SETTLEMENT_PENDING"
