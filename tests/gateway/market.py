"""A market in a few words: gates to create, payments to sign, calls to make against the running program."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.gateway.recording_target import RecordingTarget
from tests.interop.stack import Stack
from tollkeeper.core.evm.encoding import Authorization
from tollkeeper.sandbox.buyer import Answer, Buyer


@dataclass(frozen=True, slots=True)
class Market:
    """The program, a target and a buyer with funds."""

    stack: Stack
    target: RecordingTarget
    buyer: Buyer

    async def gate(self, **fields: object) -> dict[str, Any]:
        """A new gate at the target: 0.01 USDC for one GET, unless told otherwise."""
        body = {"targetUrl": self.target.url, "price": "0.01", "credits": 1, **fields}
        answer = await self.ask("POST", "/api/v1/paygates", body=body)
        assert answer.status == 201, answer.body
        return answer.json()

    async def ask(self, method: str, path: str, **given: Any) -> Answer:
        """A request to the gateway."""
        return await self.buyer.ask(method, path if "://" in path else self.stack.gateway_url + path, **given)

    async def challenge(self, gate: dict[str, Any]) -> dict[str, Any]:
        """The 402's body."""
        answer = await self.buyer.ask(gate["method"].split(",")[0], gate["accessUrl"])
        assert answer.status == 402, answer.body
        return answer.json()

    async def payment(
        self, gate: dict[str, Any], change: Callable[[Authorization], Authorization] | None = None
    ) -> str:
        """An `X-Payment` value for the gate."""
        return self.buyer.sign(await self.challenge(gate), change)

    async def pay(self, gate: dict[str, Any], payment: str, method: str = "GET", **headers: str) -> Answer:
        """A call with a payment."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.buyer.ask(method, gate["accessUrl"], headers={"X-Payment": payment, **names})

    async def buy(self, gate: dict[str, Any]) -> tuple[str, Answer]:
        """A payment and the answer to the call that bought with it."""
        payment = await self.payment(gate)
        return payment, await self.pay(gate, payment)

    async def counters(self, gate: dict[str, Any], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The gate's counters, once they are as wanted; they are written off the hot path."""
        deadline = time.monotonic() + 30
        while True:
            counters: dict[str, Any] = (await self.ask("GET", f"/api/v1/paygates/{gate['id']}")).json()["counters"]
            if wanted(counters) or time.monotonic() > deadline:
                return counters
            await asyncio.sleep(0.05)
