"""Whose token accounts they are, and what moves between them (contract 5.1; security A-27, A-32)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.transaction import VersionedTransaction

from tests.chains.solana_node import BUYER, WALLETS, drafted
from tests.core.solana_payments import (
    account_of,
    compute_limit,
    compute_price,
    instruction,
    memo,
    readable,
    signer,
    transfer,
    writable,
)
from tests.hub.solana_hub import SolanaHub, run_solana_hub
from tollkeeper.core.solana.programs import TOKEN_PROGRAM

PRICE = 10_000
OWNER = Keypair.from_seed(WALLETS.owner.seed)
OWNERS = account_of(OWNER.pubkey())


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[SolanaHub]:
    async with run_solana_hub(tmp_path) as running:
        yield running


def done_by_the_owner(world: SolanaHub, *instructions: Instruction) -> None:
    """By a transaction of his own."""
    chain = world.node.chain
    chain.airdrop(str(OWNER.pubkey()), 10**9)
    blockhash = Hash.from_string(chain.blockhash)
    message = MessageV0.try_compile(OWNER.pubkey(), list(instructions), [], blockhash)
    name = chain.send(bytes(VersionedTransaction(message, [OWNER])), skips_preflight=False)
    assert chain.executed.pop(name).error is None


async def test_nobody_pays_a_seller_with_what_the_seller_has(world: SolanaHub) -> None:
    """Whom the seller lets spend could name its account as both ends.

    The token program moves nothing then, as often as he likes, and calls it a success.
    """
    chain = world.node.chain
    chain.open_account(str(OWNER.pubkey()), PRICE)
    approval = b"\x04" + PRICE.to_bytes(8, "little")
    done_by_the_owner(
        world,
        instruction(TOKEN_PROGRAM, approval, [writable(OWNERS), readable(BUYER.pubkey()), signer(OWNER.pubkey())]),
    )
    money = world.fee_money
    for number in range(2):
        moved = transfer(PRICE, payer=BUYER.pubkey(), pay_to=str(OWNER.pubkey()), source=OWNERS)
        body = world.asking(drafted(world.node, compute_limit(), compute_price(), moved, memo(b"%d" % number)))
        verified, settled = await world.verify(body), await world.settle(body)
        assert verified.body["isValid"] is False
        assert verified.body["details"]["check"] == "destination"
        assert (settled.body["success"], settled.reason) == (False, verified.reason)
    assert (chain.token_balance(str(OWNERS)), world.fee_money, chain.executed) == (PRICE, money, {})
