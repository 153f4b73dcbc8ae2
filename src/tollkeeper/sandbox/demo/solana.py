"""The demo on Solana: the same API sold there, paid by a signed transaction that the hub co-signs (specification 2.3).

Gateway, hub and history are asked exactly as before. The chain is asked what moved: tokens from buyer to owner, and of
the hub's own money the fee and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tollkeeper.core.json_types import JsonObject
from tollkeeper.core.usdc import format_usdc
from tollkeeper.sandbox.buyer import Answer, SolanaBuyer
from tollkeeper.sandbox.demo.official_client import buy_officially_on_solana, has_official_client_on_solana
from tollkeeper.sandbox.demo.story import CITY, CREDITS, PRICE_MICRO, Story, check_credits, check_history, check_refusal
from tollkeeper.sandbox.stack import SOLANA
from tollkeeper.sandbox.target import forecast

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.solana.paying import TransferTerms

MINT: Final = SOLANA.usdc.address


@dataclass(slots=True)
class OnSolana:
    """State that these steps share beside the story. `unpaid` is the gate's 402; `is_ours`: our own client buys."""

    story: Story
    buyer: SolanaBuyer
    challenge: JsonObject
    url: str = ""
    unpaid: Answer | None = None
    is_ours: bool = True
    purchase_id: str = ""
    transaction: str = ""

    async def balances(self) -> tuple[int, int]:
        """Return the buyer's and the owner's balances, in micro-units."""
        wallets = self.story.sandbox.solana_wallets
        return (
            await self.buyer.balance_micro(wallets.buyer.address, MINT),
            await self.buyer.balance_micro(wallets.owner.address, MINT),
        )

    async def hub_lamports(self) -> int:
        """Return the sum of the lamports of the hub's fee payers."""
        return await self.buyer.lamports([one.address for one in self.story.sandbox.solana_wallets.fee_payers])


async def play_on_solana(story: Story, *, is_official: bool) -> None:
    """Sells and buys on Solana. Raises: StepFailed."""
    sandbox = story.sandbox
    scene = OnSolana(story, SolanaBuyer(sandbox.solana_wallets.buyer, story.buyer, sandbox.solana_url), {})
    await _offer(scene)
    await _buy(scene, is_official=is_official)
    await _count_down(scene)
    await _refuse_wrong_payments(scene)
    await _history(scene)


async def _offer(scene: OnSolana) -> None:
    story, wallets = scene.story, scene.story.sandbox.solana_wallets
    tell = story.narrator
    with tell.step("The owner sells the same API on Solana"):
        terms = {"network": SOLANA.name, "paymentAddress": wallets.owner.address}
        scene.url = f"{await story.create_gate('Weather on Solana', CREDITS, **terms)}?city={CITY}"
        answer = await story.buyer.ask("GET", scene.url)
        tell.check("status of an unpaid call", expected=402, actual=answer.status)
        scene.unpaid, scene.challenge = answer, answer.json()
        asked = scene.challenge["accepts"][0]
        tell.show(asked)
        tell.check("network", expected=SOLANA.name, actual=asked["network"])
        tell.check("mint", expected=MINT, actual=asked["asset"])
        tell.check("amount in micro-units", expected=str(PRICE_MICRO), actual=asked["maxAmountRequired"])
        tell.check("recipient", expected=wallets.owner.address, actual=asked["payTo"])
        is_ours = asked["extra"]["feePayer"] in {one.address for one in wallets.fee_payers}
        tell.check("the hub pays the network's fee", expected=True, actual=is_ours)


async def _buy(scene: OnSolana, *, is_official: bool) -> None:
    story, wallet = scene.story, scene.story.sandbox.solana_wallets.buyer
    is_official = is_official and has_official_client_on_solana()
    who = "The unmodified official client (x402-fetch 1.2.0 from npm)" if is_official else "The buyer"
    with story.narrator.step(f"{who} signs a transaction, the hub co-signs and sends it"):
        before, hub_had, calls = await scene.balances(), await scene.hub_lamports(), story.sandbox.target.calls
        if is_official:
            told = await buy_officially_on_solana(scene.url, wallet.secret_key, story.sandbox.solana_url)
            story.narrator.check("the client's error", expected=None, actual=told["error"])
            answer = Answer(told["status"], told["headers"], told["body"].encode())
        else:
            ((name, payment),) = (await _taken(scene)).items()
            story.narrator.tell(f"{name}: {payment[:72]}... ({len(payment)} characters)")
            answer = await story.buyer.ask("GET", scene.url, headers={name: payment})
        scene.is_ours, story.token = not is_official, answer.headers.get("x-credit-token", "")
        await _check_purchase(scene, answer, calls, before, hub_had)


