"""What the steps of the demo share: who plays, where everything is, and what was said so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.usdc import format_usdc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.sandbox.buyer import Answer, Buyer
    from tollkeeper.sandbox.narration import Narrator
    from tollkeeper.sandbox.stack import Sandbox

PRICE_MICRO: Final = 10_000
CREDITS: Final = 3
CITY: Final = "Oslo"


@dataclass(slots=True)
class Story:
    """What the steps share. `url` is the gate's, with a query; `payment` the header that bought, where we know it."""

    narrator: Narrator
    sandbox: Sandbox
    buyer: Buyer
    url: str = ""
    challenge: Mapping[str, Any] | None = None
    payment: str | None = None
    token: str = ""
    purchase_id: str = ""
    transaction: str = ""

    async def balances(self) -> tuple[int, int]:
        """What buyer and owner hold, in micro-units."""
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


def check_refusal(tell: Narrator, what: str, code: str, answer: Answer) -> None:
    """A payment was refused by this code. Raises: StepFailed."""
    tell.check(f"{what}: status", expected=402, actual=answer.status)
    tell.check(f"{what}: code", expected=code, actual=answer.error_code)
