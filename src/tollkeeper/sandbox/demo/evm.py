"""`tollkeeper demo`: whole purchases on embedded chains, told step by step and checked at each (specification 1).

A gate is made, its 402 shown, a payment signed, settled on the chain and turned into calls of a real HTTP target;
credits are counted down to the next 402; wrong payments are refused by name; the buyer finds the purchase in the hub's
history. Then the same on Solana (`demo.solana`). The first check that fails ends it.
"""

from __future__ import annotations

import io
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import aiohttp

from tollkeeper.core.configuration import LogFormat, LogLevel
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.json_types import JsonMapping
from tollkeeper.core.usdc import format_usdc
from tollkeeper.logs import configure_logs
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.demo.official_client import buy_officially, play_in_version_2, require_official_client
from tollkeeper.sandbox.demo.solana import play_on_solana
from tollkeeper.sandbox.demo.story import (
    CITY,
    CREDITS,
    PRICE_MICRO,
    Narrator,
    StepFailed,
    Story,
    check_credits,
    check_history,
    check_refusal,
)
from tollkeeper.sandbox.running import parse_engine, say
from tollkeeper.sandbox.stack import Options, open_sandbox
from tollkeeper.sandbox.target import forecast
from tollkeeper.serving.http.server import run
from tollkeeper.settings.sources import wants_colours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tollkeeper.core.evm.encoding import Authorization

CLIENTS: Final = ("built-in", "official")
FILE: Final = b"Almanac of made-up weather\n" * 1000


def run_demo(client: str, engine: str) -> bool:
    """Play it on standard output; was every step as it should be? Raises: ValueError for a wrong option."""
    if client not in CLIENTS:
        raise ValueError(f"--client is none of {', '.join(CLIENTS)}")
    if client == "official":
        require_official_client()
    options = Options(engine=parse_engine(engine))
    configure_logs(LogLevel.ERROR, LogFormat.AUTO, colours=wants_colours(sys.stderr))
    narrator = Narrator(say)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a tick that a terminal cannot show is no reason to fail
    try:
        run(play(narrator, options, is_official=client == "official"))
    except StepFailed as failed:
        say(f"\nFAILED at step {narrator.steps} ({narrator.current}): {failed}")
        return False
    except Exception as fault:
        if narrator.steps == 0:  # it could not even start: the command says why
            raise
        say(f"\nFAILED at step {narrator.steps} ({narrator.current}): {type(fault).__name__}")
        traceback.print_exception(fault)
        return False
    say(f"\nDone: {narrator.steps} steps, {narrator.checks} checks, {narrator.seconds:.1f} s. Every check was met.")
    return True


async def play(narrator: Narrator, options: Options, *, is_official: bool) -> None:
    """The whole story. Raises: StepFailed."""
    async with open_sandbox(options) as sandbox, Buyer(sandbox.wallets.buyer) as buyer:
        story = Story(narrator, sandbox, buyer)
        say("Tollkeeper demo: gateway, hub, two chains with play USDC and a small HTTP API, all in this process.")
        await _create(story)
        await _unpaid(story)
        if is_official:
            await _buy_with_official_client(story)
        else:
            await _buy(story)
        await _count_down(story)
        await _refuse_wrong_payments(story)
        await _sell_file(story)
        await _history(story)
        await play_on_solana(story, is_official=is_official)
        if is_official:
            await play_in_version_2(story)


async def _create(story: Story) -> None:
    with story.narrator.step("The owner puts a price on an API"):
        story.narrator.tell(f"POST /api/v1/paygates: {story.sandbox.target_url}, 0.01 USDC for {CREDITS} calls")
        story.url = f"{await story.create_gate('Weather', CREDITS)}?city={CITY}"
        story.narrator.tell(f"public link: {story.url}")


async def _unpaid(story: Story) -> None:
    tell = story.narrator
    with tell.step("A buyer calls it without paying"):
        answer = await story.buyer.ask("GET", story.url)
        tell.check("status", expected=402, actual=answer.status)
        story.unpaid, story.challenge = answer, answer.json()
        tell.show(story.challenge)
        tell.tell("PAYMENT-REQUIRED says the same to clients of x402 version 2")
        asked = story.challenge["accepts"][0]
        tell.check("amount in micro-units", expected=str(PRICE_MICRO), actual=asked["maxAmountRequired"])
        tell.check("recipient", expected=story.sandbox.pay_to, actual=asked["payTo"])
        tell.check("calls that reached the API", expected=0, actual=story.sandbox.target.calls)


async def _buy(story: Story) -> None:
    with story.narrator.step("The buyer signs what the 402 asks for, and calls again"):
        before = await story.balances()
        ((name, story.payment),) = _taken(story).items()
        story.narrator.tell(f"{name}: {story.payment[:72]}... ({len(story.payment)} characters)")
        answer = await story.buyer.ask("GET", story.url, headers={name: story.payment})
        body = answer.json() if answer.status == 200 else answer.body.decode("utf-8", "replace")
        await _check_purchase(story, answer.status, body, answer.headers, answer.receipt, before)


def _taken(story: Story) -> dict[str, str]:
    """A fresh payment of what the gate asks for."""
    assert story.unpaid is not None  # noqa: S101 - the step before
    return story.buyer.take(story.unpaid)


async def _buy_with_official_client(story: Story) -> None:
    with story.narrator.step("The unmodified official client (x402 1.0.0 from PyPI) buys"):
        before = await story.balances()
        answer = await buy_officially(story.url, story.sandbox.wallets.buyer.private_key_hex)
        story.narrator.check("the client's error", expected=None, actual=answer["error"])
        body = Answer(answer["status"], {}, answer["body"].encode()).json()
        await _check_purchase(story, answer["status"], body, answer["headers"], answer["receipt"], before)