async def _taken(scene: OnSolana) -> dict[str, str]:
    """A fresh payment of what the gate asks for."""
    assert scene.unpaid is not None  # noqa: S101 - the step before
    return await scene.buyer.take(scene.unpaid)


async def _check_purchase(scene: OnSolana, answer: Answer, calls: int, before: tuple[int, int], hub_had: int) -> None:
    tell = scene.story.narrator
    body = answer.json() if answer.status == 200 else answer.body.decode("utf-8", "replace")
    tell.check("status", expected=200, actual=answer.status)
    tell.check("the API's own answer", expected=forecast(CITY), actual=body)
    tell.check("calls that reached the API", expected=calls + 1, actual=scene.story.sandbox.target.calls)
    receipt = answer.receipt or {}
    tell.check("the receipt says success", expected=True, actual=receipt.get("success"))
    tell.check("credits left", expected=str(CREDITS - 1), actual=answer.headers.get("x-credits-remaining"))
    scene.transaction = str(receipt.get("transaction"))
    scene.purchase_id = answer.headers.get("x-purchase-id", "")
    tell.tell(f"transaction on the chain: {scene.transaction}")
    after = await scene.balances()
    tell.tell(f"buyer  {format_usdc(before[0])} -> {format_usdc(after[0])} USDC")
    tell.tell(f"owner  {format_usdc(before[1])} -> {format_usdc(after[1])} USDC")
    tell.check("the buyer paid, in micro-units", expected=PRICE_MICRO, actual=before[0] - after[0])
    tell.check("the owner was paid, in micro-units", expected=PRICE_MICRO, actual=after[1] - before[1])
    on_chain = await scene.buyer.node("getTransaction", scene.transaction, {"encoding": "base64"})
    tell.check("the chain's word for an error", expected=None, actual=on_chain["meta"]["err"])
    paid = hub_had - await scene.hub_lamports()
    tell.check("lamports that the hub paid: the fee alone", expected=on_chain["meta"]["fee"], actual=paid)


async def _count_down(scene: OnSolana) -> None:
    tell = scene.story.narrator
    with tell.step("The payment on Solana is good for its credits, and for no more"):
        before = await scene.balances()
        await check_credits(scene.story, scene.url, partial(_taken, scene) if scene.is_ours else None)
        tell.check("balances have not moved", expected=before, actual=await scene.balances())


async def _refuse_wrong_payments(scene: OnSolana) -> None:
    story, wallets = scene.story, scene.story.sandbox.solana_wallets
    stranger = wallets.second_buyer.address
    wrong: tuple[tuple[str, str, Callable[[TransferTerms], TransferTerms]], ...] = (
        ("underpaid by one micro-unit", "INSUFFICIENT_AMOUNT", lambda asked: replace(asked, amount=asked.amount - 1)),
        ("signed to somebody else", "PAYMENT_INVALID", lambda asked: replace(asked, pay_to=stranger)),
        ("a stranger pays the fee", "PAYMENT_INVALID", lambda asked: replace(asked, fee_payer=stranger)),
    )
    tell = story.narrator
    with tell.step("Wrong payments on Solana are refused by name, and nothing moves"):
        before, hub_had, calls = await scene.balances(), await scene.hub_lamports(), story.sandbox.target.calls
        for what, code, change in wrong:
            check_refusal(
                tell, what, code, await story.buyer.call(scene.url, await scene.buyer.sign(scene.challenge, change))
            )
        late = await scene.buyer.sign(scene.challenge)
        await scene.buyer.node("sandbox_advance")  # 151 slots, about a minute of a cluster's
        check_refusal(tell, "its blockhash is too old", "PAYMENT_EXPIRED", await story.buyer.call(scene.url, late))
        tell.check("calls that reached the API", expected=calls, actual=story.sandbox.target.calls)
        tell.check("balances have not moved", expected=before, actual=await scene.balances())
        tell.check("the hub paid no fee", expected=hub_had, actual=await scene.hub_lamports())


async def _history(scene: OnSolana) -> None:
    story, wallet = scene.story, scene.story.sandbox.solana_wallets.buyer
    tell = story.narrator
    with tell.step("The buyer logs in with the Solana wallet, and finds the purchase"):
        token = await story.buyer.login(story.sandbox.hub_url, wallet.key)
        row = await check_history(story, token, SOLANA.name, scene.transaction)
        tell.check("signer", expected=wallet.address, actual=row["signerAddress"])
        tell.check("purchase", expected=scene.purchase_id, actual=row["purchaseData"]["purchaseId"])
