"""No transaction that would rob our fee payer gets its signature, whatever the attack (A-27 to A-32; spec 4.4)."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chains.solana_node import BUYER, FEE_PAYER, WALLETS
from tests.core.solana_payments import account_of
from tests.hub.drains import FAMILIES, Scene, drains, misdirected
from tests.hub.solana_hub import SolanaHub, body_of, run_solana_hub
from tollkeeper.core.x402.version1 import SolanaPayload
from tollkeeper.sandbox.solana.chain import EmbeddedSolanaChain, TransactionRefused
from tollkeeper.sandbox.solana.node import SolanaNode

FEE_LAMPORTS = 2 * 5_000 + 1  # of an honest payment
OURS = str(FEE_PAYER.pubkey())
OUR_ACCOUNT = str(account_of(OURS))
# What only fails on the chain costs us a fee, and what moves the thief's own money to somebody else costs us no more.
ROBBING = (
    *("a transfer of lamports", "an approval", "a closed account", "a new authority", "an account at our cost"),
    *("a token account at our cost", "our fee payer as authority", "a priority fee", "more signers"),
    "signatures that we would pay for",
)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[SolanaHub]:
    async with run_solana_hub(tmp_path) as running:
        yield running


def scene_of(chain: EmbeddedSolanaChain) -> Scene:
    return Scene(FEE_PAYER, BUYER, WALLETS.owner.address, chain.blockhash)


def attacks(chain: EmbeddedSolanaChain) -> dict[str, SolanaPayload]:
    """All of them, by their names."""
    return drains(scene_of(chain)) | misdirected(scene_of(chain))


async def refused(world: SolanaHub, found: dict[str, SolanaPayload]) -> dict[str, str]:
    """By which words the hub refuses to verify and to settle each of them; nothing was signed, and nothing spent."""
    money, reasons = world.fee_money, {}
    for name, payload in found.items():
        body = body_of(payload, Scene.amount)
        verified, settled = await world.verify(body), await world.settle(body)
        assert (verified.status, verified.body.get("isValid")) == (200, False), name
        assert (settled.status, settled.body["success"], settled.body["transaction"]) == (200, False, ""), name
        assert verified.reason == settled.reason, name
        reasons[name] = str(settled.reason)
        assert (world.node.chain.executed, world.fee_money) == ({}, money), name
    return reasons


async def assert_an_honest_payment_costs_its_fee(world: SolanaHub) -> None:
    money = world.fee_money
    assert (await world.settle(world.payment())).body["success"]
    assert money - world.fee_money == FEE_LAMPORTS


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_attack_is_refused_by_the_rule_that_is_there_for_it(world: SolanaHub, family: str) -> None:
    attack = FAMILIES[family]
    reasons = await refused(world, attack.of(attacks(world.node.chain)))
    assert reasons
    for name, reason in reasons.items():
        assert reason.endswith(tuple(attack.reasons)), (name, reason)
    await assert_an_honest_payment_costs_its_fee(world)


async def test_whatever_belongs_to_no_one_attack_is_refused_too(world: SolanaHub) -> None:
    found = attacks(world.node.chain)
    known = {name for attack in FAMILIES.values() for name in attack.of(found)}
    assert len(known) >= 100
    await refused(world, {name: payload for name, payload in found.items() if name not in known})
    await assert_an_honest_payment_costs_its_fee(world)


@pytest.mark.parametrize("family", ROBBING)
def test_a_careless_fee_payer_would_be_robbed(family: str) -> None:
    """Else the refusals would prove nothing: each attack is executed where everything is signed."""
    found = FAMILIES[family].of(attacks(SolanaNode(wallets=WALLETS).chain))
    assert any(robbed(name, held=held) for name in found for held in (0, 5_000))


def test_an_honest_payment_robs_nobody() -> None:
    assert not robbed("honest", held=5_000)


def robbed(name: str, *, held: int) -> bool:
    """Does it cost us more than an honest payment's fee, or touch our token account, which holds so much?"""
    chain = SolanaNode(wallets=WALLETS).chain
    chain.open_account(OURS, held)
    money, tokens = chain.balance(OURS), chain.account(OUR_ACCOUNT)
    scene = scene_of(chain)
    known = {"honest": scene.draft(*scene.usual()), **attacks(chain)}
    raw = base64.b64decode(known[name].transaction)
    message = raw[1 + 64 * raw[0] :]
    with suppress(TransactionRefused):
        chain.send(raw[:1] + bytes(FEE_PAYER.sign_message(message)) + raw[65:], skips_preflight=True)
    return money - chain.balance(OURS) > FEE_LAMPORTS or chain.account(OUR_ACCOUNT) != tokens
