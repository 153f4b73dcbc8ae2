"""The hub's books and a real chain, whatever was lost on either side (security I6 to I8, F8, F22)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside, snapshot_class
from tests.gateway.composed import settings_for
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_under_test import HubUnderTest, TestPayment, new_payment, run_hub
from tollkeeper.chains.evm import payments
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.serving.books.reconciliation import REGISTRY, compare_with_chain, keep_reconciling
from tollkeeper.settings.model import Role
from tollkeeper.storage.books.reconciliation import Books
from tollkeeper.storage.engine.database import Row, Snapshot, Statement
from tollkeeper.storage.sqlite.file import SqliteSnapshot


async def differences(path: Path, rpc_url: str, since_block: int | None = None, *, role: Role = Role.HUB) -> list[str]:
    settings = settings_for(rpc_url, path, role=role)
    return [difference.rule for difference in await compare_with_chain(settings, since_block)]


def change(path: Path, *statements: str) -> None:
    with beside(path) as connection:
        for statement in statements:
            connection.execute(statement)


async def settled(hub: HubUnderTest, chain: ChainUnderTest, count: int = 1) -> list[TestPayment]:
    payments = [new_payment(chain) for _ in range(count)]
    for payment in payments:
        assert (await hub.settle(payment)).body["success"] is True
    return payments


def relay_abroad(chain: ChainUnderTest, payment: TestPayment) -> None:
    """Carried out by somebody else's transaction."""
    signature = bytes.fromhex(payment.body["paymentPayload"]["payload"]["signature"][2:])
    data = transfer_calldata(payment.authorization, signature)
    assert chain.send_and_wait(chain.wallets.faucet, USDC_ADDRESS, data)["status"] == "0x1"


