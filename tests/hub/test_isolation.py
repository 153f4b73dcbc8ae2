"""A fault that nobody foresaw, in a row or on a network, holds up no other row and no other network (security F23)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.books import assert_books_agree
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import take_back
from tests.hub.hub_under_test import (
    NETWORK,
    PUBLIC_URL,
    HubUnderTest,
    TestPayment,
    hub_config,
    new_payment,
    served,
)
from tests.hub.test_recovery import change
from tollkeeper.api import clock_ms
from tollkeeper.auth import Auth
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.settlement.states import Depths
from tollkeeper.hub.app import Hub
from tollkeeper.hub.evm.account import EvmAccount
from tollkeeper.hub.evm.signer import Signer
from tollkeeper.hub.families import HubNetwork
from tollkeeper.hub.signer_pool import SignerBalance
from tollkeeper.storage.engine.database import Statement
from tollkeeper.storage.hub.claims import Funds
from tollkeeper.storage.urls import open_database

OTHER = "base"


@asynccontextmanager
async def on_two_networks(tmp_path: Path, anvil_fiat_token: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """Two networks of one family, the other one first; it is the same chain, settled by another key."""
    chain, faucet = anvil_fiat_token, anvil_fiat_token.wallets.faucet
    database = open_database(str(tmp_path / "hub.db"))
    auth = Auth(database, [("k1", bytes(range(32)))], PUBLIC_URL, clock_ms, os.urandom)
    config = hub_config(chain.url)
    network = replace(NETWORKS[NETWORK], name=OTHER)
    networks = [
        HubNetwork(replace(config, network=network), (Signer(faucet.private_key),)),
        HubNetwork(config, (Signer(chain.wallets.relayer.private_key),)),
    ]
    hub = Hub(database, auth, networks, public_url=PUBLIC_URL, recovery_interval_seconds=3600)
    async with served(hub, database) as running:
        yield running
    assert_books_agree(tmp_path)


@pytest_asyncio.fixture
async def two_networks(tmp_path: Path, anvil_fiat_token: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    async with on_two_networks(tmp_path, anvil_fiat_token) as hub:
        yield hub


def other(hub: HubUnderTest) -> EvmAccount:
    account = hub.hub.accounts[OTHER]
    assert isinstance(account, EvmAccount)
    return account


def on_other(payment: TestPayment) -> TestPayment:
    """The same on the other network."""
    body = {
        **payment.body,
        "paymentPayload": payment.body["paymentPayload"] | {"network": OTHER},
        "paymentRequirements": payment.body["paymentRequirements"] | {"network": OTHER},
    }
    return replace(payment, body=body)


async def pending(hub: HubUnderTest, *payments: TestPayment) -> None:
    answers = await asyncio.gather(*(hub.settle(payment, prefer="wait=0") for payment in payments))
    assert {answer.status for answer in answers} == {503}


async def status(hub: HubUnderTest, payment: TestPayment) -> str:
    network = payment.body["paymentPayload"]["network"]
    path = f"/payments/{network}/{payment.authorization.payer}/{payment.authorization.nonce}"
    return str((await hub.get(path)).body["status"])


def told(logs: Any) -> set[str]:
    return {line["event"] for line in logs if line["log_level"] == "error"}


async def test_a_row_that_cannot_be_read_keeps_no_other_of_its_block_from_being_opened_again(
    two_networks: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = two_networks, anvil_fiat_token
    chain.rpc.call("evm_setAutomine", False)
    sound, poison, beside = on_other(new_payment(chain)), on_other(new_payment(chain)), new_payment(chain)
    await pending(hub, sound, poison)
    chain.rpc.call("evm_mine")
    await hub.complete()
    assert [await status(hub, one) for one in (sound, poison)] == ["success", "success"]
    await pending(hub, beside)
    spoil = "UPDATE settlements SET value = :value WHERE nonce = :nonce"
    await hub.database.run(change(spoil, value="a lot", nonce=poison.authorization.nonce))
    take_back(chain, 1)
    chain.rpc.call("evm_mine")
    with capture_logs() as logs:
        await hub.complete()
    assert told(logs) >= {"settlement_not_understood", "settlements_reorganised"}
    opened = (
        "SELECT e.detail FROM settlement_events e JOIN settlements s ON s.id = e.settlement_id WHERE s.nonce = :nonce"
    )
    rows = await hub.database.read(Statement(opened, {"nonce": sound.authorization.nonce}))
    assert [row["detail"] for row in rows if "no longer on the chain" in (row["detail"] or "")]
    assert await status(hub, beside) == "success"
    await hub.database.run(change(spoil, value="10000", nonce=poison.authorization.nonce))
    for _ in range(3):
        await hub.complete()
        chain.rpc.call("evm_mine")
    assert [await status(hub, one) for one in (sound, poison)] == ["success", "success"]


async def test_a_network_whose_blocks_cannot_be_watched_settles_all_the_same_and_so_do_the_others(
    two_networks: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = two_networks, anvil_fiat_token
    chain.rpc.call("evm_setAutomine", False)
    payments = on_other(new_payment(chain)), new_payment(chain)
    await pending(hub, *payments)
    chain.rpc.call("evm_mine")
    object.__setattr__(other(hub).chain.config, "watch_blocks", None)
    with capture_logs() as logs:
        await hub.complete()
    assert told(logs) == {"blocks_not_understood"}
    assert [await status(hub, payment) for payment in payments] == ["success", "success"]


async def test_a_network_whose_node_tells_at_the_start_what_no_chain_can_holds_up_no_other(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    chain, faucet = anvil_fiat_token, anvil_fiat_token.wallets.faucet.address
    before = chain.rpc.call("eth_getTransactionCount", faucet, "latest")
    chain.rpc.call("anvil_setNonce", faucet, hex(2**63))  # nobody counts so far
    try:
        with capture_logs() as logs:
            async with on_two_networks(tmp_path, chain) as hub:
                assert told(logs) == set()
                assert "network_not_reachable" in {line["event"] for line in logs}
                assert (await hub.settle(new_payment(chain), confirm=False)).body["success"] is True
                assert (await hub.settle(on_other(new_payment(chain)))).status == 503
                chain.rpc.call("anvil_setNonce", faucet, before)
                await hub.complete()
                assert (await hub.settle(on_other(new_payment(chain)), confirm=False)).body["success"] is True
    finally:
        chain.rpc.call("anvil_setNonce", faucet, before)


async def test_a_network_on_which_nothing_works_holds_up_no_other(
    two_networks: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = two_networks, anvil_fiat_token
    chain.rpc.call("evm_setAutomine", False)
    payments = on_other(new_payment(chain)), new_payment(chain)
    await pending(hub, *payments)
    chain.rpc.call("evm_mine")
    broken = other(hub).chain
    rpc = broken.rpc
    broken.rpc = None  # type: ignore[assignment]  # a fault of ours
    hub.recovery.check_interval_seconds = 0
    with capture_logs() as logs:
        await hub.complete()
    assert told(logs) == {"network_not_understood"}
    assert [await status(hub, payment) for payment in payments] == ["pending", "success"]
    broken.rpc = rpc
    await hub.complete()
    assert await status(hub, payments[0]) == "success"


class Unforeseen(int):
    """An amount that cannot be compared with that of one row."""

    def __le__(self, other: object) -> bool:
        if other == 10_013:
            msg = "nobody foresaw that"
            raise RuntimeError(msg)
        return True


async def test_a_row_that_cannot_be_looked_for_is_set_aside_and_the_others_are_finished(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payments = [new_payment(embedded_chain, value=10_011 + number) for number in range(5)]
    await pending(hub, *payments)
    embedded_chain.rpc.call("evm_mine")
    config = hub.account.chain.config
    object.__setattr__(config, "depths", Depths(1, ((Unforeseen(), 1),)))
    with capture_logs() as logs:
        await hub.complete()
    assert told(logs) == {"settlements_not_understood", "settlement_set_aside"}
    assert [await hub.status(one) for one in payments] == ["success", "success", "pending", "success", "success"]
    object.__setattr__(config, "depths", Depths(1))
    await hub.database.run(change("UPDATE settlements SET retry_ms = 0"))
    await hub.complete()
    assert await hub.status(payments[2]) == "success"


async def test_what_one_network_s_key_cannot_pay_for_is_told_though_another_network_s_was_told_just_before(
    two_networks: HubUnderTest, anvil_fiat_token: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, chain = two_networks, anvil_fiat_token
    monkeypatch.setattr(SignerBalance, "funds", lambda purse, cost: Funds(purse.address, 0, cost, 0))
    with capture_logs() as logs:
        for payment in (new_payment(chain), on_other(new_payment(chain))) * 2:
            answer = await hub.settle(payment, prefer="wait=0")
            assert (answer.status, answer.code) == (503, "UNAVAILABLE")
    lines = [line["network"] for line in logs if line["event"] == "fees_promised"]
    assert sorted(set(lines)) == [OTHER, NETWORK]
