"""The demo's last steps with official clients: today's buy in version 2, and call again on what they bought."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.core.json_types import JsonObject
from tollkeeper.sandbox.buyer import Answer, SolanaBuyer
from tollkeeper.sandbox.demo.official_client import (
    buy_in_version_2,
    buy_in_version_2_on_solana,
    has_official_client_on_solana,
)
from tollkeeper.sandbox.demo.story import CITY, CREDITS, PRICE_MICRO, Story
from tollkeeper.sandbox.stack import SOLANA
from tollkeeper.sandbox.target import forecast

if TYPE_CHECKING:
    from tollkeeper.sandbox.demo.story import Narrator


async def play_in_version_2(story: Story) -> None:
    """Sells to today's clients, on both chains. Raises: StepFailed."""
    await _on_evm(story)
    if has_official_client_on_solana():
        await _on_solana(story)


async def _on_evm(story: Story) -> None:
    tell, sandbox = story.narrator, story.sandbox
    with tell.step("Today's official client (x402 2.25.0 from PyPI) calls three times in version 2, and pays once"):
        url = f"{await story.create_gate('Weather for today', CREDITS)}?city={CITY}"
        before = await story.balances()
        answers = await buy_in_version_2(url, sandbox.wallets.buyer.private_key_hex, CREDITS)
        _check_answers(tell, answers)
        after = await story.balances()
        tell.check("the buyer paid, in micro-units", expected=PRICE_MICRO, actual=before[0] - after[0])
        tell.check("the owner was paid, in micro-units", expected=PRICE_MICRO, actual=after[1] - before[1])


async def _on_solana(story: Story) -> None:
    tell, sandbox = story.narrator, story.sandbox
    wallets = sandbox.solana_wallets
    node = SolanaBuyer(wallets.buyer, story.buyer, sandbox.solana_url)
    with tell.step("Today's official client (@x402/fetch 2.27.0 from npm) does the same on Solana"):
        terms = {"network": SOLANA.name, "paymentAddress": wallets.owner.address}
        url = f"{await story.create_gate('Weather for today on Solana', CREDITS, **terms)}?city={CITY}"
        before = await node.balance_micro(wallets.owner.address, SOLANA.usdc.address)
        answers = await buy_in_version_2_on_solana(url, wallets.buyer.secret_key, sandbox.solana_url, CREDITS)
        _check_answers(tell, answers)
        after = await node.balance_micro(wallets.owner.address, SOLANA.usdc.address)
        tell.check("the owner was paid, in micro-units", expected=PRICE_MICRO, actual=after - before)


def _check_answers(tell: Narrator, answers: list[JsonObject]) -> None:
    """Every call was served; the second and third spent credits of the first one's purchase."""
    for left, answer in zip(reversed(range(CREDITS)), answers, strict=True):
        tell.check("the client's error", expected=None, actual=answer["error"])
        tell.check("status", expected=200, actual=answer["status"])
        body = Answer(answer["status"], {}, answer["body"].encode()).json()
        tell.check("the API's own answer", expected=forecast(CITY), actual=body)
        tell.check("credits left", expected=str(left), actual=answer["headers"].get("x-credits-remaining"))
