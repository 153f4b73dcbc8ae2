"""A program of a test's own in a few words: its database is a file that the test may read and change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.gateway.recording_target import RecordingTarget
from tollkeeper.sandbox.buyer import Buyer


@dataclass(slots=True)
class Shop:
    """The program, its database, a target and a buyer. `FIELDS`: what its gates have besides target and price."""

    FIELDS: ClassVar[dict[str, Any]] = {}

    url: str
    database: Path
    target: RecordingTarget
    buyer: Buyer

    async def gate(self, **fields: object) -> dict[str, Any]:
        """A new gate at the target."""
        body = {"price": "0.01", "targetUrl": self.target.url, **self.FIELDS, **fields}
        answer = await self.buyer.ask("POST", self.url + "/api/v1/paygates", body=body)
        assert answer.status == 201, answer.body
        gate: dict[str, Any] = answer.json()
        return gate

    async def payment(self, gate: dict[str, Any], method: str = "GET") -> str:
        """An `X-Payment` value for the gate, which takes this method."""
        return self.buyer.sign((await self.buyer.ask(method, gate["accessUrl"])).json())
