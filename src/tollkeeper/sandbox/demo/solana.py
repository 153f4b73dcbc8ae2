"""The demo on Solana: the same API sold there, paid by a signed transaction that the hub co-signs (specification 2.3).

Gateway, hub and history are asked exactly as before. The chain is asked what moved: tokens from buyer to owner, and of
the hub's own money the fee and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tollkeeper.sandbox.buyer import Answer, Buyer, SolanaBuyer
from tollkeeper.sandbox.demo.official_client import buy_officially_on_solana, has_official_client_on_solana
from tollkeeper.sandbox.demo.story import (
    Player,
    Story,
    buy,
    count_down,
    find_in_history,
    pay,
    refuse,
    sell,
    told_by_client,
)
from tollkeeper.sandbox.stack import SOLANA, Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.solana.paying import TransferTerms
    from tollkeeper.sandbox.demo.story import Narrator


def _player(sandbox: Sandbox, buyer: SolanaBuyer) -> Player:
    """Return the player on the embedded Solana chain."""
    token, pay_to = SOLANA.usdc.address, sandbox.solana_wallets.owner.address

    async def balances() -> tuple[int, int]:
        held = await buyer.balance_micro(buyer.wallet.address, token)
        return held, await buyer.balance_micro(pay_to, token)

    terms = {"network": SOLANA.name, "paymentAddress": pay_to}
    return Player(SOLANA.name, token, pay_to, buyer.wallet.key, buyer.take, balances, terms)


async def play_on_solana(narrator: Narrator, sandbox: Sandbox, client: Buyer, *, is_official: bool) -> Story:
    """Sells and buys on Solana. Returns the story there. Raises: StepFailed."""
    is_official = is_official and has_official_client_on_solana()
    buyer = SolanaBuyer(sandbox.solana_wallets.buyer, client, sandbox.solana_url)
    fee_payers = [one.address for one in sandbox.solana_wallets.fee_payers]
    story = Story(narrator, sandbox, client, _player(sandbox, buyer), is_ours=not is_official)
    await sell(story, "The owner sells the same API on Solana", "Weather on Solana")
    hub_had = await buyer.lamports(fee_payers)
    who = "The unmodified official client (x402-fetch 1.2.0 from npm)" if is_official else "The buyer"
    step = f"{who} signs a transaction, the hub co-signs and sends it"
    await buy(story, step, partial(_pay_officially if is_official else pay, story))
    with narrator.step("The hub paid the network's fee, and nothing else"):
        is_ours = story.challenge["accepts"][0]["extra"]["feePayer"] in fee_payers
        narrator.check("the 402 names the hub as who pays it", expected=True, actual=is_ours)
        on_chain = await buyer.node("getTransaction", story.transaction, {"encoding": "base64"})
        narrator.check("the chain's word for an error", expected=None, actual=on_chain["meta"]["err"])
        paid = hub_had - await buyer.lamports(fee_payers)
        narrator.check("lamports that the hub paid: the fee alone", expected=on_chain["meta"]["fee"], actual=paid)
    await count_down(story, "The payment on Solana is good for its credits, and for no more")
    hub_had = await buyer.lamports(fee_payers)
    await _refuse_wrong_payments(story, buyer)
    narrator.check("the hub paid no fee", expected=hub_had, actual=await buyer.lamports(fee_payers))
    await find_in_history(story, "The buyer logs in with the Solana wallet, and finds the purchase")
    return story


async def _pay_officially(story: Story) -> Answer:
    key = story.sandbox.solana_wallets.buyer.secret_key
    told = await buy_officially_on_solana(story.url, key, story.sandbox.solana_url)
    return told_by_client(story.narrator, told)


async def _refuse_wrong_payments(story: Story, buyer: SolanaBuyer) -> None:
    stranger = story.sandbox.solana_wallets.second_buyer.address

    async def changed(change: Callable[[TransferTerms], TransferTerms]) -> Answer:
        return await story.client.call(story.url, await buyer.sign(story.challenge, change))

    async def late() -> Answer:
        payment = await buyer.sign(story.challenge)
        await buyer.node("sandbox_advance")  # 151 slots, about a minute of a cluster's
        return await story.client.call(story.url, payment)

    wrong = (
        (
            "underpaid by one micro-unit",
            "INSUFFICIENT_AMOUNT",
            partial(changed, lambda asked: replace(asked, amount=asked.amount - 1)),
        ),
        ("signed to somebody else", "PAYMENT_INVALID", partial(changed, lambda asked: replace(asked, pay_to=stranger))),
        (
            "a stranger pays the fee",
            "PAYMENT_INVALID",
            partial(changed, lambda asked: replace(asked, fee_payer=stranger)),
        ),
        ("its blockhash is too old", "PAYMENT_EXPIRED", late),
    )
    await refuse(story, "Wrong payments on Solana are refused by name, and nothing moves", wrong)
