"""Whose token accounts they are, and what moves between them (contract 5.1; security A-27, A-32)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
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
from tests.hub.solana_hub import NETWORK, USDC, SolanaHub, run_solana_hub
from tollkeeper.chains.solana.blockhashes import LAG_BLOCKS
from tollkeeper.core.solana.programs import TOKEN_PROGRAM
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import BUYER_MICRO

PRICE = 10_000
FEE_LAMPORTS = 10_001  # of a usual transaction
OWNER = Keypair.from_seed(WALLETS.owner.seed)
OWNERS = account_of(OWNER.pubkey())
THIEF = Keypair.from_seed(b"\x52" * 32)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[SolanaHub]:
    async with run_solana_hub(tmp_path) as running:
        yield running


def done_by(world: SolanaHub, who: Keypair, *instructions: Instruction) -> None:
    """In a transaction of his own."""
    chain = world.node.chain
    chain.airdrop(str(who.pubkey()), 10**9)
    blockhash = Hash.from_string(chain.blockhash)
    message = MessageV0.try_compile(who.pubkey(), list(instructions), [], blockhash)
    name = chain.send(bytes(VersionedTransaction(message, [who])), skips_preflight=False)
    assert chain.executed.pop(name).error is None


async def test_nobody_pays_a_seller_with_what_the_seller_has(world: SolanaHub) -> None:
    """Whom the seller lets spend could name its account as both ends.

    The token program moves nothing then, as often as he likes, and calls it a success.
    """
    chain = world.node.chain
    chain.open_account(str(OWNER.pubkey()), PRICE)
    approval = b"\x04" + PRICE.to_bytes(8, "little")
    done_by(
        world,
        OWNER,
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


def given_away(account: Pubkey, owner: Keypair, to: Pubkey) -> Instruction:
    """A new owner for a token account, as its owner signs it."""
    return instruction(TOKEN_PROGRAM, b"\x06\x02\x01" + bytes(to), [writable(account), signer(owner.pubkey())])


async def refused_for(world: SolanaHub, source: Pubkey, payer: Keypair, amount: int = PRICE) -> str:
    """By which check a payment from that account is refused; nothing is signed."""
    money = world.fee_money
    moved = transfer(amount, payer=payer.pubkey(), pay_to=str(OWNER.pubkey()), source=source)
    draft = drafted(world.node, compute_limit(), compute_price(), moved, buyer=payer)
    body = world.asking(draft, amount)
    verified, settled = await world.verify(body), await world.settle(body)
    assert (settled.status, settled.body["success"], settled.body["transaction"]) == (200, False, "")
    assert (verified.body["isValid"], verified.reason) == (False, settled.reason)
    assert (world.fee_money, world.node.chain.executed) == (money, {})
    return str(verified.body["details"]["check"])


def lets_spend(world: SolanaHub, amount: int) -> Pubkey:
    """The buyer lets somebody else spend so much from his account; which one that is."""
    buyers, approval = account_of(BUYER.pubkey()), b"\x04" + amount.to_bytes(8, "little")
    accounts = [writable(buyers), readable(THIEF.pubkey()), signer(BUYER.pubkey())]
    done_by(world, BUYER, instruction(TOKEN_PROGRAM, approval, accounts))
    return buyers


def spending(world: SolanaHub, source: Pubkey, number: int = 0) -> dict[str, Any]:
    """The price from that account, by who may spend from it."""
    moved = transfer(PRICE, payer=THIEF.pubkey(), pay_to=str(OWNER.pubkey()), source=source)
    return world.asking(drafted(world.node, compute_limit(), compute_price(), moved, memo(b"%d" % number), buyer=THIEF))


async def test_who_may_spend_pays_with_what_he_may_and_no_more(world: SolanaHub) -> None:
    chain, buyers = world.node.chain, lets_spend(world, 2 * PRICE)
    chain.open_account(str(THIEF.pubkey()))
    held = chain.token_balance(str(buyers))
    for number in range(2):
        assert (await world.settle(spending(world, buyers, number))).body["success"] is True
    assert (held - chain.token_balance(str(buyers)), chain.token_balance(str(OWNERS))) == (2 * PRICE, 2 * PRICE)
    chain.executed.clear()
    assert await refused_for(world, buyers, THIEF) == "simulation"


async def test_what_is_no_longer_the_payers_pays_nothing(world: SolanaHub) -> None:
    buyers = account_of(BUYER.pubkey())
    done_by(world, BUYER, given_away(buyers, BUYER, THIEF.pubkey()))
    assert await refused_for(world, buyers, BUYER) == "simulation"


async def test_an_account_that_is_no_longer_the_recipients_is_not_called_its_own(world: SolanaHub) -> None:
    """Its address says whose it was made for, and whoever it was signed away to gets what is paid there."""
    world.node.chain.open_account(str(OWNER.pubkey()))
    done_by(world, OWNER, given_away(OWNERS, OWNER, THIEF.pubkey()))
    verified = await world.verify(world.payment())
    assert (verified.body["isValid"], verified.body["details"]["check"]) == (False, "recipientAccount")
    assert verified.reason == "invalid_exact_svm_payload_transaction_receiver_ata_not_found"
    assert str(THIEF.pubkey()) in str(verified.body["details"]["found"])
    money, body = world.fee_money, world.payment()
    settled = await world.settle(body)  # who settles need not have verified before
    assert (settled.body["success"], settled.reason) == (False, verified.reason)
    moved = {"network": NETWORK, "asset": USDC, "amount": str(PRICE), "recipient": str(OWNER.pubkey())}
    refused = await world.hub.post("/transfer", {**moved, "payload": body["paymentPayload"]["payload"]})
    assert (refused.status, refused.code) == (400, "PAYMENT_INVALID")
    assert (world.fee_money, world.node.chain.executed) == (money, {})
    done_by(world, THIEF, given_away(OWNERS, THIEF, OWNER.pubkey()))
    assert (await world.verify(world.payment())).body["isValid"] is True


async def test_a_closed_account_pays_nothing_and_is_paid_nothing(world: SolanaHub) -> None:
    chain, theirs = world.node.chain, account_of(THIEF.pubkey())
    chain.open_account(str(THIEF.pubkey()))
    closing = [writable(theirs), writable(THIEF.pubkey()), signer(THIEF.pubkey())]
    done_by(world, THIEF, instruction(TOKEN_PROGRAM, b"\x09", closing))
    assert await refused_for(world, theirs, THIEF) == "payerAccount"
    closing = [writable(OWNERS), writable(OWNER.pubkey()), signer(OWNER.pubkey())]
    chain.open_account(str(OWNER.pubkey()))
    done_by(world, OWNER, instruction(TOKEN_PROGRAM, b"\x09", closing))
    assert await refused_for(world, account_of(BUYER.pubkey()), BUYER) == "recipientAccount"


@pytest.mark.parametrize(("whose", "check"), [(BUYER, "payerAccount"), (OWNER, "recipientAccount")])
async def test_a_frozen_account_pays_nothing_and_is_paid_nothing(world: SolanaHub, whose: Keypair, check: str) -> None:
    chain = world.node.chain
    account = chain.account(chain.open_account(str(whose.pubkey())))
    assert account is not None
    state = bytearray(bytes(account.data))
    state[108] = 2
    chain._put(str(account_of(whose.pubkey())), bytes(state))  # noqa: SLF001 - as the mint's authority leaves it
    assert await refused_for(world, account_of(BUYER.pubkey()), BUYER) == check


@pytest.mark.parametrize("amount", [2**63 - 1, 2**63, 2**64 - 1])
async def test_more_than_anybody_has_is_not_paid(world: SolanaHub, amount: int) -> None:
    assert await refused_for(world, account_of(BUYER.pubkey()), BUYER, amount) == "balance"


@pytest.mark.parametrize("wait", ["wait=0", "wait=1"])
async def test_of_two_payments_with_the_same_money_one_is_signed_while_the_other_is_under_way(
    world: SolanaHub, wait: str
) -> None:
    """Else each would be called a success to who does not wait for its confirmation, and one of them be made."""
    world.node.chain.holds = True
    bodies = [world.payment(BUYER_MICRO) for _ in range(5)]
    answers = await asyncio.gather(*(world.settle(body, confirm=False, Prefer=wait) for body in bodies))
    assert sorted(str(answer.reason) for answer in answers) == ["None", *["insufficient_funds"] * 4]
    spent = world.fee_money
    world.node.chain.release()
    await world.complete()
    assert world.earned == BUYER_MICRO
    assert world.fee_money == spent - FEE_LAMPORTS


async def test_what_was_executed_and_is_not_known_to_be_takes_nothing_more_of_the_payer_s_money(
    world: SolanaHub,
) -> None:
    world.node.chain.holds = True
    assert (await world.settle(world.payment(BUYER_MICRO - PRICE), Prefer="wait=0")).status == 503
    world.node.chain.release()
    assert (await world.settle(world.payment(PRICE))).body["success"] is True
    assert world.earned == BUYER_MICRO


async def test_what_can_be_executed_no_more_takes_nothing_of_the_payer_s_money(world: SolanaHub) -> None:
    """Also while no node has every block, and so proves that it was not: its payer need not wait for that."""
    chain = world.node.chain
    chain.next_slot(10)
    chain.holds = True
    body = world.payment(BUYER_MICRO)
    assert (await world.settle(body, Prefer="wait=0")).status == 503
    chain.drop()
    chain.lacks = range(chain.slot + 1, chain.slot + 20)
    chain.next_slot(RECENT_SLOTS)
    assert (await world.settle(world.payment(PRICE))).reason == "insufficient_funds", "it may be made yet"
    chain.next_slot(LAG_BLOCKS + FINAL_SLOTS + 1)
    await world.complete()
    chain.release()
    assert await world.status(body) == "pending"
    assert (await world.settle(world.payment(PRICE))).body["success"] is True
    assert (await world.status(body), world.earned) == ("pending", PRICE)


async def test_who_may_spend_promises_what_he_may_once(world: SolanaHub) -> None:
    """However much more the account holds: each would be called a success, and one of them be made."""
    buyers = lets_spend(world, PRICE)
    world.node.chain.holds = True
    asked = [world.settle(spending(world, buyers, number), confirm=False, Prefer="wait=0") for number in range(5)]
    answers = await asyncio.gather(*asked)
    assert sorted(str(answer.reason) for answer in answers) == ["None", *["insufficient_funds"] * 4]
    world.node.chain.release()
    await world.complete()
    assert world.earned == PRICE


async def test_what_is_under_way_from_another_account_takes_nothing_of_this_one(world: SolanaHub) -> None:
    """A payer may pay from what somebody lets him spend, too."""
    chain, buyers = world.node.chain, lets_spend(world, BUYER_MICRO)
    chain.open_account(str(THIEF.pubkey()), PRICE)
    chain.holds = True
    for source in (buyers, account_of(THIEF.pubkey())):
        assert (await world.settle(spending(world, source), Prefer="wait=0")).status == 503
    chain.release()
    assert world.earned == 2 * PRICE