async def test_what_was_settled_and_what_failed_agree_with_the_chain(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    await settled(hub, embedded_chain, 3)
    assert (await hub.settle(new_payment(embedded_chain, valid_before=1))).body["success"] is False
    relay_abroad(embedded_chain, new_payment(embedded_chain))  # between strangers, which is nobody's business here
    assert await differences(tmp_path / "hub.db", embedded_chain.url) == []


async def test_a_restored_backup_lacks_what_the_chain_has(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    await settled(hub, embedded_chain, 3)
    forgotten = "(SELECT id FROM settlements ORDER BY block_number DESC LIMIT 1)"
    change(
        tmp_path / "hub.db",
        f"DELETE FROM settlement_slots WHERE settlement_id = {forgotten}",  # noqa: S608 - own text
        f"DELETE FROM settlement_events WHERE settlement_id = {forgotten}",  # noqa: S608 - own text
        f"DELETE FROM settlements WHERE id = {forgotten}",  # noqa: S608 - own text
    )
    assert await differences(tmp_path / "hub.db", embedded_chain.url) == ["settled_but_not_in_the_books"]


async def test_a_block_that_is_gone_took_a_payment_with_it(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with run_hub(tmp_path, embedded_chain) as hub:
        await settled(hub, embedded_chain)
        before = embedded_chain.rpc.call("evm_snapshot")
        await settled(hub, embedded_chain)
    embedded_chain.rpc.call("evm_revert", before)
    embedded_chain.rpc.call("evm_mine")
    assert await differences(tmp_path / "hub.db", embedded_chain.url) == ["paid_but_not_on_the_chain"]


async def test_a_payment_to_a_sellers_address_that_nobody_here_settled_is_listed(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    await settled(hub, embedded_chain)
    change(tmp_path / "hub.db", "UPDATE settlements SET purchase_data = '{}'")
    relay_abroad(embedded_chain, new_payment(embedded_chain))
    path, url = tmp_path / "hub.db", embedded_chain.url
    assert await differences(path, url, role=Role.SERVE) == ["payment_without_purchase"]
    assert await differences(path, url, role=Role.HUB) == [], "its gateways know what they honoured"


async def test_books_that_say_otherwise_than_the_chain_are_listed(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    await settled(hub, embedded_chain)
    sound = "UPDATE settlements SET value = '10000', state = 'CONFIRMED'"
    for statement, rule in (
        ("UPDATE settlements SET value = '9'", "paid_otherwise"),
        ("UPDATE settlements SET state = 'FAILED'", "failed_but_carried_out"),
    ):
        change(tmp_path / "hub.db", statement)
        assert await differences(tmp_path / "hub.db", embedded_chain.url) == [rule]
        change(tmp_path / "hub.db", sound)


async def test_a_node_that_takes_few_blocks_at_once_is_asked_for_fewer(
    tmp_path: Path, hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    await settled(hub, embedded_chain, 3)
    embedded_chain.rpc.call("anvil_mine", 20)

    def at_most_four(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "eth_getLogs":
            return answer
        wanted = call["params"][0]
        size = int(wanted["toBlock"], 16) - int(wanted["fromBlock"], 16) + 1
        error = {"code": -32602, "message": "range too large"}
        return {"jsonrpc": "2.0", "id": answer["id"], "error": error} if size > 4 else answer

    chaos.falsify = at_most_four
    assert await differences(tmp_path / "hub.db", chaos.url) == []
    assert chaos.calls["eth_getLogs"] > 5


async def test_a_chain_that_cannot_be_asked_agrees_with_nothing(
    tmp_path: Path, hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    await settled(hub, embedded_chain)

    def refuse(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        error = {"code": -32601, "message": "no such method"}
        is_logs = call["method"] == "eth_getLogs"
        return {"jsonrpc": "2.0", "id": answer["id"], "error": error} if is_logs else answer

    chaos.falsify = refuse
    with pytest.raises(RpcUnavailable, match="eth_getLogs"):
        await differences(tmp_path / "hub.db", chaos.url)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that cannot answer yet is asked again at once."""
    monkeypatch.setattr(payments, "_PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("soon")
async def test_a_node_that_has_had_enough_of_our_questions_is_asked_again_a_little_later(
    tmp_path: Path, hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """A comparison of many payments asks for hours: once refused, it must not be for nothing."""
    await settled(hub, embedded_chain, 3)
    for method in ("eth_getLogs", "eth_getTransactionReceipt"):
        chaos.on(method, Act.SERVER_ERROR, times=2)
        assert await differences(tmp_path / "hub.db", chaos.url) == []
    refused = 0

    def limited(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        nonlocal refused
        if call["method"] != "eth_getTransactionReceipt" or refused == 4:
            return answer
        refused += 1
        error = {"code": -32005, "message": "request rate limited"}
        return {"jsonrpc": "2.0", "id": answer["id"], "error": error}

    chaos.falsify = limited
    assert await differences(tmp_path / "hub.db", chaos.url) == []
    assert refused == 4, "three receipts, and one of them again"


@pytest.mark.usefixtures("soon")
async def test_a_node_that_has_not_come_so_far_is_not_compared_with(
    tmp_path: Path, hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """Behind one address there may be several: what one that lags does not list is not missing."""
    await settled(hub, embedded_chain)

    def lag(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        shown = {"eth_getLogs": [], "eth_blockNumber": "0x0"}
        return {**answer, "result": shown[call["method"]]} if call["method"] in shown else answer

    chaos.falsify = lag
    with pytest.raises(RpcUnavailable, match="has not come to"):
        await differences(tmp_path / "hub.db", chaos.url)


async def test_the_job_reads_each_block_once_and_counts_what_differs(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of what failed for a gateway's sale, and was carried out by somebody else."""
    path = tmp_path / "hub.db"
    await settled(hub, embedded_chain, 2)
    (sold,), again = await settled(hub, embedded_chain), new_payment(embedded_chain)
    relay_abroad(embedded_chain, again)
    embedded_chain.rpc.call("anvil_mine", 8)
    failed, usual = again.authorization.nonce, sold.authorization.nonce
    change(
        path,
        "UPDATE settlements SET value = '9'",
        f"UPDATE settlements SET purchase_data = '{{}}', state = 'FAILED', nonce = '{failed}' WHERE nonce = '{usual}'",  # noqa: S608 - own text
    )
    rules = ("paid_otherwise", "failed_but_carried_out")

    def counted() -> list[float]:
        name = "tollkeeper_chain_differences_total"
        return [REGISTRY.get_sample_value(name, {"rule": rule}) or 0 for rule in rules]

    before = counted()
    settings = settings_for(embedded_chain.url, path, role=Role.HUB)
    job = asyncio.create_task(keep_reconciling(settings, hub.database, 0.02, behind_blocks=3))

    def cursor() -> int:
        with beside(path) as connection:
            found = connection.execute("SELECT max(next_block) FROM chain_cursors").fetchone()[0]
            return found or 0

    newest = int(embedded_chain.rpc.call("eth_blockNumber"), 16)
    async with asyncio.timeout(30):
        while cursor() < newest - 2:  # noqa: ASYNC110 - over the file there is nothing to wait on
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    job.cancel()
    assert cursor() == newest - 2
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [2, 1]
    assert "chain_differs" in capsys.readouterr().out
    change(path, "UPDATE settlements SET value = '10000', state = 'CONFIRMED'")


async def test_the_job_reads_the_books_beside_the_loop_that_serves(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of large books takes seconds."""
    await settled(hub, embedded_chain)
    readers: list[int] = []
    snapshots = snapshot_class()
    read = snapshots.read

    def noting(snapshot: Snapshot, statement: Statement) -> list[Row]:
        readers.append(threading.get_ident())
        return read(snapshot, statement)

    monkeypatch.setattr(snapshots, "read", noting)
    settings = settings_for(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB)
    job = asyncio.create_task(keep_reconciling(settings, hub.database, 0.02, behind_blocks=0))
    async with asyncio.timeout(30):
        while len(readers) < 20:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    job.cancel()
    assert threading.get_ident() not in readers


async def test_who_ends_waits_for_no_read_of_large_books(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await settled(hub, embedded_chain)
    long = Statement(
        "WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n WHERE v < 300000000) SELECT max(v) FROM n"
    )
    begun = threading.Event()

    def recipients(books: Books) -> list[str]:
        begun.set()
        books._snapshot.read(long)  # noqa: SLF001 - as it reads
        return []

    monkeypatch.setattr(Books, "recipients", recipients)
    settings = settings_for(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB)
    job = asyncio.create_task(keep_reconciling(settings, hub.database, 0.02, behind_blocks=0))
    assert await asyncio.to_thread(begun.wait, 20)
    before = time.monotonic()
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    assert time.monotonic() - before < 2


async def test_books_that_take_long_are_compared_more_rarely(
    tmp_path: Path, hub: HubUnderTest, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await settled(hub, embedded_chain)
    begun: list[float] = []

    def next_block(_: Books) -> int:
        begun.append(time.monotonic())
        time.sleep(0.3)
        return 2**40  # there is nothing new

    monkeypatch.setattr(Books, "next_block", next_block)
    settings = settings_for(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB)
    job = asyncio.create_task(keep_reconciling(settings, hub.database, 0.01, behind_blocks=0))
    async with asyncio.timeout(60):
        while len(begun) < 3:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    assert begun[2] - begun[1] > 0.55


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"), st.sampled_from(["base", "other"]), st.sampled_from(["0x1", "0x2"]), st.booleans()
        ),
        max_size=12,
    )
)
def test_recipients_are_those_who_were_paid_of_this_asset(rows: list[tuple[str, str, str, bool]]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE settlements (pay_to TEXT, network TEXT, asset TEXT, purchase_data TEXT)")
        sold = [(*row[:3], "{}" if row[3] else None) for row in rows]
        connection.executemany("INSERT INTO settlements VALUES (?, ?, ?, ?)", sold)
        books = Books(SqliteSnapshot(connection), "base", "0x1")
        here = [row for row in rows if row[1:3] == ("base", "0x1")]
        assert sorted(books.recipients()) == sorted({row[0] for row in here})
        assert books.sold_to() == {row[0] for row in here if row[3]}
