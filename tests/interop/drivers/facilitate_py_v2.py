"""Asks a facilitator with PyPI x402 2.25.0's HTTPFacilitatorClient, with v1 payloads.

Request: {url, calls: [{operation: "supported"} | {operation: "sign", privateKey, requirements, rpcUrl (on Solana)} |
{operation: "verify" | "settle", payload, requirements}]}. Answer: {results: [{answer: what the client parsed, or the
signed payload} | {error: {type, message}}]}.
"""

from __future__ import annotations

import asyncio
from typing import Any

from driver_io import described, read_request, write_answer
from families import client_of
from x402.http import FacilitatorConfig, HTTPFacilitatorClient
from x402.schemas.helpers import parse_payment_payload, parse_payment_requirements
from x402.schemas.v1 import PaymentRequiredV1


async def call(facilitator: HTTPFacilitatorClient, asked: dict[str, Any]) -> dict[str, Any]:
    """One call, as the package's own resource server makes it."""
    if asked["operation"] == "supported":
        supported: dict[str, Any] = facilitator.get_supported().model_dump(by_alias=True)
        return supported
    if asked["operation"] == "sign":
        required = PaymentRequiredV1.model_validate({"x402Version": 1, "accepts": [asked["requirements"]]})
        signed: dict[str, Any] = (await client_of(asked).create_payment_payload(required)).model_dump(by_alias=True)
        return signed
    payload = parse_payment_payload(asked["payload"])
    requirements = parse_payment_requirements(payload.x402_version, asked["requirements"])
    ask = facilitator.verify if asked["operation"] == "verify" else facilitator.settle
    parsed: dict[str, Any] = (await ask(payload, requirements)).model_dump(by_alias=True)
    return parsed


async def main() -> None:
    """Make the calls in order; what one raises is its result and stops none of the others."""
    request = read_request()
    results: list[dict[str, Any]] = []
    async with HTTPFacilitatorClient(FacilitatorConfig(url=request["url"])) as facilitator:
        for asked in request["calls"]:
            try:
                results.append({"answer": await call(facilitator, asked)})
            except Exception as error:  # noqa: BLE001  what the client raises is what the caller asked to see
                results.append({"error": described(error)})
    write_answer({"results": results})


if __name__ == "__main__":
    asyncio.run(main())
