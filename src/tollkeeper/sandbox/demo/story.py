"""The story that the demo tells on each network: its numbered steps, the players, and what was said so far.

Each step is checked; the first check that fails ends the demo by name. A network's own steps are in `evm` and `solana`.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.usdc import format_usdc
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.sandbox.target import forecast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.core.keys.wallet_keys import WalletKey
    from tollkeeper.sandbox.buyer import Buyer
    from tollkeeper.sandbox.stack import Sandbox

_LINE_MAX: Final = 160


class StepFailed(Exception):  # noqa: N818 - what happened, in the story's words
    """A check of a step was not met."""


class Narrator:
    """Tells the steps to `say`. `checks` counts what was checked."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = time.monotonic()
        self.steps = 0
        self.checks = 0
        self.current = "start"

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """One step of the story."""
        self.steps += 1
        self.current = title
        self._say(f"\n{self.steps}. {title}")
        yield

    def tell(self, text: str) -> None:
        """Something worth reading; of a long line its beginning."""
        self._say("\n".join(f"   {_shortened(line)}" for line in text.splitlines()))

    def show(self, value: object) -> None:
        """A JSON value, as it is."""
        self.tell(json.dumps(value, indent=2))

    def check(self, what: str, *, expected: Any, actual: Any) -> None:  # noqa: ANN401 - anything comparable
        """Raises: StepFailed unless both are equal."""
        self.checks += 1
        if expected != actual:
            raise StepFailed(f"{what}: expected {expected!r}, got {actual!r}")
        self.tell(f"✓ {what}: {actual}")

    @property
    def seconds(self) -> float:
        """Since the story began."""
        return time.monotonic() - self._began


def _shortened(line: str) -> str:
    return line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]}... ({len(line)} characters)"


PRICE_MICRO: Final = 10_000
CREDITS: Final = 3
CITY: Final = "Oslo"


@dataclass(frozen=True, slots=True)
class Player:
    """The buyer's wallet on one network, and what the network shows of it. `network` and `token` are as a 402 has them.

    `pay_to`: who is paid. `key` logs in. `take`: the header of a fresh payment that takes a 402's first offer.
    `balances`: the buyer's and the owner's, in micro-units. `terms`: what a gate there says beside its price.
    """

    network: str
    token: str
    pay_to: str
    key: WalletKey
    take: Callable[[Answer], Awaitable[Mapping[str, str]]]
    balances: Callable[[], Awaitable[tuple[int, int]]]
    terms: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Story:
    """State that the steps share. `url` is the gate's, with a query; `unpaid` its 402.

    `is_ours`: our own client buys. `payment`: the header that it bought with.
    """

    narrator: Narrator
    sandbox: Sandbox
    client: Buyer
    player: Player
    url: str = ""
    unpaid: Answer | None = None
    is_ours: bool = True
    payment: str = ""
    token: str = ""
    purchase_id: str = ""
    transaction: str = ""

    @property
    def challenge(self) -> JsonMapping:
        """Body of the gate's 402."""
        assert self.unpaid is not None  # noqa: S101 - the step before
        return self.unpaid.json()

    async def take(self) -> Mapping[str, str]:
        """Return the header of a fresh payment of what the gate asks for."""
        assert self.unpaid is not None  # noqa: S101 - the step before
        return await self.player.take(self.unpaid)

    async def create_gate(self, title: str, calls: int) -> str:
        """A gate's URL. Raises: StepFailed."""
        body = {
            "targetUrl": self.sandbox.target_url,
            "price": format_usdc(PRICE_MICRO),
            "credits": calls,
            "title": title,
            **self.player.terms,
        }
        created = await self.client.ask("POST", f"{self.sandbox.gateway_url}/api/v1/paygates", body=body)
        self.narrator.check("the gate is created", expected=201, actual=created.status)
        url: str = created.json()["accessUrl"]
        return url


async def sell(story: Story, step: str, title: str) -> None:
    """Make a gate, and ask it without a payment. Raises: StepFailed."""
    tell = story.narrator
    with tell.step(step):
        tell.tell(f"POST /api/v1/paygates: {story.sandbox.target_url}, 0.01 USDC for {CREDITS} calls")
        story.url = f"{await story.create_gate(title, CREDITS)}?city={CITY}"
        tell.tell(f"public link: {story.url}")
    with tell.step("A buyer calls it without paying"):
        calls = story.sandbox.target.calls
        story.unpaid = answer = await story.client.ask("GET", story.url)
        tell.check("status", expected=402, actual=answer.status)
        tell.show(story.challenge)
        tell.tell("PAYMENT-REQUIRED says the same to clients of x402 version 2")
        asked = story.challenge["accepts"][0]
        tell.check("network", expected=story.player.network, actual=asked["network"])
        tell.check("token", expected=story.player.token, actual=asked["asset"])
        tell.check("amount in micro-units", expected=str(PRICE_MICRO), actual=asked["maxAmountRequired"])
        tell.check("recipient", expected=story.player.pay_to, actual=asked["payTo"])
        tell.check("calls that reached the API", expected=calls, actual=story.sandbox.target.calls)


