"""What a reorganisation took away is pending again until it is mined anew (security F8; contract 5.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.chains.abi import encode_call
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import take_back
from tests.hub.hub_under_test import NETWORK, HubUnderTest, TestPayment, new_payment, run_hub
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.settlement.states import Depths
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement


@pytest_asyncio.fixture
async def hub_with_steps(tmp_path: Path, anvil_fiat_token: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """Three confirmations from 0.02 USDC on."""
    async with run_hub(tmp_path, anvil_fiat_token, config={"depths": Depths(1, ((20_000, 3),))}) as running:
        yield running


def hash_of(chain: ChainUnderTest, number: int) -> str:
    block_hash: str = chain.rpc.call("eth_getBlockByNumber", hex(number), False)["hash"]
    return block_hash


def height(chain: ChainUnderTest) -> int:
    return int(chain.rpc.call("eth_blockNumber"), 16)


def cancel_calldata(chain: ChainUnderTest, payment: TestPayment) -> bytes:
    nonce = payment.authorization.nonce
    signature = chain.sign_cancellation(chain.wallets.buyer, nonce)
    return encode_call(
        "cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)",
        payment.authorization.payer,
        bytes.fromhex(nonce[2:]),
        signature[64],
        signature[:32],
        signature[32:64],
    )


async def events_of(hub: HubUnderTest, payment: TestPayment) -> list[str]:
    status = await hub.get(payment.status_path)
    rows = await hub.database.read(
        Statement(
            "SELECT to_state FROM settlement_events WHERE settlement_id = :id ORDER BY version",
            {"id": status.body["id"]},
        )
    )
    return [row["to_state"] for row in rows]


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
async def test_what_a_reorganisation_took_away_is_pending_until_it_is_mined_again(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest, depth: int
) -> None:
    chain, hub = anvil_fiat_token, hub_on_anvil
    chain.rpc.call("anvil_mine", "0x8")  # so that none takes what was set up away
    before = chain.balance(chain.wallets.owner.address)
    payments = [new_payment(chain) for _ in range(3)]
    for payment in payments:
        assert (await hub.settle(payment)).body["success"] is True
    top = height(chain)
    old = hash_of(chain, top)
    chain.rpc.call("evm_setAutomine", False)
    take_back(chain, depth)
    assert hash_of(chain, top) != old
    assert chain.balance(chain.wallets.owner.address) == before + 10_000 * max(0, 3 - depth)
    with capture_logs() as logs:
        await hub.complete()
    assert [line for line in logs if line["event"] == "settlements_reorganised"]
    lost = payments[max(0, 3 - depth) :]
    assert [await hub.status(payment) for payment in lost] == ["pending"] * len(lost)
    assert (await hub.settle(lost[-1], prefer="wait=0")).status in {200, 503}  # whoever asks again is told no failure
    chain.rpc.call("evm_setAutomine", True)
    chain.rpc.call("evm_mine")
    for _ in range(2):
        await hub.complete()
    assert {await hub.status(payment) for payment in payments} == {"success"}
    assert chain.balance(chain.wallets.owner.address) == before + 30_000
    assert (await events_of(hub, lost[0]))[-2:] == ["BROADCAST", "CONFIRMED"]
    assert [(await hub.settle(payment)).reason for payment in payments] == ["duplicate_settlement"] * 3


async def test_a_failure_whose_block_is_gone_is_open_again(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    """A cancellation beat the transfer; the reorganisation undid it, and the transfer is made."""
    chain, hub = anvil_fiat_token, hub_on_anvil
    chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(chain)
    await hub.settle(payment, prefer="wait=0")
    ours = (await hub.get(payment.status_path)).body["transaction"]
    chain.rpc.call("anvil_dropTransaction", ours)
    chain.rpc.call("evm_setAutomine", True)
    used = chain.send_and_wait(
        chain.wallets.faucet, USDC_ADDRESS, cancel_calldata(chain, payment), max_priority_fee_per_gas=10**8
    )
    assert used["status"] == "0x1"
    for _ in range(3):
        await hub.complete()
    shown = (await hub.get(payment.status_path)).body
    assert (shown["status"], shown["transaction"]) == ("failed", used["transactionHash"])
    chain.rpc.call("evm_setAutomine", False)
    depth = height(chain) - int(used["blockNumber"], 16) + 1
    take_back(chain, depth)
    chain.rpc.call("anvil_dropTransaction", used["transactionHash"])
    await hub.complete()
    assert await hub.status(payment) == "pending"


async def test_larger_amounts_are_confirmed_deeper(
    hub_with_steps: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    small, large = new_payment(anvil_fiat_token), new_payment(anvil_fiat_token, value=20_000)
    assert (await hub_with_steps.settle(small)).body["success"] is True
    assert (await hub_with_steps.settle(large, prefer="wait=1")).code == "SETTLEMENT_PENDING"
    for expected in ("pending", "success"):
        anvil_fiat_token.rpc.call("evm_mine")
        await hub_with_steps.complete()
        assert await hub_with_steps.status(large) == expected
    assert hub_with_steps.hub.accounts[NETWORK].chain.config.depths.of(19_999) == 1


async def test_a_large_amount_is_told_once_it_lies_so_deep_that_a_reorganisation_takes_nothing_told_away(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    chain, depths = anvil_fiat_token, Depths(1, NETWORKS["base"].depth_steps)
    chain.mint(chain.wallets.buyer.address, 2_000_000_000)
    chain.rpc.call("anvil_mine", "0xc")
    async with run_hub(tmp_path, chain, config={"depths": depths}) as hub:
        large = {depth: new_payment(chain, value=value) for depth, value in ((3, 100_000_000), (10, 1_000_000_000))}
        for depth, payment in large.items():
            assert (await hub.settle(payment, prefer="wait=1")).code == "SETTLEMENT_PENDING"
            chain.rpc.call("anvil_mine", hex(depth - 2))  # one too few
            await hub.complete()
            assert await hub.status(payment) == "pending"
            chain.rpc.call("evm_setAutomine", False)
            take_back(chain, depth - 1)
            await hub.complete()
            assert await hub.status(payment) == "pending"
            chain.rpc.call("evm_setAutomine", True)
            for _ in range(depth + 1):
                chain.rpc.call("evm_mine")
            for _ in range(2):
                await hub.complete()
            assert (await hub.settle(payment)).body["success"] is True
            assert "FAILED" not in await events_of(hub, payment)
            assert (await events_of(hub, payment)).count("CONFIRMED") == 1
        assert (await hub.settle(new_payment(chain, value=99_999_999))).body["success"] is True