async def _check_purchase(
    story: Story,
    status: int,
    body: object,
    headers: Mapping[str, str],
    receipt: JsonMapping | None,
    before: tuple[int, int],
) -> None:
    tell = story.narrator
    tell.check("status", expected=200, actual=status)
    tell.check("the API's own answer", expected=forecast(CITY), actual=body)
    tell.check("calls that reached the API", expected=1, actual=story.sandbox.target.calls)
    receipt = receipt or {}
    tell.check("the receipt says success", expected=True, actual=receipt.get("success"))
    tell.check("credits left", expected=str(CREDITS - 1), actual=headers.get("x-credits-remaining"))
    after = await story.balances()
    tell.tell(f"buyer  {format_usdc(before[0])} -> {format_usdc(after[0])} USDC")
    tell.tell(f"owner  {format_usdc(before[1])} -> {format_usdc(after[1])} USDC")
    tell.check("the buyer paid, in micro-units", expected=PRICE_MICRO, actual=before[0] - after[0])
    tell.check("the owner was paid, in micro-units", expected=PRICE_MICRO, actual=after[1] - before[1])
    story.transaction = str(receipt.get("transaction"))
    story.purchase_id = headers.get("x-purchase-id", "")
    story.token = headers.get("x-credit-token", "")
    tell.tell(f"transaction on the chain: {story.transaction}")


async def _count_down(story: Story) -> None:
    tell = story.narrator
    with tell.step("What was bought is good for its credits, and for no more"):
        before = await story.balances()

        async def take() -> dict[str, str]:
            return _taken(story)

        await check_credits(story, story.url, None if story.payment is None else take)
        tell.check("calls that reached the API", expected=CREDITS, actual=story.sandbox.target.calls)
        tell.check("balances have not moved", expected=before, actual=await story.balances())


async def _refuse_wrong_payments(story: Story) -> None:
    tell, buyer = story.narrator, story.buyer
    stranger = story.sandbox.wallets.second_buyer.address
    wrong: tuple[tuple[str, str, Callable[[Authorization], Authorization]], ...] = (
        ("underpaid by one micro-unit", "INSUFFICIENT_AMOUNT", lambda asked: replace(asked, value=asked.value - 1)),
        ("expired", "PAYMENT_EXPIRED", lambda asked: replace(asked, valid_before=asked.valid_after + 30)),
        ("signed to somebody else", "PAYMENT_INVALID", lambda asked: replace(asked, pay_to=stranger)),
    )
    with tell.step("Wrong payments are refused by name, and nothing moves"):
        before, calls = await story.balances(), story.sandbox.target.calls
        for what, code, change in wrong:
            answer = await buyer.call(story.url, buyer.sign(story.challenge or {}, change))
            check_refusal(tell, what, code, answer)
        other = await story.create_gate("Another gate", 1)
        challenge = (await buyer.ask("GET", other)).json()
        payment = story.payment
        if payment is None:  # the official client keeps its header to itself
            payment = buyer.sign(story.challenge or {})
            bought = await buyer.call(story.url, payment)
            tell.check("another purchase", expected=200, actual=bought.status)
            before, calls = await story.balances(), calls + 1
        tell.check("both gates ask the same", expected=challenge["x402"], actual=(story.challenge or {})["x402"])
        check_refusal(tell, "spent at another gate", "NONCE_ALREADY_USED", await buyer.call(other, payment))
        tell.check("calls that reached the API", expected=calls, actual=story.sandbox.target.calls)
        tell.check("balances have not moved", expected=before, actual=await story.balances())


async def _sell_file(story: Story) -> None:
    tell, gateway = story.narrator, story.sandbox.gateway_url
    with tell.step("The owner sells a file, and the buyer downloads what was bought"):
        before = await story.balances()
        async with Buyer(story.sandbox.wallets.owner) as owner:
            bearer = {"Authorization": f"Bearer {await owner.login(gateway)}"}
            form = aiohttp.FormData({"price": format_usdc(PRICE_MICRO), "resourceType": "file"})
            form.add_field("file", FILE, filename="almanac.txt", content_type="text/plain")
            created = await owner.ask("POST", f"{gateway}/api/v1/paygates", form=form, headers=bearer)
        tell.check("the file PayGate is created", expected=201, actual=created.status)
        url = created.json()["accessUrl"]
        unpaid = await story.buyer.ask("GET", url)
        tell.check("status without a payment", expected=402, actual=unpaid.status)
        bought = await story.buyer.call(url, story.buyer.sign(unpaid.json()))
        tell.check("status with one", expected=200, actual=bought.status)
        tell.show(bought.json())
        link = bought.json()["downloadUrl"]
        downloaded = await story.buyer.ask("GET", link)
        tell.check("the content", expected=FILE, actual=downloaded.body)
        part = await story.buyer.ask("GET", link, headers={"Range": "bytes=0-3"})
        tell.check("the first four bytes alone", expected=(206, FILE[:4]), actual=(part.status, part.body))
        forged = await story.buyer.ask("GET", link[:-1])
        tell.check("a changed link", expected=403, actual=forged.status)
        after = await story.balances()
        tell.check("the buyer paid once, in micro-units", expected=PRICE_MICRO, actual=before[0] - after[0])


async def _history(story: Story) -> None:
    tell = story.narrator
    with tell.step("The buyer logs in at the hub with the wallet, and finds the purchase"):
        token = await story.buyer.login(story.sandbox.hub_url)
        row = await check_history(story, token, "base-sepolia", story.transaction)
        buyer = checksum_address(story.sandbox.wallets.buyer.address)
        tell.check("signer", expected=buyer, actual=checksum_address(row["signerAddress"]))
        tell.check("purchase", expected=story.purchase_id, actual=row["purchaseData"]["purchaseId"])
