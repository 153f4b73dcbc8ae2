"""Asks a facilitator with PyPI x402 1.0.0's FacilitatorClient (which has no call for /supported).

Request: {url, calls: [{operation: "sign", privateKey, requirements} | {operation: "verify" | "settle", payload,
requirements}]}. Answer: {results: [{answer: what the client parsed, or the signed payload} |
{error: {type, message}}]}.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from driver_io import described, read_request, write_answer
from eth_account import Account
from x402.clients.base import x402Client
from x402.facilitator import FacilitatorClient
from x402.types import PaymentPayload, PaymentRequirements


async def call(facilitator: FacilitatorClient, asked: dict[str, Any]) -> dict[str, Any]:
    """One call, as the package's own middleware makes it."""
    requirements = PaymentRequirements(**asked["requirements"])
    if asked["operation"] == "sign":
        header = x402Client(Account.from_key(asked["privateKey"])).create_payment_header(requirements, 1)
        signed: dict[str, Any] = json.loads(base64.b64decode(header))
        return signed
    payload = PaymentPayload(**asked["payload"])
    ask = facilitator.verify if asked["operation"] == "verify" else facilitator.settle
    parsed: dict[str, Any] = (await ask(payload, requirements)).model_dump(by_alias=True)
    return parsed


async def main() -> None:
    """Make the calls in order; what one raises is its result and stops none of the others."""
    request = read_request()
    facilitator = FacilitatorClient({"url": request["url"]})
    results: list[dict[str, Any]] = []
    for asked in request["calls"]:
        try:
            results.append({"answer": await call(facilitator, asked)})
        except Exception as error:  # noqa: BLE001  what the client raises is what the caller asked to see
            results.append({"error": described(error)})
    write_answer({"results": results})


if __name__ == "__main__":
    asyncio.run(main())