async def pay(story: Story) -> Answer:
    """Sign what the gate asks for, and call again."""
    ((name, story.payment),) = (await story.take()).items()
    story.narrator.tell(f"{name}: {story.payment[:72]}... ({len(story.payment)} characters)")
    return await story.client.ask("GET", story.url, headers={name: story.payment})


def told_by_client(tell: Narrator, told: JsonMapping) -> Answer:
    """Return the answer that an official client got. Raises: StepFailed where it failed."""
    tell.check("the client's error", expected=None, actual=told["error"])
    return Answer(told["status"], told["headers"], told["body"].encode())


async def buy(story: Story, step: str, pays: Callable[[], Awaitable[Answer]]) -> None:
    """Buy by a call, and see what moved. Raises: StepFailed."""
    tell = story.narrator
    with tell.step(step):
        before, calls = await story.player.balances(), story.sandbox.target.calls
        answer = await pays()
        body = answer.json() if answer.status == 200 else answer.body.decode("utf-8", "replace")
        tell.check("status", expected=200, actual=answer.status)
        tell.check("the API's own answer", expected=forecast(CITY), actual=body)
        tell.check("calls that reached the API", expected=calls + 1, actual=story.sandbox.target.calls)
        receipt = answer.receipt or {}
        tell.check("the receipt says success", expected=True, actual=receipt.get("success"))
        tell.check("credits left", expected=str(CREDITS - 1), actual=answer.headers.get("x-credits-remaining"))
        after = await story.player.balances()
        tell.tell(f"buyer  {format_usdc(before[0])} -> {format_usdc(after[0])} USDC")
        tell.tell(f"owner  {format_usdc(before[1])} -> {format_usdc(after[1])} USDC")
        tell.check("the buyer paid, in micro-units", expected=PRICE_MICRO, actual=before[0] - after[0])
        tell.check("the owner was paid, in micro-units", expected=PRICE_MICRO, actual=after[1] - before[1])
        story.transaction = str(receipt.get("transaction"))
        story.purchase_id = answer.headers.get("x-purchase-id", "")
        story.token = answer.headers.get("x-credit-token", "")
        tell.tell(f"transaction on the chain: {story.transaction}")


async def count_down(story: Story, step: str) -> None:
    """Use up what was bought. Our own client signs a payment for each call, as clients of version 2 do.

    Else each call shows the credit token. Raises: StepFailed.
    """
    tell, token = story.narrator, {"X-Credit-Token": story.token}
    with tell.step(step):
        before, calls = await story.player.balances(), story.sandbox.target.calls
        if story.is_ours:
            tell.tell("for each call a new payment is signed, which spends a credit and is not settled")
        else:
            tell.tell("shown: X-Credit-Token")
        for left in range(CREDITS - 2, -1, -1):
            answer = await story.client.ask("GET", story.url, headers=await story.take() if story.is_ours else token)
            tell.check("status", expected=200, actual=answer.status)
            tell.check("credits left", expected=str(left), actual=answer.headers.get("x-credits-remaining"))
        answer = await story.client.ask("GET", story.url, headers=token)
        tell.check("status of the token when they are used up", expected=402, actual=answer.status)
        tell.check("code", expected="CREDITS_EXHAUSTED", actual=answer.error_code)
        tell.check("calls that reached the API", expected=calls + CREDITS - 1, actual=story.sandbox.target.calls)
        tell.check("balances have not moved", expected=before, actual=await story.player.balances())


async def refuse(story: Story, step: str, wrong: Iterable[tuple[str, str, Callable[[], Awaitable[Answer]]]]) -> None:
    """Show wrong payments, each of which is refused by its code. Raises: StepFailed."""
    tell = story.narrator
    with tell.step(step):
        before, calls = await story.player.balances(), story.sandbox.target.calls
        for what, code, ask in wrong:
            answer = await ask()
            tell.check(f"{what}: status", expected=402, actual=answer.status)
            tell.check(f"{what}: code", expected=code, actual=answer.error_code)
        tell.check("calls that reached the API", expected=calls, actual=story.sandbox.target.calls)
        tell.check("balances have not moved", expected=before, actual=await story.player.balances())


async def find_in_history(story: Story, step: str) -> None:
    """Find the transaction in the history of the wallet that bought. Raises: StepFailed."""
    tell, hub_url = story.narrator, story.sandbox.hub_url
    with tell.step(step):
        bearer = {"Authorization": f"Bearer {await story.client.login(hub_url, story.player.key)}"}
        listed = f"{hub_url}/api/v1/history?limit=100&network={story.player.network}"
        answer = await story.client.ask("GET", listed, headers=bearer)
        tell.check("status", expected=200, actual=answer.status)
        found = [item for item in answer.json()["history"] if item["transactionHash"] == story.transaction]
        tell.check("rows of that transaction", expected=1, actual=len(found))
        row: JsonMapping = found[0]
        tell.show(row)
        tell.check("status of the row", expected="success", actual=row["status"])
        tell.check("type of the row", expected="purchase", actual=row["type"])
        tell.check("amount in base units", expected=str(PRICE_MICRO), actual=row["amount"])
        tell.check("signer", expected=story.player.key.address, actual=row["signerAddress"])
        tell.check("purchase", expected=story.purchase_id, actual=row["purchaseData"]["purchaseId"])
