"""State that the steps of the demo share: the players, the places, and what was said so far.

How a demo tells its story: numbered steps, each checked; the first check that fails ends it by name.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.usdc import format_usdc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from tollkeeper.core.json_types import JsonMapping
    from tollkeeper.sandbox.buyer import Answer, Buyer
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


@dataclass(slots=True)
class Story:
    """State that the steps share. `url` is the gate's, with a query; `unpaid` its 402, whose body is the `challenge`.

    `payment`: the header that bought, if we know it.
    """

    narrator: Narrator
    sandbox: Sandbox
    buyer: Buyer
    url: str = ""
    unpaid: Answer | None = None
    challenge: JsonMapping | None = None
    payment: str | None = None
    token: str = ""
    purchase_id: str = ""
    transaction: str = ""

    async def balances(self) -> tuple[int, int]:
        """Return the buyer's and the owner's balances, in micro-units."""
        sandbox, wallets = self.sandbox, self.sandbox.wallets
        return (
            await self.buyer.balance_micro(sandbox.rpc_url, sandbox.token, wallets.buyer.address),
            await self.buyer.balance_micro(sandbox.rpc_url, sandbox.token, wallets.owner.address),
        )

    async def create_gate(self, title: str, calls: int, **more: str) -> str:
        """A gate's URL. Raises: StepFailed."""
        body = {
            "targetUrl": self.sandbox.target_url,
            "price": format_usdc(PRICE_MICRO),
            "credits": calls,
            "title": title,
            **more,
        }
        created = await self.buyer.ask("POST", f"{self.sandbox.gateway_url}/api/v1/paygates", body=body)
        self.narrator.check("the gate is created", expected=201, actual=created.status)
        url: str = created.json()["accessUrl"]
        return url


async def check_history(story: Story, token: str, network: str, transaction: str) -> JsonMapping:
    """Return the row of that transaction in the history of the wallet that is logged in. Raises: StepFailed."""
    tell = story.narrator
    answer = await story.buyer.ask(
        "GET",
        f"{story.sandbox.hub_url}/api/v1/history?limit=100&network={network}",
        headers={"Authorization": f"Bearer {token}"},
    )
    tell.check("status", expected=200, actual=answer.status)
    found = [item for item in answer.json()["history"] if item["transactionHash"] == transaction]
    tell.check("rows of that transaction", expected=1, actual=len(found))
    row: JsonMapping = found[0]
    tell.show(row)
    tell.check("status of the row", expected="success", actual=row["status"])
    tell.check("type of the row", expected="purchase", actual=row["type"])
    tell.check("amount in base units", expected=str(PRICE_MICRO), actual=row["amount"])
    return row


async def check_credits(story: Story, url: str, take: Callable[[], Awaitable[Mapping[str, str]]] | None) -> None:
    """Use up what is left of a purchase at this gate. Raises: StepFailed.

    `take` signs a fresh payment for a call, as clients of version 2 do; None: each call shows the credit token.
    """
    tell, token = story.narrator, {"X-Credit-Token": story.token}
    if take is None:
        tell.tell("shown: X-Credit-Token")
    else:
        tell.tell("for each call a new payment is signed, which spends a credit and is not settled")
    for left in range(CREDITS - 2, -1, -1):
        answer = await story.buyer.ask("GET", url, headers=token if take is None else await take())
        tell.check("status", expected=200, actual=answer.status)
        tell.check("credits left", expected=str(left), actual=answer.headers.get("x-credits-remaining"))
    answer = await story.buyer.ask("GET", url, headers=token)
    tell.check("status of the token when they are used up", expected=402, actual=answer.status)
    tell.check("code", expected="CREDITS_EXHAUSTED", actual=answer.error_code)


def check_refusal(tell: Narrator, what: str, code: str, answer: Answer) -> None:
    """A payment was refused by this code. Raises: StepFailed."""
    tell.check(f"{what}: status", expected=402, actual=answer.status)
    tell.check(f"{what}: code", expected=code, actual=answer.error_code)
