"""The same signed transactions on each node: same gas, same events, same hashes, wherever our token runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tests.chains.anvil import fund_wallets, plant_test_token, run_anvil, wait_for_receipt
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.rpc_client import RpcClient
from tests.fixtures_chain import taken_back
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.sandbox.evm.engine import EngineName
from tollkeeper.sandbox.evm.node import TOKEN_NAME, USDC_ADDRESS

if TYPE_CHECKING:
    from tollkeeper.sandbox.wallets import TestWallets


def _script(chain: ChainUnderTest) -> list[str]:
    """A first payment, a second to the same payee, the second again (reverts), all of the rest, and one too much."""
    payments = [chain.authorization() for _ in range(2)]
    payments += [payments[1], chain.authorization(value=1_000_000_000 - 20_000), chain.authorization(value=1)]
    return [
        chain.transaction(
            chain.wallets.relayer, USDC_ADDRESS, transfer_calldata(payment, chain.sign(payment)), nonce=nonce
        )[0]
        for nonce, payment in enumerate(payments)
    ]


def _play(chain: ChainUnderTest, script: list[str]) -> list[dict[str, Any]]:
    receipts = [wait_for_receipt(chain.rpc, chain.rpc.call("eth_sendRawTransaction", raw)) for raw in script]
    return [
        {
            "gas": int(receipt["gasUsed"], 16),
            "status": receipt["status"],
            "hash": receipt["transactionHash"],
            "bloom": receipt["logsBloom"],
            "logs": [(log["address"].lower(), log["topics"], log["data"]) for log in receipt["logs"]],
        }
        for receipt in receipts
    ]


def test_same_transactions_take_the_same_gas_on_each_node(
    embedded_nodes: dict[EngineName, ChainUnderTest], wallets: TestWallets
) -> None:
    script = _script(embedded_nodes[EngineName.REVM])
    played = {}
    for engine, embedded in embedded_nodes.items():
        with taken_back(embedded) as chain:
            played[str(engine)] = _play(chain, script)
    with run_anvil() as url, contextlib.closing(RpcClient(url)) as rpc:
        fund_wallets(rpc, wallets)
        plant_test_token(rpc, wallets, name=TOKEN_NAME)
        played["anvil"] = _play(ChainUnderTest("anvil", rpc, wallets, TOKEN_NAME), script)

    assert [step["status"] for step in played["anvil"]] == ["0x1", "0x1", "0x0", "0x1", "0x0"]
    assert played["revm"] == played["anvil"]
    assert played["pyevm"] == played["anvil"]
