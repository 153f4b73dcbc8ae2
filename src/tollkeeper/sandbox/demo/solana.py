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
    from collections.abc import Callable, Mapping

    from tollkeeper.core.solana.paying import TransferTerms
    from tollkeeper.sandbox.demo.story import Narrator


class SolanaPlayer:
    """`Player` on the embedded Solana chain."""

    def __init__(self, sandbox: Sandbox, buyer: SolanaBuyer) -> None:
        self.network, self.token = SOLANA.name, SOLANA.usdc.address
        self.pay_to, self.key = sandbox.solana_wallets.owner.address, buyer.wallet.key
        self.terms: Mapping[str, str] = {"network": self.network, "paymentAddress": self.pay_to}
        self.buyer = buyer
        self.fee_payers = [one.address for one in sandbox.solana_wallets.fee_payers]

    async def take(self, unpaid: Answer) -> Mapping[str, str]:
        """Return the header of a fresh payment that takes a 402's first offer."""
        return await self.buyer.take(unpaid)

    async def balances(self) -> tuple[int, int]:
        """Return the buyer's and the owner's balances, in micro-units."""
        buyer = await self.buyer.balance_micro(self.buyer.wallet.address, self.token)
        return buyer, await self.buyer.balance_micro(self.pay_to, self.token)

    async def hub_lamports(self) -> int:
        """Return the sum of the lamports of the hub's fee payers."""
        return await self.buyer.lamports(self.fee_payers)


async def play_on_solana(narrator: Narrator, sandbox: Sandbox, client: Buyer, *, is_official: bool) -> Story:
    """Sells and buys on Solana. Returns the story there. Raises: StepFailed."""
    is_official = is_official and has_official_client_on_solana()
    player = SolanaPlayer(sandbox, SolanaBuyer(sandbox.solana_wallets.buyer, client, sandbox.solana_url))
    story = Story(narrator, sandbox, client, player, is_ours=not is_official)
    await sell(story, "The owner sells the same API on Solana", "Weather on Solana")
    hub_had = await player.hub_lamports()
    who = "The unmodified official client (x402-fetch 1.2.0 from npm)" if is_official else "The buyer"
    step = f"{who} signs a transaction, the hub co-signs and sends it"
    await buy(story, step, partial(_pay_officially if is_official else pay, story))
    with narrator.step("The hub paid the network's fee, and nothing else"):
        is_ours = story.challenge["accepts"][0]["extra"]["feePayer"] in player.fee_payers
        narrator.check("the 402 names the hub as who pays it", expected=True, actual=is_ours)
        on_chain = await player.buyer.node("getTransaction", story.transaction, {"encoding": "base64"})
        narrator.check("the chain's word for an error", expected=None, actual=on_chain["meta"]["err"])
        paid = hub_had - await player.hub_lamports()
        narrator.check("lamports that the hub paid: the fee alone", expected=on_chain["meta"]["fee"], actual=paid)
    await count_down(story, "The payment on Solana is good for its credits, and for no more")
    await _refuse_wrong_payments(story, player)
    await find_in_history(story, "The buyer logs in with the Solana wallet, and finds the purchase")
    return story


async def _pay_officially(story: Story) -> Answer:
    key = story.sandbox.solana_wallets.buyer.secret_key
    told = await buy_officially_on_solana(story.url, key, story.sandbox.solana_url)
    return told_by_client(story.narrator, told)


async def _refuse_wrong_payments(story: Story, player: SolanaPlayer) -> None:
    stranger, hub_had = story.sandbox.solana_wallets.second_buyer.address, await player.hub_lamports()

    async def changed(change: Callable[[TransferTerms], TransferTerms]) -> Answer:
        return await story.client.call(story.url, await player.buyer.sign(story.challenge, change))

    async def late() -> Answer:
        payment = await player.buyer.sign(story.challenge)
        await player.buyer.node("sandbox_advance")  # 151 slots, about a minute of a cluster's
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
    story.narrator.check("the hub paid no fee", expected=hub_had, actual=await player.hub_lamports())
