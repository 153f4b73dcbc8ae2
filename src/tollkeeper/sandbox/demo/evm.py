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
from functools import partial
from typing import TYPE_CHECKING, Final

import aiohttp

from tollkeeper.core.configuration import LogFormat, LogLevel
from tollkeeper.core.usdc import format_usdc
from tollkeeper.logs import configure_logs
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.demo.official_client import (
    buy_in_version_2,
    buy_in_version_2_on_solana,
    buy_officially,
    buy_today,
    require_official_client,
)
from tollkeeper.sandbox.demo.solana import play_on_solana
from tollkeeper.sandbox.demo.story import (
    PRICE_MICRO,
    Narrator,
    Player,
    StepFailed,
    Story,
    buy,
    count_down,
    find_in_history,
    pay,
    refuse,
    sell,
    told_by_client,
)
from tollkeeper.sandbox.running import parse_engine, say
from tollkeeper.sandbox.stack import NETWORK, Options, Sandbox, open_sandbox
from tollkeeper.serving.http.server import run
from tollkeeper.settings.sources import wants_colours

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

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


def _player(sandbox: Sandbox, buyer: Buyer) -> Player:
    """Return the player on the embedded EVM chain."""
    ask = partial(buyer.balance_micro, sandbox.rpc_url, sandbox.token)

    async def take(unpaid: Answer) -> Mapping[str, str]:
        return buyer.take(unpaid)

    async def balances() -> tuple[int, int]:
        return await ask(buyer.wallet.address), await ask(sandbox.wallets.owner.address)

    return Player(NETWORK.name, sandbox.token, sandbox.pay_to, buyer.wallet.key, take, balances)


async def play(narrator: Narrator, options: Options, *, is_official: bool) -> None:
    """The whole story. Raises: StepFailed."""
    async with open_sandbox(options) as sandbox, Buyer(sandbox.wallets.buyer) as buyer:
        story = Story(narrator, sandbox, buyer, _player(sandbox, buyer), is_ours=not is_official)
        say("Tollkeeper demo: gateway, hub, two chains with play USDC and a small HTTP API, all in this process.")
        await sell(story, "The owner puts a price on an API", "Weather")
        if is_official:
            step = "The unmodified official client (x402 1.0.0 from PyPI) buys"
            await buy(story, step, partial(_pay_officially, story))
        else:
            await buy(story, "The buyer signs what the 402 asks for, and calls again", partial(pay, story))
        await count_down(story, "What was bought is good for its credits, and for no more")
        await _refuse_wrong_payments(story)
        await _sell_file(story)
        await find_in_history(story, "The buyer logs in at the hub with the wallet, and finds the purchase")
        on_solana = await play_on_solana(narrator, sandbox, buyer, is_official=is_official)
        if is_official:
            step = "Today's official client (x402 2.25.0 from PyPI) calls three times in version 2, and pays once"
            await buy_today(story, step, partial(buy_in_version_2, sandbox.wallets.buyer.private_key_hex))
        if not on_solana.is_ours:
            key = sandbox.solana_wallets.buyer.secret_key
            step = "Today's official client (@x402/fetch 2.27.0 from npm) does the same on Solana"
            await buy_today(on_solana, step, partial(buy_in_version_2_on_solana, key, sandbox.solana_url))


async def _pay_officially(story: Story) -> Answer:
    told = await buy_officially(story.url, story.sandbox.wallets.buyer.private_key_hex)
    return told_by_client(story.narrator, told)


async def _refuse_wrong_payments(story: Story) -> None:
    buyer, url = story.client, story.url
    stranger = story.sandbox.wallets.second_buyer.address
    other = await story.create_gate("Another gate", 1)
    payment = story.payment
    if not payment:  # the official client keeps its header to itself
        payment = buyer.sign(story.challenge)
        bought = await buyer.call(url, payment)
        story.narrator.check("another purchase", expected=200, actual=bought.status)

    def changed(change: Callable[[Authorization], Authorization]) -> Callable[[], Awaitable[Answer]]:
        return partial(buyer.call, url, buyer.sign(story.challenge, change))

    wrong = (
        ("underpaid by one micro-unit", "INSUFFICIENT_AMOUNT", changed(lambda one: replace(one, value=one.value - 1))),
        ("expired", "PAYMENT_EXPIRED", changed(lambda one: replace(one, valid_before=one.valid_after + 30))),
        ("signed to somebody else", "PAYMENT_INVALID", changed(lambda one: replace(one, pay_to=stranger))),
        ("spent at another gate", "NONCE_ALREADY_USED", partial(buyer.call, other, payment)),
    )
    await refuse(story, "Wrong payments are refused by name, and nothing moves", wrong)


async def _sell_file(story: Story) -> None:
    tell, gateway = story.narrator, story.sandbox.gateway_url
    with tell.step("The owner sells a file, and the buyer downloads what was bought"):
        before = await story.player.balances()
        async with Buyer(story.sandbox.wallets.owner) as owner:
            bearer = {"Authorization": f"Bearer {await owner.login(gateway)}"}
            form = aiohttp.FormData({"price": format_usdc(PRICE_MICRO), "resourceType": "file"})
            form.add_field("file", FILE, filename="almanac.txt", content_type="text/plain")
            created = await owner.ask("POST", f"{gateway}/api/v1/paygates", form=form, headers=bearer)
        tell.check("the file PayGate is created", expected=201, actual=created.status)
        url = created.json()["accessUrl"]
        unpaid = await story.client.ask("GET", url)
        tell.check("status without a payment", expected=402, actual=unpaid.status)
        bought = await story.client.call(url, story.client.sign(unpaid.json()))
        tell.check("status with one", expected=200, actual=bought.status)
        tell.show(bought.json())
        link = bought.json()["downloadUrl"]
        downloaded = await story.client.ask("GET", link)
        tell.check("the content", expected=FILE, actual=downloaded.body)
        part = await story.client.ask("GET", link, headers={"Range": "bytes=0-3"})
        tell.check("the first four bytes alone", expected=(206, FILE[:4]), actual=(part.status, part.body))
        forged = await story.client.ask("GET", link[:-1])
        tell.check("a changed link", expected=403, actual=forged.status)
        after = await story.player.balances()
        tell.check("the buyer paid once, in micro-units", expected=PRICE_MICRO, actual=before[0] - after[0])
